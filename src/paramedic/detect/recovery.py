"""Restarts that did not bring the job back: the first failure, and what stopped the attempt after it."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

from paramedic.detect.hostnames import parts_of_name, short
from paramedic.detect.interrupted import TIME_LIMIT
from paramedic.detect.match import on_events
from paramedic.detect.memory import held_by_its_own, others_named
from paramedic.detect.once import once
from paramedic.detect.series import Series, every, numbered, of_all_attempts
from paramedic.detect.where import located, places
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

MEETING = ("rendezvous-setup-failure", "rendezvous-setup-hang")
_LEFT_BEHIND = "resource-leak-or-retained-reference"
_STOPPED_BY = {
    **dict.fromkeys(MEETING, "rendezvous-endpoint-conflict"),
    "checkpoint-resume-failure": "checkpoint-layout-mismatch",
    "path-or-permission-error": _LEFT_BEHIND,
    "resource-allocation-failure": _LEFT_BEHIND,
}
"""What goes wrong on the way back, and the cause that it speaks for."""
_NOT_GIVEN = ("JOB029", "JOB034", "JOB064", "JOB068")
"""What a scheduler or a cloud does not give is nobody's leftover."""
SCHEDULER = "preemption-or-scheduler-action"
_HELD_BY_ANOTHER = "MEM003"
"""So does memory of a GPU that another process holds: one of the attempt before, for the first one had it."""

_MISTAKES = frozenset(
    [
        "import-or-missing-symbol",
        "invalid-run-configuration",
        "step-execution-error",
        "tensor-shape-or-dtype-mismatch",
        "unsupported-api-or-attribute",
    ]
)
"""What no restart makes up for: whoever starts again has changed something, and is judged by this start."""
_SURE = 0.5
_DOES_NOT_FIT = regex(
    r"loading state_dict|[Mm]issing key|[Uu]nexpected key|size mismatch|parameter group"
    r"|not found in (?:the )?checkpoint"
)
"""A checkpoint that is whole but does not fit stops every restart, whoever was lost before it."""


