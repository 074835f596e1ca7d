"""A rough clock: arithmetic against bytes moved. Good for ordering settings, not for promises."""

from __future__ import annotations

from paramedic.memory.cards import Card
from paramedic.memory.request import Request

USED = 0.4
"""The share of the vendor's peak that training commonly reaches."""
HOST = 20e9
"""Bytes a second between host and card."""
SLOW = {"fp32": 0.12}


def samples_a_second(request: Request, parameters: int, card: Card) -> float:
    """Of the whole job."""
    samples = request.batch * request.accumulation
    tokens = samples * (request.seq or 1)
    passes = 8 if request.checkpointing else 6
    rate = card.tflops * 1e12 * USED * SLOW.get(request.dtype, 1.0)
    arithmetic = passes * parameters / (request.tp * request.pp) * tokens / rate
    start = 0.01 * request.accumulation  # launching a pass costs, however small it is
    moved = _moved(request, parameters) / card.bandwidth
    host = 16 * parameters / request.dp / HOST if request.offload != "none" else 0.0
    seconds = max(arithmetic + start, moved) + 0.1 * min(arithmetic, moved) + host
    return samples * request.dp / seconds


def _moved(request: Request, parameters: int) -> float:
    ranks = request.dp
    if ranks < 2:
        return 0.0
    share = 2 * parameters * (ranks - 1) / ranks
    if request.strategy in ("fsdp2", "zero3"):
        return share * (2 * request.accumulation + 2)
    return share * (4 if request.strategy == "ddp" else 2)
