"""What `paramedic run` saw: who stands where while nothing moves, who is slow, whose numbers part from the others'."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from paramedic.detect import boxes
from paramedic.detect.calls import stated_groups
from paramedic.detect.hang import saving_is_a_hang
from paramedic.detect.match import on_events, own_frame
from paramedic.detect.once import once
from paramedic.detect.ranks import listed
from paramedic.detect.stated import stated
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_FROZEN_S = 8.0
_CONFIRMED = 0.97
_CAMPS = 7


@dataclass(frozen=True, slots=True)
class Seen:
    """A rank, as its agent and the watcher saw it last."""

    rank: int
    event: Event
    condition: str
    phase: str
    beat_age_s: float
    still_s: float


def said_by(event: Event) -> Mapping[str, Any]:
    """What an agent or the watcher wrote, as it was read."""
    return _parsed(str(event.fields.get("said", "")))


@lru_cache(maxsize=8192)
def _parsed(text: str) -> Mapping[str, Any]:
    try:
        said = stated(text)
    except (ValueError, RecursionError):  # a recording is a stranger's file
        return {}
    return said if isinstance(said, dict) else {}


@once
def seen_ranks(run: Run) -> dict[int, Seen]:
    job = watcher_of(run)
    told = _dict(said_by(job).get("ranks")) if job else {}
    found: dict[int, Seen] = {}
    for event in run.of_kind("watch"):
        if event.rank is not None:
            about = _dict(told.get(str(event.rank)))
            found[event.rank] = Seen(
                event.rank,
                event,
                str(about.get("condition") or ""),
                str(about.get("phase") or _dict(said_by(event).get("now")).get("phase") or ""),
                _float(about.get("beat_age_s")),
                _float(about.get("still_s")),
            )
    return found


def watcher_of(run: Run) -> Event | None:
    return next((e for e in run.of_kind("watch") if e.rank is None), None)


def is_suspected(run: Run) -> bool:
    job = watcher_of(run)
    return job is not None and isinstance(said_by(job).get("suspected"), dict)


def frozen(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks whose process lives but runs no Python any more, while the others wait."""
    if not is_suspected(run):
        return
    ranks = seen_ranks(run)
    who = [one for one in ranks.values() if one.condition == "frozen" and one.beat_age_s >= _FROZEN_S]
    if who and len(who) < len(ranks):
        stacks = stacks_of(run)
        places = [stacks[one.rank] for one in who if one.rank in stacks]
        fields = {
            "place": own_frame(places[0]) if places else "code that cannot be seen",
            "seconds": f"{min(one.beat_age_s for one in who):.0f}",
            "waiting": listed(set(ranks) - {one.rank for one in who}),
        }
        events = [*places[:2], *(one.event for one in who[:3]), *_others(ranks, who)]
        yield _accused(on_events(rule, events, [one.rank for one in who], fields))


def unlike_calls(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same call with other contents, as the ranks' black boxes have it: also after an abort that said nothing."""
    if not is_suspected(run) and not _failed(run):
        return
    made = boxes.calls_of(run)
    if (odd := boxes.unlike(made)) is None:
        return
    chosen = {*odd.ranks} or {rank for rank, one in made.items() if not one[-1].done}
    events = [e for e in run.of_kind("calls") if e.rank in chosen]
    others = [e for e in run.of_kind("calls") if e.rank not in chosen]
    fields = {"odd": odd.odd, "others": f"the others called {odd.usual}"} if odd.ranks else _each(odd.each)
    one = _accused(on_events(rule, [*events[:3], *others[:1]], odd.ranks, fields))
    if any(said.severity == "error" and said.symptom == one.symptom and said.consequence == "never" for said in found):
        # an error says the same, and the notes say who called what
        one = replace(one, confidence=_CONFIRMED, fields={**one.fields, "confirmed": "by an error"})
    yield replace(one, weights=_why_unlike([*odd.each.values()]))


def _each(calls: Mapping[int, boxes.Call]) -> dict[str, str]:
    """Where no majority tells who is wrong: what every rank called, those with the same together."""
    camps: dict[tuple[str, ...], list[int]] = {}
    for rank, call in calls.items():
        camps.setdefault(call.like, []).append(rank)
    (first, *_), *others = camps.values()
    said = [f"{_ranks(ranks)} called {calls[ranks[0]].beside(calls[first])}" for ranks in others[:_CAMPS]]
    more = [f"{len(others) - _CAMPS} more called something else"] if len(others) > _CAMPS else []
    who = _ranks(next(iter(camps.values()))).capitalize()
    return {"who": who, "odd": calls[first].shown, "others": " and ".join([*said, *more])}


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {listed(ranks)}"


def _why_unlike(calls: Sequence[boxes.Call]) -> Mapping[str, float]:
    if len({call.op for call in calls}) > 1:
        return {"collective-order-divergence": 8.0}
    return {"uneven-work-across-ranks": 2.0 if len({call.place for call in calls}) > 1 else 6.0}


def elsewhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Everybody waits, and somebody in another collective than those who wait for him."""
    if not is_suspected(run) or _decided(found):
        return
    ranks = seen_ranks(run)
    if any(one.condition not in ("waiting", "ended") for one in ranks.values()):
        return
    backward = [one.rank for one in ranks.values() if one.phase == "backward"]
    groups = {name: frozenset(members[-1]) for name, members in stated_groups(run).items()}
    odd = boxes.elsewhere(boxes.calls_of(run), groups, backward, frozenset(ranks))
    if odd is None:
        return
    events = [ranks[rank].event for rank in odd.ranks[:3]] or [one.event for one in ranks.values()][:4]
    fields = {"odd": odd.odd, "usual": odd.usual} if odd.ranks else {}
    one = on_events(rule, [*events, *_others(ranks, [ranks[r] for r in odd.ranks])], odd.ranks, fields)
    yield saving_is_a_hang(run, _accused(one))


def nobody_moves(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Nothing moves, and nothing tells whose fault it is: at least that is said."""
    job = watcher_of(run)
    if job is None or not is_suspected(run) or _decided(found):
        return
    ranks = seen_ranks(run)
    suspected = _dict(said_by(job).get("suspected"))
    fields = {
        "seconds": f"{_float(suspected.get('quiet_s')):.0f}",
        "longest": f"{_float(suspected.get('usual_s')):.0f}",
    }
    missing = sorted(run.expected_ranks - set(ranks)) if len(run.expected_ranks) < 1 << 16 else []
    yield on_events(rule, [job, *(one.event for one in list(ranks.values())[:5])], missing, fields)


def stacks_of(run: Run) -> dict[int, Event]:
    """The last stack of each rank's main thread."""
    return {e.rank: e for e in run.of_kind("stack") if e.rank is not None and e.fields.get("main")}


def _accused(one: Finding) -> Finding:
    return replace(one, fields={**one.fields, "accused": listed(one.ranks)}) if one.ranks else one


def _decided(found: Sequence[Finding]) -> bool:
    return any(one.severity == "error" and one.consequence == "never" and one.ranks for one in found)


def _failed(run: Run) -> bool:
    job = watcher_of(run)
    return job is not None and said_by(job).get("exit") not in (None, 0)


def _others(ranks: Mapping[int, Seen], who: Sequence[Seen]) -> list[Event]:
    named = {one.rank for one in who}
    return [one.event for one in ranks.values() if one.rank not in named and one.condition == "waiting"][:2]


def _dict(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _float(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else 0.0
