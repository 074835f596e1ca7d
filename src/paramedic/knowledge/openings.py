"""Whether a rule's patterns are ever tried: only lines with one of its keywords are, so what a pattern matches must be
able to hold one, whichever of its alternatives it takes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

_CATEGORIES = {
    _constants.CATEGORY_DIGIT: r"\d", _constants.CATEGORY_NOT_DIGIT: r"\D", _constants.CATEGORY_SPACE: r"\s",
    _constants.CATEGORY_NOT_SPACE: r"\S", _constants.CATEGORY_WORD: r"\w", _constants.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_NOTHING = (_constants.AT, _constants.ASSERT, _constants.ASSERT_NOT, _constants.GROUPREF_EXISTS)
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
Accepts = Callable[[str], bool]


def never_tried(patterns: Sequence[str], keywords: Sequence[str]) -> Iterator[str]:
    """Patterns, or alternatives in them, in whose matches no keyword can be."""
    for pattern in patterns:
        tree = _parser.parse(pattern)
        if any(keyword in text for text in _always_there(tree) for keyword in keywords):
            continue
        if not _opened(tree, keywords, {}):
            yield pattern
            continue
        for number, branches in enumerate(_Machine.of(tree, {})[0].branches):
            for choice in range(branches):
                if not _opened(tree, keywords, {number: choice}):
                    yield f"alternative {choice + 1} of {branches} in {pattern}"


@dataclass(slots=True)
class _Machine:
    """States are numbers; of each, where it goes without a letter, and where with one, which the pattern may name."""

    chosen: dict[int, int]
    free: list[list[int]] = field(default_factory=list)
    steps: list[list[tuple[Accepts, bool, int]]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    """How many alternatives each has, in the order in which the tree is read."""

    @classmethod
    def of(cls, tree: Any, chosen: dict[int, int]) -> tuple[_Machine, int, int]:
        """With its first state and its last."""
        machine = cls(chosen)
        start = machine.state()
        return machine, start, machine.read(tree, start)

    def state(self) -> int:
        self.free.append([])
        self.steps.append([])
        return len(self.free) - 1

    def read(self, tree: Any, at: int) -> int:
        for kind, about in tree:
            at = self._node(kind, about, at)
        return at

    def _node(self, kind: Any, about: Any, at: int) -> int:
        if kind in _NOTHING:
            return at
        if kind in _REPEATS:
            least, _, part = about
            start = self.state()
            self.free[at].append(start)
            end = self.read(part, start)
            self.free[end].append(start)
            after = self.state()
            self.free[end].append(after)
            if not least:
                self.free[start].append(after)
            return after
        if kind is _constants.SUBPATTERN:
            return self.read(about[3], at)
        if kind is _constants.ATOMIC_GROUP:
            return self.read(about, at)
        if kind is _constants.BRANCH:
            return self._branch(about[1], at)
        after = self.state()
        self.steps[at].append((_accepts(kind, about), _names(kind, about), after))
        return after

    def _branch(self, parts: Sequence[Any], at: int) -> int:
        number, after = len(self.branches), self.state()
        self.branches.append(len(parts))
        for choice, part in enumerate(parts):
            start = self.state()
            if self.chosen.get(number, choice) == choice:
                self.free[at].append(start)
                self.free[self.read(part, start)].append(after)
            else:
                self.read(part, self.state())  # its branches are counted all the same
        return after

    def closed(self, states: set[int]) -> set[int]:
        waiting = list(states)
        while waiting:
            for state in self.free[waiting.pop()]:
                if state not in states:
                    states.add(state)
                    waiting.append(state)
        return states


def _opened(tree: Any, keywords: Sequence[str], chosen: dict[int, int]) -> bool:
    """A match that takes these alternatives can hold a keyword: it can be read from some state that is reached."""
    machine, start, end = _Machine.of(tree, chosen)
    reached = machine.closed({start})
    waiting = list(reached)
    while waiting:
        for _, _, state in machine.steps[waiting.pop()]:
            new = machine.closed({state}) - reached
            reached |= new
            waiting += new
    fold = bool(tree.state.flags & re.IGNORECASE)
    return end in reached and any(_can_hold(machine, reached, keyword, fold) for keyword in keywords)


def _can_hold(machine: _Machine, states: set[int], keyword: str, fold: bool) -> bool:
    """And not only where the pattern takes anything: half of its letters are those that the pattern names."""
    named = dict.fromkeys(states, 0)
    for letter in keyword:
        forms = {letter, letter.lower(), letter.upper()} if fold else {letter}
        after: dict[int, int] = {}
        for state, count in named.items():
            for accepts, names, to in machine.steps[state]:
                if any(map(accepts, forms)):
                    more = count + names
                    for each in machine.closed({to}):
                        after[each] = max(after.get(each, 0), more)
        named = after
    return 2 * max(named.values(), default=-1) >= len(keyword)


def _accepts(kind: Any, about: Any) -> Accepts:
    if kind is _constants.LITERAL:
        return lambda letter: ord(letter) == about
    if kind is _constants.NOT_LITERAL:
        return lambda letter: ord(letter) != about
    if kind is _constants.IN:
        return lambda letter: _is_in(about, letter)
    return lambda letter: letter != "\n"  # any; what an earlier group matched may be anything


def _names(kind: Any, about: Any) -> bool:
    """One letter, or a choice of single ones."""
    return kind is _constants.LITERAL or (kind is _constants.IN and all(of is _constants.LITERAL for of, _ in about))


def _is_in(parts: Sequence[tuple[Any, Any]], letter: str) -> bool:
    negated = parts[0][0] is _constants.NEGATE
    found = any(
        (kind is _constants.LITERAL and ord(letter) == about)
        or (kind is _constants.RANGE and about[0] <= ord(letter) <= about[1])
        or (kind is _constants.CATEGORY and re.fullmatch(_CATEGORIES[about], letter) is not None)
        for kind, about in parts
    )
    return found != negated


def _always_there(tree: Any) -> list[str]:
    """Texts that every match holds."""
    texts = [""]
    for kind, about in tree:
        if kind is _constants.LITERAL:
            texts[-1] += chr(about)
        elif kind is _constants.SUBPATTERN:
            first, *others = _always_there(about[3])
            texts[-1] += first
            texts += others
        elif kind not in _NOTHING:
            texts.append("")
    return texts