def failed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The job had been training, lost a rank, and its last attempt ended while it met again or read its state."""
    by_attempt: dict[int, list[Finding]] = defaultdict(list)
    for one in found:
        if one.severity == "error" and one.consequence != "always":
            by_attempt[one.attempt].append(one)
    if len(by_attempt) < 2 or len({source.job for source in run.sources} - {""}) > 1:
        return  # nothing was started again, or somebody has submitted another job
    now, last = max(by_attempt), _roots(by_attempt[max(by_attempt)])
    stopped = [one for one in last if one.symptom in _STOPPED_BY or _left_on_device(run, one)]
    before = _attempt_before(run, by_attempt)
    began = [one for one in by_attempt.get(before, ()) if not _keeps_out(one)]
    if not stopped or not began or _on_its_own(run, stopped, now):
        return
    sure = sorted(began, key=lambda one: (one.consequence != "never", not one.ranks))[0]
    if any(one.symptom in (sure.symptom, began[0].symptom) for one in last):
        return
    if sure.symptom in _MISTAKES or _elsewhere(stopped, sure):
        return
    its_own = sure.consequence == "never" and not all(_DOES_NOT_FIT.search(_said(one)) for one in stopped)
    left = [one for one in stopped if one.rule == _HELD_BY_ANOTHER]
    kept_out = left[0].ranks if left else _kept_out([by_attempt[n] for n in sorted(by_attempt)[1:]])
    gone = lost_before(run, now)
    if gone and gone >= set(sure.ranks):  # also who had a notice of it, of a host
        its_own = False
    if not its_own and not gone:
        gone = _not_back(run, stopped, now)
    ranks = kept_out or (
        tuple(sorted(gone))
        if gone or not its_own
        else sure.ranks or _on_one_node(run, sure) or located(run, [sure])[0].ranks
    )
    said = [one.evidence[0].event for one in (sure, *began, *stopped)]
    words = next(event for event in said if event.kind != "exit")
    events = [words, *(event for event in (said[0], stopped[0].evidence[0].event) if event is not words)]
    fields = {"loss": str(sure.symptom).replace("-", " "), "stopped": str(stopped[0].symptom).replace("-", " ")}
    if ranks:
        fields["accused"] = ", ".join(map(str, ranks))
    one = on_events(rule, events, ranks, fields)
    surer = max(one.confidence, min(stopped[0].confidence + 0.005, 0.97))
    broken = sure.symptom in _BROKEN and bool(sure.ranks) and all(other.ranks == sure.ranks for other in stopped)
    given = stopped[0].rule not in _NOT_GIVEN
    cause = "hardware-fault" if broken else _STOPPED_BY.get(stopped[0].symptom, _LEFT_BEHIND) if given else SCHEDULER
    weights = {cause: 8.0 if given and not broken else 30.0}
    yield replace(one, confidence=surer, weights={} if gone and given else weights)


def _keeps_out(one: Finding) -> bool:
    return one.symptom in _STOPPED_BY or one.rule == _HELD_BY_ANOTHER


def _attempt_before(run: Run, by_attempt: Mapping[int, Sequence[Finding]]) -> int:
    """The last one that failed otherwise than on its way back, unless one after it has trained; else none."""
    last = max(by_attempt)
    failed = (n for n in by_attempt if n < last and not all(map(_keeps_out, by_attempt[n])))
    before = max(failed, default=-1)
    counted = {one.event.attempt for one in of_all_attempts(run, "step", "loss") if one.finite}
    trained = counted | {event.attempt for event in run.stepping}
    return -1 if any(before < n < last for n in trained) else before


def _left_on_device(run: Run, one: Finding) -> bool:
    return one.rule == _HELD_BY_ANOTHER and not held_by_its_own(run, one.evidence[0].event)


def _elsewhere(stopped: Sequence[Finding], first: Finding) -> bool:
    """Other ranks lack something of their own now, as those on a node that has come in do."""
    ranks = {rank for one in stopped for rank in one.ranks}
    own = all(one.symptom == "path-or-permission-error" and one.ranks for one in stopped)
    return own and ranks.isdisjoint(first.ranks)


def _on_its_own(run: Run, stopped: Sequence[Finding], last: int) -> bool:
    """A console for each start, by names, or a start in one console that no launcher of the attempt before has made: a
    scheduler has begun all anew, or somebody, and what stops this one is its own. Of the latter the least: what does
    not fit, or is not there."""
    whole = {source.id for source in run.sources if source.attempt == last > 0 and source.rank is None}
    shift = {source.id: source.attempt for source in run.sources}
    anew = {f.source for f in run.facts if f.name == "begun anew" and f.value == last - shift.get(f.source, 0)}
    appended = {fact.source for fact in run.facts if fact.name == "appended"}
    return all(
        source in appended
        or (one.rule != _HELD_BY_ANOTHER and (source in whole or (source in anew and _not_left_behind(one))))
        for one in stopped
        for source in (one.evidence[0].event.source,)
    )


def _not_back(run: Run, stopped: Sequence[Finding], now: int) -> frozenset[int]:
    """The others meet again, each in its log; that of one host ends in the attempt before, without a word about an
    end."""
    if not all(one.symptom in MEETING for one in stopped):
        return frozenset()
    known = places(run).ranks_on
    ranks = {s.id: frozenset[int]().union(*(known.get(short(w), ()) for w in parts_of_name(s.id))) for s in run.sources}
    speak = {event.source for event in run.events if event.attempt == now and ranks[event.source]}
    there = frozenset[int]().union(*(ranks[source] for source in speak))
    told = {event.source for event in run.of_kind("exit", "traceback")}
    told |= {event.source for event in run.saying("signal", "line")}
    agents = {fact.source for fact in run.facts if fact.name == "host" and fact.source in ranks}
    silent = [ranks[source] - there for source in sorted(agents - speak - told)]
    gone = frozenset[int]().union(*silent)
    return gone if len(speak) > 1 and len(silent) == 1 and len(gone) < len(there) else frozenset()


def _not_left_behind(one: Finding) -> bool:
    said = _said(one)
    if one.symptom == "checkpoint-resume-failure":
        return one.rule in _UNFIT or _DOES_NOT_FIT.search(said) is not None
    return one.symptom == "path-or-permission-error" and "No such file" in said


_UNFIT = frozenset(["CKPT001", "CKPT006", "CKPT009", "CKPT014", "CKPT050", "CKPT057", "CKPT058", "CKPT069"])
"""A whole checkpoint of another size, layout or release."""


_SSH_LOST = 255


def lost_before(run: Run, attempt: int) -> frozenset[int]:
    """Ranks to whose host the connection broke in the attempt before, as the launcher's ssh told: they had no word."""
    ends = [e for e in run.of_kind("exit") if e.attempt == attempt - 1 and e.rank is not None]
    lost = {e.rank for e in ends if e.fields.get("exitcode") == _SSH_LOST}
    spoke = {e.rank for e in run.of_kind("traceback") if e.attempt == attempt - 1}
    return frozenset(rank for rank in lost - spoke if rank is not None)


