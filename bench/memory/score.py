"""Scores estimates against measured truth, beside DeepSpeed's and accelerate's own estimators.

  python bench/memory/score.py truth.json --rivals rivals.json [--split scoring] [--keep results.json]

`rivals.py` makes the second file. Every case is tried on cards of eight sizes from 0.85 to 1.15 of the least with which it
really ran (where that was measured): a verdict is right when it says `no` below 1 and anything else above.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, Case, limited, shown

from paramedic.memory import outside
from paramedic.memory.cards import card_of
from paramedic.memory.process import Tracing
from paramedic.memory.request import Request

SIZES = (0.85, 0.89, 0.93, 0.97, 1.03, 1.07, 1.11, 1.15)
COLUMNS = ("allocated", "reserved", "DeepSpeed", "accelerate")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("truth")
    parser.add_argument("--rivals")
    parser.add_argument("--split", choices=("development", "scoring", "all"), default="development")
    parser.add_argument("--keep", help="rows that are there already are not made again")
    args = parser.parse_args()
    truth = json.loads(Path(args.truth).read_text())
    rivals = json.loads(Path(args.rivals).read_text()) if args.rivals else {}
    kept = Path(args.keep) if args.keep else None
    rows: dict[str, dict[str, Any]] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    cases = [one for one in CASES if args.split in (one.split, "all")]
    seen = shown(truth, version("transformers"))
    for case in cases:
        if case.id not in rows:
            tried = limited(truth, case.id, seen[case.id])
            rows[case.id] = row(case, seen[case.id], tried, rivals.get(case.id, {}))
            if kept:
                kept.write_text(json.dumps(rows, indent=1))
        print(line(case, rows[case.id]), flush=True)
    print(summary([rows[case.id] for case in cases]))


def line(case: Case, one: dict[str, Any]) -> str:
    errors = "  ".join(f"{name} {one[name]:+7.2%}" for name in COLUMNS if name in one)
    wrong = [f"{size:.2f}" for size, right in zip(SIZES, one["verdicts"], strict=False) if not right]
    return f"{case.id:22} {case.split:11} {errors}" + (f"  fits wrong at {', '.join(wrong)}" if wrong else "")


def summary(rows: list[dict[str, Any]]) -> str:
    lines = [f"{len(rows)} steps"]
    for name in COLUMNS:
        errors = [abs(one[name]) for one in rows if name in one]
        if errors:
            lines.append(f"{name:12} median {statistics.median(errors):.2%}  worst {max(errors):.2%}")
    for name, about in (("verdicts", "card sizes"), ("limited", "real runs with less memory")):
        given = [right for one in rows for right in one[name]]
        if given:
            lines.append(f"fits: {sum(given)} of {len(given)} verdicts right, {about}")
    return "\n".join(lines)


def row(case: Case, truth: dict[str, Any], tried: list[dict[str, Any]], rivals: dict[str, int]) -> dict[str, Any]:
    need = truth.get("need_bytes")
    sizes = SIZES if need else ()
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "config.json")
        config.write_text(json.dumps(case.config))
        request = Request(model=str(config), gpu="h200", **case.flags)
        guess = outside.total(outside.terms(request, card_of("h200"))).mid
        cards = [int(size * (need + truth["outside_bytes"])) - guess for size in sizes]
        limits = [one["limit_bytes"] for one in tried]
        with Tracing(lambda text: print(text, file=sys.stderr)) as tracing:
            made = tracing.trace(request, [*cards, *limits])
    fits = [one["fits"] for one in made["capacity"]]
    allocated = truth["peak_allocated_bytes"]
    return {
        "allocated": made["allocated"] / allocated - 1,
        "reserved": made["reserved"] / truth["peak_reserved_bytes"] - 1,
        "verdicts": [fit == (size > 1) for size, fit in zip(sizes, fits, strict=False)],
        "limited": [fit == one["ran"] for one, fit in zip(tried, fits[len(sizes) :], strict=True)],
        **{name: size / allocated - 1 for name, size in rivals.items()},
    }


if __name__ == "__main__":
    main()
