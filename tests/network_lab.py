"""Hosts made of network namespaces: each with its own interfaces, name, /etc/hosts, packet filter and limits.

Bridges stand in a namespace of their own, so that removing the namespaces removes everything. Needs root, iproute2 and
nftables. Without root tests that use it are skipped; as root a missing facility fails them.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

import pytest

SOURCE = Path(__file__).parents[1] / "src"
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
GROUP = Path(__file__).parent / "network_group.py"


def ip(*words: str) -> None:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(words)}: {done.stderr.strip()}"


@dataclass
class Host:
    name: str
    space: str
    folder: Path
    number: int
    env: dict[str, str] = field(default_factory=dict)
    inside: str = ""
    """More for the shell that starts a process here: mounts, limits."""
    hosts_file: str = ""
    launch: list[str] = field(default_factory=list)
    """The launch command that this host's agent reads."""
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ip(self, *words: str) -> None:
        ip("-n", self.space, *words)

    def command(self, *words: str) -> list[str]:
        """`words` as they are started on this host."""
        before = f"hostname {self.name}; {self.mounts()}{self.inside}"
        into = ["ip", "netns", "exec", self.space, "unshare", "--uts", "--mount"]
        return [*into, "sh", "-c", f'{before} exec "$@"', "sh", *words]

    def mounts(self) -> str:
        (self.folder / "hosts").write_text(self.hosts_file)
        (self.folder / "nsswitch.conf").write_text("hosts: files\n")  # there is no name server to wait for
        return "".join(f"mount --bind {self.folder}/{name} /etc/{name}; " for name in ("hosts", "nsswitch.conf"))

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME", "LANG", "PYTHONPATH")}
        return kept | {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"} | self.env

    def start(self, *words: str, log: Path, env: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        with log.open("wb") as out:
            process = subprocess.Popen(
                self.command(*words), stdout=out, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self.environment() | dict(env or {}), cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self.started.append(process)
        return process

    def run(self, *words: str) -> str:
        done = subprocess.run(
            self.command(*words),
            capture_output=True,
            text=True,
            check=False,
            env=self.environment(),
            cwd=self.folder,
            timeout=30,
        )
        assert done.returncode == 0, f"{self.name}: {shlex.join(words)}: {done.stderr}"
        return done.stdout

    def nft(self, *lines: str) -> None:
        for line in lines:
            self.run("nft", *shlex.split(line, posix=False))

    def filter(self, *rules: str, hook: str = "input") -> None:
        self.nft("add table inet lab", f"add chain inet lab {hook} {{ type filter hook {hook} priority 0 ; }}")
        self.nft(*(f"add rule inet lab {hook} {rule}" for rule in rules))


class Lab:
    """`with Lab(3) as lab:` three hosts with data0 (10.77.0.N, 10 Gb/s) and mgmt0 (10.88.0.N), and all names known."""

    def __init__(
        self, hosts: int, networks: Sequence[str] = ("data", "mgmt"), docker: bool = True, ipv6: bool = False
    ) -> None:
        self.tag = f"pm{os.getpid():x}{secrets.token_hex(2)}"
        self.switch = f"{self.tag}s"
        self.networks, self.docker, self.ipv6 = networks, docker, ipv6
        self.folder = Path(tempfile.mkdtemp(prefix="paramedic-lab-"))
        self.hosts = [Host(f"n{i}", f"{self.tag}n{i}", self.folder / f"n{i}", i) for i in range(1, hosts + 1)]

    def __enter__(self) -> Lab:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()

    def _build(self) -> None:
        for tool in ("ip", "nft", "tc", "unshare"):
            assert shutil.which(tool), f"{tool} is not installed (Debian: iproute2, nftables, util-linux)"
        ip("netns", "add", self.switch)
        for number, _ in enumerate(self.networks):
            ip("-n", self.switch, "link", "add", f"br{number}", "type", "bridge", "forward_delay", "0")
            ip("-n", self.switch, "link", "set", f"br{number}", "up")
        for host in self.hosts:
            self._add(host)
        names = "".join(f"{self.address(0, host)} {host.name}\n" for host in self.hosts)
        for host in self.hosts:
            host.hosts_file = f"127.0.0.1 localhost\n{names}"

    def address(self, network: int, host: Host) -> str:
        return f"10.{77 + 11 * network}.0.{host.number}"

    def _add(self, host: Host) -> None:
        host.folder.mkdir()
        ip("netns", "add", host.space)
        host.ip("link", "set", "lo", "up")
        for number, network in enumerate(self.networks):
            port, name = f"p{number}-{host.number}", f"{network}0"
            ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", name, "netns", host.space)
            ip("-n", self.switch, "link", "set", port, "master", f"br{number}", "up")
            host.ip("addr", "add", f"{self.address(number, host)}/24", "dev", name)
            if self.ipv6:
                host.ip("addr", "add", f"fd00:{77 + 11 * number}::{host.number}/64", "dev", name, "nodad")
            host.ip("link", "set", name, "up")
        if self.docker:
            host.ip("link", "add", "docker0", "type", "bridge")
            host.ip("addr", "add", "172.17.0.1/16", "dev", "docker0")
            host.ip("link", "set", "docker0", "up")

    def port(self, network: int, host: Host) -> str:
        """The switch's end of a host's cable."""
        return f"p{network}-{host.number}"

    def small_packets_only(self, mtu: int, *hosts: Host) -> None:
        """A path-MTU hole: the switch drops what is larger, and says nothing. Offloads would carry it through."""
        for host in self.hosts:
            host.ip("link", "set", "data0", "gso_max_segs", "1")
            ip("-n", self.switch, "link", "set", self.port(0, host), "gso_max_segs", "1")
        for host in hosts:
            ip("-n", self.switch, "link", "set", self.port(0, host), "mtu", str(mtu))

    def via(self) -> str:
        """A command for `--via` that starts what follows on every host, as srun would."""
        script = self.folder / "via.sh"
        lines = ["#!/bin/sh"]
        for host in self.hosts:
            settings = [f"{name}={value}" for name, value in host.environment().items()]
            launch = shlex.join(["--", *host.launch]) if host.launch else ""
            lines.append(f'env -i {shlex.join(settings)} {shlex.join(host.command())} "$@" {launch} & ')
        script.write_text("\n".join([*lines, "wait", ""]))
        script.chmod(0o755)
        return str(script)

    def group(self, seconds: float = 60, env: Mapping[str, str] | None = None, floats: int = 1 << 20) -> list[str]:
        """A real gloo group with one rank a host that trains a few steps: what each rank printed last."""
        logs = [self.folder / f"group-{host.name}.log" for host in self.hosts]
        shared = {
            "MASTER_ADDR": self.address(0, self.hosts[0]), "MASTER_PORT": "29500", "WORLD_SIZE": str(len(self.hosts)),
        }  # fmt: skip
        ranks = [
            {
                "name": host.name, "space": host.space, "mounts": host.mounts(), "log": str(log),
                "env": shared | {"RANK": str(rank)} | host.environment() | dict(env or {}),
            }
            for rank, (host, log) in enumerate(zip(self.hosts, logs, strict=True))
        ]  # fmt: skip
        file = self.folder / "group.json"
        file.write_text(json.dumps(ranks))
        with (self.folder / "group.log").open("wb") as out:
            words = [sys.executable, str(GROUP), "--hosts", str(file), str(floats)]
            all_of = subprocess.Popen(words, stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
        end_after([all_of], seconds)
        return [_last_line(log) for log in logs]

    def close(self) -> None:
        for space in [*(host.space for host in self.hosts), self.switch]:
            pids = subprocess.run(
                ["ip", "netns", "pids", space], capture_output=True, text=True, check=False
            ).stdout.split()
            for pid in pids:
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    continue
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)
        for process in (one for host in self.hosts for one in host.started):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _last_line(log: Path) -> str:
    return log.read_text(errors="replace").strip().split("\n")[-1] if log.exists() else "never started"


def end_after(processes: Sequence[subprocess.Popen[bytes]], seconds: float) -> None:
    """Waits for all; whoever has not ended by then is killed with what it started."""
    end = time.monotonic() + seconds
    for one in processes:
        try:
            one.wait(max(end - time.monotonic(), 0.01))
        except subprocess.TimeoutExpired:
            os.killpg(one.pid, signal.SIGKILL)
            one.wait()
