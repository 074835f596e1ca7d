"""What watched ranks keep, gather or send without need: states of parameters that others update, activations that are
recomputed all at once, units of single layers, gradients of rows that no sample has touched."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paramedic.detect.conduct import as_dict, by_engine, conducts, finding, items, natural, numbers
from paramedic.detect.match import on_events
from paramedic.detect.ranks import listed
from paramedic.detect.watched import said_by, seen_ranks
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run

_LOOKS = 2
_MOST = 0.8
_LEAST_STATE = 1 << 20  # bytes
_BLOCKS = 3
_UNITS = 12
_HALF = 0.5
_UNEVEN, _LEAST_ELEMENTS = 1.5, 1 << 17


def states_of_others(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each parameter is updated by one rank, which sends it to the others; all of them keep a state for all."""
    ranks = conducts(run)
    at: dict[tuple[int, int], dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for rank, one in ranks.items():
        for row in items(one.raw.get("kept")):
            if len(numbers(row.get("made"))) == len(numbers(row.get("used"))) == len(numbers(row.get("states"))) > 1:
                at[natural(row.get("optimizer")), natural(row.get("step"))][rank] = row
    looks = [rows for rows in at.values() if len(rows) == len(ranks)]
    if by_engine(ranks) or len(looks) < _LOOKS or not all(map(_dealt_out, looks)):
        return
    idle, held = max(map(_idle, looks[-1].values()))
    if idle >= _LEAST_STATE:
        yield finding(rule, ranks, [], {"idle": f"{idle / 1e6:.0f}", "all": f"{held / 1e6:.0f}"})


def _idle(row: Mapping[str, Any]) -> tuple[int, int]:
    """Bytes of states whose results are not used, and of all."""
    states, made, used = (numbers(row[what]) for what in ("states", "made", "used"))
    return sum(size for size, *values in zip(states, made, used, strict=True) if len(set(values)) > 1), sum(states)


def one_holds_most(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The optimizer's states are dealt out by whole parameters, and one is larger than all others."""
    ranks = conducts(run)
    shares = numbers(ranks[min(ranks)].raw.get("shares")) if ranks else ()
    if len(shares) < 2 or sum(shares) < _LEAST_ELEMENTS:
        return
    largest = max(shares)
    if largest * len(shares) >= _UNEVEN * sum(shares):
        rank = shares.index(largest)
        fields = {"rank": str(rank), "share": f"{largest / sum(shares):.0%}", "even": f"{1 / len(shares):.0%}"}
        yield finding(rule, ranks, [rank] if rank in ranks else [], fields)


def _dealt_out(rows: Mapping[int, Mapping[str, Any]]) -> bool:
    """Of nearly every tensor one rank keeps what it has made, and the others do not."""
    made, used = ([numbers(row[what]) for row in rows.values()] for what in ("made", "used"))
    if len({len(one) for one in made}) > 1:
        return False
    keeps = [[a == b for a, b in zip(one, other, strict=True)] for one, other in zip(made, used, strict=True)]
    owned = [sum(each) == 1 for each in zip(*keeps, strict=True)]
    held = [min(sizes) > 0 for sizes in zip(*(numbers(row["states"]) for row in rows.values()), strict=True)]
    several = sum(any(a and b for a, b in zip(one, owned, strict=True)) for one in keeps) > 1
    return several and min(sum(owned), sum(held)) >= _MOST * len(owned)


def one_recomputed_piece(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All blocks are recomputed as one piece: at the end of the forward pass little is kept, and in the backward pass
    everything at once."""
    ranks = conducts(run)
    for one in ranks.values():
        known = as_dict(one.raw.get("recomputed"))
        elements = max((look.elements for look in one.looks.values()), default=0)
        if natural(known.get("pieces")) != 1 or natural(known.get("blocks")) < _BLOCKS:
            return
        if not elements or natural(known.get("elements")) < _MOST * elements:
            return
    if ranks:
        known = as_dict(ranks[min(ranks)].raw["recomputed"])
        yield finding(rule, ranks, [], {"blocks": str(known["blocks"]), "place": str(known.get("place") or "")})


def sharded_by_leaf(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Nearly every unit of FSDP is a single layer."""
    ranks = conducts(run)
    each = [(natural(one.raw.get("sharded_units")), natural(one.raw.get("sharded_leaves"))) for one in ranks.values()]
    if each and all(units >= _UNITS and leaves >= _MOST * units for units, leaves in each):
        yield finding(rule, ranks, [], {"units": str(each[0][0]), "leaves": str(each[0][1])})


def rows_untouched(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Most of what is sent and added are zeros: gradients of large tables, of which a batch touches few rows."""
    ranks = conducts(run)
    if len(ranks) < 2 or by_engine(ranks):
        return
    shares = []
    for one in ranks.values():
        rows = [row for row in items(one.raw.get("replicas")) if "idle" in row and natural(row.get("elements"))]
        if len(rows) < _LOOKS:
            return
        shares.append(min(natural(row["idle"]) / natural(row["elements"]) for row in rows))
    if min(shares) >= _HALF:
        rows = [row for row in items(ranks[min(ranks)].raw.get("replicas")) if "idle" in row]
        yield finding(rule, ranks, [], {"share": f"{min(shares):.0%}", "count": f"{natural(rows[-1]['idle']):,}"})


def cores_shared(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks of a host were bound to fewer cores than they are themselves, while it has others that none of them may
    use."""
    on: dict[str, dict[int, Mapping[str, Any]]] = defaultdict(dict)
    for rank, seen in seen_ranks(run).items():
        on[seen.event.host or str(said_by(seen.event).get("host"))][rank] = as_dict(said_by(seen.event).get("cores"))
    for host, ranks in sorted(on.items()):
        used = {core for one in ranks.values() for core in numbers(one.get("own"))}
        free = min((natural(one.get("of")) for one in ranks.values()), default=0) - len(used)
        if len(ranks) > 1 and 0 < len(used) < len(ranks) and free > 0 and all(one.get("own") for one in ranks.values()):
            fields = {"host": host, "ranks": str(len(ranks)), "cores": listed(sorted(used)), "free": str(free)}
            yield on_events(rule, [seen_ranks(run)[rank].event for rank in sorted(ranks)[:3]], (), fields)
            return


def wrapped_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP around DDP around DDP: each has buckets of its own for all gradients, and reduces them once more."""
    depth = _wrapped(run)
    if depth > 1:
        yield finding(rule, conducts(run), [], {"count": str(depth + 1)})


def wrapped_twice(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP around DDP, once."""
    if _wrapped(run) == 1:
        yield finding(rule, conducts(run), [], {})


def _wrapped(run: Run) -> int:
    """How many wrappers of each rank have another one right inside them."""
    counts = {sum(m.get("type") == _DDP for m in items(one.raw.get("models"))) for one in conducts(run).values()}
    return counts.pop() if len(counts) == 1 else 0


_DDP = "DistributedDataParallel"
