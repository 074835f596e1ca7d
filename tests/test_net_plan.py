"""The synthesis: right by brute force on small worlds, conflicts truly minimal, and what each launcher gets."""

from __future__ import annotations

import itertools
import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.network.outputs import FORMATS, Job, document
from paramedic.network.plan import Conflict, Plan, plan
from paramedic.network.world import Endpoint, Obstacle, World, id_of, world
from test_net import Captured, a_world, interface, run_of

pytestmark = pytest.mark.usefixtures("rules_loaded_once")
pytest.importorskip("ortools", reason="OR-tools is not installed")
NETWORKS = {"10.1.0.0/24": 10_000, "10.2.0.0/24": 1_000, "fd00::/64": 10_000}
PORTS = (29500, 29501)


# -- small worlds, and all their choices ---------------------------------------------------------------------------


@st.composite
def worlds(draw: st.DrawFn) -> World:
    hosts = tuple(f"n{i}" for i in range(1, draw(st.integers(1, 3)) + 1))
    endpoints = {}
    for number, host in enumerate(hosts, 1):
        on = draw(st.lists(st.sampled_from(sorted(NETWORKS)), min_size=1, max_size=3, unique=True))
        endpoints[host] = tuple(
            Endpoint(host, f"if{place}", net.split("0/")[0].rstrip(":") + (f"::{number}" if ":" in net else str(number)), net, NETWORKS[net])
            for place, net in enumerate(on)
        )  # fmt: skip
    every = [one for group in endpoints.values() for one in group]
    planes = draw(st.sampled_from([("gloo",), ("gloo", "nccl")]))
    obstacles: list[Obstacle] = (
        [Obstacle("apart", "apart", "", True, "10.1.0.0/24", "10.2.0.0/24")] if draw(st.booleans()) else []
    )
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["unusable", "cut", "busy", "master", "port", "family", "keep"]))
        a, b, host = draw(st.sampled_from(every)), draw(st.sampled_from(every)), draw(st.sampled_from(hosts))
        background = kind == "unusable" and draw(st.booleans())
        made = {
            "unusable": Obstacle("unusable", f"{id_of(a)} is unusable", "", background, id_of(a)),
            "cut": Obstacle("cut", f"{id_of(a)} {id_of(b)} cut", "", False, id_of(a), id_of(b)),
            "busy": Obstacle("busy", f"{host} busy", "", host=host, port=draw(st.sampled_from(PORTS))),
            "master": Obstacle("master", f"master {host}", "", host=host),
            "port": Obstacle("port", "port", "", port=draw(st.sampled_from(PORTS))),
            "family": Obstacle("family", "family", "", port=draw(st.sampled_from([4, 6]))),
            "keep": Obstacle("keep", f"keep on {host}", "", a=draw(st.sampled_from(planes)), b=draw(st.sampled_from(["if0", "if1", "if9"])), host=host),
        }  # fmt: skip
        if kind != "cut" or a.host != b.host:
            obstacles.append(made[kind])
    networks_used = {one.network for one in every}
    obstacles = [one for one in obstacles if one.kind != "apart" or {one.a, one.b} <= networks_used]
    set_now = {("gloo", hosts[0]): "if1"} if draw(st.booleans()) else {}
    return World(hosts, endpoints, tuple(obstacles), planes, set_now, hosts[0], PORTS[0], PORTS)


def all_plans(one: World) -> Iterator[Plan]:
    choices = [list(itertools.product(*(one.endpoints[host] for host in one.hosts))) for _ in one.planes]
    for master, port, chosen in itertools.product(one.hosts, one.ports, itertools.product(*choices)):
        if len({end.family for group in chosen for end in group}) == 1:
            planes = {
                plane: dict(zip(one.hosts, group, strict=True)) for plane, group in zip(one.planes, chosen, strict=True)
            }
            yield Plan(planes, master, port, one.hosts)


def keeps(made: Plan, obstacle: Obstacle) -> bool:
    """Written anew, plane by plane, without a look at how the solver is told."""
    for plane, chosen in made.endpoints.items():
        ids, networks = {id_of(end) for end in chosen.values()}, {end.network for end in chosen.values()}
        if obstacle.kind in ("unusable", "cut") and {obstacle.a, obstacle.b} - {""} <= ids:
            return False
        if obstacle.kind == "apart" and {obstacle.a, obstacle.b} <= networks:
            return False
        if obstacle.kind == "family" and any(end.family != obstacle.port for end in chosen.values()):
            return False
        if obstacle.kind == "keep" and plane == obstacle.a and chosen[obstacle.host].interface != obstacle.b:
            return False
    if obstacle.kind == "busy":
        return (made.master, made.port) != (obstacle.host, obstacle.port)
    if obstacle.kind == "master":
        return made.master == obstacle.host
    return made.port == obstacle.port if obstacle.kind == "port" else True


