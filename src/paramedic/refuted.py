"""What a program looked like and the watched job did not do: an agent's look at the real thing is worth more than a
guess from the source."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from paramedic.detect import pace, sentinels
from paramedic.detect.conduct import Conduct, conducts
from paramedic.detect.watched import seen_ranks
from paramedic.model import Finding, Run, Suppressed

_LOOKS, _FAR = 4, 16
"""Looks at the replicas, and the step up to which they go."""
_LEVEL, _EVEN = 1.02, 1.1
_STAND_STILL = ("CODE164",)
"""Rules that say that the weights never change."""
_APART = tuple(f"CODE{n}" for n in (163, 180, 181, 182, 183, 185, 188, 189, 243, 244, 250, 252, 308))
"""Rules that say that replicas train parameters apart; others speak of copies, of statistics, of later steps."""


def set_aside(found: Sequence[Finding], run: Run) -> tuple[list[Finding], list[Suppressed]]:
    """Without those that the agents saw not to be so, in as far as a few dozen steps tell."""
    whys = {one.rule: why for one in found if (why := _refuted(one, run))} if conducts(run) else {}
    left_out = [Suppressed(one.rule, whys[one.rule], one.ranks) for one in found if one.rule in whys]
    return [one for one in found if one.rule not in whys], left_out


def _refuted(one: Finding, run: Run) -> str:
    if one.rule in _APART:
        return _agreed(run)
    if one.symptom == "memory-growth":
        return _stayed_level(run)
    if one.symptom == "straggler-or-imbalance":
        return _shared_evenly(run)
    return _moved(run) if one.rule in _STAND_STILL else ""


def _agreed(run: Run) -> str:
    """At all looks, of all optimizers; not where parts of the model are elsewhere."""
    ranks = list(conducts(run).values())
    looks = [{*one.looks} for one in ranks]
    steps = [step for _, step in looks[0]]
    if len(ranks) < 2 or any(one.sharded for one in ranks) or any(look != looks[0] for look in looks):
        return ""
    alike = all(len({one.looks[at].parameters for one in ranks}) == 1 for at in looks[0])
    enough = len(steps) >= _LOOKS and max(steps) >= _FAR
    return f"the replicas were alike at all looks, up to step {max(steps)}" if alike and enough else ""


def _stayed_level(run: Run) -> str:
    each = [sentinels.memory_after_steps(seen.event) for seen in seen_ranks(run).values()]
    if not each or min(map(len, each)) < sentinels.AFTER_STEPS:
        return ""
    rows = [rows[len(rows) // 3 :] for rows in each]
    level = all(_is_level([row[column] for row in one]) for one in rows for column in (1, 2))
    return "the memory of all ranks stayed level" if level else ""


def _is_level(values: Sequence[int]) -> bool:
    half = len(values) // 2
    return median(values[half:]) <= _LEVEL * median(values[:half])


def _shared_evenly(run: Run) -> str:
    work = pace.work_of(run)
    even = len(work) > 1 and max(one.total for one in work) <= _EVEN * min(one.total for one in work)
    return "all ranks computed as much" if even else ""


def _moved(run: Run) -> str:
    return "the parameters changed from look to look" if all(map(_has_moved, conducts(run).values())) else ""


def _has_moved(one: Conduct) -> bool:
    first = [one.looks[at].parameters for at in sorted(one.looks) if not at[0]]
    return len(first) > 1 and len({*first}) == len(first)
