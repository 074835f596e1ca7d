"""the fault lab: run real failures on purpose, prove their cures, and score the diagnosis on them

`list` shows the cases, `run` starts them in real processes on this machine, diagnoses what they print and compares,
`score` diagnoses the recordings that are shipped. docs/ward.md tells more.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from paramedic.commands import flags
from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.ward.case import Case
    from paramedic.ward.lab import Outcome, Variant


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True, parser_class=type(parser))
    listing = actions.add_parser("list", help="the cases, what they show, and whether they can run here")
    listing.add_argument("--matrix", action="store_true", help="symptoms by systems instead, as Markdown")
    running = actions.add_parser("run", help="run cases for real, diagnose what they print, compare with the truth")
    running.add_argument("ids", nargs="*", metavar="ID")
    running.add_argument("--all", action="store_true", help="every case that can run here")
    running.add_argument("--fixed", action="store_true", help="with the cure applied: the job must succeed")
    running.add_argument("--variants", action="store_true", help="in all layouts and several world sizes")
    running.add_argument("--shard", metavar="I/N", help="only the I-th of N parts")
    running.add_argument("--no-diagnosis", action="store_true", help="only whether each fails as labelled")
    running.add_argument("--no-install", action="store_true", help="leave out cases whose environment is not there yet")
    running.add_argument("--output", metavar="DIR", help="keep the recordings there")
    running.add_argument("-v", "--verbose", action="store_true", help="show what a case printed when it goes wrong")
    for action in (listing, running):
        action.add_argument("--cases", metavar="DIR", help="your own cases instead of those shipped")
        action.add_argument("--format", choices=("text", "json"), default="text")


def run(args: argparse.Namespace) -> int:
    return {"list": _list, "run": _run}[args.action](args)


def _cases(args: argparse.Namespace) -> list[Case]:
    from paramedic.ward.case import CASES, load_all

    folder = Path(args.cases) if args.cases else CASES
    found = load_all(folder)
    if not found:
        raise ParamedicError(f"{folder}: holds no case (a folder with case.toml)")
    return found


def _list(args: argparse.Namespace) -> int:
    for case in _cases(args):
        print(case.id, case.system, case.truth.symptom, case.truth.cause)
    return 0


def _run(args: argparse.Namespace) -> int:
    from paramedic.ward import environments, lab

    cases = {case.id: case for case in _cases(args)}
    unknown = [id for id in args.ids if id not in cases]
    if unknown:
        raise ParamedicError(f"{unknown[0]}: no such case; see `paramedic ward list`")
    bad = 0
    for case in [cases[id] for id in args.ids] or cases.values():
        if why := lab.lacking(case):
            print(f"left out  {case.id}: {why}", flush=True)
            continue
        launch = case.cured if args.fixed else case.launch
        assert launch is not None
        venv = environments.build(launch.environment, flags.say)
        with tempfile.TemporaryDirectory() as kept:
            outcome = lab.run(case, lab.canonical(case, args.fixed), args.fixed, venv, Path(kept) / "input")
            print(f"{'ok' if outcome.ok else 'NOT OK':9} {case.id} {outcome.seconds:.0f} s", flush=True)
            for problem in outcome.problems:
                print(f"          {problem}", flush=True)
            if args.verbose:
                print(lab.said(Path(kept) / "input"))
            bad += not outcome.ok
    return int(bool(bad))
