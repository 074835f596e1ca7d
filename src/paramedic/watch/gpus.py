"""The GPUs of this node while a job runs: errors that came since its start, and how often each was slowed down."""

from __future__ import annotations

import ctypes
from collections import Counter
from dataclasses import dataclass
from typing import Any

from paramedic.node.nvml import Nvml

_MOST = 64
EVERY = 5.0
"""Seconds between two looks."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str
    uncorrected: int | None
    remap_pending: bool
    remap_failed: bool
    throttled: tuple[str, ...]
    temperature: int | None
    power_w: int | None


def read(nvml: Nvml) -> list[Gpu]:
    """The cards of this node now; none without a driver."""
    cards = range(min(nvml.count(), _MOST)) if nvml.started else ()
    return [_gpu(nvml, index, card) for index in cards if (card := nvml.handle(index)) is not None]


def _gpu(nvml: Nvml, index: int, card: Any) -> Gpu:
    pending, failed = nvml.remapping(card) or (False, False)
    power = nvml.number("nvmlDeviceGetPowerUsage", ctypes.c_uint, card)
    return Gpu(
        index,
        nvml.text("nvmlDeviceGetUUID", card) or "",
        nvml.text("nvmlDeviceGetName", card) or "",
        nvml.uncorrected(card),
        pending,
        failed,
        tuple(nvml.throttled(card) or ()),
        nvml.temperature(card),
        None if power is None else round(power / 1000),
    )


class Gpus:
    def __init__(self, nvml: Nvml | None = None) -> None:
        self._nvml = nvml or Nvml()
        self._first: dict[str, int] = {}
        self._last: list[Gpu] = []
        self._looks = 0
        self._slowed: dict[str, Counter[str]] = {}
        self._next = 0.0

    def look(self, now: float) -> bool:
        """Whether there is anything new to tell."""
        if now < self._next:
            return False
        self._next = now + EVERY
        self._last = read(self._nvml)
        self._looks += bool(self._last)
        for gpu in self._last:
            self._slowed.setdefault(gpu.uuid, Counter()).update(gpu.throttled)
            if gpu.uncorrected is not None:
                self._first.setdefault(gpu.uuid, gpu.uncorrected)
        return bool(self._last)

    def told(self) -> list[dict[str, Any]]:
        return [
            {
                "index": gpu.index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "new_errors": (gpu.uncorrected or 0) - self._first.get(gpu.uuid, gpu.uncorrected or 0),
                "remap_pending": gpu.remap_pending,
                "remap_failed": gpu.remap_failed,
                "looks": self._looks,
                "slowed": dict(self._slowed[gpu.uuid]),
                "temperature": gpu.temperature,
                "power_w": gpu.power_w,
            }
            for gpu in self._last
        ]
