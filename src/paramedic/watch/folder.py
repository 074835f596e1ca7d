"""The files of a watched job. Every one is written whole and moved into place; a full disk only loses it."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from paramedic.collect.processes import GONE, NAME, ProcessState
from paramedic.errors import ParamedicError
from paramedic.run_folder import whole
from paramedic.watch.pulse import Process, Pulse


@dataclass(frozen=True, slots=True)
class Folder:
    path: str

    def ask(self, number: int) -> None:
        """The ranks answer with their stacks and their flight recorder."""
        self._write("ask", str(number).encode())

    def asked(self) -> int:
        try:
            with open(os.path.join(self.path, "ask"), "rb") as file:
                return int(file.read(16) or 0)
        except (OSError, ValueError):
            return 0

    def traced(self, ranks: Iterable[int]) -> bool:
        return all(os.path.exists(os.path.join(self.path, "traces", f"rank_{rank}")) for rank in ranks)

    def forget(self) -> None:
        """The job goes on: where the ranks stood a moment ago must not be taken for where they stand at the end."""
        for name in ("stacks", "traces", "ranks"):
            for file in self._files(name):
                if name != "ranks" or file.endswith(NAME):
                    with contextlib.suppress(OSError):
                        os.unlink(os.path.join(self.path, name, file))

    def mark(self, kind: str) -> None:
        """That there is a verdict, and since when."""
        self._write("verdict.json", json.dumps({"at": time.time(), "kind": kind}).encode())

    def marked(self) -> str:
        try:
            with open(os.path.join(self.path, "verdict.json"), "rb") as file:
                return str(json.loads(file.read(1 << 12)).get("kind") or "")
        except (OSError, ValueError, AttributeError):
            return ""

    def write_job(self, said: Mapping[str, Any]) -> None:
        self._write(os.path.join("ranks", "job.watch.json"), json.dumps(said).encode())

    def write_gpus(self, host: str, gpus: list[dict[str, Any]]) -> None:
        said = {"paramedic_gpus": 1, "host": host, "gpus": gpus}
        self._write(os.path.join("ranks", f"gpus-{host}.watch.json"), json.dumps(said).encode())

    def write_processes(self, ranks: Iterable[Pulse]) -> None:
        """Each node knows its own; of a rank elsewhere that node says it."""
        for one in ranks:
            if one.process is not None:
                self._write(os.path.join("ranks", f"rank-{one.rank}{NAME}"), _state(one, one.process).written())

    def _files(self, name: str) -> list[str]:
        """None where no rank has come so far. What the signal handler writes to stays: it is held open."""
        try:
            return [file for file in os.listdir(os.path.join(self.path, name)) if not file.endswith(".signal.txt")]
        except OSError:
            return []

    def _write(self, name: str, data: bytes) -> None:
        with contextlib.suppress(ParamedicError), whole(os.path.join(self.path, name)) as file:
            file.write(data)


def _state(one: Pulse, seen: Process) -> ProcessState:
    """As the kernel shows it."""
    letter = seen.letter or GONE
    pid = one.state.get("pid")
    return ProcessState(
        one.rank,
        "T" if letter == "t" else letter,
        pid if isinstance(pid, int) else None,
        str(one.state.get("host") or ""),
        wchan=seen.wchan,
        cpu=seen.cpu_s,
        used=round(one.wanted, 2),
    )