def possible(one: World, obstacles: Sequence[Obstacle]) -> bool:
    return any(all(keeps(made, each) for each in obstacles) for made in all_plans(one))


def cost(one: World, made: Plan) -> tuple[int, int]:
    """What matters most: what is set is kept, the master stays; then speed."""
    moved = sum(
        one.set_now.get((plane, host), end.interface) != end.interface
        for plane, chosen in made.endpoints.items()
        for host, end in chosen.items()
    )
    speeds = sorted({end.speed for group in one.endpoints.values() for end in group}, reverse=True)
    slow = sum(speeds.index(end.speed) for chosen in made.endpoints.values() for end in chosen.values())
    return 10_000 * moved + 4_000 * (made.master != one.master), slow


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(worlds())
def test_a_plan_is_right_by_brute_force_and_a_conflict_is_minimal(one: World) -> None:
    answer = plan(one)
    if isinstance(answer, Plan):
        assert all(keeps(answer, each) for each in one.obstacles)
        assert cost(one, answer) == min(
            cost(one, made) for made in all_plans(one) if all(keeps(made, each) for each in one.obstacles)
        )
        return
    background = [each for each in one.obstacles if each.background]
    assert not possible(one, one.obstacles)
    fixed = background if possible(one, background) else []
    assert not possible(one, [*fixed, *answer.facts])
    for left_out in range(len(answer.facts)):
        fewer = [each for place, each in enumerate(answer.facts) if place != left_out]
        assert possible(one, [*fixed, *fewer]), "a fact of the conflict could be spared"
    disputable = [each for each in one.obstacles if each not in fixed]
    if not possible(one, fixed):
        return  # nothing that was probed is to blame: the hosts have no family in common
    assert possible(one, [*fixed, *(each for each in disputable if each not in answer.cure)])
    fewest = min(
        size for size in range(len(disputable) + 1) for gone in itertools.combinations(range(len(disputable)), size)
        if possible(one, [*fixed, *(each for place, each in enumerate(disputable) if place not in gone)])
    )  # fmt: skip
    assert len(answer.cure) <= fewest + (len(disputable) - len(set(disputable)))


# -- from facts ----------------------------------------------------------------------------------------------------


def two_networks(hosts: int = 3) -> dict[str, Any]:
    made = a_world(hosts)
    for number, facts in enumerate(made["nodes"].values(), 1):
        facts["interface mgmt0"] = interface(f"10.88.0.{number}/24", speed=1_000)
        facts["interface docker0"] = interface("172.17.0.1/16")
    return made


def cut(start: int, end: int, network: int = 77) -> dict[str, Any]:
    name = {77: "data0", 88: "mgmt0"}[network]
    return {
        "from": f"n{start}",
        "to": f"n{end}",
        "interface": name,
        "address": f"10.{network}.0.{end}",
        "port": 40000,
        "role": "data",
        "result": "filtered",
    }


def test_the_fastest_network_that_all_share_is_chosen() -> None:
    made = plan(world(run_of(two_networks())))
    assert isinstance(made, Plan)
    assert {end.interface for end in made.endpoints["gloo"].values()} == {"data0"} and made.address == "10.77.0.1"


def test_a_cut_moves_all_to_the_slower_network() -> None:
    facts = two_networks() | {"pairs": [cut(1, 3)]}
    made = plan(world(run_of(facts)))
    assert isinstance(made, Plan) and {end.interface for end in made.endpoints["gloo"].values()} == {"mgmt0"}


def test_what_is_set_is_kept_though_another_is_faster() -> None:
    facts = two_networks()
    for node in facts["nodes"].values():
        node["env GLOO_SOCKET_IFNAME"] = "mgmt0"
    made = plan(world(run_of(facts)))
    assert isinstance(made, Plan) and {end.interface for end in made.endpoints["gloo"].values()} == {"mgmt0"}


def test_a_conflict_names_only_what_can_be_changed() -> None:
    facts = two_networks(4) | {"pairs": [cut(1, 3), cut(2, 4, 88)]}
    answer = plan(world(run_of(facts)))
    assert isinstance(answer, Conflict)
    assert sorted(one.text for one in answer.facts) == ["n1 – n3 on data0 is filtered", "n2 – n4 on mgmt0 is filtered"]
    assert len(answer.cure) == 1


