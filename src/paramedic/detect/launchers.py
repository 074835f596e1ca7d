"""Launch commands that cannot meet, or that start other ranks than was meant."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.setup import Hit, Part, Setup
from paramedic.model import Fact


def _is_here(value: object) -> bool:
    return (
        isinstance(value, str)
        and re.match(r"(?:localhost|127\.0\.0\.\d+|\[?::1\]?|0\.0\.0\.0)(?::|$)", value) is not None
    )


def local_master(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        nodes = part.number_of("nnodes") or part.number_of("num_machines") or part.number_of("num_nodes")
        for key in ("master_addr", "rdzv_endpoint", "main_process_ip"):
            if nodes and nodes > 1 and _is_here(part.get(key)):
                yield Hit(
                    part.quoted(key, "nnodes", "num_machines", "num_nodes"), {"address": part.get(key), "nodes": nodes}
                )


def standalone(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        nodes = part.number_of("nnodes")
        if part.get("standalone") is True and nodes and nodes > 1:
            yield Hit(part.quoted("standalone", "nnodes"), {"nodes": nodes})


def endpoint_ignored(setup: Setup) -> Iterator[Hit]:
    """With a c10d rendezvous only `--rdzv-endpoint` counts."""
    for part in setup.of("launch"):
        if (
            part.get("launcher") == "torchrun"
            and part.get("rdzv_backend") in ("c10d", "etcd-v2")
            and "?" not in part.facts
        ):
            nodes = part.number_of("nnodes")
            if part.has("master_addr") and not part.has("rdzv_endpoint") and (nodes is None or nodes > 1):
                yield Hit(part.quoted("master_addr", "rdzv_backend"), {"section": part.number})


def node_rank(setup: Setup) -> Iterator[Hit]:
    pairs = (("node_rank", "nnodes"), ("machine_rank", "num_machines"))
    for part in setup.of("launch"):
        for rank_key, count_key in pairs:
            rank, count = part.number_of(rank_key), part.number_of(count_key)
            if rank is not None and count is not None and rank >= count > 0:
                yield Hit(part.quoted(rank_key, count_key), {"given": rank, "nodes": count})


def port(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch", "environment", "accelerate"):
        for key in ("master_port", "main_process_port", "MASTER_PORT"):
            port = part.number_of(key)
            if port is not None and (port > 65535 or 0 < port < 1024 or port < 0):
                yield Hit(part.quoted(key), {"port": port}, None if port > 65535 or port < 0 else "warning")


def missing_rendezvous(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        nodes = part.number_of("nnodes")
        if part.get("launcher") != "torchrun" or not nodes or nodes < 2 or "?" in part.facts:
            continue
        if not any(part.has(key) for key in ("master_addr", "rdzv_endpoint", "standalone", "rdzv_backend")):
            yield Hit(part.quoted("nnodes"), {"nodes": nodes})


def visible_devices(setup: Setup) -> Iterator[Hit]:
    """More ranks than the devices that the same script lets them see."""
    for part in setup.of("launch"):
        ranks = part.number_of("nproc_per_node") or part.number_of("num_gpus")
        variables = [p for p in setup.of("environment") if p.source == part.source and p.has("CUDA_VISIBLE_DEVICES")]
        line = part.facts["launcher"].line or 0
        before = [p.facts["CUDA_VISIBLE_DEVICES"] for p in variables]
        before = [fact for fact in before if (fact.line or 0) <= line]
        if not ranks or not before or _set_again(setup, part.source):
            continue
        seen = _devices(before[-1])
        if seen is not None and 0 < seen < ranks:
            yield Hit((*part.quoted("nproc_per_node", "num_gpus"), before[-1]), {"ranks": ranks, "seen": seen})


def _set_again(setup: Setup, source: str) -> bool:
    found = [f for f in setup.run.facts if f.source == source and f.name.endswith(" CUDA_VISIBLE_DEVICES")]
    return len(found) > 1


def _devices(fact: Fact) -> int | None:
    value = fact.value
    if isinstance(value, int) and not isinstance(value, bool):
        return 1 if value >= 0 else None
    return len(value.split(",")) if isinstance(value, str) and re.fullmatch(r"\d+(?:,\d+)*", value) else None


def nested(setup: Setup) -> Iterator[Hit]:
    """`srun` starts several launchers on a node, and each of them starts several ranks."""
    for part in setup.of("launch"):
        if part.get("inside") not in ("srun", "mpirun") or part.get("launcher") not in ("torchrun", "accelerate"):
            continue
        outer = next(
            (
                p
                for p in setup.of("launch-srun", "launch-mpirun")
                if p.source == part.source and p.number == part.number - 1
            ),
            None,
        )
        batch = next((p for p in setup.of("slurm") if p.source == part.source), None)
        tasks = outer.number_of("ntasks_per_node") if outer else None
        where: Part | None = outer
        if (
            tasks is None
            and batch is not None
            and outer is not None
            and not outer.has("ntasks")
            and not outer.has("nodes")
        ):
            tasks, where = batch.number_of("ntasks_per_node"), batch
        ranks = part.number_of("nproc_per_node")
        if tasks and tasks > 1 and ranks and ranks > 1 and where is not None:
            yield Hit(
                (*part.quoted("nproc_per_node"), *where.quoted("ntasks_per_node")), {"tasks": tasks, "ranks": ranks}
            )


def slots(setup: Setup) -> Iterator[Hit]:
    """More processes than slots in the list of hosts."""
    for part in setup.of("launch", "launch-mpirun"):
        count = part.number_of("num_proc") or part.number_of("n")
        hosts = part.get("hosts") or part.get("host")
        if not count or not isinstance(hosts, str) or part.has("oversubscribe"):
            continue
        slots = re.findall(r"[\w.-]+:(\d+)", hosts)
        if len(slots) == len(hosts.split(",")) and sum(map(int, slots)) < count:
            yield Hit(part.quoted("num_proc", "n", "hosts", "host"), {"count": count, "slots": sum(map(int, slots))})


def accelerate_launch_kinds(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        if part.get("launcher") == "accelerate":
            chosen = [key for key in ("cpu", "multi_gpu", "tpu", "use_deepspeed", "use_fsdp") if part.get(key) is True]
            if len(chosen) > 1:
                yield Hit(part.quoted(*chosen), {"chosen": ", ".join(f"--{key}" for key in chosen)})


def deepspeed_launch_filters(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("launch"):
        if part.get("launcher") == "deepspeed":
            filters = [key for key in ("include", "exclude") if part.has(key)]
            counts = [key for key in ("num_nodes", "num_gpus") if part.has(key)]
            if filters and (counts or len(filters) > 1):
                both = (filters + counts)[:2]
                yield Hit(part.quoted(*both), {"one": f"--{both[0]}", "other": f"--{both[1]}"})
