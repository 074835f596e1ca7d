"""Whether it learns: loss, score and learning rate over the steps."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LARGEST, LAST, Series, every, kendall, numbered, parts
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_BLOWN_UP, _RISEN, _LEAST = 10.0, 3.0, 0.01
"""Times the very first value, or times the largest of the first ones; below the least a loss is as good as none."""
_STAYS, _STILL, _WILD = 0.1, 0.5, 30.0
_POINTS = 8
_EPOCHS = 6
_ENDED = 0.4
_RESOLUTION = 100.0
_FLAT_POINTS = 40
_FLAT = 0.005
_LEARNED = 0.9


_LOSSES = ("loss", "summary_loss")


def blow_up(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loss that rose to many times its first value, and neither came back nor is on its way back."""
    losses = [one.since_start for one in every(run, *_LOSSES)]
    blown = [one for one in losses if _blows_up(one.finite)]
    if blown and 2 * len(blown) >= len([one for one in losses if len(one.finite) >= _POINTS]):
        first, last = blown[0].finite[0], parts(blown[0].finite, 4)[-1]
        events = [event for one in blown[:2] for event in one.shown(FIRST, LARGEST, LAST)]
        yield on_events(rule, events, (), {"first": f"{first:.4g}", "last": f"{last:.4g}"})


