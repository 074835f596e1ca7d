"""find what will fail before it is started: versions, environment, node health, configurations, code, checkpoint

Reads the project folder, this machine and what follows `--`; nothing of it is started or imported. A probe of our own
takes less than a second a node. `paramedic fix` shows and applies the safe changes.

  paramedic check
  paramedic check train/ -- torchrun --nproc-per-node 8 train.py --deepspeed ds.json
  paramedic check --via 'srun -N4 --ntasks-per-node=1'
  paramedic check --checkpoint ckpt/step-1000 -- torchrun --nproc-per-node 8 train.py
  paramedic check --files-only --baseline known.json
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.commands.via import on_nodes
from paramedic.errors import ParamedicError
from paramedic.garbage import no_collections
from paramedic.model import Fact, Report, Run, Skipped, Source

if TYPE_CHECKING:
    from paramedic.collect.files import Progress
    from paramedic.collect.probe import Seen
    from paramedic.config import Config

_VIA_SECONDS = 240.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "dir", metavar="DIR", nargs="?", default=".", help="project folder, or one file (default: here)"
    )
    parser.add_argument(
        "command", metavar="COMMAND", nargs="*", default=[], help="after --: the launch command, read, never started"
    )
    parser.add_argument("--baseline", metavar="FILE", help="findings known from there are set aside")
    parser.add_argument("--write-baseline", metavar="FILE", help="write the findings of today there, and exit with 0")
    parser.add_argument("--files-only", action="store_true", help="DIR and COMMAND, not this machine: for hooks and CI")
    parser.add_argument("--checkpoint", metavar="DIR", help="the checkpoint that the job will resume from")
    parser.add_argument("--deep", action="store_true", help="also what takes longer: hashes, a short self-test of GPUs")
    parser.add_argument("--python", metavar="FILE", help="the Python that will train (default: this one)")
    parser.add_argument(
        "--refresh-facts", action="store_true", help="ask the package index for releases, and keep the answer"
    )
    nodes = parser.add_argument_group("several nodes")
    nodes.add_argument("--via", metavar="COMMAND", help="start the probe on each node with this, as 'srun -N4'")
    nodes.add_argument("--probe-only", action="store_true", help=argparse.SUPPRESS)
    flags.add_report_flags(parser)


def run(args: argparse.Namespace) -> int:
    if args.probe_only:
        return _answer(args)
    from paramedic import pipeline
    from paramedic.collect.project import joined

    config = flags.settings(args)
    options = replace(flags.options(config), baseline=Path(args.baseline) if args.baseline else None)
    if args.refresh_facts:
        _refresh()
    with flags.progress_bar() as progress:
        seen = joined(parts(args, progress))
    with no_collections():
        report: Report = pipeline.check(seen, options)
    if not args.files_only:
        report = _repaired(report, args)
    if args.write_baseline:
        return _write_baseline(args.write_baseline, report)
    _write(report, args, config)
    return flags.exit_code(report, config.fail_on)


def parts(args: argparse.Namespace, progress: Progress | None) -> list[Run]:
    """What is examined; each part is a Run of its own."""
    from paramedic.collect.project import read_command, read_project

    found = [read_project(args.dir, progress)]  # configurations and code
    if args.command:
        found.append(read_command(args.command))
    if not args.files_only:
        found.append(_environment(args))
    if args.checkpoint:
        found.append(_checkpoint(args, progress))
    return found


# -- this machine, or several --------------------------------------------------------------------------------------


def _environment(args: argparse.Namespace) -> Run:
    """This node, or those that --via reaches."""
    from paramedic.collect.probe import parsed, seen

    if not args.via:
        return _of_nodes([seen(args.python, args.deep, args.command)])
    from paramedic.collect.gather import from_lines

    start = time.time()
    arguments = ["check", "--probe-only", *(["--python", args.python] if args.python else [])]
    arguments += [*(["--deep"] if args.deep else []), *(["--", *args.command] if args.command else [])]
    ended = on_nodes(args.via, arguments, _VIA_SECONDS, keep_output=True)
    answers, broken = from_lines(ended.output.split("\n"))
    if not answers:
        raise ParamedicError(f"--via {args.via}: no node answered; is paramedic installed at {sys.executable} there?")
    nodes = [parsed(answer, "--via") for answer in answers]
    asked = [Fact(f"asked {name}", at, "clock", host=node.host) for node in nodes
             for name, at in (("from", start), ("until", time.time()))]  # fmt: skip
    lost = [Skipped("--via", f"{broken} answers came only in part")] if broken else []
    seen_all = _of_nodes(nodes)
    return replace(seen_all, facts=(*seen_all.facts, *asked), skipped=(*seen_all.skipped, *ended.skipped, *lost))


def _of_nodes(nodes: Sequence[Seen]) -> Run:
    return Run(
        "nodes",
        tuple(Source(f"node {node.host}", "probe", host=node.host) for node in nodes),
        facts=tuple(fact for node in nodes for fact in node.facts),
        skipped=tuple(one for node in nodes for one in node.skipped),
    )


def _answer(args: argparse.Namespace) -> int:
    """On a node: what it sees, as lines for whoever asked."""
    from paramedic.collect.gather import as_lines
    from paramedic.collect.probe import answer

    for line in as_lines(answer(args.python, args.deep, args.command)):
        print(line, flush=True)
    return 0


def _refresh() -> None:
    import json

    from paramedic.collect.releases import renewed
    from paramedic.knowledge.facts import renewed_file

    said = renewed(datetime.now(UTC).date().isoformat(), say=lambda text: flags.say(f"paramedic: {text}"))
    path = renewed_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    flags.write_file(str(path), json.dumps(said))
    flags.say(f"paramedic: facts of {said['date']} about {len(said['projects'])} projects are in {path}")


# -- checkpoint ----------------------------------------------------------------------------------------------------


def _checkpoint(args: argparse.Namespace, progress: Progress | None) -> Run:
    from paramedic.collect.checkpoints import look_into

    look = look_into(args.checkpoint, args.deep, progress)
    size = sum(look.files.values())
    source = Source(args.checkpoint, "checkpoint", bytes=size)
    return Run("checkpoint", (source,), facts=tuple(look.facts), skipped=tuple(look.skipped))


# -- versions ------------------------------------------------------------------------------------------------------


def _repaired(report: Report, args: argparse.Namespace) -> Report:
    """With the smallest change that ends all conflicts of versions, where pip's resolver has accepted one."""
    from paramedic import repair
    from paramedic.collect.index import reachable
    from paramedic.detect.nodes import nodes
    from paramedic.knowledge.advisories import load_advisories

    there = [node for node in nodes(report.run) if node.host]
    if len(there) != 1 or args.via:
        return report
    found = repair.conflicts(there[0], load_advisories())
    if not found or not {one.rule for one in found} & {one.rule for one in report.findings}:
        return report
    if not reachable():
        why = "the package index cannot be reached, so no change of versions could be proven"
        return replace(report, skipped=(*report.skipped, Skipped("smallest change", why)))
    if not args.quiet:
        flags.say("paramedic: asks pip's resolver for the smallest change (dry run)")
    made = repair.smallest(there[0], found)
    if not made.changes:
        why = f"none of {len(made.refused)} changes was accepted by pip's resolver: {'; '.join(made.refused[:2])}"
        return replace(report, skipped=(*report.skipped, Skipped("smallest change", why[:500])))
    fix, rules = repair.as_fix(made), {one.rule for one in found}
    findings = [replace(one, fixes=(fix, *one.fixes)) if one.rule in rules else one for one in report.findings]
    return replace(report, findings=tuple(findings))


# -- what comes out ------------------------------------------------------------------------------------------------


def _write(report: Report, args: argparse.Namespace, config: Config) -> None:
    if config.format == "text" and args.output in (None, "-"):
        if not args.quiet:
            from paramedic.report.listing import render

            render(report, flags.console(), args.verbose)
        return
    flags.write_report(report, args, config)


def _write_baseline(path: str, report: Report) -> int:
    from paramedic.allowed import write
    from paramedic.report.words import count

    flags.write_file(path, write(Path(path), report.findings))
    flags.say(f"paramedic: wrote {path}: {count(len(report.findings), 'finding')} known from now on")
    return 0
