"""the fault lab: run real failures on purpose, prove their cures, and score the diagnosis on them

`list` shows the cases, `run` starts them in real processes on this machine, diagnoses what they print and compares,
`score` diagnoses the recordings in the repository's corpus/.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from rich.table import Table

    from paramedic.ward.case import Case
    from paramedic.ward.lab import Outcome, Variant
    from paramedic.ward.score import Score, Scored

Row = dict[str, Any]
"""What came of one run of one case."""
SPLITS = ("development", "held-back", "all")
GIVEN = ("log", "program", "watched")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    listing = actions.add_parser("list", help="the cases, what they show, and whether they can run here")
    listing.add_argument(
        "--matrix", action="store_true", help="symptoms by systems, as Markdown, with why cells are empty"
    )
    listing.add_argument("--format", choices=("text", "json"), default="text")

    running = actions.add_parser("run", help="run cases for real, diagnose what they print, compare with the truth")
    running.add_argument("ids", nargs="*", metavar="ID")
    running.add_argument("--all", action="store_true", help="every case that can run here")
    running.add_argument("--fixed", action="store_true", help="with the cure applied: the job must succeed")
    running.add_argument("--variants", action="store_true", help="in all layouts and several world sizes")
    running.add_argument("--jobs", type=_positive, default=1, metavar="N", help="cases at a time (default: 1)")
    running.add_argument("--shard", metavar="I/N", help="only the I-th of N parts of the work")
    running.add_argument("--output", metavar="DIR", help="keep the recordings of those that went as labelled there")
    running.add_argument(
        "--watched",
        action="store_true",
        help="start each under `paramedic run`, and keep what it saw, too",
    )
    running.add_argument("--no-diagnosis", action="store_true", help="only see whether each goes as labelled")
    running.add_argument("--strict", action="store_true", help="exit code 1 for a wrong diagnosis, too")
    running.add_argument("--no-install", action="store_true", help="leave out cases whose environment is not there yet")
    running.add_argument("--format", choices=("text", "json"), default="text")
    running.add_argument("-v", "--verbose", action="store_true", help="show all that each case printed, on stderr")

    scoring = actions.add_parser("score", help="diagnose the recordings and count what was right, beside baselines")
    scoring.add_argument("--split", choices=SPLITS, default="development", help="which cases (default: development)")
    scoring.add_argument(
        "--from",
        dest="given",
        choices=GIVEN,
        default=GIVEN[0],
        help="what the diagnosis is given: the job's log; also its program and command; also what `paramedic run` saw "
        "(default: log)",
    )
    scoring.add_argument(
        "--corpus", metavar="DIR", help="recordings made by `run --output DIR` instead of those shipped"
    )
    scoring.add_argument(
        "--format", choices=("text", "json", "html", "markdown"), help="(default: text, or as FILE is called)"
    )
    scoring.add_argument("--output", metavar="FILE", help="write it there; .html, .json and .md say how")
    for action in (listing, running, scoring):
        action.add_argument("--cases", metavar="DIR", help="your own cases instead of those shipped")


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text)):
        raise argparse.ArgumentTypeError(f"{text} is not a number from 1")
    return int(text)


def run(args: argparse.Namespace) -> int:
    actions: dict[str, Callable[[argparse.Namespace], int]] = {"list": _list, "run": _run, "score": _score}
    return actions[args.action](args)


def _folder(args: argparse.Namespace) -> Path:
    from paramedic.ward.case import CASES

    return Path(args.cases) if args.cases else CASES


def _cases(args: argparse.Namespace) -> list[Case]:
    from paramedic.ward.case import load_all

    found = load_all(_folder(args))
    if not found:
        raise ParamedicError(f"{_folder(args)}: holds no case (a folder with case.toml)")
    return found


# -- list ----------------------------------------------------------------------------------------------------------


def _list(args: argparse.Namespace) -> int:
    cases = _cases(args)
    if args.matrix:
        from paramedic.ward.matrix import markdown

        print(markdown(cases))
    elif args.format == "json":
        from paramedic.report.json import dumps

        print(dumps([_entry(case) for case in cases]))
    else:
        from paramedic.ward import lab
        from paramedic.ward.tables import cases_table

        flags.print_table(cases_table(cases), width=160)
        left_out = [case for case in cases if lab.lacking(case)]
        flags.say(f"paramedic: {len(cases)} cases, {len(cases) - len(left_out)} of them can run here")
    return 0


def _entry(case: Case) -> dict[str, Any]:
    from paramedic.ward import lab

    truth = case.truth
    return {
        "id": case.id, "title": case.title, "system": case.system, "stage": case.stage, "symptom": truth.symptom,
        "cause": truth.cause, "ranks": list(truth.ranks), "world_size": case.ranks, "fix": truth.fix,
        "cure": case.change, "synthetic": case.synthetic, "held_back": case.held_back,
        "lacking": lab.lacking(case) or None,
    }  # fmt: skip


# -- run -----------------------------------------------------------------------------------------------------------


def _run(args: argparse.Namespace) -> int:
    from paramedic.ward import lab

    chosen = _chosen(args)
    lacking = {case.id: why for case in chosen if (why := lab.lacking(case))}
    work = [(case, variant) for case in chosen if case.id not in lacking for variant in _variants(case, args)]
    work = _shard(work, args.shard)
    rows: list[Row] = [] if args.shard else [{"id": id, "left_out": why} for id, why in lacking.items()]
    for row in rows if args.ids else ():
        flags.say(f"paramedic: {row['id']} is left out: {row['left_out']}")
    venvs = _environments({case.job(args.fixed).environment for case, _ in work}, args.no_install)
    began = time.monotonic()
    for row in _each(lambda one: _one(*one, venvs, args), work, args.jobs):
        rows.append(row)
        if args.format == "text":
            print(_line(row), flush=True)
    if args.format == "json":
        from paramedic.report.json import dumps

        print(
            dumps({"schema_version": 1, "fixed": args.fixed, "seconds": round(time.monotonic() - began), "cases": rows})
        )
    flags.say(_summary(args, rows, time.monotonic() - began))
    ran, wrong, missed = _parted(rows)
    if not ran:
        return 3
    return int(bool(wrong or (args.strict and missed)))


def _each(do: Callable[[tuple[Case, Variant]], Row], work: list[tuple[Case, Variant]], jobs: int) -> Iterator[Row]:
    from concurrent.futures import ThreadPoolExecutor

    if jobs == 1:
        yield from map(do, work)
        return
    with ThreadPoolExecutor(jobs) as pool:
        try:
            yield from pool.map(do, work)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _parted(rows: list[Row]) -> tuple[list[Any], list[Any], list[Any]]:
    """Those that ran; of these, those that did not go as labelled, and those that did but were misdiagnosed."""
    ran = [row for row in rows if "ok" in row]
    missed = [row for row in ran if row["ok"] and row.get("diagnosis") and not row["diagnosis"]["right"]]
    return ran, [row for row in ran if not row["ok"]], missed


def _chosen(args: argparse.Namespace) -> list[Case]:
    from paramedic.ward.case import load

    if bool(args.ids) == args.all:
        raise ParamedicError("name cases, or say --all; `paramedic ward list` shows them")
    if args.all:
        return _cases(args)
    folder = _folder(args)
    names = [file.parent.name for file in folder.glob("*/case.toml")]
    for id in args.ids:
        if id not in names:
            near = difflib.get_close_matches(id, names, n=1)
            hint = f"; did you mean {near[0]}" if near else ""
            raise ParamedicError(f"{id}: no such case{hint} (see `paramedic ward list`)")
    return [load(folder / id) for id in dict.fromkeys(args.ids)]


def _variants(case: Case, args: argparse.Namespace) -> list[Variant]:
    from paramedic.ward import lab

    chosen = lab.variants(case) if args.variants and not args.fixed else [lab.canonical(case, args.fixed)]
    return [replace(variant, watched=True) for variant in chosen] if args.watched else chosen


def _shard(work: list[tuple[Case, Variant]], shard: str | None) -> list[tuple[Case, Variant]]:
    if shard is None:
        return work
    found = re.fullmatch(r"([0-9]+)/([0-9]+)", shard, re.ASCII)
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise ParamedicError(f"--shard {shard}: not of the form I/N with I from 1 to N")
    return work[int(found[1]) - 1 :: int(found[2])]


def _environments(names: set[str], only_there: bool) -> dict[str, Path | str]:
    """Where each environment is, or why there is none."""
    from paramedic.ward import environments

    found: dict[str, Path | str] = {}
    for name in sorted(names):
        if only_there and environments.find(name) is None:
            found[name] = f"the environment {name} is not there"
            continue
        try:
            found[name] = environments.build(name, lambda text: flags.say(f"paramedic: {text}"))
        except ParamedicError as error:
            found[name] = str(error)
    return found


def _one(case: Case, variant: Variant, venvs: dict[str, Path | str], args: argparse.Namespace) -> Row:
    from paramedic.ward import lab
    from paramedic.ward.corpus import CURED

    row: Row = {
        "id": case.id,
        "variant": CURED + ("-watched" if variant.watched else "") if args.fixed else variant.name,
        "symptom": case.truth.symptom,
    }
    venv = venvs[case.job(args.fixed).environment]
    if isinstance(venv, str):
        return row | {"left_out": venv}
    with tempfile.TemporaryDirectory(prefix="paramedic-") as folder:
        kept = Path(folder) / case.id / row["variant"]
        outcome = lab.run(case, variant, args.fixed, venv, kept / "input")
        if args.verbose:
            flags.say(lab.said(kept / "input"))
        row |= {
            "ok": outcome.ok,
            "seconds": round(outcome.seconds, 1),
            "exit": outcome.code,
            "problems": list(outcome.problems),
        }
        if outcome.ok:
            row |= _recorded(outcome, kept, args)
    return row


def _recorded(outcome: Outcome, kept: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Keep it where that is wanted, and say what the diagnosis makes of it."""
    import shutil

    from paramedic.ward import corpus, lab

    plain = replace(outcome.variant, watched=False)
    corpus.write(outcome, kept, canonical=plain == lab.canonical(outcome.case, outcome.fixed))
    if args.output:
        target = Path(args.output) / outcome.case.id / kept.name
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(kept, target)
    if args.no_diagnosis:
        return {}
    if outcome.case.held_back and not args.cases:
        return {"held_back": True}
    from paramedic.ward.score import Scored, ours

    recording = corpus.read(outcome.case, kept / "case.toml")
    return {"diagnosis": _compared(Scored(recording, ours(recording)))}


