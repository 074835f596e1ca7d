"""Ranks that hold parts of one model, and were watched: what they have in common and let drift, clip by their own part,
or average with ranks that hold another."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import combinations

from paramedic.detect.conduct import (
    Conduct,
    Look,
    as_dict,
    as_list,
    by_engine,
    conducts,
    finding,
    items,
    natural,
    numbers,
)
from paramedic.detect.ranks import listed
from paramedic.detect.replicas import PERSISTS, Step, are_close, digests, steps_of
from paramedic.detect.sentinels import values_of
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_LARGEST_SPREAD, _BY_HAND = 1.01, 1.0002
"""Of the same norm, between ranks: sums in another order differ far less; what one sends to all does not differ."""
_TENSOR_PARALLEL = ("tp", "tensor", "tensor_parallel", "model", "mp")


def whole_parts_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks hold parts of a model and, beside them, whole tensors that began alike. With the same loss some of these
    get the same gradients on all ranks, and others, further from it, do not."""
    ranks = conducts(run)
    steps = [one for one in steps_of(run) if min(len(look.each_gradients) for look in one.looks.values())]
    if len(steps) <= PERSISTS or steps[0].number != 1 or by_engine(ranks):
        return
    if not all(re.match(r"[^b]*r", one.usual_order()) for one in ranks.values()):
        return  # nothing is sent on the way to the loss
    first = list(zip(*(look.each_parameters for look in steps[0].looks.values()), strict=False))
    whole = [number for number, one in enumerate(first) if len(set(one)) == 1 and one[0]]  # 0: constants
    parts = [number for number, one in enumerate(first) if len(set(one)) > 1]
    apart = [number for number in whole if _unlike_gradients(steps[0], number)]
    if not parts or not apart or len(apart) == len(whole) or apart[0]:
        return
    later = [one for one in steps[1:] if all(_unlike_parameters(one, number) for number in apart)]
    if len(later) == len(steps) - 1 and _far_apart(ranks):
        fields = {"count": str(len(apart)), "of": str(len(whole)), "place": ranks[min(ranks)].place("r")}
        yield finding(rule, ranks, [], fields, digests)


def _unlike_gradients(step: Step, number: int) -> bool:
    return len({look.each_gradients[number : number + 1] for look in step.looks.values()}) > 1


def _unlike_parameters(step: Step, number: int) -> bool:
    return len({look.each_parameters[number : number + 1] for look in step.looks.values()}) > 1


def _far_apart(ranks: Mapping[int, Conduct]) -> bool:
    """Of the first gradient, by more than sums in another order differ."""
    at: dict[int, list[float]] = defaultdict(list)
    for one in ranks.values():
        for row in items(one.raw.get("sums")):
            if isinstance(value := row.get("at step"), float):
                at[natural(row.get("step"))].append(value)
    return sum(not are_close(min(values), max(values)) for values in at.values()) >= max(PERSISTS, len(at) - 1)


def norms_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that hold shards clip by the norm of what they hold."""
    ranks = conducts(run)
    sharded = all(one.sharded or one.raw.get("sharded_units") for one in ranks.values())
    if not ranks or by_engine(ranks) or not (sharded or _begin_with_parts(run)):
        return
    at: dict[int, dict[int, float]] = defaultdict(dict)
    for rank, one in ranks.items():
        for step, value in _norms(one):
            at[step][rank] = value
    unlike = [
        (step, here)
        for step, here in sorted(at.items())
        if len(here) == len(ranks)
        and max(here.values()) > (_LARGEST_SPREAD if sharded else _BY_HAND) * min(here.values()) > 0
    ]
    if len(unlike) >= PERSISTS and (sharded or unlike[0][0] == min(at)):
        step, here = unlike[0]
        shown = ", ".join(f"{value:.4g}" for value in list(here.values())[:4])
        yield finding(
            rule, ranks, [], {"step": str(step), "norms": shown, "place": ranks[min(ranks)].place("c")}, _clipped
        )


def _begin_with_parts(run: Run) -> bool:
    """Some tensors are others on each rank from the first step on, beside some that all have in common."""
    steps = steps_of(run)
    first = list(zip(*(look.each_parameters for look in steps[0].looks.values()), strict=False)) if steps else []
    alike = [len(set(one)) == 1 for one in first if any(one)]
    return bool(steps) and steps[0].number == 1 and any(alike) and not all(alike)


def averaged_over_parts(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that hold unlike parts use the same gradients, and those that hold the same part do not."""
    ranks = conducts(run)
    steps = steps_of(run)
    if len(ranks) < 4 or len(steps) < PERSISTS or steps[0].number != 1 or by_engine(ranks):
        return
    copies = _alike({rank: look.parameters for rank, look in steps[0].looks.items()})
    if not all(map(_several, copies)) or len(copies) < 2:
        return
    for one in steps:
        together = _alike({rank: look.gradients for rank, look in one.looks.items()})
        if len(together) < 2 or not all(map(_several, together)):
            return
        if any(len(set(members) & set(same)) > 1 for members in together for same in copies):
            return
    groups = " and among ranks ".join(map(listed, together))
    yield finding(rule, ranks, [], {"groups": groups, "copies": " and ".join(map(listed, copies))}, digests)


