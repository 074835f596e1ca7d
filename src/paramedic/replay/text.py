"""Replays and comparisons, for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from paramedic.replay.alone import Outcome
from paramedic.replay.compare import Comparison, Divergence, places
from paramedic.replay.reading import Recording, faults
from paramedic.replay.replicas import Agreement, Apart
from paramedic.replay.reproduces import OfRank, Reproduction, shown
from paramedic.report.escape import printable

_ENDS = {
    "complete": "to the end of the recording",
    "reproduced": "to the same exception",
    "stopped": "stopped in the debugger",
    "diverged": "stopped at the first difference",
    "raised": "the program raised another exception",
    "astray": "before the recorded steps, the program went another way",
    "short": "the program ended before the recording does",
    "incomplete": "stopped: a payload is missing",
    "damaged": "stopped: a payload is damaged",
    "refused": "refused",
    "strange": "not replayed",
}
_SHOWN = 10


def replayed(recording: Recording, outcomes: Sequence[Outcome]) -> Iterator[str]:
    for one in outcomes:
        yield from map(printable, _replayed(one))
    for text in faults(recording):
        yield printable(f"Recording not whole: {text}")


def _replayed(one: Outcome) -> Iterator[str]:
    verdict = "the same, bit for bit" if one.is_bitwise else _ENDS.get(one.status, one.status)
    yield f"Rank {one.rank}, steps {one.first_step + 1} to {one.last_step}: {verdict}"
    if one.why:
        yield f"  {one.why}"
    checked = [f"{same:,} of {of:,} {name}" for name, (same, of) in one.checked.items() if of]
    if checked:
        yield f"  the same: {', '.join(checked)}"
    for difference in one.differences[:_SHOWN]:
        where = f", call {difference['call']}" if "call" in difference else ""
        yield f"  differs in step {difference['step'] + 1}{where}: {difference['name']}: {difference['why']}"
        names = [str(name) for name in difference.get("names") or ()]
        if names:
            yield f"    {', '.join(names[:4])}{' …' if len(names) > 4 else ''}"
    if len(one.differences) > _SHOWN:
        yield f"  and {len(one.differences) - _SHOWN} more differences"
    yield from (f"  {note}" for note in one.notes)
    yield from _origin(one)
    for name, (then, now) in one.other.items():
        yield f"  {name} is {now} here and was {then}: that alone may change bits"


def _origin(one: Outcome) -> Iterator[str]:
    origin = one.origin
    if not origin:
        return
    where = f"{origin['module']}, " if origin["module"] else ""
    way = origin["pass"] or "outside of a module"
    yield f"  Not finite first in step {origin['step'] + 1}: {where}{origin['op']} ({way})"
    if origin["place"]:
        yield f"    at {origin['place']}"
    for text in origin["inputs"]:
        yield f"    input {text}"
    if origin["from"]:
        yield f"    not finite before it: {origin['from']}"


def compared(a: Recording, b: Recording, found: Comparison) -> Iterator[str]:
    yield from map(printable, _compared(a, b, found))


def _compared(a: Recording, b: Recording, found: Comparison) -> Iterator[str]:
    total = sum(found.compared.values())
    if not total:
        yield "Nothing to compare: the two recordings have no call, batch or step in common."
    elif not found.first:
        what = "calls, batches, losses, gradients and states"
        yield f"No difference: {total:,} {what} of {len(found.compared)} ranks agree."
    else:
        yield from _parted(found)
    yield from (f"Not compared: {text}" for text in found.skipped)
    for name, one in (("A", a), ("B", b)):
        yield from (f"{name} is not whole: {text}" for text in faults(one))


def _parted(found: Comparison) -> Iterator[str]:
    names = ", ".join(map(str, found.origins))
    first = found.first[found.origins[0]]
    many = "s" if len(found.origins) > 1 else ""
    if first.is_local:
        verb = "differ first, by their" if many else "differs first, by its"
        yield f"Rank{many} {names} {verb} own doing: {places([first])}"
    else:
        yield f"Rank{many} {names} got another result from equal inputs: {places([first])}"
    if first.detail:
        yield f"  {first.detail}"
    if first.names:
        yield f"  {', '.join(first.names[:6])}{' …' if len(first.names) > 6 else ''}"
    if found.operation is not None:
        one = found.operation
        where = f"in {one.module or 'no module'} ({one.way or 'between passes'}), step {one.step + 1}"
        yield f"  first operation that differs: {one.op} {where}"
    rest: dict[tuple[str, int, int | None], list[Divergence]] = {}
    for divergence in found.first.values():
        if divergence.rank not in found.origins:
            rest.setdefault((divergence.kind, divergence.step, divergence.call), []).append(divergence)
    for group in rest.values():
        yield f"  then rank{'s' if len(group) > 1 else ''} {', '.join(str(one.rank) for one in group)}: {places(group)}"


def agreed(recording: Recording, found: Agreement) -> Iterator[str]:
    yield from map(printable, _agreed(found))
    for text in faults(recording):
        yield printable(f"Recording not whole: {text}")


def _agreed(found: Agreement) -> Iterator[str]:
    if not found.compared:
        yield "Nothing to compare: no two ranks of the recording had to have anything alike."
    elif found.first is None:
        what = f"results of collectives, gradients and states that {len(found.ranks)} ranks must have alike"
        yield f"The ranks agree: {found.compared:,} {what}, in {found.steps} steps."
    else:
        yield from _apart(found.first)


def _apart(one: Apart) -> Iterator[str]:
    what = {"result": f"what call {one.call} of the group gave ({one.op})", "optimizer": "the optimizer's state"}
    after = "after " if one.kind in ("parameters", "optimizer") else ""
    where = f"{what.get(one.kind, one.kind)}, {after}step {one.step}"
    if one.odd:
        many = len(one.odd) > 1
        rest = ", ".join(str(rank) for rank in one.ranks if rank not in one.odd)
        names = ", ".join(map(str, one.odd))
        yield f"Rank{'s' * many} {names} part{'s' * (not many)} first from ranks {rest}, group {one.group}: {where}"
    else:
        yield f"Ranks {', '.join(map(str, one.ranks))} part first, group {one.group}: {where}"
        yield "  there is no majority; `paramedic replay --all` shows which of them does not do it again"
    if one.names:
        yield f"  {', '.join(map(shown, one.names[:6]))}{' …' if len(one.names) > 6 else ''}"


def reproduced(recording: Recording, checkpoint: str, found: Reproduction) -> Iterator[str]:
    yield from map(printable, _reproduced(checkpoint, found))
    for text in faults(recording):
        yield printable(f"Recording not whole: {text}")


def _reproduced(checkpoint: str, found: Reproduction) -> Iterator[str]:
    first, last = found.steps
    if found.step is None:
        yield f"{checkpoint} has nothing of what the ranks had after any step that is known (from {first} to {last})."
    elif found.is_whole:
        what = f"{len(found.ranks)} ranks: {sum(one.total for one in found.ranks):,} tensors, bit for bit"
        yield f"{checkpoint} is the state after step {found.step} of {what}."
    else:
        yield f"{checkpoint} is not what every rank had; nearest is the state after step {found.step}:"
        for one in found.ranks:
            yield from _of_rank(one)
    yield from (f"Not compared: {text}" for text in found.skipped)
    yield "Not compared: random states, schedulers, the place in the data."


def _of_rank(one: OfRank) -> Iterator[str]:
    yield f"  rank {one.rank}: {one.same:,} of {one.total:,} tensors the same"
    for name, ranks in one.differ[:_SHOWN]:
        whose = f": the checkpoint holds rank {', '.join(map(str, ranks[:4]))}'s" if ranks else ""
        yield f"    differs: {shown(name)}{whose}"
    if len(one.differ) > _SHOWN:
        yield f"    and {len(one.differ) - _SHOWN} more"
    if one.absent:
        names = ", ".join(map(shown, one.absent[:4]))
        yield f"    not in it: {names}{' …' if len(one.absent) > 4 else ''}"
