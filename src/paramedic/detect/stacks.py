"""Who stands where: the main threads of all ranks side by side. Whom the others wait for stands somewhere else.

Stacks speak only where nothing more certain does: an exception, a trace of the collectives. A rank that still moves is
no culprit: it is merely shown.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from paramedic.clocks import find_stamp
from paramedic.detect import hang, interrupted
from paramedic.detect.hang import PLACES, is_saving
from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.detect.ranks import few, listed
from paramedic.detect.situation import parting
from paramedic.detect.where import places
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.knowledge.waits import for_peers, load_waits
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_STOPPED, _ENDED = "T", ("Z", "X", "gone")
_BUSY = 0.5  # of a core
_SAYS = {"T": "is stopped", "Z": "has ended", "X": "has ended", "gone": "is gone"}
_BY_HAND = 0.15
"""So much less sure is where ranks stood when somebody interrupted them: a job that trains stands somewhere, too."""
_IN_THE_KERNEL = {"hrtimer_nanosleep": "sleep", "do_nanosleep": "sleep", "wait_for_partner": "io", "pipe_read": "io"}


_BLOCKED = "HOST011"


@dataclass(frozen=True, slots=True)
class Standing:
    """A rank's main thread. Processes whose rank nobody knows are counted below zero."""

    rank: int
    event: Event
    process: Event | None = None

    @property
    def waits(self) -> str:
        """As its frames say; a stack that ends in the user's own code, as the kernel says."""
        said = str(self.event.fields.get("waits", ""))
        return said or _IN_THE_KERNEL.get(str(self.process.fields.get("wchan")) if self.process else "", "")

    @property
    def place(self) -> str:
        """The whole way there, of the user's own code where there is any: what ranks are compared by."""
        return " ← ".join(reversed(self.event.fields.get("own") or self.event.fields.get("frames", ())))

    @property
    def shown(self) -> str:
        """The innermost of the user's own frames, for people."""
        frames = self.event.fields.get("own") or self.event.fields.get("frames") or ["code that is not Python"]
        return str(frames[-1])

    @property
    def does(self) -> str:
        return load_waits()[self.waits].says if self.waits in load_waits() else "stands"

    @property
    def moved(self) -> bool:
        """It stood elsewhere in the dump before the last."""
        return _count(self, "dumps") > 1 and _count(self, "unchanged") == 1

    @property
    def busy(self) -> bool:
        """It computes. One that held the interpreter's lock all along while it stood at one line does nothing else."""
        state = self.event.fields.get("state", "")
        if state == "active+gil" and _count(self, "unchanged") > 1:
            return False
        used = self.process.fields.get("used") if self.process else None
        return state.startswith("active") or (isinstance(used, float) and used > _BUSY)

    @property
    def for_peers(self) -> bool:
        """It waits for other ranks. A backward pass may compute as well."""
        return self.waits in for_peers() and not (self.waits == "backward" and self.busy)


def _count(one: Standing, name: str) -> int:
    value = one.event.fields.get(name)
    return value if isinstance(value, int) else 1


@dataclass(frozen=True, slots=True)
class _Scene:
    """All that was seen at one time, and how it is judged: one of the detectors below tells it."""

    kind: str
    culprits: tuple[int, ...]
    stood: Mapping[int, Standing]
    states: Mapping[int, Event]
    waiting: tuple[int, ...]


@once
def standing(run: Run) -> dict[int, Standing]:
    """Where each rank's main thread stood last; not those that trained on, crashed there, or are of an earlier try."""
    stacks = run.of_kind("stack") or interrupted.stacks(run)
    if not stacks:
        return {}
    later = _last_progress(run)
    states = _states(run)
    known = places(run)
    stood: dict[int, Standing] = {}
    attempt = max(event.attempt for event in run.events)
    nameless = 0
    local = _on_one_node(run, stacks)
    for event in stacks:
        fields = event.fields
        if not fields.get("main") or fields.get("fatal") or event.attempt != attempt:
            continue
        if (event.line or 0) < max(later.get((event.source, who), 0) for who in (event.rank, None)):
            continue
        pid = fields.get("pid")
        rank = known.rank_of(pid, event.host) if event.rank is None and isinstance(pid, int) else event.rank
        rank = local.get(event.seq) if rank is None else rank
        nameless += rank is None
        rank = -nameless if rank is None else rank
        stood[rank] = Standing(rank, event, states.get(rank))
    return stood


def _on_one_node(run: Run, stacks: Sequence[Event]) -> dict[int, int]:
    """Local ranks are the job's where the dumps of one file are of as many processes as the job has."""
    told = {e.seq: e.fields.get("local_rank") for e in stacks if e.fields.get("main") and e.rank is None}
    ranks = [rank for rank in told.values() if isinstance(rank, int)]
    whole = run.world_size is not None and sorted(ranks) == list(range(len(told))) and len(told) == run.world_size
    one_file = len({event.source for event in stacks}) == 1
    return {seq: rank for seq, rank in told.items() if isinstance(rank, int)} if whole and one_file else {}


