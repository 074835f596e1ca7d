"""A rank that needs longer than its peers for its own work, step after step. Who waits is never the slow one."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.detect.series import (
    FIRST,
    LARGEST,
    LAST,
    Series,
    by_rank,
    common_steps,
    every,
    names,
    of_this_run,
    sharded,
)
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_STEPS = 5
_SOON, _LATER, _MANY = 2.0, 1.4, 20
"""So many times the peers' time must a rank need: noise of few steps is large, of twenty it has averaged out."""
_SHARE = 0.75
_LEAST = 0.005
"""Seconds between the slowest and the fastest: below it is the clock's own grain."""
_WAITS, _WAITED = 1.5, 0.25
"""Waiting is uneven by nature: it counts from so much more, and as so large a part of the usual work of a step."""
_MORE_WORK, _LOPSIDED = 1.5, 4.0
_THROTTLED = 0.5
_BY_CLOCK = 10.0


_Times = Callable[[float, float], float]


@dataclass(frozen=True, slots=True)
class _Slow:
    ranks: tuple[int, ...]
    times: float
    series: dict[int, Series]

    @property
    def reads(self) -> bool:
        return self.series[self.ranks[0]].name == "data_time"

    @property
    def is_one_group(self) -> bool:
        """They may share each layer, so that whoever is slow keeps them all: tensor-parallel ranks stand in a row."""
        first, size = self.ranks[0], len(self.ranks)
        in_a_row = (
            self.ranks == tuple(range(first, first + size)) and first % size == 0 and len(self.series) % size == 0
        )
        return size >= 2 and in_a_row and sharded(self.series.values())


