"""Numbers that have gone wrong without anybody raising an error."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_event
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_NON_FINITE = re.compile(
    r"\b(?P<what>(?:\w+[ _])?loss|grad[_ ]norm)['\"]?\s{0,3}[:=|]?\s{0,3}(?P<value>-?(?:nan|inf))\b", re.I
)


def ended_non_finite(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank's last line of progress; one skipped step in the middle of a run is nobody's business."""
    for event in run.events:
        if event.kind == "progress" and (bad := _NON_FINITE.search(event.text)) is not None:
            yield on_event(rule, event, {"what": bad["what"].strip(), "value": bad["value"]})
