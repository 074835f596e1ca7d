"""What watched ranks were fed: the same batches, the same order in every epoch, samplers that count wrongly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from paramedic.detect.conduct import (
    Conduct,
    Loader,
    are_replicas,
    by_engine,
    conducts,
    finding,
    items,
    numbers,
    world_size,
)
from paramedic.detect.recordings import WITHIN_A_MODEL
from paramedic.detect.watched import said_by
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_SAME = 3
"""Batches that must be alike before it is no chance."""


def _batches(one: Conduct) -> str:
    """As they can be held against another rank's."""
    return "first batches " + ", ".join(f"{value & 0xFFFFFFFF:08x}" for value in one.first_batches[:4])


def _epochs(one: Conduct) -> str:
    loader = one.training[0]
    rows = [", ".join(f"{value & 0xFFFFFFFF:08x}" for value in prints[:3]) for prints in loader.prints[:3]]
    return f"{loader.sampler}; epochs begin with " + " | ".join(rows)


def _samplers(one: Conduct) -> str:
    rows = [loader for loader in one.training if loader.replicas is not None][:2]
    return "; ".join(f"{loader.sampler} of {loader.replicas}, part {loader.rank}" for loader in rows)


def fed_alike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Replicas that were given the same batches, one after the other."""
    ranks = conducts(run)
    fed = {rank: one.first_batches for rank, one in ranks.items()}
    count = min((len(one) for one in fed.values()), default=0)
    if count < _SAME or not _all_hold_all(run):
        return
    firsts = {prints[:count] for prints in fed.values()}
    if len(firsts) == 1 and len(set(next(iter(firsts)))) > 1:
        loader = next((loader for one in ranks.values() for loader in one.training), None)
        fields = {
            "count": str(count),
            "sampler": loader.sampler if loader else "",
            "place": loader.place if loader else "",
        }
        yield finding(rule, ranks, [], fields, _batches)


def _all_hold_all(run: Run) -> bool:
    """Replicas, or ranks that hold the same parameters and use the same gradients."""
    if are_replicas(run):
        return True
    looks = [one.looks.get((0, 1)) for one in conducts(run).values()]
    whole = not any(one.sharded for one in conducts(run).values()) and not by_engine(conducts(run))
    return whole and None not in looks and len({look.parameters for look in looks if look}) == 1


def order_repeats(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loader that shuffles gives the same batches in the same order, epoch after epoch."""
    ranks = conducts(run)
    repeating = {rank: one for rank, conduct in ranks.items() if (one := _repeating(conduct)) is not None}
    if repeating and len(repeating) == len(ranks):
        loader = repeating[min(repeating)]
        known = [epoch for epoch in loader.epochs if epoch is not None]
        why = f"; its sampler is at epoch {known[0]} each time" if known and len(set(known)) == 1 else ""
        yield finding(rule, ranks, [], {"epochs": str(len(loader.prints)), "place": loader.place, "why": why}, _epochs)


def _repeating(one: Conduct) -> Loader | None:
    for loader in one.training:
        epochs = [prints for prints in loader.prints if len(prints) > 1]
        went_on = len(loader.steps) > 1 and loader.steps[-1] > loader.steps[0]
        if loader.shuffle and went_on and len(epochs) > 1 and len(set(epochs)) == 1 and len(set(epochs[0])) > 1:
            return loader
    return None


def sampler_counts_wrongly(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The sampler deals the data out to fewer or more than there are replicas, or two ranks take the same part."""
    ranks = conducts(run)
    world = world_size(ranks)
    parts = {rank: _part(one) for rank, one in ranks.items()}
    if not are_replicas(run) or None in parts.values() or len(ranks) != world:
        return
    counted = {part[0] for part in parts.values() if part}
    taken = {part for part in parts.values() if part}
    if counted != {world} or len(taken) < world:
        one = ranks[min(ranks)]
        fields = {"replicas": str(min(counted)), "ranks": str(world), "place": one.training[0].place}
        yield finding(rule, ranks, [], fields, _samplers)


def _part(one: Conduct) -> tuple[int, int] | None:
    for loader in one.training:
        if loader.replicas is not None and loader.rank is not None:
            return loader.replicas, loader.rank
    return None


def workers_repeat(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each worker of a loader goes through the whole stream by itself."""
    ranks = conducts(run)
    for rank, one in sorted(ranks.items()):
        for loader in one.training:
            first = loader.prints[0][: loader.workers] if loader.prints else ()
            if loader.workers > 1 and len(first) > 1 and len(set(first)) == 1 and len(set(loader.prints[0])) <= 2:
                if len(set(loader.prints[0])) == 1 and len(loader.prints[0]) > len(first):
                    continue  # the same batch for ever: a program that tries something out
                yield finding(
                    rule, ranks, [], {"workers": str(loader.workers), "place": loader.place, "rank": str(rank)}
                )
                return


def parts_of_a_model_fed_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that hold parts of one model were given different batches."""
    ranks = conducts(run)
    for members in _sharing(run, ranks):
        fed = {rank: ranks[rank].first_batches for rank in members}
        count = min(len(one) for one in fed.values())
        if count >= _SAME and not set.intersection(*(set(one[:count]) for one in fed.values())):
            yield finding(rule, ranks, [], {"pair": f"{members[0]} and {members[1]}"}, _batches)
            return


def _sharing(run: Run, ranks: Mapping[int, Conduct]) -> list[list[int]]:
    """Members of groups whose name says that they share one model."""
    found = []
    for one in ranks.values():
        for group in items(said_by(one.event).get("groups")):
            if str(group.get("desc") or "").removeprefix("mesh_") in WITHIN_A_MODEL:
                members = [rank for rank in numbers(group.get("ranks")) if rank in ranks]
                if len(members) > 1 and members not in found:
                    found.append(members)
    return found
