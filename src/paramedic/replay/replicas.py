"""Rank against rank in one recording: what must be equal on several of them, and the first time that it is not."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paramedic.collect.recording import SAME_FOR_ALL
from paramedic.detect.recordings import odd_ones
from paramedic.rank.score import Score
from paramedic.replay.reading import Recording

Prints = Mapping[int, Mapping[str, str]]
"""Of each rank, the fingerprint of everything that its replicas must have alike."""


@dataclass(frozen=True, slots=True)
class Apart:
    """What is not equal, in the first step in which anything is not."""

    kind: str
    step: int
    group: str
    ranks: tuple[int, ...]
    odd: tuple[int, ...]
    """Who differs from the majority; nobody where there is none."""
    names: tuple[str, ...] = ()
    op: str = ""
    call: int | None = None


@dataclass(frozen=True, slots=True)
class Agreement:
    compared: int
    """How many things two ranks or more had to have alike."""
    first: Apart | None
    steps: int
    """Up to where all of it is equal."""
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Shared:
    """Something that several ranks must have alike."""

    kind: str
    group: str
    prints: Prints
    op: str = ""
    call: int | None = None

    def common(self) -> list[str]:
        """What at least two ranks have: a sharded optimizer keeps each state on one of them."""
        count = Counter(name for one in self.prints.values() for name in one)
        return [name for name, ranks in count.items() if ranks > 1]

    def unequal(self, names: list[str]) -> list[str]:
        return [name for name in names if len({one[name] for one in self.prints.values() if name in one}) > 1]

    def apart(self, step: int, names: list[str]) -> Apart:
        here = {rank: one[names[0]] for rank, one in self.prints.items() if names[0] in one}
        called = tuple(name for name in names if name)[:20]
        return Apart(
            self.kind, step + 1, self.group, tuple(sorted(here)), tuple(odd_ones(here)), called, self.op, self.call
        )


def agreement(recording: Recording) -> Agreement:
    """Step by step: what collectives gave, then gradients, then the state."""
    results = _results(recording)
    last = max(one.last_step for one in recording.scores.values())
    compared = 0
    seen: set[int] = set()
    for step in range(last + 1):
        for shared in _shared(recording, results, step):
            names = shared.common()
            compared += len(names)
            seen |= shared.prints.keys() if names else set()
            unequal = shared.unequal(names)
            if unequal:
                return Agreement(compared, shared.apart(step, unequal), step, tuple(sorted(seen)))
    return Agreement(compared, None, last, tuple(sorted(seen)))


def _shared(recording: Recording, results: Mapping[int, list[_Shared]], step: int) -> Iterator[_Shared]:
    yield from results.get(step, ())
    for group in sorted({group for one in recording.scores.values() for group in one.replicas}):
        members = {rank: one for rank, one in recording.scores.items() if group in one.replicas}
        gradients = {rank: _of(one, group, one.each("gr", step), "gradient of ") for rank, one in members.items()}
        yield _Shared("gradients", group, gradients)
        yield from _states(members, group, step + 1)


def _results(recording: Recording) -> dict[int, list[_Shared]]:
    """What every member of a group gets alike, by step; two groups may have one name on different ranks."""
    got: dict[tuple[int, str, int, str, str], dict[int, dict[str, str]]] = defaultdict(dict)
    for rank, one in recording.scores.items():
        for group, calls in one.calls.items():
            members = str(one.groups.get(group, {}).get("ranks"))
            for call in calls:
                key = call.get("done", {}).get("h")
                if call["op"] in SAME_FOR_ALL and key:
                    got[call.get("s", 0), group, call["q"], call["op"], members][rank] = {"": key}
    found: dict[int, list[_Shared]] = defaultdict(list)
    for (step, group, place, op, _), prints in sorted(got.items()):
        found[step].append(_Shared("result", group, prints, op, place))
    return found


def _states(members: Mapping[int, Score], group: str, step: int) -> Iterator[_Shared]:
    """Each tensor where the step is kept; else the parameters by one print for all of them, which every step has."""
    maps = {rank: one.each("pa", step) | one.each("op", step) for rank, one in members.items()}
    each = _Shared("parameters", group, {rank: _of(one, group, maps[rank], "model ") for rank, one in members.items()})
    if not each.common():
        yield _Shared("parameters", group, {rank: _whole(one, group, step) for rank, one in members.items()})
        return
    yield each
    yield _Shared("optimizer", group, {rank: _of(one, group, maps[rank], "") for rank, one in members.items()})


def _of(score: Score, group: str, each: Mapping[str, str], start: str) -> dict[str, str]:
    """What is called so; with no start, what is neither a parameter nor a gradient."""
    other = ("model ", "gradient of ") if not start else ()
    return {
        label: each[name]
        for label, name in score.replicas[group].items()
        if name in each and label.startswith(start) and not label.startswith(other)
    }


def _whole(score: Score, group: str, step: int) -> dict[str, str]:
    lines = [line.get("rep") for line in score.marks.get(("pa", step), ())]
    key = lines[-1].get(group) if lines and isinstance(lines[-1], dict) else None
    return {"": key} if isinstance(key, str) else {}