def _alike(values: Mapping[int, Hashable]) -> list[list[int]]:
    """Ranks that have the same."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for rank, value in sorted(values.items()):
        found[value].append(rank)
    return list(found.values())


def _several(members: Sequence[int]) -> bool:
    return len(members) > 1


def mesh_never_used(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A mesh has a dimension for parts of the model, and no parameter is held in parts."""
    ranks = conducts(run)
    if not ranks or any(one.sharded for one in ranks.values()) or by_engine(ranks):
        return
    if any(re.match(r"[^b]*r", one.usual_order()) or not one.looks for one in ranks.values()):
        return  # parts that send their activations by hand
    each = [as_dict(one.raw.get("meshes")) for one in ranks.values()]
    names = [name for name, size in each[0].items() if natural(size) > 1 and str(name) in _TENSOR_PARALLEL]
    gathers = [natural(count) for one in ranks.values() for count in as_list(one.raw.get("gathers"))]
    if names and all(names[0] in one for one in each) and not any(gathers):
        fields = {"name": str(names[0]), "size": str(natural(each[0][names[0]]))}
        yield finding(rule, ranks, [], {**fields, "place": ranks[min(ranks)].place("mesh")})


def _clipped(one: Conduct) -> str:
    return "norms " + ", ".join(f"{value:.6g} at step {step}" for step, value in _norms(one)[:3])


def _norms(one: Conduct) -> list[tuple[int, float]]:
    return [(step, float(value)) for step, value in values_of(one.event, "clipped_norm") if isinstance(value, float)]


def tied_copies_part(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Two stages of a model begin with the same matrix, at unlike places: one that they share, and then do not."""
    ranks = conducts(run)
    looks = {rank: sorted((at, look) for at, look in one.looks.items() if not at[0]) for rank, one in ranks.items()}
    shapes = {rank: _shapes(one) for rank, one in ranks.items()}
    if by_engine(ranks) or any(len(one) <= PERSISTS or one[0][0][1] != 1 for one in looks.values()):
        return
    for one, other in combinations(sorted(ranks), 2):
        if looks[one][0][1].shapes == looks[other][0][1].shapes:
            continue  # replicas, or parts of the same layers
        for mine, theirs in _same(looks[one][0][1], looks[other][0][1], shapes[one], shapes[other]):
            later = [
                (a.each_parameters[mine], b.each_parameters[theirs])
                for (_, a), (_, b) in zip(looks[one][1:], looks[other][1:], strict=False)
                if len(a.each_parameters) > mine and len(b.each_parameters) > theirs
            ]
            if len(later) >= PERSISTS and all(a != b for a, b in later):
                yield finding(rule, ranks, [one, other], {"one": str(one), "other": str(other)}, digests)
                return


def _shapes(one: Conduct) -> tuple[int, ...]:
    rows = [row for row in items(one.raw.get("replicas")) if not natural(row.get("optimizer"))]
    return numbers(rows[0].get("matrices")) if rows else ()


def _same(one: Look, other: Look, shapes: Sequence[int], others: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Matrices that two ranks have in common, but for those before which both have as many: the same seed makes the
    same."""
    at = {
        (shape, value): number
        for number, (shape, value) in enumerate(zip(others, other.each_parameters, strict=False))
        if shape and value
    }
    for number, (shape, value) in enumerate(zip(shapes, one.each_parameters, strict=False)):
        place = at.get((shape, value))
        if place is not None and sum(map(bool, shapes[:number])) != sum(map(bool, others[:place])):
            yield number, place
