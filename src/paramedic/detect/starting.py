"""What launchers say of programs that they could not start, and on which hosts."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_events
from paramedic.detect.places import at_ranks
from paramedic.detect.where import places
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_NOT_FOUND = regex(
    r"\bunable to (?:find|access) the specified executable file"
    r"|\bunable to launch the specified application as it could not access"
    r"|^\[proxy:\S{1,40}@(?P<host>[\w.-]{1,255})\] HYDU_create_process .{0,80}execvp error on file (?P<file>\S{1,400})"
)
_RANK = regex(
    r"^(?:rank )?(\d{1,6}); it may have occurred for other processes|\battempting to start process rank (\d{1,6})\b"
)
_FILE = regex(r"(?:^|\s)Executable: {1,4}(\S{1,400})$")
_COUNT = regex(r"^(\d{1,6}) total process(?:es)? failed to start")
_REFUSED = ("specified executable file", "could not access", "execvp error")
_WORDS = ("executable", "Executable: ", *_REFUSED[1:], "for other processes", "to start process", "failed to start")


def no_executable(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Open MPI names one rank and counts the others, Hydra names the host: where ranks are known to be, it is all of
    that host."""
    logs = {event.source for event in run.saying_one_of(_REFUSED, "line")}
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in run.saying_one_of(_WORDS, "line") if logs else ():
        if event.source in logs:
            by_source[event.source].append(event)
    for events in by_source.values():
        refused = [(event, said) for event in events if (said := _NOT_FOUND.search(event.text)) is not None]
        if not refused:
            continue
        ranks = {int(hit[1] or hit[2]) for event in events if (hit := _RANK.search(event.text)) is not None}
        hosts = {said["host"].lower().split(".", 1)[0] for _, said in refused if said["host"]}
        files = [hit[1] for event in events if (hit := _FILE.search(event.text)) is not None]
        files += [said["file"] for _, said in refused if said["file"]]
        counted = max((int(hit[1]) for event in events if (hit := _COUNT.search(event.text)) is not None), default=0)
        one = on_events(rule, [refused[0][0]], (), {"file": files[0]} if files else {})
        struck = _struck(run, ranks, hosts, counted)
        yield at_ranks(one, struck) if struck else one


_NOT_LISTENING = regex(
    r"has failed to listen on any local network address\..{0,200}?"
    r"(?:port: |bind to \S{1,60}:)(?P<port>\d{1,5})[ ,].{0,200}?(?:EADDRINUSE|Address already in use)"
)
_LISTENS, _NO_GROUP = "has failed to listen on any local network address", "CODE026"


def caught_in_meeting(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Somebody printed that he cannot listen, and went on; then there was no process group."""
    missed = [
        one.evidence[0].event for one in found if one.rule == _NO_GROUP and "initialized" in one.fields.get("what", "")
    ]
    for event in run.saying(_LISTENS, "line") if missed else ():
        said = _NOT_LISTENING.search(event.text)
        later = next((one for one in missed if one.source == event.source and one.seq > event.seq), None)
        if said is not None and later is not None and later.attempt == event.attempt:
            yield on_events(rule, [event, later], (), {"port": said["port"]})
            return


def _struck(run: Run, ranks: set[int], hosts: set[str], counted: int) -> set[int]:
    """All ranks of the hosts in question; nobody where it is everybody, or where more failed than are there."""
    known = places(run).ranks_on
    here = {host: set(there) for host, there in known.items() if host in hosts or there & ranks}
    whole = set().union(*here.values())
    everybody = run.expected_ranks | set().union(*known.values())
    if not here or len(known) < 2 or whole >= everybody:
        return set()
    return whole if counted in (0, len(whole)) else set()


_NOT_CREATED = regex(
    r"Job \d{1,12} step creation (?:temporarily|still) disabled, retrying(?: \((?P<what>[^)\n]{1,80})\))?"
)


def step_not_created(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """srun waits for its own job's resources, and no step comes of it afterwards."""
    created = {event.source: event.seq for event in run.saying("Step created for ", "line")}
    for event in run.saying(" disabled, retrying", "line"):
        said = _NOT_CREATED.search(event.text)
        if said is not None and event.seq > created.get(event.source, -1):
            yield on_events(rule, [event], (), said.groupdict(default="they are taken"))
