"""`paramedic net` beside bare torch in the same lab: how soon a fault is named, and what many hosts cost.

    python bench/network.py [--output FILE.json] [names of parts…]

Needs root, iproute2, nftables and torch. The hosts are network namespaces of this machine (tests/network_lab.py).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from network_faults import standard
from network_lab import SOURCE, Lab

BARE_LIMIT = 60.0
BARE_TIMEOUT = 12.0
NEW = "tcp flags & (syn|ack) == syn"
Part = Callable[[], dict[str, Any]]


def named_after(lab: Lab, rule: str) -> float:
    """Seconds from the start of `net check` until it has printed the rule, on either stream."""
    words = ["--via", lab.via(), "--nodes", str(len(lab.hosts)), "--dir", str(lab.folder / "meet")]
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-u", "-m", "paramedic", "net", "check", *words],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )  # fmt: skip
    assert process.stdout is not None
    seconds = float("nan")
    for line in process.stdout:
        if rule in line and seconds != seconds:
            seconds = time.monotonic() - start
    process.wait()
    return seconds


def bare(lab: Lab) -> dict[str, Any]:
    """The same hosts, torch alone with a timeout of 12 s: when each rank gave up, and what it said."""
    logs = [lab.folder / f"bare-{host.name}.log" for host in lab.hosts]
    shared = {
        "MASTER_ADDR": "10.77.0.1",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": str(len(lab.hosts)),
        "GROUP_TIMEOUT": str(BARE_TIMEOUT),
    }
    start = time.monotonic()
    program = str(Path(__file__).parents[1] / "tests/network_group.py")
    ranks = [
        host.start(sys.executable, program, str(1 << 20), log=log, env=shared | host.env | {"RANK": str(rank)})
        for rank, (host, log) in enumerate(zip(lab.hosts, logs, strict=True))
    ]
    ended: dict[int, float] = {}
    while len(ended) < len(ranks) and time.monotonic() - start < BARE_LIMIT:
        for number, rank in enumerate(ranks):
            if number not in ended and rank.poll() is not None:
                ended[number] = time.monotonic() - start
        time.sleep(0.05)
    for rank in ranks:
        if rank.poll() is None:
            os.killpg(rank.pid, 9)
            rank.wait()
    said = [(log.read_text(errors="replace").strip().split("\n") or [""])[-1][:160] for log in logs]
    return {
        "ended_after_s": [
            round(ended[n], 1) if n in ended else f"silent, killed at {BARE_LIMIT:.0f} s" for n in range(len(ranks))
        ],
        "said": said,
    }


def trial(make: Callable[[Lab], None], rule: str, repeats: int = 5) -> dict[str, Any]:
    with Lab(2) as lab:
        standard(lab)
        make(lab)
        before = _processor_seconds()
        seconds = [named_after(lab, rule) for _ in range(repeats)]
        processor = (_processor_seconds() - before) / repeats
        beside = bare(lab)
    return {
        "rule": rule,
        "named_after_s": [round(one, 2) for one in seconds],
        "median_s": round(median(seconds), 2),
        "processor_s_each": round(processor, 2),
        "bare_torch": beside,
    }


def _processor_seconds() -> float:
    """Of all processes that ended: on a busy machine they say more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def dropped(lab: Lab) -> None:
    lab.hosts[0].filter(f"tcp dport != 29500 {NEW} drop")
    lab.hosts[1].filter(f"{NEW} drop")


def loopback(lab: Lab) -> None:
    for host in lab.hosts:
        host.hosts_file = f"127.0.1.1 {host.name}\n{host.hosts_file}"
        del host.env["GLOO_SOCKET_IFNAME"]


def hole(lab: Lab) -> None:
    lab.small_packets_only(1400, lab.hosts[1])


# -- many hosts ----------------------------------------------------------------------------------------------------


