"""The lab's faults: how each is made for real, which finding it must get, on which host, and how the printed fix is applied.

`python tests/network_faults.py` makes them all and prints the table for docs/network.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from network_lab import SOURCE, Host, Lab, ip

Make = Callable[[Lab], object]


@dataclass(frozen=True)
class Fault:
    """`number` is its place among the 32 misconfigurations that are known."""

    number: int
    name: str
    rule: str
    hosts: str
    make: Make
    repair: Make | None = None
    """Where the printed fix cannot be run here (an image, a pod): the same done by hand."""
    apply_on: str = ""
    """Hosts that the printed fix is for, where these are not those of the finding."""
    after: Make = lambda lab: None
    """What time alone would do after the fix."""
    lab: dict[str, Any] = field(default_factory=dict)


def standard(lab: Lab) -> None:
    for host in lab.hosts:
        host.env |= {
            "GLOO_SOCKET_IFNAME": f"{lab.networks[0]}0", "MASTER_ADDR": "10.77.0.1", "MASTER_PORT": "29500",
            "RANK": str(host.number - 1), "WORLD_SIZE": str(len(lab.hosts)),
        }  # fmt: skip


# -- making them ---------------------------------------------------------------------------------------------------


def env(which: str, **values: str | None) -> Make:
    def make(lab: Lab) -> None:
        for host in chosen(lab, which):
            for name, value in values.items():
                host.env.pop(name, None)
                if value is not None:
                    host.env[name] = value

    return make


def chosen(lab: Lab, which: str) -> list[Host]:
    return [host for host in lab.hosts if which == "all" or host.name in which.split(",")]


def named(which: str, line: str, **values: str | None) -> Make:
    """An /etc/hosts whose first line is this."""

    def make(lab: Lab) -> None:
        for host in chosen(lab, which):
            host.hosts_file = f"{line}\n{host.hosts_file}"
        env("all", **values)(lab)

    return make


def head(lab: Lab) -> None:
    env("all", MASTER_ADDR="head")(lab)
    for host in lab.hosts:
        host.hosts_file += "10.77.0.1 head\n"


def other_head(lab: Lab) -> None:
    head(lab)
    lab.hosts[2].hosts_file = lab.hosts[2].hosts_file.replace("10.77.0.1 head", "10.77.0.2 head")


def no_head(lab: Lab) -> None:
    head(lab)
    lab.hosts[1].hosts_file = lab.hosts[1].hosts_file.replace("10.77.0.1 head\n", "")


def listen(which: str, *ports: int) -> Make:
    def make(lab: Lab) -> None:
        program = "import socket,sys,time; s=[socket.create_server(('',int(p))) for p in sys.argv[1:]]; open('up','w'); time.sleep(600)"
        for host in chosen(lab, which):
            host.start(sys.executable, "-c", program, *map(str, ports), log=host.folder / "listener.log")
            until((host.folder / "up").exists)

    return make


def silence(which: str) -> Make:
    """Ends what `listen` started."""

    def make(lab: Lab) -> None:
        for host in chosen(lab, which):
            for pid in subprocess.run(
                ["ip", "netns", "pids", host.space], capture_output=True, text=True, check=True
            ).stdout.split():
                os.kill(int(pid), 9)

    return make


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)


def filtered(which: str, *rules: str, hook: str = "input") -> Make:
    def make(lab: Lab) -> None:
        for host in chosen(lab, which):
            host.filter(*rules, hook=hook)

    return make


def on(which: str, *words: str) -> Make:
    def make(lab: Lab) -> None:
        for host in chosen(lab, which):
            host.ip(*words)

    return make


def readdressed(address: str) -> Make:
    """n3 on data0 with this address alone."""

    def make(lab: Lab) -> None:
        lab.hosts[2].ip("addr", "flush", "dev", "data0", "scope", "global")
        lab.hosts[2].ip("addr", "add", address, "dev", "data0")

    return make


def renamed(lab: Lab) -> None:
    host = lab.hosts[1]
    for words in (["down"], ["name", "ens7"], ["up"]):
        host.ip("link", "set", "data0" if words != ["up"] else "ens7", *words)


def unplugged(lab: Lab) -> None:
    """The cable stays in, but leads to no switch."""
    ip("-n", lab.switch, "link", "set", lab.port(0, lab.hosts[2]), "nomaster")


def slow(lab: Lab) -> None:
    lab.hosts[1].run(
        "tc", "qdisc", "add", "dev", "data0", "root", "tbf", "rate", "10mbit", "burst", "32kbit", "latency", "50ms"
    )


def roundabout(lab: Lab) -> None:
    host = lab.hosts[1]
    host.run("sysctl", "-q", "-w", "net.ipv4.conf.all.rp_filter=1", "net.ipv4.conf.data0.rp_filter=1")
    host.ip("route", "add", "10.77.0.1/32", "dev", "mgmt0")


def ipv4_only(lab: Lab) -> None:
    lab.hosts[2].ip("-6", "addr", "flush", "dev", "data0")
    lab.hosts[2].ip("-6", "addr", "flush", "dev", "mgmt0")
    env("all", MASTER_ADDR="fd00:77::1")(lab)


def launched(lab: Lab) -> None:
    for host in lab.hosts:
        host.launch = ["torchrun", "--nnodes=3", f"--rdzv-id={42 if host.name == 'n3' else 41}", "train.py"]


def older_torch(lab: Lab) -> None:
    folder = lab.hosts[1].folder / "older" / "torch-2.4.1.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 2.4.1\n")
    lab.hosts[1].env["PYTHONPATH"] = f"{folder.parent}:{SOURCE}"


def conf(lab: Lab) -> None:
    for host in lab.hosts:
        (host.folder / ".nccl.conf").write_text("NCCL_DEBUG=WARN\nNCCL_P2P_DISABLE=1\n")
        host.env["HOME"] = str(host.folder)


def unlike_timeouts(lab: Lab) -> None:
    env("all", NCCL_IB_TIMEOUT="22")(lab)
    env("n2", NCCL_IB_TIMEOUT="14")(lab)


def inside(which: str, line: str) -> Make:
    def make(lab: Lab) -> None:
        for host in chosen(lab, which):
            host.inside = line

    return make


NEW = "tcp flags & (syn|ack) == syn"
FAULTS = (
    Fault(1, "a host's name is 127.0.1.1", "NET040", "n2", named("n2", "127.0.1.1 n2", GLOO_SOCKET_IFNAME=None)),
    Fault(
        2,
        "no interface is named, and a host's name is on another network",
        "NET041",
        "n3",
        named("n3", "10.88.0.3 n3", GLOO_SOCKET_IFNAME=None),
    ),
    Fault(3, "docker0 is named", "NET042", "n2", env("n2", GLOO_SOCKET_IFNAME="docker0")),
    Fault(3, "the loopback is named", "NET042", "n2", env("n2", GLOO_SOCKET_IFNAME="lo")),
    Fault(
        3,
        "two hosts have one address",
        "NET076",
        "n2,n3",
        readdressed("10.77.0.2/24"),
        apply_on="n3",
        after=on("all", "neigh", "flush", "all"),
    ),
    Fault(4, "the named interface is not there", "NET043", "n2", env("n2", GLOO_SOCKET_IFNAME="eth7")),
    Fault(5, "a host names its interface differently", "NET043", "n2", renamed),
    Fault(5, "NCCL's way of writing in gloo's variable", "NET043", "n1,n2,n3", env("all", GLOO_SOCKET_IFNAME="=data0")),
    Fault(
        5,
        "a prefix matches two networks",
        "NET044",
        "n1,n2,n3",
        env("all", NCCL_SOCKET_IFNAME="net"),
        lab={"networks": ("net1", "net2")},
    ),
    Fault(6, "MASTER_ADDR is the loopback", "NET045", "n1,n2,n3", env("all", MASTER_ADDR="127.0.1.1")),
    Fault(6, "MASTER_ADDR is nobody's", "NET045", "n1,n2,n3", env("all", MASTER_ADDR="10.77.0.99")),
    Fault(6, "MASTER_ADDR is another host's than rank 0's", "NET045", "n1,n2,n3", env("all", MASTER_ADDR="10.77.0.2")),
    Fault(7, "the master's name is another host on one", "NET046", "n3", other_head),
    Fault(7, "one host does not know the master's name", "NET046", "n2", no_head),
    Fault(8, "the master port is taken", "NET047", "n1", listen("n1", 29500)),
    Fault(9, "the master port is dropped", "NET048", "n1", filtered("n1", "tcp dport 29500 drop")),
    Fault(9, "the master port is rejected", "NET048", "n1", filtered("n1", "tcp dport 29500 reject with tcp reset")),
    Fault(10, "all but the master port is dropped", "NET049", "n1", filtered("n1", f"tcp dport != 29500 {NEW} drop")),
    Fault(
        10,
        "a host may not dial out",
        "NET049",
        "n2",
        filtered("n2", f"oifname data0 tcp dport 32768-60999 {NEW} drop", hook="output"),
    ),
    Fault(10, "one pair of hosts is filtered", "NET049", "n2", filtered("n2", f"ip saddr 10.77.0.3 {NEW} drop")),
    Fault(11, "an IPv6 master, and a host without IPv6", "NET050", "n3", ipv4_only, lab={"ipv6": True}),
    Fault(12, "two hosts have the same rank", "NET051", "n3", env("n3", RANK="1")),
    Fault(12, "a host counts another world size", "NET051", "n2", env("n2", WORLD_SIZE="4")),
    Fault(12, "a rank that nobody has", "NET051", "n1,n2,n3", env("all", WORLD_SIZE="4")),
    Fault(13, "a host is launched with another rendezvous id", "NET052", "n3", launched),
    Fault(13, "a host has another master port", "NET052", "n2", env("n2", MASTER_PORT="29501")),
    Fault(14, "a host has another MTU", "NET053", "n2", on("n2", "link", "set", "data0", "mtu", "9000")),
    Fault(14, "large packets vanish", "NET054", "n3", lambda lab: lab.small_packets_only(1400, lab.hosts[2])),
    Fault(15, "a path of 10 Mbit/s", "NET055", "n2", slow),
    Fault(
        16,
        "five percent of packets are lost",
        "NET056",
        "n2",
        filtered("n2", "meta l4proto tcp numgen random mod 100 < 5 drop"),
    ),
    Fault(17, "the way back is another one, and strictly filtered", "NET057", "n2", roundabout),
    Fault(
        18,
        "a host is on another subnet",
        "NET041",
        "n3",
        readdressed("10.99.0.3/24"),
        apply_on="all",
    ),
    Fault(18, "a cable that leads nowhere", "NET058", "n3", unplugged, apply_on="all"),
    Fault(19, "NCCL and gloo on different networks", "NET059", "n1,n2,n3", env("all", NCCL_SOCKET_IFNAME="mgmt0")),
    Fault(25, "256 open files", "NET067", "n2", inside("n2", "ulimit -n 256;")),
    Fault(
        26,
        "64 MB of shared memory",
        "NET068",
        "n2",
        inside("n2", "mount -t tmpfs -o size=64m none /dev/shm;"),
        inside("n2", "mount -t tmpfs -o size=1g none /dev/shm;"),
    ),
    Fault(29, "another version of torch", "NET071", "n2", older_torch, lambda lab: lab.hosts[1].env.pop("PYTHONPATH")),
    Fault(30, "a variable on one host only", "NET072", "n2", env("n2", NCCL_NTHREADS="256")),
    Fault(30, "a trial's variable in nccl.conf", "NET073", "n1,n2,n3", conf),
    Fault(
        31,
        "timeouts differ",
        "NET074",
        "n2",
        unlike_timeouts,
    ),
    Fault(32, "a sidecar takes connections", "NET075", "n2", listen("n2", 15001, 15006), silence("n2")),
    Fault(
        32,
        "a plugin is named and not there",
        "NET077",
        "n1,n2,n3",
        env("all", NCCL_NET_PLUGIN="ofi"),
        env("all", NCCL_NET_PLUGIN=None),
    ),
)


# -- checking and repairing ----------------------------------------------------------------------------------------


def paramedic(*words: str, seconds: float = 90) -> subprocess.CompletedProcess[str]:
    """As a user would run it; everything that it started is gone afterwards."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PARAMEDIC_")}
    return subprocess.run(
        [sys.executable, "-m", "paramedic", *words], capture_output=True, text=True, check=False, timeout=seconds,
        env=kept | {"PYTHONPATH": str(SOURCE), "PARAMEDIC_DEBUG": "1"}, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def check(lab: Lab, *more: str) -> dict[str, Any]:
    words = ["--via", lab.via(), "--nodes", str(len(lab.hosts)), "--dir", str(lab.folder / "meet"), "--format", "json"]
    done = paramedic("net", "check", *words, *more)
    assert done.returncode in (0, 1), done.stderr
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def of_rule(report: dict[str, Any], rule: str) -> list[dict[str, Any]]:
    return [finding for finding in report["findings"] if finding["rule"] == rule]


def apply(lab: Lab, fault: Fault, findings: Sequence[dict[str, Any]]) -> None:
    """What the report prints, done."""
    if fault.repair:
        fault.repair(lab)
    for finding in () if fault.repair else findings:
        action = finding["fixes"][0]["action"]
        everywhere = fault.apply_on or (
            "all" if action.get("name", "").startswith("MASTER_") else ",".join(finding["hosts"])
        )
        for host in chosen(lab, everywhere):
            _apply(host, action)
    fault.after(lab)


def _apply(host: Host, action: dict[str, Any]) -> None:
    if action["kind"] == "env":
        host.env[action["name"]] = action["value"]
    elif action["kind"] == "launch":
        name, _, value = action["argument"].partition("=")
        if name.startswith("--"):
            host.launch = [action["argument"] if word.startswith(f"{name}=") else word for word in host.launch]
        else:
            host.env[name] = value
    elif re.fullmatch(r"unset \w+", action["run"]):
        host.env.pop(action["run"].split()[1], None)
    elif action["run"].startswith("export "):
        host.env |= dict(line.removeprefix("export ").split("=", 1) for line in action["run"].split("\n"))
    elif action["run"].startswith("ulimit"):
        host.inside = f"{action['run']};"
    else:
        host.run("sh", "-c", action["run"])


@dataclass(frozen=True)
class Outcome:
    fault: Fault
    found: list[dict[str, Any]]
    others: list[str]
    gone: bool
    trained: bool
    said: list[str]

    @property
    def right_host(self) -> bool:
        return {host for one in self.found for host in one["hosts"]} == set(self.fault.hosts.split(","))


def tried(fault: Fault) -> Outcome:
    """Made, found, repaired by what was printed, checked again, and trained on."""
    with Lab(3, **fault.lab) as lab:
        standard(lab)
        fault.make(lab)
        report = check(lab)
        found = of_rule(report, fault.rule)
        others = [f"{one['rule']} {','.join(one['hosts'])}" for one in report["findings"] if one["rule"] != fault.rule]
        said: list[str] = []
        gone = False
        if found:
            apply(lab, fault, found)
            gone = not of_rule(check(lab), fault.rule)
            said = lab.group()
        return Outcome(
            fault, found, others, gone, bool(said) and all(line.startswith("trained") for line in said), said
        )


def table(outcomes: Sequence[Outcome]) -> str:
    yes = {True: "yes", False: "**no**"}
    lines = [
        "| # | fault | finding | host | printed fix, first line | gone after it | then trains |",
        "|---|---|---|---|---|---|---|",
    ]
    for one in outcomes:
        action = one.found[0]["fixes"][0]["action"] if one.found else {}
        text = (
            action.get("run")
            or action.get("argument")
            or (f"{action['name']}={action['value']}" if "name" in action else json.dumps(action))
        )
        fix = text.split("\n")[0].replace("|", "\\|")
        host = (
            one.fault.hosts
            if one.right_host
            else f"**{','.join(sorted({h for f in one.found for h in f['hosts']})) or 'none'}**"
        )
        rule = one.fault.rule if one.found else "**none**"
        lines.append(
            f"| {one.fault.number} | {one.fault.name} | {rule} | {host} | `{fix}` | {yes[one.gone]} | {yes[one.trained]} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    wanted = sys.argv[1:]
    part, of = map(int, os.environ.get("PART", "0/1").split("/"))
    done = []
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(143))  # so that the lab is taken down
    for fault in FAULTS[part::of]:
        if not wanted or fault.rule in wanted or fault.name in wanted:
            try:
                outcome = tried(fault)
            except AssertionError as error:
                outcome = Outcome(fault, [], [], False, False, [str(error)])
            done.append(outcome)
            print(
                f"{fault.rule} {fault.name}: found {bool(outcome.found)}, host {outcome.right_host}, others {outcome.others}, gone {outcome.gone}, {outcome.said}",
                file=sys.stderr,
                flush=True,
            )
    print(table(done))
