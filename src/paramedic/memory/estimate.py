"""READ THIS FIRST. An estimate is four steps: trace, replay the allocator, add what lies outside, judge.

The step runs for real, on tensors that have shapes and a device but no data (`ranks`, `step`, `models`, `sharding`), in
a child process (`process`, `child`, `guard`). Each allocation is seen (`trace`, `kernels`, `attention`) and replayed
through torch's caching allocator (`allocator`, `measure`). `outside` adds context and communicators.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.memory import outside
from paramedic.memory.cards import Card, Range, card_of
from paramedic.memory.config_json import read_config
from paramedic.memory.process import Say, Tracing
from paramedic.memory.request import Request, check

SCHEMA_VERSION = 1
COARSE = 1.15
"""How much more a fake-cpu trace may need than it says."""
UNSURE = {"allocated": (0.98, 1.02), "reserved": (0.96, 1.07)}
"""The range around a traced number: what the simulation itself missed in the 73 steps of `bench/memory`."""


@dataclass(frozen=True)
class Estimate:
    request: Request
    card: Card
    result: dict[str, Any]
    """What the child found for the rank that needs the most."""
    ranks: list[dict[str, Any]]
    why_coarse: str = ""

    @property
    def allocated(self) -> Range:
        return self._around("allocated", "traced step, replayed through torch's caching allocator")

    @property
    def reserved(self) -> Range:
        return self._around("reserved", "segments that the replayed allocator holds")

    @property
    def terms(self) -> list[outside.Term]:
        return outside.terms(self.request, self.card)

    @property
    def total(self) -> Range:
        more, reserved = outside.total(self.terms), self.reserved
        return Range(
            reserved.low + more.low,
            reserved.mid + more.mid,
            reserved.high + more.high,
            "reserved and what lies outside",
        )

    @property
    def fits(self) -> str:
        """`no` when even an allocator that empties its cache first cannot serve the step."""
        _, likely, worst = (one["fits"] for one in self.result["capacity"])
        if not likely:
            return "no"
        return "yes" if worst and self.total.high <= self.card.memory else "tight"

    @property
    def squeezes(self) -> bool:
        """It runs, but only because torch gives its cache back to the driver in every step, which is slow."""
        return self.fits != "no" and self.total.mid > self.card.memory

    def _around(self, name: str, source: str) -> Range:
        mid = int(self.result[name])
        low, high = UNSURE[name]
        return Range(int(mid * low), mid, int(mid * (high * (COARSE if self.why_coarse else 1))), source)


def estimate(request: Request, say: Say) -> Estimate:
    return estimates([request], say)[0]


def estimates(requests: Sequence[Request], say: Say) -> list[Estimate]:
    """All are checked before the first is traced."""
    for request in requests:
        checked(request)
    with Tracing(say) as tracing:
        return [traced(request, tracing) for request in requests]


def checked(request: Request) -> Card:
    check(request)
    if request.model:
        read_config(request.model)
    return card_of(request.gpu, request.gpu_memory)


def traced(request: Request, tracing: Tracing) -> Estimate:
    card = checked(request)
    result = tracing.trace(request, _capacities(request, card))
    if "error" in result:
        raise ParamedicError(f"memory: {result['error']}")
    return Estimate(request, card, result, result.pop("ranks", []), tracing.why_coarse)


def _capacities(request: Request, card: Card) -> list[int]:
    more = outside.total(outside.terms(request, card))
    return [card.memory - more.low, card.memory - more.mid, card.memory - more.high]
