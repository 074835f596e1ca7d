"""Environment variables that training software reads. Values of others are not looked at, let alone kept."""

from __future__ import annotations

import os
import re

from paramedic.node.rows import Rows, folder

_OURS = re.compile(
    r"^(?:NCCL|TORCH|TORCHELASTIC|TORCHINDUCTOR|TORCHDYNAMO|PYTORCH|CUDA|CUDNN|CUBLAS|OMP|KMP|MKL|GOMP|GLOO|TP|DS|DEEPSPEED"
    r"|ACCELERATE|FSDP|NVTE|NVIDIA|HOROVOD|UCX|FI|XLA|HSA|HIP|ROCR|RCCL|C10D|NCCLX|MASTER|SLURM|OMPI|PMI|PL|TRANSFORMERS|HF"
    r"|MALLOC)_[A-Z0-9_]+$|^(?:RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|NODE_RANK|GROUP_RANK|LD_LIBRARY_PATH"
    r"|TF_CONFIG|LD_PRELOAD|PYTHONPATH|PYTHONHOME|PYTHONNOUSERSITE|PYTHONHASHSEED|CXX|CC|MAX_JOBS|TMPDIR|OMP_NUM_THREADS)$"
)
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_?KEY|CREDENTIAL", re.I)
MOST_VALUE = 1000


def look(rows: Rows) -> None:
    for name in sorted(os.environ):
        if _OURS.match(name) and not _SECRET.search(name):
            rows.add(f"variable {name}", os.environ[name][:MOST_VALUE], "environment")
    rows.add("interfaces", folder("/sys/class/net"), "/sys/class/net")
