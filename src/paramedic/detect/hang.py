"""Who is missing: when ranks say that they waited, the one that says nothing, or waited elsewhere, is the suspect."""

from __future__ import annotations

import re
import signal
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from paramedic.detect.batches import ENDS_FIRST, finished, out_of_data, through
from paramedic.detect.match import on_events, own_frames
from paramedic.detect.numbering import MOST_ON_A_NODE, placed
from paramedic.detect.ranks import few, few_of, listed, named
from paramedic.detect.situation import is_aside, situation
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_SUBGROUP = regex(r"\bPG (?:ID )?[1-9]\d{0,6}\b")
"""A process group that is not the default one: who belongs to it, the message does not say."""
_IN_GROUP = regex(r"\bPG (?:ID )?\d{1,7}\b[^\]\n]{0,80}?\bRank (\d{1,6})\]")
_SAVING_FRAME = regex(r" in \w*(?:sav(?:e|ing)|checkpoint)\w*$", re.I)
_CLOSING = (" in barrier", " in monitored_barrier", " in destroy_process_group")
_SAVING = regex(r"\b(?:sav(?:e|ing)|writ(?:e|ing)|checkpoint|flush|upload)", re.I)
_SETTING_UP = regex(
    r"\bjoining\b|\bconnecting\b|rendezvous|waiting for|init_process_group|distributed_backend|process group|barrier"
    r"|init(?:iali[sz])?(?:e|ing|ation)?[_ ](?:of )?(?:the )?(?:process|distributed|torch|nccl|parallel|collective)"
    r"|world[ _]size|\brank \d+ (?:of|/) ?\d+|torch_extensions|loading extension|building extension"
    r"|detected cuda files|ninja|real_accelerator|started server|grpc|coordination|cluster|socket\.cpp"
    r"|initiali[sz]ing (?:ddp|distributed): GLOBAL_RANK",
    re.I,
)
_ENQUEUED = regex(r"(?i)last enqueued (?:NCCL )?work: (\d{1,12})")
_MOST_RANKS = 1 << 20
_AGAIN = 3
_PREPARES = regex(
    r"^(?:\W{0,4}\w{0,20}[:\]] )?(?:Running )?"
    r"(?:[Mm]ap(?:ping)?|[Tt]okeni[sz]\w{2,6}|[Ff]ilter(?:ing)?|Generating \w{1,20} (?:split|examples)|[Gg]rouping"
    r"|[Pp]acking|[Pp]re-?process\w{0,4}|Extracting|Downloading|Saving the dataset|Creating \w{1,20} from)\b"
)
"""Bars of work on the data before training, which one rank does for all."""
_LOCK = regex(r"(?i)\block(?:s|ed| ?file)?\b|\.lock\b")
_FOR_A_LOCK = 250.0
_MORE_THAN_SET_UP = ("progress", "description")
PLACES: Mapping[str, Mapping[str, float]] = {
    "data": {"storage-or-external-service-fault": 4.0, "uneven-work-across-ranks": 3.0},
    "checkpoint": {"storage-or-external-service-fault": 12.0},
    "io": {"storage-or-external-service-fault": 8.0},
    "compile": {"uneven-work-across-ranks": 3.0, "cross-node-environment-skew": 3.0},
    "lock": {"storage-or-external-service-fault": 8.0},
}
"""What the place where a rank stands says about why."""


@dataclass(frozen=True, slots=True)
class _Wait:
    """A rank that waited in a collective, or lost a peer there, and where its own code stood."""

    rank: int
    place: str
    aside: bool
    at_the_end: bool
    """Its own code waits at a barrier or closes the group, as loops do when they are through."""
    event: Event


_TRIES = regex(
    r"\b[Rr]etry(?:ing)?\b|still (?:pending|waiting)|not respond|\b[Rr]econnect|slow read|read timed out", re.I
)
_LOST = ("communication-runtime-error", "rendezvous-setup-failure")
_CALL = regex(r"\bOpType=(\w{1,40})")
_STAYED_AWAY = "did not join the collective in which"


