"""Replays and comparisons, for machines: `replay.schema.json`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from paramedic import __version__
from paramedic.replay.alone import Outcome
from paramedic.replay.compare import Comparison
from paramedic.replay.reading import Recording, faults
from paramedic.replay.replicas import Agreement
from paramedic.replay.reproduces import Reproduction


def _head(kind: str) -> dict[str, Any]:
    return {"schema_version": 1, "tool": {"name": "paramedic", "version": __version__}, "kind": kind}


def replayed(recording: Recording, outcomes: Sequence[Outcome]) -> dict[str, Any]:
    return _head("replay") | {
        "recording": _recording(recording),
        "bitwise": all(one.is_bitwise for one in outcomes),
        "ranks": [asdict(one) | {"bitwise": one.is_bitwise} for one in outcomes],
    }


def compared(a: Recording, b: Recording, found: Comparison) -> dict[str, Any]:
    return _head("compare") | {
        "a": _recording(a),
        "b": _recording(b),
        "compared": {str(rank): count for rank, count in found.compared.items()},
        "origins": list(found.origins),
        "first": [asdict(one) for one in found.first.values()],
        "operation": asdict(found.operation) if found.operation else None,
        "skipped": list(found.skipped),
    }


def agreed(recording: Recording, found: Agreement) -> dict[str, Any]:
    return _head("ranks") | {"recording": _recording(recording)} | asdict(found)


def reproduced(recording: Recording, checkpoint: str, found: Reproduction) -> dict[str, Any]:
    return _head("checkpoint") | {
        "recording": _recording(recording),
        "checkpoint": checkpoint,
        "reproduced": found.is_whole,
        "step": found.step,
        "steps": list(found.steps),
        "ranks": [
            asdict(one) | {"differ": [{"name": name, "holds_ranks": list(ranks)} for name, ranks in one.differ]}
            for one in found.ranks
        ],
        "skipped": list(found.skipped),
    }


def _recording(one: Recording) -> dict[str, Any]:
    return {
        "path": one.path,
        "world_size": one.size,
        "ranks": one.ranks,
        "steps": max(score.last_step for score in one.scores.values()),
        "faults": faults(one),
    }
