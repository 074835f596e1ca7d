"""An estimate in words, for a terminal or a log."""

from __future__ import annotations

from collections.abc import Iterator

from paramedic.memory.cards import GIB, MIB, Range
from paramedic.memory.document import breakdown
from paramedic.memory.estimate import Estimate
from paramedic.memory.picture import chart

_WORDS = {
    "yes": "fits",
    "tight": "fits, but tightly: what lies outside torch, or a little fragmentation, can end it",
    "no": "does not fit",
}
_SQUEEZES = "fits, but only by giving torch's cache back to the driver in every step, which is slow"


def size(count: int) -> str:
    if abs(count) >= GIB // 10:
        return f"{count / GIB:.2f} GiB"
    return f"{count / MIB:.1f} MiB"


def text(made: Estimate) -> str:
    return "\n".join(_lines(made)) + "\n"


def _lines(made: Estimate) -> Iterator[str]:
    request, result = made.request, made.result
    yield f"{request.gpu} with {size(made.card.memory)}: {_SQUEEZES if made.squeezes else _WORDS[made.fits]}."
    yield ""
    for name, one in (("allocated", made.allocated), ("reserved", made.reserved), ("on the device", made.total)):
        yield f"  {name:14}{_range(one)}"
    first = result["first_step"]
    yield f"  {'first step':14}{size(first['allocated'])} allocated, {size(first['reserved'])} reserved"
    yield ""
    yield f"At the peak, {_place(made)}:"
    for name, count in breakdown(made).items():
        if count:
            yield f"  {name:14}{size(count):>12}"
    yield ""
    owners = [one for one in result["owners"] if one["kind"] != "workspaces"][:4]
    if owners:
        yield "Largest holders: " + "; ".join(
            f"{size(one['bytes'])} {one['kind']} of {one['module'] or 'the loss and what is around it'}"
            for one in owners
        )
        yield ""
    yield from chart(result["series"])
    yield from _ranks(made)
    yield from _small_print(made)


def _place(made: Estimate) -> str:
    at = made.result["at"]
    where = f" in {at['module']}" if at["module"] else ""
    line = f" ({at['line']})" if at["line"] else ""
    return f"in the {at['phase']} phase{where}, at {at['operation']}{line}"


def _range(one: Range) -> str:
    return f"{size(one.mid):>11}   ({size(one.low)} to {size(one.high)})"


def _ranks(made: Estimate) -> Iterator[str]:
    if made.ranks:
        yield ""
        yield "Ranks differ:"
        for rank in made.ranks:
            yield f"  {rank['name']:20}{size(rank['allocated']):>12} allocated {size(rank['reserved']):>12} reserved"


def _small_print(made: Estimate) -> Iterator[str]:
    yield ""
    if made.why_coarse:
        yield f"Coarser than it might be: {made.why_coarse}."
    for note in made.result["notes"]:
        yield f"Note: {note}."
    yield f"{made.result['parameters']:,} parameters; traced in {made.result['seconds']:.0f} s, without a GPU."