def _last_progress(run: Run) -> dict[tuple[str, int | None], int]:
    return {(e.source, e.rank): max(e.fields.get("at") or [e.line or 0]) for e in run.of_kind("progress")}


def _states(run: Run) -> dict[int, Event]:
    """What the system said of the ranks' processes."""
    return {e.rank: e for e in run.of_kind("process") if e.rank is not None}


# -- the verdicts, one rule each -----------------------------------------------------------------------------------


def rank_elsewhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank stands in its own code, its loader or a save, while all others wait for it in a collective."""
    yield from _outliers(rule, _scene(run, found), "elsewhere")


def rank_not_at_meeting(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same, but the others wait in set-up."""
    yield from _outliers(rule, _scene(run, found), "before meeting")


def different_collectives(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All wait for each other, at different places."""
    scene = _scene(run, found)
    if scene is None or scene.kind != "desync":
        return
    others = [rank for rank in scene.waiting if rank not in scene.culprits]
    sure = all(_count(one, "unchanged") > 1 for one in scene.stood.values())
    odd = scene.culprits or others[:1]
    rest = [rank for rank in others if scene.stood[rank].place != scene.stood[odd[0]].place]
    fields = {**_told(scene, odd[0], rest), **_accused(scene.culprits)}
    one = on_events(rule, _evidence(scene, [*odd, *rest]), _known(scene.culprits), fields)
    certain = rule.confidence if sure else rule.confidence - 0.15
    one = replace(one, confidence=certain if scene.culprits else certain - 0.1)
    frames = [frame for rank in scene.culprits for frame in scene.stood[rank].event.fields.get("frames", ())]
    saving = any(map(is_saving, frames))  # by some ranks only: a hang first, by the symptom's own boundary
    yield replace(one, symptom=load_taxonomy().symptom("collective-hang")) if saving else one


def lock_file(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks wait for a lock file, and nobody is at the work that the lock is for."""
    scene = _scene(run, found)
    if scene is None or scene.kind != "lock":
        return
    lockers = [rank for rank, one in scene.stood.items() if one.waits == "lock"]
    named = scene.culprits
    fields = {**_told(scene, lockers[0], scene.waiting), **_accused(named)}
    one = on_events(rule, _evidence(scene, [*lockers, *scene.waiting]), _known(named), fields)
    met = any(scene.stood[rank].waits != "rendezvous" for rank in scene.waiting)
    if not met and not run.of_kind("progress"):
        one = replace(one, symptom=load_taxonomy().symptom("rendezvous-setup-hang"))
    frames = [frame for rank in lockers for frame in scene.stood[rank].event.fields.get("frames", ())]
    left = not scene.waiting and any("file_baton.py" in frame for frame in frames)
    yield replace(one, weights=_LEFT_BEHIND if left else PLACES["lock"])


_LEFT_BEHIND = {"resource-leak-or-retained-reference": 250.0}
"""Where all wait for a file that marks a build, nobody is left who made it."""


def process_stopped(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank's process is stopped or gone, while the others wait."""
    scene = _scene(run, found)
    if scene is None or scene.kind != "stopped":
        return
    letters = {rank: _letter(scene, rank) for rank in scene.culprits}
    fields = {
        "does": _SAYS[letters[scene.culprits[0]]],
        "waiting": listed({*_known(scene.waiting)}),
        **_accused(scene.culprits),
    }
    events = [*_evidence(scene, scene.culprits), *_evidence(scene, scene.waiting)][:4]
    one = on_events(rule, events, _known(scene.culprits), fields)
    if any(letter != _STOPPED for letter in letters.values()):
        one = replace(one, symptom=load_taxonomy().symptom("worker-or-node-loss"))
    yield one


def all_saving(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Everybody who was looked at writes the same checkpoint, and the job came no further: somebody ended it long after
    its last step. That all save for a while is as it should be."""
    failed = [one for one in found if one.severity == "error" and one.consequence == "never"]
    stood = [*standing(run).values()]
    writing = [one for one in stood if _writes(one)]
    if len(writing) < 2 or any(one.rule not in ENDED for one in failed) or any(one.moved for one in stood):
        return
    saving = all(any(_SAVES.search(frame) for frame in one.event.fields.get("frames", ())) for one in stood)
    if saving and 2 * len(writing) >= len(stood) and _long_after(run, found):
        fields = {"place": writing[0].shown, "ranks": str(len(stood))}
        yield on_events(rule, [one.event for one in writing[:3]], (), fields)


_BY_SOMEBODY = frozenset(["JOB006", "JOB014", "JOB055"])
"""A time limit, a job that was cancelled, a key that was pressed."""
ENDED = _BY_SOMEBODY | {"HOST010", "JOB002", "JOB004"}
"""And what becomes of the ranks then."""
_SAVES = regex(r" in _{0,2}(?:\w{1,60}_)?(?:save|saving|write)(?:_\w{0,60})?$")


def _long_after(run: Run, found: Sequence[Finding]) -> bool:
    """Somebody ended it when the log's last word was that it saves, or, by its clock, long after its last step."""
    ends = [one.evidence[0].event for one in found if one.rule in _BY_SOMEBODY]
    last = [event for event in run.stepping if any(event.source == end.source for end in ends)]
    if not ends or not last:
        return False
    times = [[at for event in events if (at := _when(event)) is not None] for events in (ends, last)]
    known = len(times[0]) == len(ends) and len(times[1]) == len(last)
    late = known and min(times[0]) - max(times[1]) >= _LONG_NS
    return late or all(_IS_SAVING.search(event.text) for event in last)


_IS_SAVING = regex(r"\b(?:sav|writ)ing\b", re.I)
_LONG_NS = 600 * 1_000_000_000


def _when(event: Event) -> int | None:
    stamp = find_stamp(event.text)
    return event.utc_ns if event.utc_ns is not None else stamp.utc_ns if stamp else None


def _writes(one: Standing) -> bool:
    """The innermost frames are those of a save, and no other rank is waited for there."""
    inner = list(one.event.fields.get("frames", ()))[-_INNER:]
    return not one.for_peers and any(_SAVES.search(frame) for frame in inner)


_INNER = 4


def inherited_lock(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All ranks wait for their loaders, and gdb shows a process of one thread that waits for a lock: whoever held it
    when the process was forked is a thread of the parent, and not here to give it back."""
    stood = standing(run)
    if not stood or any(one.waits != "data" for one in stood.values()) or _decided(found):
        return
    threads: dict[str, set[str]] = defaultdict(set)
    listed: set[str] = set()
    for event in run.saying("(LWP ", "line"):
        threads[event.source].update(_LWP.findall(event.text))
        if _FIRST_THREAD.match(event.text):
            listed.add(event.source)
    ranks = {str(one.event.fields.get("pid", "")) for one in stood.values()}
    for event in run.saying("lll_lock_wait", "line"):
        here = threads.get(event.source, set())
        if event.source in listed and len(here) == 1 and not here & ranks and _LOCKING.match(event.text):
            waiting = [*stood.values()]
            fields = {"process": next(iter(here)), "place": waiting[0].shown}
            yield on_events(rule, [event, *(one.event for one in waiting[:3])], (), fields)
            return


_LWP = regex(r"\(LWP (\d{1,10})\)")
_FIRST_THREAD = regex(r"(?:\* {1,4})?1 {1,8}Thread 0x|Thread 1 \(Thread 0x")
_LOCKING = regex(r"#\d{1,3} {1,4}(?:0x[0-9a-f]{1,16} in )?_{0,6}(?:GI_{1,6})?lll_lock_wait\b")


# -- how a scene is judged -----------------------------------------------------------------------------------------


def _scene(run: Run, found: Sequence[Finding]) -> _Scene | None:
    stood, states = standing(run), _states(run)
    if len(stood.keys() | states.keys()) < 2 or _decided(found):
        return None
    blocked = any(one.rule == _BLOCKED for one in found)  # then a backward pass that seems to compute waits in it
    waiting = (rank for rank, one in stood.items() if one.for_peers or (blocked and one.waits == "backward"))
    scene = _Scene("", (), stood, states, tuple(sorted(waiting)))
    if any(stood[rank].moved for rank in scene.waiting) or not stood:
        return None  # the job goes on
    return _stopped(scene) or _locked(scene) or _elsewhere(scene) or _desync(scene)


def _decided(found: Sequence[Finding]) -> bool:
    errors = [one for one in found if one.severity == "error"]
    return bool(errors) and len(list(hang.undecided(errors))) < len({one.attempt for one in errors})


def _letter(scene: _Scene, rank: int) -> str:
    if rank in scene.states:
        return str(scene.states[rank].fields.get("state", ""))
    return str(scene.stood[rank].event.fields.get("process", "")) if rank in scene.stood else ""


def _stopped(scene: _Scene) -> _Scene | None:
    ranks = scene.stood.keys() | scene.states.keys()
    stopped = {rank for rank in ranks if _letter(scene, rank) in (_STOPPED, *_ENDED)}
    waiting = {*scene.waiting} - stopped
    if not few(stopped, waiting) or len(stopped) + len(waiting) < len(ranks):
        return None
    return replace(scene, kind="stopped", culprits=tuple(sorted(stopped)), waiting=tuple(sorted(waiting)))


def _locked(scene: _Scene) -> _Scene | None:
    lockers = {rank for rank, one in scene.stood.items() if one.waits == "lock"}
    if not lockers or len(lockers) + len(scene.waiting) < len(scene.stood):
        return None  # somebody does the work that the lock is for
    named = lockers if few(lockers, {*scene.waiting}) else ()
    return replace(scene, kind="lock", culprits=tuple(sorted(named)))


def _elsewhere(scene: _Scene) -> _Scene | None:
    outside = scene.stood.keys() - {*scene.waiting}
    alone = len(scene.waiting) == 1 and scene.stood[scene.waiting[0]].waits == "backward"
    if not few(outside, {*scene.waiting}) or alone:
        return None
    setting_up = all(scene.stood[rank].waits == "rendezvous" for rank in scene.waiting)
    return replace(scene, kind="before meeting" if setting_up else "elsewhere", culprits=tuple(sorted(outside)))


def _desync(scene: _Scene) -> _Scene | None:
    places_taken = Counter(one.place for one in scene.stood.values() if one.place)
    setting_up = any(scene.stood[rank].waits == "rendezvous" for rank in scene.waiting)
    if len(scene.waiting) < len(scene.stood) or len(places_taken) < 2 or setting_up:
        return None
    most = places_taken.most_common(1)[0][1]
    if len(places_taken) > 2 and most <= len(scene.stood) / 2:
        return None  # groups of their own, perhaps: a pipeline's stages wait at many places
    odd = hang.odd_by_place({rank: (one.place, one.event) for rank, one in scene.stood.items()})
    return replace(scene, kind="desync", culprits=tuple(sorted(odd)))


# -- how it is told ------------------------------------------------------------------------------------------------


def _outliers(rule: Rule, scene: _Scene | None, kind: str) -> Iterator[Finding]:
    if scene is None or scene.kind != kind:
        return
    first = scene.stood[scene.culprits[0]]
    fields = {**_told(scene, first.rank, scene.waiting), **_accused(scene.culprits), "when": ""}
    fields |= doing(first)
    one = on_events(rule, _evidence(scene, [*scene.culprits, *scene.waiting]), _known(scene.culprits), fields)
    weights = dict(PLACES.get(first.waits, {}))
    if first.process is not None and first.process.fields.get("state") == "D":
        weights = dict(PLACES["io"])
    one = replace(one, weights=weights)
    if first.event.kind == "traceback":
        one = replace(one, confidence=one.confidence - _BY_HAND, fields=fields | {"when": ", when it was interrupted"})
    alive = any(scene.stood[rank].moved or scene.stood[rank].busy for rank in scene.culprits)
    yield replace(one, severity="warning", fields={**one.fields, "does": "is still at work"}) if alive else one


_WAITS_AT = {
    "data": "loads_at", "checkpoint": "saves_at", "io": "reads_at", "lock": "locked_at", "compile": "builds_at",
}  # fmt: skip
"""For the fixes: where it stands, by what it waits for."""


def doing(one: Standing) -> dict[str, str]:
    return {_WAITS_AT[one.waits]: one.shown} if one.waits in _WAITS_AT else {}


def _told(scene: _Scene, rank: int, waiting: Sequence[int]) -> dict[str, str]:
    fields = {"does": scene.stood[rank].does, "place": scene.stood[rank].shown}
    if waiting:
        usual = Counter(scene.stood[other].shown for other in waiting).most_common(1)[0][0]
        fields |= {"waiting": listed({*_known(waiting)}), "meeting": usual}
        theirs = next(one for other in waiting if (one := scene.stood[other]).shown == usual)
        fields |= parting(_own(scene.stood[rank]), _own(theirs), rank <= 0)
    return fields


def _own(one: Standing) -> list[str]:
    return [*(one.event.fields.get("own") or one.event.fields.get("frames") or ())]


def _accused(ranks: Sequence[int]) -> dict[str, str]:
    return {"accused": ", ".join(map(str, _known(ranks)))} if _known(ranks) else {}


def _known(ranks: Sequence[int]) -> list[int]:
    return [rank for rank in ranks if rank >= 0]


def _evidence(scene: _Scene, ranks: Sequence[int]) -> list[Event]:
    """Stacks first, what the system said of the culprit beside them."""
    events = [scene.stood[rank].event for rank in ranks if rank in scene.stood][:3]
    said = [scene.states[rank] for rank in ranks[:1] if rank in scene.states]
    return [*said, *events] if ranks and _letter(scene, ranks[0]) in (_STOPPED, *_ENDED) else [*events, *said]