def rank_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that did not wait in the collective in which the others waited until their timeout."""
    for errors in undecided(found):
        victims = _of(errors, "collective-hang")
        events = [one.evidence[0].event for one in victims]
        waiting = {rank for one in victims for rank in one.ranks}
        blocked = _blocked(found, {rank for one in victims if one.fields.get("seq") for rank in one.ranks})
        if blocked and few({*blocked}, waiting):
            accused = _accusation(run, rule, [*blocked.values(), *events], {*blocked}, waiting - {*blocked})
            yield replace(accused, weights={**accused.weights, **PLACES["checkpoint"]})
            continue
        if locked := _without_the_lock(found, victims):
            accused = _accusation(run, rule, [*locked.values(), *events], {*locked}, waiting - {*locked})
            yield replace(accused, weights={**accused.weights, "framework-implementation-defect": _DEADLOCKED})
            continue
        if came := _all_but_the_first(run, found, victims):
            accused = _accusation(run, rule, events, {0}, came)
            yield replace(accused, weights={**_WORKS_FOR_ALL, **accused.weights})
            continue
        trying = _still_trying(run, victims)
        if trying and few(trying, waiting - trying):
            yield _accusation(run, rule, events, trying, waiting - trying)
            continue
        if not waiting or not _of_all(events):
            continue
        bars = [event for event in _preparing(run, {0}) if "100%" not in event.text]
        if bars and 0 not in waiting:
            yield _accusation(run, rule, [*bars[-1:], *events], {0}, waiting)
            continue
        of_some = any(_SUBGROUP.search(event.text) for event in events)
        expected = frozenset(range(max(waiting) + 1)) if of_some else run.expected_ranks
        waits = _waits([*victims, *_of(errors, "communication-runtime-error")])
        if camps := _under_one_number(victims):
            yield from _of_the_odd(run, rule, waits, _elsewhere(waits) or _through(run, camps))
            continue
        missing = _behind(run, victims) or few_of(
            expected, {one.rank for one in waits if one.rank in waiting or one.place}, waiting
        )
        if not few(missing, waiting):
            missing = (_whose_file_is_here(run) & expected if of_some else _whose_file_is_here(run)) - waiting
        waiting -= missing
        if _lost_others(missing, errors) or (_told_to_dump(events) and missing & _losers(errors)):
            continue
        if few(missing, waiting) and (run.world_size or len(waiting) > 1 or missing <= {*run.ranks_seen}):
            yield _accusation(run, rule, events, missing, waiting)
        else:
            yield from _of_the_odd(run, rule, waits, _elsewhere(waits))


def _of_the_odd(run: Run, rule: Rule, waits: Sequence[_Wait], odd: Set[int]) -> Iterator[Finding]:
    """They wait, too, but elsewhere than the others."""
    if not odd:
        return
    theirs = [one.event for one in waits if one.rank in odd]
    others = [one.event for one in waits if one.rank not in odd]
    fields = {"waiting": listed({one.rank for one in waits} - odd), "how": _called_instead(theirs, others)}
    fields |= situation(run, odd)
    at_the_end = all(one.at_the_end and not one.aside for one in waits if one.rank in odd)
    fields |= {"fewer": ENDS_FIRST.format(named(odd))} if at_the_end and "fewer" not in fields else {}
    accused = on_events(rule, [*theirs, *others][:4], sorted(odd), fields)
    yield replace(accused, weights=_reasons(run, odd, elsewhere=True, at_the_end=at_the_end))


def _under_one_number(victims: Sequence[Finding]) -> list[set[int]]:
    """By the watchdogs' word some called one thing and some another, where all counted to the same number: whoever else
    said nothing, they have parted."""
    camps: dict[str, set[int]] = defaultdict(set)
    for one in victims:
        if one.fields.get("seq") and one.fields.get("op"):
            camps[one.fields["op"]].update(one.ranks)
    numbers = {one.fields["seq"] for one in victims if one.fields.get("seq")}
    return list(camps.values()) if len(camps) > 1 and len(numbers) == 1 else []


def _through(run: Run, camps: Sequence[Set[int]]) -> Set[int]:
    """The camp of which all say that they are through, and nobody else does."""
    ended = through(run)
    return next((camp for camp in camps if ended and ended <= camp and 2 * len(ended) > len(camp)), frozenset())


def _blocked(found: Sequence[Finding], timed_out: Set[int]) -> dict[int, Event]:
    """Ranks whose process the kernel saw stand still in it, while the others waited until their timeout."""
    stuck = [one for one in found if one.fields.get("what", "").startswith("blocked for more than")]
    return {rank: one.evidence[0].event for one in stuck for rank in one.ranks if rank not in timed_out}


def _without_the_lock(found: Sequence[Finding], victims: Sequence[Finding]) -> dict[int, Event]:
    """Ranks in which no thread gets the interpreter's lock, and that are in no collective, while others time out in
    one: nothing runs there any more."""
    timed_out = {rank for one in victims if one.fields.get("seq") for rank in one.ranks}
    stuck = [one for one in found if one.rule == _NO_LOCK]
    ranks = {rank: one.evidence[0].event for one in stuck for rank in one.ranks if rank not in timed_out}
    return ranks if len(timed_out) > 1 and few({*ranks}, timed_out) else {}


_NO_LOCK, _DEADLOCKED = "COL067", 50.0


def _all_but_the_first(run: Run, found: Sequence[Finding], victims: Sequence[Finding]) -> set[int]:
    """Those that came to a monitored barrier and had no answer of rank 0, if they are all others of the job: rank 0
    does not complain of anybody, and would if it had come."""
    barrier = [one for one in victims if one.rule == _AT_BARRIER]
    came = {int(one.fields["waiting"]) for one in barrier if one.fields.get("waiting", "").isdigit()}
    said_so = any("accused" in one.fields or 0 in one.ranks for one in barrier)
    if said_so or len(came) < 2 or came != {*range(1, len(came) + 1)} or 0 not in run.ranks_seen:
        return set()
    failed = any(0 in one.ranks and one.severity == "error" for one in found)
    return came if not failed and (run.world_size or _processes(run)) == len(came) + 1 else set()


_AT_BARRIER = "COL008"
_WORKS_FOR_ALL = {"uneven-work-across-ranks": 3.0}
"""What rank 0 is late with is mostly work that it does for all: it evaluates, saves or prepares."""
_ENDED_BY_AGENT = regex(r"Sending process (\d{1,10}) closing signal")


def _processes(run: Run) -> int:
    """How many the agent ended, or saw end."""
    closed = (_ENDED_BY_AGENT.search(event.text) for event in run.saying("Sending process", "line"))
    return len({int(hit[1]) for hit in closed if hit} | {e.fields.get("pid") for e in run.of_kind("exit")})


def _called_instead(theirs: Sequence[Event], others: Sequence[Event]) -> str:
    """By the watchdog's word, where each side is in one call."""
    calls = [{found[1] for event in side if (found := _CALL.search(event.text))} for side in (theirs, others)]
    if any(len(names) != 1 for names in calls) or calls[0] == calls[1]:
        return _STAYED_AWAY
    return f"called {calls[0].pop()} where the others called {calls[1].pop()}, in which"


