"""Numbers that have gone wrong without anybody raising an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_event, on_events
from paramedic.detect.sentinels import lost_losses
from paramedic.detect.series import FIRST, LAST, every
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_NON_FINITE = re.compile(
    r"\b(?P<what>(?:[a-z]\w*[ _])?loss|grad[_ ]norm)['\"]?\s{0,3}[:=|]?\s{0,3}(?P<value>-?(?:nan|inf))\b", re.I
)

_ENOUGH, _MANY = 3, 4


def ended_non_finite(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank's last line of progress; one skipped step in the middle of a run is nobody's business."""
    bad_lines = [(e, bad) for e in run.of_kind("progress") if (bad := _NON_FINITE.search(e.text))]
    lost = min(lost_losses(run).values(), key=lambda one: one.step, default=None)
    since = f" ({lost.since})" if lost else ""
    for event, bad in bad_lines:
        yield on_event(rule, event, {"what": bad["what"].strip(), "value": bad["value"], "since": since})
    if bad_lines:
        return
    for one in every(run, "loss", "summary_loss", "grad_norm"):
        enough, what = (_MANY, "gradient norm") if one.name == "grad_norm" else (_ENOUGH, "loss")
        if len(one.values) >= enough and not any(value is not None for value in one.values[-enough:]):
            ranks = () if one.rank is None or what != "loss" else (one.rank,)
            yield on_events(rule, one.shown(LAST, FIRST), ranks, {"what": what, "value": "nan", "since": since})
            if what != "loss":
                return
