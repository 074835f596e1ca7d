"""Values that must agree and do not: between copies of a model, with what was saved."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LAST, Series, by_rank, common_steps, every, names
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_APART = 1e-4
"""Replicas apply the same update to the same weights, so they stay equal to the bit; this is for rounding in print."""
_NOTHING_PRINTED = 1e-12


def replicas(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Norm, sum or hash of the weights differs between ranks at the same step, and is still different at the end."""
    states = every(run, "state")
    for name in names(states):
        series = by_rank(one for one in states if one.name == name)
        if len(series) < 2 or (_may_be_shards(name) and any(one.sharded for one in series.values())):
            continue
        steps = common_steps([series[rank] for rank in sorted(series)])
        apart = [_spread(values) for _, values in steps]
        if apart and apart[-1] > 0 and max(apart) > _APART and sum(a > 0 for a in apart) >= 0.5 * len(apart):
            events = [event for rank in sorted(series)[:4] for event in series[rank].shown(LAST)]
            yield on_events(rule, events, (), {"what": name.removeprefix("state "), "by": f"{max(apart):.2%}"})
            return
    yield from _stated(run, rule) if _is_apart(run) else _evaluations(run, rule)


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
    return " of " not in name and "buffer" not in name


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
    if len(batches) >= 3 and looks and looks[-1] > 2 * max(batches) > 0:
        events = [event for rank in ranks[:4] for event in evaluated[rank].shown(LAST)]
        yield on_events(rule, events, (), {"what": "evaluation loss", "by": f"{looks[-1]:.3g}"})


def never_updated(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Norm or hash of the weights is the same to the last digit at every step, on every rank."""
    states = every(run, "state")
    for name in names(states):
        series = [one for one in states if one.name == name and len(one.finite) >= _UPDATES]
        if series and all(len(set(one.finite)) == 1 and _precise(one.finite[0]) for one in series):
            events = [event for one in series[:2] for event in one.shown(FIRST, LAST)]
            fields = {"what": name.removeprefix("state "), "steps": str(len(series[0].finite))}
            yield on_events(rule, events, (), fields)
            return


_UPDATES = 5


def _precise(value: float) -> bool:
    """Printed with five digits or more: an update then shows."""
    return len(f"{value:.12g}".replace(".", "").replace("-", "").lstrip("0")) >= 5


def counted_twice(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """More samples were evaluated than there are."""
    for one in every(run, "counted"):
        values = [value for value in one.values if value is not None]
        if values and min(values) > 1:
            yield on_events(rule, one.shown(FIRST, LAST), (), {"times": f"{median(values):.2f}"})
            return


def resumed_elsewhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After a resume the first step or learning rate is not the one that the log says was left off at."""
    for kind, now in (("resumed_lr", "lr"), ("resumed_step", "step")):
        saved, later = every(run, kind), every(run, now)
        for one in saved:
            after = next((s for s in later if s.rank == one.rank and s.event.source == one.event.source), None)
            if after is not None and (pair := _differs(one, after, now)) is not None:
                shown = [*one.shown(LAST), *after.shown(FIRST)]
                yield on_events(rule, shown, (), {"what": _NAMES[now], "saved": f"{pair[0]:g}", "now": f"{pair[1]:g}"})
                return


_NAMES = {"lr": "learning rate", "step": "step"}


def _differs(saved: Series, after: Series, kind: str) -> tuple[float, float] | None:
    if not (saved.values and after.finite) or saved.values[-1] is None or _line(after, FIRST) < _line(saved, LAST):
        return None  # it also trained before: which value is the first one afterwards is not known
    old, new = saved.values[-1], after.finite[0]
    if kind == "step":
        return (old, new) if old >= 2 and new <= 1 else None
    return (old, new) if abs(new - old) > 0.5 * max(abs(old), _NOTHING_PRINTED) else None


def _line(one: Series, which: int) -> int:
    shown: list[Event] = one.shown(which)
    return (shown[0].line or 0) if shown else 0
