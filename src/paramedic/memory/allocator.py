"""torch's CUDA caching allocator, replayed over a trace: rounding, pools per stream, segments, split, merge, flush.

The rules are those of c10/cuda/CUDACachingAllocator.cpp; no torch is needed here.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Container, Iterable
from dataclasses import dataclass

from paramedic.errors import ParamedicError

MIB = 1 << 20
ROUND = 512
SMALL = MIB
SMALL_SEGMENT = 2 * MIB
LARGE_SEGMENT = 20 * MIB
LEAST_LARGE = 10 * MIB
ROUND_LARGE = 2 * MIB

Event = tuple[int, int, int, int]
"""(storage, bytes or -1 when it is freed, stream, moment)"""
FREED = -1


class OutOfMemory(Exception):  # noqa: N818
    """The request that cannot be met, even with an empty cache."""

    def __init__(self, request: int, allocated: int, reserved: int) -> None:
        super().__init__(request)
        self.request, self.allocated, self.reserved = request, allocated, reserved


@dataclass(frozen=True, slots=True)
class Settings:
    """What PYTORCH_ALLOC_CONF may say, as far as it moves the peak."""

    expandable: bool = False
    max_split: int | None = None
    power2_divisions: int = 0

    @classmethod
    def parse(cls, text: str) -> Settings:
        given: dict[str, str] = {}
        for part in re.split(r",(?![^\[]*\])", text):
            name, _, value = part.partition(":")
            given[name.strip()] = value.strip()
        try:
            split = given.get("max_split_size_mb")
            divisions = int(given.get("roundup_power2_divisions", "0"))
            return cls(
                given.get("expandable_segments", "").lower() == "true",
                int(split) * MIB if split is not None else None,
                divisions,
            )
        except ValueError:
            raise ParamedicError(
                f"--alloc-conf {text}: cannot be read; say it as PYTORCH_ALLOC_CONF does, "
                "like expandable_segments:True,max_split_size_mb:128"
            ) from None


class Block:
    __slots__ = ("after", "before", "free", "offset", "pool", "requested", "segment", "size", "unmapped")

    def __init__(self, pool: Pool, segment: int, offset: int, size: int) -> None:
        self.pool, self.segment, self.offset, self.size = pool, segment, offset, size
        self.free = True
        self.before: Block | None = None
        self.after: Block | None = None
        self.requested = 0
        self.unmapped = 0
        """Bytes of an expandable segment that were given back: the addresses are kept, the memory is not."""

    @property
    def key(self) -> tuple[int, int, int]:
        return self.size, self.segment, self.offset


class Pool:
    """Free blocks of one stream and one size class, smallest and lowest first."""

    __slots__ = ("blocks", "keys", "last", "small")

    def __init__(self, small: bool) -> None:
        self.small = small
        self.keys: list[tuple[int, int, int]] = []
        self.blocks: dict[tuple[int, int, int], Block] = {}
        self.last: Block | None = None
        """The end of the expandable segment."""

    def add(self, block: Block) -> None:
        insort(self.keys, block.key)
        self.blocks[block.key] = block

    def take(self, block: Block) -> None:
        del self.blocks[block.key]
        self.keys.pop(bisect_left(self.keys, block.key))

    def best_fit(self, size: int, max_split: int | None) -> Block | None:
        at = bisect_left(self.keys, (size, -1, -1))
        if at == len(self.keys):
            return None
        found = self.blocks[self.keys[at]]
        if found.unmapped:
            found = next((one for key in self.keys[at:] if not (one := self.blocks[key]).unmapped), found)
        if max_split is not None and not self.small:
            if size < max_split <= found.size:
                return None
            if size >= max_split and found.size >= size + LARGE_SEGMENT:
                return None
        return found


class Allocator:
    def __init__(self, capacity: int | None = None, settings: Settings = Settings()) -> None:
        self.capacity, self.settings = capacity, settings
        self.allocated = self.reserved = self.requested = 0
        self.peak_allocated = self.peak_reserved = 0
        self.flushes = 0
        self._pools: dict[tuple[int, bool], Pool] = {}
        self._segments = 0

    def take(self, size: int, stream: int = 0) -> Block | None:
        if size <= 0:
            return None
        rounded = self._rounded(size)
        pool = self._pool(stream, rounded <= SMALL)
        block = pool.best_fit(rounded, self.settings.max_split)
        if block is not None:
            pool.take(block)
            self._map(block, rounded)
        else:
            block = self._grow(pool, rounded)
        self._split(block, rounded)
        block.free, block.requested = False, size
        self.allocated += block.size
        self.requested += size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def give(self, block: Block | None) -> None:
        if block is None:
            return
        block.free = True
        self.allocated -= block.size
        self.requested -= block.requested
        block = self._merged(block)
        block.pool.add(block)

    def flush(self) -> None:
        """Give every wholly free segment back to the driver; of expandable ones every free page."""
        self.flushes += 1
        for pool in self._pools.values():
            if self.settings.expandable:
                page = _page(pool)
                for block in pool.blocks.values():
                    pages = max((block.offset + block.size) // page - -(-block.offset // page), 0) * page
                    self.reserved -= pages - block.unmapped
                    block.unmapped = pages
                continue
            for block in [b for b in pool.blocks.values() if b.before is None and b.after is None]:
                pool.take(block)
                self.reserved -= block.size

    def reset_peaks(self) -> None:
        self.peak_allocated, self.peak_reserved = self.allocated, self.reserved

    def _rounded(self, size: int) -> int:
        divisions = self.settings.power2_divisions
        if divisions > 1 and size > ROUND * divisions:
            power = 1 << (size.bit_length() - 1)
            step = max(power // divisions, ROUND)
            return -(-size // step) * step
        return max(-(-size // ROUND) * ROUND, ROUND)

    def _pool(self, stream: int, small: bool) -> Pool:
        key = (stream, small)
        if key not in self._pools:
            self._pools[key] = Pool(small)
        return self._pools[key]

    def _grow(self, pool: Pool, size: int) -> Block:
        if self.settings.expandable:
            return self._extend(pool, size)
        segment = _page(pool)
        if size >= LEAST_LARGE:
            segment = -(-size // ROUND_LARGE) * ROUND_LARGE
        self._reserve(segment, size)
        self._segments += 1
        return Block(pool, self._segments, 0, segment)

    def _map(self, block: Block, size: int, more: int = 0) -> None:
        """Pages that were given back, or never had, are asked for: as many as the request touches."""
        block.size += more
        block.unmapped += more
        page = _page(block.pool)
        missing = min(-(-max(size - (block.size - block.unmapped), 0) // page) * page, block.unmapped)
        try:
            self._reserve(missing, size)
        except OutOfMemory:
            block.size -= more
            block.unmapped -= more
            block.pool.add(block)
            raise
        block.unmapped -= missing

    def _extend(self, pool: Pool, size: int) -> Block:
        """An expandable segment grows by whole pages behind its last block, which is used when it is free."""
        page = _page(pool)
        last = pool.last
        if last is not None and last.free:
            pool.take(last)
            self._map(last, size, -(-(size - last.size) // page) * page)
            return last
        more = -(-size // page) * page
        self._reserve(more, size)
        if last is None:
            self._segments += 1
        segment = self._segments if last is None else last.segment
        block = Block(pool, segment, 0 if last is None else last.offset + last.size, more)
        block.before = last
        if last is not None:
            last.after = block
        pool.last = block
        return block

    def _reserve(self, segment: int, request: int) -> None:
        if self.capacity is not None and self.reserved + segment > self.capacity:
            self.flush()
            if self.reserved + segment > self.capacity:
                raise OutOfMemory(request, self.allocated, self.reserved)
        self.reserved += segment
        self.peak_reserved = max(self.peak_reserved, self.reserved)

    def _split(self, block: Block, size: int) -> None:
        rest = block.size - size
        settings = self.settings
        if block.pool.small or settings.expandable:
            wanted = rest >= ROUND
        else:
            wanted = rest > SMALL and (settings.max_split is None or size < settings.max_split)
        if not wanted:
            return
        tail = Block(block.pool, block.segment, block.offset + size, rest)
        tail.before, tail.after = block, block.after
        tail.unmapped, block.unmapped = block.unmapped, 0
        if block.after is not None:
            block.after.before = tail
        block.after, block.size = tail, size
        if block.pool.last is block:
            block.pool.last = tail
        block.pool.add(tail)

    def _merged(self, block: Block) -> Block:
        after = block.after
        if after is not None and after.free:
            block.pool.take(after)
            self._join(block, after)
        before = block.before
        if before is not None and before.free:
            block.pool.take(before)
            self._join(before, block)
            return before
        return block

    @staticmethod
    def _join(first: Block, second: Block) -> None:
        first.size += second.size
        first.unmapped += second.unmapped
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        if first.pool.last is second:
            first.pool.last = first


def _page(pool: Pool) -> int:
    """The least that is asked of the driver at once."""
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT


class Replay:
    """Feeds events to an allocator; tolerant of a step that is replayed more often than it was traced."""

    def __init__(self, allocator: Allocator, optional: Container[int] = ()) -> None:
        self.allocator, self.optional = allocator, optional
        self._held: dict[int, Block | None] = {}

    def run(self, events: Iterable[Event]) -> int:
        """The index of the event at which the most was allocated."""
        allocator, held = self.allocator, self._held
        top, at = -1, 0
        for index, (key, size, stream, _) in enumerate(events):
            if size == FREED:
                allocator.give(held.pop(key, None))
                continue
            if key in held:
                continue
            try:
                held[key] = allocator.take(size, stream)
            except OutOfMemory:
                if key not in self.optional:
                    raise
            if allocator.allocated > top:
                top, at = allocator.allocated, index
        return at
