"""Many nodes: what must be equal and is not, with the minority named; what may differ is only noted."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from paramedic.detect.nodes import Node, nodes, on_facts
from paramedic.knowledge import Rule
from paramedic.model import Fact, Finding, Run, Severity

_PACKAGES = (
    "torch", "torchvision", "numpy", "triton", "deepspeed", "megatron-core", "transformer-engine", "colossalai",
    "flash-attn", "xformers", "accelerate", "transformers", "lightning", "pytorch-lightning", "horovod", "ray",
    "datasets", "peft", "trl", "apex", "safetensors", "tokenizers",
)  # fmt: skip
MUST = (
    "python version", "torch version", "torch cuda", "torch git", "nccl loaded", "gpu count", "gpu 0 name",
    *(f"package {name}" for name in _PACKAGES),
)  # fmt: skip
"""Every rank runs one program against one set of libraries, on devices of one kind."""
MAY = ("gpu driver", "host kernel", "host glibc", "host cores", "host memory", "disk /dev/shm size", "limit open files")
_LOCAL = (
    "SLURM_", "OMPI_", "PMI_", "RANK", "LOCAL_RANK", "NODE_RANK", "GROUP_RANK", "CUDA_VISIBLE_DEVICES", "HOST",
    "TMPDIR", "SOCKET_IFNAME", "NCCL_IB_HCA", "TORCHELASTIC_", "MASTER_", "TF_CONFIG",
)  # fmt: skip
"""Variables that a launcher or an interface's name makes different on each node."""
_SKEW_SECONDS = 5.0


def must(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    there = nodes(run)
    for name in MUST if len(there) > 1 else ():
        severity: Severity | None = "warning" if name in ("gpu count", "gpu 0 name") else None
        yield from _minority(there, name, rule, severity)


def variables(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Settings of communication and computation that some nodes have and others have not, or have otherwise."""
    there = nodes(run)
    names = dict.fromkeys(name for node in there for name, _ in node.below("variable"))
    for name in names if len(there) > 1 else ():
        if name.startswith(("NCCL_", "TORCH_", "GLOO_", "CUDA_", "PYTORCH_", "NVTE_", "DS_", "UCX_")) and not any(
            word in name for word in _LOCAL
        ):
            yield from _minority(there, f"variable {name}", rule, None)


def may(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    there = nodes(run)
    for name in MAY if len(there) > 1 else ():
        yield from _minority(there, name, rule, None)


def _minority(there: Sequence[Node], name: str, rule: Rule, severity: Severity | None) -> Iterator[Finding]:
    """One finding for each value that fewer nodes have than the commonest one."""
    groups: dict[str, list[Node]] = defaultdict(list)
    for node in there:
        groups[_shown(node.facts.get(name))].append(node)
    if len(groups) < 2:
        return
    common, most = max(groups.items(), key=lambda item: (len(item[1]), item[0] != "not there"))
    for value, few in groups.items():
        if value == common:
            continue
        facts = [node.facts.get(name) or Fact(name, "not there", "probe", host=node.host) for node in few]
        fields = {
            "what": name.removeprefix("package ").removeprefix("variable "), "value": value, "common": common,
            "nodes": _listed([node.host for node in few]), "count": str(len(most)), "all": str(len(there)),
        }  # fmt: skip
        yield on_facts(rule, facts, fields, severity=severity)


def _shown(fact: Fact | None) -> str:
    return "not there" if fact is None else str(fact.value)


def _listed(hosts: Sequence[str]) -> str:
    return ", ".join(hosts[:8]) + (f" and {len(hosts) - 8} more" if len(hosts) > 8 else "")


def clock(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A node's clock outside of the time in which it was asked: it is off by as much at least."""
    for node in nodes(run):
        own, start, end = (node.number(name) for name in ("host time", "asked from", "asked until"))
        if own is None or start is None or end is None:
            continue
        off = max(start - own, own - end, 0.0)
        if off > _SKEW_SECONDS:
            way = "behind" if own < start else "ahead"
            yield on_facts(rule, [node.facts["host time"]], {"node": node.host, "seconds": f"{off:.0f}", "way": way})
