"""What one node shows of its network and of the communication settings, as Facts: the network part of the node probe.

Standard library only, nothing is sent, and nothing here takes longer than its own limit. `root` is where /sys, /proc
and /etc are looked for: another one serves a test, or a copy of a machine.
"""

from __future__ import annotations

import os
import re
import resource
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from paramedic.collect import netlink
from paramedic.collect.fabric import fabric
from paramedic.collect.firewall import firewall
from paramedic.collect.launch import launch_arguments
from paramedic.model import Fact
from paramedic.redact import redact

SOURCE = "net probe"
RESOLVE_SECONDS = 0.8
"""A name server that does not answer must not hold up the probe; that it did not is itself a fact."""
_SETTINGS = re.compile(
    r"(?:NCCL|GLOO|UCX|UCC|OMPI_MCA|FI|HCCL|RCCL|TORCH_NCCL|TORCH_GLOO|TORCH_DISTRIBUTED|TORCHELASTIC|TP|MASTER)_\w+"
    r"|RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|GROUP_WORLD_SIZE|CUDA_VISIBLE_DEVICES"
    r"|SLURM_(?:JOB_ID|NNODES|NODEID|NTASKS|PROCID)|OMPI_COMM_WORLD_(?:RANK|SIZE)"
)
_PACKAGES = ("torch", "nvidia-nccl-cu12", "nvidia-nccl-cu13", "deepspeed", "mpi4py")
_MAX_LISTENING = 4_096
_CONF = ("etc/nccl.conf",)


def facts(
    names: Iterable[str] = (),
    root: Path = Path("/"),
    environ: Mapping[str, str] = os.environ,
    command: Sequence[str] = (),
    host: str | None = None,
) -> list[Fact]:
    """`names` are hosts to resolve beside this one and the master; `command` is the launch command: only read."""
    own = host or socket.gethostname()
    found: dict[str, Any] = {"hostname": socket.gethostname()}
    for part in (
        lambda: _links(root),
        lambda: _resolved({socket.gethostname(), *names, *_masters(environ, command)}, root),
        lambda: _ports(root),
        lambda: _limits(root),
        lambda: _settings(environ, root),
        lambda: _versions(root),
        lambda: fabric(root),
        lambda: _container(root),
    ):
        found |= dict(_kept(part))
    found["firewall"] = firewall() if root == Path("/") else {"readable": False, "why": "another root", "drops": []}
    if launch := launch_arguments(command):
        found["launch"] = launch
    return [Fact(name, value, SOURCE, host=own) for name, value in found.items()]


