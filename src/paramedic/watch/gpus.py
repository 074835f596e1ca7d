"""The GPUs of this node while a job runs: errors that came since its start, and how often each was slowed down."""

from __future__ import annotations

from collections import Counter
from typing import Any

from paramedic.collect.nvml import Gpu, Nvml

EVERY = 5.0
"""Seconds between two looks."""


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
        self._last = self._nvml.gpus()
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
