"""What decides about bits besides the program: releases, threads, processor, flags of determinism, environment."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

VARIABLES = (
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK",
    "ROLE_WORLD_SIZE", "ROLE_NAME", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG", "PYTHONHASHSEED",
    "ATEN_CPU_CAPABILITY", "NCCL_ALGO", "NCCL_PROTO", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID",
    "SLURM_NTASKS", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE", "PMI_RANK",
    "PMI_SIZE",
)  # fmt: skip
"""Kept in a recording and set again for its replay; no others, for a recording may be a stranger's."""


def environment() -> dict[str, Any]:
    torch = sys.modules["torch"]
    found: dict[str, Any] = {
        "torch": str(torch.__version__),
        "python": sys.version.split()[0],
        "machine": platform.machine(),
        "processor": str(torch.backends.cpu.get_cpu_capability()),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "device": "cuda" if torch.cuda.is_available() and torch.cuda.is_initialized() else "cpu",
        "program": [str(word)[:400] for word in getattr(sys, "orig_argv", sys.argv)][:64],
        "folder": os.getcwd(),
        "variables": {name: os.environ[name] for name in VARIABLES if name in os.environ},
    }
    if found["device"] == "cuda":
        found["gpu"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    for name in ("numpy", "deepspeed", "accelerate", "transformers", "lightning"):
        version = getattr(sys.modules.get(name), "__version__", None)
        if version:
            found[name] = str(version)
    return found
