"""Numbers that have gone wrong without anybody raising an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_event, on_events
from paramedic.detect.sentinels import lost_losses
from paramedic.detect.series import FIRST, LAST, every
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_NON_FINITE = re.compile(
    r"\b(?P<what>(?:[a-z]\w*[ _])?loss|grad[_ ]norm)['\"]?\s{0,3}[:=|]?\s{0,3}(?P<value>-?(?:nan|inf))\b", re.I
)

_ENOUGH, _MANY = 3, 4


def ended_non_finite(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank's last line of progress; one skipped step in the middle of a run is nobody's business."""
    bad_lines = [(e, bad) for e in run.of_kind("progress") if (bad := _NON_FINITE.search(e.text))]
    lost = min(lost_losses(run).values(), key=lambda one: one.step, default=None)
    since = f" ({lost.since})" if lost else ""
    for_all = {e.rank for e in run.of_kind("progress")} == {0} and len(run.expected_ranks) > 1
    for event, bad in bad_lines:
        step, first = _since(run, event)
        told = since or (f" (since {step})" if step else "")
        said = on_event(rule, first, {"what": bad["what"].strip(), "value": bad["value"], "since": told})
        yield replace(said, ranks=(), scope="job") if for_all else said  # one rank prints for all
    if bad_lines:
        return
    for one in every(run, "loss", "summary_loss", "grad_norm"):
        enough, what = (_MANY, "gradient norm") if one.name == "grad_norm" else (_ENOUGH, "loss")
        if len(one.values) >= enough and not any(value is not None for value in one.values[-enough:]):
            ranks = () if one.rank is None or what != "loss" else (one.rank,)
            fields = {"what": what, "value": "nan", "since": since}
            yield on_events(rule, one.shown(LAST, FIRST), ranks, fields)
            if what != "loss":
                return


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
    return step, replace(last, line=first.line, text=first.text, utc_ns=None, time_text="") if first else last
