"""Numbers that have gone wrong without anybody raising an error."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import NamedTuple

from paramedic.detect.match import on_event, on_events
from paramedic.detect.sentinels import lost_losses
from paramedic.detect.series import FIRST, LAST, Lost, Series, at_line, by_rank, every
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_NON_FINITE = regex(
    r"\b(?P<what>(?:[a-z]\w*[ _])?loss|grad[_ ]norm)['\"]?\s{0,3}[:=|]?\s{0,3}(?P<value>-?(?:nan|inf))\b", re.I
)

_ENOUGH, _MANY = 3, 4
_TOO_HIGH = 1.0
"""A learning rate with which hardly anything learns, unless it was warmed up to it with care."""


def with_rate(run: Run, one: Finding) -> Finding:
    """With the highest learning rate that its log prints, which fixes may name."""
    sources = {item.event.source for item in one.evidence[:1]}
    rates = [value for series in every(run, "lr") if series.event.source in sources for value in series.said]
    highest = max((value for value in rates if math.isfinite(value)), default=0.0)
    named = [name for name, least in (("lr", 0.0), ("high", _TOO_HIGH)) if highest > 0 and highest >= least]
    return replace(one, fields={**dict.fromkeys(named, f"{highest:.4g}"), **one.fields})


def ended_non_finite(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Whose loss was no number first, where each tells its own; else all who end so."""
    ended = [with_rate(run, one) for one in _ended(run, rule)]
    first = _first_lost(run) if ended else {}
    if not first:
        yield from ended
        return
    since = next(iter(first.values())).since
    told = f" (since {since}, while the others' still was a number)" if since.startswith(("step", "epoch")) else ""
    accused = ", ".join(map(str, first))
    fields = {"what": "loss", "value": "nan", "since": told, "accused": accused, "rank": accused}
    fields |= {"step": since} if told else {}
    one = on_events(rule, [lost.event for lost in first.values()], first, fields)
    yield replace(one, weights=_ITS_OWN_BATCH)


_ITS_OWN_BATCH = {"data-or-input-defect": 4.0}
"""All have the same weights and settings; what it alone has is its data, and its device."""
_AS_EVER = 2.0
_PLACE = regex(r"(?:epoch (\d{1,9}) )?step (\d{1,12})|#(\d{1,9})")


def _first_lost(run: Run) -> dict[int, Lost]:
    """The ranks, fewer than half of all, whose own loss was no number at a step at which everybody else's was as ever:
    what they send makes the others' the same one step later. A loss that exploded does so wherever it is largest."""
    series = by_rank(every(run, "own loss") or every(run, "loss"))
    lost = {rank: one.lost for rank, one in series.items()}
    known = {rank: one for rank, one in lost.items() if one is not None}
    if len(known) < 2 or known.keys() != set(run.expected_ranks) or len(known) != len(lost):
        return {}
    counted = {one.since.startswith("#") for one in known.values()}
    if True in counted and len({one.count for one in series.values()}) > 1:
        return {}  # and one has said more than the others
    mixed = len(counted) > 1  # one names steps beside, as the one that prints for all does
    since = {rank: _nth(series[rank], one.since) if mixed else _place(one.since) for rank, one in known.items()}
    last = {rank: _nth(series[rank], one.last) if mixed else _place(one.last) for rank, one in known.items()}
    earliest = min(since.values())
    first = {rank: known[rank] for rank in sorted(known) if since[rank] == earliest}
    seen = all(last[rank] >= earliest for rank in known if rank not in first)
    tame = all(abs(one.before) <= _AS_EVER * _usual(series[rank].said) for rank, one in known.items())
    return first if earliest and seen and tame and 2 * len(first) < len(known) else {}


def _nth(one: Series, step: str) -> tuple[int, ...]:
    """As which of its values it stands, where all of them are kept; empty where it stands nowhere, or twice."""
    whole = len(one.steps) == one.count and one.steps.count(step) == 1
    return (one.steps.index(step) + 1,) if whole else ()


def _place(step: str) -> tuple[int, ...]:
    """In the order of training; empty where that is not told."""
    found = _PLACE.fullmatch(step)
    return tuple(int(part or 0) for part in found.groups()) if found else ()


