"""Scores estimates against measured truth: `python bench/memory/score.py truth.json [--split scoring]`.

Beside ours: DeepSpeed's formula for ZeRO-2 on one card (2 bytes + 18 bytes a parameter) and accelerate's four times the weights.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from cases import CASES, Case

from paramedic.memory.estimate import estimates
from paramedic.memory.request import Request

SIZES = [0.85 + 0.05 * step for step in range(7)]
"""Cards from 0.85 to 1.15 of what the step was seen to need."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("truth")
    parser.add_argument("--split", choices=("development", "scoring", "all"), default="development")
    args = parser.parse_args()
    truth = json.loads(Path(args.truth).read_text())
    chosen = [
        c for c in CASES if args.split in (c.split, "all") and "peak_allocated_bytes" in truth["cases"].get(c.id, {})
    ]
    rows = [row(case, truth["cases"][case.id]) for case in chosen]
    for one in rows:
        print(
            f"{one['id']:24} allocated {one['allocated']:+7.2%}  reserved {one['reserved']:+7.2%}  DeepSpeed {one['deepspeed']:+7.0%}  4 × weights {one['weights']:+7.0%}"
        )
    for name in ("allocated", "reserved", "deepspeed", "weights"):
        errors = [abs(one[name]) for one in rows]
        if errors:
            print(f"{name:12} median {statistics.median(errors):.2%}  worst {max(errors):.2%}")
    verdicts = [right for one in rows for right in one["verdicts"]]
    if verdicts:
        print(f"fits: {sum(verdicts)} of {len(verdicts)} verdicts right")


def row(case: Case, truth: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as place:
        config = Path(place, "config.json")
        config.write_text(json.dumps(case.config))
        made = estimates(
            [Request(model=str(config), gpu="h200", **case.flags)], lambda text: print(text, file=sys.stderr)
        )[0]
    need, weights = truth["device_bytes"], 4 * truth["parameters"]
    allocated = truth["peak_allocated_bytes"]
    return {
        "id": case.id,
        "allocated": made.allocated.mid / allocated - 1,
        "reserved": made.reserved.mid / truth["peak_reserved_bytes"] - 1,
        "deepspeed": 20 * truth["parameters"] / allocated - 1,
        "weights": 4 * weights / allocated - 1,
        "verdicts": [(made.total.mid <= need * size) == (need <= need * size) for size in SIZES],
    }


if __name__ == "__main__":
    main()
