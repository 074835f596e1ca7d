"""How the GPUs of this node are, from NVIDIA's management library (libnvidia-ml), which comes with the driver.

Asked through ctypes: nothing has to be installed, and no CUDA context is made. What a card or driver does not know is
left out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

_LIBRARY = "libnvidia-ml.so.1"
_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0
_CORE_SENSOR = 0
THROTTLED = {
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Reasons that are no normal way to run; a power cap (0x04) and an idle clock (0x01) are."""


@dataclass(frozen=True, slots=True)
class Gpu:
    index: int
    uuid: str
    name: str
    uncorrected: int | None
    """Uncorrectable memory errors since the driver was loaded."""
    remap_pending: bool
    remap_failed: bool
    throttled: tuple[str, ...]
    temperature: int | None
    power_w: int | None


_ROWS = ("corrected", "uncorrected", "pending", "failed")


class _RemappedRows(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint) for name in _ROWS]


class Nvml:
    """The library, if this node has it. Every answer that is not "success" counts as not known."""

    def __init__(self) -> None:
        self._library: Any = None
        try:
            library = ctypes.CDLL(_LIBRARY)
            if library.nvmlInit_v2() == 0:
                self._library = library
        except (OSError, AttributeError):
            return

    def gpus(self) -> list[Gpu]:
        if self._library is None:
            return []
        count = self._number("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0
        return [self._gpu(index, handle) for index in range(min(count, 64)) if (handle := self._handle(index))]

    def _handle(self, index: int) -> ctypes.c_void_p | None:
        handle = ctypes.c_void_p()
        return (
            handle if self._asked("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle)) else None
        )

    def _gpu(self, index: int, handle: ctypes.c_void_p) -> Gpu:
        rows = _RemappedRows()
        fields = [ctypes.byref(rows, getattr(_RemappedRows, name).offset) for name in _ROWS]
        self._asked("nvmlDeviceGetRemappedRows", handle, *fields)
        reasons = self._number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, handle) or 0
        power = self._number("nvmlDeviceGetPowerUsage", ctypes.c_uint, handle)
        return Gpu(
            index,
            self._text("nvmlDeviceGetUUID", handle),
            self._text("nvmlDeviceGetName", handle),
            self._number("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, handle, _UNCORRECTED, _SINCE_DRIVER_LOAD),
            bool(rows.pending),
            bool(rows.failed),
            tuple(word for bit, word in THROTTLED.items() if reasons & bit),
            self._number("nvmlDeviceGetTemperature", ctypes.c_uint, handle, _CORE_SENSOR),
            None if power is None else round(power / 1000),
        )

    def _text(self, function: str, handle: ctypes.c_void_p) -> str:
        text = ctypes.create_string_buffer(96)
        return text.value.decode("utf-8", "replace") if self._asked(function, handle, text, 96) else ""

    def _number(self, function: str, kind: Callable[[], Any], *arguments: Any) -> int | None:
        value = kind()
        return int(value.value) if self._asked(function, *arguments, ctypes.byref(value)) else None

    def _asked(self, function: str, *arguments: Any) -> bool:
        try:
            return bool(getattr(self._library, function)(*arguments) == 0)
        except AttributeError:  # an older driver
            return False
