"""Run a program in a mount and UTS namespace of its own, and keep all that it prints.

In it the program lies at /srv/train/train.py, the virtual environment at /opt/venv, and the host is called
node-01: the output names no place of the machine it was made on. Needs Linux, unshare(1) and root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

PYTHON = "/opt/venv/bin/python"
TORCHRUN = [PYTHON, "/opt/venv/bin/torchrun"]
ENTER = """
mount --make-rprivate / && hostname node-01 && mount --bind "$1/hosts" /etc/hosts
mount -t tmpfs tmpfs /srv && mkdir /srv/train && mount --bind "$1/train" /srv/train
mount -t tmpfs tmpfs /opt && mkdir /opt/venv && mount --bind "$2" /opt/venv
test -z "$3" || mount -t tmpfs -o "size=$3" tmpfs /srv/train/checkpoints
cd /srv/train && shift 3 && exec "$@"
"""
KILL_WAIT_S = 1.0
LIMIT_S = 90


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


class Place:
    """The folders of one run, and how to start a command in them."""

    def __init__(
        self,
        root: Path,
        program: Path,
        venv: Path,
        checkpoint_disk: str = "",
        hosts: str = "node-01 localhost",
    ) -> None:
        self.root, self.venv, self.checkpoint_disk = root, venv, checkpoint_disk
        root.chmod(0o755)
        for name in ("train/out", "train/checkpoints", "train/logs"):
            (root / name).mkdir(parents=True)
        shutil.copy(program, root / "train/train.py")
        (root / "hosts").write_text(f"127.0.0.1 {hosts}\n")

    def start(self, command: list[str], env: dict[str, str], out: int) -> subprocess.Popen[bytes]:
        base = {
            "PATH": "/opt/venv/bin:/usr/bin:/bin:/usr/sbin:/sbin",
            "HOME": "/root",
            "LANG": "C.UTF-8",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        enter = ["unshare", "--mount", "--uts", "bash", "-ec", ENTER, "enter"]
        return subprocess.Popen(
            [*enter, str(self.root), str(self.venv), self.checkpoint_disk, *command],
            env=base | env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip


def end(process: subprocess.Popen[bytes]) -> None:
    """End a command and whatever it left behind; it leads a process group of its own."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def to_file(place: Place, command: list[str], env: dict[str, str], target: Path) -> int:
    with open(target, "wb") as out:
        process = place.start(command, env, out.fileno())
        try:
            return process.wait(LIMIT_S)
        finally:
            end(process)


def labelled(
    place: Place, command: list[str], env: dict[str, str], tasks: int, world: int, target: Path
) -> list[int]:
    """Plain processes, every line labelled as `srun -l` does; one bad exit ends the others.

    Returns the exit codes.
    """
    lock = threading.Lock()
    processes: list[subprocess.Popen[bytes]] = []
    with open(target, "wb") as out:

        def copy(task: int, process: subprocess.Popen[bytes]) -> None:
            assert process.stdout is not None
            for line in process.stdout:
                with lock:
                    out.write(b"%d: " % task + line.rstrip(b"\n") + b"\n")

        for task in range(tasks):
            ranks = {"RANK": str(task), "LOCAL_RANK": str(task), "WORLD_SIZE": str(world)}
            processes.append(place.start(command, env | ranks, subprocess.PIPE))
        threads = [threading.Thread(target=copy, args=p) for p in enumerate(processes)]
        for thread in threads:
            thread.start()
        limit = time.monotonic() + LIMIT_S
        while time.monotonic() < limit and not any(p.poll() for p in processes):
            if all(p.poll() == 0 for p in processes):
                break
            time.sleep(0.05)
        else:
            time.sleep(KILL_WAIT_S)
            for process in processes:
                if process.poll() is None:
                    process.terminate()
            time.sleep(2 * KILL_WAIT_S)
        for process in processes:
            end(process)
        for thread in threads:
            thread.join()
    return [p.returncode for p in processes]
