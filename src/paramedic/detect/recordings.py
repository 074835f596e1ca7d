"""What the recorded ranks of one job say when they are held against each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.detect.stated import stated
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_ENOUGH = 2
_SAME_DATA = 3
"""Steps in which two ranks got the same batch, before it is no chance."""
WITHIN_A_MODEL = ("tp", "tensor", "model", "mp", "tensor_parallel", "cp", "context")
"""What the dimension of a mesh is called whose ranks share one model, and so its data."""


@dataclass(frozen=True, slots=True)
class _Rank:
    event: Event
    said: Mapping[str, Any]


@once
def recorded(run: Run) -> dict[int, _Rank]:
    """The last attempt's."""
    events = [event for event in run.of_kind("recording") if event.rank is not None]
    last = max((event.attempt for event in events), default=0)
    found: dict[int, _Rank] = {}
    for event in events:
        try:
            said = stated(event.fields.get("said", ""))
        except (ValueError, TypeError, RecursionError):
            continue
        if isinstance(said, dict) and event.attempt == last and event.rank is not None:
            found[event.rank] = _Rank(event, said)
    return found


def replicas_part(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After the same step, the parameters that DDP keeps equal are not equal."""
    ranks = recorded(run)
    after: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for rank, one in ranks.items():
        for step, group, key in _rows(one.said, "replicas", 3):
            after[str(group), _int(step)][rank] = str(key)
    apart = sorted((step, group) for (group, step), here in after.items() if len(set(here.values())) > 1)
    if not apart:
        return
    step, group = apart[0]
    odd = odd_ones(after[group, step])
    agreed = max((s for (g, s), here in after.items() if g == group and s < step and len(here) > 1), default=None)
    fields = {"step": str(step), "before": "none" if agreed is None else str(agreed)}
    yield _on(rule, ranks, odd, sorted(after[group, step]), fields)


def results_part(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A collective that gives all its members the same gave one of them something else."""
    ranks = recorded(run)
    got: dict[tuple[str, int, int, str], dict[int, str]] = defaultdict(dict)
    for rank, one in ranks.items():
        for group, place, step, op, key in _rows(one.said, "results", 5):
            got[str(group), _int(place), _int(step), str(op)][rank] = str(key)
    apart = [(step, place, group, op) for (group, place, step, op), here in got.items() if len(set(here.values())) > 1]
    if apart:
        step, place, group, op = min(apart)
        here = got[group, place, step, op]
        fields = {"step": str(step + 1), "op": op, "call": str(place), "group": group}
        yield _on(rule, ranks, odd_ones(here), sorted(here), fields)


def not_finite(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The rank that had the first value that is no number, and had it from no peer."""
    ranks = recorded(run)
    bad = {rank: one.said["first_bad"] for rank, one in ranks.items() if isinstance(one.said.get("first_bad"), Mapping)}
    own = {rank: said for rank, said in bad.items() if said.get("what") in ("input", "batch", "loss")}
    if not own:
        return
    step = min(_int(said.get("step")) for said in own.values())
    who = sorted(rank for rank, said in own.items() if _int(said.get("step")) == step)
    what = own[who[0]]
    words = {"input": f"what goes into {what.get('op') or 'a collective'}", "batch": "the batch", "loss": "the loss"}
    fields = {"step": str(step + 1), "what": words[str(what["what"])]}
    yield _on(rule, ranks, who if len(who) < len(ranks) else [], who, fields)


def fed_twice(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A rank got the batch of its last step once more."""
    ranks = recorded(run)
    for rank, one in sorted(ranks.items()):
        rows = [(_int(step), str(key)) for step, key in _rows(one.said, "batches", 2)]
        if len({key for _, key in rows}) <= len(rows) // 2:
            continue  # a program that always trains on the same batch means to
        for (_, before), (step, key) in pairwise(rows):
            if key and key == before:
                yield _on(rule, ranks, [rank], [rank], {"step": str(step + 1)})
                break


def same_batches(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Data-parallel ranks that get the same batches, step for step."""
    ranks = recorded(run)
    series = {rank: [str(key) for _, key in _rows(one.said, "batches", 2)] for rank, one in ranks.items()}
    sharing = _sharing(ranks)
    alike: set[int] = set()
    for rank, keys in series.items():
        for other, theirs in series.items():
            count = min(len(keys), len(theirs))
            apart = rank < other and frozenset((rank, other)) not in sharing
            if apart and count >= _SAME_DATA and keys[:count] == theirs[:count]:
                alike |= {rank, other}
    if alike:
        yield _on(
            rule, ranks, [] if len(alike) == len(ranks) else sorted(alike), sorted(alike), {"count": str(len(alike))}
        )


def shared_data_differs(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that hold parts of one model got different batches."""
    ranks = recorded(run)
    for pair in sorted(map(sorted, _sharing(ranks))):
        rows = [{(_int(s), str(k)) for s, k in _rows(ranks[rank].said, "batches", 2)} for rank in pair if rank in ranks]
        if len(rows) == 2 and all(len(one) >= _ENOUGH for one in rows) and not rows[0] & rows[1]:
            yield _on(rule, ranks, pair, pair, {"pair": f"{pair[0]} and {pair[1]}"})
            return


def same_random(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks of one model that draw different random numbers: what they must drop alike they drop each for itself."""
    ranks = recorded(run)
    for pair in sorted(map(sorted, _sharing(ranks))):
        rows = [{_int(s): str(k) for s, k in _rows(ranks[rank].said, "random", 2)} for rank in pair if rank in ranks]
        if len(rows) < 2:
            continue
        both = sorted(rows[0].keys() & rows[1].keys())
        apart = [step for step in both if rows[0][step] != rows[1][step]]
        if len(apart) >= _ENOUGH:
            yield _on(rule, ranks, pair, pair, {"step": str(apart[0]), "pair": f"{pair[0]} and {pair[1]}"})
            return


def _sharing(ranks: Mapping[int, _Rank]) -> set[frozenset[int]]:
    """Pairs of ranks in a group that a mesh calls by a name for parts of one model."""
    pairs: set[frozenset[int]] = set()
    for one in ranks.values():
        groups = one.said.get("groups")
        for group in groups.values() if isinstance(groups, Mapping) else ():
            name = str(group.get("desc", "")).removeprefix("mesh_").lower() if isinstance(group, Mapping) else ""
            members = [_int(member) for member in group.get("ranks", ())] if name in WITHIN_A_MODEL else []
            pairs |= {frozenset((a, b)) for a in members for b in members if a < b}
    return pairs


def odd_ones(here: Mapping[int, Any]) -> list[int]:
    """Who differs from the majority; nobody where there is none."""
    (usual, votes), *_ = Counter(here.values()).most_common(1)
    return sorted(rank for rank, key in here.items() if key != usual) if votes > len(here) / 2 else []


def _on(
    rule: Rule, ranks: Mapping[int, _Rank], named: Sequence[int], shown: Sequence[int], fields: Mapping[str, str]
) -> Finding:
    accused = {"accused": ", ".join(map(str, named))} if named else {}
    return on_events(rule, [ranks[rank].event for rank in (named or shown)[:3]], named, {**fields, **accused})


def _rows(said: Mapping[str, Any], name: str, width: int) -> list[list[Any]]:
    rows = said.get(name)
    return [row for row in rows if isinstance(row, list) and len(row) == width] if isinstance(rows, list) else []


def _int(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
