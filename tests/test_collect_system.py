"""Tables of vmstat, ps and top: read where they are whole, survived where they are not."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paramedic import diagnose
from paramedic.collect.system import looked
from paramedic.model import Source

VMSTAT = " r  b   swpd   free   buff  cache   si   so    bi    bo   in   cs us sy id wa st"
TOP = "    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND"
LOADING = """Process {pid}: python train.py
Python v3.11.9 (/usr/bin/python3.11)

Thread {pid} (active): "MainThread"
    load_tensor (torch/serialization.py:1834)
    load (torch/serialization.py:1462)
    {own} (train.py:92)
    <module> (train.py:230)

"""


def facts(text: str) -> list[tuple[str, object]]:
    return [(fact.name, fact.value) for fact in looked(text.split("\n"), Source("a.txt", "log"))]


def vmstat(*rows: tuple[int, int]) -> str:
    return "\n".join([VMSTAT, *(f" 1 9 900 800 12 34 {came} {went} 5 5 7 7 0 9 31 60 0" for came, went in rows)])


def test_the_first_row_of_vmstat_is_of_the_past() -> None:
    assert facts(vmstat((90_000, 90_000), (1, 2), (1, 2), (1, 2))) == [("paging", "3 1 2")]
    assert facts(vmstat((90_000, 90_000))) == []


def test_tops_sizes_have_units_and_a_process_is_followed_through_its_tables() -> None:
    tables = [
        f"{TOP}\n 77 me 20 0 {20 + n}.5g {n}.0g 12m R 99.0 1.2 1:02.03 python a.py\n\ntop - 10:0{n}" for n in (1, 2)
    ]
    assert facts("\n".join(tables)) == [("resident", "77 0 1048576,2097152 22544384,23592960")]


def test_what_is_no_process_of_a_job_or_listed_once_is_left_out() -> None:
    row = "{} me 20 0 2.5g 1.0g 12m R 99.0 1.2 1:02.03 {}"
    assert facts(f"{TOP}\n{row.format(7, 'postgres')}\n{TOP}\n{row.format(7, 'postgres')}") == []
    assert facts(f"{TOP}\n{row.format(7, 'python')}") == []


@given(
    st.lists(
        st.sampled_from(
            [VMSTAT, TOP, "PID RSS", "PID RSS VSZ CMD", "1 2 3 python", "1 -2 x", "9" * 40, "", "\u0661 2 3"]
        )
    )
)
def test_any_piece_of_a_table_is_survived(lines: list[str]) -> None:
    facts("\n".join(lines))


@pytest.mark.parametrize(("own", "symptom"), [("load_checkpoint", "checkpoint-resume-failure"), ("", "low-throughput")])
def test_a_checkpoint_that_all_load_while_the_host_pages_does_not_get_loaded(
    tmp_path: Path, own: str, symptom: str
) -> None:
    (tmp_path / "vmstat.txt").write_text(vmstat(*[(90_000, 80_000)] * 8) + "\n", "utf-8")
    (tmp_path / "train.log").write_text("world size: 2\nstarting\n", "utf-8")
    if own:
        (tmp_path / "stacks.txt").write_text("".join(LOADING.format(pid=pid, own=own) for pid in (5, 6)), "utf-8")
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.symptom, verdict.causes[0].id) == ("HOST780", symptom, "host-resource-exhaustion")


def test_where_somebody_failed_that_comes_first(tmp_path: Path) -> None:
    (tmp_path / "vmstat.txt").write_text(vmstat(*[(90_000, 80_000)] * 8) + "\n", "utf-8")
    error = 'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\nValueError: bad\n'
    (tmp_path / "train.log").write_text(error, "utf-8")
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None
    assert verdict.rule != "HOST780"
