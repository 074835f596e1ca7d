"""Whether it learns: loss, score and learning rate over the steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LARGEST, LAST, Series, every, kendall, parts
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_BLOWN_UP, _RISEN, _LEAST = 10.0, 3.0, 0.01
"""Times the very first value, or times the largest of the first ones; below the least a loss is as good as none."""
_STAYS = 0.1
_POINTS = 8
_EPOCHS = 6
_ENDED = 0.4
_RESOLUTION = 100.0
_FLAT_POINTS = 40
_FLAT = 0.005
_LEARNED = 0.9


def blow_up(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loss that rose to many times its first value, and neither came back nor is on its way back."""
    blown = [one for one in every(run, "loss") if _blows_up(one.finite)]
    if blown and 2 * len(blown) >= len([one for one in every(run, "loss") if len(one.finite) >= _POINTS]):
        first, last = blown[0].finite[0], parts(blown[0].finite, 4)[-1]
        events = [event for one in blown[:2] for event in one.shown(FIRST, LARGEST, LAST)]
        yield on_events(rule, events, (), {"first": f"{first:.4g}", "last": f"{last:.4g}"})


def _blows_up(values: Sequence[float]) -> bool:
    if len(values) < _POINTS or min(values) < 0:
        return False
    end = parts(values, 4)[-1]
    early = max(values[: max(3, len(values) // 10)])
    risen = end >= _BLOWN_UP * max(values[0], _LEAST) or end >= _RISEN * max(early, _LEAST)
    back = kendall(values[len(values) // 2 :]) < -0.5
    return risen and end >= _STAYS * max(values) and not back


def scale_collapsed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The loss scale was halved again and again until it is one or less: gradients overflow at any scale."""
    for one in every(run, "loss_scale"):
        values = [value for value in one.values if value is not None and value > 0]
        if len(values) >= 4 and values[0] >= 1024 and values[-1] <= 1 and kendall(values) < -0.5:
            yield on_events(rule, one.shown(FIRST, LAST), (), {"first": f"{values[0]:g}", "last": f"{values[-1]:g}"})
            return


def schedule_ended(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The learning rate is zero for a large part of the run, at its end, after it was far above what can be printed."""
    for one in every(run, "lr"):
        values = one.finite
        zeros = next((n for n, value in enumerate(reversed(values)) if value != 0), len(values))
        if zeros < max(_ENDED * len(values), 4) or zeros == len(values):
            continue
        if max(values) >= _RESOLUTION * _resolution(one):
            share = f"{zeros / len(values):.0%}"
            yield on_events(rule, one.shown(FIRST, LAST), (), {"share": share})
            return


def _resolution(one: Series) -> float:
    """What a printed zero may hide: half of the last digit that the smallest other value shows."""
    smallest = min(value for value in one.finite if value != 0)
    text = f"{smallest:.12f}".rstrip("0").partition(".")[2]
    return 0.5 * 10.0 ** -len(text) if text else 0.5


def never_changes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A score that is the same to the last digit after every epoch, the first one included."""
    for one in every(run, "score accuracy", "score acc", "eval_loss"):
        values = one.finite
        if len(values) >= _EPOCHS and len(set(values)) == 1 and values[0] > 0 and _unlearned(one, values[0]):
            yield on_events(rule, one.shown(FIRST, LAST), (), {"value": f"{values[0]:g}", "epochs": str(len(values))})
            return


def _unlearned(one: Series, value: float) -> bool:
    """An accuracy near 1, or a loss near 0, may well stay."""
    return value < _LEARNED if one.name.startswith("score") else value > 1 - _LEARNED


def flat(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Only a hint: over many steps the loss has neither trend nor gain."""
    for one in every(run, "loss"):
        values = one.finite
        if len(values) < _FLAT_POINTS or min(values) <= 1e-2:
            continue
        first, _, last = parts(values, 3)
        if last >= (1 - _FLAT) * first and abs(kendall(values)) < 0.1:
            yield replace(on_events(rule, one.shown(FIRST, LAST), ()), severity="warning")
            return
