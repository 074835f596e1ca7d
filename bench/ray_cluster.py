"""A Ray cluster of several nodes on this machine, for tests and the fault matrix: python ray_cluster.py FOLDER NODES

FOLDER/address appears when it is up; FOLDER/remove-NODEID takes a node away; it ends when FOLDER/stop is there, or when
whoever started it is gone.
"""

import json
import os
import sys
import time
from pathlib import Path

for name, value in (("RAY_raylet_start_wait_time_s", "300"), ("RAY_agent_register_timeout_ms", "300000")):
    os.environ.setdefault(name, value)  # on a busy machine; read when Ray is imported
from ray.cluster_utils import Cluster  # type: ignore[import-not-found]  # noqa: E402


def main(folder: Path, nodes: int) -> None:
    parent = os.getppid()
    head = {"num_cpus": 0, "include_dashboard": True, "dashboard_port": int(os.environ["RAY_DASHBOARD_PORT"])}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    members = {node.node_id: node for node in (cluster.add_node(num_cpus=2) for _ in range(nodes))}
    cluster.wait_for_nodes()
    part = folder / "address.part"
    part.write_text(json.dumps({"address": f"http://{cluster.head_node.webui_url}", "nodes": list(members)}))
    part.rename(folder / "address")
    while not (folder / "stop").exists() and os.getppid() == parent:
        for file in folder.glob("remove-*"):
            node = members.pop(file.name.removeprefix("remove-"), None)
            file.unlink()
            if node is not None:
                cluster.remove_node(node, allow_graceful=False)
                members |= {one.node_id: one for one in [cluster.add_node(num_cpus=2)]}
        time.sleep(0.2)
    cluster.shutdown()


main(Path(sys.argv[1]), int(sys.argv[2]))
