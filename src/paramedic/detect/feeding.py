"""What watched ranks were fed: the same batches, the same order in every epoch, samplers that count wrongly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations

from paramedic.detect.conduct import (
    Conduct,
    Loader,
    are_replicas,
    as_dict,
    by_engine,
    conducts,
    fed_unlike,
    finding,
    have_met,
    is_alone,
    items,
    natural,
    numbers,
    ran_out_of_data,
    world_size,
)
from paramedic.detect.recordings import WITHIN_A_MODEL
from paramedic.detect.watched import said_by
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_SAME = 3
"""Batches that must be alike before it is no chance."""
_ROWS = 24  # of a rank, at least, are held against another's
_CHANCE = 0.3
"""Of the rows that two ranks would have in common if both took theirs from the same ones."""
_EVERY_STEP, _STEPS = 0.8, 10
_POSITIONS, _FILLED = 4096, 0.25
"""Of masks, at least; the share that is no padding."""
_MANY_TARGETS, _IN_COMMON = 64, 0.1
_BATCHES, _EACH = 8, 8
"""So many batches, of so many targets each, are counted at least."""
_ALL_BUT, _SELDOM = 0.9, 0.25


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


def loaders_alike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """No loader that gives the replicas unlike batches, though what goes into the model is not the same."""
    ranks = conducts(run)
    loaders = [one.training for one in ranks.values()]
    if not loaders or not all(loaders) or not fed_unlike(ranks) or not _all_hold_all(run):
        return
    firsts = {tuple(loader.prints[:1] for loader in each) for each in loaders}
    first = firsts.pop()
    if not firsts and all(prints and len(set(prints[0])) >= _SAME for prints in first):
        loader = loaders[0][0]
        fields = {"count": str(len(first[0][0])), "sampler": loader.sampler, "place": loader.place}
        yield finding(rule, ranks, [], fields, _epochs)


def rows_shared(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Replicas go through the same rows, each in an order of its own."""
    ranks = conducts(run)
    loaders = [one.training[0] for one in ranks.values() if one.training]
    if len(loaders) < len(ranks) or len({loader.place for loader in loaders}) > 1 or not _all_hold_all(run):
        return
    passed = {loader.passed[:1] for loader in loaders}
    if len(passed) > 1 or any(len(one.rows) < _ROWS or len(set(one.rows)) < len(one.rows) for one in loaders):
        return  # rows that are alike in one rank's part say nothing about another's
    first, second = loaders[:2]
    (count,) = passed.pop()
    common = len(set(first.rows) & set(second.rows))
    dealt = all(one.sampler == "DistributedSampler" and one.replicas == len(ranks) for one in loaders)
    expected = 0.0 if dealt else len(first.rows) * len(second.rows) / max(count, len(first.rows))
    if common >= max(_SAME + len(ranks), _CHANCE * expected) and first.prints[:1] != second.prints[:1]:
        fields = {
            "common": str(common), "of": str(len(first.rows)), "count": str(count),
            "sampler": first.sampler, "place": first.place,
        }  # fmt: skip
        yield finding(rule, ranks, [], fields, _shared)


def _shared(one: Conduct) -> str:
    loader = one.training[0]
    return f"{loader.sampler}, {loader.passed[0]} rows in the first epoch, which begins with " + ", ".join(
        f"{value & 0xFFFFFFFF:08x}" for value in loader.rows[:4]
    )


