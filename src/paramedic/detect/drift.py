"""Values that must agree and do not: between copies of a model, with what was saved."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from paramedic.detect.loaders import each_reads_all
from paramedic.detect.match import on_events
from paramedic.detect.series import (
    FIRST,
    LARGEST,
    LAST,
    Series,
    by_rank,
    called,
    common_steps,
    every,
    latest,
    names,
    precise,
    sharded,
)
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_APART = 1e-4
"""Replicas apply the same update to the same weights, so they stay equal to the bit; this is for rounding in print."""

_NAMES = {"lr": "learning rate", "joint grad_norm": "norm of the reduced gradient"}


def replicas(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Norm, sum or hash of the weights, or what is applied to them, differs between ranks at the same step."""
    alike = every(run, "state", "lr", "joint grad_norm")
    for name in names(alike):
        series = by_rank(one for one in alike if one.name == name)
        if len(series) < 2 or (_may_be_shards(name) and (sharded(series.values()) or _of_parts(series.values()))):
            continue
        steps = common_steps([series[rank] for rank in sorted(series)])
        apart = [_spread(values) for _, values in steps]
        if _differ(apart) if name.startswith("state") else _differ_now_and_then(apart):
            odd = _odd_one(series, steps)
            first = [rank for rank in sorted(series) if rank not in odd][: 4 - len(odd)]
            events = [event for rank in (*odd, *first) for event in series[rank].shown(LAST)]
            what = _NAMES.get(name, name.removeprefix("state "))
            when = _since(name, [step for step, _ in steps], apart)
            when |= _rates(steps, apart) if name == "lr" else {}
            if behind := _behind(run, sorted(series), steps):
                fields = {"what": what, "by": f"{max(apart):.2%}", "accused": ", ".join(map(str, sorted(behind)))}
                fields |= _files(run, behind)
                yield on_events(
                    rule,
                    [*events, behind[min(behind)]],
                    sorted(behind),
                    fields,
                    {"cross-node-environment-skew": _FROM_ANOTHER},
                )
                return
            one = on_events(rule, events, odd, {"what": what, "by": f"{max(apart):.2%}", **when})
            later = bool(odd) and any(a == 0 for a in apart[:_START])
            yield replace(one, weights={"hardware-fault": _BY_ITSELF}) if later else one
            return
    yield from _stated(run, rule) if _is_apart(run) else _evaluations(run, rule)


def _since(name: str, steps: Sequence[str], apart: Sequence[float]) -> dict[str, str]:
    """Whether they were alike when they were first looked at, and since when they are not; or began unlike, and are
    no further apart now."""
    if not name.startswith("state"):
        return {}
    if first := next((at for at, value in enumerate(apart) if value > 0), 0):
        return {"alike": called(steps[first - 1]), "apart": called(steps[first])}
    return {"unlike": called(steps[0])} if apart[0] >= min(_BEGAN * apart[-1], _MUCH) else {}


def _rates(steps: Sequence[tuple[str, Sequence[float]]], apart: Sequence[float]) -> dict[str, str]:
    """A schedule has led them apart; or they were begun with these."""
    if apart[0] == 0:
        return {"parted": called(next(step for (step, _), by in zip(steps, apart, strict=True) if by > 0))}
    return {"rates": ", ".join(f"{value:g}" for value in sorted(set(steps[-1][1])))}


_BEGAN, _MUCH = 0.5, 0.01


_PART = regex(r"\b(?:expert|shard|stage|partition|part)[ _#=:]{0,2}\d", re.I)


def _of_parts(series: Iterable[Series]) -> bool:
    """By the lines themselves each rank tells of a part that is its own."""
    return all(_PART.search(event.text) for one in series for event in one.shown(LAST))


_SAVED = regex(r"(\S{0,300}/\S{0,200}?)(\d{1,12})(?=[^\d/\s]{0,40}(?:\s|$))")
_FROM_ANOTHER = 60.0


