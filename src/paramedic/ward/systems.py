"""The systems that cases run on, in the order in which tables show them."""

from __future__ import annotations

SYSTEMS = {
    "pytorch-ddp": "PyTorch DDP",
    "pytorch-fsdp": "PyTorch FSDP",
    "pytorch-tp": "PyTorch TP",
    "pytorch-pp": "PyTorch PP",
    "nccl": "CUDA/NCCL",
    "deepspeed": "DeepSpeed",
    "megatron": "Megatron-core",
    "colossalai": "Colossal-AI",
    "accelerate": "Accelerate",
    "transformers": "Transformers",
    "lightning": "Lightning",
    "tensorflow": "TensorFlow",
    "horovod": "Horovod",
    "ray": "Ray Train",
    "platform": "platform",
}
