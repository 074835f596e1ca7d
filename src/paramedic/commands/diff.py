"""say what changed since the run that worked, the most relevant to the failure first

Compares versions, configuration files, arguments, environment, launch command, world size, hosts, code, pace and
warnings of two runs, and ranks each change by the failure's likely causes. A run is a log, a folder with logs and what
lies beside them (ds_config.json, requirements.txt, env.txt, train.py), a glob, an archive, or a recorded Run.
Exit codes: 0 no differences, 1 differences, 2 wrong usage or input, 3 nothing to compare.

  paramedic diff runs/monday/ runs/tuesday/
  paramedic diff good.log bad.log --format json
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.collect.settings import Settings
    from paramedic.differences import Change, Side
    from paramedic.knowledge import Knowledge
    from paramedic.model import Report, Run, Skipped
    from paramedic.pipeline import Options
    from paramedic.prefilter import Prefilter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ok", metavar="RUN_OK", help="the run that worked: file, folder, glob, archive or recorded Run")
    parser.add_argument("bad", metavar="RUN_BAD", help="the run that did not")
    group = parser.add_argument_group("output")
    group.add_argument("--format", choices=("text", "json"), help="how to print it (default: text)")
    group.add_argument("--output", metavar="FILE", help="write it there instead of to standard output; .json says how")
    group.add_argument("-q", "--quiet", action="store_true", help="print nothing; the exit code is the answer")
    group.add_argument(
        "-v", "--verbose", action="store_true", help="all differences whole, and the changed lines of code"
    )
    flags.add_rules_folder(parser)
    flags.add_setting(parser)


def run(args: argparse.Namespace) -> int:
    from paramedic import differences
    from paramedic.knowledge import load
    from paramedic.pipeline import compile_prefilter

    config = flags.settings(args, {".json": "json"})
    options = flags.options(config)
    for path in (args.ok, args.bad):
        _refuse_pipe(path)
    knowledge = load(options.rules)
    prefilter = compile_prefilter(knowledge)
    ok, left_ok = read_side(args.ok, knowledge, prefilter, options)
    bad, left_bad = read_side(args.bad, knowledge, prefilter, options)
    skipped = tuple(dict.fromkeys((*left_ok, *left_bad)))
    comparable = all(side.report.run.sources or side.stated or side.code for side in (ok, bad))
    found = differences.compare(ok, bad) if comparable else ()
    _write(args, config.format, _Compared(ok, bad, found, skipped, comparable))
    return int(bool(found)) if comparable else 3


def _refuse_pipe(path: str) -> None:
    """Each run is read twice: for the diagnosis, and for what it was made of."""
    try:
        pipe = path == "-" or stat.S_ISFIFO(os.stat(path).st_mode)
    except (OSError, ValueError):
        return
    if pipe:
        raise ParamedicError(f"{path}: a pipe can be read only once; name a file")


def read_side(
    path: str, knowledge: Knowledge, prefilter: Prefilter, options: Options
) -> tuple[Side, tuple[Skipped, ...]]:
    from paramedic import run_folder
    from paramedic.collect.sides import of_run, read_settings
    from paramedic.differences import Side
    from paramedic.pipeline import examine, read

    with flags.progress_bar() as progress:
        recording = read([path], prefilter, progress)
    settings = of_run(recording) if run_folder.is_run(path) else read_settings(path)
    stated = settings.stated
    report = examine(recording, knowledge, prefilter, options)
    hosts, sizes = stated.pop(("hosts", "hosts"), None), stated.pop(("world size", "world size"), None)
    size = recording.world_size or (int(sizes.values[0]) if sizes and len(sizes.values) == 1 else None)
    named = {*_hosts(recording), *(hosts.values if hosts else ())}
    for name, value in _facts(recording, settings):
        settings.add("version", name, value, "")
    side = Side(report, size, tuple(sorted(named)), stated, _failed_on(recording, report), settings.code)
    return side, (*recording.skipped, *settings.skipped)


def _failed_on(recording: Run, report: Report) -> frozenset[str]:
    if (verdict := report.verdict) is None:
        return frozenset()
    theirs = [event for event in recording.events if event.rank is not None and event.rank in verdict.ranks]
    return frozenset(e.host for e in (*theirs, *(item.event for item in verdict.evidence)) if e.host)


def _hosts(recording: Run) -> set[str]:
    events = recording.events
    said = {e.host for e in events} | {e.fields.get("host") for e in events} | {s.host for s in recording.sources}
    return {str(host) for host in said if host and host != "localhost"}


def _facts(recording: Run, settings: Settings) -> list[tuple[str, object]]:
    """Versions that only the diagnosis has seen."""
    named = [
        (fact.name.removeprefix("version "), fact.value) for fact in recording.facts if fact.name.startswith("version ")
    ]
    return [(name, value) for name, value in named if ("version", name) not in settings.stated]


@dataclass(frozen=True, slots=True)
class _Compared:
    ok: Side
    bad: Side
    changes: tuple[Change, ...]
    skipped: tuple[Skipped, ...]
    comparable: bool


def _write(args: argparse.Namespace, format: str, made: _Compared) -> None:
    text = _json(made) if format == "json" else _text(args, made)
    if args.output not in (None, "-"):
        flags.write_file(args.output, text)
        if not args.quiet:
            flags.say(f"paramedic: wrote {args.output}")
    elif not args.quiet and sys.stdout is not None:
        sys.stdout.write(text)


def _json(made: _Compared) -> str:
    from paramedic.differences import MOST
    from paramedic.report.differences import render_json

    left_out = max(len(made.changes) - MOST, 0)
    return render_json((made.ok, made.bad), made.changes[:MOST], made.skipped, left_out) + "\n"


def _width(output: str | None) -> int:
    """A table needs room: a file or a pipe has as much as COLUMNS says, or much."""
    from rich.console import Console

    if sys.stdout is not None and sys.stdout.isatty() and output is None:
        return Console().width
    columns = os.environ.get("COLUMNS", "")
    return min(max(int(columns), 40), 1000) if output is None and columns.isascii() and columns.isdigit() else 140


def _text(args: argparse.Namespace, made: _Compared) -> str:
    from io import StringIO

    from rich.console import Console

    from paramedic.report.differences import NARROW, SHOWN, SHOWN_VERBOSE, details, headlines, listed, table
    from paramedic.report.escape import one_line

    page, changes = StringIO(), made.changes
    width = _width(args.output)
    if made.comparable:
        lines = headlines(made.ok, made.bad, changes)
        page.write("".join(textwrap.fill(line, width, subsequent_indent=" " * 5) + "\n" for line in lines))
    else:
        page.write("Nothing to compare: one of the two runs could not be examined.\n")
    if changes:
        page.write("\n")
        console = Console(file=page, width=width, color_system=None)
        for block in listed(changes, args.verbose, console) if width < NARROW else (table(changes, args.verbose),):
            console.print(block)
        shown, how = (SHOWN_VERBOSE, "--format json has") if args.verbose else (SHOWN, "-v shows")
        if len(changes) > shown:
            page.write(f"and {len(changes) - shown:,} more, {how} them\n")
    if args.verbose:
        page.write("".join(f"{line}\n" for line in details(changes)))
    if made.skipped and (args.verbose or not made.comparable):
        page.write("\nNot examined\n" + "".join(f"  - {one_line(s.what)}: {one_line(s.why)}\n" for s in made.skipped))
    return "".join(line.rstrip() + "\n" for line in page.getvalue().split("\n")[:-1])