def _behind(run: Run, ranks: Sequence[int], steps: Sequence[tuple[str, Sequence[float]]]) -> dict[int, Event]:
    """Who resumed from an older checkpoint than the others: each host had its own, and they differ between, but not
    within, the two groups."""
    read = [(one.event, hit) for one in every(run, "resumed") if (hit := _SAVED.search(one.event.text))]
    said = {e.rank: (e, re.sub(r"\d+", "#", hit[1]), int(hit[2])) for e, hit in read if e.rank is not None}
    numbers, paths = {number for _, _, number in said.values()}, {path for _, path, _ in said.values()}
    if len(numbers) != 2 or len(paths) != 1 or not set(ranks) <= said.keys() or not steps:
        return {}
    last = dict(zip(ranks, steps[-1][1], strict=True))
    groups = [[last[rank] for rank in ranks if said[rank][2] == number] for number in numbers]
    if not all(len(values) > 1 and _spread(values) == 0 for values in groups):
        return {}
    return {rank: event for rank, (event, _, number) in said.items() if number == min(numbers)}


def _files(run: Run, behind: Mapping[int, Event]) -> dict[str, str]:
    """The file that they read, and the one that the others did."""
    read = {one.event.rank: one.event.text for one in every(run, "resumed") if _SAVED.search(one.event.text)}
    paths = {rank: _FILE.findall(text) for rank, text in read.items()}
    older = next((found[-1] for rank, found in paths.items() if found and rank in behind), "")
    newer = next((found[-1] for rank, found in paths.items() if found and rank not in behind), "")
    return {"older": older, "newer": newer} if older and newer else {}


_FILE = regex(r"[\w.-]{0,200}(?:/[\w.=-]{1,200}){1,40}")


_REFUSED = regex(
    r"\b(?:param(?:eter)?s?|weights?|models?|replicas?|checksums?|hash(?:es)?|state|buffers?)\b[^\n]{0,60}?"
    r"\brank ?(?P<rank>\d{1,6})\b[^\n]{0,40}?\b(?:differs?|diverged?|mismatch\w{0,3}|unequal|not equal|out of sync)\b"
    r"[^\n]{0,40}?\brank ?(?P<reference>\d{1,6})\b"
    r"(?:[^\n]{0,20}?[:(] ?(?P<own>[\w.+-]{4,70}) ?(?:!=|vs\.?|<>) ?(?P<other>[\w.+-]{4,70}))?",
    re.I,
)
"""How programs put it that compare their replicas, and stop."""


