"""Starts the child that traces, and reads what it found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.memory import guard
from paramedic.memory.cards import GIB
from paramedic.memory.request import Request

SECONDS = 1800
_LIMITS = {"RLIMIT_DATA": 16 * GIB, "RLIMIT_FSIZE": 1 * GIB, "RLIMIT_CORE": 0}
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")

Say = Callable[[str], None]


def trace(
    requests: Sequence[Request], capacities: Sequence[Sequence[int]], say: Say
) -> tuple[list[dict[str, Any]], str]:
    """A result for each request, and why the answers are coarser than they might be, if they are."""
    library, why = guard.prepare(say)
    way = "guard" if library else "card" if guard.find_torch().has_cuda and _has_card() else "coarse"
    if way == "coarse" and not why:
        why = "this torch is built for CUDA but there is no GPU; a CPU build of torch makes the estimate exact"
    task = {
        "library": str(library) if library else None,
        "way": way,
        "limits": _LIMITS,
        "requests": [
            {"request": one.to_dict(), "capacities": list(sizes)}
            for one, sizes in zip(requests, capacities, strict=True)
        ],
    }
    return _child(task), why


def _has_card() -> bool:
    return Path("/dev/nvidia0").exists()


def _child(task: dict[str, Any]) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="paramedic-") as place:
        asked, found = Path(place, "task.json"), Path(place, "result.json")
        asked.write_text(json.dumps(task), "utf-8")
        command = [sys.executable, "-P", "-m", "paramedic.memory.child", str(asked), str(found)]
        try:
            done = subprocess.run(
                command, env=_environment(), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                timeout=SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise ParamedicError(f"memory: the trace did not end in {SECONDS // 60} minutes") from None
        try:
            results: list[dict[str, Any]] = json.loads(found.read_text("utf-8"))
        except (OSError, ValueError):
            raise ParamedicError(
                f"memory: the tracing process ended with code {done.returncode} and no result; "
                "PARAMEDIC_DEBUG=1 shows what it printed"
            ) from None
    return results


def _environment() -> dict[str, str]:
    """The user's own, without secrets; Python finds this very package in the child, too."""
    kept = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in _SECRETS)}
    package = str(Path(__file__).parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (package, kept.get("PYTHONPATH", "")) if part)
    return kept