def _kept_out(restarts: Sequence[Sequence[Finding]]) -> tuple[int, ...]:
    """The one rank that cannot begin, restart after restart, by its own word: something of its own is still there."""
    own = [
        [one for one in _roots(these) if one.symptom in MEETING and one.consequence == "never"] for these in restarts
    ]
    ranks = {one.ranks for these in own for one in these}
    again = len(restarts) >= _AGAIN and all(own) and len(ranks) == 1
    return next(iter(ranks)) if again and len(next(iter(ranks))) == 1 else ()


def _said(one: Finding) -> str:
    return one.evidence[0].event.text


def _roots(errors: Sequence[Finding]) -> Sequence[Finding]:
    """What cannot be an echo, if we are sure enough of it; a bare exit code is not."""
    sure = [one for one in errors if one.confidence >= _SURE]
    return [one for one in sure if one.consequence == "never"] or sure


def _on_one_node(run: Run, one: Finding) -> tuple[int, ...]:
    """A restarting agent names only the local rank; in one console, where local and global ranks agree, it is both."""
    exits = run.of_kind("exit")
    alike = all(event.rank in (None, event.fields.get("local_rank")) for event in exits)
    local = one.evidence[0].event.fields.get("local_rank")
    known = len(run.sources) == 1 and alike and 0 in run.expected_ranks
    return (local,) if known and isinstance(local, int) and local in run.expected_ranks else ()


_AGAIN = 2
_BROKEN = ("accelerator-fault",)
_ON_DEVICE = regex(r"(?:(?<=\s)([\w.-]{1,120}) kernel: .{0,40}?)?NVRM: Xid \(PCI:([0-9A-Fa-f:.]{7,16})\)")
_SO_OFTEN = 3


