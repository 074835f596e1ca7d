"""Links that the kernel saw go down, and who of those that waited was behind them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import NamedTuple

from paramedic.detect.hostnames import parts_of_name, short
from paramedic.detect.match import on_event, on_events
from paramedic.detect.places import Places
from paramedic.detect.where import places
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_LINK = regex(
    r"\b(?:mlx5_core|mlx4_core|mlx4_en|bnxt_en|ice|irdma|ionic) ?"
    r"(?P<bus>[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f])?:? ?"
    r"(?P<name>[\w.-]{0,32}):? (?:NIC )?Link (?:is )?(?P<state>[Dd]own|[Uu]p)\b"
)
_OF_SYSLOG = regex(
    r"(?:[A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.+Z-]{8,30}) (?P<host>[\w.-]{1,120}) kernel:"
)
_GROUP = regex(r"\bPG ID \d{1,7} PG GUID ([^\s\]]{1,60}) Rank \d|\bPG ID (\d{1,7}) ")
_WATCHDOG = "failure detected by watchdog at work sequence id: "
_GAVE_UP = regex(_WATCHDOG + r"(?P<seq>\d{1,12}) PG status: last enqueued work: (?P<enqueued>\d{1,12})")
_HANG, _ERROR = "collective-hang", "communication-runtime-error"
_AGAIN = 2


def watchdog_only(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Torch's watchdog tells which call it gave up, for a timeout or an error alike. What else it says of it may be
    left out where only such lines were searched for: without any word of an error, it was a timeout."""
    if any(one.symptom == _ERROR and one.severity == "error" for one in found):
        return
    spoken = {rank for one in found if one.severity == "error" for rank in one.ranks}
    for event in run.saying(_WATCHDOG, "line"):
        if event.rank is not None and event.rank not in spoken and (said := _GAVE_UP.search(event.text)) is not None:
            spoken.add(event.rank)
            yield on_event(rule, event, said.groupdict())


class _Lost(NamedTuple):
    host: str
    adapter: str
    event: Event


def behind_a_lost_link(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks waited in a collective until their timeout, and the kernel of one host had lost a link: of the group that
    gave up first, the rank on that host is the one whom nothing reached."""
    waited = [one for one in found if one.symptom == _HANG and one.severity == "error" and one.ranks]
    lost = list(_lost(run, places(run))) if waited else []
    told = any(one.severity == "error" and (one.symptom == _ERROR or "accused" in one.fields) for one in found)
    if len({one.host for one in lost}) != 1 or told:
        return  # who lost a peer says of whom, or somebody is accused
    there = places(run).ranks_on.get(lost[0].host, frozenset())
    group, events = _first_to_give_up(waited)
    ranks = sorted(group & there)
    if there and len(ranks) == 1 and len(group) > len(there):
        host = lost[0].host
        fields = {"host": host, "hosts": host, "adapter": lost[0].adapter, "accused": str(ranks[0])}
        yield on_events(rule, [lost[0].event, *events[:3]], ranks, fields)


def _first_to_give_up(waited: Sequence[Finding]) -> tuple[Set[int], list[Event]]:
    """The members that spoke of the group whose last one gave up before anybody else's first; of one group, all."""
    groups: dict[str, list[tuple[int, Event]]] = defaultdict(list)
    for one in waited:
        event = one.evidence[0].event
        name = _GROUP.search(event.text)
        groups[(name[1] or name[2]) if name else ""] += [(rank, event) for rank in one.ranks]
    times = {name: [event.utc_ns for _, event in told if event.utc_ns is not None] for name, told in groups.items()}
    if len(groups) == 1:
        told = next(iter(groups.values()))
    else:
        first = min((name for name in groups if times[name]), key=lambda name: min(times[name]), default="")
        after = [time for name, known in times.items() if name != first for time in known]
        apart = first in groups and after and max(times[first]) < min(after)
        told = groups[first] if apart else []
    return {rank for rank, _ in told}, [event for _, event in told]


def _lost(run: Run, known: Places) -> Iterator[_Lost]:
    """Links that stayed down, or went down again and again."""
    states: dict[tuple[str, str], list[tuple[str, Event]]] = defaultdict(list)
    for event in run.saying("Link ", "line"):
        if (said := _LINK.search(event.text)) is not None and (host := _host(event, known.ranks_on)):
            states[host, said["name"] or said["bus"] or "?"].append((said["state"].lower(), event))
    for (host, adapter), told in states.items():
        down = [event for state, event in told if state == "down"]
        if down and (told[-1][0] == "down" or len(down) >= _AGAIN):
            yield _Lost(host, adapter, down[0])


def _host(event: Event, hosts: Mapping[str, frozenset[int]]) -> str:
    if event.host:
        return short(event.host)
    if (said := _OF_SYSLOG.match(event.text)) is not None:
        return short(said["host"])
    of_file = {short(part) for part in parts_of_name(event.source)} & hosts.keys()
    return next(iter(of_file)) if len(of_file) == 1 else ""


_PORT = regex(
    r"(?<![\w.-])(?:(?P<host>[\w.-]{1,120}) kernel: (?:\[ {0,8}[\d.]{1,20}\] )?|^\[[^\]\n]{1,40}\] )?"
    r"\w{2,20} [0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.\d (?P<port>[\w.@-]{1,40}): "
    r"(?:NIC )?Link (?:is )?(?P<state>[Uu]p|[Dd]own)\b"
)
"""As the drivers of adapters say it: driver, address, interface."""


def link_lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The kernel's last word on a port that had a link is that it went down."""
    told: dict[tuple[str, str, str], list[tuple[Event, bool]]] = defaultdict(list)
    for event in run.saying("Link ", "line"):
        if (said := _PORT.search(event.text)) is not None:
            key = event.source, said["host"] or event.host or "", said["port"]
            told[key].append((event, said["state"].casefold() == "up"))
    for (_, host, port), words in told.items():
        if not words[-1][1] and any(up for _, up in words):
            yield on_events(rule, [words[-1][0], words[0][0]], (), {"port": port, "host": host or "its host"})
