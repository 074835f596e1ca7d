"""GPUs: what the driver's own library says of each, their PCIe links, and Xid lines of the kernel's log."""

from __future__ import annotations

import ctypes
import os
import re
import time
from typing import Any

from paramedic.node.nvml import Nvml
from paramedic.node.rows import Rows, folder, text_of

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)\): (\d{1,4})")
MOST_LINES = 200_000
_LINKS = 18


def look(rows: Rows) -> None:
    _devices(rows)
    _pci(rows)
    _kernel_log(rows)


def _devices(rows: Rows) -> None:
    nvml = Nvml()
    if not nvml.started:
        rows.add("gpu driver", _module_version(), "/sys/module/nvidia/version")
        if nvml.loaded:
            rows.skip("NVML", "the driver's library is there and does not start")
        return
    try:
        rows.add("gpu driver", nvml.text("nvmlSystemGetDriverVersion"), "NVML")
        code = nvml.number("nvmlSystemGetCudaDriverVersion_v2", ctypes.c_int)
        if code is not None:
            rows.add("gpu driver cuda", f"{code // 1000}.{code % 1000 // 10}", "NVML")
        count = nvml.count()
        rows.add("gpu count", count, "NVML")
        for number in range(count):
            _device(rows, nvml, number)
    finally:
        nvml.close()


def _device(rows: Rows, nvml: Nvml, number: int) -> None:
    card = nvml.handle(number)
    if card is None:
        rows.add(f"gpu {number} lost", True, "NVML")
        return

    def put(name: str, value: Any) -> None:
        rows.add(f"gpu {number} {name}", value, "NVML")

    put("name", nvml.text("nvmlDeviceGetName", card))
    major, minor = ctypes.c_int(), ctypes.c_int()
    if nvml.asked("nvmlDeviceGetCudaComputeCapability", card, ctypes.byref(major), ctypes.byref(minor)):
        put("capability", f"{major.value}.{minor.value}")
    memory = (ctypes.c_ulonglong * 3)()
    if nvml.asked("nvmlDeviceGetMemoryInfo", card, memory):
        put("memory", memory[0])
        put("memory used", memory[2])
    put("uncorrected errors", nvml.uncorrected(card))
    remapping = nvml.remapping(card)
    put("remap pending", None if remapping is None else any(remapping))
    put("throttled", nvml.throttled(card))
    put("temperature", nvml.temperature(card))
    states = [nvml.number("nvmlDeviceGetNvLinkState", ctypes.c_uint, card, link) for link in range(_LINKS)]
    known = [bool(state) for state in states if state is not None]
    if known:
        put("nvlinks up", sum(known))
        put("nvlinks", len(known))


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
