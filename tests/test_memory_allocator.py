"""torch's caching allocator, replayed: what it rounds, reserves, splits, merges, and when it gives up."""

from __future__ import annotations

import random
from typing import Any

import pytest

from paramedic.errors import ParamedicError
from paramedic.memory.allocator import FREED, Allocator, OutOfMemory, Replay, Settings

MIB = 1 << 20


def test_sizes_are_rounded_to_512_bytes() -> None:
    allocator = Allocator()
    allocator.take(1)
    allocator.take(513)
    assert allocator.allocated == 512 + 1024
    assert allocator.requested == 514


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 1, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (11 * MIB + 1, 12 * MIB),
    ],
)
def test_segments_have_torchs_sizes(size: int, segment: int) -> None:
    allocator = Allocator()
    allocator.take(size)
    assert allocator.reserved == segment


def test_a_freed_block_serves_again_and_neighbours_merge() -> None:
    allocator = Allocator()
    one, other = allocator.take(4 * MIB), allocator.take(4 * MIB)
    allocator.give(one)
    allocator.give(other)
    allocator.take(20 * MIB)
    assert allocator.reserved == 20 * MIB


def test_the_smallest_block_that_fits_is_taken() -> None:
    allocator = Allocator()
    large, small = allocator.take(40 * MIB), allocator.take(30 * MIB)
    allocator.give(large)
    allocator.give(small)
    allocator.take(29 * MIB + 512)  # leaves less than 1 MiB of the smaller one, so it is not split
    assert allocator.allocated == 30 * MIB
    allocator.take(40 * MIB)
    assert allocator.reserved == 70 * MIB


def test_streams_do_not_share_blocks() -> None:
    allocator = Allocator()
    allocator.give(allocator.take(20 * MIB, stream=1))
    allocator.take(20 * MIB, stream=0)
    assert allocator.reserved == 40 * MIB


def test_the_cache_is_emptied_before_memory_runs_out() -> None:
    allocator = Allocator(capacity=64 * MIB)
    allocator.give(allocator.take(40 * MIB))
    allocator.take(60 * MIB)
    assert (allocator.flushes, allocator.reserved) == (1, 60 * MIB)
    with pytest.raises(OutOfMemory) as failed:
        allocator.take(8 * MIB)
    assert failed.value.request == 8 * MIB


def test_expandable_segments_leave_no_gaps() -> None:
    plain, expandable = Allocator(), Allocator(settings=Settings.parse("expandable_segments:True"))
    for allocator in (plain, expandable):
        allocator.give(allocator.take(100 * MIB))
        allocator.take(120 * MIB)
    assert plain.reserved == 220 * MIB
    assert expandable.reserved == 120 * MIB


def test_large_blocks_are_not_split_beyond_max_split_size() -> None:
    allocator = Allocator(settings=Settings.parse("max_split_size_mb:64"))
    allocator.give(allocator.take(200 * MIB))
    allocator.take(30 * MIB)
    assert allocator.reserved == 230 * MIB


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ParamedicError, match="alloc-conf"):
        Settings.parse("max_split_size_mb:many")


@pytest.mark.parametrize("conf", ["", "expandable_segments:True", "max_split_size_mb:32", "roundup_power2_divisions:4"])
def test_whatever_happens_the_books_balance(conf: str) -> None:
    chance = random.Random(7)
    allocator = Allocator(settings=Settings.parse(conf))
    held: list[Any] = []
    for _ in range(3000):
        if held and chance.random() < 0.48:
            allocator.give(held.pop(chance.randrange(len(held))))
        else:
            held.append(allocator.take(int(2 ** chance.uniform(4, 27)), chance.randrange(2)))
        if chance.random() < 0.02:
            allocator.flush()
        assert allocator.requested <= allocator.allocated <= allocator.reserved
    for block in held:
        allocator.give(block)
    assert allocator.allocated == allocator.requested == 0
    allocator.flush()
    assert allocator.reserved == 0


def test_an_expandable_segment_gives_its_free_pages_back_before_it_gives_up() -> None:
    allocator = Allocator(100 * MIB, Settings(expandable=True))
    first, second = allocator.take(40 * MIB), allocator.take(40 * MIB)
    allocator.give(first)
    assert allocator.take(60 * MIB) is not None
    assert allocator.flushes == 1
    with pytest.raises(OutOfMemory):
        allocator.take(20 * MIB)
    allocator.give(second)
    assert allocator.take(40 * MIB) is not None


def test_a_replay_says_where_the_peak_is_and_may_be_repeated() -> None:
    step = [
        (1, 10 * MIB, 0, 0),
        (2, 30 * MIB, 0, 0),
        (1, FREED, 0, 0),
        (3, MIB, 0, 0),
        (2, FREED, 0, 0),
        (3, FREED, 0, 0),
    ]
    allocator = Allocator()
    replay = Replay(allocator)
    assert [replay.run(step) for _ in range(3)] == [1, 1, 1]
    assert (allocator.allocated, allocator.peak_allocated, allocator.reserved) == (0, 40 * MIB, 42 * MIB)
