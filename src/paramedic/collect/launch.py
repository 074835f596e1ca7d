"""A launch command, read and never run: how many ranks it will start, and in which parallel degrees."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from paramedic.model import Fact

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
        if starter in names and key in given:
            found.append(Fact("wanted ranks", given[key] * given.get(nodes, 1), "launch command"))
            break
    return found


def _options(command: Sequence[str]) -> Mapping[str, int]:
    """`--key 4`, `--key=4`, `-n 4`; underscores and hyphens are one."""
    given: dict[str, int] = {}
    for word, after in zip(command, [*command[1:], ""], strict=False):
        if hit := re.fullmatch(r"--?([A-Za-z][\w-]*)(?:=(\d{1,7}))?", word):
            text = hit[2] or (after if re.fullmatch(r"\d{1,7}", after) else "")
            if text:
                given.setdefault(hit[1].replace("_", "-"), int(text))
    return given
