"""The order in which a watched program does its step: forward, backward, averaging, clipping, stepping, clearing."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from paramedic.detect.conduct import (
    ENOUGH_STEPS,
    Conduct,
    as_dict,
    as_list,
    by_engine,
    conducts,
    dealt_out,
    finding,
    floats,
    have_met,
    items,
    natural,
    numbers,
    world_size,
)
from paramedic.detect.match import on_events
from paramedic.detect.watched import said_by, seen_ranks
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_WORDS = {
    "f": "forward", "n": "forward (not averaged)", "b": "backward", "r": "all_reduce", "z": "zero_grad", "u": "unscale",
    "c": "clip", "x": "clip (of scaled gradients)", "s": "step", "l": "schedule", "e": "evaluation",
}  # fmt: skip
_MANY_CALLS = 48
_MANY_ELEMENTS = 1 << 20
_UNITS = 4
_FEW_ELEMENTS = 1 << 17
_OFTEN_DIVIDED_BY = 2
_OFTEN_TOO_LATE = 8
_MUCH_LARGER, _LEAST_BYTES = 1.5, 1 << 20
"""Many a loss has a factor of one half."""
_AS_MUCH, _NEARLY, _FEW = 0.9, 0.02, 64
_COSTS = 0.25
"""Of the time of a step."""


def shown(order: str) -> str:
    """For people: `zfbs` is "zero_grad, forward, backward, step"."""
    found = re.findall(r"([a-z])(\+?)", order)
    return ", ".join(
        _WORDS[letter] + (" (again and again)" if more else "") for letter, more in found if letter in _WORDS
    )


def _usual(run: Run) -> tuple[dict[int, Conduct], str]:
    """The ranks, and the order that all of them mostly keep; none where they differ, or where optimizers take turns."""
    ranks = conducts(run)
    orders = {one.usual_order() for one in ranks.values()}
    alone = all(len(items(one.raw.get("optimizers"))) == 1 for one in ranks.values()) and not by_engine(ranks)
    return ranks, orders.pop() if len(orders) == 1 and alone else ""


def _found(rule: Rule, ranks: Mapping[int, Conduct], order: str, letter: str) -> Finding:
    place = ranks[min(ranks)].place(letter)
    return finding(rule, ranks, [], {"order": shown(order), "place": place}, _order)


def _order(one: Conduct) -> str:
    order = one.usual_order()
    return f"{one.orders.get(order, 0)} of {sum(one.orders.values())} go {shown(order)}"


def cleared_before_step(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Gradients are cleared after the last backward pass, and before the step that is to use them."""
    ranks, order = _usual(run)
    if re.search(r"b[^b]*z[^b]*s$", order):
        yield _found(rule, ranks, order, "z")


