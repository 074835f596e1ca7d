"""How far a watched program moves its parameters: rates, schedules, clipping, loss scale, gradients that never come."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from paramedic.detect.conduct import (
    Conduct,
    as_dict,
    as_list,
    by_engine,
    conducts,
    finding,
    floats,
    items,
    natural,
    numbers,
)
from paramedic.detect.sentinels import values_of
from paramedic.detect.watched import said_by, watcher_of
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run
from paramedic.regex import regex

_NOTHING, _LONG_ENOUGH = 1e-6, 20
_SELDOM, _STILL_LOW = 0.25, 0.2
"""Of the steps a schedule was advanced; of the planned rate that was reached."""
_AGAIN = 1.8
"""Times its planned length."""
_SKIPPED, _UPDATES = 0.4, 10
_NEVER, _LOOKS = 0.2, 3
"""Of the elements; looks that must show it."""
_WARM, _RISES, _FINDER, _NEARLY = 40, 8, 1e3, 0.9
"""Steps; rates seen; a rate that grows by more is being looked for; of the planned rate."""
_HARD = 100.0
"""Times the limit."""
_CLEARLY_BELOW, _HARDLY = 0.7, 0.97
_PLAIN = ("SGD", "RMSprop", "Rprop", "ASGD")
"""Optimizers whose step grows with the gradient: Adam's does not."""
_MOSTLY, _ALL_BUT, _ASKED = 0.8, 0.95, 256
"""Of the elements that have a gradient; so many must have been looked at."""
_HALF_HOOK = regex(r"(?i)fp16|float16|half")
_LEAST_HALF = 2**-23
"""The smallest numbers of float16; below there is nothing."""
_TURNING = ("CosineAnnealingLR",)


def rates_shown(one: Conduct) -> str:
    rows = [(step, values[0]) for step, values in sorted(one.rates.items()) if values]
    return "learning rate " + ", ".join(f"{rate:g} at step {step}" for step, rate in [*rows[:2], *rows[2:][-2:]])


