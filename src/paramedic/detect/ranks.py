"""Sets of ranks: in words, and who can be a few of them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Set

MOST_TASKS = 1 << 16


def counted(text: str) -> Iterator[int]:
    """`0,4-7` as Slurm writes it."""
    for part in text.split(","):
        low, _, high = part.partition("-")
        if low.isdigit() and (high or low).isdigit() and len(low) < 8 and len(high) < 8:
            yield from range(int(low), min(int(high or low) + 1, int(low) + MOST_TASKS))


def listed(ranks: Collection[int]) -> str:
    return ", ".join(map(str, sorted(ranks)[:16])) + (" …" if len(ranks) > 16 else "")


def few(missing: Set[int], waiting: Set[int | None]) -> bool:
    """One of two, or fewer than those that wait: a larger rest was never part of it."""
    return bool(waiting) and (0 < len(missing) < len(waiting) or len(missing) == len(waiting) == 1)


def few_of(expected: Set[int], present: Set[int], waiting: Set[int]) -> Set[int]:
    """Those that are missing, if they can be few: a million ranks are not gone through for every attempt."""
    return expected - present if len(expected) - len(present) <= len(waiting) else frozenset()


def named(ranks: Collection[int]) -> str:
    return f"rank {min(ranks)}" if len(ranks) == 1 else f"ranks {listed(ranks)}"