def refused(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The program compared its replicas with one of them, and ranks stopped since theirs are other than that one's.
    Where all of these hold the same, it is the one that they were compared with; where one alone did, it is that."""
    by_attempt: dict[int, list[tuple[Event, re.Match[str]]]] = defaultdict(list)
    for event in run.of_kind("traceback"):
        if (said := _REFUSED.search(event.text)) is not None and said["rank"] != said["reference"]:
            by_attempt[event.attempt].append((event, said))
    for told in by_attempt.values():
        references = {int(said["reference"]) for _, said in told}
        unlike = {int(said["rank"]) for _, said in told}
        values = {said["own"] for _, said in told}
        others = run.expected_ranks - references - unlike
        odd: tuple[int, ...] = ()
        if len(references) == 1 and len(unlike) > 1 and len(values) == 1 and None not in values and not others:
            odd = (*references,)
        elif len(unlike) == 1 and len(others) > 1:
            odd = (*unlike,)
        fields = {"accused": str(odd[0])} if odd else {}
        yield on_events(rule, [event for event, _ in told], odd, {"reference": str(min(references)), **fields})


_START, _BY_ITSELF = 3, 20.0
"""A rank that was equal to all others at first and then differs from them alone: nothing was forgotten on all ranks."""


def _odd_one(series: Mapping[int, Series], steps: Sequence[tuple[str, Sequence[float]]]) -> tuple[int, ...]:
    """The one rank that differs at the end while all others agree; of two nobody can say which."""
    last = dict(zip(sorted(series), steps[-1][1], strict=True))
    odd = [rank for rank, value in last.items() if list(last.values()).count(value) == 1]
    return tuple(odd) if len(odd) == 1 and len(last) > 2 and len(set(last.values())) == 2 else ()


def _differ(apart: Sequence[float]) -> bool:
    """Mostly, and at the end, too."""
    return bool(apart) and apart[-1] > 0 and max(apart) > _APART and sum(a > 0 for a in apart) >= 0.5 * len(apart)


def _differ_now_and_then(apart: Sequence[float]) -> bool:
    """What is applied to all weights alike may never differ."""
    return sum(a > 10 * _APART for a in apart) >= max(_LOOKS - 1, 0.15 * len(apart))


_LOOKS = 3


def _is_apart(run: Run) -> bool:
    return any((one.values[-1] or 0.0) > _APART for one in every(run, "apart") if one.values)


def _stated(run: Run, rule: Rule) -> Iterator[Finding]:
    """The program itself compared the ranks' weights, and says by how much they differ at the end."""
    told = [one for one in every(run, "apart") if one.values and (one.values[-1] or 0.0) > _APART]
    events = [event for one in told[:4] for event in one.shown(LAST)]
    most = max(one.values[-1] or 0.0 for one in told)
    yield on_events(rule, events, (), {"what": "value of the weights", "by": f"{most:.3g}"})


def _may_be_shards(name: str) -> bool:
    """`parameter norm` may be that of a rank's own shard; what is said to be of one thing in particular is not."""
    return " of " not in name and "buffer" not in name and _WHOLE_ON_ALL.search(name) is None


_WHOLE_ON_ALL = regex(r"\b(?:ln|layer ?norm|rms ?norm|norm weight)\b")
"""Tensor parallelism does not split these."""


def _spread(values: Sequence[float]) -> float:
    size = max(map(abs, values))
    return (max(values) - min(values)) / size if size > 0 else 0.0


def _evaluations(run: Run, rule: Rule) -> Iterator[Finding]:
    """Ranks' evaluations that are further apart than the losses of their different batches ever are.

    A validation set is no smaller than a batch, so chance moves its loss less.
    """
    evaluated = by_rank(every(run, "eval_loss"))
    trained = by_rank(every(run, "loss"))
    ranks = sorted(evaluated.keys() & trained.keys())
    if len(ranks) < 2:
        return
    batches = [max(v) - min(v) for s, v in common_steps([trained[r] for r in ranks]) if not s.startswith("#")]
    looks = [max(values) - min(values) for _, values in common_steps([evaluated[r] for r in ranks])]
    if any(_OF_ROWS.search(event.text) for rank in ranks for event in evaluated[rank].shown(LAST)):
        return  # each has evaluated its own, and may have few
    if len(batches) >= 3 and looks and looks[-1] > 2 * max(batches) > 0:
        events = [event for rank in ranks[:4] for event in evaluated[rank].shown(LAST)]
        yield on_events(rule, events, (), {"what": "evaluation loss", "by": f"{looks[-1]:.3g}"})


_OF_ROWS = regex(r"\b(?:over|on|of) \d{1,9} (?:rows|samples|examples|batches|items)\b", re.I)


def never_updated(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Norm or hash of the weights is the same to the last digit at every step, on every rank."""
    states = every(run, "state")
    for name in names(states):
        series = [one for one in states if one.name == name and len(one.finite) >= _UPDATES]
        if series and all(len(set(one.finite)) == 1 and precise(one.finite[0]) for one in series):
            events = [event for one in series[:2] for event in one.shown(FIRST, LAST)]
            fields = {"what": name.removeprefix("state "), "steps": str(len(series[0].finite))}
            yield on_events(rule, events, (), fields)
            return
    unmoved = [one for one in every(run, "moved") if one.said and not any(one.said)]
    if unmoved and len(unmoved) == len(every(run, "moved")):
        fields = {"what": "value of the weights", "steps": "all"}
        yield on_events(rule, [event for one in unmoved[:2] for event in one.shown(LAST)], (), fields)


_UPDATES = 5


def counted_twice(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """More samples were evaluated than there are."""
    for one in every(run, "counted"):
        values = one.said
        if values and min(values) > 1:
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": f"{median(values):.2f}"})
            return
    for one in every(run, "repeated"):
        if one.said and min(one.said) >= _TWICE:
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": f"{median(one.said):.2f}"})
            return
    sizes = {value for one in every(run, "samples", "eval_samples") for value in one.values if value}
    for one in every(run, "evaluated"):
        count = one.values[-1] or 0.0
        size = max((size for size in sizes if size < count), default=0.0)
        if count not in sizes and size and (count < _FILLED_UP * size or count % size == 0):
            stated = [e for s in every(run, "samples", "eval_samples") if size in s.values for e in s.shown(LAST)]
            yield on_events(rule, [*one.shown(LAST), *stated[:1]], (), {"times": f"{count / size:.3f}"})
            return


_TWICE = 1.5
_FILLED_UP = 1.1
"""More of them than the last batches of all ranks can hold is another data set."""


def same_data(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that share the work read the same samples: by their numbers, their sum, their loss, or by count."""
    for events, what in (*_same_values(run), *_overlaps(run), *_shares(run), *each_reads_all(run)):
        yield on_events(rule, events, (), {"what": what})
        return


def _same_values(run: Run) -> Iterator[tuple[list[Event], str]]:
    for name, what in (("ids", "numbers of the samples"), ("batch_sum", "sum of the batch"), ("own loss", "own loss")):
        found = every(run, name)
        series = by_rank(found)
        steps = common_steps([series[rank] for rank in sorted(series)])
        told = {values[0] for _, values in steps if len(set(values)) == 1 and precise(values[0], 4)}
        finely = max((len(f"{value:.12g}".partition(".")[2]) for value in told), default=0) >= _FINELY
        told = told if finely else {value for value in told if precise(value)}
        if len(series) >= 2 and len(told) >= _ALIKE and len(told) >= 0.9 * len(steps) and not sharded(found):
            events = [event for rank in sorted(series)[:3] for event in series[rank].shown(LAST)]
            yield events, f"the {what} is the same on every rank at each step"

    for name in names(hashes := every(run, "hash")):
        series = by_rank(one for one in hashes if one.name == name)
        steps = common_steps([series[rank] for rank in sorted(series)])
        of_data = any(_OF_DATA.search(event.text) for one in series.values() for event in one.shown(LAST))
        alike = [values[0] for _, values in steps if len(set(values)) == 1]
        if len(series) >= 2 and of_data and len(alike) == len(steps) and len(set(alike)) >= _ALIKE - 1:
            events = [event for rank in sorted(series)[:3] for event in series[rank].shown(LAST)]
            yield events, f"the {name.removeprefix('hash ')} of what they read is the same on every rank each time"


_ALIKE = 4
_FINELY = 5
"""Digits behind the point: of what is printed so, small values have fewer digits, and are as telling."""
_OF_DATA = regex(r"\b(?:keys?|samples?|ids?|indices|batch|docs?|documents|rows?|data|shards?|files?)\b", re.I)


def _overlaps(run: Run) -> Iterator[tuple[list[Event], str]]:
    starts, ends = by_rank(every(run, "range_start")), by_rank(every(run, "range_end"))
    single = [r for r in sorted(starts) if r in ends and len(starts[r].values) == len(ends[r].values) == 1]
    spans = sorted((starts[r].values[0] or 0.0, ends[r].values[0] or 0.0, r) for r in single)
    for (start, end, one), (later, last, other) in pairwise(spans):
        common = min(end, last) - later
        if (start, end) != (later, last) and common > _SHARED * (end - start) and not sharded(starts.values()):
            yield (
                [*starts[one].shown(LAST), *starts[other].shown(LAST)],
                f"the ranges of ranks {one} and {other} overlap",
            )
            return
    files = {rank: set(series.values) for rank, series in by_rank(every(run, "reads")).items()}
    ranks = sorted(files)
    for one, other in pairwise(ranks):
        if files[one] & files[other]:
            shown = by_rank(every(run, "reads"))
            yield [*shown[one].shown(LAST), *shown[other].shown(LAST)], f"ranks {one} and {other} read the same files"
            return


_SHARED = 0.02


def _shares(run: Run) -> Iterator[tuple[list[Event], str]]:
    """Of all samples, what the ranks say that they have, together; a few may be repeated to fill up."""
    series = by_rank(every(run, "share"))
    shares = [one.values[-1] or 0.0 for one in series.values()]
    if len(series) >= 2 and sum(shares) >= 1.5 and not sharded(series.values()):
        yield (
            [e for one in list(series.values())[:3] for e in one.shown(LAST)],
            f"together they have {sum(shares):.1f} times all samples",
        )


def same_order(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every epoch begins with the same samples, in an order that was shuffled."""
    for one in every(run, "ids shuffled"):
        first: dict[str, float] = {}
        for step, value in zip(one.steps, one.values, strict=True):
            if step.startswith("epoch ") and value is not None:
                first.setdefault(step.split()[1], value)
        if len(first) >= _LOOKS and len(set(first.values())) == 1 and len(set(one.values)) * 2 <= len(one.values):
            yield on_events(rule, one.shown(FIRST, LAST), (), {"epochs": str(len(first))})
            return


def joined_wrongly(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A value of all ranks together that is no mean of theirs: their sum, that of one of them, or beyond its range."""
    for contradiction in (_joined, _summed_gradient, _beyond_all, _two_scales, _of_unlike_parts, _of_one_part):
        for events, what in contradiction(run):
            yield on_events(rule, events, (), {"what": what})
            return


def _joined(run: Run) -> Iterator[tuple[list[Event], str]]:
    joint = [one for one in every(run, "joint") if one.name != "joint grad_norm"]
    copies = {_as_written(one) for one in joint}
    of_ranks: dict[str, dict[int, Series]] = {}
    for one in joint:
        base = one.name.removeprefix("joint ")
        if base not in of_ranks:
            told = by_rank(s for s in joint if s.name == one.name)
            found = [*every(run, f"own {base}"), *every(run, base)]
            own_means = any(len(set(values)) > 1 for _, values in common_steps(list(told.values())))
            of_ranks[base] = (
                {}
                if own_means  # each rank's own mean, of its steps
                else by_rank(s for s in found if s.name in (base, f"own {base}") and _as_written(s) not in copies)
            )
        series = of_ranks[base]
        ranks = sorted(series)
        if len(ranks) < 2 or len(ranks) < len(run.expected_ranks) or sharded(series.values()):
            continue
        steps = common_steps([one, *(series[rank] for rank in ranks)])
        unlike = [(v[0], v[1:]) for _, v in steps if max(v[1:]) - min(v[1:]) > _MORE * max(map(abs, v))]
        if len(unlike) < _ALIKE:
            continue
        events = [*one.shown(LAST), *(event for rank in ranks[:3] for event in series[rank].shown(LAST))]
        if all(abs(whole - sum(own)) <= _MORE * abs(whole) for whole, own in unlike):
            yield events, f"the {_plain(base)} of all ranks is the sum of theirs, not the mean"
        for n, rank in enumerate(ranks):
            if all(
                whole == own[n] and abs(whole - sum(own) / len(own)) > _MORE / 10 * abs(whole) for whole, own in unlike
            ):
                yield events, f"the {_plain(base)} of all ranks is that of rank {rank} alone"


_MORE = 0.002


def _as_written(one: Series) -> tuple[tuple[float | None, ...], object]:
    """The same numbers of the same lines may stand under two names."""
    return one.values, one.event.fields.get("shown")


def _plain(name: str) -> str:
    return name.removeprefix("score ").replace("eval_loss", "evaluation loss").replace("_", " ")


def _summed_gradient(run: Run) -> Iterator[tuple[list[Event], str]]:
    """The mean of vectors is never longer than the longest of them; a sum of shards may be."""
    own, joint = by_rank(every(run, "own grad_norm")), by_rank(every(run, "joint grad_norm"))
    ranks = sorted(own)
    if len(ranks) < 2 or ranks != sorted(joint) or len(ranks) < len(run.expected_ranks) or sharded(own.values()):
        return
    steps = common_steps([joint[ranks[0]], *(own[rank] for rank in ranks)])
    longer = [values for _, values in steps if values[0] > 1.02 * max(values[1:])]
    if len(longer) >= max(_ALIKE, 0.8 * len(steps)):
        events = [event for rank in ranks[:2] for event in (*own[rank].shown(LAST), *joint[rank].shown(LAST))]
        yield events, "the reduced gradient is longer than any rank's own, so it is their sum, not the mean"


def _beyond_all(run: Run) -> Iterator[tuple[list[Event], str]]:
    for one in every(run, "score accuracy", "score acc"):
        if any(value is not None and 100.5 < value < 10_000 for value in one.values):
            yield one.shown(LAST, LARGEST), "an accuracy is above 100 %"


def _of_unlike_parts(run: Run) -> Iterator[tuple[list[Event], str]]:
    """Each rank gives its value and of how many samples it is; the plain mean of these is not that of all samples."""
    sizes = {rank: one.said[-1] for rank, one in by_rank(every(run, "scored")).items() if one.said}
    for base in ("eval_loss", "loss", "score accuracy"):
        own = by_rank(one for one in every(run, base) if one.name == base)
        joint = next((one for one in every(run, f"joint {base}") if one.said), None)
        values = {rank: own[rank].said[0] for rank in sizes if rank in own and own[rank].said}
        if joint is None or len(values) < 2 or values.keys() != sizes.keys() or len(values) < len(run.expected_ranks):
            continue
        plain = sum(values.values()) / len(values)
        rightly = sum(value * sizes[rank] for rank, value in values.items()) / sum(sizes.values())
        said = joint.said[-1]
        if abs(said - plain) <= _MORE * abs(said) and abs(said - rightly) > 10 * _MORE * abs(said):
            events = [*joint.shown(LAST), *(event for rank in sorted(values)[:3] for event in own[rank].shown(FIRST))]
            yield events, f"the mean of all ranks gives each rank the same weight; over all samples it is {rightly:.4g}"
            return


def _of_one_part(run: Run) -> Iterator[tuple[list[Event], str]]:
    """What is given as the result of the evaluation is of as many samples as one rank has."""
    world = latest(every(run, "world")) or 0.0
    for one in every(run, "scored_part"):
        part = one.said[-1] if one.said else 1.0
        if world >= 2 and abs(part * world - 1) < _MORE * 10:
            yield one.shown(LAST), f"the evaluation saw {part:.0%} of the samples, the part of one of {world:.0f} ranks"


def _two_scales(run: Run) -> Iterator[tuple[list[Event], str]]:
    """At the same step one line gives the training loss as a multiple of what another gives."""
    for one in every(run, "summary_loss"):
        for other in every(run, "loss"):
            if one.rank != other.rank or one.event.source != other.event.source:
                continue
            ratios = [a / b for _, (a, b) in common_steps([other, one]) if b > 0]
            times = round(median(ratios)) if len(ratios) >= _ALIKE else 1
            if times >= 2 and all(abs(ratio / times - 1) < 0.08 for ratio in ratios):
                yield (
                    [*other.shown(FIRST), *one.shown(FIRST)],
                    f"the training loss of a step is {times} times that of the evaluation",
                )


_HASH = regex(r"\[Rank (\d{1,6})\] Hash not matching for (\S{1,200}) in model chunk \d")
_REPLICAS = regex(r"\bdata-parallel size: (\d{1,6})\b")
_PASSED = regex(r"Weight hashes match after (\d{1,12}) iterations")
_FEW_OF, _TWO, _MANY_RANKS = 3, 2, 16
_HAD_AGREED = 4.0


def hashes_unlike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Megatron's ranks compare their weights with those of the first of their replicas: who alone says that they differ
    is the odd one. Of two replicas nobody knows which, and where most say so, it is the first one of some group."""
    said = [(e, hit) for e in run.saying("Hash not matching for ", "line") if (hit := _HASH.search(e.text))]
    if not said:
        return
    sizes = {int(hit[1]) for e in run.saying("data-parallel size: ", "line") if (hit := _REPLICAS.search(e.text))}
    odd = {int(hit[1]) for _, hit in said}
    replicas = min(sizes, default=0)
    several = _FEW_OF * len(odd) <= replicas if sizes else len(odd) == 1 and len(run.expected_ranks) >= _MANY_RANKS
    alone = replicas != _TWO and several
    before = [e for e in run.saying("Weight hashes match after ", "line") if e.seq < said[0][0].seq]
    passed = [hit[1] for e in before if (hit := _PASSED.search(e.text))]
    fields = {"parameter": said[0][1][2], **({"alike": passed[-1]} if passed else {})}
    weights = {"hardware-fault": _HAD_AGREED} if alone and before else {}
    first = {int(hit[1]): event for event, hit in reversed(said)}
    yield on_events(rule, list(first.values())[:4], sorted(odd) if alone else (), fields, weights)