def _usual(values: Sequence[float]) -> float:
    return median(map(abs, values)) if values else 0.0


def _ended(run: Run, rule: Rule) -> Iterator[Finding]:
    """Each rank's last line of progress; one skipped step in the middle of a run is nobody's business."""
    bad_lines = [(e, bad) for e in run.of_kind("progress") if (bad := _NON_FINITE.search(e.text))]
    lost = min(lost_losses(run).values(), key=lambda one: one.step, default=None)
    for_all = {e.rank for e in run.of_kind("progress")} == {0} and len(run.expected_ranks) > 1
    for event, bad in bad_lines:
        step, first = _since(run, event)
        before = _before(run, event.rank, event.source)
        since = lost.since if lost else f"since {step}" if step else ""
        said = _said(on_event(rule, first, {"what": bad["what"].strip(), "value": bad["value"]}), since, before)
        yield replace(said, ranks=(), scope="job", fields={**said.fields, "who": _JOB}) if for_all else said
    if bad_lines:
        return
    for one in every(run, "loss", "summary_loss", "score perplexity", "score ppl", "grad_norm"):
        enough, what = (_MANY, "gradient norm") if one.name == "grad_norm" else (_ENOUGH, "loss")
        what = "perplexity" if one.name.startswith("score") else what
        if what == "perplexity" and any(
            other.said[-1:] for other in every(run, "loss") if _ends_as_a_number(one, other)
        ):
            continue
        if len(one.values) >= enough and not any(value is not None for value in one.values[-enough:]):
            ranks = () if one.rank is None or what != "loss" else (one.rank,)
            said = on_events(rule, one.shown(LAST, FIRST), ranks, {"what": what, "value": "nan"})
            yield _said(said, lost.since if lost else "", _before(run, one.rank, one.event.source))
            if what != "loss":
                return


def _ends_as_a_number(one: Series, other: Series) -> bool:
    return other.event.source == one.event.source and bool(other.values) and other.values[-1] is not None


_JOB = "The job"


def _said(one: Finding, since: str, before: _Before) -> Finding:
    """With since when, and with what went before it; whoever prints for all speaks for the job."""
    told = "; ".join(filter(None, (since, before.climb, before.scale)))
    who = {} if one.ranks else {"who": _JOB}
    fields = {**one.fields, **who, "since": f" ({told})" if told else ""}
    return replace(one, fields=fields, weights=_DIVERGED if before.climb else {})


class _Before(NamedTuple):
    """What the log shows before the loss was no number: what rose, and what became of the loss scale."""

    climb: str
    scale: str


_DIVERGED = {"hyperparameter-scaling-error": 2.5, "data-or-input-defect": 0.6, "hardware-fault": 0.5}
"""It came gradually: steps that are too large do so, one bad batch or one flipped bit does not."""
_EXPLODED = {"hyperparameter-scaling-error": 6.0, "data-or-input-defect": 0.4, "hardware-fault": 0.3}
"""And by many orders of magnitude: so far half precision does not reach."""
_LEVEL, _RISEN, _GROWN, _FAR = 20, 1.5, 2.0, 1e6


def _before(run: Run, rank: int | None, source: str) -> _Before:
    """Of the gradient's norm if it is printed, else of the loss itself."""
    own = [s for s in every(run, "grad_norm", "loss", "loss_scale") if (s.rank, s.event.source) == (rank, source)]
    climbs = [told for name in ("grad_norm", "loss") for s in own if s.name == name and (told := _climb(s))]
    return _Before(climbs[0] if climbs else "", next((told for s in own if (told := _scale(s))), ""))


def diverged(run: Run, first: Finding) -> Mapping[str, float]:
    """What it speaks for that the loss rose step by step in the log in which somebody then stopped at NaN."""
    source = first.evidence[0].event.source
    losses = [one for one in every(run, "loss") if one.event.source == source]
    if not any(map(_climb, losses)):
        return {}
    far = any(max(one.finite) >= _FAR * max(one.finite[0], 1e-3) for one in losses if one.finite)
    return _EXPLODED if far else _DIVERGED


