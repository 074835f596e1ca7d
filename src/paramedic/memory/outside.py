"""What a rank holds on the card outside torch's allocator: context, communicators. Ranges with their sources."""

from __future__ import annotations

from dataclasses import dataclass

from paramedic.memory.cards import MIB, Card, Range
from paramedic.memory.request import Request


@dataclass(frozen=True, slots=True)
class Term:
    name: str
    size: Range


_FIRST = Range(
    256 * MIB, 640 * MIB, 1100 * MIB, "NCCL's first communicator with its channels: nccl issues 964, 1685, 2363"
)
_NEXT = Range(32 * MIB, 350 * MIB, 700 * MIB, "NCCL, each further communicator: LUMI guide, nccl issue 964")


def communicators(request: Request) -> int:
    """One for all ranks, and one for each dimension of the mesh that is smaller than all."""
    if request.world_size == 1:
        return 0
    sizes = [size for size in (request.tp, request.pp, request.dp) if size > 1]
    return 1 + sum(size < request.world_size for size in sizes)


def terms(request: Request, card: Card) -> list[Term]:
    found = [Term("CUDA context", card.context)]
    count = communicators(request)
    if count:
        found.append(Term("NCCL communicator", _FIRST))
    if count > 1:
        more = count - 1
        sizes = Range(_NEXT.low * more, _NEXT.mid * more, _NEXT.high * more, _NEXT.source)
        found.append(Term(f"{more} more NCCL communicators", sizes))
    return found


def total(found: list[Term]) -> Range:
    sums = [sum(getattr(term.size, name) for term in found) for name in ("low", "mid", "high")]
    return Range(sums[0], sums[1], sums[2], "the sum of what lies outside")
