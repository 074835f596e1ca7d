"""NVIDIA's management library (libnvidia-ml), which comes with the driver, by its C interface: nothing has to be
installed, and no CUDA context is made. What a card or driver does not know is None."""

from __future__ import annotations

import ctypes
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
THROTTLED = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
             0x80: "hardware power brake"}  # fmt: skip
"""Reasons that are no normal way to run; a power cap (0x04) and an idle clock (0x01) are."""
_UNCORRECTED, _SINCE_DRIVER_LOAD = 1, 0
_CORE_SENSOR = 0


class Nvml:
    """`loaded`: the library is there. `started`: its driver answers."""

    def __init__(self) -> None:
        self._library: Any = None
        self.started = False
        try:
            self._library = ctypes.CDLL(LIBRARY)
        except OSError:
            return
        self.started = self.asked("nvmlInit_v2")

    @property
    def loaded(self) -> bool:
        return self._library is not None

    def close(self) -> None:
        if self.started:
            self.asked("nvmlShutdown")

    def asked(self, function: str, *arguments: Any) -> bool:
        """Whether the answer is "success"; an older driver lacks the function."""
        ask = getattr(self._library, function, None)
        return ask is not None and bool(ask(*arguments) == 0)

    def number(self, function: str, kind: Any, *arguments: Any) -> int | None:
        value = kind()
        return int(value.value) if self.asked(function, *arguments, ctypes.byref(value)) else None

    def text(self, function: str, *arguments: Any) -> str | None:
        text = ctypes.create_string_buffer(96)
        return text.value.decode("utf-8", "replace") if self.asked(function, *arguments, text, 96) else None

    # -- a card ----------------------------------------------------------------------------------------------------

    def count(self) -> int:
        return self.number("nvmlDeviceGetCount_v2", ctypes.c_uint) or 0

    def handle(self, index: int) -> Any:
        handle = ctypes.c_void_p()
        found = self.asked("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle if found else None

    def uncorrected(self, card: Any) -> int | None:
        """Memory errors that could not be corrected, since the driver was loaded."""
        errors = (_UNCORRECTED, _SINCE_DRIVER_LOAD)
        return self.number("nvmlDeviceGetTotalEccErrors", ctypes.c_ulonglong, card, *errors)

    def remapping(self, card: Any) -> tuple[bool, bool] | None:
        """Whether memory rows wait to be remapped, and whether remapping failed."""
        values = [ctypes.c_uint() for _ in range(4)]
        known = self.asked("nvmlDeviceGetRemappedRows", card, *[ctypes.byref(value) for value in values])
        return (bool(values[2].value), bool(values[3].value)) if known else None

    def throttled(self, card: Any) -> list[str] | None:
        reasons = self.number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong, card)
        return None if reasons is None else [word for bit, word in THROTTLED.items() if reasons & bit]

    def temperature(self, card: Any) -> int | None:
        return self.number("nvmlDeviceGetTemperature", ctypes.c_uint, card, _CORE_SENSOR)
