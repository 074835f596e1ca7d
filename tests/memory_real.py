"""A real step on the CPU under torch's profiler, and the same step traced without data: the peaks of both, as JSON."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from paramedic.memory import torch_internals as internals
from paramedic.memory.cards import card_of
from paramedic.memory.models import Work
from paramedic.memory.request import Request
from paramedic.memory.step import run_steps
from paramedic.memory.trace import Tracer, watching


def build() -> tuple[nn.Module, torch.optim.Optimizer, torch.Tensor]:
    layers = [nn.TransformerEncoderLayer(128, 4, 512, batch_first=True, dropout=0.1) for _ in range(3)]
    model = nn.Sequential(nn.Embedding(1000, 128), *layers, nn.Linear(128, 1000))
    return model, torch.optim.AdamW(model.parameters(), foreach=True), torch.zeros((8, 128), dtype=torch.long)


def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


def real() -> int:
    model, optimizer, batch = build()
    held = sum(p.numel() * 4 for p in model.parameters()) + batch.numel() * 8
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as run:
        for _ in range(2):
            loss(model, batch).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    now = peak = held
    events: Any = run.profiler
    for event in events.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return peak


def traced() -> int:
    with internals.fake_mode():
        model, optimizer, batch = build()
        tracer = Tracer(card_of("h200"), "cpu", inner=False)
        for tensor in (*model.parameters(), batch):
            tracer.hold(tensor, "parameters")
        with watching(tracer, model):
            run_steps(tracer, Work(model, dict, loss, optimizer), Request(dtype="fp32"), batch)
    return max(tracer.first_peak, tracer.peak)


if __name__ == "__main__":
    torch.manual_seed(0)
    print(json.dumps({"traced": traced(), "real": real()}))
