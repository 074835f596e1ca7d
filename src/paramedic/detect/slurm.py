"""Slurm's request against itself and against what the script starts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from paramedic.detect.known_keys import (
    SBATCH,
)
from paramedic.detect.setup import Hit, Part, Setup


def option(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        for name, fact in part.facts.items():
            if len(name) > 1 and name not in SBATCH and name != "after_commands":
                if near := difflib.get_close_matches(name, sorted(SBATCH), 1, 0.85):
                    written, better = name.replace("_", "-"), near[0].replace("_", "-")
                    yield Hit((fact,), {"name": written, "near": better, "key": name, "section": part.number})


def late(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        if part.has("after_commands"):
            yield Hit(part.quoted("after_commands"), {"option": part.get("after_commands")})


def tasks(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        total, each, nodes = (part.number_of(key) for key in ("ntasks", "ntasks_per_node", "nodes"))
        if total and each and nodes and total > each * nodes:
            yield Hit(part.quoted("ntasks", "ntasks_per_node", "nodes"), {"total": total, "each": each, "nodes": nodes})


def gpus_per_node(part: Part) -> int | None:
    for key in ("gpus_per_node", "gres"):
        value = part.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and (found := re.fullmatch(r"(?:gpu:)?(?:[\w.-]+:)?(\d{1,3})", value)):
            return int(found[1])
    return None


def cores(setup: Setup) -> Iterator[Hit]:
    """One task a node and no word on cores: the launcher and all its ranks share a single core."""
    asked = ("cpus_per_task", "cpus_per_gpu", "exclusive", "mincpus", "cores_per_socket", "threads_per_core", "ntasks")
    for part in setup.of("slurm"):
        gpus = gpus_per_node(part)
        if gpus and gpus > 1 and part.number_of("ntasks_per_node") == 1 and not any(part.has(key) for key in asked):
            yield Hit(part.quoted("ntasks_per_node", "gres", "gpus_per_node"), {"gpus": gpus, "section": part.number})


def not_on_all_nodes(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        nodes = part.number_of("nodes")
        launches = [p for p in setup.of("launch") if p.source == part.source and p.get("launcher") == "torchrun"]
        spread = any(p.source == part.source for p in setup.of("launch-srun", "launch-mpirun"))
        if nodes and nodes > 1 and launches and not spread:
            alone = next((p for p in launches if not p.has("inside") and p.has("nnodes")), None)
            if alone is not None:
                yield Hit((*alone.quoted("launcher"), *part.quoted("nodes")), {"nodes": nodes})


def expanded_too_early(setup: Setup) -> Iterator[Hit]:
    """`srun torchrun --node_rank=$SLURM_NODEID`: the batch script fills it in, on the first node: 0 everywhere."""
    for part in setup.of("launch"):
        for key in ("node_rank", "machine_rank"):
            text = part.get(f"{key}:text")
            if (
                part.get("inside") == "srun"
                and isinstance(text, str)
                and re.search(r"\$\{?SLURM_(?:NODEID|PROCID)\b", text)
            ):
                yield Hit(part.quoted(key), {"text": text})


def gpus(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("slurm"):
        gpus = gpus_per_node(part)
        for launch in setup.of("launch"):
            ranks = launch.number_of("nproc_per_node") or launch.number_of("num_gpus")
            if launch.source == part.source and gpus is not None and ranks and ranks > gpus:
                quoted = (*launch.quoted("nproc_per_node", "num_gpus"), *part.quoted("gres", "gpus_per_node"))
                yield Hit(quoted, {"ranks": ranks, "gpus": gpus})
