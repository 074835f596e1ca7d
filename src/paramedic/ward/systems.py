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

_PYTORCH = ("pytorch", "torchrun", "gloo")
RULES_OF = {
    "pytorch-ddp": _PYTORCH,
    "pytorch-fsdp": _PYTORCH,
    "pytorch-tp": _PYTORCH,
    "pytorch-pp": _PYTORCH,
    "nccl": ("nccl", "cuda", "rocm", "triton"),
    "deepspeed": ("deepspeed",),
    "megatron": ("megatron",),
    "colossalai": ("colossalai",),
    "accelerate": ("accelerate",),
    "transformers": ("transformers", "safetensors", "datasets", "huggingface-hub"),
    "lightning": ("lightning",),
    "tensorflow": ("tensorflow", "keras"),
    "horovod": ("horovod",),
    "ray": ("ray",),
    "platform": ("linux", "slurm", "kubernetes", "infiniband"),
}
"""What rules call each system in their front matter."""
