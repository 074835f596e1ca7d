"""`paramedic net` among real hosts: network namespaces whose faults are made, found, repaired as printed, and trained on."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from network_faults import FAULTS, Fault, check, of_rule, paramedic, standard, tried, until
from network_lab import GROUP, Lab, end_after, needs_root

pytestmark = needs_root
QUICK = ("a host's name is 127.0.1.1", "all but the master port is dropped", "large packets vanish")


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    mine = f"pm{os.getpid():x}"
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout.split()
    assert not [name for name in left if name.startswith(mine)]


def test_three_faults_at_once_are_each_named_with_their_host() -> None:
    """The ones that leave torch silent: a loopback name on n2, dropped data ports on n1, large packets that vanish at n3."""
    with Lab(4) as lab:
        standard(lab)
        lab.hosts[1].hosts_file = f"127.0.1.1 n2\n{lab.hosts[1].hosts_file}"
        del lab.hosts[1].env["GLOO_SOCKET_IFNAME"]
        lab.hosts[0].filter("tcp dport != 29500 tcp flags & (syn|ack) == syn drop")
        lab.small_packets_only(1400, lab.hosts[2])
        report = check(lab)
    found = {one["rule"]: one["hosts"] for one in report["findings"]}
    assert found["NET040"] == ["n2"] and found["NET049"] == ["n1"] and found["NET054"] == ["n3"]
    fix = of_rule(report, "NET054")[0]["fixes"][0]["action"]["run"]
    assert fix == "ip link set dev data0 mtu 1400"


def test_a_printed_fix_makes_a_real_group_train() -> None:
    outcome = tried(next(one for one in FAULTS if one.name == "docker0 is named"))
    assert outcome.found and outcome.right_host and outcome.gone and outcome.trained, outcome


def test_over_tcp_with_a_scanner_at_the_door_and_a_node_that_has_another_token(tmp_path: Path) -> None:
    token, wrong = tmp_path / "token", tmp_path / "wrong"
    token.write_text("a secret that all nodes have")
    wrong.write_text("a secret that nobody else has")
    with Lab(2) as lab:
        standard(lab)
        listener = lab.hosts[0].command(sys.executable, "-m", "paramedic", "net", "check", "--listen", "10.77.0.1:4040", "--nodes", "2",
                                        "--token-file", str(token), "--wait", "60", "--format", "json")  # fmt: skip
        with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
            head = subprocess.Popen(listener, stdout=out, stderr=err, env=lab.hosts[0].environment())
        program = "import socket,sys; s=socket.create_connection(('10.77.0.1',4040)); s.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n'*9)"
        until(lambda: b"waits" in (tmp_path / "err").read_bytes())
        lab.hosts[1].run(sys.executable, "-c", program)
        agent = (
            sys.executable,
            "-m",
            "paramedic",
            "net",
            "agent",
            "--gather",
            "10.77.0.1:4040",
            "--wait",
            "40",
            "--token-file",
        )
        refused = lab.hosts[1].start(*agent, str(wrong), log=tmp_path / "refused")
        refused.wait(60)
        agents = [host.start(*agent, str(token), log=tmp_path / f"{host.name}.log") for host in lab.hosts]
        end_after([head, *agents], 90)
    said = json.loads((tmp_path / "out").read_text())
    assert refused.returncode == 2 and b"refused" in (tmp_path / "refused").read_bytes()
    assert said["run"]["sources"] == 2 and said["findings"] == []
    assert sum("refused" in left["why"] for left in said["skipped"]) == 2
    assert [one.returncode for one in agents] == [0, 0]


def test_a_node_that_dies_in_the_middle_is_named(tmp_path: Path) -> None:
    """It has sent its facts and is killed before it is to listen; the others are tested all the same."""
    from paramedic.network.board import Folder
    from paramedic.network.session import Session

    with Lab(3) as lab:
        standard(lab)
        folder = tmp_path / "meet"
        folder.mkdir(mode=0o700)
        (folder / "token").touch(0o600)
        (folder / "token").write_text("t" * 40)
        words = (sys.executable, "-m", "paramedic", "net", "agent", "--dir", str(folder), "--wait", "40")
        agents = [host.start(*words, log=tmp_path / f"{host.name}.log") for host in lab.hosts]
        session = Session(Folder(folder, b"t" * 40), 3)
        session.gather(60)
        assert sorted(session.named) == ["n1", "n2", "n3"]
        end_after(agents[2:], 0)
        import paramedic.network.session as timing

        before, timing.TEST_SECONDS = timing.TEST_SECONDS, 6.0
        try:
            session.test()
        finally:
            timing.TEST_SECONDS = before
        end_after(agents[:2], 60)
    assert any("n3" in left.what and "die" in left.why for left in session.skipped)
    tried_pairs = {(fact.value["from"], fact.value["to"]) for fact in session.facts if fact.name == "pair"}
    assert tried_pairs == {("n1", "n2"), ("n2", "n1")}


def test_the_agents_test_port_takes_nothing_from_strangers(tmp_path: Path) -> None:
    import asyncio

    from paramedic.network.pairs import Listener, dial_all

    async def scene() -> tuple[list[dict[str, object]], int]:
        listener = Listener("n2", b"s" * 32)
        listener.open([], None)
        listener.start()
        with socket.create_connection(("127.0.0.1", listener.ports[0])) as stranger:
            stranger.sendall(b"x" * 100)
            await asyncio.sleep(0)
            target = {
                "to": "n2",
                "interface": "lo",
                "address": "127.0.0.1",
                "port": listener.ports[0],
                "role": "data",
                "chosen": True,
                "bulk": True,
            }
            results = await dial_all("n1", b"s" * 32, [target])
            others = await dial_all("n1", b"another session of somebody else", [target | {"bulk": False}])
        await listener.close()
        return [*results, *others], listener.strangers

    (first, second), strangers = asyncio.run(scene())
    assert first["result"] == "ok" and first["mbps"]
    assert second["result"] != "ok" and strangers >= 2


# -- slow ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_each_fault_is_named_and_its_printed_fix_cures_it(fault: Fault) -> None:
    outcome = tried(fault)
    assert outcome.found, outcome.others
    assert outcome.right_host, outcome.found
    assert outcome.gone and outcome.trained, outcome.said


def healthy(seed: int) -> Lab:
    """Some topology in which nothing is wrong."""
    chance = random.Random(seed)
    networks = chance.sample(["data", "mgmt", "store", "ib", "eth"], chance.randint(1, 3))
    return Lab(chance.randint(2, 5), networks, docker=chance.random() < 0.6, ipv6=chance.random() < 0.4)


def furnish(lab: Lab, seed: int) -> None:
    chance = random.Random(seed * 7 + 1)
    used = chance.randrange(len(lab.networks))
    named_interface = chance.random() < 0.6 or used
    by_name = chance.random() < 0.4
    for host in lab.hosts:
        host.env |= {"RANK": str(host.number - 1), "WORLD_SIZE": str(len(lab.hosts)), "MASTER_PORT": str(29500 + seed)}
        host.env["MASTER_ADDR"] = "n1" if by_name and not used else lab.address(used, lab.hosts[0])
        if named_interface:
            host.env["GLOO_SOCKET_IFNAME"] = f"{lab.networks[used]}0"
            if chance.random() < 0.3:
                host.hosts_file = (
                    f"127.0.1.1 {host.name}\n{host.hosts_file}" if host.number > 1 or not by_name else host.hosts_file
                )
        if chance.random() < 0.3:
            host.ip("link", "add", "virbr0", "type", "bridge")
            host.ip("addr", "add", "192.168.122.1/24", "dev", "virbr0")
            host.ip("link", "set", "virbr0", "up")
        if chance.random() < 0.2:
            host.filter("tcp dport 22 accept", "tcp dport 23 drop")
    if chance.random() < 0.3:
        for host in lab.hosts:
            host.ip("link", "set", f"{lab.networks[used]}0", "mtu", "9000")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(50))
def test_no_finding_on_a_random_healthy_lab(seed: int) -> None:
    with healthy(seed) as lab:
        furnish(lab, seed)
        report = check(lab)
        assert not report["skipped"]
        assert not [(one["rule"], one["hosts"], one["summary"]) for one in report["findings"]]


@pytest.mark.slow
def test_verify_starts_a_real_group_names_where_it_stands_and_leaves_nothing() -> None:
    with Lab(3) as lab:
        standard(lab)
        words = ["--via", lab.via(), "--nodes", "3", "--dir", str(lab.folder / "meet"), "--format", "json"]
        done = paramedic("net", "verify", *words, seconds=150)
        said = json.loads(done.stdout)
        assert done.returncode == 0 and said["ok"], done.stderr
        assert all(one["large_right"] and len(one["pairs"]) == 2 for one in said["hosts"].values())
        lab.hosts[1].filter("tcp dport != 29500 tcp flags & (syn|ack) == syn drop")
        start = time.monotonic()
        done = paramedic("net", "verify", *words, "--seconds", "20", seconds=150)
        said = json.loads(done.stdout)
        assert done.returncode == 1 and not said["ok"] and time.monotonic() - start < 100
        assert any("stood in init" in one.get("error", "") or "error" in one for one in said["hosts"].values())
        for host in lab.hosts:
            assert not subprocess.run(
                ["ip", "netns", "pids", host.space], capture_output=True, text=True, check=True
            ).stdout.split()


def environment(name: str) -> Path:
    from paramedic.ward import environments

    return environments.build(name) / "bin"


@pytest.fixture
def misleading() -> Iterator[Lab]:
    """Hosts on which nothing is set and all names are the loopback: without a plan no group starts there."""
    with Lab(2) as lab:
        for host in lab.hosts:
            host.hosts_file = f"127.0.1.1 {host.name}\n{host.hosts_file}"
        yield lab


def planned(lab: Lab, format: str, *more: str) -> str:
    words = ["--via", lab.via(), "--nodes", str(len(lab.hosts)), "--dir", str(lab.folder / "meet"), "--format", format]
    done = paramedic("net", "plan", *words, "--script", str(GROUP), *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def trained(lab: Lab, commands: Sequence[str], tools: Path) -> list[str]:
    """Each host's own command, in a shell; what each said last."""
    path = f"{tools}:{os.environ['PATH']}"
    logs = [host.folder / "launched.log" for host in lab.hosts]
    started = [
        host.start("sh", "-c", command, log=log, env={"PATH": path, "DS_ACCELERATOR": "cpu", "GROUP_TIMEOUT": "60"})
        for host, log, command in zip(lab.hosts, logs, commands, strict=True)
    ]
    end_after(started, 200)
    return [
        next(
            (line for line in log.read_text("utf-8", "replace").split("\n") if "trained in" in line),
            log.read_text()[-800:],
        )
        for log in logs
    ]


