"""Replicas that were watched: who started unlike, whose gradients were not averaged, who stepped otherwise."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise, zip_longest

from paramedic.detect import boxes
from paramedic.detect.conduct import (
    Conduct,
    Look,
    are_replicas,
    are_sharded,
    by_engine,
    conducts,
    dealt_out,
    finding,
    items,
    natural,
    numbers,
    ran_out_of_data,
)
from paramedic.detect.learning import rates_shown, share_rounded_away
from paramedic.detect.once import once
from paramedic.detect.ranks import listed
from paramedic.detect.recordings import odd_ones
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.model import Finding, Run

PERSISTS = 2
_ROUNDING, _TINY = 0.02, 1e-7  # a hook may round what it sends; sum and mean are far apart
_MOST = 0.9
_FED_ALIKE = ("DATA410", "DATA412")
_SCALE_FREE = frozenset(
    ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adagrad", "Adadelta", "Adafactor", "Lion", "Rprop")
)
"""Optimizers that divide a factor of all gradients out again."""


@dataclass(frozen=True, slots=True)
class Step:
    """The same look of all ranks."""

    number: int
    looks: Mapping[int, Look]

    @property
    def parameters_agree(self) -> bool:
        return len({look.parameters for look in self.looks.values()}) == 1

    @property
    def gradients_agree(self) -> bool:
        return len({look.gradients for look in self.looks.values()}) == 1


@once
def steps_of(run: Run) -> list[Step]:
    """Of an optimizer, where all ranks hold tensors of the same shapes and were looked at; of the first but for where
    only another shows that they have parted."""
    ranks = conducts(run)
    optimizers = sorted({optimizer for one in ranks.values() for optimizer, _ in one.looks})
    each = [_steps_of(ranks, optimizer) for optimizer in optimizers]
    apart = [steps for steps in each if any(not (one.parameters_agree and one.gradients_agree) for one in steps)]
    return (apart or each or [[]])[0]


def _steps_of(ranks: Mapping[int, Conduct], number: int) -> list[Step]:
    at: dict[int, dict[int, Look]] = defaultdict(dict)
    for rank, one in ranks.items():
        for (optimizer, step), look in one.looks.items():
            if optimizer == number and look.parameters is not None and look.gradients is not None:
                at[step][rank] = look
    whole = [Step(step, looks) for step, looks in sorted(at.items()) if len(looks) == len(ranks)]
    return [one for one in whole if len({look.shapes for look in one.looks.values()}) == 1]


def gradients_not_averaged(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Replicas that began alike step with gradients of their own, and part; so do whole parameters beside shards."""
    steps = steps_of(run)
    if not (are_replicas(run) or are_sharded(run)) or len(steps) < PERSISTS or not steps[0].parameters_agree:
        return
    apart = [one for one in steps if not one.gradients_agree]
    if len(apart) < PERSISTS or any(one.parameters_agree for one in steps[1:]) or _take_turns(steps[1:]):
        return
    ranks = conducts(run)
    first = apart[0]
    who = odd_ones({rank: look.gradients for rank, look in first.looks.items()})
    fields = {"step": str(first.number), "how": _how(ranks, first), "place": _forward(ranks)}
    yield finding(rule, ranks, who, fields, digests)


def _take_turns(steps: Sequence[Step]) -> bool:
    """Now these ranks have the same parameters, now those: each averages them with another partner every time."""
    alike = set()
    for one in steps:
        groups = defaultdict(list)
        for rank, look in one.looks.items():
            groups[look.parameters].append(rank)
        alike.add(frozenset(tuple(members) for members in groups.values() if len(members) > 1))
    return len(alike - {frozenset()}) > 1


def digests(one: Conduct) -> str:
    """As they can be held against another rank's."""
    looks = [(step, look) for (optimizer, step), look in sorted(one.looks.items()) if not optimizer][:3]
    rows = [
        f"step {step}: parameters {_hex(look.parameters)}, gradients {_hex(look.gradients)}" for step, look in looks
    ]
    return "; ".join(rows)


def _hex(value: int | None) -> str:
    return "none" if value is None else f"{value & 0xFFFFFFFF:08x}"


def _how(ranks: Mapping[int, Conduct], step: Step) -> str:
    """What the program did in place of averaging."""
    return next(_ways(ranks, step), "")


