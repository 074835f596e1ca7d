"""Settings that fit: the smallest change to what the user has first, then the fastest.

Every candidate is first judged by two traces of the model with few layers, which grow evenly; the best are then traced
whole. Speed is predicted from arithmetic and bytes moved, and only used to order candidates of equal effort.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace

from paramedic.memory import outside
from paramedic.memory.cards import Card, card_of
from paramedic.memory.edits import Candidate, Edit, candidates, free_edits
from paramedic.memory.estimate import Estimate, checked, traced
from paramedic.memory.process import Say, Tracing
from paramedic.memory.request import Request, check
from paramedic.memory.show import size
from paramedic.memory.speed import samples_a_second
from paramedic.memory.states import states
from paramedic.memory.zero import buffered

FEW = (2, 4)
AT_ONCE = 6
MOST_TRIED = 60
MARGIN = 1.03
HOST_BYTES = 16
"""A parameter with its gradient and Adam's moments, in fp32."""


@dataclass(frozen=True, slots=True)
class Need:
    """What a setting takes, grown from few layers: bytes on the device, and of each kind."""

    total: int
    kinds: dict[str, int]


@dataclass(frozen=True, slots=True)
class Effect:
    """What one edit does, after those before it."""

    title: str
    why: str
    cost: str
    removes: int
    share: float
    """Of what the setting took without it."""
    speed: float
    """Times as fast as without it."""


@dataclass
class Answer:
    candidate: Candidate
    estimate: Estimate
    speed: float
    effects: list[Effect] = field(default_factory=list)
    tight: Estimate | None = None
    """What it was before an edit that costs nothing gave it room."""

    @property
    def wanted(self) -> tuple[Edit, ...]:
        return self.candidate.edits[:-1] if self.tight is not None else self.candidate.edits


@dataclass
class Plan:
    asked: Request
    """With the plainest strategy where none was named."""
    card: Card
    need: Need | None = None
    """As it is."""
    answers: list[Answer] = field(default_factory=list)
    tried: int = 0
    largest: str | None = None


def plan(request: Request, most: int, say: Say) -> Plan:
    with Tracing(say) as tracing:
        return _Planning(request, tracing, say).run(most)


class _Planning:
    def __init__(self, request: Request, tracing: Tracing, say: Say) -> None:
        self.tracing, self.say = tracing, say
        self.candidates = candidates(request)
        self.start = self.candidates[0].request
        self.card = checked(self.start)
        self.parameters = 0
        self._needs: dict[Request, Need] = {}

    def run(self, most: int) -> Plan:
        say = self.say
        say("paramedic: looks at the setting as it is")
        found = Plan(self.start, self.card, self._need(self.start))
        left = [one for one in self.candidates if states(one.request, self.parameters) <= self.card.memory]
        say(f"paramedic: {len(left)} of {len(self.candidates)} settings remain when states alone are counted")
        while left and len(found.answers) < most and found.tried < MOST_TRIED:
            group, left = self._next(left, found)
            likely = [one for one in group if self._need(one.request).total <= self.card.memory]
            found.tried += len(group)
            say(f"paramedic: looked at {found.tried} with few layers; of the last {len(group)}, {len(likely)} may fit")
            for candidate in likely:
                if len(found.answers) < most and not _covered(candidate, found.answers):
                    self._whole(candidate, found)
        found.answers.sort(key=lambda one: (one.candidate.effort, -one.speed))
        for answer in found.answers:
            answer.effects = list(self._effects(answer))
        return found

    def _next(self, left: list[Candidate], found: Plan) -> tuple[list[Candidate], list[Candidate]]:
        """All of the least effort that are left, the fastest first; none that only adds to an answer."""
        left = [one for one in left if not _covered(one, found.answers)]
        if not left:
            return [], []
        effort = left[0].effort
        group = [one for one in left if one.effort == effort]
        group.sort(key=lambda one: -self._speed(one.request))
        group = group[:AT_ONCE]
        return group, [one for one in left if one not in group]

    def _whole(self, candidate: Candidate, found: Plan) -> None:
        self.say(f"paramedic: traces the whole step with {candidate.title}")
        made, tight = traced(candidate.request, self.tracing), None
        if made.fits == "tight":
            for edit in free_edits(candidate):
                wider = candidate.and_also(edit)
                again = traced(wider.request, self.tracing)
                if again.fits == "yes":
                    candidate, made, tight = wider, again, made
                    break
        if made.fits != "no" and not made.squeezes:
            found.answers.append(Answer(candidate, made, self._speed(candidate.request), tight=tight))

    def _speed(self, request: Request) -> float:
        return samples_a_second(request, self.parameters, self.card)

    def _effects(self, answer: Answer) -> Iterator[Effect]:
        before, edits = self.start, answer.candidate.edits
        for edit in edits:
            after = replace(before, **edit.changes)
            old, new = self._need(before).total, self._need(after).total
            if answer.tight is not None and edit is edits[-1]:
                old, new = answer.tight.total.mid, answer.estimate.total.mid
            cost = edit.cost
            if edit.group == "offload":
                away = HOST_BYTES * self.parameters // self.start.dp
                cost += f", {size(away)} of the host's memory for each rank"
            speed = self._speed(after) / self._speed(before)
            yield Effect(edit.title, edit.why, cost, old - new, (old - new) / old, speed)
            before = after

    def _need(self, request: Request) -> Need:
        if request not in self._needs:
            self._needs[request] = self._look(request)
        return self._needs[request]

    def _look(self, request: Request) -> Need:
        few = traced(replace(request, layers=FEW[0]), self.tracing)
        layers = few.result["layers"]
        if not isinstance(layers, int) or layers <= FEW[1]:
            few = traced(request, self.tracing)
            self.parameters = int(few.result["parameters"])
            return Need(few.total.mid, dict(few.result["breakdown"]))
        more = traced(replace(request, layers=FEW[1]), self.tracing)
        self.parameters = _line(int(few.result["parameters"]), int(more.result["parameters"]), layers)
        return grown(few, more, layers)


