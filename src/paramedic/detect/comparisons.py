"""Numbers that a program prints side by side because they ought to agree, and that do not."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LAST, Series, by_rank, common_steps, every, latest, numbered, sharded
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_ROUNDING, _ONCE = 0.01, 0.02
"""What separate sums of the same numbers may differ by; more where it was said only once."""
_SURPRISE = 0.1
_WHOLE = 0.02
_LOOKS = 3
_SAME = 2e-3
_ABOVE = 1.01
_PARTS = 1e-4


def unlike_reference(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The program gives a value and what it is in one process, or by hand: every time they differ."""
    for one in every(run, "by reference"):
        off = [abs(value - 1) for value in one.said]
        if off and min(off) > (_ROUNDING if len(off) >= _LOOKS else _ONCE):
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": _times(run, median(one.said))})
            return
    for one in every(run, "alone"):
        name = one.name.removeprefix("alone ")
        before = [s for s in every(run, *_ALIKE.get(name, (name,))) if s.event.source == one.event.source]
        value = one.said[-1] if one.said else 0.0
        others = [[v for v in s.finite if v != value] for s in before]
        usual = [values[-1] for values in others if len(values) >= _LOOKS]
        if value > 0 and usual and min(abs(other / value - 1) for other in usual) > _OTHERWISE:
            fields = {"times": _times(run, usual[0] / value)}
            yield on_events(rule, [*before[0].shown(LAST), *one.shown(LAST)], (), fields)
            return
    for one in every(run, "by expectation"):
        times = median(one.said) if len(one.said) >= _LOOKS else 1.0
        if min((abs(value - 1) for value in one.said), default=0.0) > _SURPRISE and _is_whole(times):
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": _times(run, times)})
            return


_OTHERWISE = 0.2
_RIGHT, _LOSS = ("score top", "score acc", "score accuracy"), ("eval_loss", "loss")
_ALIKE: dict[str, tuple[str, ...]] = dict.fromkeys(_RIGHT, _RIGHT) | dict.fromkeys(_LOSS, _LOSS)


def _times(run: Run, times: float) -> str:
    world = latest(every(run, "world")) or 0.0
    said = f"{times:.4g} times"
    if world >= 2 and (abs(times / world - 1) < _WHOLE or abs(times * world - 1) < _WHOLE):
        return f"{said} (there are {world:.0f} ranks)"
    return said


def _is_whole(times: float) -> bool:
    """Twice, a third, …: sums for means, or ranks that were forgotten."""
    larger = max(times, 1 / times) if times > 0 else 1.0
    return 2 - _WHOLE <= larger < math.inf and abs(larger / round(larger) - 1) < _WHOLE