def more_work(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Slower, and with more words, tokens or documents to work through than the others."""
    slow = _slow(run)
    if slow is None or _throttled(run):
        return
    if (work := _work(run, slow.ranks)) is not None:
        yield _finding(rule, slow, {"more": f"{work:.1f} times their work", **_routed(run)})
    elif (share := _holds_more(run, slow)) is not None:
        yield _finding(
            rule, slow, {"more": f"{share:.1f} times their memory: they hold more of the model"}, of_one=False
        )


def _routed(run: Run) -> dict[str, str]:
    """For its fix: whether the log speaks of experts, to which a router sends what there is to do."""
    return {"routed": ""} if run.saying_one_of(_OF_EXPERTS, *_SPOKEN) else {}


_OF_EXPERTS = ("expert", "ep_rank", "load_balancing", "load balancing", "capacity_")
_SPOKEN = ("line", "metric", "last", "progress")


def same_work(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Slower with as much work as the others."""
    slow = _slow(run)
    if slow is None:
        yield from _reported(run, rule)
    elif not slow.reads and not _throttled(run) and _work(run, slow.ranks) is None and _holds_more(run, slow) is None:
        yield _finding(rule, slow, {})


def _reported(run: Run, rule: Rule) -> Iterator[Finding]:
    """The program itself compared the ranks: the slowest time beside the fastest, and perhaps whose it was."""
    for one in every(run, "imbalance"):
        if one.said and median(one.said) >= _LOPSIDED:
            fields = {"rank": "(not named)", "times": f"{median(one.said):.1f}", "what": "a step"}
            yield on_events(rule, one.shown(LAST), (), fields)
            return
    slowest, fastest = every(run, "slowest"), every(run, "fastest")
    for one in slowest:
        what = one.name.removeprefix("slowest ")
        other = next((s for s in fastest if s.name == f"fastest {what}" and s.event.source == one.event.source), None)
        if other is None or not what.startswith(("compute_time", "data_time", "round")):
            continue
        steps = [values for _, values in common_steps([one, other])]
        ratios = [most / least for most, least in steps if least > 0]
        if len(ratios) < _STEPS or not _consistently(ratios, _SOON if len(ratios) < _MANY else _LATER):
            continue
        if median(most - least for most, least in steps) < _LEAST:
            continue
        who = _always_the_same([s for s in every(run, "slowest_rank") if s.event.source == one.event.source])
        named = ", ".join(map(str, who)) or "(not named)"
        fields = {"rank": named, "times": f"{median(ratios):.1f}", "what": _as_printed(one, what)}
        yield on_events(rule, one.shown(LARGEST, LAST), who, fields)
        return


_EXTREME = regex(r"\b(M[nx](?:Rtt|Clk|Tmp))/Rnk: ?(\d{1,9}(?:\.\d{1,6})?)(?:ms|s|MHz|C)/(\d{1,6})\b")
_REPORTS, _COOL, _SLOWED = 3, 0.85, 1.15


_LOWEST = regex(r"Ranks with lowest {1,3}Etpt\(TF\): ?((?:\d{1,9}(?:\.\d{1,6})?/\d{1,6}(?:, ?)?){2,64})")


def extremes(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Megatron's straggler reports name the rank of each extreme. In the last ones it is always the same GPU that has
    the lowest clock, far below the others', while somebody needs longer: whoever shares its work waits with it."""
    named = list(_by_clock_or_time(run, rule))
    yield from named or _by_throughput(run, rule)


def _by_throughput(run: Run, rule: Rule) -> Iterator[Finding]:
    """In the last reports it is always the same GPU that computes less by itself than even the next one above it."""
    told = [(e, _LOWEST.search(e.text)) for e in run.saying("Ranks with lowest", "line")]
    last = [(event, _worst(listed[1])) for event, listed in told if listed is not None][-_REPORTS:]
    ranks = {rank for _, (rank, _) in last}
    if len(last) == _REPORTS and len(ranks) == 1 and min(times for _, (_, times) in last) >= _SLOWED:
        fields = {"times": f"{last[-1][1][1]:.1f}", "clock": "", "accused": str(min(ranks))}
        yield on_events(rule, [last[-1][0], last[0][0]], tuple(ranks), fields)


def _worst(listed: str) -> tuple[int, float]:
    """From `266.05/21, 433.77/30`: the rank with the least, and how many times as much the next one has."""
    pairs = sorted((float(value), int(rank)) for value, _, rank in (one.partition("/") for one in _split(listed)))
    return pairs[0][1], pairs[1][0] / max(pairs[0][0], 1e-9)


def _split(listed: str) -> list[str]:
    return [one for one in listed.replace(" ", "").split(",") if one]


def _by_clock_or_time(run: Run, rule: Rule) -> Iterator[Finding]:
    told = [
        (e, {name: (float(value), int(rank)) for name, value, rank in _EXTREME.findall(e.text)}) for e in _reports(run)
    ]
    last = [(event, said) for event, said in told if {"MnRtt", "MxRtt"} <= said.keys()][-_REPORTS:]
    if len(last) < _REPORTS or any(said["MxRtt"][0] < _SLOWED * said["MnRtt"][0] for _, said in last):
        return
    clocked = all(
        {"MnClk", "MxClk"} <= said.keys() and said["MnClk"][0] <= _COOL * said["MxClk"][0] for _, said in last
    )
    ranks = {said["MnClk" if clocked else "MxRtt"][1] for _, said in last}
    if len(ranks) == 1:
        event, said = last[-1]
        fields = {"times": f"{said['MxRtt'][0] / said['MnRtt'][0]:.1f}"}
        fields["clock"] = f", its clock at {said['MnClk'][0]:.0f} of {said['MxClk'][0]:.0f} MHz" if clocked else ""
        one = on_events(rule, [event, last[0][0]], tuple(ranks), {**fields, "accused": str(min(ranks))})
        yield replace(one, weights={"hardware-fault": _BY_CLOCK} if clocked else {})


def _reports(run: Run) -> Iterator[Event]:
    yield from run.saying("Rtt/Rnk", "line")


def _always_the_same(found: Sequence[Series]) -> tuple[int, ...]:
    named = [int(value) for one in found for value in one.said]
    most = max(set(named), key=named.count) if named else -1
    return (most,) if named and named.count(most) >= _SHARE * len(named) else ()


def slow_input(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """It is not its computing that takes longer, but getting its data."""
    if (slow := _slow(run)) is not None and slow.reads and not _throttled(run) and _work(run, slow.ranks) is None:
        yield _finding(rule, slow, {})


def throttled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Held back by a limit on its processor time, and its peers are not."""
    held = _throttled(run)
    slow = _slow(run)
    if slow is not None and held:
        yield _finding(rule, slow, {"share": f"{100 * min(held.values()):.0f} %"})


def _finding(rule: Rule, slow: _Slow, fields: dict[str, str], of_one: bool = True) -> Finding:
    """`of_one`: whoever of a group is slow keeps the others of it."""
    peers = [one for rank, one in sorted(slow.series.items()) if rank not in slow.ranks]
    events = [event for rank in slow.ranks[:2] for event in slow.series[rank].shown(LARGEST, LAST)]
    events += [event for one in peers[:2] for event in one.shown(LAST)]
    what = _as_printed(slow.series[slow.ranks[0]])
    named = ", ".join(map(str, slow.ranks))
    one_of_them = of_one and slow.is_one_group
    if one_of_them:
        named = f"one of {named}"
    who = () if one_of_them else slow.ranks
    return on_events(rule, events, who, {"rank": named, "times": f"{slow.times:.1f}", "what": what, **fields})


def _as_printed(one: Series, name: str = "") -> str:
    """What the log calls it: `fwd_bwd` is known to us as two words."""
    kind, _, rest = (name or one.name).partition(" ")
    words = (rest or kind.replace("_time", ""))[:_NAME]
    spelled = re.compile(r"[\s_+/-]{0,3}".join(map(re.escape, re.split(r"[\s+]+", words))), re.I)
    found = [hit[0] for event in one.shown(LAST) if (hit := spelled.search(event.text)) is not None]
    return found[0] if found else words


_NAME = 80


@once
def _slow(run: Run) -> _Slow | None:
    """At most half of the ranks, which at nearly every step need longer than their peers, or are waited for by them."""
    for kind in ("compute_time", "data_time", "step_time"):
        found = every(run, kind)
        for name in names(found):
            slow = _slower(by_rank(one for one in found if one.name == name), _times, _LEAST)
            if slow is not None and not (kind == "compute_time" and _waits_for_others(run, slow)):
                return slow
    if (slow := _usually_slower(run)) is not None:
        return slow
    computing = [median(one.finite) for one in every(run, "compute_time", "step_time") if one.finite]
    usual = median(computing) if computing else 0.0
    return _slower(by_rank(every(run, "wait_time")), _waited_for, _WAITED * usual) if usual else None


def _waits_for_others(run: Run, slow: _Slow) -> bool:
    """What computing takes them longer they were sooner there: collectives are a part of it, in which whoever has his
    data first waits for those who have not."""
    data = {rank: median(one.finite) for rank, one in by_rank(every(run, "data_time")).items() if one.finite}
    own, peers = ([data[rank] for rank in data if (rank in slow.ranks) is mine] for mine in (True, False))
    if not own or not peers:
        return False
    each = {rank: median(one.finite) for rank, one in slow.series.items() if one.finite}
    longer = min(each[rank] for rank in slow.ranks) - median([each[r] for r in each if r not in slow.ranks])
    return median(peers) - max(own) >= _MOST_OF_IT * longer


_MOST_OF_IT = 0.5


def _usually_slower(run: Run) -> _Slow | None:
    """By the averages that each rank gave once, at the end."""
    found = every(run, "usual compute_time", "usual data_time")
    for name in names(found):
        series = by_rank(one for one in found if one.name == name)
        last = {rank: one.values[-1] for rank, one in series.items() if one.values}
        times = {rank: value for rank, value in last.items() if value}
        for rank, value in times.items() if len(times) >= 2 else ():
            peers = [other for who, other in times.items() if who != rank]
            if value >= _SOON * max(peers) and value - max(peers) >= _LEAST:
                return _Slow((rank,), value / median(peers), {r: series[r] for r in times})
    return None


def _slower(series: Mapping[int, Series], times_of: _Times, least: float) -> _Slow | None:
    """Over all steps; else over the later half of many: it may have been as fast as the others at first."""
    ranks = sorted(series)
    told = common_steps([series[r] for r in ranks])
    steps = [values for step, values in told if not step.startswith("#")] or [values for _, values in told[-1:]]
    slow = _slower_in(steps, ranks, series, times_of, least)
    return _slower_in(steps[len(steps) // 2 :], ranks, series, times_of, least) if slow is None else slow


def _slower_in(
    steps: Sequence[Sequence[float]], ranks: Sequence[int], series: Mapping[int, Series], times_of: _Times, least: float
) -> _Slow | None:
    if len(steps) < _STEPS:
        return _slower_in_tables(steps[-_TABLES:], ranks, series) if times_of is _times else None
    if len(ranks) < 2:
        return None
    needed = _AMONG_EQUALS if _tight(steps) else _SOON if len(steps) < _MANY else _LATER
    peers = [_medians_of_others(values) for values in steps]
    times = {
        rank: [times_of(values[n], others[n]) for values, others in zip(steps, peers, strict=True)]
        for n, rank in enumerate(ranks)
    }
    slow = tuple(rank for rank, ratios in times.items() if _consistently(ratios, needed))
    matters = median(max(values) - min(values) for values in steps) >= least
    if not slow or not matters or 2 * len(slow) > len(ranks):
        return None
    if times_of is _times:
        last = {ranks[max(range(len(ranks)), key=values.__getitem__)] for values in steps}
        slow = _waited_for_last(slow, {rank: median(v[n] for v in steps) for n, rank in enumerate(ranks)}, last)
    return _Slow(slow, min(median(times[rank]) for rank in slow), dict(series))


def _waited_for_last(slow: tuple[int, ...], usual: Mapping[int, float], last: Set[int]) -> tuple[int, ...]:
    """Whoever is far faster than the slowest, and never was the last, waits for it, too. Where each rank is a little
    slower than the one before it, as over data sorted by length, there is no gap between the slow and the others: all
    but the slowest wait."""
    most, least = max(usual[rank] for rank in slow), min(usual[rank] for rank in slow)
    others = [value for rank, value in usual.items() if rank not in slow]
    gap = least > _STEP_UP * max(others)
    if gap or max(others) < _STEP_UP * median(others):
        return tuple(rank for rank in slow if rank in last or _STEP_UP * usual[rank] >= most)
    return tuple(rank for rank in slow if _AS_SLOW * usual[rank] >= most)


_STEP_UP, _AS_SLOW = 1.35, 1.05


def _slower_in_tables(
    steps: Sequence[Sequence[float]], ranks: Sequence[int], series: Mapping[int, Series]
) -> _Slow | None:
    """The last few times that many ranks are compared, a few of them stand out, always the same, from others as fast as
    each other: such tables are averages of many steps already. Of a crowd one table will do."""
    if len(ranks) < _MANY_RANKS or len(steps) < (1 if len(ranks) >= _CROWD else _TABLES):
        return None
    usual = [median(values) for values in steps]
    slow = tuple(rank for n, rank in enumerate(ranks) if steps[-1][n] >= _AMONG_EQUALS * usual[-1])
    rest = [n for n, rank in enumerate(ranks) if rank not in slow]
    times = [
        v[n] / m for v, m in zip(steps, usual, strict=True) for n, rank in enumerate(ranks) if rank in slow and m > 0
    ]
    near = _NEARLY if min(times, default=0.0) >= _SOON else _ALIKE
    alike = all(max(v[n] for n in rest) <= near * min(v[n] for n in rest) for v in steps) if rest else False
    if not slow or 4 * len(slow) > len(ranks) or not alike or min(times, default=0.0) < _AMONG_EQUALS:
        return None
    return _Slow(slow, median(times), dict(series))


_TABLES, _MANY_RANKS, _CROWD = 2, 8, 32


def _tight(steps: Sequence[Sequence[float]]) -> bool:
    """At nearly every step all but one of several ranks are as fast as each other."""
    if len(steps[0]) < _SEVERAL:
        return False
    inner = [sorted(values)[1:-1] for values in steps]
    return sum(most[-1] <= _ALIKE * most[0] for most in inner) >= _SHARE * len(inner)


_SEVERAL, _ALIKE, _AMONG_EQUALS, _NEARLY = 5, 1.1, 1.3, 1.25
"""Among several ranks that are alike, less is needed to stand out; whoever stands far out does so among unlike ones."""


def _medians_of_others(values: Sequence[float]) -> list[float]:
    """For each of at least two values the median of all the others. Sorted once: a job may have thousands of ranks."""
    order = sorted(range(len(values)), key=values.__getitem__)
    half, odd = divmod(len(values) - 1, 2)
    medians = [0.0] * len(values)
    for place, mine in enumerate(order):
        upper = values[order[half + (half >= place)]]
        medians[mine] = upper if odd else (values[order[half - 1 + (half - 1 >= place)]] + upper) / 2
    return medians


def _times(mine: float, peers: float) -> float:
    """This rank's time as a multiple of its peers' median."""
    return mine / peers if peers > 0 else 1.0


def _waited_for(mine: float, peers: float) -> float:
    """How many times as long as this rank its peers wait: the one that they wait for hardly waits."""
    return peers / max(mine, 1e-9) / _WAITS


def _consistently(ratios: Sequence[float], needed: float) -> bool:
    return median(ratios) >= needed and sum(r >= 1 + (needed - 1) / 2 for r in ratios) >= _SHARE * len(ratios)


def _work(run: Run, slow: Sequence[int]) -> float | None:
    """How many times as much work the slow ranks have, where that is clearly more."""
    found = every(run, "work", "said")
    for name in names(found):
        series = by_rank(one for one in found if one.name == name and (one.name.startswith("work") or _counts(one)))
        peers = [median(one.at.values()) for rank, one in series.items() if rank not in slow and one.at]
        own = [median(series[rank].at.values()) for rank in slow if rank in series and series[rank].at]
        if peers and own and median(peers) > 0 and min(own) >= _MORE_WORK * median(peers):
            return min(own) / median(peers)
    return None


def _holds_more(run: Run, slow: _Slow) -> float | None:
    """Several that compute longer hold far more memory than all others: layers, or a head, that the others have not."""
    if len(slow.ranks) < 2 or not slow.series[slow.ranks[0]].name.startswith("compute_time"):
        return None
    for name in names(found := every(run, "memory")):
        series = by_rank(one for one in found if one.name == name)
        peers = [median(one.finite) for rank, one in series.items() if rank not in slow.ranks and one.finite]
        own = [median(series[rank].finite) for rank in slow.ranks if rank in series and series[rank].finite]
        if len(own) == len(slow.ranks) and len(peers) >= len(own) and max(peers) > 0:
            share = min(own) / max(peers)
            return share if share >= _MORE_WORK else None
    return None


def _counts(one: Series) -> bool:
    """Whole numbers, and not few: frames, atoms, boxes, whatever a program calls what it works through."""
    return bool(one.finite) and all(value.is_integer() and value >= _A_FEW for value in one.finite)


_A_FEW = 8


def _throttled(run: Run) -> dict[int, float]:
    """The slow ranks whose processor quota was used up in most periods."""
    slow = _slow(run)
    shares = {rank: one.values[-1] or 0.0 for rank, one in by_rank(every(run, "throttled")).items() if one.values}
    held = {rank: share for rank, share in shares.items() if share >= _THROTTLED}
    return held if slow is not None and set(slow.ranks) <= set(held) < set(shares) else {}


def all_throttled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Every rank's processor quota was used up in most periods: the whole job runs at the speed of its limit."""
    series = by_rank(every(run, "throttled"))
    shares = [one.values[-1] or 0.0 for one in series.values() if one.values]
    events = [event for one in list(series.values())[:3] for event in one.shown(LAST)]
    if not shares and run.stepping and not any(one.severity == "error" for one in found):
        looks = list(_of_cpu_stat(run))
        shares, events = [share for share, _ in looks], [event for _, event in looks[:3]]
    if shares and min(shares) >= _THROTTLED:
        yield on_events(rule, events, (), {"share": f"{100 * min(shares):.0f} %", **_limit(run)})


def _limit(run: Run) -> dict[str, str]:
    """How many cores the quota is worth, as `cpu.max` has it, and how many workers share them, for its fix."""
    quotas = {found[1] for e in run.saying_one_of((" 100000",), *_SPOKEN) if (found := _CPU_MAX.search(e.text))}
    cores = {"cores": f"{int(quotas.pop()) / 100_000:g}"} if len(quotas) == 1 else {}
    return cores | ({"workers": workers} if (workers := _workers(run)) else {})


def _workers(run: Run) -> str:
    """Of the loader of each rank, where all who tell say the same; else nothing."""
    told = {
        found[1] or found[2] for e in run.saying_one_of(("worker",), *_SPOKEN) for found in _WORKERS.finditer(e.text)
    }
    return told.pop() if len(told) == 1 else ""


def _too_few_cores(run: Run) -> dict[str, str]:
    """For its fix: on how many cores how many workers run, where the log tells both and there are more workers."""
    events = run.saying_one_of(("worker", "cpus-per-task", "CPUs/Task", "CPUS_PER_TASK"), *_SPOKEN)
    told: set[str] = set()
    for pattern in _CORES:
        told = told or {found[1] for event in events for found in pattern.finditer(event.text)}
    workers = _workers(run)
    few = told.pop() if len(told) == 1 else ""
    return {"few": few, "workers": workers} if few and workers and int(few) < int(workers) else {}


_CPU_MAX = regex(r"(?:^|\s|:)(\d{4,9}) 100000\s*$")
_WORKERS = regex(r"\bnum_workers\W{1,3}(\d{1,3})\b|\bwill create (\d{1,3}) worker processes")
_CORES = (
    regex(r"suggested max number of worker in current system is (\d{1,4})\b"),
    regex(r"(?:--cpus-per-task[= ]|CPUs/Task=|SLURM_CPUS_PER_TASK=)(\d{1,4})\b"),
)
"""The surest first: what torch found there."""


_COUNTED = regex(r"^\W{0,4}(nr_periods|nr_throttled)\W{1,4}(\d{1,15})\s*$")
_LONG = 1_000
"""Periods of a tenth of a second: what was looked at earlier says little."""


def _of_cpu_stat(run: Run) -> Iterator[tuple[float, Event]]:
    """Of each `cpu.stat` that somebody printed, in how many of the periods the quota was used up."""
    periods: dict[str, int] = {}
    for event in run.saying("nr_", "line"):
        if (found := _COUNTED.match(event.text)) is None:
            continue
        if found[1] == "nr_periods":
            periods[event.source] = int(found[2])
        elif (of := periods.pop(event.source, 0)) >= _LONG:
            yield int(found[2]) / of, event


def waits_for_input(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """On every rank most of a step is spent waiting for data."""
    if shares := _mostly(run, "data_time"):
        yield _spent(rule, shares, "data", _too_few_cores(run))
        return
    for told in every(run, "data_share"):
        if len(told.finite) >= _STEPS and median(told.finite) >= _STARVED / (1 + _STARVED):
            share = median(told.finite)
            fields = {"data": f"{share:.0%} of its time", "work": "the rest", **_too_few_cores(run)}
            yield on_events(rule, told.shown(LAST), (), fields)
            return


def waits_for_peers(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """On every rank that tells, most of a step is spent in collectives, and no rank is later than the others."""
    if shares := _mostly(run, "wait_time"):
        yield _spent(rule, shares, "wait")


_Share = tuple[Series, float, float]
"""A speaker's series, its usual value, and the work beside it."""


def _mostly(run: Run, kind: str) -> list[_Share]:
    """All that tell, if every one of them spends most of a step so and nobody is later than the others."""
    shares = _beside_work(run, kind)
    mostly = all(spent >= max(_STARVED * work, _NOTICED) for _, spent, work in shares)
    return shares if mostly and _slow(run) is None else []


def _spent(rule: Rule, shares: Sequence[_Share], name: str, more: Mapping[str, str] | None = None) -> Finding:
    _, spent, work = shares[0]
    events = [event for one, _, _ in shares[:3] for event in one.shown(LAST)]
    return on_events(rule, events, (), {name: f"{spent:.3g} s", "work": f"{work:.3g} s", **(more or {})})


def _beside_work(run: Run, kind: str) -> list[_Share]:
    """For each speaker its usual time of this kind in a step, and that of its computing, or of the rest of the step."""
    found = []
    works: dict[tuple[int | None, str], list[Series]] = defaultdict(list)
    for one in every(run, "compute_time", "step_time"):
        works[_speaker(one)].append(one)
    for one in of_this_run(every(run, kind)):
        of_it = [work for work in works[_speaker(one)] if len(_told(work)) >= _STEPS]
        parts_of = {s.name: median(_told(s)) for s in of_it if s.name.startswith("compute_time")}
        if "compute_time bwd inner" in parts_of:  # without its all-reduce
            parts_of.pop("compute_time bwd", None)
        steps = [median(_told(s)) for s in of_it if s.name == "step_time"]
        usual = median(_told(one)) if len(_told(one)) >= _STEPS else 0.0
        rest = (steps[0] - usual if steps[0] > usual else steps[0]) if steps else 0.0  # some call their work the step
        if usual and (work := sum(parts_of.values()) or rest):
            found.append((one, usual, work))
    return found


def _told(one: Series) -> list[float]:
    """At the steps of training, but for the first ones of epochs, which start the loader; all, where none was named."""
    pairs = [(step.split(), value) for step, value in zip(one.steps, one.values, strict=True) if value is not None]
    running = [value for words, value in pairs if len(words) == 4 and words[3] not in ("0", "1")]
    return running or one.finite or one.said


def _speaker(one: Series) -> tuple[int | None, str]:
    return one.rank, one.event.source


_STARVED, _NOTICED = 4.0, 0.1


def below_expected(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The log says which throughput is expected, and what was reached is far below it."""
    for wanted in every(run, "expected_throughput"):
        for one in every(run, "throughput"):
            if one.event.fields.get("unit") == wanted.event.fields.get("unit") and one.values and wanted.values:
                rates = one.said
                goal = wanted.values[-1] or 0.0
                if rates and goal > 0 and goal / _OTHER_THING < median(rates) < _FAR_BELOW * goal:
                    shown = [*wanted.shown(LAST), *one.shown(LAST)]
                    yield on_events(rule, shown, (), {"rate": f"{median(rates):.4g}", "goal": f"{goal:.4g}"})
                    return

    for one in every(run, "efficiency"):
        if one.said and median(one.said) < _INEFFICIENT:
            fields = {"rate": f"{median(one.said):.0%} of the ideal speed", "goal": "all of it"}
            yield on_events(rule, one.shown(FIRST, LAST), (), fields)
            return


_FAR_BELOW, _INEFFICIENT = 0.6, 0.5
_OTHER_THING = 50.0
"""So far apart are steps and tokens, and no two speeds of one job."""
