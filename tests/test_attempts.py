"""Logs of one job's attempts lie side by side: the last one is judged, and what lies beside it for another reason is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from paramedic.knowledge import Knowledge, load
from paramedic.model import Report
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter

FIRST = (
    "2025-06-02 22:01:10 INFO starting, world_size=4\n"
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/home/ana/train.py", line 12, in <module>\n'
    "[rank0]:     import flash_attn\n"
    "[rank0]: ModuleNotFoundError: No module named 'flash_attn'\n"
)
STEPS = "".join(f"2025-06-02 22:{31 + n // 60}:{n % 60:02} INFO step {n} loss {5 - n / 50:.3f}\n" for n in range(40))
SECOND = (
    STEPS
    + "[rank1]: Traceback (most recent call last):\n"
    + '[rank1]:   File "/home/ana/train.py", line 88, in <module>\n'
    + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    + "79.15 GiB of which 1.02 GiB is free.\n"
)


def diagnosed(folder: Path, files: dict[str, str]) -> Report:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    knowledge, prefilter = _known()
    return examine(read([str(folder)], prefilter), knowledge, prefilter, Options())


@cache
def _known() -> tuple[Knowledge, Prefilter]:
    knowledge = load()
    return knowledge, compile_prefilter(knowledge)


@pytest.mark.parametrize(
    "names",
    [
        ("attempt1/train.log", "attempt2/train.log"),
        ("try-9/train.log", "try-10/train.log"),
        ("run-20250602-2201.log", "run-20250602-2231.log"),
        ("2025-06-02_22-01/out.log", "2025-06-02_22-31/out.log"),
    ],
)
def test_the_last_attempt_is_judged_and_the_first_is_still_told(tmp_path: Path, names: tuple[str, str]) -> None:
    report = diagnosed(tmp_path, dict(zip(names, (FIRST, SECOND), strict=True)))
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("device-out-of-memory", (1,))
    assert "import-or-missing-symbol" in [one.symptom for one in report.findings]


def test_a_later_attempt_that_trains_has_made_up_for_the_first(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, {"attempt1/train.log": FIRST, "attempt2/train.log": STEPS + "Training complete\n"})
    assert report.verdict is None
    assert [one.symptom for one in report.findings] == ["import-or-missing-symbol"]


def test_named_attempts_need_no_clock(tmp_path: Path) -> None:
    bare = [text.replace("2025-06-02 22:", "") for text in (FIRST, SECOND)]
    report = diagnosed(tmp_path, {"attempt_1/job.log": bare[0], "attempt_2/job.log": bare[1]})
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


def test_logs_that_are_written_at_the_same_time_are_of_one_attempt(tmp_path: Path) -> None:
    early = SECOND.replace("rank1", "rank0")
    late = STEPS + "[rank5]: RuntimeError: Connection closed by peer [10.0.0.1]:4000\n"
    report = diagnosed(tmp_path, {"part-1.log": late, "part-2.log": early})
    assert {event.attempt for event in report.run.events} == {0}
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


@pytest.mark.parametrize("name", ["node{}.log", "rank_{}.log", "worker-{}/train.log", "trial_{}/train.log"])
def test_numbers_of_places_and_trials_are_no_attempts(tmp_path: Path, name: str) -> None:
    report = diagnosed(tmp_path, {name.format(0): FIRST, name.format(1): SECOND})
    assert {event.attempt for event in report.run.events} == {0}


def test_a_log_that_goes_on_in_another_file_is_one(tmp_path: Path) -> None:
    half = len(STEPS) // 2
    cut = STEPS.index("\n", half) + 1
    report = diagnosed(tmp_path, {"train.log.1": STEPS[:cut], "train.log.2": STEPS[cut:] + SECOND[len(STEPS) :]})
    assert {event.attempt for event in report.run.events} == {0}


def test_messages_of_an_earlier_attempt_do_not_follow_from_the_last_ones_failure(tmp_path: Path) -> None:
    ended = FIRST + "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2025-06-02T22:02:00 ***\n"
    report = diagnosed(tmp_path, {"attempt1/train.log": ended, "attempt2/train.log": SECOND})
    told = [event.source for cascade in report.cascades for event in cascade.events]
    assert not [source for source in told if "attempt1" in source]


def restarted() -> str:
    """A log of two attempts, the second of which ends in a timeout, too."""
    again = "I0602 22:10:01.000000 9 torch/distributed/elastic/agent/server/api.py:987] [default] Worker group FAILED. "
    stall = (
        "[rank0]:[E602 22:{}.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60001 milliseconds "
        "before timing out.\n"
    )
    return (
        "2025-06-02 22:01:10 world_size=4\n"
        + stall.format("10:00")
        + again
        + "1/1 attempts left; will restart worker group\n"
        + "2025-06-02 22:12:10 step 4 loss 3.1\n"
        + stall.format("30:00")
    )


@pytest.mark.parametrize(
    ("when", "symptom"),
    [("Mon Jun  2 22:28:50 2025", "accelerator-fault"), ("Mon Jun  2 22:08:50 2025", "collective-hang")],
)
def test_what_a_kernel_says_belongs_to_the_attempt_that_ran_then(tmp_path: Path, when: str, symptom: str) -> None:
    kernel = f"[{when}] NVRM: Xid (PCI:0000:5e:00): 79, pid=4410, name=python, GPU has fallen off the bus.\n"
    report = diagnosed(tmp_path, {"job.log": restarted(), "n7_dmesg.txt": kernel})
    assert report.verdict is not None and report.verdict.symptom == symptom


def test_a_kernel_by_another_clock_is_of_no_attempt_in_particular(tmp_path: Path) -> None:
    kernel = "2025-06-02T22:28:50+00:00 n7 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=4410, name=python, GPU lost\n"
    report = diagnosed(tmp_path, {"job.log": restarted(), "n7_dmesg.txt": kernel})
    assert {event.attempt for event in report.run.events if "NVRM" in event.text} == {0}
