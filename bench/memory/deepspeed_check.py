"""The real DeepSpeed engine on CPU, its allocations counted, beside our ZeRO estimate of the same step.

  torchrun --nproc-per-node 2 bench/memory/deepspeed_check.py     (in an environment that has deepspeed)

A plain stack of linear layers in bf16 with small buffers, so that the engine's own memory stands out.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
from typing import Any

import torch
from torch import nn

from paramedic.memory import torch_internals as internals
from paramedic.memory import zero
from paramedic.memory.cards import card_of
from paramedic.memory.measure import _phase_peaks
from paramedic.memory.models import Work
from paramedic.memory.request import Request
from paramedic.memory.step import run_steps
from paramedic.memory.trace import Tracer, watching

WIDTH, LAYERS, BATCH = 1024, 12, 64
BUFFERS = zero.Buffers(
    reduce_bucket=2_000_000, allgather_bucket=2_000_000, overlap=False, prefetch=1_000_000, max_live=2_000_000
)


def model() -> nn.Module:
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))


def config(stage: int) -> dict[str, Any]:
    engine = {
        "stage": stage, "reduce_bucket_size": BUFFERS.reduce_bucket, "allgather_bucket_size": BUFFERS.allgather_bucket,
        "overlap_comm": False, "contiguous_gradients": True, "stage3_prefetch_bucket_size": BUFFERS.prefetch,
        "stage3_max_live_parameters": BUFFERS.max_live, "stage3_max_reuse_distance": BUFFERS.max_live,
        "stage3_param_persistence_threshold": 0,
    }  # fmt: skip
    optimizer = {"type": "AdamW", "params": {"lr": 1e-4, "torch_adam": True}}
    return {
        "train_micro_batch_size_per_gpu": BATCH,
        "bf16": {"enabled": True},
        "optimizer": optimizer,
        "zero_optimization": engine,
    }


def held() -> int:
    """Bytes of all CPU storages that Python can reach."""
    seen = {}
    for one in gc.get_objects():
        try:
            if isinstance(one, torch.Tensor) and one.device.type == "cpu":
                storage = one.untyped_storage()
                seen[storage.data_ptr()] = storage.nbytes()
        except Exception:
            continue
    return sum(seen.values())


def real(stage: int) -> dict[str, int]:
    deepspeed: Any = importlib.import_module("deepspeed")
    engine, *_ = deepspeed.initialize(model=model(), config=config(stage))
    batch = torch.zeros((BATCH, WIDTH), dtype=torch.bfloat16)
    peaks: dict[str, int] = {}
    for _ in range(2):
        loss = engine(batch).float().pow(2).mean()
        peaks["forward"] = held()
        engine.backward(loss)
        peaks["backward"] = held()
        engine.step()
        del loss
    gc.collect()
    return peaks | {"between steps": held()}


def ours(stage: int, ranks: int) -> dict[str, int]:
    request = Request(model="x", dtype="bf16", strategy=f"zero{stage}", world_size=ranks)
    with internals.fake_mode():
        whole = nn.Sequential(*_parts())
        tracer = Tracer(card_of("h200"), "cpu", inner=False)
        sizes = [one.numel() for one in whole.parameters()]
        for one in whole.parameters():
            tracer.hold(one, "parameters")
        batch = torch.zeros((BATCH, WIDTH), dtype=torch.bfloat16)
        tracer.hold(batch, "inputs")
        work = Work(whole, dict, lambda m, b: m(b).float().pow(2).mean(), None)
        with watching(tracer, whole):
            run_steps(tracer, work, request, batch)
    return _phase_peaks(zero.over(tracer.trace, request, sizes, BUFFERS))


def _parts() -> list[nn.Module]:
    torch.set_default_dtype(torch.bfloat16)
    try:
        return list(model().children())
    finally:
        torch.set_default_dtype(torch.float32)


def main() -> None:
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    stage = int(os.environ.get("STAGE", "2"))
    found = {"stage": stage, "ranks": ranks, "ours": ours(stage, ranks), "real": real(stage)}
    if os.environ.get("RANK", "0") == "0":
        print(json.dumps(found))


if __name__ == "__main__":
    main()
