"""What rises over a run and should not: memory, and the time that a step takes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from paramedic.detect.breakdown import EACH_SIDE, Part, clouds, levels, longer_part
from paramedic.detect.match import on_events
from paramedic.detect.memory import human
from paramedic.detect.once import once
from paramedic.detect.series import FIRST, LAST, Series, by_rank, every, kendall, names, parts, sharded
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run
from paramedic.regex import regex

_POINTS = 6
_WARM_UP = 0.2
"""Caches, buffers and the optimiser's state are filled in the first steps: that part of the run does not count."""
_STEADY, _NEARLY_ALL, _MANY = 0.7, 0.9, 16
"""How much of a rise is a trend; of few points nearly all pairs must rise, and on nearly all ranks."""
_RISE = 0.1
_LEAST = 16 << 20
_GOES_ON = 0.4
_SLOWER, _SLOWER_PLAINLY, _PLAIN = 2.0, 1.6, 0.85
_FULL = 0.9


def memory(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Memory that rises steadily after the warm-up, as much in the last part of the run as before, on most ranks.

    On fewer of them it must be plainer; and of numbers that belong to no step, on a few alone, beside others that stay.
    What falls is the memory that is free.
    """
    series = every(run, "memory", "free_memory")
    for name in names(series):
        same = [one for one in series if one.name == name]
        for look in (_over_steps, _beside_others):
            growing, of = look(same)
            if growing:
                values = growing[0].finite or growing[0].said
                events = [event for one in growing[:3] for event in one.shown(FIRST, LAST)]
                ranks = () if len(growing) == of else sorted({one.rank for one in growing if one.rank is not None})
                fields = {"first": human(int(values[0])), "last": human(int(values[-1])), **_of_host(name)}
                yield on_events(rule, events, ranks, fields)
                return
    for one in every(run, "grown"):
        if one.said and one.said[-1] >= 4 * _LEAST:
            more = human(int(one.said[-1]))
            yield on_events(rule, one.shown(LAST), (), {"first": "what it was", "last": f"{more} more"})
            return


def _of_host(name: str) -> dict[str, str]:
    """For its fix: whether it is the host's memory, and not a device's."""
    return {"memory": "host memory"} if _HOST.search(name) else {}


_HOST = regex(r"\b(?:rss|resident|host|vms|uss|pss)\b", re.I)


def _over_steps(same: Sequence[Series]) -> tuple[Sequence[Series], int]:
    """Those that grow, and of how many."""
    told = [one for one in same if len(one.finite) >= _POINTS and _own_steps(one) >= _POINTS]
    growing = [one for one in told if _grows(_used(one)) or _grows_in_each_round(_used(one))]
    few = min((len(one.finite) for one in told), default=0) < _MANY
    if len(growing) < (_NEARLY_ALL if few else 0.5) * len(told):
        growing = [] if few else [one for one in growing if _grows_plainly(_used(one))]
    return growing, len(told)


def _own_steps(one: Series) -> int:
    """At how many steps: what is told several times of one step is of parts of it, or of the job's beginning."""
    named = [step.partition("+")[0] for step in one.finite_steps if "step" in step]
    return len(set(named)) if named else len(one.finite)


def _beside_others(same: Sequence[Series]) -> tuple[Sequence[Series], int]:
    """What belongs to no step may have been told while the job started: then only a few that grow beside others that
    do not are a sign."""
    told = [one for one in by_rank(same).values() if len(one.said) >= _MANY and not one.finite]
    growing = [one for one in told if _grows(one.said)]
    alone = 4 * len(growing) <= len(told) and all(_grows_plainly(one.said) for one in growing)
    return growing if alone else (), len(told)


def slower_saves(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Saving takes many times as long as it did, and long enough to matter."""
    for one in every(run, "save_time"):
        values = one.said
        if len(values) >= _SAVED and values[-1] >= max(_FAR_LONGER * median(values[:2]), _LONG_S):
            fields = {"first": f"{median(values[:2]):.0f} s", "last": f"{values[-1]:.0f} s"}
            yield on_events(rule, one.shown(FIRST, LAST), (), fields)
            return


_SAVED, _FAR_LONGER, _LONG_S = 3, 5.0, 60.0


def piled_up(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Threads, files, groups or the like that become as many more in each part of the run as in the one before."""
    for one in every(run, "piled"):
        values = one.finite
        if len(values) < _POINTS or kendall(values) < _NEARLY_ALL or values[-1] < 2 * values[0]:
            continue
        first, middle, last = parts(values, 3)
        if values[-1] - values[0] >= len(values) and last - middle >= _GOES_ON * (middle - first) > 0:
            what = one.name.removeprefix("piled ")
            fields = {"what": what, "first": f"{values[0]:.0f}", "last": f"{values[-1]:.0f}"}
            yield on_events(rule, one.shown(FIRST, LAST), (), fields)
            return


def _grows_in_each_round(values: Sequence[float]) -> bool:
    """It falls back to what it was, as at the end of an epoch, and rises again as steadily as before."""
    falls = [at for at in range(1, len(values)) if values[at] < _FALLS_TO * values[at - 1]]
    rounds = [values[start:end] for start, end in pairwise([0, *falls, len(values)])]
    long = [part for part in rounds if len(part) >= _POINTS]
    return len(long) >= 2 and len(long) >= len(rounds) - 1 and all(_climbs(part) for part in long)


def _climbs(values: Sequence[float]) -> bool:
    start, middle, end = parts(values, 3)
    return (
        kendall(values) >= _NEARLY_ALL
        and values[-1] >= _TWICE * values[0]
        and values[-1] - values[0] >= _LEAST
        and end - middle >= _GOES_ON * (middle - start)
    )


_FALLS_TO, _TWICE = 0.6, 2.0


def _used(one: Series) -> list[float]:
    """Of the memory that is free, by how much it is less than at its most, above what was free at the end."""
    if one.name != "free_memory":
        return one.finite
    return [max(one.finite) + min(one.finite) - value for value in one.finite]


def _grows_plainly(values: Sequence[float]) -> bool:
    warm = values[int(_WARM_UP * len(values)) :]
    return kendall(warm) >= _NEARLY_ALL and warm[-1] >= (1 + 2 * _RISE) * warm[0]


def _grows(values: Sequence[float]) -> bool:
    warm = values[int(_WARM_UP * len(values)) :]
    start, middle, end = parts(warm, 3)
    return (
        kendall(warm) >= (_STEADY if len(values) >= _MANY else _NEARLY_ALL)
        and warm[-1] - warm[0] >= max(_RISE * warm[0], _LEAST)
        and end - middle >= _GOES_ON * (middle - start)
        and warm[-1] >= 0.95 * max(values)
    )


def savings(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In a job of several ranks, each says that it holds all of what was to be split between them."""
    held = every(run, "held")
    shares = [one.values[-1] for one in held if one.values and one.values[-1] is not None]
    if len(shares) >= 2 and min(shares) >= _FULL and len(by_rank(held)) >= 2:
        yield on_events(rule, [e for one in held[:3] for e in one.shown(LAST)], (), {"share": f"{min(shares):.0%}"})
        return
    parts_held, whole = every(run, "held_bytes"), every(run, "model_bytes")
    sizes = [one.values[-1] or 0.0 for one in parts_held if one.values]
    total = max((one.values[-1] or 0.0 for one in whole if one.values), default=0.0)
    if len(by_rank(parts_held)) >= 2 and total and min(sizes) >= _FULL * total and sharded((*parts_held, *whole)):
        events = [event for one in (*whole[:1], *parts_held[:3]) for event in one.shown(LAST)]
        yield on_events(rule, events, (), {"share": f"{min(sizes) / total:.0%}"})


class _Slower(NamedTuple):
    """How steps became slower: the series of all who tell, what is said of it, and the part that takes longer."""

    series: list[Series]
    fields: dict[str, str]
    sure: bool
    part: Part | None


def slowing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Steps that take twice as long at the end as after the warm-up, with a steady rise, on every rank.

    A hint; an error where there are many steps, each part of the run rises by itself, and the work does not grow.
    """
    slower = _steadily(run)
    if slower is not None and not _is_data(slower.part):
        yield _slower(rule, slower)


def slower_since(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Steps were all alike, and from one on they are alike again, but much slower; the work of a step is the same."""
    slower = None if _held_up(found) else _since(run)
    if slower is not None and not _is_data(slower.part):
        yield _slower(rule, slower)


def data_slower(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Either of both, and what takes longer is getting the data."""
    slower = None if _held_up(found) else _since(run) or _steadily(run)
    if slower is not None and _is_data(slower.part):
        yield _slower(rule, slower)


def _slower(rule: Rule, slower: _Slower) -> Finding:
    events = [event for one in slower.series[:3] for event in one.shown(FIRST, LAST)]
    part = slower.part
    fields = {**slower.fields, "part": part.told if part else ""}
    one = on_events(rule, events, (), fields, part.weights if part else {})
    return replace(one, severity="error" if slower.sure else "warning")


def _is_data(part: Part | None) -> bool:
    return part is not None and part.kind == "data_time"


def _held_up(found: Sequence[Finding]) -> bool:
    return any(one.symptom == "straggler-or-imbalance" and one.severity == "error" for one in found)


def _elapsed(values: Sequence[float]) -> bool:
    """A clock that was started once, and not the time of a step: from near nought it grows as much in each part."""
    third = max(len(values) // 3, 1)
    first, last = values[third] - values[0], values[-1] - values[-1 - third]
    steady = first > 0 and last > 0 and max(first, last) < _AS_MUCH * min(first, last)
    return steady and values[-1] > _FROM_NOUGHT * values[0] and all(one <= later for one, later in pairwise(values))


_FROM_NOUGHT, _AS_MUCH = 10.0, 2.5


@once
def _steadily(run: Run) -> _Slower | None:
    series = [one for one in every(run, "step_time") if len(one.finite) >= 2 * _POINTS and not _elapsed(one.finite)]
    if not series or not all(_slows(one.finite) for one in series):
        return None
    first, _, last = parts(series[0].finite[int(_WARM_UP * len(series[0].finite)) :], 3)
    sure = all(_rises_throughout(one.finite) for one in series) and not _more_work(run)
    steps = series[0].finite_steps[int(_WARM_UP * len(series[0].finite)) :]
    third = max(len(steps) // 3, 1)
    part = longer_part(run, series[0], {*steps[:third]}, {*steps[-third:]})
    told = {"first": f"{first:.3g} s", "last": f"{last:.3g} s"}
    fields = {**told, "before": told["first"], "now": f"at the end it takes {told['last']}"}
    return _Slower(series, fields, sure, part)


@once
def _since(run: Run) -> _Slower | None:
    """Uneven steps count only where a part of them, and not their computing, takes most of what they take longer."""
    series = [one for one in every(run, "step_time") or _summed(run) if len(one.finite) >= 2 * EACH_SIDE]
    batches = [one for one in every(run, "whole_batch", "device_batch", "accumulated") if len({*one.finite}) > 1]
    if not series or batches or _more_work(run):
        return None
    for look in (levels, clouds):
        at = look(series[0].finite)
        if at is None or any(look(other.finite) is None for other in series[1:]):
            continue
        one, steps = series[0], series[0].finite_steps
        part = longer_part(run, one, {*steps[: at[0]]}, {*steps[at[1] :]})
        if look is levels or (part is not None and part.kind != "compute_time"):
            before, after = median(one.finite[: at[0]]), median(one.finite[at[1] :])
            fields = {"before": f"{before:.3g} s", "now": f"since {steps[at[0]]} it takes {after:.3g} s"}
            return _Slower(series, fields, True, part)
    return None


def _summed(run: Run) -> list[Series]:
    """Of who tells only what a step consists of, computing and communicating, the sum of all that he tells."""
    found = []
    of_speaker: dict[tuple[int | None, str], list[Series]] = defaultdict(list)
    for one in every(run, *_ALL_PARTS):
        of_speaker[one.rank, one.event.source].append(one)
    for told in of_speaker.values():
        waits = next((one for one in told if one.name == "wait_time"), None)
        if waits is None or not any(one.name.startswith("compute_time") for one in told):
            continue
        values = [one.at for one in told]
        sums = [sum(at[step] for at in values) if all(step in at for at in values) else None for step in waits.steps]
        found.append(replace(waits, name="step_time", values=tuple(sums)))
    return found


_ALL_PARTS = ("compute_time", "wait_time", "data_time", "optimizer_time")


def _rises_throughout(values: Sequence[float]) -> bool:
    third = len(values) // 3
    return len(values) >= 2 * _MANY and all(kendall(values[n * third : (n + 1) * third]) >= 0.5 for n in range(3))


def _more_work(run: Run) -> bool:
    """Sequences grow over the run, or as much is done in a second as before."""
    for one in every(run, "work", "throughput"):
        if len(one.finite) >= _POINTS:
            first, _, last = parts(one.finite, 3)
            unit = str(one.event.fields.get("unit"))
            per_second = "/s" in unit and not unit.startswith("it")
            if (one.name.startswith("work") and last > 1.2 * first) or (per_second and last > 0.8 * first):
                return True
    return False


def _slows(values: Sequence[float]) -> bool:
    warm = values[int(_WARM_UP * len(values)) :]
    first, _, last = parts(warm, 3)
    trend = kendall(warm)
    return first > 0 and last >= (_SLOWER if trend < _PLAIN else _SLOWER_PLAINLY) * first and trend >= _STEADY


_RETRACED = regex(r"\b(\d{1,6}) out of the last (\d{1,6}) calls to .{0,200}?triggered tf\.function retracing")
_NOT_TRAINING = regex(r"predict|test_function|test_step|evaluate|restore|save|\bserving")


def retraced(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every call so far of a function of the training loop was traced anew."""
    for event in run.saying("retracing", "line"):
        said = _RETRACED.search(event.text)
        if said is not None and said[1] == said[2] and not _NOT_TRAINING.search(said[0]):
            later = replace(event, seq=max(e.seq for e in run.events if e.source == event.source) + 1)
            yield on_events(rule, (later,), (), {"calls": said[1]})  # training goes on, and so does this
            return


_UNIT = regex(r"\(_fsdp_wrapped_module\): (\w{1,120})\(")
_BLOCKS = regex(r"\(0-\d{1,4}\): (\d{1,5}) x (\w{1,120}(?:Layer|Block))\(")
_ASKED = regex(r"transformer_layer_cls_to_wrap['\"]?[:= ]{1,3}[\[(']{0,2}(\w{1,120})")
_FEWEST_BLOCKS, _MANY_BLOCKS, _BELOW = 4, 16, 400


def printed_as_one_unit(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In the model as FSDP prints it, the whole is the only unit, and its layers are not wrapped. It is an error where
    the log tells which layers were to be, and they are others, or where there are so many that nobody means it."""
    units = [(e, unit) for e in run.saying("_fsdp_wrapped_module", "line") if (unit := _UNIT.search(e.text))]
    blocks = [(e, block) for e in run.saying("(0-", "line") if (block := _BLOCKS.search(e.text))] if units else []
    if not blocks or len({unit[1] for _, unit in units}) != 1:
        return
    (root, unit), (event, block) = units[0], blocks[0]
    below = root.source == event.source and 0 < event.seq - root.seq < _BELOW
    if not below or int(block[1]) < _FEWEST_BLOCKS or unit[1] == block[2]:
        return
    wrapped = run.saying("transformer_layer_cls_to_wrap", "line")
    asked = next(((e, hit[1]) for e in wrapped if (hit := _ASKED.search(e.text)) is not None), None)
    other = asked is not None and asked[1] not in {hit[2] for _, hit in blocks}
    fields = {"blocks": f"{block[1]} {block[2]}", "asked": f"; {asked[1]} was to be wrapped" if asked else ""}
    fields |= {"layer": block[2], **({"wrong": asked[1]} if asked and other else {})}
    one = on_events(rule, [root, event, *([asked[0]] if asked else [])], (), fields)
    many = int(block[1]) >= _MANY_BLOCKS
    yield one if other or many else replace(one, severity="warning")