def _ways(ranks: Mapping[int, Conduct], step: Step) -> Iterator[str]:
    models = [model for one in ranks.values() for model in one.models]
    if models and not any(model.forwards for model in models):
        yield "; the model inside DDP is called, not DDP itself"
    if models and all(model.not_averaged == model.forwards for model in models):
        yield "; every forward pass runs under no_sync()"
    groups = defaultdict(list)
    for rank, look in step.looks.items():
        groups[look.gradients].append(rank)
    if len(groups) > 1 and all(len(members) > 1 for members in groups.values()):
        yield "; they agree only among ranks " + " and among ranks ".join(map(listed, groups.values()))
    each = list(zip(*(look.each_gradients for look in step.looks.values()), strict=False))
    unlike = sum(len(set(one)) > 1 for one in each)
    if 0 < unlike < len(each):
        yield f"; {unlike} of {len(each)} parameters are not averaged, the others are"
    if any(one.sharded for one in ranks.values()):
        yield f"; these {len(each)} parameters are in no unit of FSDP"
    orders = {one.usual_order() for one in ranks.values()}
    if any(re.search(r"n[^f]*s$", order) for order in orders):
        yield "; the last backward pass before the step runs under no_sync()"
    if any(order.startswith("r") and "r" not in order[order.rfind("b") :] for order in orders):
        yield "; they are summed after the optimizer has used them"
    if not models and not any("r" in order for order in orders):
        yield "; nothing between the backward pass and the step averages them"


def _forward(ranks: Mapping[int, Conduct]) -> str:
    places = [one.place(letter) for one in ranks.values() for letter in "fnb" if one.place(letter)]
    return places[0] if places else ""


def started_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Averaged gradients, but parameters that were never the same."""
    steps = steps_of(run)
    alike = [one for one in steps if one.gradients_agree]
    if not are_replicas(run) or len(alike) < PERSISTS or any(one.parameters_agree for one in steps):
        return
    first = steps[0]
    each = list(zip(*(look.each_parameters for look in first.looks.values()), strict=False))
    unlike = sum(len(set(one)) > 1 for one in each)
    who = odd_ones({rank: look.parameters for rank, look in first.looks.items()})
    count = f"{unlike} of {len(each)}" if unlike < len(each) else f"all {len(each)}"
    one = finding(rule, conducts(run), who, {"step": str(first.number), "count": count}, digests)
    if unlike < len(each) and _exchanges_rows(run):  # experts of their own: not replicas, and averaged as if they were
        one = replace(one, symptom=load_taxonomy().symptom("silent-wrong-result"), ranks=())
    yield one


def _exchanges_rows(run: Run) -> bool:
    """Each rank sends rows to others on the way to the loss, as experts do that are dealt out."""
    return any(call.op.startswith("all_to_all") for calls in boxes.calls_of(run).values() for call in calls)


def stepped_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same parameters and gradients before a step, and other parameters after it."""
    steps = steps_of(run)
    ranks = conducts(run)
    if not are_replicas(run) or ran_out_of_data(ranks):
        return
    rates = _common_rates(ranks)
    same_rates = len(set(rates.values())) == 1
    for before, after in pairwise(steps):
        if before.parameters_agree and before.gradients_agree and not after.parameters_agree:
            if not after.gradients_agree and same_rates:
                return  # gradients have parted between the two looks: that is the first thing to say
            who = odd_ones({rank: look.parameters for rank, look in after.looks.items()})
            why = "" if same_rates else "; their learning rates differ"
            yield finding(rule, ranks, who or odd_ones(rates), {"step": str(before.number), "why": why}, digests)
            return


def nothing_changes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Step after step, and no parameter moves."""
    ranks = conducts(run)
    looks = {rank: [one.looks[at] for at in sorted(one.looks) if not at[0]] for rank, one in ranks.items()}
    if (
        by_engine(ranks)
        or not looks
        or not all(len(one) > PERSISTS and len({look.parameters for look in one}) == 1 for one in looks.values())
    ):
        return
    if all(share_rounded_away(one) == 1 for one in ranks.values()):
        return  # NUM427 knows why
    zero = all(rate == 0 for one in ranks.values() for rates in one.rates.values() for rate in rates)
    without = all(look.gradients is None for one in looks.values() for look in one)
    why = "; the learning rate is 0" if zero else "; what the optimizer holds gets no gradients" if without else ""
    last = max(step for one in ranks.values() for _, step in one.looks)
    yield finding(rule, ranks, [], {"step": str(last), "why": why}, digests)


def summed_not_averaged(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What the step uses is the sum of the ranks' own gradients; of parts of one model that may be meant."""
    ranks = conducts(run)
    if _begin_unlike(ranks):
        return
    orders = {one.usual_order() for one in ranks.values()}
    if (
        by_engine(ranks)
        or len(orders) != 1
        or set("cxu") & set("".join(orders))
        or any(one.sharded for one in ranks.values())
    ):
        return
    own = not any(model.forwards for one in ranks.values() for model in one.models)
    loss = [factor for one in ranks.values() for each in one.factors for factor in each]
    if own and any(0 < factor * len(ranks) < 1 + 1e-6 for factor in loss):
        return  # divided before, by the number of ranks or by the batch of all of them
    rows = _matched(ranks, "sums", ("step",), "after backward", "at step") if own else []
    rows += _matched(ranks, "buckets", ("step", "bucket"), "before", "after")
    sums = [
        used for before, used in rows if are_close(used, sum(before)) and not are_close(used, sum(before) / len(before))
    ]
    if len(sums) >= PERSISTS and len(sums) == len(rows):
        hook = str(next(iter(ranks.values())).raw.get("hook") or "")
        how = f" by the communication hook {hook.rpartition('.')[2]}" if hook and not own else ""
        one = finding(rule, ranks, [], {"ranks": str(len(ranks)), "how": how, "place": _reduced(ranks)}, _summed)
        used = {str(row.get("type")) for rank in ranks.values() for row in items(rank.raw.get("optimizers"))}
        yield replace(one, severity="warning") if used and used <= _SCALE_FREE else one


