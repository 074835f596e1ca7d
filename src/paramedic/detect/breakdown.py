"""Steps that became slower, and which of the parts that were printed beside them takes longer."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from statistics import median

from paramedic.detect.series import Series, every
from paramedic.knowledge.clues import OUTRIGHT
from paramedic.model import Run

_MOST = 0.6
"""Of what a step takes longer, so much must be its part's."""
_FEW = 5
_WORDS = {
    "data_time": "waiting for data",
    "wait_time": "communicating",
    "optimizer_time": "the optimizer",
    "checkpoint_time": "saving",
}
_KINDS = ("data_time", "wait_time", "compute_time", "optimizer_time", "checkpoint_time")
_REASONS: Mapping[str, Mapping[str, float]] = {
    "data_time": {"storage-or-external-service-fault": OUTRIGHT, "network-fabric-fault": 0.3, "hardware-fault": 0.3},
    "wait_time": {"network-fabric-fault": 4.0, "communication-backend-misconfiguration": 2.0},
    "compute_time": {
        "hardware-fault": 4.0,
        "model-construction-error": 2.0,
        "network-fabric-fault": 0.1,
        "communication-backend-misconfiguration": 0.1,
    },
    "optimizer_time": {
        "hardware-fault": 2.0,
        "host-resource-exhaustion": 3.0,
        "network-fabric-fault": 0.3,
        "communication-backend-misconfiguration": 0.3,
    },
    "checkpoint_time": {
        "storage-or-external-service-fault": OUTRIGHT,
        "host-resource-exhaustion": 2.0,
        "network-fabric-fault": 0.3,
        "hardware-fault": 0.3,
    },
}
"""What takes longer says why. A backward pass may hold its all-reduce, so it says so only beside one."""


@dataclass(frozen=True, slots=True)
class Part:
    """A part of the step, in seconds: what it took at first and what it takes now."""

    name: str
    before: float
    after: float
    share: float
    beside_waits: bool

    @property
    def kind(self) -> str:
        return self.name.partition(" ")[0]

    @property
    def told(self) -> str:
        """For the end of a sentence."""
        what = _WORDS.get(self.kind) or self.name.removeprefix("compute_time ")
        much = "nearly all" if self.share >= _NEARLY_ALL else "most"
        return f"; {much} of the difference is {what}: {self.before:.3g} s before, {self.after:.3g} s now"

    @property
    def weights(self) -> Mapping[str, float]:
        passes = self.name.partition(" ")[2].split()
        if self.kind == "compute_time" and not self.beside_waits and passes and passes[-1] in ("bwd", "backward"):
            return {}
        return _REASONS[self.kind]


_NEARLY_ALL = 0.85


def longer_part(run: Run, steps: Series, early: Set[str], late: Set[str]) -> Part | None:
    """The part, printed by the same speaker, that takes most of what the later steps take longer than the early."""
    before, after = _usual(steps, early), _usual(steps, late)
    if before is None or after is None or after <= before:
        return None
    beside = [one for one in every(run, *_KINDS) if (one.rank, one.event.source) == (steps.rank, steps.event.source)]
    waits = any(one.name == "wait_time" for one in beside)
    found = [
        Part(one.name, then, now, (now - then) / (after - before), waits)
        for one in beside
        if (then := _usual(one, early)) is not None and (now := _usual(one, late)) is not None
    ]
    most = max(found, key=lambda one: one.share, default=None)
    return most if most is not None and most.share >= _MOST else None


def _usual(one: Series, at: Set[str]) -> float | None:
    values = [value for step, value in zip(one.steps, one.values, strict=True) if value is not None and step in at]
    return median(values) if len(values) >= _FEW else None


# -- where a run parts into two ------------------------------------------------------------------------------------

EACH_SIDE, _CLEARLY, _EVEN, _WARM, _RAMP = 10, 1.3, 1.15, 2, 4
_CLOUD, _OF_ALL, _APART, _FAR = 20, 6, 0.9, 1.5

Levels = tuple[int, int]
"""Up to the first the run is as it was, from the second on as it is now; between them it changes."""


def levels(values: Sequence[float]) -> Levels | None:
    """Two of them, each even in itself but for single steps, with a leap between them or a short way up."""
    at = _leap(values)
    return (at, at) if at is not None else _way_up(values)


def clouds(values: Sequence[float]) -> Levels | None:
    """Two parts that are uneven in themselves, of which nearly every step of the second is slower than any of the
    first: enough only where something else says why."""
    at = _parted_at(values)
    first, second = sorted(values[:at]), values[at:]
    if min(len(first), len(second)) < max(_CLOUD, len(values) // _OF_ALL):
        return None
    slower = sum(bisect_left(first, late) for late in second) / (len(first) * len(second))
    lasts = median(values[-len(second) // 2 :]) >= _FAR * median(first)
    return (at, at) if slower >= _APART and lasts and median(second) >= _FAR * median(first) else None


def _leap(values: Sequence[float]) -> int | None:
    jumps = [
        (median(values[at : at + 3]) / max(median(values[at - 3 : at]), 1e-9), at) for at in range(3, len(values) - 2)
    ]
    at = max(jumps)[1]
    return at if _are_levels(values[_WARM : max(at, _WARM)], values[at:]) else None


def _way_up(values: Sequence[float]) -> Levels | None:
    """It leaves the first level for good, and at most a quarter of the run later it has come to the second one."""
    third = len(values) // 3
    low, high = median(values[_WARM:third]), median(values[-third:])
    usual = [median(values[max(at - 1, 0) : at + 2]) for at in range(len(values))]
    start = max((at for at, value in enumerate(usual) if value <= _EVEN * low), default=0) + 1
    end = next((at for at, value in enumerate(usual) if at >= start and value >= high / _EVEN), len(values))
    short = end - start <= len(values) // _RAMP
    return (start, end) if short and _are_levels(values[_WARM:start], values[end:]) else None


def _are_levels(first: Sequence[float], second: Sequence[float]) -> bool:
    if min(len(first), len(second)) < EACH_SIDE - _WARM:
        return False
    low, high = _middle(sorted(first)), _middle(sorted(second))
    even = all(most <= _EVEN * least for least, most in (low, high))
    return even and high[0] >= _CLEARLY * low[1]


def _middle(ordered: Sequence[float]) -> tuple[float, float]:
    """Without the tenth at either end: a checkpoint or an evaluation lengthens single steps."""
    cut = len(ordered) // 10
    return ordered[cut], ordered[-1 - cut]


def _parted_at(values: Sequence[float]) -> int:
    """Where the places of the values in their order differ most between what is before and what is behind."""
    size = len(values)
    order = sorted(range(size), key=values.__getitem__)
    places = [0] * size
    for place, at in enumerate(order):
        places[at] = place
    sums = [0, *accumulate(places)]
    total = sums[-1]
    return max(
        range(1, size), key=lambda at: (at * (size - at)) * (sums[at] / at - (total - sums[at]) / (size - at)) ** 2
    )
