"""Rules about one program, or one file of it, asked of all that a project has.

Such a rule is a function of a Flow; here it becomes one of a Setup, as `checks` lists them. Names of calls say which
programs it can apply to at all: the others are not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from paramedic.detect.flow import Flow
from paramedic.detect.loops import done_before_ranks, is_distributed
from paramedic.detect.program import Module
from paramedic.detect.setup import Check, Hit, Setup

_Program = Callable[[Flow], Iterable[Hit]]
_File = Callable[[Flow, Module], Iterable[Hit]]


def every_program(*calls: str) -> Callable[[_Program], Check]:
    """All training programs; where calls are named, those that have one of them."""

    def over(rule: _Program) -> Check:
        return _as_check(rule, lambda setup: (hit for flow in setup.calling(*calls) for hit in rule(flow)))

    return over


def every_distributed_program(*calls: str) -> Callable[[_Program], Check]:
    """The same, without programs of one process."""

    def over(rule: _Program) -> Check:
        return _as_check(rule, lambda setup: (hit for flow in setup.calling(*calls) for hit in _of_ranks(flow, rule)))

    return over


def _of_ranks(flow: Flow, rule: _Program) -> Iterator[Hit]:
    """Without what the parent does alone before it starts them."""
    if is_distributed(flow):
        alone = done_before_ranks(flow)
        yield from (hit for hit in rule(flow) if (hit.quoted[0].source, hit.quoted[0].line) not in alone)


def every_file(*texts: str) -> Callable[[_File], Check]:
    """Files of all programs, each once, where one of these texts stands."""

    def over(rule: _File) -> Check:
        return _as_check(rule, lambda setup: (hit for one in _files(setup, texts) for hit in rule(*one)))

    return over


def _files(setup: Setup, texts: Sequence[str]) -> Iterator[tuple[Flow, Module]]:
    for flow, module in setup.files:
        if any(text in module.text for text in texts):
            yield flow, module


def _as_check(rule: _Program | _File, ask: Callable[[Setup], Iterator[Hit]]) -> Check:
    """Under the rule's own name."""

    def check(setup: Setup) -> Iterator[Hit]:
        return _once(ask(setup))

    check.__name__, check.__module__, check.__doc__ = rule.__name__, rule.__module__, rule.__doc__
    return check


def _once(hits: Iterator[Hit]) -> Iterator[Hit]:
    """The same place of a file that several programs share is told once."""
    seen = set()
    for one in hits:
        first = one.quoted[0]
        if (first.source, first.line) not in seen:
            seen.add((first.source, first.line))
            yield one
