"""What a launch command says about the job's shape. It is read, never started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from paramedic.model import Fact

_NAMES = {
    "nnodes": "nnodes", "num_nodes": "nnodes", "num_machines": "nnodes",
    "nproc_per_node": "nproc_per_node", "num_gpus": "nproc_per_node",
    "node_rank": "node_rank", "machine_rank": "node_rank",
    "rdzv_id": "rdzv_id", "rdzv_backend": "rdzv_backend", "rdzv_endpoint": "rdzv_endpoint", "rdzv_conf": "rdzv_conf",
    "master_addr": "master_addr", "main_process_ip": "master_addr",
    "master_port": "master_port", "main_process_port": "master_port", "num_processes": "num_processes",
}  # fmt: skip
_OPTION = re.compile(r"--?([A-Za-z][\w-]{1,40})(?:=(.*))?", re.S)
_MOST = 400


def launch_arguments(command: Sequence[str]) -> dict[str, str]:
    """Options of torchrun, accelerate and deepspeed, up to the script: what follows is the program's own."""
    found: dict[str, str] = {}
    words = iter(command)
    for word in words:
        if word.endswith(".py"):
            break
        if (option := _OPTION.fullmatch(word)) is None:
            continue
        name = _NAMES.get(option.group(1).replace("-", "_"))
        if name:
            value = option.group(2) if option.group(2) is not None else next(words, "")
            found[name] = value[:_MOST]
    return found


_DEGREES = {
    "tensor-model-parallel-size": "tensor parallel",
    "pipeline-model-parallel-size": "pipeline parallel",
}
_PROCESSES = {
    "torchrun": ("nproc-per-node", "nnodes"),
    "torch.distributed.run": ("nproc-per-node", "nnodes"),
    "torch.distributed.launch": ("nproc-per-node", "nnodes"),
    "deepspeed": ("num-gpus", "num-nodes"),
    "accelerate": ("num-processes", ""),
    "accelerate.commands.launch": ("num-processes", ""),
    "mpirun": ("np", ""),
    "mpiexec": ("n", ""),
    "horovodrun": ("np", ""),
    "srun": ("ntasks", ""),
}
_SHORT = {"ntasks": "n"}


def wanted(command: Sequence[str]) -> list[Fact]:
    """Facts `wanted ranks`, `wanted tensor parallel`, …; what the command leaves to its surroundings is not guessed."""
    given = _options(command)
    found = [Fact(f"wanted {name}", given[key], "launch command") for key, name in _DEGREES.items() if key in given]
    names = {os.path.basename(word) for word in command}
    for starter, (each, nodes) in _PROCESSES.items():
        key = each if each in given else _SHORT.get(each, each)
        if starter in names and key in given and (nodes in given or not _is_given(nodes, command)):
            found.append(Fact("wanted ranks", given[key] * given.get(nodes, 1), "launch command"))
            break
    return found


def _is_given(name: str, command: Sequence[str]) -> bool:
    """Though its value may be none that we understand: `--nnodes 1:4`."""
    return bool(name) and any(word.replace("_", "-").partition("=")[0].lstrip("-") == name for word in command)


def _options(command: Sequence[str]) -> Mapping[str, int]:
    """`--key 4`, `--key=4`, `-n 4`; underscores and hyphens are one."""
    given: dict[str, int] = {}
    for word, after in zip(command, [*command[1:], ""], strict=False):
        if hit := re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(\d{1,7}))?", word):
            text = hit[2] or (after if re.fullmatch(r"\d{1,7}", after) else "")
            if text:
                given.setdefault(hit[1].replace("_", "-"), int(text))
    return given