@pytest.mark.slow
def test_the_planned_torchrun_commands_train(misleading: Lab) -> None:
    text = planned(misleading, "torchrun")
    said = trained(misleading, [line for line in text.split("\n") if line.startswith("env ")], environment("torch"))
    assert all("trained in" in line for line in said), said


@pytest.mark.slow
def test_the_planned_environment_file_trains(misleading: Lab) -> None:
    file = misleading.folder / "job.env"
    file.write_text(planned(misleading, "env"))
    commands = [f". {file}; RANK={rank} exec {sys.executable} {GROUP}" for rank in range(2)]
    said = trained(misleading, commands, environment("torch"))
    assert all("trained in" in line for line in said), said


@pytest.mark.slow
def test_the_planned_hostfile_trains_with_deepspeeds_launcher(misleading: Lab) -> None:
    """Without ssh, as DeepSpeed's launcher allows it: the same command on each host with its rank."""
    tools = environment("deepspeed")
    text = planned(misleading, "hostfile")
    file = misleading.folder / "hostfile"
    file.write_text("".join(f"{line}\n" for line in text.split("\n") if "slots=" in line))
    command = (
        next(line for line in text.split("\n") if line.startswith("# deepspeed "))
        .removeprefix("# ")
        .replace("FILE", str(file))
    )
    settings = " ".join(line.removeprefix("#   ") for line in text.split("\n") if line.startswith("#   "))
    first, rest = command.split(" ", 1)
    commands = [f"env {settings} {first} --no_ssh --node_rank {rank} {rest}" for rank in range(2)]
    said = trained(misleading, commands, tools)
    assert all("trained in" in line for line in said), said


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["MULTI_CPU", "MULTI_GPU"])
def test_the_planned_configuration_trains_with_accelerate(misleading: Lab, kind: str) -> None:
    """As planned for processors; and as planned for GPUs, where accelerate starts torchrun, though none is used here."""
    tools = environment("hf")
    text = planned(misleading, "accelerate")
    if kind == "MULTI_GPU":
        text = text.replace("MULTI_CPU", kind).replace("use_cpu: true", "use_cpu: false")
    file = misleading.folder / "accelerate.yaml"
    file.write_text(text)
    settings = [line.split("): ", 1)[1] for line in text.split("\n") if line.startswith("#   ")]
    commands = [
        f"env {own} accelerate launch --config_file {file} --machine_rank {rank} {GROUP}"
        for rank, own in enumerate(settings)
    ]
    said = trained(misleading, commands, tools)
    assert all("trained in" in line for line in said), said


@pytest.mark.slow
def test_without_the_plan_no_group_starts_there(misleading: Lab) -> None:
    assert not any(line.startswith("trained") for line in misleading.group(40, {"GROUP_TIMEOUT": "8"}))


def test_the_faults_are_at_least_24_of_the_known_32() -> None:
    assert len({one.number for one in FAULTS}) >= 24