def many_hosts(count: int = 64) -> dict[str, Any]:
    """Agents in namespaces of their own, forked from one process: real hosts have a processor each to start on."""
    from paramedic.knowledge import load
    from paramedic.network.agent import take_part
    from paramedic.network.board import Folder
    from paramedic.network.session import Session
    from paramedic.pipeline import Options, foretell

    token = b"t" * 40
    knowledge = load()
    with Lab(count, networks=("data",)) as lab:
        standard(lab)
        lab.hosts[7].filter(f"{NEW} drop")
        folder = lab.folder / "meet"
        folder.mkdir()
        start, before = time.monotonic(), _processor_seconds()
        children = []
        for host in lab.hosts:
            pid = os.fork()
            if pid == 0:
                _enter(host.space)
                os.environ.clear()
                os.environ.update(host.env | {"PATH": "/usr/sbin:/usr/bin:/bin"})
                try:
                    take_part(Folder(folder, token), host.name, [], 60.0, lambda text: None)
                finally:
                    os._exit(0)
            children.append(pid)
        session = Session(Folder(folder, token), count)
        session.gather(60.0)
        gathered = time.monotonic() - start
        session.test()
        report = foretell(session.run(), knowledge, Options())
        seconds = time.monotonic() - start
        for pid in children:
            os.waitpid(pid, 0)
        processor = _processor_seconds() - before
    found = sorted({(one.rule, one.hosts) for one in report.findings})
    pairs = sum(fact.name == "pair" for fact in session.facts)
    return {
        "hosts": count,
        "facts_after_s": round(gathered, 2),
        "checked_after_s": round(seconds, 2),
        "agents_processor_s": round(processor, 2),
        "connections": pairs,
        "found": [[rule, list(hosts)] for rule, hosts in found],
    }


def _enter(space: str) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{space}") as file:
        if libc.setns(file.fileno(), 0x40000000):
            raise OSError(ctypes.get_errno(), "setns")


# -- planning ------------------------------------------------------------------------------------------------------


def planning() -> dict[str, Any]:
    from paramedic.network.plan import Conflict, Plan, plan

    plan(_cluster(4))  # loads the solver
    start, used = time.monotonic(), time.process_time()
    made = plan(_cluster(1024))
    large, large_used = time.monotonic() - start, time.process_time() - used
    assert isinstance(made, Plan) and {one.interface for one in made.endpoints["gloo"].values()} == {"data0"}
    start, used = time.monotonic(), time.process_time()
    answer = plan(_cluster(256, [(2, 3, 0), (0, 1, 1), (9, 20, 0)]))
    conflict, conflict_used = time.monotonic() - start, time.process_time() - used
    assert isinstance(answer, Conflict)
    return {
        "plan_1024_s": round(large, 2),
        "plan_1024_processor_s": round(large_used, 2),
        "conflict_256_processor_s": round(conflict_used, 2),
        "conflict_256_s": round(conflict, 2),
        "conflict": [one.text for one in answer.facts],
        "cure": [one.text for one in answer.cure],
    }


def _cluster(count: int, cuts: list[tuple[int, int, int]] | None = None) -> Any:
    from paramedic.network.world import Endpoint, Obstacle, World, id_of

    hosts = tuple(f"n{i:04}" for i in range(count))
    ends = {
        host: (
            Endpoint(host, "data0", f"10.77.{i >> 8}.{i & 255}", "10.77.0.0/16", 100_000),
            Endpoint(host, "mgmt0", f"10.88.{i >> 8}.{i & 255}", "10.88.0.0/16", 1_000),
            Endpoint(host, "docker0", "172.17.0.1", "172.17.0.0/16", 0),
        )
        for i, host in enumerate(hosts)
    }
    facts = [Obstacle("unusable", f"docker0 on {host} is a bridge", "", True, id_of(ends[host][2])) for host in hosts]
    facts.append(
        Obstacle("apart", "data and management are not routed to each other", "", True, "10.77.0.0/16", "10.88.0.0/16")
    )
    facts += [Obstacle("busy", f"port 29500 is taken on {host}", "", host=host, port=29500) for host in hosts[::3]]
    for a, b, which in cuts or ():
        first, second = ends[hosts[a]][which], ends[hosts[b]][which]
        facts.append(
            Obstacle(
                "cut",
                f"{first.host} – {second.host} on {first.interface} is filtered",
                "",
                False,
                id_of(first),
                id_of(second),
            )
        )
    return World(hosts, ends, tuple(facts), ("gloo", "nccl"), {}, hosts[0])


PARTS: dict[str, Part] = {
    "dropped data ports": lambda: trial(dropped, "NET049"),
    "loopback names": lambda: trial(loopback, "NET040"),
    "path-MTU hole": lambda: trial(hole, "NET054"),
    "64 hosts": many_hosts,
    "planning": planning,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*")
    parser.add_argument("--output")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that the lab is taken down
    results: dict[str, Any] = {"load_average": os.getloadavg(), "cores": os.cpu_count()}
    for name, part in PARTS.items():
        if not args.parts or name in args.parts:
            assert threading.active_count() == 1, "a process with threads must not fork"
            results[name] = part()
            print(json.dumps({name: results[name]}, ensure_ascii=False), flush=True)
    if args.output:
        Path(args.output).write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
