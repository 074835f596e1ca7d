"""Planted hangs, failures and stragglers, and healthy jobs that look like them, under `paramedic run`: is it right, and how soon?

python bench/hangs.py --runs 100 --healthy 20 --jobs 2 --seed 1 --output docs/hangs-measured.md
python bench/hangs.py --only asleep --runs 5 --healthy 0 --keep /tmp/kept     one kind; what the runs left is kept
python bench/hangs.py --repeat 17 --seed 1                                    one of them once more
python bench/hangs.py --bare --runs 45                                        without Paramedic: does each do what it says?

Every job is a real torchrun of four or eight ranks over gloo. A number and a seed decide what a run is. The rank at fault
writes the time just before its fault; the watcher writes `verdict.json` when it has a verdict.
"""

from __future__ import annotations

import argparse
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import nullcontext
from pathlib import Path
from threading import Event
from typing import TypeVar

import hang_bare
from hang_kinds import HEALTHY, KINDS, Trial, faults, healthy, numbered
from hang_trial import Outcome, Timing, run

T = TypeVar("T")


def main() -> int:
    args = _arguments()
    signal.signal(signal.SIGTERM, _interrupt)
    trials = [*faults(args.runs, args.seed, args.only), *healthy(args.healthy, args.seed, args.only)]
    if args.repeat is not None:
        trials = [numbered(args.repeat, args.seed, args.only)]
    timing = Timing(args.limit, long=args.long)
    with nullcontext(args.keep) if args.keep else tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        if args.bare:
            proofs = _in_parallel(hang_bare.run, trials, folder, timing, args.jobs, hang_bare.line)
            return 0 if all(proof.as_it_says for proof in proofs) else 1
        outcomes = _in_parallel(run, trials, folder, timing, args.jobs, line)
    page = markdown(outcomes, args.seed)
    if args.output:
        Path(args.output).write_text(page, "utf-8")
    else:
        print(page, end="")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=100, help="planted faults")
    parser.add_argument("--healthy", type=int, default=20, help="healthy jobs")
    parser.add_argument("--jobs", type=int, default=2, help="at a time")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=[kind.name for kind in (*KINDS, *HEALTHY)], metavar="KIND")
    parser.add_argument("--repeat", type=int, metavar="NUMBER", help="this run alone")
    parser.add_argument("--limit", type=float, default=90, help="seconds of patience after the fault")
    parser.add_argument("--long", type=float, default=60, help="seconds that a healthy job may be silent")
    parser.add_argument("--bare", action="store_true", help="without Paramedic, to prove the programs")
    parser.add_argument("--keep", metavar="DIR", help="keep what the runs leave there")
    parser.add_argument("--output", metavar="FILE", help="Markdown; otherwise to standard output")
    return parser.parse_args()


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _in_parallel(
    work: Callable[[Trial, Path, Timing, Event], T],
    trials: list[Trial],
    folder: Path,
    timing: Timing,
    jobs: int,
    told: Callable[[T], str],
) -> list[T]:
    """Ctrl-C ends what is running and keeps what is done."""
    stop = Event()
    with ThreadPoolExecutor(jobs) as pool:
        waiting = [pool.submit(work, trial, folder / f"{trial.number:04}", timing, stop) for trial in trials]
        done = []
        try:
            for future in as_completed(waiting):
                done.append(future.result())
                print(f"{len(done)}/{len(trials)} {told(done[-1])}", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            stop.set()
            pool.shutdown(cancel_futures=True)
    return done


# -- what is shown -------------------------------------------------------------------------------------------------


def wrong(outcome: Outcome) -> str:
    """Why this run is a miss; empty when it is none."""
    trial = outcome.trial
    if trial.rank is None:
        return _wrong_healthy(outcome)
    if not outcome.planted:
        return "the fault was never reached"
    if outcome.symptom is None:
        return "no verdict" if outcome.code is not None else "no verdict in time"
    faults = []
    if outcome.innocent:
        faults.append(f"names rank {', '.join(map(str, outcome.ranks))}")
    elif not outcome.right_rank:
        faults.append("names no rank")
    if not outcome.right_symptom:
        faults.append(f"says {outcome.symptom}")
    return ", ".join(faults)


def _wrong_healthy(outcome: Outcome) -> str:
    if outcome.symptom is not None:
        return f"says {outcome.symptom}"
    if outcome.code != 0:
        return "not at its end in time" if outcome.code is None else f"ended with {outcome.code}"
    return ""


def line(outcome: Outcome) -> str:
    seconds = "" if outcome.seconds is None else f" after {outcome.seconds:.1f} s"
    return f"{outcome.trial.number} {outcome.trial.label}: {wrong(outcome) or 'right'}{seconds}"


def markdown(outcomes: list[Outcome], seed: int) -> str:
    planted = [outcome for outcome in outcomes if outcome.trial.rank is not None]
    well = [outcome for outcome in outcomes if outcome.trial.rank is None]
    parts = [
        "# `paramedic run`, measured",
        "",
        f"Made by `python bench/hangs.py --runs {len(planted)} --healthy {len(well)} --seed {seed}` on {os.cpu_count()} cores "
        f"({platform.machine()}, Python {platform.python_version()}): real torchrun jobs of four or eight ranks over gloo. Seconds are "
        "from just before the fault to the verdict.",
        "",
    ]
    if planted:
        parts += [*_faults_table(planted), ""]
    if well:
        parts += [*_healthy_table(well), ""]
    missed = sorted((outcome for outcome in outcomes if wrong(outcome)), key=lambda outcome: outcome.trial.number)
    if missed:
        parts += ["## Misses", "", *(_miss(outcome) for outcome in missed), ""]
    return "\n".join(parts)


def _faults_table(planted: list[Outcome]) -> list[str]:
    rows = [
        "| planted | runs | right rank | right symptom | both | no rank or no verdict | innocent rank named | median s | worst s |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for kind in KINDS:
        if of_kind := [outcome for outcome in planted if outcome.trial.kind == kind]:
            rows.append(_row(kind.name, of_kind))
    rows.append(_row("**all**", planted))
    return rows


def _row(name: str, outcomes: list[Outcome]) -> str:
    counted = [outcome for outcome in outcomes if outcome.planted]
    seconds = [outcome.seconds for outcome in counted if outcome.seconds is not None]
    figures = [
        len(counted),
        sum(outcome.right_rank for outcome in counted),
        sum(outcome.right_symptom for outcome in counted),
        sum(outcome.right_rank and outcome.right_symptom for outcome in counted),
        sum(outcome.abstained for outcome in counted),
        sum(outcome.innocent for outcome in counted),
        f"{statistics.median(seconds):.1f}" if seconds else "–",
        f"{max(seconds):.1f}" if seconds else "–",
    ]
    return f"| {name} | {' | '.join(map(str, figures))} |"


def _healthy_table(well: list[Outcome]) -> list[str]:
    rows = ["| healthy | runs | verdict given | did not end well | warnings |", "|---|--:|--:|--:|---|"]
    for name in [kind.name for kind in HEALTHY] + ["**all**"]:
        if chosen := [outcome for outcome in well if name in (outcome.trial.kind.name, "**all**")]:
            warnings = ", ".join(sorted({symptom for outcome in chosen for symptom in outcome.warnings})) or "–"
            given = sum(outcome.symptom is not None for outcome in chosen)
            rows.append(f"| {name} | {len(chosen)} | {given} | {sum(o.code != 0 for o in chosen)} | {warnings} |")
    return rows


def _miss(outcome: Outcome) -> str:
    words = " ".join(outcome.summary.split()).replace("|", "¦").replace("`", "'")
    return f"- {outcome.trial.number}: {outcome.trial.label}: **{wrong(outcome)}**. `{words[:200]}`"


if __name__ == "__main__":
    sys.exit(main())