def first_batch_only(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every step begins a new pass through the loader, and so gets its first batch again."""
    begun = _begun_anew(run)
    firsts = [{prints[0] for prints in loader.prints if prints} for loader in begun.values()]
    if begun and all(len(one) == 1 for one in firsts):
        loader = begun[min(begun)]
        fields = {"count": str(loader.begun), "place": loader.place}
        yield finding(rule, conducts(run), [], fields, _epochs)


def workers_begin_anew(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every step begins a new pass through the loader, which starts its workers again."""
    begun = _begun_anew(run)
    if begun and all(loader.workers for loader in begun.values()):
        loader = begun[min(begun)]
        fields = {"count": str(loader.begun), "workers": str(loader.workers), "place": loader.place}
        yield finding(rule, conducts(run), [], fields, _epochs)


def _begun_anew(run: Run) -> Mapping[int, Loader]:
    """The loader of each rank, where all of them begin a pass for nearly every step."""
    found = {}
    for rank, one in conducts(run).items():
        for loader in one.training:
            if one.steps >= _STEPS and loader.begun >= _EVERY_STEP * one.steps and loader.prints:
                found[rank] = loader
                break
        else:
            return {}
    return found


def never_combined(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank evaluates rows of its own, and nothing brings the ranks' results together."""
    ranks = conducts(run)
    loaders = {rank: [one for one in conduct.loaders if one.evaluations] for rank, conduct in ranks.items()}
    if not ranks or not all(loaders.values()):
        return
    places = set.intersection(*({one.place for one in each} for each in loaders.values()))
    for place in sorted(places):
        each = {rank: next(one for one in found if one.place == place) for rank, found in loaders.items()}
        alone = all(not done.calls for one in each.values() for done in one.evaluations)
        rows = [set(one.rows) for one in each.values()]
        apart = all(rows) and all(not (one & other) for one, other in combinations(rows, 2))
        if alone and apart:
            one = each[min(each)]
            yield finding(rule, ranks, [], {"count": str(len(one.evaluations)), "place": place}, _evaluated)
            return


def trained_on_held_out(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Rows that a rank keeps for its evaluation are trained on by another; not by itself, so it is not meant so."""
    ranks = conducts(run)
    trained = {rank: {row for loader in one.training for row in loader.rows} for rank, one in ranks.items()}
    kept = {
        rank: {
            row for loader in one.loaders if loader.evaluations and loader not in one.training for row in loader.rows
        }
        for rank, one in ranks.items()
    }
    if not ranks or any(len(kept[rank]) < _ROWS or kept[rank] & trained[rank] for rank in ranks):
        return
    for rank, other in permutations(ranks, 2):
        common = len(kept[rank] & trained[other])
        if common >= _SAME:
            fields = {"rank": str(rank), "other": str(other), "common": str(common), "of": str(len(kept[rank]))}
            yield finding(rule, ranks, [], fields)
            return


def _evaluated(one: Conduct) -> str:
    rows = [(loader, done) for loader in one.loaders for done in loader.evaluations][:3]
    return "; ".join(
        f"after step {done.step} {done.batches} batches of {loader.sampler}, {done.calls} collectives before training"
        for loader, done in rows
    )


def _all_hold_all(run: Run) -> bool:
    """Replicas, or ranks that hold the same parameters and use the same gradients."""
    ranks = conducts(run)
    looks = [one.looks.get((0, 1)) for one in ranks.values()]
    if any(is_alone(said_by(one.event)) for one in ranks.values()):
        return False  # each trains alone, which is another story
    if are_replicas(run):
        return True
    if not have_met(one.event for one in ranks.values()) and not any(one.models for one in ranks.values()):
        return False
    whole = not any(one.sharded for one in ranks.values()) and not by_engine(ranks)
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


def mostly_padding(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Of what the masks of the batches cover, most is padding."""
    ranks = conducts(run)
    filled, total = 0, 0
    for one in ranks.values():
        masks = [numbers(row.get("mask")) for row in items(one.raw.get("loaders"))]
        masks = [mask for mask in masks if len(mask) == 2 and mask[1]]
        if not masks:
            return
        filled, total = filled + int(masks[0][0]), total + int(masks[0][1])
    if ranks and total >= _POSITIONS and filled < _FILLED * total:
        place = ranks[min(ranks)].loaders[0].place
        yield finding(rule, ranks, [], {"share": f"{1 - filled / total:.0%}", "place": place})


_PADDED = 0.01
"""Of all rows, at least: less changes no score."""


def padded_rows_counted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """An evaluation's last rows are its first ones again: DistributedSampler fills up, and what is added up over the
    ranks counts them twice."""
    ranks = conducts(run)
    loaders = {rank: [one for one in conduct.loaders if one.only_evaluates] for rank, conduct in ranks.items()}
    if len(ranks) < 2 or not all(loaders.values()):
        return
    for place in sorted(set.intersection(*({one.place for one in each} for each in loaders.values()))):
        each = [next(one for one in loaders[rank] if one.place == place) for rank in sorted(loaders)]
        again = _filled_up(each)
        total = sum(len(one.rows) for one in each)
        if again >= _PADDED * total and again and all(done.calls for one in each for done in one.evaluations[:-1]):
            yield finding(rule, ranks, [], {"count": str(again), "of": str(total - again), "place": place}, _evaluated)
            return


def _filled_up(each: Sequence[Loader]) -> int:
    """How many rows at the end are those at the front, in the order in which the sampler deals them out."""
    sizes = {len(one.rows) for one in each}
    whole = all(one.passed and one.passed[0] == len(one.rows) for one in each)
    dealt = all(one.sampler == "DistributedSampler" and one.replicas == len(each) for one in each)
    if len(sizes) != 1 or not whole or not dealt or sorted(one.rank or 0 for one in each) != list(range(len(each))):
        return 0
    by_rank = sorted(each, key=lambda one: one.rank or 0)
    order = [one.rows[number] for number in range(min(sizes)) for one in by_rank]
    for count in range(len(each) - 1, 0, -1):
        if order[-count:] == order[:count] and len(set(order)) == len(order) - count:
            return count
    return 0


_WITH_MOMENTS = ("Adam", "RMSprop", "Adagrad", "Adadelta", "Lion", "LAMB", "Rprop", "Muon", "Adafactor")


def ran_out_apart(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In each of several epochs some ranks stop stepping before the others, as `Join` allows: their weights are sent to
    them at its end, and moments and schedule are not."""
    ranks = conducts(run)
    if len(ranks) < 2 or not all(one.models for one in ranks.values()):
        return
    if (
        not ran_out_of_data(ranks)
        or any(one.sharded for one in ranks.values())
        or any(map(_sends_moments, ranks.values()))
    ):
        return
    begun = {rank: one.training[0].steps for rank, one in ranks.items() if len(one.training) == 1}
    epochs = {len(steps) for steps in begun.values()}
    if len(begun) < len(ranks) or epochs in ({0}, {1}) or len(epochs) != 1:
        return
    seconds = {rank: steps[1] - steps[0] for rank, steps in begun.items()}
    used = [items(one.raw.get("optimizers")) for one in ranks.values()]
    moments = all(len(each) == 1 and str(each[0].get("type")).startswith(_WITH_MOMENTS) for each in used)
    most, least = max(seconds.values()), min(seconds.values())
    if moments and least > 0 and most - least > 1:
        fields = {"most": str(most), "least": str(least), "type": str(used[0][0].get("type"))}
        yield finding(rule, ranks, [], fields)


def _sends_moments(one: Conduct) -> bool:
    """Between two steps it sends twice what the model holds, or more: Adam's two moments, say."""
    elements = max((look.elements for look in one.looks.values()), default=0)
    return bool(elements) and natural(one.raw.get("moved_most")) >= 2 * elements


def classes_apart(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The replicas' targets have next to no class in common."""
    ranks = conducts(run)
    counts = {rank: _counts(one) for rank, one in ranks.items()}
    if not _all_hold_all(run) or len({len(one) for one in counts.values()}) != 1:
        return
    if (
        min(sum(one) for one in counts.values()) < _MANY_TARGETS
        or sum(map(any, zip(*counts.values(), strict=True))) < 2
    ):
        return
    shares = [[value / sum(one) for value in one] for one in counts.values()]
    common = max(sum(map(min, one, other)) for one, other in combinations(shares, 2))
    if common <= _IN_COMMON:
        yield finding(rule, ranks, [], {"share": f"{common:.0%}", "classes": str(len(shares[0]))}, _classes)


def one_class_at_a_time(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Nearly every batch holds one class alone, though the same rank comes to others."""
    ranks = conducts(run)
    for one in ranks.values():
        known = as_dict(one.raw.get("classes"))
        batches, changes = natural(known.get("batches")), natural(known.get("changes"))
        seldom = changes <= batches * _SELDOM if sum(map(bool, _counts(one))) < 3 else True  # two tasks take turns
        if known.get("binary"):
            return  # true and made up samples may take turns
        if not _counts(one) or not changes or natural(known.get("single")) < _ALL_BUT * batches or not seldom:
            return
    if ranks:
        count = str(natural(as_dict(ranks[min(ranks)].raw["classes"]).get("batches")))
        yield finding(rule, ranks, [], {"count": count}, _classes)


def _counts(one: Conduct) -> tuple[int, ...]:
    """Of each class, in the batches that were counted; nothing where these are few, or where a batch has none twice:
    they may be places in a batch, as in contrasts, and no classes."""
    known = as_dict(one.raw.get("classes"))
    counts = numbers(known.get("counts"))
    batches = natural(known.get("batches"))
    enough = batches >= _BATCHES and sum(counts) >= _EACH * batches
    return counts if enough and max(counts) > batches else ()


def _classes(one: Conduct) -> str:
    counts = _counts(one)
    most = sorted(range(len(counts)), key=lambda number: -counts[number])[:6]
    return "targets by class: " + ", ".join(f"{number}: {counts[number]}" for number in most if counts[number])
