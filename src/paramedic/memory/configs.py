"""A request as the frameworks write it: DeepSpeed JSON, accelerate YAML for FSDP2, variables, and lines of code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from paramedic.memory.request import Request

_CHECKPOINTING = 'model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})'
A_NODE = 8
"""More ranks than this are on several machines, and only the user knows how many."""


def config_of(request: Request) -> list[str]:
    """Lines that can be pasted, each part under the name of the place where it goes."""
    lines: list[str] = []
    for place, part in _parts(request):
        lines += [f"# {place}", *part]
    return lines


def _parts(request: Request) -> Iterator[tuple[str, list[str]]]:
    engine = request.strategy.startswith("zero")
    if request.alloc_conf:
        yield "environment", [f"export PYTORCH_ALLOC_CONF={request.alloc_conf}"]
    if engine:
        yield "ds_config.json", json.dumps(deepspeed(request), indent=2).split("\n")
    if request.strategy == "fsdp2":
        yield "fsdp.yaml, for accelerate launch --config_file", accelerate(request)
    code = list(_code(request, engine))
    if code:
        yield "code", code


def deepspeed(request: Request) -> dict[str, Any]:
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


def accelerate(request: Request) -> list[str]:
    mixed = {"bf16-autocast": "bf16", "fp16-autocast": "fp16"}.get(request.dtype, "no")
    return [
        "compute_environment: LOCAL_MACHINE",
        "distributed_type: FSDP",
        f"mixed_precision: '{mixed}'",
        *(["num_machines: 1"] if request.world_size <= A_NODE else []),
        f"num_processes: {request.world_size}",
        "fsdp_config:",
        "  fsdp_version: 2",
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP",
        "  fsdp_reshard_after_forward: true",
        f"  fsdp_offload_params: {str(request.offload != 'none').lower()}",
        f"  fsdp_activation_checkpointing: {str(request.checkpointing).lower()}",
    ]


def _code(request: Request, engine: bool) -> Iterator[str]:
    if request.checkpointing and request.strategy != "fsdp2":
        yield _CHECKPOINTING
    if engine and request.offload != "none":
        yield "optimizer = deepspeed.ops.adam.DeepSpeedCPUAdam(model.parameters())  # DeepSpeed refuses torch's here"
    elif request.optimizer == "adamw-fused":
        yield "optimizer = torch.optim.AdamW(model.parameters(), fused=True)"
    elif request.optimizer == "adamw-8bit":
        yield "optimizer = bitsandbytes.optim.AdamW8bit(model.parameters())"
    if request.strategy == "ddp" and request.bucket_view:
        yield "model = DistributedDataParallel(model, gradient_as_bucket_view=True)"
