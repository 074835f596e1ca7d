"""GPUs: what the driver's own library says of each, their PCIe links, and Xid lines of the kernel's log."""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Any

from paramedic.node.rows import Rows, folder, text_of

_THROTTLING = {0x8: "hardware slowdown", 0x20: "software thermal slowdown", 0x40: "hardware thermal slowdown",
               0x80: "hardware power brake"}  # fmt: skip
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,4})")
MOST_LINES = 200_000
_LINKS = 18


def look(rows: Rows) -> None:
    _devices(rows)
    _pci(rows)
    _kernel_log(rows)


def _devices(rows: Rows) -> None:
    """NVML by its C interface: no package is needed for it."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        rows.add("gpu driver", _module_version(), "/sys/module/nvidia/version")
        return
    if nvml.nvmlInit_v2() != 0:
        rows.add("gpu driver", _module_version(), "/sys/module/nvidia/version")
        rows.skip("NVML", "the driver's library is there and does not start")
        return
    try:
        rows.add("gpu driver", _said(nvml.nvmlSystemGetDriverVersion), "NVML")
        code = ctypes.c_int()
        if nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(code)) == 0:
            rows.add("gpu driver cuda", f"{code.value // 1000}.{code.value % 1000 // 10}", "NVML")
        count = ctypes.c_uint()
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        rows.add("gpu count", count.value, "NVML")
        for number in range(count.value):
            _device(rows, nvml, number)
    finally:
        nvml.nvmlShutdown()


def _device(rows: Rows, nvml: Any, number: int) -> None:
    handle = ctypes.c_void_p()
    if nvml.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle)) != 0:
        rows.add(f"gpu {number} lost", True, "NVML")
        return

    def put(name: str, value: Any) -> None:
        rows.add(f"gpu {number} {name}", value, "NVML")

    def count(function: str, *before: int) -> int | None:
        value = ctypes.c_ulonglong()
        ask = getattr(nvml, function, None)
        return value.value if ask is not None and ask(handle, *before, ctypes.byref(value)) == 0 else None

    put("name", _said(lambda text, size: nvml.nvmlDeviceGetName(handle, text, size)))
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor)) == 0:
        put("capability", f"{major.value}.{minor.value}")
    memory = (ctypes.c_ulonglong * 3)()
    if nvml.nvmlDeviceGetMemoryInfo(handle, memory) == 0:
        put("memory", memory[0])
        put("memory used", memory[2])
    put("uncorrected errors", count("nvmlDeviceGetTotalEccErrors", 1, 0))
    put("remap pending", _remapping(nvml, handle))
    reasons = count("nvmlDeviceGetCurrentClocksThrottleReasons")
    if reasons is not None:
        put("throttled", [word for bit, word in _THROTTLING.items() if reasons & bit])
    put("temperature", _temperature(nvml, handle))
    states = [count("nvmlDeviceGetNvLinkState", link) for link in range(_LINKS)]
    known = [bool(state & 0xFFFFFFFF) for state in states if state is not None]
    if known:
        put("nvlinks up", sum(known))
        put("nvlinks", len(known))


def _remapping(nvml: Any, handle: Any) -> bool | None:
    values = [ctypes.c_uint() for _ in range(4)]
    ask = getattr(nvml, "nvmlDeviceGetRemappedRows", None)
    if ask is None or ask(handle, *[ctypes.byref(value) for value in values]) != 0:
        return None
    return bool(values[2].value or values[3].value)


def _temperature(nvml: Any, handle: Any) -> int | None:
    value = ctypes.c_uint()
    return value.value if nvml.nvmlDeviceGetTemperature(handle, 0, ctypes.byref(value)) == 0 else None


def _said(ask: Any) -> str | None:
    text = ctypes.create_string_buffer(96)
    return text.value.decode("utf-8", "replace") if ask(text, 96) == 0 else None


def _module_version() -> str | None:
    return text_of("/sys/module/nvidia/version").strip() or None


def _pci(rows: Rows) -> None:
    root = "/sys/bus/pci/devices"
    seen = 0
    for device in folder(root):
        place = os.path.join(root, device)
        kind, vendor = text_of(os.path.join(place, "class")), text_of(os.path.join(place, "vendor"))
        if not kind.startswith(("0x0302", "0x0300")) or vendor.strip() not in ("0x10de", "0x1002"):
            continue
        seen += 1
        for key in ("current_link_width", "max_link_width"):
            text = text_of(os.path.join(place, key)).strip()
            rows.add(f"pci {device} {key}", int(text) if text.isdigit() else None, place)
    rows.add("pci gpus", seen, root)


def _kernel_log(rows: Rows) -> None:
    """From /dev/kmsg, which keeps the last lines; root or CAP_SYSLOG may read it."""
    try:
        log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        rows.skip("kernel log", f"/dev/kmsg: {error.strerror}")
        return
    found: dict[tuple[str, str], int] = {}
    end = time.monotonic() + 0.3
    try:
        for _ in range(MOST_LINES):
            try:
                record = os.read(log, 8192).decode("utf-8", "replace")
            except BrokenPipeError:
                continue
            except BlockingIOError:
                break
            for key in _XID.findall(record):
                found[key] = found.get(key, 0) + 1
            if time.monotonic() > end:
                break
    except OSError as error:
        rows.skip("kernel log", f"/dev/kmsg: {error.strerror}")
    finally:
        os.close(log)
    rows.add("xid", [f"{number} on {device}, {times} times" for (device, number), times in found.items()], "/dev/kmsg")
