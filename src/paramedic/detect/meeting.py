"""What torch says on its way to the meeting point."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_event
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_UNRESOLVED = re.compile(
    r"The (?P<kind>IPv[46] )?network addresses of \((?P<host>[^,)]{1,255}), (?P<port>\d{1,5})\) cannot be retrieved "
    r"\(gai error: -[2-5] - (?P<why>[^)]{1,255})\)"
)
_AGAIN = 3


def name_unresolved(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A name that has no address. Torch asks for one of IPv6 first: said once, that alone means nothing, for most names
    have none; who says it time after time gets none of IPv4 either."""
    told: dict[tuple[str, int | None, str], list[tuple[Event, re.Match[str]]]] = defaultdict(list)
    for event in run.saying("cannot be retrieved (gai error", "line"):
        if (said := _UNRESOLVED.search(event.text)) is not None and "Error: The" not in event.text:
            told[event.source, event.rank, said["host"]].append((event, said))
    for attempts in told.values():
        event, said = attempts[0]
        if len(attempts) >= _AGAIN or any(one["kind"] != "IPv6 " for _, one in attempts):
            yield on_event(rule, event, {name: said[name] for name in ("host", "port", "why")})