def _covered(candidate: Candidate, answers: list[Answer]) -> bool:
    """A set of edits that contains an answer's, without what gave that room, only adds effort to it."""
    mine = {edit.title for edit in candidate.edits}
    return any({edit.title for edit in answer.wanted} <= mine for answer in answers)


def grown(few: Estimate, more: Estimate, layers: int) -> Need:
    """Each phase's peak grows evenly with layers, but for ZeRO's buffers, which have an end; the highest may change."""
    small, large = few.result["phases"], more.result["phases"]
    counts = [int(one.result["parameters"]) for one in (few, more)]
    least, greater, whole = (buffered(more.request, count) for count in (*counts, _line(counts[0], counts[1], layers)))
    peak = max(
        _line(small.get(name, 0) - least.get(name, 0), large[name] - greater.get(name, 0), layers) + whole.get(name, 0)
        for name in large
    )
    kinds = {
        name: _line(few.result["breakdown"].get(name, 0), more.result["breakdown"][name], layers)
        for name in more.result["breakdown"]
    }
    return Need(int(peak * MARGIN) + outside.total(more.terms).mid, kinds)


def _line(few: int, more: int, layers: int) -> int:
    return few + (more - few) * (layers - FEW[0]) // (FEW[1] - FEW[0])


def largest(request: Request, what: str, say: Say) -> Plan:
    """The largest batch or sequence that fits with everything else as it is."""
    check(request)
    card = card_of(request.gpu, request.gpu_memory)
    step = 1 if what == "batch" else 128
    start = getattr(request, what) or step
    found = Plan(request, card, largest=what)
    with Tracing(say) as tracing:
        planning = _Planning(request, tracing, say)

        def fits(count: int) -> bool:
            found.tried += 1
            need = planning._need(_sized(request, what, count * step)).total
            say(f"paramedic: --{what} {count * step} takes about {need / (1 << 30):.1f} GiB")
            return need <= card.memory

        best = search(max(start // step, 1), fits)
        while best > 0:
            asked = _sized(request, what, best * step)
            say(f"paramedic: traces the whole step with --{what} {best * step}")
            made = traced(asked, tracing)
            if made.fits != "no":
                speed = samples_a_second(asked, made.result["parameters"], card)
                found.answers.append(Answer(Candidate(asked, ()), made, speed))
                return found
            best = best * 15 // 16 if best > 16 else best - 1
    return found


def _sized(request: Request, what: str, count: int) -> Request:
    return replace(request, batch=count) if what == "batch" else replace(request, seq=count)


def search(start: int, fits: Callable[[int], bool]) -> int:
    """The largest that fits, to about 3 %, where all smaller ones do."""
    low, high = 0, start
    while high < 1 << 16 and fits(high):
        low, high = high, high * 2
    while high - low > max(low // 32, 1):
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low