_ON_GPU = regex(
    r"\bDevice: (?P<device>\S{1,20}), node: (?P<node>[\w.-]{1,120})"
    r"|\bnode (?P<host>[\w.-]{1,120}), device (?P<gpu>[^\s,]{1,20}), iteration"
)
"""Where it was, as Megatron says it."""
_OF_GPU = {"hardware-fault": 60.0}


def on_one_gpu(first: Finding) -> Finding:
    """Ranks of different numbers, one after the other, on the same GPU of the same node: nodes were put in another
    order meanwhile, and what went along is the GPU. The first one's number stands for it."""
    said = [(item.event, _ON_GPU.search(item.event.text)) for item in first.evidence if item.event.rank is not None]
    at = {found.groups() for _, found in said if found is not None}
    ranks = {event.rank for event, _ in said}
    if len(at) != 1 or not all(found for _, found in said) or len(ranks) < 2 or ranks != {*first.ranks}:
        return first
    earliest = min((event for event, _ in said), key=lambda event: event.seq)
    in_order = len({event.source for event, _ in said}) == 1
    named = (earliest.rank,) if in_order and earliest.rank is not None else ()
    return replace(first, ranks=named, weights={**first.weights, **_OF_GPU})


def on_a_gpu_of_before(first: Finding, errors: Sequence[Finding]) -> Finding:
    """The same stopped an attempt before it, on the same GPU of the same node, which was another rank then."""
    before = [one for one in errors if one.rule == first.rule and one.attempt < first.attempt]
    at = {_gpu(one) for one in (first, *before)}
    ranks = {one.ranks for one in (first, *before)}
    moved = len(at) == 1 and None not in at and len(ranks) > 1 and () not in ranks
    return replace(first, weights={**first.weights, **_OF_GPU}) if moved else first


def _gpu(one: Finding) -> tuple[str, ...] | None:
    found = _ON_GPU.search(one.evidence[0].event.text)
    return tuple(part for part in found.groups() if part) if found else None


def _climb(one: Series) -> str:
    """From where on, to the last number that it was, it stood above all that was usual right before."""
    lost = next((at for at, value in enumerate(one.values) if value is None), len(one.values))
    values = [value for value in one.values[:lost] if value is not None]
    for at in range(_FEW, len(values) - 1) if lost < len(one.values) else ():
        level = median(values[max(at - _LEVEL, 0) : at])
        if level > 0 and min(values[at:]) > _RISEN * level and values[-1] >= _GROWN * level:
            what = "the gradient norm" if one.name == "grad_norm" else "the loss"
            last = one.lost.before if one.lost else values[-1]
            return f"{what} rose from {one.steps[at]} on, {level:.3g} → {last:.3g}"
    return ""


_FEW = 5


def _scale(one: Series) -> str:
    """fp16 was at its end: no scale is small enough for gradients that are no numbers."""
    if one.name != "loss_scale" or len(one.said) < 2 or max(one.said) < _SCALED or one.said[-1] > 1:
        return ""
    return f"the loss scale fell from {max(one.said):g} to {one.said[-1]:g}"


_SCALED = 1024


def _since(run: Run, last: Event) -> tuple[str, Event]:
    """The step from which on nothing was a number any more, and the line that shows it; it keeps the last one's place
    in the order, for training went on after it."""
    series = [one for one in every(run, "loss") if one.rank == last.rank and one.event.source == last.source]
    if not series:
        return "", last
    one = max(series, key=lambda one: len(one.values))
    good = max((at for at, value in enumerate(one.values) if value is not None), default=-1)
    step = one.steps[good + 1] if good + 1 < len(one.steps) else ""
    if not step.startswith("step "):
        return "", last
    named = re.compile(rf"\bstep\W{{0,3}}{re.escape(step[5:])}\b", re.I)
    lines = (e for e in run.events if e.kind == "line" and (e.source, e.rank) == (last.source, last.rank))
    first = next((e for e in lines if _NON_FINITE.search(e.text) and named.search(e.text)), None)
    return step, at_line(last, first.line or 0, first.text) if first else last
