"""Learning rate, loss scale and the length of the gradient over the steps: what decides how far a step goes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LAST, Series, common_steps, every, kendall, latest, numbered
from paramedic.detect.training import LOSSES, ZERO_RATE, learns
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_ENDED = 0.4
_RESOLUTION = 100.0
_POINTS = 8


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
        if max(values) >= _RESOLUTION * _resolution(one) or all(
            ZERO_RATE.search(line.text) for line in one.shown(LAST)
        ):
            share = f"{zeros / len(values):.0%}"
            yield on_events(rule, one.shown(FIRST, LAST), (), {"share": share})
            return


def _resolution(one: Series) -> float:
    """What a printed zero may hide: half of the last digit that the smallest other value shows."""
    smallest = min(value for value in one.finite if value != 0)
    text = f"{smallest:.12f}".rstrip("0").partition(".")[2]
    return 0.5 * 10.0 ** -len(text) if text else 0.5


def schedule_too_long(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The learning rate falls along a line or a cosine that would end only after as many times the steps as ranks."""
    world = latest(every(run, "world")) or 0.0
    for one in every(run, "lr"):
        points = numbered(one)
        top = max(range(len(points)), key=lambda n: points[n][1]) if points else 0
        falling = points[top:]
        if world < 2 or len(falling) < _CURVE or any(a[1] < b[1] for a, b in pairwise(falling)):
            continue
        ends = [end for shape in (_line, _cosine) if (end := _end_of(falling, shape)) is not None]
        for end in ends:
            if abs(end / points[-1][0] / world - 1) < _ALIKE:
                fields = {"times": f"{world:.0f}", "rate": f"{falling[-1][1] / falling[0][1]:.0%}"}
                yield on_events(rule, one.shown(FIRST, LAST), (), fields)
                return


_ALIKE, _ON_IT, _CURVE = 0.08, 0.03, 5


def _line(share: float) -> float:
    return 1 - share


def _cosine(share: float) -> float:
    return math.acos(max(min(2 * share - 1, 1.0), -1.0)) / math.pi


def _end_of(falling: Sequence[tuple[float, float]], shape: Callable[[float], float]) -> float | None:
    """The step at which a rate of this shape is zero, where all that was printed lies on one such curve."""
    (first, top), (last, rate) = falling[0], falling[-1]
    done = shape(rate / top) if top > 0 else 0.0
    for start in (first, 0.0) if done > _ON_IT and last > first else ():
        ends = [start + (step - start) / part for step, value in falling if (part := shape(value / top)) > 3 * _ON_IT]
        end = start + (last - start) / done
        if len(ends) >= _HALF and all(abs(one / end - 1) < _ON_IT for one in ends[-_POINTS:]):
            return end
    return None


def still_scaled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The gradient's norm is as large as the loss scale, so it was taken, and clipped, before it was divided by it."""
    norms, scales = every(run, "grad_norm"), every(run, "loss_scale")
    for one in norms:
        for scale in scales:
            pairs = [values for _, values in common_steps([one, scale])] if one.rank == scale.rank else []
            shares = [norm / times for norm, times in pairs if times >= _SCALED]
            if len(shares) >= _HALF and 0.02 < median(shares) < 50 and min(norm for norm, _ in pairs) > 100:
                stuck = any(len(s.finite) >= _HALF and not learns(s.finite) for s in every(run, *LOSSES))
                finding = on_events(rule, one.shown(FIRST, LAST), (), {"norm": f"{median(n for n, _ in pairs):.3g}"})
                yield finding if stuck else replace(finding, severity="warning")
                return


_SCALED = 1024
