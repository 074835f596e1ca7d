"""What the operating system's own tables say: a host that pages, and processes that only grow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from paramedic.detect.memory import human
from paramedic.detect.nodes import on_facts
from paramedic.detect.series import kendall, parts
from paramedic.detect.stacks import standing
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.model import Fact, Finding, Run
from paramedic.regex import regex

_PAGING = regex(r"(\d{1,6}) (\d{1,12}) (\d{1,12})")
_RESIDENT = regex(r"(\d{1,10}) (\d{1,12}) ((?:\d{1,15},){0,64}\d{1,15}) ((?:\d{1,15},){0,64}\d{1,15})")
_SAMPLES, _HARD = 5, 20_000
"""So many looks of vmstat, and in three of four so many KiB a second both in and out: then it does little else."""
_LOADS = regex(r"(?:serialization|checkpoint)\w{0,40}\.py:\d{1,9} in \w{0,40}load\w{0,40}$")
_EXHAUSTED = {"host-resource-exhaustion": 60.0}


def pages(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Memory is written out and read back all the time. Where all ranks stand in the loading of a checkpoint
    meanwhile, it is this that does not get done."""
    for fact in run.facts:
        said = _PAGING.fullmatch(str(fact.value)) if fact.name == "paging" else None
        if said is None or int(said[1]) < _SAMPLES or min(int(said[2]), int(said[3])) < _HARD:
            continue
        rates = {"read": human(1024 * int(said[2])), "written": human(1024 * int(said[3]))}
        one = on_facts(rule, [fact], {**rates, "samples": said[1]}, said=_told(rates))
        failed = any(other.severity == "error" and other.consequence == "never" for other in found)
        if _all_load(run):
            symptom = load_taxonomy().symptom("checkpoint-resume-failure")
            one = replace(one, symptom=symptom, weights=_EXHAUSTED)
        yield replace(one, severity="warning") if failed else one
        return


def _told(rates: dict[str, str]) -> str:
    return f"vmstat: {rates['read']} a second are read back from swap, {rates['written']} written to it"


def _all_load(run: Run) -> bool:
    stood = [one.event.fields.get("frames", ()) for one in standing(run).values()]
    return bool(stood) and not run.stepping and all(any(map(_LOADS.search, frames)) for frames in stood)


class _Process(NamedTuple):
    pid: str
    seconds: int
    held: list[int]
    mapped: list[int]
    fact: Fact


_LOOKS, _GIB, _FLAT, _HALF_AN_HOUR = 5, 1 << 20, 1.1, 1800
_STEADILY, _TWICE, _GOES_ON, _ITS_OWN = 0.9, 2.0, 0.6, 0.7


def processes_grow(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several processes of the job hold more each time that they are listed, as much more at the end as before, for so
    long that they do not merely start, or beside a large one that stays as it is. What is mapped grows with it: pages
    of a file that is merely read were mapped from the start."""
    listed = list(_processes(run))
    growing = [one for one in listed if _grows(one)]
    if len(growing) < 2 or 3 * len(growing) < len(listed):
        return
    stays = any(min(one.held) >= _GIB and max(one.held) <= _FLAT * min(one.held) for one in listed)
    if min(one.seconds for one in growing) < (_HALF_AN_HOUR if stays else 4 * _HALF_AN_HOUR):
        return
    first, last = min(one.held[0] for one in growing), max(one.held[-1] for one in growing)
    fields = {"first": human(1024 * first), "last": human(1024 * last), "processes": str(len(growing))}
    said = f"process {growing[0].pid} holds {fields['first']} at first and {fields['last']} at the end"
    yield on_facts(rule, [one.fact for one in growing[:3]], fields, said=said)


def _processes(run: Run) -> Iterator[_Process]:
    for fact in run.facts:
        said = _RESIDENT.fullmatch(str(fact.value)) if fact.name == "resident" else None
        if said is not None:
            held, mapped = ([int(size) for size in listed.split(",")] for listed in (said[3], said[4]))
            if len(held) == len(mapped) >= _LOOKS:
                yield _Process(said[1], int(said[2]), held, mapped, fact)


def _grows(one: _Process) -> bool:
    start, middle, end = parts([float(size) for size in one.held], 3)
    more = one.held[-1] - one.held[0]
    return (
        more >= _GIB
        and one.held[-1] >= _TWICE * one.held[0]
        and kendall([float(size) for size in one.held]) >= _STEADILY
        and end - middle >= _GOES_ON * (middle - start)
        and one.mapped[-1] - one.mapped[0] >= _ITS_OWN * more
    )