def _compared(one: Scored) -> dict[str, Any]:
    said = one.answer
    verdict = (
        None if said.symptom is None else {"rule": said.rule, "symptom": said.symptom, "ranks": list(said.ranks or ())}
    )
    if one.recording.truth is None:
        return {"verdict": verdict, "right": one.abstained}
    parts = {"symptom": one.symptom, "ranks": one.ranks, "cause": one.cause(1), "fix": one.fix}
    return {"verdict": verdict, "right": one.symptom and one.ranks, **parts}


def _line(row: Row) -> str:
    from paramedic.report.escape import one_line

    if "ok" not in row:
        return one_line(f"left out  {row['id']}: {row['left_out']}")
    how = "as labelled" if row["ok"] else "NOT AS LABELLED"
    text = f"{how:15}  {row['id']}/{row['variant']}  {row['seconds']:.0f} s"
    if row.get("held_back"):
        text += "  held back: not diagnosed, so that nobody learns from it"
    if diagnosis := row.get("diagnosis"):
        verdict = diagnosis["verdict"]
        said = f"{verdict['rule']} {verdict['symptom']} {verdict['ranks']}" if verdict else "no verdict"
        missed = [name for name in ("symptom", "ranks", "cause", "fix") if diagnosis.get(name) is False]
        text += f"  diagnosis: {said}" + (f" (wrong: {', '.join(missed)})" if missed and verdict else "")
    return "\n".join([one_line(text), *(one_line(f"    {problem}") for problem in row["problems"])])


