"""The live view: the job's own output above, its ranks as a grid below."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median
from typing import IO

from rich.console import Console, Group, RenderableType
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from paramedic.report.escape import printable
from paramedic.watch.pulse import Condition, Pulse
from paramedic.watch.watcher import Watcher

_STYLES: dict[Condition, str] = {
    "starting": "dim", "going": "green", "waiting": "cyan", "idle": "yellow", "busy": "blue", "frozen": "bold red",
    "stopped": "bold red", "gone": "bold red", "ended": "dim", "failed": "bold red",
}  # fmt: skip
_OVER = frozenset({"ended", "failed", "gone"})
"""Who does nothing any more does not stand still, either."""
_CELLS = 256
_EVENTS = 4
_APART_S = 1.5
_CHUNK = 1 << 16


class Live:
    """Follows the console's copy, since the keeper leaves the terminal to us while we live."""

    def __init__(self, log: str) -> None:
        self._log = log
        self._file: IO[bytes] | None = None
        self._left = b""
        self._console = Console(stderr=True)
        self._live = RichLive(console=self._console, auto_refresh=False, transient=True)
        self._live.start()

    def show(self, watcher: Watcher) -> None:
        self._follow()
        self._live.update(view(watcher, self._console.width), refresh=True)

    def say(self, text: str) -> None:
        self._console.print(Text(f"paramedic: {printable(text)}", style="yellow"))

    def print(self, text: str) -> None:
        self._console.print(Text(text), soft_wrap=True)

    def close(self) -> None:
        self._follow(last=True)
        self._live.stop()

    def _follow(self, last: bool = False) -> None:
        try:
            self._file = self._file or open(self._log, "rb")  # noqa: SIM115
        except OSError:
            return
        while data := self._file.read(_CHUNK):
            *lines, self._left = (self._left + data).split(b"\n")
            for line in lines:
                self._console.print(Text.from_ansi(line.decode("utf-8", "replace")), soft_wrap=True)
        if last and self._left:
            self._console.print(Text.from_ansi(self._left.decode("utf-8", "replace")), soft_wrap=True)
            self._left = b""


def view(watcher: Watcher, width: int) -> RenderableType:
    ranks = [watcher.pulses[rank] for rank in sorted(watcher.pulses)]
    parts: list[RenderableType] = [Text(headline(watcher, ranks), style="bold"), _grid(ranks, width)]
    parts += [Text(f"  {printable(text)}", style="yellow") for text in watcher.events[-_EVENTS:]]
    return Group(*parts)


def headline(watcher: Watcher, ranks: Sequence[Pulse]) -> str:
    watched = int(time.monotonic() - watcher.started)
    if not ranks:
        return f"paramedic · no rank has reported yet · {watched} s"
    steps = [one.steps for one in ranks]
    times = [float(row[0]) for one in ranks for row in (one.state.get("times_ms") or [])[-8:]]
    each_s = median(times) / 1e3 if times else 0.0
    rate = f" · {1 / each_s:.1f} steps/s" if each_s else ""
    late = 1 + (_APART_S / each_s if each_s else 0)  # ranks report at different moments
    slowest = min(ranks, key=lambda one: (one.steps, one.moved))
    behind = (
        f" · rank {slowest.rank} is {max(steps) - slowest.steps} steps behind"
        if max(steps) > slowest.steps + late
        else ""
    )
    memory = max(int(one.state.get("host_memory") or 0) for one in ranks)
    device = max((((one.state.get("values") or {}).get("device_memory") or [0])[0] for one in ranks), default=0)
    used = f" · {memory / 1e9:.1f} GB host" + (f", {device / 1e9:.1f} GB device" if device else "")
    return (
        f"paramedic · {len(ranks)} of {watcher.size or '?'} ranks · step {max(steps)}{rate}{behind}{used} · {watched} s"
    )


def _grid(ranks: Sequence[Pulse], width: int) -> RenderableType:
    """Few ranks with what they do, many as coloured numbers."""
    if len(ranks) > 16:
        cells = Text()
        for one in ranks[:_CELLS]:
            cells.append(f"{one.rank:>4}", style=_STYLES[one.condition])
        if len(ranks) > _CELLS:
            cells.append(f" … {len(ranks) - _CELLS} more")
        return cells
    table = Table(box=None, padding=(0, 1), show_header=False)
    for one in ranks:
        still = max(one.looked - one.moved, 0) if one.condition not in _OVER else 0
        where = one.said.split("\t")
        doing = f"{one.phase} {where[2]}" if len(where) == 7 else one.phase
        doing = "" if one.condition in _OVER else doing
        table.add_row(
            f"rank {one.rank}",
            Text(one.condition, style=_STYLES[one.condition]),
            f"step {one.steps}",
            printable(doing)[: max(width - 50, 10)],
            f"still for {still:.0f} s" if still > 2 else "",
        )
    return table
