"""The driver of an attempt on a Ray cluster: reserves the nodes, starts one of our nodes in each, and says who is lost.

python -m paramedic.submit.on_ray FOLDER
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from importlib import import_module
from typing import Any

from paramedic.submit.code import ours

LOST, UNPLACED = "paramedic: lost node ", "paramedic: not granted: "
_REFUSED = 75
_OTHERS = 15.0
"""Seconds that the other nodes get to notice by themselves."""


class Node:
    """An actor: one node of the attempt. When it dies, its processes get SIGTERM from the kernel."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def where(self) -> tuple[str, str, int]:
        """Its id, its address, and a port that is free there."""
        ray = import_module("ray")
        with socket.create_server(("", 0)) as server:
            port = int(server.getsockname()[1])
        return ray.get_runtime_context().get_node_id(), ray.util.get_node_ip_address(), port

    def run(self, folder: str, number: int, head: str, port: int, name: str) -> int:
        meet = {"PARAMEDIC_NODE": str(number), "PARAMEDIC_HEAD": head, "PARAMEDIC_PORT": str(port)}
        environment = {**os.environ, **meet, "PARAMEDIC_WITH_PARENT": "1", "PARAMEDIC_HOST": name}
        self._process = subprocess.Popen(ours("node", folder), env=environment, stdin=subprocess.DEVNULL)
        return self._process.wait()


def main(folder: str) -> int:
    ray = import_module("ray")
    with open(os.path.join(folder, "placement.json"), encoding="utf-8") as file:
        wanted = json.load(file)
    ray.init(address="auto", log_to_driver=True, logging_level="warning")
    group = _reserve(ray, wanted)
    if group is None:
        return _REFUSED
    nodes = _start(ray, group, wanted)
    places = ray.get([node.where.remote() for node in nodes])
    with open(os.path.join(folder, "placed"), "w", encoding="utf-8") as file:
        json.dump([place[0] for place in places], file)
    _, head, port = places[0]
    runs = {
        node.run.remote(folder, number, head, port, place[0]): place[0]
        for number, (node, place) in enumerate(zip(nodes, places, strict=True))
    }
    return _await(ray, runs, nodes)


def _reserve(ray: Any, wanted: dict[str, Any]) -> Any:
    """Excluded nodes are left out by a label that each node has by itself."""
    placement = import_module("ray.util.placement_group")
    more: dict[str, Any] = {}
    if wanted["exclude"]:
        inside = [{"ray.io/node-id": f"!in({','.join(wanted['exclude'])})"}]
        more["bundle_label_selector"] = inside * len(wanted["bundles"])
    group = placement.placement_group(wanted["bundles"], strategy=wanted["strategy"], **more)
    if group.wait(wanted["patience_s"]):
        return group
    there = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    _say(f"{UNPLACED}{wanted['bundles']} within {wanted['patience_s']:.0f} s; the cluster has {there}")
    return None


def _start(ray: Any, group: Any, wanted: dict[str, Any]) -> list[Any]:
    strategies = import_module("ray.util.scheduling_strategies")
    nodes = []
    for index, bundle in enumerate(wanted["bundles"]):
        where = strategies.PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        options = {"num_cpus": bundle["CPU"], "num_gpus": bundle.get("GPU", 0), "scheduling_strategy": where}
        nodes.append(ray.remote(Node).options(max_restarts=0, **options).remote())
    return nodes


def _await(ray: Any, runs: dict[Any, str], nodes: list[Any]) -> int:
    """The first that fails decides; the others are ended."""
    waiting = list(runs)
    while waiting:
        done, waiting = ray.wait(waiting, num_returns=1)
        try:
            code = ray.get(done[0])
        except ray.exceptions.RayError as error:
            alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
            _say(f"{LOST}{runs[done[0]]}" if runs[done[0]] not in alive else f"paramedic: an actor died: {error}")
            code = 1
        if code:
            ray.wait(waiting, num_returns=len(waiting), timeout=_OTHERS) if waiting else None
            for node in nodes:
                ray.kill(node)
            return int(code)
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - into the job's log


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
