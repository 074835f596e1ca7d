"""RDMA devices, GPUs and the PCI tree between them, from sysfs: enough to judge NCCL's settings without NCCL."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_MAX_GIDS = 64
_NVIDIA_SECONDS = 2.0
_ZERO = "0000:0000:0000:0000:0000:0000:0000:0000"
_ACS = 0x000D
_REDIRECT = 0x1C
"""Request redirect, completion redirect, upstream forwarding: with any of them peers meet at the root complex."""


def fabric(root: Path) -> Iterator[tuple[str, Any]]:
    for port in sorted((root / "sys/class/infiniband").glob("*/ports/*")):
        device = port.parents[1]
        yield f"rdma {device.name}/{port.name}", _port(device, port)
    gpus = list(_gpus(root))
    if gpus:
        yield "gpus", gpus
        yield "acs", list(_redirecting(root))
        if root == Path("/") and (topology := _topology()):
            yield "gpu_topology", topology
    if (root / "sys/class/infiniband").is_dir():
        yield "peer_memory", any((root / "sys/module" / name).exists() for name in ("nvidia_peermem", "nv_peer_mem"))
    yield "virtual_machine", "hypervisor" in _text(root / "proc/cpuinfo", 1 << 16)


def _port(device: Path, port: Path) -> dict[str, Any]:
    """`4: ACTIVE` is ACTIVE, `100 Gb/sec (4X EDR)` is 100."""
    rate = re.match(r"[\d.]+", _text(port / "rate"))
    gids: list[dict[str, Any]] = []
    for file in sorted((port / "gids").glob("*"), key=lambda path: int(path.name) if path.name.isdigit() else 0):
        gid = _text(file)
        if gid and gid != _ZERO and len(gids) < _MAX_GIDS and file.name.isdigit():
            kind = _text(port / "gid_attrs/types" / file.name)
            gids.append({"index": int(file.name), "gid": gid, "type": kind})
    keys = {_text(file) for file in sorted((port / "pkeys").glob("*"))[:128]} - {"", "0x0000"}
    networks = sorted(path.name for path in (device / "device/net").glob("*"))
    return {
        "state": _text(port / "state").rpartition(":")[2].strip(),
        "physical": _text(port / "phys_state").rpartition(":")[2].strip(),
        "link_layer": _text(port / "link_layer"),
        "gbps": float(rate.group()) if rate else None,
        "gids": gids,
        "pkeys": sorted(keys),
        "interface": networks[0] if networks else None,
        "numa": _numa(device / "device"),
    }


def _gpus(root: Path) -> Iterator[dict[str, Any]]:
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(device / "vendor") == "0x10de" and _text(device / "class").startswith(("0x0302", "0x0300")):
            yield {"pci": device.name, "numa": _numa(device)}


def _numa(device: Path) -> int | None:
    text = _text(device / "numa_node")
    return int(text) if text.isdigit() else None


def _redirecting(root: Path) -> Iterator[str]:
    """PCI bridges that send peer-to-peer traffic up to the root complex."""
    for device in sorted((root / "sys/bus/pci/devices").glob("*")):
        if _text(device / "class").startswith("0x0604"):
            try:
                space = (device / "config").read_bytes()[:4096]
            except OSError:
                continue
            if _acs_control(space) & _REDIRECT:
                yield device.name


def _acs_control(space: bytes) -> int:
    """Extended capabilities are a linked list that starts at 0x100."""
    offset, seen = 0x100, 0
    while 0x100 <= offset <= len(space) - 8 and seen < 48:
        header = struct.unpack_from("<I", space, offset)[0]
        if header & 0xFFFF == _ACS:
            control: int = struct.unpack_from("<H", space, offset + 6)[0]
            return control
        offset, seen = header >> 20, seen + 1
    return 0


def _topology() -> str:
    tool = shutil.which("nvidia-smi")
    if not tool:
        return ""
    try:
        done = subprocess.run(
            [tool, "topo", "-m"], capture_output=True, text=True, timeout=_NVIDIA_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout[:8_000]


def _text(path: Path, most: int = 4_096) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most).strip()
    except OSError:
        return ""