def never_cleared(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Backward passes add to what earlier steps have used already."""
    ranks, order = _usual(run)
    left = {rank: natural(one.raw.get("left_over")) for rank, one in ranks.items()}
    if order and all(count >= ENOUGH_STEPS for count in left.values()) and not re.search(r"z[^b]*b", order):
        yield _found(rule, ranks, order, "b")


def clipped_in_vain(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Gradients are clipped when the step has used them, or before there are any."""
    ranks, order = _usual(run)
    if "c" in order and "b" in order and order.rfind("c") < order.rfind("b"):
        yield _found(rule, ranks, order, "c")


def clipped_while_scaled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The norm of gradients that are still multiplied by the loss scale is held against the limit."""
    ranks, order = _usual(run)
    if re.search(r"b\+?x", order):
        yield _found(rule, ranks, order, "x")


def each_part_averaged(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several backward passes a step, and DDP averages after each of them."""
    ranks, order = _usual(run)
    parts = order.count("fb")
    if parts > 1 and "n" not in order:
        fields = {"parts": str(parts), "order": shown(order), "place": ranks[min(ranks)].place("b")}
        yield finding(rule, ranks, [], fields, _order)


def left_out_too_late(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """`no_sync()` is entered between the forward pass and the backward pass, and does nothing there."""
    ranks = conducts(run)
    late = [natural(one.raw.get("too_late")) for one in ranks.values()]
    if late and min(late) >= _OFTEN_TOO_LATE:
        first = ranks[min(ranks)]
        yield finding(rule, ranks, [], {"count": str(min(late)), "place": first.place("b")}, _order)


def one_call_each(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """As many all_reduce calls between the backward pass and the step as there are tensors."""
    ranks, order = _usual(run)
    tensors = [look.tensors for one in ranks.values() for look in one.looks.values()]
    calls = [count - _sent_by_owners(one) for one in ranks.values() for count in one.calls[1:]]
    if not tensors or not calls or not re.search(r"br\+[a-z+]*s$", order):
        return
    if min(calls) >= max(_MANY_CALLS, min(tensors)) and min(calls) <= 2 * max(tensors) + 2:
        share = min(map(_share_of_collectives, ranks.values()))
        fields = {"calls": str(min(calls)), "tensors": str(min(tensors)), "share": f"{share:.0%}"}
        one = finding(rule, ranks, [], {**fields, "place": ranks[min(ranks)].place("r")}, _order)
        yield one if share >= _COSTS else replace(one, severity="warning")


def _sent_by_owners(one: Conduct) -> int:
    """ZeroRedundancyOptimizer sends each tensor that its owner has stepped."""
    if not as_dict(one.raw.get("spread")).get("ZeroRedundancyOptimizer"):
        return 0
    return max((look.tensors for look in one.looks.values()), default=0)


def moved_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP averages the gradients, and the program sends as much once more in every step: the same number of values, or
    so many times, but for a loss and a few counts. What is not is something else, features or answers."""
    ranks = conducts(run)
    if not all(any(model.forwards for model in one.models) for one in ranks.values()) or dealt_out(ranks):
        return
    elements = {rank: max((look.elements for look in one.looks.values()), default=0) for rank, one in ranks.items()}
    moved = {rank: min(numbers(one.raw.get("moved"))[1:], default=0) for rank, one in ranks.items()}
    for rank, seen in ranks.items():
        if seen.raw.get("hook") or as_dict(seen.raw.get("spread")).get("ZeroRedundancyOptimizer"):
            moved[rank] -= elements[rank]  # a hook does what DDP would do; owners send what they have stepped
    if ranks and all(elements[rank] and _as_often(moved[rank], elements[rank]) for rank in ranks):
        share = min(map(_share_of_collectives, ranks.values()))
        times = f"{min(moved[rank] / elements[rank] for rank in ranks):.1f}"
        fields = {"times": times, "share": f"{share:.0%}", "place": ranks[min(ranks)].place("r")}
        one = finding(rule, ranks, [], fields, _order)
        yield one if share >= _COSTS else replace(one, severity="warning")


def _as_often(moved: float, elements: int) -> bool:
    once = moved - elements * max(1, round(moved / elements))
    return moved >= _AS_MUCH * elements and abs(once) <= max(_FEW, _NEARLY * elements)


def buffers_sent(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP sends buffers that are larger than all parameters before each forward pass."""
    ranks = conducts(run)
    for one in ranks.values():
        large = [
            model
            for model in items(one.raw.get("models"))
            if model.get("sends_buffers") is True
            and natural(model.get("forwards")) >= ENOUGH_STEPS
            and natural(model.get("buffers")) > max(_MANY_ELEMENTS, natural(model.get("elements")))
        ]
        if not large:
            return
    if ranks:
        buffers, elements = natural(large[0].get("buffers")), natural(large[0].get("elements"))
        yield finding(rule, ranks, [], {"buffers": f"{buffers:,}", "elements": f"{elements:,}"})


def plan_names_nothing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A plan for tensor parallelism that matched no layer."""
    yield from _named_nothing(run, rule, "parallelize_module")


def recomputes_nothing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A policy for recomputation that matched no layer."""
    yield from _named_nothing(run, rule, "apply_activation_checkpointing")


def _named_nothing(run: Run, rule: Rule, call: str) -> Iterator[Finding]:
    ranks = conducts(run)
    if ranks and all(as_dict(one.raw.get("plans")).get(call) is False for one in ranks.values()):
        yield finding(rule, ranks, [], {"place": ranks[min(ranks)].place(call)})


def _share_of_collectives(one: Conduct) -> float:
    """Of the time of the steps that were timed last, what collectives that Python called took."""
    said = said_by(one.event)
    parts = as_list(said.get("parts"))
    rows = [floats(row) for row in as_list(said.get("times_ms"))]
    at = parts.index("collective") + 1 if "collective" in parts else 0
    rows = [row for row in rows if at and len(row) > at and row[0] > 0]
    return sum(row[at] for row in rows) / sum(row[0] for row in rows) if rows else 0.0


def loss_divided_by_ranks(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP divides by the number of ranks, and the loss had been divided by it before."""
    ranks, order = _usual(run)
    world = world_size(ranks)
    if world < 2 or order.count("b") != 1 or "b+" in order:
        return
    for one in ranks.values():
        sizes = {loader.batch_size for loader in one.training}
        in_ddp = any(model.ranks == world and model.forwards for model in one.models)
        divided = one.factors and all(any(abs(f * world - 1) < 1e-6 for f in each) for each in one.factors)
        if not in_ddp or not divided or world in sizes:
            return
    said = finding(rule, ranks, [], {"ranks": str(world), "place": ranks[min(ranks)].place("b")}, _order)
    yield said if world > _OFTEN_DIVIDED_BY else replace(said, severity="warning")


def trained_in_evaluation(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Nearly all steps of a model with dropout or batch statistics were made in evaluation mode."""
    ranks = conducts(run)
    for one in ranks.values():
        if not any(2 * m.steps_in_eval > one.steps and (m.dropout or m.batch_norm) for m in one.models):
            return
    if ranks:
        one = ranks[min(ranks)]
        count = max(model.steps_in_eval for model in one.models)
        said = finding(rule, ranks, [], {"count": str(count), "of": str(one.steps)})
        yield said if count < one.steps else replace(said, severity="warning")  # from the first on: it may be meant


def evaluated_in_training(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Forward passes without gradients through a model with dropout, in training mode."""
    ranks = conducts(run)
    models = [model for one in ranks.values() for model in one.models if model.of_them_in_training]
    if any((m.dropout or m.batch_norm) and m.of_them_in_training == m.without_gradients >= 2 for m in models):
        place = next((one.place("e") for one in ranks.values() if one.place("e")), "")
        count = max(model.of_them_in_training for model in models)
        who = sorted(rank for rank, one in ranks.items() if any(model.of_them_in_training for model in one.models))
        yield finding(rule, ranks, who if len(who) < len(ranks) else [], {"count": str(count), "place": place})


def groups_in_loop(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A process group is made in step after step."""
    ranks = conducts(run)
    for one in ranks.values():
        made = {step for step in numbers(one.raw.get("groups")) if step}
        if len(made) < 4 or 2 * natural(one.raw.get("groups_made")) < one.steps:
            return
    if ranks:
        one = ranks[min(ranks)]
        yield finding(rule, ranks, [], {"count": str(natural(one.raw.get("groups_made"))), "steps": str(one.steps)})


def one_shard_unit(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The whole model is one unit of FSDP: in the forward pass every rank holds all of it."""
    ranks = conducts(run)
    for one in ranks.values():
        last = one.raw.get("sharded_last")
        blocks = natural(last.get("blocks")) if isinstance(last, Mapping) else 0
        if natural(one.raw.get("sharded_units")) != 1 or blocks < _UNITS or _is_small(as_dict(last)):
            return
    if ranks:
        yield finding(rule, ranks, [], {"blocks": str(ranks[min(ranks)].raw["sharded_last"]["blocks"])})


def _is_small(described: Mapping[str, Any]) -> bool:
    """To gather it as a whole costs nothing."""
    return 0 < natural(described.get("elements")) < _FEW_ELEMENTS


def views_of_more(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The parameters are views, and what they are views of is much larger than they are."""
    ranks = conducts(run)
    each = [_kept(one) for one in ranks.values()]
    if not each or len(ranks) < 2 or by_engine(ranks) or any(one.sharded for one in ranks.values()):
        return
    held, kept = each[0]
    if all(kept >= max(_MUCH_LARGER * held, held + _LEAST_BYTES) for held, kept in each):
        yield finding(rule, ranks, [], {"held": f"{held / 1e6:.0f}", "kept": f"{kept / 1e6:.0f}"})


def _kept(one: Conduct) -> tuple[int, int]:
    """Bytes of the parameters, and of what is in memory because of them, at the last look of each optimizer."""
    last = {natural(row.get("optimizer")): row for row in items(one.raw.get("replicas"))}
    return sum(natural(row.get("bytes")) for row in last.values()), sum(
        natural(r.get("storage")) for r in last.values()
    )


def spread_over_one(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What is to be sharded is spread over groups of one rank."""
    ranks = conducts(run)
    alone = [[what for what, size in as_dict(one.raw.get("spread")).items() if size == 1] for one in ranks.values()]
    if ranks and all(alone) and world_size(ranks) > 1:
        what = str(alone[0][0])
        fields = {"what": what, "ranks": str(world_size(ranks)), "place": ranks[min(ranks)].place(what)}
        yield finding(rule, ranks, [], fields)


def trained_alone(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks of one launch that train, and of which none ever joined a process group; or that all are rank 0 of 1."""
    seen = {
        rank: one for rank, one in seen_ranks(run).items() if natural(said_by(one.event).get("steps")) >= ENOUGH_STEPS
    }
    twins = [
        one for one in seen.values() if any(n.get("kind") == "twin" for n in items(said_by(one.event).get("notes")))
    ]
    size = max((natural(said_by(one.event).get("world_size")) for one in seen.values()), default=0)
    joined = have_met(one.event for one in seen.values())
    if twins and size == 1:
        events = [one.event for one in twins]
        yield on_events(rule, events[:3], (), {"how": "several processes of this job are each rank 0 of 1"})
    elif size > 1 and len(seen) == size and not joined:
        how = f"{size} ranks train, and none of them has joined a process group with another"
        yield on_events(rule, [one.event for one in seen.values()][:3], (), {"how": how})
