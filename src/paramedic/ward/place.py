"""Where a job of the ward runs: folders of its own and, as root on Linux, namespaces of its own.

In them the job lies at /srv/train, its virtual environment at /opt/venv, and the host is called node-01, so that the
output names no place of the machine it was made on; and whatever the job starts ends with it. Elsewhere it runs in a
plain folder, and cases that need more are left out.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from paramedic.errors import ParamedicError

HOME = Path("/srv/train")
ENVIRONMENT = Path("/opt/venv")
_ENTER = """
set -e
root=$1 venv=$2 shm=$3 cgroup=$4; shift 4
test -z "$cgroup" || echo $$ > "$cgroup/cgroup.procs"
mount --make-rprivate / && mount -t proc proc /proc && hostname node-01 && mount --bind "$root/hosts" /etc/hosts
mkdir -p "$root/venv" && mount --bind "$venv" "$root/venv"
mount -t tmpfs tmpfs /srv && mkdir /srv/train /srv/bin && mount --bind "$root/train" /srv/train
mount --bind "$root/bin" /srv/bin
mount -t tmpfs tmpfs /opt && mkdir /opt/venv && mount --bind "$root/venv" /opt/venv
mount -t tmpfs tmpfs /tmp && chmod 1777 /tmp
test -z "$shm" || mount -t tmpfs -o "size=$shm" tmpfs /dev/shm
cd /srv/train; unset OLDPWD
while test "$1" != --; do mount -t tmpfs -o "size=$2" tmpfs "/srv/train/$1"; shift 2; done; shift
set +e
"$@"
exit $?
"""


_PORTS = range(15_000, 32_000)
"""Below those that the kernel hands out by itself: until a job takes its port, others' connections might have it."""


def free_port() -> int:
    for port in random.sample(_PORTS, len(_PORTS)):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            return port
    raise ParamedicError("no port between 15000 and 32000 is free")


@cache
def isolated() -> bool:
    """Whether this machine lets us make namespaces."""
    if sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("unshare"):
        return False
    trial = ["unshare", "--mount", "--uts", "--pid", "--fork", "true"]
    return subprocess.run(trial, capture_output=True, check=False).returncode == 0


@dataclass
class Place:
    root: Path
    venv: Path
    shm: str = ""
    disk: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.root.chmod(0o755)
        for name in ("out", "checkpoints", "logs", *self.disk):
            (self.train / name).mkdir(parents=True, exist_ok=True)
        self._wrap_scripts()
        (self.root / "hosts").write_text("127.0.0.1 node-01 localhost\n::1 node-01 localhost\n")

    def _wrap_scripts(self) -> None:
        """An environment's scripts begin with the path it was made at, which is another one, or none, inside."""
        (self.root / "bin").mkdir()
        for script in (self.venv / "bin").iterdir():
            if script.is_file() and _is_script(script):
                wrapper = self.root / "bin" / script.name
                wrapper.write_text(f'#!/bin/sh\nexec "{self.bin}/python" "{self.bin}/{script.name}" "$@"\n')
                wrapper.chmod(0o755)

    @property
    def train(self) -> Path:
        """The job's folder, seen from outside."""
        return self.root / "train"

    @property
    def home(self) -> Path:
        """The job's folder, seen from inside."""
        return HOME if isolated() else self.train

    @property
    def bin(self) -> Path:
        return (ENVIRONMENT if isolated() else self.venv) / "bin"

    @property
    def scripts(self) -> Path:
        """What is put before the environment's own programs, seen from inside."""
        return HOME.parent / "bin" if isolated() else self.root / "bin"

    def start(
        self, command: list[str], env: dict[str, str], out: int, cgroup: Path | None = None
    ) -> subprocess.Popen[bytes]:
        base = {
            "PATH": f"{self.scripts}:{self.bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root" if isolated() else str(self.root),
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "OMP_NUM_THREADS": "1",
            "TORCH_EXTENSIONS_DIR": str(self.home / ".cache/torch_extensions"),
            "HF_HOME": str(self.home / ".cache/huggingface"),
            "HF_HUB_OFFLINE": "1",
        }
        if isolated():
            disks = [word for pair in self.disk.items() for word in pair]
            enter = ["unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "bash", "-c", _ENTER, "enter"]
            enter += [str(self.root), str(self.venv), self.shm, str(cgroup or ""), *disks, "--"]
        else:
            enter = []
        return subprocess.Popen(
            [*enter, *command], cwd=self.train, env=base | env, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip

    def run(self, command: list[str], env: dict[str, str], target: Path, limit: float, memory: str = "") -> int | None:
        """Its exit code, or none when it had to be ended at the limit; what it prints goes to the file."""
        with open(target, "wb") as out, _memory_limit(memory) as cgroup:
            process = self.start(command, env, out.fileno(), cgroup)
            try:
                return process.wait(limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def _is_script(file: Path) -> bool:
    with open(file, "rb") as start:
        return start.read(2) == b"#!" and os.access(file, os.X_OK)


@contextlib.contextmanager
def listener(port: int, wanted: bool) -> Iterator[None]:
    """Somebody else on that port."""
    with socket.socket() as held:
        if wanted:
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("0.0.0.0", port))
            held.listen()
        yield


def cgroup_root() -> Path | None:
    """Where memory cgroups can be made: version 1's own hierarchy, or version 2's."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
            return root
    return None


@contextlib.contextmanager
def _memory_limit(limit: str) -> Iterator[Path | None]:
    root = cgroup_root() if limit else None
    if root is None:
        yield None
        return
    group = root / f"paramedic-{uuid.uuid4().hex[:8]}"
    group.mkdir()
    try:
        for name in ("memory.limit_in_bytes", "memory.max"):
            if (group / name).exists():
                (group / name).write_text(str(_bytes(limit)))
        yield group
    finally:
        with contextlib.suppress(OSError):  # the kernel may still be reaping its last process
            group.rmdir()


def _bytes(size: str) -> int:
    found = re.fullmatch(r"([0-9]+)([kmg]?)", size.lower())
    if not found:
        raise ValueError(f"{size}: not a size such as 600m")
    return int(found[1]) << {"": 0, "k": 10, "m": 20, "g": 30}[found[2]]