def _preparing(run: Run, ranks: Set[int]) -> list[Event]:
    """Data that these ranks make ready, as one does for all others, which wait for it."""
    return [e for e in run.of_kind("bars") if e.rank in (None, *ranks) and _PREPARES.search(e.text)]


def _of_all(events: Sequence[Event]) -> bool:
    """Not of a process group whose members nobody tells; unless several have there the number that they have in the
    job: then all up to the highest of them are members."""
    told = [(event.rank, _IN_GROUP.search(event.text)) for event in events if _SUBGROUP.search(event.text)]
    return not told or (len(told) > 1 and all(own and rank == int(own[1]) for rank, own in told))


def _whose_file_is_here(run: Run) -> Set[int]:
    """Of a large job often only some ranks' files are kept: the others have said nothing either way."""
    return frozenset(source.rank for source in run.sources if source.rank is not None and source.lines)


def _still_trying(run: Run, victims: Sequence[Finding]) -> frozenset[int]:
    """Who says to the last, again and again, that something outside does not answer, and did not time out himself."""
    timed_out = {rank for one in victims if one.fields.get("seq") for rank in one.ranks}
    lasts = [e for e in run.of_kind("last") if e.rank is not None and e.fields.get("again", 0) >= _AGAIN]
    return frozenset(e.rank for e in lasts if e.rank not in timed_out and e.rank is not None and _TRIES.search(e.text))


