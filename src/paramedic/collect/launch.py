"""What a launch command says about the job's shape. It is read, never started."""

from __future__ import annotations

import re
from collections.abc import Sequence

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