def measured_otherwise(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same thing was measured twice in a row, and mostly gave another value."""
    for one in every(run, "measured again"):
        off = [abs(value - 1) for value in one.said]
        if len(off) >= _LOOKS and sum(value > _SAME for value in off) >= 0.8 * len(off):
            yield on_events(rule, one.shown(FIRST, LAST), (), {"by": f"{median(off):.1%}"})
            return


def above_limit(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After clipping the gradient is longer than it may be: each rank has clipped what it has."""
    for one in every(run, "clipped"):
        if len(one.said) >= _LOOKS and median(one.said) > _ABOVE:
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": f"{median(one.said):.3g}"})
            return
    limits = {value for one in every(run, "norm_limit") for value in one.said}
    for one in every(run, "norm_after") if len(limits) == 1 else ():
        (limit,) = limits
        if len(one.said) >= _LOOKS and min(one.said[: 4 * _LOOKS]) > _ABOVE * limit:
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": f"{median(one.said) / limit:.3g}"})
            return


def parts_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that hold parts of one replica give different losses at the same step."""
    groups: dict[float, list[int]] = defaultdict(list)
    replica, part = by_rank(every(run, "at dp")), by_rank(every(run, "at tp", "at mp"))
    for rank in sorted(replica.keys() & part.keys()):
        if len(set(replica[rank].said)) == len(set(part[rank].said)) == 1:
            groups[replica[rank].said[0]].append(rank)
    losses = by_rank(one for one in every(run, "loss") if one.name == "loss")
    for members in groups.values():
        own = [losses[rank] for rank in members if rank in losses]
        steps = [values for _, values in common_steps(own)] if len(own) >= 2 else []
        unlike = [values for values in steps if max(values) - min(values) > _PARTS * max(map(abs, values))]
        if len(unlike) >= _LOOKS and len(unlike) >= 0.8 * len(steps):
            events = [event for one in own[:2] for event in one.shown(FIRST, LAST)]
            yield on_events(rule, events, (), {"ranks": ", ".join(map(str, members))})
            return


def unequal_shards(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What was to be split between the ranks lies with one of them, or with each of them whole."""
    state = by_rank(every(run, "optimizer_bytes"))
    sizes = {rank: one.said[-1] for rank, one in state.items() if one.said}
    split = (latest(every(run, "shards")) or 0.0) >= 2 or sharded(state.values())
    if split and len(sizes) >= 2 and max(sizes.values()) > _LOPSIDED * min(sizes.values()):
        most = max(sizes, key=sizes.__getitem__)
        least = min(sizes, key=sizes.__getitem__)
        events = [event for rank in (most, least) for event in state[rank].shown(LAST)]
        yield on_events(rule, events, (), {"what": f"rank {most} holds nearly all, rank {least} next to nothing"})
        return
    whole = [
        one for name, least in (("gathered", _NEARLY), ("kept", _MORE_THAN_ALL)) for one in _from(run, name, least)
    ]
    if whole and (sharded(whole) or len(by_rank(whole)) >= 2):
        share = min(min(one.said) for one in whole)
        events = [event for one in whole[:2] for event in one.shown(FIRST, LAST)]
        yield on_events(rule, events, (), {"what": f"a rank has {share:.0%} of it at a time"})


_LOPSIDED, _NEARLY, _MORE_THAN_ALL = 3.0, 0.95, 1.05


def _from(run: Run, name: str, least: float) -> list[Series]:
    """All series of this name, if each of them was never less."""
    told = every(run, name)
    return told if all(len(one.said) >= 2 and min(one.said) >= least for one in told) else []


def amiss(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The program counts samples that were read twice, or by nobody, and there are some."""
    for one in every(run, "amiss"):
        if one.said and one.said[-1] >= 1:
            yield on_events(rule, one.shown(LAST), (), {"number": f"{one.said[-1]:g}"})
            return


def part_saved(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What was written of the model is as large as one rank's part of it."""
    world = latest(every(run, "world")) or latest(every(run, "shards")) or 0.0
    parameters = max((value for one in every(run, "parameters") for value in one.said), default=0.0)
    for one in every(run, "saved") if world >= 2 and parameters >= _LARGE else ():
        each = max(one.said, default=0.0) / parameters
        if each < _LEAST_BYTES and any(abs(each * world / size - 1) < _PART for size in (2, 4)):
            stated = next(s for s in every(run, "parameters") if parameters in s.said)
            fields = {"world": f"{world:.0f}", "each": f"{each:.2g}"}
            yield on_events(rule, [*one.shown(LAST), *stated.shown(LAST)], (), fields)
            return


_LARGE, _LEAST_BYTES, _PART = 1e5, 1.5, 0.05


def other_batch(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A step takes a whole fraction of the samples that were to be a batch of all ranks."""
    batches = {value for one in every(run, "whole_batch") for value in one.said if value >= 2}
    for one in every(run, "consumed", "work sequences") if len(batches) == 1 else ():
        points = numbered(one)
        if len(points) < _LOOKS or points[-1][0] <= points[0][0]:
            continue
        each = {round((b[1] - a[1]) / (b[0] - a[0]), 3) for a, b in pairwise(points) if b[0] > a[0]}
        (batch,) = batches
        if len(each) == 1 and (taken := each.pop()) > 0 and batch / taken >= 2 and (batch / taken).is_integer():
            planned = next(s for s in every(run, "whole_batch") if batch in s.said)
            fields = {"batch": f"{batch:.0f}", "taken": f"{taken:g}"}
            yield on_events(rule, [*one.shown(FIRST, LAST), *planned.shown(LAST)], (), fields)
            return