def _lost_others(missing: Set[int], errors: Sequence[Finding]) -> bool:
    """Most of them say that they lost a peer themselves: whoever stayed away, it was not they."""
    return 2 * len(missing & _losers(errors)) > len(missing) > 1


def _losers(errors: Sequence[Finding]) -> set[int]:
    return {r for one in errors if one.symptom in _LOST and "accused" not in one.fields for r in one.ranks}


def _told_to_dump(events: Sequence[Event]) -> bool:
    """Nobody says that it timed out: they were told to write their record by the first that failed, of whatever."""
    return all("dump signal" in event.text and "timeout" not in event.text for event in events)


def rank_lost(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that said nothing while all others lost the connection to a peer."""
    yield from _gone(run, rule, found, left=False)


def rank_left(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that had finished their own work when the others lost the connection to them."""
    yield from _gone(run, rule, found, left=True)


def _gone(run: Run, rule: Rule, found: Sequence[Finding], left: bool) -> Iterator[Finding]:
    if any(one.symptom == "collective-hang" for one in found):
        return
    done = finished(run)
    expected = run.expected_ranks
    for errors in undecided(found):
        victims = _of(errors, "communication-runtime-error")
        lost = {rank for one in victims for rank in one.ranks}
        missing = few_of(expected, lost, lost) - _ended_after(run, lost)
        if few(missing, lost) and bool(missing & done or _not_failed(run, errors) == missing) == left:
            crash = next((one for one in errors if one.symptom == "native-crash" and {*one.ranks} == missing), None)
            events = [one.evidence[0].event for one in victims]
            yield _confirmed(crash) if crash else _accusation(run, rule, events, missing, lost)


def _ended_after(run: Run, crashed: Set[int]) -> set[int]:
    """Ranks that srun, which tells of each task as it ends, saw asked to end after one of these had crashed."""
    exits = [e for e in run.of_kind("exit") if e.fields.get("by_srun") and e.rank is not None]
    first = min((e.seq for e in exits if e.rank in crashed and e.fields["exitcode"] in _CRASHES), default=None)
    ended = (e for e in exits if e.fields["exitcode"] == -signal.SIGTERM and first is not None and e.seq > first)
    return {e.rank for e in ended if e.rank is not None}


_CRASHES = frozenset({-signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGILL, -signal.SIGFPE})


def rank_unasked(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All others print that their launcher asked them to end: it does so when one of them has ended by itself."""
    for errors in undecided(found):
        asked = {rank for one in errors for rank in one.ranks}
        missing = few_of(run.expected_ranks, asked, asked)
        only = {one.rule for one in errors} == {_ASKED_TO_END} and len(asked) > 1
        if only and few(missing, asked) and missing <= {*_whose_file_is_here(run), *run.ranks_seen} - finished(run):
            yield _accusation(run, rule, [one.evidence[0].event for one in errors], missing, asked)


_ASKED_TO_END = "JOB071"
_RAISED = regex(r"[\w.]{0,200}(?:Error|Exception): ")
_AT_ERROR = regex(r"^[\d-]{10} [\d:.]{8,20}: [EF] \w|^[EF]\d{4} [\d:.]{8,20}")
"""Glog's level, in lines of TensorFlow and XLA."""


def silent_setup(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Everybody's last words are about finding the others, nobody has made a step, and nothing has failed."""
    if any(one.severity == "error" for one in found) or any(e.kind in _MORE_THAN_SET_UP for e in run.events):
        return
    lasts = [e for e in run.of_kind("last") if e.text]
    if any(_RAISED.match(e.text) for e in lasts) or any(_AT_ERROR.search(e.text) for e in run.of_kind("complaint")):
        return
    if run.world_size != 1 and lasts and all(_SETTING_UP.search(e.text) for e in lasts):
        one = on_events(rule, lasts[:4], (), {"last": lasts[0].text[:160]})
        never = absent(run, [one])
        missing = sorted(never or _who_repeats(lasts))
        if never:
            one = replace(one, fields={**one.fields, "absent": named(never)}, weights=_NOT_STARTED)
        if any(_LOCK.search(e.text) for e in lasts if e.fields.get("again", 0) >= _AGAIN):
            one = replace(one, weights={"resource-leak-or-retained-reference": _FOR_A_LOCK})
        yield replace(one, ranks=tuple(missing), scope="rank") if missing else one


_NOT_STARTED = {"launcher-or-rank-misconfiguration": 4.0}


def _who_repeats(lasts: Sequence[Event]) -> Set[int]:
    """Of all that wait, those that say again and again for what, while the others say nothing: they wait for something
    else than their peers do."""
    repeating = [e for e in lasts if e.fields.get("again", 0) >= _AGAIN]
    ranks = {e.rank if e.rank is not None else e.fields.get("said_by") for e in repeating}
    others = len(lasts) > len(repeating) or all(e.rank is None for e in repeating)
    return frozenset(rank for rank in ranks if rank is not None) if others and None not in ranks else frozenset()


def absent(run: Run, waiting: Sequence[Finding]) -> Set[int]:
    """Ranks that never came to the meeting: of all that a message or the log counts, those that nobody heard."""
    if any("/elastic/" in frame for one in waiting for frame in one.evidence[0].event.fields.get("frames", ())):
        return frozenset()  # launchers met there, not ranks
    counts = [(_number(one.fields.get("expected")), _number(one.fields.get("joined"))) for one in waiting]
    size, joined = next(((size, joined) for size, joined in counts if size), (None, None))
    heard = {s.rank for s in run.sources if s.lines} | {e.rank for e in run.events if e.kind != "metric"}
    heard |= {fact.rank for fact in run.facts if fact.name == "member"}
    missing = (frozenset(range(min(size, _MOST_RANKS))) if size else run.expected_ranks) - heard
    if size and joined is not None:
        unplaced = missing - {fact.rank for fact in run.facts if fact.name == "host"}
        nodes = {(at, each) for _, at, each, _ in placed(run, "node") if each <= MOST_ON_A_NODE}
        launched = {rank for at, each in nodes for rank in range(at * each, (at + 1) * each)}
        counted = (missing, unplaced, missing - launched)
        return next((ranks for ranks in counted if len(ranks) == size - joined), frozenset())
    return missing if few(missing, heard - {None}) else frozenset()


def missed(run: Run, errors: Sequence[Finding]) -> Set[int]:
    """The few ranks that say nothing, where all others say that a peer does not answer or has gone."""
    victims = [*_of(errors, "collective-hang"), *_of(errors, "communication-runtime-error")]
    waiting = {rank for one in victims for rank in one.ranks}
    missing = run.expected_ranks - waiting
    return missing if few(missing, waiting) else frozenset()


def saving_is_a_hang(run: Run, one: Finding) -> Finding:
    """That a checkpoint is saved by some ranks only is a hang first, by the symptom's own boundary."""
    return replace(one, symptom=load_taxonomy().symptom("collective-hang")) if while_saving(run, one.ranks) else one


def while_saving(run: Run, ranks: Collection[int]) -> bool:
    """Whoever is not where the others are stands in the saving of a checkpoint, as the stacks have it."""
    stood = [e for e in run.of_kind("stack") if e.rank in ranks and e.fields.get("main")]
    return any(is_saving(frame) for event in stood for frame in event.fields.get("frames", ()))


def is_saving(frame: str) -> bool:
    return _SAVING_FRAME.search(frame) is not None


def odd_ones(errors: Sequence[Finding]) -> frozenset[int]:
    """Who stood elsewhere, where everybody found out that the ranks do not do the same."""
    return frozenset(_elsewhere(_waits([one for one in errors if one.evidence[0].event.kind == "traceback"])))


def odd_among_accused(accusations: Sequence[Finding]) -> frozenset[int]:
    """Everybody is missed by somebody, as Horovod lists them: who is missed for other things than most are."""
    things: dict[int, str] = {}
    for one in accusations:
        said = one.evidence[0].event.text
        for rank in one.ranks if len(one.ranks) == 1 else ():
            things.setdefault(rank, said.partition(":")[2])
    usual = Counter(things.values()).most_common(1)
    if not usual or usual[0][1] <= len(things) / 2:
        return frozenset()
    return frozenset(rank for rank, what in things.items() if what != usual[0][0])


# -- who waited where ----------------------------------------------------------------------------------------------


def undecided(found: Sequence[Finding]) -> Iterator[list[Finding]]:
    """By attempt; none where somebody has said what went wrong, or whom he waited for: nobody needs to be suspected.
    Whom the launcher ended is named as killed, too, and that says nothing; nor that of whom a timeout found alive."""
    by_attempt: dict[int, list[Finding]] = defaultdict(list)
    ended = {rank for one in found if one.consequence == "always" and "ending" in one.fields for rank in one.ranks}
    for one in found:
        if one.severity == "error":
            by_attempt[one.attempt].append(one)
    for _, errors in sorted(by_attempt.items()):
        alive = {rank for one in _of(errors, "collective-hang") for rank in one.ranks}
        accused = (one for one in errors if "accused" in one.fields and not _killed_later(one, alive))
        said = any(one.consequence == "never" for one in errors)
        if not said and all(one.ranks and ended.issuperset(one.ranks) for one in accused):
            yield errors


def _killed_later(one: Finding, alive: Set[int]) -> bool:
    return one.symptom == "worker-or-node-loss" and bool(one.ranks) and alive >= {*one.ranks}


def _behind(run: Run, victims: Sequence[Finding]) -> Set[int]:
    """Ranks that say themselves that they never came to the call in which the others waited."""
    calls = Counter(int(one.fields["seq"]) for one in victims if one.fields.get("seq", "").isdigit())
    if not calls:
        return frozenset()
    said = ((e.rank, _ENQUEUED.search(e.text)) for e in run.of_kind("line") if not _SUBGROUP.search(e.text))
    usual = calls.most_common(1)[0][0]
    return frozenset(rank for rank, last in said if rank is not None and last and int(last[1]) < usual)


def _of(errors: Sequence[Finding], symptom: str) -> list[Finding]:
    return [one for one in errors if one.symptom == symptom and one.consequence == "possible"]


def _waits(victims: Sequence[Finding]) -> list[_Wait]:
    """Where each stood: by the call that a message names, else by its own frames."""
    waits: dict[int, _Wait] = {}
    for one in sorted(victims, key=lambda one: "seq" not in one.fields):
        event = one.evidence[0].event
        if event.rank is None or event.rank in waits:
            continue
        named = ("op", "seq", "elements") if one.fields.get("op") in _ALIKE else ("op", "seq")
        call = " ".join(one.fields[name] for name in named if name in one.fields) if "seq" in one.fields else ""
        waits[event.rank] = _wait(event.rank, call or " ← ".join(reversed(own_frames(event))), event)
    return list(waits.values())


_ALIKE = ("ALLREDUCE", "BROADCAST", "REDUCE", "ALLGATHER", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
"""Calls into which all ranks of a group put as many elements."""


def _wait(rank: int, place: str, event: Event) -> _Wait:
    frames = event.fields.get("frames", ())
    aside = any(is_aside(frame) for frame in frames if not frame.endswith(" in barrier"))
    return _Wait(rank, place, aside, any(frame.endswith(_CLOSING) for frame in frames), event)


def odd_by_place(stood: Mapping[int, tuple[str, Event]]) -> set[int]:
    """Of ranks that all wait for each other, each at a place: those that wait elsewhere than they should."""
    return _elsewhere([_wait(rank, place, event) for rank, (place, event) in stood.items()])


def _elsewhere(waits: Sequence[_Wait]) -> set[int]:
    """Whoever stands elsewhere than the clear majority; of two camps, the one beside the step, or already behind it."""
    places = Counter(one.place for one in waits if one.place)
    if len(places) < 2:
        return set()
    (usual, votes), *_ = places.most_common(1)
    others = sum(places.values()) - votes
    if votes > others and (others == 1 or 2 * others < votes):
        return {one.rank for one in waits if one.place and one.place != usual}
    camps = ({one.rank for one in waits if one.aside}, {one.rank for one in waits if one.at_the_end})
    return next((camp for camp in camps if camp and len(camp) <= len(waits) / 2), set())


def _confirmed(crash: Finding) -> Finding:
    """Its abort might have been an echo, but the others only miss this rank."""
    accused = listed({*crash.ranks})
    return replace(crash, consequence="never", confidence=0.75, fields={**crash.fields, "accused": accused})


def _accusation(run: Run, rule: Rule, events: Sequence[Event], missing: Set[int], waiting: Set[int]) -> Finding:
    """Shows where the missing ranks were, the last that they said if they said anything, and then who waited."""
    attempt = max((event.attempt for event in events), default=0)
    lasts = [e for e in run.of_kind("last") if e.rank in missing and e.text and e.attempt == attempt]
    fields = {**situation(run, missing), "waiting": listed(waiting), "how": _STAYED_AWAY}
    one = on_events(rule, [*lasts[:2], *events[:4]], sorted(missing), fields)
    return replace(one, weights=_reasons(run, missing))


def _reasons(run: Run, ranks: Set[int], elsewhere: bool = False, at_the_end: bool = False) -> Mapping[str, float]:
    """What the suspects' own last words, and where they stand, say about why."""
    if at_the_end or ranks & finished(run):
        return {"uneven-work-across-ranks": 6.0}
    if elsewhere:
        return {"collective-order-divergence": 2.0}
    if _preparing(run, ranks):
        return {"uneven-work-across-ranks": 6.0}
    return _by_stack(run, ranks) or _by_last_words(run, ranks)


def _by_stack(run: Run, ranks: Set[int]) -> Mapping[str, float]:
    stacks = [e for e in run.of_kind("stack") if e.rank in ranks and e.fields.get("main")]
    return next((PLACES[waits] for e in stacks if (waits := str(e.fields.get("waits"))) in PLACES), {})


def _by_last_words(run: Run, ranks: Set[int]) -> Mapping[str, float]:
    lasts = [e for e in run.of_kind("last", "progress") if e.rank in ranks]
    words = max(lasts, key=lambda e: e.seq).text if lasts else ""
    if _TRIES.search(words):
        return {"storage-or-external-service-fault": 40.0}
    if _SAVING.search(words):
        return {"storage-or-external-service-fault": 12.0}
    return {"uneven-work-across-ranks": 6.0} if out_of_data(run, ranks) else {}


def _not_failed(run: Run, errors: Sequence[Finding]) -> Set[int]:
    """Ranks below others of the same node that torchrun's table of failures leaves out: they ended with exit code 0."""
    attempt = max((one.attempt for one in errors), default=0)
    exits = [e for e in run.of_kind("exit") if e.rank is not None and e.attempt == attempt]
    on_first_node = max((e.rank or 0 for e in exits if e.rank == e.fields.get("local_rank")), default=0)
    return set(range(on_first_node)) - {e.rank for e in exits}


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 8 else None