def _summary(args: argparse.Namespace, rows: list[Row], seconds: float) -> str:
    ran, wrong, _ = _parted(rows)
    left_out = len(rows) - len(ran)
    what = "succeeded with the cure" if args.fixed else "failed as labelled"
    text = f"paramedic: {len(ran) - len(wrong)} of {len(ran)} {what} in {seconds / 60:.1f} min; {left_out} left out"
    if args.no_diagnosis or not ran:
        return text
    right = sum(bool(row.get("diagnosis", {}).get("right")) for row in ran)
    meant = "got no verdict, as is right" if args.fixed else "got the right symptom and first ranks"
    return f"{text}; of {sum('diagnosis' in row for row in ran)} diagnosed, {right} {meant}"


# -- score ---------------------------------------------------------------------------------------------------------


_FORMATS = {".html": "html", ".json": "json", ".md": "markdown"}


def _score(args: argparse.Namespace) -> int:
    from paramedic.ward.corpus import CORPUS
    from paramedic.ward.held_back import append
    from paramedic.ward.score import document, score

    format = args.format or flags.format_of(args.output, _FORMATS) or "text"
    if format == "html" and not args.output:
        raise ParamedicError("--format html needs --output FILE")
    folder = Path(args.corpus) if args.corpus else CORPUS
    if not folder.is_dir():
        hint = "" if args.corpus else "; the recordings are in the source repository: name their folder with --corpus"
        raise ParamedicError(f"{folder}: no such folder{hint}")
    apart = format == "markdown" and args.split == "all"  # that page shows both parts side by side
    with _progress() as progress:
        scores = [
            score(_cases(args), folder, split, progress, given)
            for split in (SPLITS[:2] if apart else (args.split,))
            for given in (GIVEN if apart else (args.given,))
        ]
    done = scores[-1]
    if not done.every.n:
        raise ParamedicError(f"{folder}: holds no recording of these cases")
    looks = [append(one, folder) for one in scores if one.split != "development"]
    look = looks[-1] if looks else None
    if format == "text":
        from paramedic.ward.tables import score_tables

        text = _printed(score_tables(done), _closing(done, look))
    elif format == "json":
        from paramedic.report.json import dumps

        text = dumps(document(done) | {"held_back_scoring": look}) + "\n"
    elif format == "markdown":
        from paramedic.ward.accuracy import markdown
        from paramedic.ward.held_back import entries

        text = markdown(scores, entries(folder))
    else:
        from paramedic.ward.page import render

        text = render(done, look["commit"] if look else "", len(look["seen"]) if look else None)
    if args.output:
        flags.write_file(args.output, text)
        flags.say(f"paramedic: wrote {args.output}")
    else:
        sys.stdout.write(text)
    return 0


def _closing(score: Score, look: dict[str, Any] | None) -> list[str]:
    lines = [
        f"calibration: expected error {score.ece:.3f}" if score.ece is not None else "calibration: no verdict at all",
        f"false alarms: {score.false_alarms[0]} of {score.false_alarms[1]} cured runs got a verdict",
        f"time: {1000 * score.seconds[0]:.0f} ms a diagnosis (median), {score.seconds[1]:.1f} s at most",
    ]
    if look:
        seen = f"{len(look['seen'])} of {len(look['cases'])} cases seen before"
        lines.append(f"logged as a scoring of held-back cases at commit {look['commit']}: {seen}")
    return lines


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """On stderr, only on a terminal."""
    if sys.stderr is None or not sys.stderr.isatty():
        yield lambda done, of: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("diagnosing recordings", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _printed(tables: Iterable[Table], closing: list[str]) -> str:
    import io

    from rich.console import Console

    console = Console(file=io.StringIO(), width=130)
    for table in tables:
        if table.row_count:
            console.print(table)
            console.print()
    for line in closing:
        console.print(line, highlight=False)
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]
