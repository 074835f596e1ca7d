"""Memory of each rank over its steps, thinned out so that a week fits into a page."""

from __future__ import annotations

from collections.abc import Mapping

from paramedic.watch.pulse import Pulse

_MOST = 64


class Memory:
    """Points are (step, host bytes, device bytes); of too many, every second one goes."""

    def __init__(self) -> None:
        self._points: dict[int, list[list[int]]] = {}
        self._every: dict[int, int] = {}
        self._looks: dict[int, int] = {}

    def look(self, pulses: Mapping[int, Pulse]) -> None:
        for rank, one in pulses.items():
            looks = self._looks[rank] = self._looks.get(rank, 0) + 1
            if not one.steps or looks % self._every.get(rank, 1):
                continue
            values = one.state.get("values") or {}
            device = (values.get("device_memory") or [0])[0]
            points = self._points.setdefault(rank, [])
            points.append([one.steps, int(one.state.get("host_memory") or 0), int(device)])
            if len(points) > _MOST:
                del points[1::2]
                self._every[rank] = 2 * self._every.get(rank, 1)

    def series(self) -> dict[str, list[list[int]]]:
        return {str(rank): points for rank, points in self._points.items()}


def host_limit() -> int | None:
    """What the container may take, or what the machine has."""
    found = [_read(path) for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")]
    limits = [int(text) for text in found if text.isdigit()]
    total = next((line.split()[1] for line in _read("/proc/meminfo").splitlines() if line.startswith("MemTotal:")), "")
    limits += [int(total) * 1024] if total.isdigit() else []
    return min(limits, default=None)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            return file.read(1 << 16).strip()
    except OSError:
        return ""
