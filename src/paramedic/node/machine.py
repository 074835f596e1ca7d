"""The host's limits: processors, memory, shared memory, descriptors, disks, clock."""

from __future__ import annotations

import os
import platform
import re
import resource

from paramedic.node.rows import Rows, text_of

_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "locked memory": resource.RLIMIT_MEMLOCK,
    "stack": resource.RLIMIT_STACK,
    "processes": resource.RLIMIT_NPROC,
    "address space": resource.RLIMIT_AS,
}
_CGROUP = "/sys/fs/cgroup"
UNLIMITED = -1


def look(rows: Rows) -> None:
    rows.add("host kernel", platform.release(), "uname")
    rows.add("host architecture", platform.machine(), "uname")
    rows.add("host glibc", platform.libc_ver()[1] or None, "libc")
    rows.add("host cores", os.cpu_count(), "os")
    if hasattr(os, "sched_getaffinity"):
        rows.add("host usable cores", len(os.sched_getaffinity(0)), "sched_getaffinity")
    _memory(rows)
    for name, number in _LIMITS.items():
        soft, hard = resource.getrlimit(number)
        rows.add(f"limit {name}", UNLIMITED if soft == resource.RLIM_INFINITY else soft, "getrlimit")
        rows.add(f"hard limit {name}", UNLIMITED if hard == resource.RLIM_INFINITY else hard, "getrlimit")
    _disks(rows)
    _cgroup(rows)
    opened = text_of("/proc/sys/fs/file-nr").split()
    if len(opened) == 3:
        rows.add("host open files share", round(int(opened[0]) / max(int(opened[2]), 1), 4), "/proc/sys/fs/file-nr")


def _memory(rows: Rows) -> None:
    said = dict(re.findall(r"^(\w+):\s+(\d+) kB", text_of("/proc/meminfo"), re.M))
    for key, name in (("MemTotal", "host memory"), ("MemAvailable", "host memory available")):
        if key in said:
            rows.add(name, int(said[key]) * 1024, "/proc/meminfo")


def _disks(rows: Rows) -> None:
    for name, path in (
        ("/dev/shm", "/dev/shm"),
        ("temporary folder", os.environ.get("TMPDIR") or "/tmp"),
        ("home", os.path.expanduser("~")),
    ):
        try:
            disk = os.statvfs(path)
        except OSError as error:
            rows.skip(path, str(error.strerror))
            continue
        rows.add(f"disk {name} size", disk.f_blocks * disk.f_frsize, path)
        rows.add(f"disk {name} free", disk.f_bavail * disk.f_frsize, path)
        if disk.f_files:
            rows.add(f"disk {name} free files", disk.f_favail, path)
        rows.add(f"disk {name} writable", os.access(path, os.W_OK), path)


def _cgroup(rows: Rows) -> None:
    """Version 2, or version 1's folders."""
    for name, paths in (
        ("cgroup memory", ("memory.max", "memory/memory.limit_in_bytes")),
        ("cgroup memory used", ("memory.current", "memory/memory.usage_in_bytes")),
        ("cgroup processes", ("pids.max", "pids/pids.max")),
    ):
        for path in paths:
            text = text_of(os.path.join(_CGROUP, path)).strip()
            if text.isdigit() and int(text) < 1 << 60:
                rows.add(name, int(text), os.path.join(_CGROUP, path))
                break
    quota = text_of(os.path.join(_CGROUP, "cpu.max")).split()
    if len(quota) == 2 and quota[0].isdigit():
        rows.add("cgroup cores", round(int(quota[0]) / int(quota[1]), 2), os.path.join(_CGROUP, "cpu.max"))