def test_a_pinned_port_that_is_taken_and_a_pinned_master_conflict() -> None:
    facts = two_networks(2)
    facts["nodes"]["n1"]["listening"] = [29500]
    answer = plan(world(run_of(facts), ["port=29500", "master=n1"]))
    assert isinstance(answer, Conflict)
    assert sorted(one.text for one in answer.facts) == [
        "port 29500 is taken on n1",
        "you pinned master=n1",
        "you pinned port=29500",
    ]
    assert [one.kind for one in answer.cure] in (["master"], ["port"])
    assert isinstance(plan(world(run_of(facts), ["port=29500"])), Plan)


@pytest.mark.parametrize(
    "pin",
    ["", "port", "port=x", "port=99999999", "master=nobody", "family=5", "speed=1", "port=1@n9", "GLOO_SOCKET_IFNAME="],
)
def test_a_pin_that_means_nothing_is_refused(pin: str) -> None:
    with pytest.raises(ParamedicError, match="--pin"):
        world(run_of(two_networks(2)), [pin])


def test_a_host_without_any_network_is_the_conflict() -> None:
    facts = two_networks(2)
    facts["nodes"]["n2"] = {"hostname": "n2", "interface lo": {"up": True, "loopback": True, "addresses": []}}
    answer = plan(world(run_of(facts)))
    assert isinstance(answer, Conflict) and "n2 has no interface" in answer.facts[0].text


# -- in every launcher's words ---------------------------------------------------------------------------------------


@pytest.fixture
def made() -> Plan:
    facts = two_networks()
    facts["nodes"]["n2"]["interface ens7"] = facts["nodes"]["n2"].pop("interface data0")
    answer = plan(world(run_of(facts)))
    assert isinstance(answer, Plan)
    return answer


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_every_format_names_master_port_and_interfaces(format: str, made: Plan) -> None:
    text = FORMATS[format](made, Job(2, "my train.py"))
    assert "10.77.0.1" in text and "29500" in text and "ens7" in text and ("data0" in text)
    if format == "accelerate":
        said = YAML(typ="safe").load(text)
        assert said["num_machines"] == 3 and said["num_processes"] == 6 and said["main_process_ip"] == "10.77.0.1"
    if format == "kubernetes":
        said = YAML(typ="safe").load(text)
        assert {"name": "MASTER_ADDR", "value": "10.77.0.1"} in said["env"]
    if format == "torchrun":
        words = [shlex.split(line) for line in text.split("\n") if line and not line.startswith("#")]
        assert [word[-1] for word in words] == ["my train.py"] * 3
        assert ["--node-rank=1" in word for word in words] == [False, True, False]


def test_the_command_writes_each_format_and_a_conflict_has_exit_code_one(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "job.net.json"
    file.write_text(json.dumps(two_networks()))
    assert main(["net", "plan", str(file)]) == 0
    assert "export GLOO_SOCKET_IFNAME=data0" in capsys.readouterr().out
    assert main(["net", "plan", str(file), "--format", "json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["hosts"]["n2"]["env"]["GLOO_SOCKET_IFNAME"] == "data0" and said["order"][0] == "n1"
    assert (
        main(["net", "plan", str(file), "--pin", "GLOO_SOCKET_IFNAME=mgmt0@n1", "--pin", "GLOO_SOCKET_IFNAME=data0@n2"])
        == 1
    )
    out = capsys.readouterr().out
    assert "none of them is to spare" in out and "drop --pin" in out and "probe again" in out
    assert main(["net", "plan", str(file), "--pin", "port=0"]) == 2


def test_rdma_ports_and_the_wait_for_late_hosts_are_planned() -> None:
    facts = two_networks(2)
    for number, node in enumerate(facts["nodes"].values()):
        node["rdma mlx5_0/1"] = {"state": "ACTIVE", "gbps": 400.0, "link_layer": "InfiniBand"}
        node["rdma mlx5_9/1"] = {"state": "ACTIVE", "gbps": 25.0, "link_layer": "Ethernet"}
        node["gpus"] = [{"pci": "0000:17:00.0", "numa": 0}]
        node["started"] = 1000.0 + 400 * number
    from paramedic.detect.topology import nodes

    run = run_of(facts)
    answer = plan(world(run))
    assert isinstance(answer, Plan) and set(answer.endpoints) == {"gloo", "nccl"}
    said = document(answer, Job(8, "t.py", nodes(run)))
    assert said["hosts"]["n1"]["env"]["NCCL_IB_HCA"] == "=mlx5_0:1" and said["join_timeout_seconds"] == 1200