def _begin_unlike(ranks: Mapping[int, Conduct]) -> bool:
    """Some optimizer trains something else on each rank from its first look on."""
    first: dict[int, int] = {}
    for optimizer, step in sorted(look for one in ranks.values() for look in one.looks):
        first.setdefault(optimizer, step)
    return any(len({one.looks[at].parameters for one in ranks.values() if at in one.looks}) > 1 for at in first.items())


def gradients_alike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Replicas that send their gradients to be averaged have the same ones before: each does what the others do."""
    ranks = conducts(run)
    steps = steps_of(run)
    if len(ranks) < 2 or by_engine(ranks) or any(one.sharded or one.models for one in ranks.values()):
        return
    if not steps or not all(one.parameters_agree for one in steps) or not all(map(_sends_gradients, ranks.values())):
        return
    at: dict[int, set[float]] = defaultdict(set)
    for one in ranks.values():
        for row in items(one.raw.get("sums")):
            value, used = row.get("after backward"), row.get("at step")
            if isinstance(value, float) and isinstance(used, float):
                if not are_close(used, value) and not are_close(used, len(ranks) * value):
                    return  # the backward pass went elsewhere, and that is what is left of the step before
                at[natural(row.get("step"))].add(value)
    alike = [step for step, values in sorted(at.items()) if len(values) == 1 and abs(next(iter(values))) > _TINY]
    if len(alike) > PERSISTS and len(alike) == len(at) and not any(one.rule in _FED_ALIKE for one in found):
        fields = {"count": str(len(alike)), "step": str(alike[-1]), "place": _reduced(ranks)}
        yield finding(rule, ranks, [], fields, _summed)


def _sends_gradients(one: Conduct) -> bool:
    """Between the backward pass and the step it sends as much as it has parameters."""
    elements = max((look.elements for (optimizer, _), look in one.looks.items() if not optimizer), default=0)
    moved = numbers(one.raw.get("moved"))[1:]
    return bool(re.search(r"b\+?r", one.usual_order()) and elements and moved and min(moved) >= _MOST * elements)


def _summed(one: Conduct) -> str:
    rows = [(row, "after backward", "at step") for row in items(one.raw.get("sums"))]
    rows += [(row, "before", "after") for row in items(one.raw.get("buckets"))]
    known = [(row[own], row[used]) for row, own, used in rows if own in row and used in row]
    said = [f"{a:.6g} became {b:.6g}" for a, b in known if isinstance(a, float) and isinstance(b, float)]
    return "the sum of a gradient: " + ", ".join(said[:3])


def _matched(
    ranks: Mapping[int, Conduct], what: str, keys: Sequence[str], before: str, after: str
) -> list[tuple[list[float], float]]:
    """What each rank had, and what all of them then got."""
    at: dict[tuple[int, ...], list[tuple[float, float]]] = defaultdict(list)
    for one in ranks.values():
        for row in items(one.raw.get(what)):
            if isinstance(row.get(before), float) and isinstance(row.get(after), float):
                at[tuple(natural(row.get(key)) for key in keys)].append((row[before], row[after]))
    whole = [rows for rows in at.values() if len(rows) == len(ranks)]
    return [
        ([own for own, _ in rows], rows[0][1])
        for rows in whole
        if all(are_close(got, rows[0][1]) for _, got in rows) and abs(sum(own for own, _ in rows)) > _TINY
    ]


def are_close(one: float, other: float) -> bool:
    return abs(one - other) <= _ROUNDING * max(abs(one), abs(other))


def _reduced(ranks: Mapping[int, Conduct]) -> str:
    return next((one.place("r") for one in ranks.values() if one.place("r")), "")


def left_out_of_optimizer(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Parameters that ask for gradients, and that no optimizer has."""
    ranks = conducts(run)
    left = {rank: max((model.in_no_optimizer for model in one.models), default=0) for rank, one in ranks.items()}
    if ranks and all(left.values()) and all(one.looks for one in ranks.values()) and not dealt_out(ranks):
        one = ranks[min(ranks)]
        model = max(one.models, key=lambda model: model.in_no_optimizer)
        yield finding(rule, ranks, [], {"count": str(model.in_no_optimizer), "of": str(model.parameters)})