def on_the_same_part(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every attempt, and there were several, ended with an error of one device: restarts put the job back on it."""
    by_attempt: dict[int | str, list[Finding]] = defaultdict(list)
    told = [one for one in found if one.severity == "error" and one.consequence == "never"]
    of_kernel = [one for one in told if _of_kernel(one)]
    others = [_of_the_only_end(run, one) for one in told if not _of_kernel(one)]
    heard = [one for one in others if (event := one.evidence[0].event).rank is not None or event.kind == "line"]
    for one in [*heard, *located(run, of_kernel)]:
        if one.ranks:
            by_attempt[one.attempt].append(one)
    if (there := _always_there(run, [one for one in heard if one.symptom in _BROKEN and one.ranks], told)) is not None:
        told_of, last, attempts = there
        fields = {"attempts": str(attempts), "accused": str(told_of.ranks[0])} | _device(run, told_of.ranks[0])
        yield on_events(rule, [told_of.evidence[0].event, last], told_of.ranks, fields)
        return
    if len(by_attempt) == 1:
        by_attempt = _by_log(next(iter(by_attempt.values())))
    elif max(by_attempt, default=0) != len(by_attempt) - 1:
        return
    in_turn = sorted(by_attempt.items(), key=lambda item: item[0] if isinstance(item[0], int) else 0)
    each = [next((one for one in these if one.symptom in _BROKEN), None) for _, these in in_turn]
    broken = [one for one in each if one is not None]
    if len(broken) < _SO_OFTEN or len(broken) != len(each):
        return
    moved = len({one.ranks for one in broken}) > 1
    if len(broken[-1].ranks) == 1 and (not moved or _one_device(of_kernel, len(broken))):
        fields = {"attempts": str(len(broken)), "accused": str(broken[-1].ranks[0])} | _device(run, broken[-1].ranks[0])
        yield on_events(rule, [one.evidence[0].event for one in broken], broken[-1].ranks, fields)


def _device(run: Run, rank: int) -> dict[str, str]:
    """The number of its GPU on its node, as its launcher counts the ranks there."""
    local = {e.fields.get("local_rank") for e in run.of_kind("exit") if e.rank in (rank, None)} - {None}
    return {"gpu": str(*local)} if len(local) == 1 else {}


def _always_there(run: Run, broken: Sequence[Finding], told: Sequence[Finding]) -> tuple[Finding, Event, int] | None:
    """The launcher saw one and the same place on a node end first in each attempt of one console, most of them without
    a word; in one of them its rank told of its broken device, and nobody told of anything else."""
    logs = {one.evidence[0].event.source for one in broken}
    others = {one.symptom for one in told if one.evidence[0].event.kind != "exit"} - set(_BROKEN)
    ranks = {one.ranks for one in broken}
    if len(logs) != 1 or others or len(ranks) != 1 or len(next(iter(ranks))) != 1:
        return None
    ends = [e for e in run.of_kind("exit") if e.source in logs]
    first: dict[int, Event] = {}
    for event in sorted(ends, key=lambda event: event.seq):
        first.setdefault(event.attempt, event)
    places = {event.fields.get("local_rank") for event in first.values()}
    (rank,) = next(iter(ranks))
    same = {e.fields.get("local_rank") for e in ends if e.rank == rank}
    if len(first) < _SO_OFTEN or max(first) != len(first) - 1 or places != same or len(places) != 1:
        return None
    return broken[-1], first[max(first)], len(first)


def _one_device(of_kernel: Sequence[Finding], attempts: int) -> bool:
    """The kernel complains in each attempt of one and the same GPU, and of no other: the ranks were dealt anew."""
    told = [(one.attempt, one.evidence[0].event, _ON_DEVICE.search(_said(one))) for one in of_kernel]
    devices = {(hit[1] or event.source, hit[2].lower()) for _, event, hit in told if hit}
    return len(devices) == 1 and len({attempt for attempt, _, hit in told if hit}) == attempts


def _of_kernel(one: Finding) -> bool:
    return one.symptom in _BROKEN and "NVRM: Xid (PCI:" in _said(one)


def _of_the_only_end(run: Run, one: Finding) -> Finding:
    """What nobody in particular said is of the one rank that the launcher of the same log saw end then."""
    if one.ranks or one.symptom not in _BROKEN:
        return one
    log = one.evidence[0].event.source
    ends = {e.rank for e in run.of_kind("exit") if e.source == log and e.attempt == one.attempt} - {None}
    return replace(one, ranks=tuple(sorted(e for e in ends if e is not None))) if len(ends) == 1 else one


def _by_log(found: Sequence[Finding]) -> dict[int | str, list[Finding]]:
    """Each attempt has a log of its own, `train-55019_r3.out`: names that differ in one number alone."""
    logs: dict[str, dict[int | str, list[Finding]]] = defaultdict(lambda: defaultdict(list))
    for one in found:
        source = one.evidence[0].event.source
        logs[re.sub(r"\d{1,9}", "#", source)][source].append(one)
    return max(logs.values(), key=len, default={})


_OOM = "device-out-of-memory"


def former_process_holds(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Restarts run out of a GPU's memory, and the same process holds it each time: it is of none of them. The attempt
    before had failed otherwise, so it had room."""
    errors = [one for one in found if one.severity == "error" and one.consequence == "never"]
    full: dict[int, dict[str, Finding]] = defaultdict(dict)
    for one in errors:
        if one.symptom == _OOM and len(one.ranks) == 1 and not held_by_its_own(run, one.evidence[0].event):
            named = [pid for pid, _ in others_named(_said(one))[:16]]
            full[one.attempt].update(dict.fromkeys(named, one))
    first = min(full, default=0)
    if not any(one.attempt < first for one in errors) or len(full) < _AGAIN:
        return
    kept = set.intersection(*(set(named) for named in full.values()))
    those = [[named[pid] for named in full.values()] for pid in sorted(kept)]
    for pid, ooms in zip(sorted(kept), those, strict=True):
        if len({one.ranks for one in ooms}) == 1:
            fields = {"pid": pid, "attempts": str(len(ooms)), "accused": str(ooms[0].ranks[0])}
            one = on_events(rule, [oom.evidence[0].event for oom in ooms[-2:]], ooms[0].ranks, fields)
            yield replace(one, confidence=max(one.confidence, min(ooms[-1].confidence + 0.005, 0.985)))
            return


_LOST = "worker-or-node-loss"
BY_SCHEDULER = (TIME_LIMIT, "JOB006", "JOB008", "JOB011", "JOB023", "JOB059", "JOB740")
"""Rules that tell of a scheduler, or of a cloud that takes its machine back."""
_RESTARTS = regex(r"\brestart[_ ]count['\"]?\W{1,3}(\d{1,4})\b", re.I)
_FROM_NOUGHT = regex(
    r"\b(?:start|begin|train|resum)\w{0,5}(?: training)?(?: (?:at|from))? "
    r"(?:global[_ ])?(?:step|iteration|iter|epoch)[ :=]{1,3}0\b"
    r"|\bfrom scratch\b|\bwill start from random\b"
    r"|\bno (?:\w{1,12} )?checkpoints?\b(?: \w{1,8}){0,2} (?:found|available|exists?|to (?:resume|load|restore))"
    r"|\bcheckpoints?\b[^\n]{0,120}: (?:none|not found)\b",
    re.I,
)
"""How programs say that they begin at the beginning."""


_COUNTING = tuple(
    word
    for low in ("step", "iter", "epoch", "checkpoint", "from scratch", "from random")
    for word in (low, low.capitalize(), low.upper())
)
"""One of them stands in whatever says so."""


def begins_anew(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Whoever gives the machines stops the job again and again, and each time it begins at its first step."""
    stops = [one for one in found if one.symptom == _LOST and one.severity == "error" and one.consequence == "never"]
    told = [one.evidence[0].event for one in stops] or _restarted(run)
    by_source: dict[str, list[Event]] = defaultdict(list)
    for event in told:
        by_source[event.source].append(event)
    for source in run.sources:
        if len(by_source[source.id]) < _AGAIN:
            continue
        ended = _each_end(run, by_source[source.id])
        anew = _starts_anew(run, source.id, ended)
        if len(anew) >= _AGAIN:
            one, last = _never_gets_on(rule, stops, anew), max(event.attempt for event in run.events)
            goes_on = all(stop.attempt < last for stop in stops)  # it will be stopped again
            yield replace(one, attempt=last) if goes_on else one
            return
    yield from _in_logs_of_their_own(run, rule, stops)


def _each_end(run: Run, told: Sequence[Event]) -> list[Event]:
    """The first line about each of them: a step, a job and all nodes are told of one after the other, and nobody trains
    in between."""
    ordered = sorted((event for event in told if event.line), key=lambda event: event.seq)
    steps = sorted({at for e in _progress(run).get(ordered[0].source, ()) for at in _at(e)}) if ordered else []
    return [
        e for n, e in enumerate(ordered) if not n or bisect_left(steps, ordered[n - 1].seq) < bisect_left(steps, e.seq)
    ]


@once
def _progress(run: Run) -> dict[str, list[Event]]:
    return _of_each(run.of_kind("progress"))


@once
def begins_at_nought(run: Run) -> list[Event]:
    """Where programs say that they do."""
    return [event for event in run.saying_one_of(_COUNTING, "line") if _FROM_NOUGHT.search(event.text)]


@once
def _from_nought(run: Run) -> dict[str, list[Event]]:
    return _of_each(begins_at_nought(run))


def _of_each(events: Iterable[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        found[event.source].append(event)
    return dict(found)


@once
def _numbers(run: Run) -> dict[tuple[str, str], list[Series]]:
    """By source and by what was asked for."""
    found: dict[tuple[str, str], list[Series]] = defaultdict(list)
    for name in ("resumed_step", "step", "loss"):
        for one in every(run, name):
            found[one.event.source, name].append(one)
    return dict(found)


def _at(progress: Event) -> Sequence[int]:
    at = progress.fields.get("at")
    return [line for line in at if isinstance(line, int)] if isinstance(at, list | tuple) else []


def _restarted(run: Run) -> list[Event]:
    """Lines that say how often the job was started again, where it was."""
    words = ("estart_count", "estart count", "RESTART_COUNT")
    said = [event for word in words for event in run.saying(word, "line")]
    return [event for event in said if (hit := _RESTARTS.search(event.text)) and int(hit[1]) > 0]


def _starts_anew(run: Run, source: str, ended: Sequence[Event]) -> list[Event]:
    """Of the ends those behind which the job began at its first step: as it says, or as its steps and losses show."""
    resumed = any(v > 1 for s in _numbers(run).get((source, "resumed_step"), ()) for v in s.said)
    counted = _numbers(run).get((source, "step"), [])
    falls = max(map(_falls, counted), default=0)
    if resumed or falls > len(ended):
        return []  # it has come further; or it counts anew in every epoch
    said = [event.seq for event in _from_nought(run).get(source, ())]
    bounds = [*(event.seq for event in ended), math.inf]
    by_words = [e for n, e in enumerate(ended) if any(bounds[n] <= seq < bounds[n + 1] for seq in said)]
    if len(by_words) >= max(falls, _AGAIN):
        seen = falls >= len(by_words) - 1 or any(len(one.values) < one.count for one in counted)
        return by_words if seen else []  # of a large log only parts are read as numbers
    return list(ended[:falls]) if _forgets(run, source) else []


def _falls(one: Series) -> int:
    """How often its steps fall back to where they began; nothing where they once fell elsewhere."""
    steps = one.finite
    back = [later for step, later in pairwise(steps) if later < step]
    usual = median(abs(b - a) for a, b in pairwise(steps)) if len(steps) > 1 else 0.0
    return len(back) if back and max(back) <= steps[0] + usual else 0


def _forgets(run: Run, source: str) -> bool:
    """Wherever the steps fall back the loss is nearer to its very first value than to its last one."""
    for one in _numbers(run).get((source, "loss"), ()):
        points = numbered(one)
        around = [(old[1], new[1]) for old, new in pairwise(points) if new[0] < old[0]]
        if around and all(abs(new - points[0][1]) < abs(new - old) for old, new in around):
            return True
    return False


def _in_logs_of_their_own(run: Run, rule: Rule, stops: Sequence[Finding]) -> Iterator[Finding]:
    """Each attempt of one job has its log: all but the last were stopped, and all but the first say that they are not
    the first and begin at the first step."""
    first = {one.event.source for one in of_all_attempts(run, "step") if one.finite and one.finite[0] <= 1}
    again = {event.source for event in _restarted(run)}
    ended = {one.evidence[0].event.source: one.evidence[0].event for one in stops[::-1]}
    logs = {event.source for event in run.of_kind("progress")}
    stopped = [ended[source] for source in sorted(logs) if source in ended]
    if len(logs) > _AGAIN and logs <= first and len(again & logs) >= len(logs) - 1 <= len(stopped):
        last = max(one.attempt for one in stops)
        yield replace(_never_gets_on(rule, stops, stopped[: len(logs) - 1]), attempt=last)


def _never_gets_on(rule: Rule, stops: Sequence[Finding], anew: Sequence[Event]) -> Finding:
    return _behind(stops, on_events(rule, anew[:3], (), {"times": str(len(anew))}))


def _behind(stops: Sequence[Finding], one: Finding) -> Finding:
    """What came of these stops: surer than they are, and with the scheduler as its cause where it made one of them."""
    scheduled = any(stop.rule in BY_SCHEDULER for stop in stops)
    one = replace(one, confidence=max([one.confidence, *(min(stop.confidence + 0.005, 0.985) for stop in stops)]))
    return replace(one, weights={"preemption-or-scheduler-action": 8.0}) if scheduled else one


_OTHER_SELF = regex(
    r"/task:(\d{1,6})(?:/device:\S{1,20})? (?:unexpectedly tried to connect with a different incarnation"
    r"|current incarnation doesn't match with one in the group)"
)
_ONE_TRY_NS = 5_000_000_000


def refused_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A worker that came back is refused, for the others still hold its former self; and so it goes each time."""
    told: dict[tuple[int, str, int | None], list[Event]] = defaultdict(list)
    for event in run.saying("incarnation", "line"):
        if (said := _OTHER_SELF.search(event.text)) is not None and event.utc_ns is not None:
            told[int(said[1]), event.source, event.rank].append(event)
    tries = {(task, who, rank): _apart(events) for (task, who, rank), events in told.items()}
    (task, _, _), most = max(tries.items(), key=lambda item: len(item[1]), default=((0, "", None), []))
    if len(most) < _AGAIN:
        return
    stops = [one for one in found if one.symptom == _LOST and one.severity == "error" and one.consequence == "never"]
    began = [one.evidence[0].event for one in stops[:1]]
    yield _behind(stops, on_events(rule, [*began, *most[:2]], (task,), {"accused": str(task), "times": str(len(most))}))


def _apart(events: Sequence[Event]) -> list[Event]:
    """The first of those that belong to one try."""
    ordered = sorted(events, key=lambda event: event.utc_ns or 0)
    return [e for n, e in enumerate(ordered) if not n or (e.utc_ns or 0) - (ordered[n - 1].utc_ns or 0) > _ONE_TRY_NS]
