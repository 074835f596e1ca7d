"""Timestamps of all shapes, and what a log says about itself."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ReadLog
from paramedic.clocks import find_stamp
from paramedic.collect.identity import facts_in, frameworks_in, world_size
from paramedic.model import UNKNOWN_ZONE_NS, Event, Fact, Source

SOURCE = Source("x.log", "log")


def ns(*parts: int) -> int:
    return int(datetime(*parts, tzinfo=UTC).timestamp()) * 1_000_000_000  # type: ignore[misc,arg-type]


@pytest.mark.parametrize(
    ("line", "utc_ns", "uncertainty_ns"),
    [
        ("2026-11-15 02:25:07,733 INFO x", ns(2026, 11, 15, 2, 25, 7) + 733_000_000, UNKNOWN_ZONE_NS),
        ("2026-11-15T02:25:07Z x", ns(2026, 11, 15, 2, 25, 7), 1_000_000_000),
        ("[2026-11-15T02:25:07.000123+0200] x", ns(2026, 11, 15, 0, 25, 7) + 123_000, 1_000),
        ("2026/11/15 02:25:07.5 -05:30 x", ns(2026, 11, 15, 7, 55, 7) + 500_000_000, 100_000_000),
        ("2026-11-15_02:25:07", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        ("2026-11-15 02:25:07 UTC x", ns(2026, 11, 15, 2, 25, 7), 1_000_000_000),
        ("E1115 02:24:59.962000 18403 x.py:874] y", None, UNKNOWN_ZONE_NS),
        ("[rank1]:[E603 17:48:01.005271823 ProcessGroupNCCL.cpp:632]", None, UNKNOWN_ZONE_NS),
        ("Nov  5 02:24:59 node kernel: x", None, UNKNOWN_ZONE_NS),
        ("[11/15/26 02:25:07] INFO     colossalai - x", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        (" 1a2 | 11/15/2026 | 02:25:07 | Power Supply PSU2 | x", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        ("11/15/2026 02:25:07 - INFO - __main__ - x", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        (" [2026-11-15 02:25:07] iteration      101/    1000 |", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        ("[2026-11-15 02:25:07,733] [INFO] [x.py:1:f] y", ns(2026, 11, 15, 2, 25, 7) + 733_000_000, UNKNOWN_ZONE_NS),
        ("slurmstepd: error: CANCELLED AT 2026-11-15T02:25:07 ***", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        ("Sun Nov 15 02:25:07 2026[1,0]<stdout>:x", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        ("15/Nov/2026:02:25:07 +0200 x", ns(2026, 11, 15, 0, 25, 7), 1_000_000_000),
        ("20261115T022507Z x", ns(2026, 11, 15, 2, 25, 7), 1_000_000_000),
        ("20261115-02:25:07 x", ns(2026, 11, 15, 2, 25, 7), UNKNOWN_ZONE_NS),
        ("I0000 00:00:1794725308.338526      17 port.cc:153] x", 1_794_725_308_338_526_000, 1_000),
        ("1794725308.5 x", 1_794_725_308_500_000_000, 100_000_000),
        ("1794725308 x", 1_794_725_308_000_000_000, 1_000_000_000),
        ("1794725308123456 x", 1_794_725_308_123_456_000, 1_000),
        ("[1794725308123] x", 1_794_725_308_123_000_000, 1_000_000),
        ('{"ts": 1794725308.25, "msg": "x"}', 1_794_725_308_250_000_000, 10_000_000),
        ('{"level": "error", "timestamp": "1794725308123"}', 1_794_725_308_123_000_000, 1_000_000),
        ('{"log":"x","stream":"stderr","time":"2026-11-15T02:25:07Z"}', ns(2026, 11, 15, 2, 25, 7), 1_000_000_000),
        ("[12345.678901] oom-kill:constraint=x", None, UNKNOWN_ZONE_NS),
    ],
)
def test_a_stamp_is_as_sure_as_it_is_written(line: str, utc_ns: int | None, uncertainty_ns: int) -> None:
    stamp = find_stamp(line)
    assert stamp is not None
    assert (stamp.utc_ns, stamp.uncertainty_ns) == (utc_ns, uncertainty_ns)
    assert stamp.text in line


@pytest.mark.parametrize(
    "line",
    [
        "2026-13-45 02:25:07 x",
        "2026-02-30 02:25:07 x",
        "2026-11-15 25:61:61 x",
        "2026-11-15 02:25:07+99:99",
        "E1399 02:24:59.962000 x",
        "E1115 99:24:59.962000 x",
        "Feb 31 02:24:59 x",
        "no time here, 17:48:01",
        "x" * 200 + "2026-11-15 02:25:07",
        "120260-11-15 02:25:07",
        "179472530812345 is no time",
        "x 1794725308 y",
        "[1794725308.1.2] x",
        "99/99/26 02:25:07 x",
        "[12.5] x",
        "20261115022507 x",
    ],
)
def test_what_is_no_time_gives_none(line: str) -> None:
    assert find_stamp(line) is None


def test_an_impossible_first_stamp_does_not_hide_a_possible_second_kind() -> None:
    stamp = find_stamp("2026-13-45 00:00:00 [E603 17:48:01.005 x]")
    assert stamp is not None
    assert stamp.text == "E603 17:48:01.005"


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.text(alphabet="0123456789-:/T,._ +ZEIWNovFeb²٣", max_size=60))
def test_no_text_breaks_the_clock(line: str) -> None:
    find_stamp(line)


def test_versions_and_world_size_are_read_once_each() -> None:
    lines = [
        "PyTorch version: 2.13.0+cu126",
        "torch==2.13.0+cu126 deepspeed 0.16.4",
        "NCCL version 2.26.2+cuda12.6, python 3.11.7.",
        "initialised world_size=16, nranks 16",
        "{'world_size': 16}",
        "world size: 0",
        "world_size: 99999999",
    ]
    assert [(f.name, f.value, f.line) for f in facts_in(lines, SOURCE)] == [
        ("version torch", "2.13.0+cu126", 1),
        ("version deepspeed", "0.16.4", 2),
        ("version nccl", "2.26.2+cuda12.6", 3),
        ("version python", "3.11.7", 3),
        ("world_size", 16, 4),
    ]


def test_a_version_cut_off_by_the_end_of_the_head_is_not_believed(read: ReadLog) -> None:
    from paramedic.collect.logs import HEAD

    text = "x" * (HEAD - 10) + "\ntorch 2.13.0\n"
    assert text[:HEAD].endswith("torch 2.1")
    assert [fact for fact in read(text).facts if fact.value != "2.13.0"] == []


def sized(*values: int) -> list[Fact]:
    return [Fact("world_size", value, "x") for value in values]


def test_world_size_is_what_the_log_states_or_what_the_files_count() -> None:
    files = [Source(f"{rank}.log", "log", rank) for rank in range(4)]
    assert world_size([], sized(16)) == 16
    assert world_size([], sized(16, 8)) is None
    assert world_size(files, sized(2)) == 4, "four files refute a world of two"
    assert world_size(files, []) == 4
    assert world_size([files[0], files[2]], []) is None
    assert world_size(files[:1], []) is None


def test_frameworks_come_from_lines_frames_and_versions() -> None:
    events = [
        Event("x", 1, "line", "node:1:2 [0] NCCL WARN x"),
        Event("x", 2, "traceback", "ValueError: x", fields={"frames": ["/v/site-packages/deepspeed/e.py:1 in f"]}),
    ]
    assert frameworks_in(events, [Fact("version torch", "2.1", "x")]) == ("deepspeed", "pytorch", "nccl")