def _kept(part: Callable[[], Iterator[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """A part that cannot be read is left out and named."""
    try:
        yield from part()
    except (OSError, ValueError, KeyError) as error:
        yield f"unread {type(error).__name__}", redact(str(error))[:200]


def _links(root: Path) -> Iterator[tuple[str, Any]]:
    known = dict(netlink.links())
    for link in known.values():
        link["addresses"] = []
    for index, address in netlink.addresses():
        if index in known:
            known[index]["addresses"].append(address)
    for link in known.values():
        name = link.pop("name")
        folder = root / "sys/class/net" / name
        link["speed"] = _number(folder / "speed")
        link["numa"] = _number(folder / "device/numa_node")
        link["physical"] = (folder / "device").exists()
        yield f"interface {name}", link
    yield "routes", list(netlink.routes({index: _name_of(index) for index in known}))
    filters = {path.parent.name: _number(path) for path in (root / "proc/sys/net/ipv4/conf").glob("*/rp_filter")}
    yield "rp_filter", filters


def _name_of(index: int) -> str:
    try:
        return socket.if_indextoname(index)
    except OSError:
        return "?"


def _number(path: Path) -> int | None:
    """-1 stands for "unknown" in sysfs."""
    try:
        value = int(path.read_text("ascii"))
    except (OSError, ValueError):
        return None
    return value if value >= 0 else None


# -- names ---------------------------------------------------------------------------------------------------------


def _masters(environ: Mapping[str, str], command: Sequence[str]) -> Iterator[str]:
    launch = launch_arguments(command)
    for text in (environ.get("MASTER_ADDR"), launch.get("master_addr"), _without_port(launch.get("rdzv_endpoint"))):
        if text:
            yield text


def _without_port(endpoint: str | None) -> str | None:
    if endpoint and re.search(r":\d{1,5}$", endpoint):
        endpoint = endpoint.rpartition(":")[0]
    return endpoint.strip("[]") if endpoint else None


def _resolved(names: Iterable[str], root: Path) -> Iterator[tuple[str, Any]]:
    wanted = sorted(name for name in names if name)
    answers: dict[str, dict[str, Any]] = {}

    def ask(name: str) -> None:
        answers[name] = _resolve(name)

    threads = [threading.Thread(target=ask, args=(name,), daemon=True) for name in wanted]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(RESOLVE_SECONDS)
    for name in wanted:
        yield f"resolve {name}", answers.get(name, {"addresses": [], "error": f"no answer in {RESOLVE_SECONDS} s"})
    lines = _text(root / "etc/hosts").split("\n")[:10_000]
    about = [line.split("#")[0].strip() for line in lines if set(line.split("#")[0].split()[1:]) & set(wanted)]
    yield "hosts_file", about[:200]


def _resolve(name: str) -> dict[str, Any]:
    try:
        found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return {"addresses": [], "error": getattr(error, "strerror", None) or str(error)}
    return {"addresses": list(dict.fromkeys(str(one[4][0]) for one in found)), "error": ""}


# -- ports, limits -------------------------------------------------------------------------------------------------


def _ports(root: Path) -> Iterator[tuple[str, Any]]:
    low, high = _text(root / "proc/sys/net/ipv4/ip_local_port_range").split()[:2]
    yield "ephemeral", [int(low), int(high)]
    found: list[int] = []
    for table in ("tcp", "tcp6"):
        for line in _text(root / "proc/net" / table).split("\n")[1:]:
            columns = line.split()
            if len(columns) > 3 and columns[3] == "0A":
                found.append(int(columns[1].rpartition(":")[2], 16))
    yield "listening", sorted(set(found))[:_MAX_LISTENING]
    yield from _counters(_text(root / "proc/net/snmp"))


def _counters(text: str) -> Iterator[tuple[str, Any]]:
    rows = [line.split()[1:] for line in text.split("\n") if line.startswith("Tcp:")]
    if len(rows) == 2:
        named = dict(zip(*rows, strict=False))
        yield "tcp", {"sent": int(named.get("OutSegs", 0)), "retransmitted": int(named.get("RetransSegs", 0))}


def _limits(root: Path) -> Iterator[tuple[str, Any]]:
    for name, which in (("nofile", resource.RLIMIT_NOFILE), ("memlock", resource.RLIMIT_MEMLOCK)):
        soft, hard = resource.getrlimit(which)
        yield f"limit {name}", [None if value == resource.RLIM_INFINITY else value for value in (soft, hard)]
    about = os.statvfs(root / "dev/shm")
    yield "shm", {"size": about.f_blocks * about.f_frsize, "free": about.f_bavail * about.f_frsize}


# -- settings ------------------------------------------------------------------------------------------------------


def _settings(environ: Mapping[str, str], root: Path) -> Iterator[tuple[str, Any]]:
    for name, value in sorted(environ.items()):
        if _SETTINGS.fullmatch(name):
            yield f"env {name}", redact(value)[:2_000]
    home = environ.get("HOME")
    files = [*(root / name for name in _CONF), *([Path(home, ".nccl.conf")] if home else [])]
    for file in files:
        values = dict(_assignments(_text(file)))
        if values:
            yield f"conf {file}", values
    for name in ("NCCL_TOPO_FILE", "NCCL_NET_PLUGIN", "NCCL_CONF_FILE"):
        if named := environ.get(name):
            yield f"file {name}", {"value": named, "there": _there(named)}


def _assignments(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n")[:1_000]:
        name, equals, value = line.split("#")[0].partition("=")
        if equals and re.fullmatch(r"\w{1,80}", name.strip()):
            yield name.strip(), redact(value.strip())[:2_000]


def _there(value: str) -> bool:
    """A path, or the name of a library where the loader looks."""
    if "/" in value:
        return os.path.exists(value)
    from ctypes.util import find_library

    return any(find_library(name) for name in (value, f"nccl-net-{value}", "nccl-net")) or value == "none"


def _versions(root: Path) -> Iterator[tuple[str, Any]]:
    for name in _PACKAGES:
        try:
            yield f"version {name}", metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    driver = re.search(r"Kernel Module\s+(?:for \S+\s+)?([\d.]{3,20})", _text(root / "proc/driver/nvidia/version"))
    if driver:
        yield "version nvidia-driver", driver.group(1)
    yield "version kernel", os.uname().release


def _container(root: Path) -> Iterator[tuple[str, Any]]:
    group = root / "sys/fs/cgroup"
    limits = {name: _text(group / f"{name}.max").strip() for name in ("memory", "cpu", "pids")}
    kind = "kubernetes" if (root / "var/run/secrets/kubernetes.io").exists() else ""
    kind = kind or ("docker" if (root / ".dockerenv").exists() else "")
    yield "container", {"kind": kind, **{name: value for name, value in limits.items() if value}}


def _text(path: Path, most: int = 1 << 20) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except (OSError, ValueError):
        return ""