def rates_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Replicas that step with different learning rates; so do parts of one model that began with the same one."""
    ranks = conducts(run)
    steps = [one.steps for one in ranks.values()]
    if steps and max(steps) - min(steps) > 1:
        return  # each goes its own way
    rates = _common_rates(ranks)
    began_alike = len({one[:1] for one in rates.values()}) == 1 and not by_engine(ranks)
    alike = are_replicas(run)
    if not (alike or began_alike) or not all(rates.values()) or len(set(rates.values())) == 1:
        return
    shown = " and ".join(_unlike_rates(rates.values())[:3])
    one = finding(rule, ranks, odd_ones(rates) or _never_advanced(ranks), {"rates": shown}, rates_shown)
    yield one if alike else replace(one, symptom=load_taxonomy().symptom("silent-wrong-result"))


_Rates = tuple[tuple[int, tuple[float, ...]], ...]


def _common_rates(ranks: Mapping[int, Conduct]) -> dict[int, _Rates]:
    """At the steps at which all ranks were seen: one may be a step ahead, or have ended before the others."""
    common = sorted(set.intersection(*(set(one.rates) for one in ranks.values()))) if ranks else []
    return {rank: tuple((step, one.rates[step]) for step in common) for rank, one in ranks.items()}


def _unlike_rates(rates: Iterable[_Rates]) -> list[str]:
    """Of the last step at which they differ, those of the first group of parameters that has other ones."""
    *_, last = (here for here in zip(*rates, strict=True) if len(set(here)) > 1)
    found = next(each for each in zip_longest(*(values for _, values in last)) if len(set(each)) > 1)
    known = {rate for rate in found if rate is not None}
    short = sorted({f"{rate:g}" for rate in known})
    return short if len(short) == len(known) else sorted(map(repr, known))


def _never_advanced(ranks: Mapping[int, Conduct]) -> list[int]:
    """Whose schedule stands still while the others' goes on."""
    calls = {
        rank: sum(natural(row.get("calls")) for row in items(one.raw.get("schedules"))) for rank, one in ranks.items()
    }
    return sorted(rank for rank, count in calls.items() if not count) if any(calls.values()) else []


def unlike_beside(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A network that is used and not trained has other parameters on other ranks."""
    ranks = conducts(run)
    rows = {rank: items(one.raw.get("beside")) for rank, one in ranks.items()}
    kinds = {tuple((str(row.get("type")), natural(row.get("shapes"))) for row in one) for one in rows.values()}
    if len(ranks) < 2 or len(kinds) != 1 or not (are_replicas(run) or are_sharded(run)):
        return
    for number, (kind, _) in enumerate(kinds.pop()):
        prints = {rank: value for rank, one in rows.items() if isinstance(value := one[number].get("print"), int)}
        if len(prints) == len(rows) and len(set(prints.values())) > 1:
            yield finding(rule, ranks, odd_ones(prints), {"type": str(kind)})
            return


def buffers_part(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Buffers that training changes, and that nobody sends, are others on other ranks."""
    ranks = conducts(run)
    rows = {rank: items(one.raw.get("buffers")) for rank, one in ranks.items()}
    kinds = {tuple((str(row.get("type")), natural(row.get("elements"))) for row in one) for one in rows.values()}
    if len(ranks) < 2 or len(kinds) != 1 or not are_replicas(run):
        return
    for number, (kind, elements) in enumerate(kinds.pop()):
        prints = {rank: numbers(one[number].get("prints")) for rank, one in rows.items()}
        moved = all(len(set(one)) > 1 for one in prints.values())
        if moved and len({one[-1] for one in prints.values()}) > 1:
            yield finding(rule, ranks, [], {"type": kind, "elements": f"{elements:,}"})
            return
