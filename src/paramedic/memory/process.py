"""The child that traces: one at a time is asked, and answers."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.memory import guard
from paramedic.memory.cards import GIB
from paramedic.memory.request import Request

SECONDS = 1800
SECONDS_TO_END = 10
_LIMITS = {"RLIMIT_DATA": 16 * GIB, "RLIMIT_FSIZE": 1 * GIB, "RLIMIT_CORE": 0}
_SECRETS = ("TOKEN", "SECRET", "PASSWORD", "API_KEY", "CREDENTIAL")

Say = Callable[[str], None]


class Tracing:
    """A child that traces one request after the other: importing torch and transformers takes longer than a trace."""

    def __init__(self, say: Say) -> None:
        self.say = say
        self.why_coarse = ""
        """Why the answers are coarser than they might be, if they are."""
        self._start: dict[str, Any] = {}
        self._child: subprocess.Popen[str] | None = None
        self._answers = -1
        self._rest = b""

    def __enter__(self) -> Tracing:
        return self

    def __exit__(self, *why: object) -> None:
        self._end()

    def trace(self, request: Request, capacities: Sequence[int]) -> dict[str, Any]:
        child = self._running()
        assert child.stdin is not None
        task = {**self._start, "request": request.to_dict(), "capacities": list(capacities)}
        try:
            child.stdin.write(json.dumps(task) + "\n")
            child.stdin.flush()
            result: dict[str, Any] = json.loads(self._line())
        except TimeoutError:
            self._end()
            raise ParamedicError(f"memory: the trace did not end in {SECONDS // 60} minutes") from None
        except (OSError, ValueError):
            code = self._end()
            raise ParamedicError(f"memory: {_ended(code)}; PARAMEDIC_DEBUG=1 shows what it printed") from None
        return result

    def _running(self) -> subprocess.Popen[str]:
        if self._child is None:
            self._start = self._prepared()
            self._answers, theirs = os.pipe()
            command = [sys.executable, "-P", "-m", "paramedic.memory.child", str(theirs)]
            self._child = subprocess.Popen(
                command, env=_environment(), stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(theirs,),
                text=True,
            )  # fmt: skip
            os.close(theirs)
        return self._child

    def _prepared(self) -> dict[str, Any]:
        library, why = guard.prepare(self.say)
        way = "guard" if library else "card" if guard.find_torch().has_cuda and _has_card() else "coarse"
        if way == "coarse" and not why:
            why = "this torch is built for CUDA but there is no GPU; a CPU build of torch makes the estimate exact"
        self.why_coarse = why
        return {"library": str(library) if library else None, "way": way, "limits": _LIMITS}

    def _line(self) -> bytes:
        end = time.monotonic() + SECONDS
        while b"\n" not in self._rest:
            ready, _, _ = select.select([self._answers], [], [], max(end - time.monotonic(), 0))
            if not ready:
                raise TimeoutError
            part = os.read(self._answers, 1 << 20)
            if not part:
                raise OSError("the child has ended")
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return line

    def _end(self) -> int:
        """Its exit code; a child that does not end when nothing more is asked is killed."""
        child, self._child = self._child, None
        if child is None:
            return 0
        os.close(self._answers)
        with contextlib.suppress(OSError):
            assert child.stdin is not None
            child.stdin.close()
        try:
            return child.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()


def _has_card() -> bool:
    return Path("/dev/nvidia0").exists()


def _ended(code: int) -> str:
    how = f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"the tracing process {how} and gave no result"


def _environment() -> dict[str, str]:
    """The user's own, without secrets; Python finds this very package in the child, too."""
    kept = {name: value for name, value in os.environ.items() if not any(word in name.upper() for word in _SECRETS)}
    package = str(Path(__file__).parents[2])
    kept["PYTHONPATH"] = os.pathsep.join(part for part in (package, kept.get("PYTHONPATH", "")) if part)
    return kept
