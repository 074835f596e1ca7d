"""Jobs that went on from saved state, and not where they had left off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LAST, Series, every, kendall, numbered
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_NAMES = {"lr": "learning rate", "step": "step", "loss": "loss"}
_NOTHING_PRINTED = 1e-12
_LOOKS = 3


_MISSING = "zero checkpoints paths are missing"
_SHARD = re.compile(r"zero_pp_rank_(\d{1,6})_mp_rank_")


def some_shards_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DeepSpeed lists shards of the optimizer that it does not find, and then goes on with none of them. Where there
    is not a single one, the checkpoint may have been given without."""
    world = len(run.expected_ranks)
    told = [(event, {*_SHARD.findall(event.text)}) for event in run.saying(_MISSING, "line")]
    some = [(event, shards) for event, shards in told if 0 < len(shards) < world]
    if some:
        fields = {"missing": str(len({shard for _, shards in some for shard in shards})), "all": str(world)}
        yield on_events(rule, [event for event, _ in some[:2]], (), fields)


def elsewhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After a resume the first step or learning rate is not the one that the log says was left off at."""
    for kind, now in (("resumed_lr", "lr"), ("resumed_step", "step"), ("resumed_loss", "loss")):
        saved, later = every(run, kind), every(run, now)
        for one in saved:
            after = next((s for s in later if s.rank == one.rank and s.event.source == one.event.source), None)
            if after is not None and (pair := _differs(one, after, now)) is not None:
                shown = [*one.shown(LAST), *after.shown(FIRST)]
                yield on_events(rule, shown, (), {"what": _NAMES[now], "saved": f"{pair[0]:g}", "now": f"{pair[1]:g}"})
                return
    for one in every(run, "resumed by"):
        if one.said and one.said[-1] > _FORGOTTEN:
            fields = {"what": "loss", "saved": "its value", "now": f"{one.said[-1]:.3g} times that"}
            yield on_events(rule, one.shown(LAST), (), fields)
            return
    for one, step in _resumes(run):
        for name, what, judge in _BEGUN_ANEW:
            for series in every(run, name):
                pair = judge(*_parted(series, step)) if series.rank == one.rank else None
                if pair is not None:
                    named = what or series.name.removeprefix("counter ")
                    fields = {"what": named, "saved": f"{pair[0]:g}", "now": f"{pair[1]:g}"}
                    yield on_events(rule, [*one.shown(LAST), *series.shown(FIRST, LAST)], (), fields)
                    return


def _resumes(run: Run) -> Iterator[tuple[Series, float]]:
    """Who went on, and behind which step: as he said, or as the line says that stands before."""
    for one in every(run, "resumed_step"):
        if one.said:
            yield one, one.said[-1]
    for one in every(run, "resumed"):
        step = one.steps[-1].partition("+")[0].rpartition("step ")[2] if one.steps else ""
        if step.isdecimal():
            yield one, float(step)


def _parted(series: Series, step: float) -> tuple[list[float], list[float]]:
    """Nothing where steps are counted anew in every epoch: they do not say what was before."""
    points = numbered(series)
    if sum(later < at for (at, _), (later, _) in pairwise(points)) > 1:
        return [], []
    return [value for at, value in points if at <= step], [value for at, value in points if at > step]


def _warmed_up_again(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The rate stood high and begins again far below, rising."""
    if len(before) < _LOOKS or len(after) < _LOOKS or kendall(before[-_MANY:]) > 0.5:
        return None
    low = after[0] < _FAR_BELOW * before[-1] and kendall(after[:_MANY]) > 0.8
    return (before[-1], after[0]) if low else None


def _counted_anew(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """A counter that went with the step begins again."""
    return (before[-1], after[0]) if before and after and after[0] < _FAR_BELOW * before[-1] else None


def _fell_back(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Fewer samples were consumed behind the resume than before it."""
    return (before[-1], after[0]) if before and after and after[0] < before[-1] else None


def _seen(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The batches behind the resume are those of the very beginning, in their order."""
    again = len(before) > 2 * _LOOKS and len(after) >= _LOOKS and list(after[:_LOOKS]) == list(before[:_LOOKS])
    return (before[-1], after[0]) if again and len(set(after[:_LOOKS])) == _LOOKS else None


_FAR_BELOW, _MANY = 0.2, 10


def _unlearned(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The loss right before and right after, if it is as at the beginning again."""
    if len(before) < _LOOKS or len(after) < 2 or min(before) <= 0:
        return None
    old, new = median(before[-_LOOKS:]), after[0]
    leapt = new > _FORGOTTEN * max(before[-_LOOKS:]) and new > _FRESH * before[0] and kendall(after) < 0
    return (old, new) if leapt else None


def _differs(saved: Series, after: Series, kind: str) -> tuple[float, float] | None:
    if not (saved.values and after.finite) or saved.values[-1] is None or after.line(FIRST) < saved.line(LAST):
        return None  # it also trained before: which value is the first one afterwards is not known
    old, new = saved.values[-1], after.finite[0]
    if kind == "step":
        return (old, new) if old >= 2 and new <= 1 else None
    if kind == "loss":
        return (old, new) if new > _FORGOTTEN * old and new - old > _NOTICED else None
    return (old, new) if abs(new - old) > 0.5 * max(abs(old), _NOTHING_PRINTED) else None


_FORGOTTEN, _NOTICED, _FRESH = 3.0, 0.3, 0.7


_BEGUN_ANEW = (
    ("loss", "loss", _unlearned),
    ("lr", "learning rate", _warmed_up_again),
    ("counter", "", _counted_anew),
    ("consumed", "number of samples", _fell_back),
    ("batch_sum", "sum of the batch", _seen),
)
"""What may begin anew, what it is called, and how it is told from before and behind the resume."""
