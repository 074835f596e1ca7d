"""What torch and ps-lite say on the way to the meeting point."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_event, on_events
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_UNRESOLVED = regex(
    r"The (?P<kind>IPv[46] )?network addresses of \((?P<host>[^)]{1,255}?), (?P<port>\d{1,5})\) cannot be retrieved "
    r"\(gai error: -[2-5] - (?P<why>[^)]{1,255})\)"
)
_AGAIN = 3
_UNANSWERED = regex(
    r"^(?:tcp6? .{0,80}?|SYN-SENT .{0,80}?)\s(?P<own>[\[\]\w.:%]{2,80}):\d{1,5}\s{1,40}(?P<address>[\[\]\w.:%]{2,80}):"
    r"(?P<port>\d{4,5})\s{1,40}(?:SYN_SENT\s{1,20})?(?:users:\(\(\"|(?P<before>\d{1,10})/)(?P<name>[\w.:-]{1,40})"
    r"(?:\",pid=(?P<pid>\d{1,10}))?"
)
"""As `ss -tnp` and `netstat -tnp` write it, with the process."""
_OF_TRAINING = regex(r"python|torchrun|pt_main|mpi|orted|hydra|ray|horovod|deepspeed|accelerate")
_TOGETHER = 2


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


def never_answered(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several processes that have not begun to train wait for one address to answer; one may just be connecting."""
    if run.stepping:
        return
    waiting: dict[tuple[str, str], dict[str, Event]] = defaultdict(dict)
    for event in (*run.saying("SYN-SENT", "line"), *run.saying("SYN_SENT", "line")):
        said = _UNANSWERED.match(event.text)
        if said is not None and _OF_TRAINING.search(said["name"]):
            waiting[said["address"], said["port"]][said["pid"] or said["before"] or ""] = event
    (address, port), most = max(waiting.items(), key=lambda one: len(one[1]), default=(("", ""), {}))
    if len(most) >= _TOGETHER:
        fields = {"count": str(len(most)), "address": address, "port": port}
        yield on_events(rule, list(most.values())[:4], (), fields)


_ASSIGNED = regex(
    r"\bassign rank=(?P<id>\d{1,6}) to node role=(?P<role>worker|server),(?: id=\d{1,6},)? ip=(?P<ip>[\d.]{7,15}),"
)
_CONNECTED = regex(r"\b[WS]\[(\d{1,6})\] is connected to others")
_INSIDE = regex(r"127\.|172\.(?:1[7-9]|2\d|3[01])\.0\.1$|192\.168\.122\.1$|10\.88\.0\.1$")
"""Addresses of loopback, and of the bridges of Docker, libvirt and Podman: only their own host can reach them."""
_FIRST_WORKER = 9


def registered_inside(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """ps-lite, which MXNet and BytePS use: a node registered with an address of its own host's inside, others did not,
    and it never got to know them."""
    nodes = [(e, hit) for e in run.saying("assign rank=", "line") if (hit := _ASSIGNED.search(e.text)) is not None]
    met = {int(hit[1]) for e in run.saying("is connected to others", "line") if (hit := _CONNECTED.search(e.text))}
    inside = [(event, hit) for event, hit in nodes if _INSIDE.match(hit["ip"])]
    outside = {hit["ip"] for _, hit in nodes if not _INSIDE.match(hit["ip"])}
    lost = {int(hit["id"]) for _, hit in nodes} - met
    if not inside or not outside or not met or lost != {int(hit["id"]) for _, hit in inside}:
        return
    ids = {int(hit["id"]) for _, hit in inside if hit["role"] == "worker"}
    workers = sorted((one - _FIRST_WORKER) // 2 for one in ids if one >= _FIRST_WORKER)
    fields = {"address": inside[0][1]["ip"]}
    if workers:
        fields["accused"] = ", ".join(map(str, workers))
    yield on_events(rule, [event for event, _ in inside[:3]], workers, fields)