def rate_ran_out(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """For half of the steps or more, the learning rate is next to nothing."""
    ranks = conducts(run)
    for one in ranks.values():
        rates = [(step, max(values)) for step, values in sorted(one.rates.items()) if values]
        highest = max((rate for _, rate in rates), default=0.0)
        over = next((step for step, _ in rates if all(r <= _NOTHING * highest for s, r in rates if s >= step)), None)
        if not highest or over is None or over > one.steps / 2 or one.steps < _LONG_ENOUGH:
            return
    if ranks:
        yield finding(rule, ranks, [], {"step": str(over), "steps": str(one.steps)}, rates_shown)


def rate_only_rises(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The run has ended, and its learning rate was still being warmed up."""
    ranks = conducts(run)
    for one in ranks.values():
        rates = [max(values) for _, values in sorted(one.rates.items()) if values]
        if one.steps < _WARM or len(rates) < _RISES or not items(one.raw.get("schedules")):
            return
        if any(later <= rate for rate, later in pairwise(rates)) or rates[-1] > _FINDER * max(rates[0], 1e-12):
            return
        planned = [max(floats(row.get("planned_rates")), default=0.0) for row in items(one.raw.get("optimizers"))]
        if rates[-1] > _NEARLY * planned[0]:
            return
    job = watcher_of(run)
    if ranks and job is not None and said_by(job).get("exit") == 0:
        yield finding(rule, ranks, [], {"last": f"{rates[-1]:g}", "steps": str(one.steps)}, rates_shown)


def schedule_misses(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A schedule that was made for another number of steps than it is advanced by."""
    ranks = conducts(run)
    how = {rank: _misses(one) for rank, one in ranks.items()}
    if ranks and all(how.values()):
        yield finding(rule, ranks, [], {"how": how[min(how)]}, rates_shown)


def _misses(one: Conduct) -> str:
    first = next(iter(items(one.raw.get("optimizers"))), {})
    planned_rate = max(floats(first.get("planned_rates")), default=0.0)
    reached = max((max(values) for values in one.rates.values() if values), default=0.0)
    for schedule in items(one.raw.get("schedules")):
        planned, calls = natural(schedule.get("planned")), natural(schedule.get("calls"))
        if one.steps < _LONG_ENOUGH or not calls:
            continue
        if calls <= _SELDOM * one.steps and 0 < reached <= _STILL_LOW * planned_rate:
            return (
                f"it was advanced {calls} times in {one.steps} steps, and its rate never came above {reached:g} "
                f"of {planned_rate:g}"
            )
        if schedule.get("type") in _TURNING and planned and calls >= _AGAIN * planned and calls >= one.steps // 2:
            return f"it was made for {planned} steps and advanced {calls} times, so that the rate rises again"
    return ""


def steps_skipped(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The loss scale is updated far more often than a step is made: gradients overflow."""
    ranks = conducts(run)
    updates = {rank: natural(one.raw.get("scaler_updates")) for rank, one in ranks.items()}
    if ranks and all(
        count >= _UPDATES and count - ranks[rank].steps >= _SKIPPED * count for rank, count in updates.items()
    ):
        first = min(ranks)
        skipped = updates[first] - ranks[first].steps
        yield finding(rule, ranks, [], {"skipped": str(skipped), "of": str(updates[first])})


_FIRST_LOOKS = (1, 2)


def gets_no_gradient(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A good part of what the optimizer holds, and what asks for gradients, never gets one; not where each rank keeps
    the gradients of another part, as hand-made sharding does."""
    ranks = conducts(run)
    shares = []
    first = [{look.gradients for one in ranks.values() if (look := one.looks.get((0, step)))} for step in _FIRST_LOOKS]
    if all(len(digests) > 1 for digests in first):
        return
    for one in ranks.values():
        looks = [look for (optimizer, _), look in sorted(one.looks.items()) if not optimizer and look.elements]
        never = min((look.without_gradient / look.elements for look in looks), default=0.0)
        if by_engine(ranks) or len(looks) < _LOOKS or never < _NEVER or never == 1:
            return
        shares.append(never)
    if shares:
        yield finding(rule, ranks, [], {"share": f"{min(shares):.0%}"})


def accumulated_undivided(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Gradients of several batches are added up, and neither the loss nor they are divided."""
    ranks = conducts(run)
    orders = {one.usual_order() for one in ranks.values()}
    order = orders.pop() if len(orders) == 1 else ""
    parts = len(re.findall(r"[fn]b", order))
    used = [items(one.raw.get("optimizers")) for one in ranks.values()]
    if parts < 2 or by_engine(ranks) or any(one.factors for one in ranks.values()) or set("cxu") & set(order):
        return
    if any(len(optimizers) != 1 for optimizers in used):
        return
    one = finding(rule, ranks, [], {"parts": str(parts), "place": ranks[min(ranks)].place("b")})
    yield one if all(optimizers[0].get("type") in _PLAIN for optimizers in used) else replace(one, severity="warning")


def clipped_hard(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every gradient is far above the limit: what is left of it is its direction."""
    ranks = conducts(run)
    for one in ranks.values():
        limit = one.raw.get("clipped_at")
        norms = [value for _, value in values_of(one.event, "clipped_norm") if isinstance(value, float)]
        plain = [row.get("type") in _PLAIN for row in items(one.raw.get("optimizers"))]
        if not isinstance(limit, float) or len(norms) < _LOOKS or not limit > 0:
            return
        if min(norms) < _HARD * limit or not all(plain) or _falls(values_of(one.event, "loss")):
            return
    if ranks:
        fields = {"limit": f"{limit:g}", "norm": f"{median(norms):g}", "place": one.place("c")}
        yield finding(rule, ranks, [], fields)


def _falls(losses: Sequence[tuple[int, Any]]) -> bool:
    """The loss of the last third lies clearly below that of the first."""
    values = [value for _, value in losses if isinstance(value, float)]
    third = len(values) // 3
    return third > 1 and median(values[-third:]) < _CLEARLY_BELOW * median(values[:third])


def rounded_away(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Parameters of half precision have gradients, and nearly none of them is another number after the step."""
    ranks = conducts(run)
    shares = []
    for one in ranks.values():
        share = share_rounded_away(one)
        if by_engine(ranks) or share < _MOSTLY:
            return
        shares.append(share)
    if shares:
        said = finding(rule, ranks, [], {"share": f"{min(shares):.0%}"}, rates_shown)
        plain = min(shares) >= _ALL_BUT or not _fell(ranks.values())
        yield said if plain else replace(said, severity="warning")


def _fell(ranks: Iterable[Conduct]) -> bool:
    """The loss, over all ranks, from the first to the second half of what was seen of it; or too little was."""
    seen = [[value for _, value in values_of(one.event, "loss") if isinstance(value, float)] for one in ranks]
    values = [fmean(each) for each in zip(*seen, strict=False)]
    half = len(values) // 2
    return not half or median(values[-half:]) < _HARDLY * median(values[:half])


def share_rounded_away(one: Conduct) -> float:
    """Of the optimizer of which it is most."""
    each = [_unmoved(row) for row in items(one.raw.get("optimizers"))]
    return max((min(looks) for looks in each if len(looks) >= _LOOKS), default=0.0)


def _unmoved(optimizer: Mapping[str, Any]) -> list[float]:
    """Which share, at each look; none while the rate is still low."""
    rows = [row for row in as_list(optimizer.get("rates")) if isinstance(row, list) and len(row) == 2]
    rates = [max(values) for row in rows if (values := floats(row[1]))]
    if not rates or rates[0] < _STILL_LOW * max(rates):
        return []
    moved = [numbers(row) for row in as_list(optimizer.get("moved"))]
    return [1 - row[1] / row[2] for row in moved if len(row) == 3 and row[2] >= _ASKED]


def compressed_to_nothing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A hook sends gradients in half precision: there is something in a bucket before, and nothing behind it."""
    ranks = conducts(run)
    for one in ranks.values():
        if not _HALF_HOOK.search(str(one.raw.get("hook"))) or not _emptied(one):
            return
        sums = [abs(row["at step"]) for row in items(one.raw.get("sums")) if isinstance(row.get("at step"), float)]
        if len(sums) < _LOOKS or median(sums) > _LEAST_HALF:
            return
    if ranks:
        hook = str(ranks[min(ranks)].raw.get("hook")).rsplit(".", 1)[-1]
        yield finding(rule, ranks, [], {"hook": hook, "norm": _norm(ranks[min(ranks)])})


def _emptied(one: Conduct) -> bool:
    rows = [(row.get("before"), row.get("after")) for row in items(one.raw.get("buckets"))]
    return any(isinstance(before, float) and before != 0 and after == 0 for before, after in rows)


def _norm(one: Conduct) -> str:
    norms = [value for _, value in values_of(one.event, "gradient_norm") if isinstance(value, float)]
    return f", of a norm of {median(norms):.1g}" if norms else ""


def debugging_aids(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What helps to find errors is on in every step."""
    ranks = conducts(run)
    names = {"anomaly": "autograd's anomaly detection", "profiler": "the profiler"}
    on = [[name for name in names if as_dict(one.raw.get("aids")).get(name) is True] for one in ranks.values()]
    if ranks and all(on) and min(one.steps for one in ranks.values()) >= _LONG_ENOUGH:
        yield finding(rule, ranks, [], {"what": " and ".join(names[name] for name in on[0])})


def too_many_threads(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank computes with more threads than there are cores for all of them."""
    ranks = conducts(run)
    aids = [as_dict(one.raw.get("aids")) for one in ranks.values()]
    threads = [natural(one.get("threads")) for one in aids]
    cores = [natural(one.get("cores")) for one in aids]
    if ranks and all(have and used > have for used, have in zip(threads, cores, strict=True)):
        fields = {"threads": str(min(threads)), "cores": str(max(cores)), "ranks": str(len(ranks))}
        yield finding(rule, ranks, [], fields)


def foreign_gradients(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """An optimizer steps with gradients among which are those that another one's loss has left."""
    ranks = conducts(run)
    for one in ranks.values():
        optimizers = items(one.raw.get("optimizers"))
        counts = [natural(row.get("foreign")) if row.get("rates") else 0 for row in optimizers]  # else: inside another
        if not counts or max(counts) < _LOOKS or by_engine(ranks):
            return
    if ranks:
        number = counts.index(max(counts))
        fields = {"which": str(number + 1), "type": str(optimizers[number].get("type")), "count": str(counts[number])}
        yield finding(rule, ranks, [], fields)
