"""A request as the frameworks write it: DeepSpeed JSON, accelerate YAML for FSDP2, or lines of code."""

from __future__ import annotations

import json
from typing import Any

from paramedic.memory.request import Request


def config_of(request: Request) -> list[str]:
    """Lines that can be pasted; none where flags say it all."""
    if request.strategy.startswith("zero"):
        return json.dumps(_deepspeed(request), indent=2).split("\n")
    if request.strategy == "fsdp2":
        return _accelerate(request)
    return _code(request)


def _deepspeed(request: Request) -> dict[str, Any]:
    stage: dict[str, Any] = {"stage": int(request.strategy[-1]), "overlap_comm": True, "contiguous_gradients": True}
    if request.offload in ("optimizer", "parameters"):
        stage["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    if request.offload == "parameters":
        stage["offload_param"] = {"device": "cpu", "pin_memory": True}
    half = "fp16" if request.dtype.startswith("fp16") else "bf16"
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": request.batch,
        "gradient_accumulation_steps": request.accumulation,
        "zero_optimization": stage,
    }
    return config if request.dtype == "fp32" else config | {half: {"enabled": True}}


def _accelerate(request: Request) -> list[str]:
    mixed = {"bf16-autocast": "bf16", "fp16-autocast": "fp16"}.get(request.dtype, "no")
    return [
        "distributed_type: FSDP",
        f"mixed_precision: '{mixed}'",
        f"num_processes: {request.world_size}",
        "fsdp_config:",
        "  fsdp_version: 2",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "  fsdp_reshard_after_forward: true",
        f"  fsdp_offload_params: {str(request.offload != 'none').lower()}",
        f"  fsdp_activation_checkpointing: {str(request.checkpointing).lower()}",
    ]


def _code(request: Request) -> list[str]:
    lines = []
    if request.checkpointing:
        lines.append('model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})')
    if request.optimizer == "adamw-fused":
        lines.append("torch.optim.AdamW(model.parameters(), fused=True)")
    if request.bucket_view:
        lines.append("DistributedDataParallel(model, gradient_as_bucket_view=True)")
    if request.alloc_conf:
        lines.append(f"export PYTORCH_ALLOC_CONF={request.alloc_conf}")
    return lines
