"""Ranks that say something else than all the others, whatever it is that they say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LAST, Series, by_rank, called, every, names, precise, sharded
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_MEMBERS, _LOOKS = 3, 3
_AGREE, _MINORITY = 0.65, 0.34
"""So many ranks say the same to the last digit, and so few say something else."""
_MOSTLY = 0.8
_FAR, _APART = 4.0, 0.3
"""Times the width of all the others, and of their median."""


def out_of_line(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A value that changes from step to step and is the same on nearly all ranks, and another one on a few."""
    told = every(run, "said", "hash", "state", "lr", "loss_scale", "grad_norm", "joint grad_norm")
    for name in names(told):
        series = by_rank(one for one in told if one.name == name)
        if len(series) < _MEMBERS or (sharded(series.values()) and name.startswith(("state", "grad_norm"))):
            continue
        steps = _steps(series)
        odd = _minority(steps)
        if odd:
            ranks = sorted(odd)
            others = [rank for rank in sorted(series) if rank not in odd][:2]
            events = [event for rank in (*ranks[:2], *others) for event in series[rank].shown(LAST)]
            what = name.removeprefix("said ").removeprefix("state ").removeprefix("hash ").replace("_", " ")
            fields = {"what": what, "rank": ", ".join(map(str, ranks)), **_last_alike(series, steps)}
            one = on_events(rule, events, ranks, fields)
            by_itself = len(odd) == 1 and name.startswith(("hash", "state")) and _long_alike(steps)
            yield replace(one, weights={"hardware-fault": _BY_ITSELF}) if by_itself else one
            return


_LONG, _BY_ITSELF = 0.25, 20.0


def _long_alike(steps: Sequence[Mapping[int, float]]) -> bool:
    """What all ranks hold was the same for long: nothing was forgotten on one of them, or started otherwise."""
    alike = next((at for at, said in enumerate(steps) if len(set(said.values())) > 1), len(steps))
    return alike >= max(_LOOKS, _LONG * len(steps))


def _last_alike(series: Mapping[int, Series], steps: Sequence[Mapping[int, float]]) -> dict[str, str]:
    """The step at which all still said the same, right before they never did again."""
    unlike = next((at for at, said in enumerate(steps) if len(set(said.values())) > 1), 0)
    tables = [one.at for one in series.values()]
    enough = max(_MEMBERS, 0.9 * len(series))
    order = [step for step in max(tables, key=len) if sum(step in at for at in tables) >= enough]
    if not unlike or len(order) != len(steps):
        return {}
    return {"alike": called(order[unlike - 1])}


def _steps(series: Mapping[int, Series]) -> list[dict[int, float]]:
    """By step, in the order of the log, what each rank said; steps that only some have named are left out."""
    tables = {rank: one.at for rank, one in series.items()}
    order = max(tables.values(), key=len, default={})
    steps = [{rank: at[step] for rank, at in tables.items() if step in at} for step in order]
    return [said for said in steps if len(said) >= max(_MEMBERS, 0.9 * len(series))]


def _minority(steps: Sequence[Mapping[int, float]]) -> set[int]:
    """Who differs in the last steps, where the others agree at nearly every one; what never changes shows nothing."""
    usual: list[float] = []
    unlike: list[set[int]] = []
    for said in steps:
        value, often = Counter(said.values()).most_common(1)[0]
        if often >= _AGREE * len(said):
            usual.append(value)
            unlike.append({rank for rank, own in said.items() if own != value})
    agrees = len(usual) >= max(_LOOKS, _MOSTLY * len(steps))
    telling = len(set(usual)) >= _LOOKS and any(precise(value, 4) for value in usual)
    if not agrees or not telling or not unlike[-1] or any(odd != unlike[-1] for odd in unlike[-_LOOKS:]):
        return set()
    return unlike[-1] if len(unlike[-1]) <= _MINORITY * len(steps[-1]) else set()


def far_from_all(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In the later half of the run one rank's loss or score is far from those of all others; a loss is but a hint."""
    told = [one for one in every(run, "score", "loss") if not one.name.startswith("score ppl")]
    for name in reversed(names(told)):
        series = by_rank(one for one in told if one.name == name)
        steps = _steps(series) if len(series) >= _MEMBERS else []
        late = [said for said in steps[len(steps) // 2 :] if all(said.values()) or name != "loss"]
        if len(late) < _LOOKS:
            continue
        often = Counter(rank for said in late for rank in _far(said))
        odd = {rank for rank, times in often.items() if times >= _MOSTLY * len(late)}
        if 0 < len(odd) <= _MINORITY * len(series):
            ranks = sorted(odd)
            peers = [rank for rank in sorted(series) if rank not in odd]
            events = [e for rank in (ranks[0], peers[0]) for e in series[rank].shown(FIRST, LAST)]
            what = name.removeprefix("score ")
            finding = on_events(rule, events, ranks, {"what": what, "rank": ", ".join(map(str, ranks))})
            yield replace(finding, severity="warning") if name == "loss" else finding
            return


def _far(said: Mapping[int, float]) -> Iterator[int]:
    """Who is far from where the most of the others are, and they are close together."""
    ordered = sorted(said.items(), key=itemgetter(1))
    size = len(ordered) - 1
    for place, (rank, value) in enumerate(ordered if len(ordered) >= _MEMBERS else ()):
        low, lower, upper, high = (
            ordered[at + (at >= place)][1] for at in (size // 8, (size - 1) // 2, size // 2, size - size // 8 - 1)
        )
        middle = (lower + upper) / 2
        if abs(value - middle) > max(_FAR * (high - low), _APART * abs(middle)):
            yield rank


def not_finite(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The program lists the ranks whose values are not finite, and it is one and the same at every step to the end."""
    for one in every(run, "nonfinite rank"):
        ranks = {int(value) for value in one.said}
        if len(one.said) >= _LOOKS and len(ranks) == 1:
            finding = on_events(rule, one.shown(FIRST, LAST), sorted(ranks), {"rank": str(*ranks)})
            yield replace(finding, weights={"hardware-fault": 4.0}) if len(one.said) >= 2 * _LOOKS else finding
            return