def _blows_up(values: Sequence[float]) -> bool:
    if len(values) < _POINTS or min(values) < 0:
        return False
    end = parts(values, 4)[-1]
    early = max(values[: max(3, len(values) // 10)])
    risen = end >= _BLOWN_UP * max(values[0], _LEAST) or end >= _RISEN * max(early, _LEAST)
    third, last = parts(values, 4)[2:]
    back = kendall(values[len(values) // 2 :]) < -0.5 and last < _STILL * third
    wild = sum(value >= _WILD * max(values[0], 0.1) for value in values) >= 3
    stays = risen and (wild or end >= _STAYS * max(values))
    return not back and (stays or (wild and end >= _STILL * values[0]))


def scale_collapsed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The loss scale was halved again and again until it is one or less: gradients overflow at any scale."""
    for one in every(run, "loss_scale"):
        values = [value for value in one.values if value is not None and value > 0]
        if len(values) >= 4 and values[0] >= 1024 and values[-1] <= 1 and kendall(values) < -0.5:
            what = f"the loss scale fell from {values[0]:g} to {values[-1]:g}"
            yield on_events(rule, one.shown(FIRST, LAST), (), {"what": what})
            return
    for one in every(run, "skipped", "skipped_now"):
        if (share := _skipped(one)) >= _MOST:
            what = f"in the second half of the run {share:.0%} of the steps were skipped"
            yield on_events(rule, one.shown(FIRST, LAST), (), {"what": what})
            return


_MOST, _SKIPS = 0.5, 8


def _skipped(one: Series) -> float:
    """Of the steps of the second half, the share that was left out because of an overflow."""
    points = numbered(one)
    half = points[len(points) // 2 :]
    steps = half[-1][0] - half[0][0] if len(half) >= _HALF else 0.0
    if steps <= 0 or (one.name == "skipped_now" and not all("consumed samples" in e.text for e in one.shown(LAST))):
        return 0.0  # only Megatron begins to count anew behind each line
    number = sum(value for _, value in half[1:]) if one.name == "skipped_now" else half[-1][1] - half[0][1]
    return number / steps if number >= _SKIPS else 0.0


_HALF = 3


def schedule_ended(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The learning rate is zero for a large part of the run, at its end, after it was far above what can be printed."""
    for one in every(run, "lr"):
        values = one.finite
        zeros = next((n for n, value in enumerate(reversed(values)) if value != 0), len(values))
        if zeros < max(_ENDED * len(values), 4) or zeros == len(values):
            continue
        if max(values) >= _RESOLUTION * _resolution(one) or all(_ZERO.search(line.text) for line in one.shown(LAST)):
            share = f"{zeros / len(values):.0%}"
            yield on_events(rule, one.shown(FIRST, LAST), (), {"share": share})
            return


def _resolution(one: Series) -> float:
    """What a printed zero may hide: half of the last digit that the smallest other value shows."""
    smallest = min(value for value in one.finite if value != 0)
    text = f"{smallest:.12f}".rstrip("0").partition(".")[2]
    return 0.5 * 10.0 ** -len(text) if text else 0.5


def never_changes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A score that is the same to the last digit after every epoch, the first one included; of NaN it always is."""
    if any(one.symptom == "numerical-instability" for one in found):
        return
    for one in every(run, "score accuracy", "score acc", "eval_loss"):
        values = one.finite
        if len(values) >= _EPOCHS and len(set(values)) == 1 and values[0] > 0 and _unlearned(one, values[0]):
            yield on_events(rule, one.shown(FIRST, LAST), (), {"value": f"{values[0]:g}", "epochs": str(len(values))})
            return


def _unlearned(one: Series, value: float) -> bool:
    """An accuracy near 1, or a loss near 0, may well stay."""
    return value < _LEARNED if one.name.startswith("score") else value > 1 - _LEARNED


def flat(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loss without trend or gain: only a hint, unless the score is that of guessing or the learning rate is zero."""
    for one in every(run, *_LOSSES):
        values = one.finite
        if len(values) < _FEW_POINTS or min(values) <= 1e-2:
            continue
        why = [*_by_guessing(run, one, values), *_without_rate(run, one, values)]
        if why:
            yield replace(on_events(rule, why, ()), severity="error", confidence=_SURE)
            return
        first, _, last = parts(values, 3)
        if len(values) >= _FLAT_POINTS and last >= (1 - _FLAT) * first and abs(kendall(values)) < 0.1:
            yield replace(on_events(rule, one.shown(FIRST, LAST), ()), severity="warning")
            return


_FEW_POINTS, _SURE = 24, 0.7
_NEAR, _GUESS, _UNSURE, _GAIN = 1.5, 0.55, 0.6, 0.93
_ZERO = re.compile(
    r"(?:\blrs?|learning[_ ]rates?)['\"]?[ :=\[]{1,5}['\"]?0(?:(?:\.0)?(?![\d.e])|(?:\.0{1,12})?e[-+]?\d)", re.I
)


def _by_guessing(run: Run, one: Series, values: Sequence[float]) -> Iterator[Event]:
    """Who guesses between n classes has the loss ln n and is right once in n times: one follows from the other."""
    first, _, last = parts(values, 3)
    loss = median(values[len(values) // 3 :])
    if loss < _UNSURE or last < _GAIN * first or _warms_up(run):
        return
    for score in every(run, "score accuracy", "score acc"):
        rights = score.finite[len(score.finite) // 3 :]
        if score.event.source != one.event.source or len(rights) < _HALF or kendall(rights) >= 0.35:
            continue
        right = median(rights) / (100 if max(score.finite) > 1 else 1)
        if 0 < right <= _GUESS and 0.3 <= right / math.exp(-loss) <= _NEAR:
            yield from (*one.shown(FIRST, LAST), *score.shown(LAST))
            return


def _warms_up(run: Run) -> bool:
    """The learning rate is still on its way up at the end."""
    rates = [one.finite for one in every(run, "lr")]
    return any(len(values) >= _POINTS and values[-1] == max(values) and kendall(values) > 0.5 for values in rates)


def _without_rate(run: Run, one: Series, values: Sequence[float]) -> Iterator[Event]:
    """The learning rate is zero from the first to the last line, and not merely rounded to it."""
    first, _, last = parts(values, 3)
    for rate in every(run, "lr"):
        zero = len(rate.finite) >= _POINTS and not any(rate.finite)
        if (
            zero
            and last >= (1 - _FLAT * 4) * first
            and all(_ZERO.search(line.text) for line in rate.shown(FIRST, LAST))
        ):
            yield from rate.shown(FIRST, LAST)
            return
