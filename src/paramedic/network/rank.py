"""Starts one rank of Paramedic's own test group on this node, and ends it: whatever it does, it is gone in time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

MOST_SECONDS = 600.0
_NAME = re.compile(r"(?:NCCL|GLOO|TP|MASTER)_\w{1,60}|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE")
_VALUE = re.compile(r"[\w.:,=^-]{0,400}")
_PAUSE = 0.05


def start_rank(order: Any) -> dict[str, Any]:
    """`order` gives seconds and environment; only settings of communication are taken from it."""
    if not isinstance(order, Mapping) or not isinstance(order.get("env"), Mapping):
        return {"ok": False, "error": "this node was given no settings"}
    given = {str(name): str(value) for name, value in order["env"].items()}
    if odd := [name for name, value in given.items() if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value)]:
        return {"ok": False, "error": f"refused: {odd[0][:60]!r} is no setting of communication"}
    limit = order.get("seconds")
    seconds = min(max(float(limit) if isinstance(limit, int | float) else 60.0, 5.0), MOST_SECONDS)
    with tempfile.TemporaryDirectory(prefix="paramedic-") as place:
        return _watched(Path(place), given, seconds)


def _watched(place: Path, env: Mapping[str, str], seconds: float) -> dict[str, Any]:
    file, log = place / "said.json", place / "log"
    end = time.monotonic() + seconds
    with log.open("wb") as out:
        rank = subprocess.Popen(
            [sys.executable, "-m", "paramedic.network.verify", str(file), str(seconds)],
            env=_kept() | dict(env), stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        while rank.poll() is None and time.monotonic() < end:
            time.sleep(_PAUSE)
        over = rank.poll() is None
    finally:
        _end(rank)
    said = _read(file)
    if over:
        said |= {"ok": False, "error": f"stood in {said.get('stage', 'its start')} and was ended after {seconds:.0f} s"}
    elif "stage" not in said:
        said |= {"ok": False, "error": f"ended with {rank.returncode}: {_last(log)}"}
    return said


def _kept() -> dict[str, str]:
    """The job's own settings of communication are left out: the plan's are to be tried."""
    return {name: value for name, value in os.environ.items() if not _NAME.fullmatch(name)} | {"OMP_NUM_THREADS": "1"}


def _end(rank: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(rank.pid, signal.SIGKILL)
    rank.wait()


def _read(file: Path) -> dict[str, Any]:
    try:
        said = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}


def _last(log: Path) -> str:
    lines = [line for line in log.read_text("utf-8", "replace").split("\n") if line.strip()]
    return lines[-1][:300] if lines else "it said nothing"
