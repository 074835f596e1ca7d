"""Who failed first: by causality, then by clocks or position; what followed is folded; unsure means no verdict."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.report import ShownReport

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free."
)
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:20911"
TIMEOUT = (
    "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
)
WATCHDOG = (
    "[E1115 02:46:21.002180683 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=6000) ran for 6095 milliseconds before timing out."
)


def trace(message: str, line: int = 10) -> str:
    return f'Traceback (most recent call last):\n  File "/srv/train.py", line {line}, in main\n    work()\n{message}'


def merged(*texts: tuple[int, str]) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for rank, text in texts for line in text.split("\n"))


@pytest.fixture
def of(tmp_path: Path):  # type: ignore[no-untyped-def]
    def report(text: str) -> ShownReport:
        file = tmp_path / "console.log"
        file.write_text(text, "utf-8")
        return diagnose(file)

    return report


def files(tmp_path: Path, texts: dict[int, str]) -> ShownReport:
    for rank, text in texts.items():
        (tmp_path / f"rank_{rank}.log").write_text(text, "utf-8")
    return diagnose(tmp_path)


def test_the_cause_comes_first_in_whatever_order_the_lines_were_flushed(of) -> None:  # type: ignore[no-untyped-def]
    said = [(0, trace(CLOSED)), (1, trace(CLOSED)), (2, trace(OOM)), (3, trace(TIMEOUT))]
    for order in itertools.permutations(said):
        verdict = of(merged(*order)).verdict
        assert verdict is not None
        assert (verdict.symptom, verdict.ranks) == ("device-out-of-memory", (2,))


def test_the_cause_comes_first_when_its_hosts_clock_is_minutes_late(tmp_path: Path) -> None:
    report = files(
        tmp_path,
        {
            0: f"2026-11-15 02:00:08,000 ERROR {CLOSED}\n",
            1: f"2026-11-15 02:00:09,000 ERROR {CLOSED}\n",
            2: f"2026-11-15 02:07:31,000 ERROR {OOM}\n",
        },
    )
    assert report.verdict is not None
    assert report.verdict.ranks == (2,)
    assert [(c.symptom, c.ranks) for c in report.cascades] == [("communication-runtime-error", (0, 1))]


def test_lines_of_all_ranks_shuffled_into_each_other_are_told_apart(of) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(7)
    queues = {r: merged((r, trace(OOM if r == 1 else CLOSED))).splitlines(keepends=True) for r in range(4)}
    lines = []
    while any(queues.values()):
        lines.append(queues[rng.choice([r for r, q in queues.items() if q])].pop(0))
    verdict = of("".join(lines)).verdict
    assert verdict is not None
    assert verdict.ranks == (1,)


def test_a_rank_that_says_nothing_while_all_others_wait_is_the_suspect(tmp_path: Path) -> None:
    report = files(tmp_path, {r: "step 1 loss 2.0\n" + ("" if r == 3 else trace(TIMEOUT) + "\n") for r in range(4)})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("collective-hang", (3,))


def test_a_rank_that_waited_at_another_line_is_the_suspect(tmp_path: Path) -> None:
    report = files(tmp_path, {r: trace(TIMEOUT, line=99 if r == 1 else 10) + "\n" for r in range(4)})
    assert report.verdict is not None
    assert report.verdict.ranks == (1,)


def test_nobody_is_blamed_when_all_waited_alike(tmp_path: Path) -> None:
    report = files(tmp_path, {r: trace(TIMEOUT) + "\n" for r in range(4)})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks, report.verdict.scope) == ("collective-hang", (), "job")


def test_nobody_is_blamed_when_half_the_ranks_are_silent(tmp_path: Path) -> None:
    report = files(tmp_path, {r: "step 1 loss 2.0\n" + (trace(TIMEOUT) + "\n" if r == 0 else "") for r in range(4)})
    assert report.verdict is None or report.verdict.ranks == ()


def test_watchdog_reporters_are_victims_not_culprits(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of("".join(f"[rank{r}]:{WATCHDOG.format(r=r)}\n" for r in (0, 1))).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", ())


def test_the_last_attempt_is_judged_and_the_earlier_failure_is_kept(tmp_path: Path) -> None:
    for attempt, message in ((0, OOM), (1, "ModuleNotFoundError: No module named 'flash_attn'")):
        folder = tmp_path / "job_x" / f"attempt_{attempt}" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(merged((1, trace(message))))
    report = diagnose(tmp_path)
    assert report.verdict is not None
    assert report.verdict.symptom == "import-or-missing-symbol"
    assert [f.symptom for f in report.findings] == ["import-or-missing-symbol", "device-out-of-memory"]


def test_what_a_rank_survived_is_set_aside_and_said(tmp_path: Path) -> None:
    report = files(tmp_path, {0: f"{trace(OOM)}\nretrying with half the batch\nstep 7 loss 1.9\nstep 8 loss 1.8\n"})
    assert report.verdict is None
    assert report.findings == ()
    assert "went on" in report.suppressed[0].why


def test_others_going_on_for_a_moment_does_not_mean_that_the_rank_survived(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of(f"[rank2]: {OOM}\nstep 7 loss 1.9\nstep 8 loss 1.8\n").verdict
    assert verdict is not None
    assert verdict.ranks == (2,)


def test_a_traceback_without_prefix_gets_the_rank_that_the_line_before_it_names(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        f"2026-11-15 02:27:05,884 ERROR train: rank 2 failed at step 12\n{trace(OOM)}\n{merged((0, trace(CLOSED)))}"
    )
    assert report.verdict is not None
    assert report.verdict.ranks == (2,)
    assert (report.verdict.evidence[0].event.time or "").startswith("2026-11-15T02:27:05.884")


def test_a_table_alone_is_not_enough_for_a_verdict(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:06:27\n  host      : node-01\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>\n  traceback : To enable\n=====\n"
    )
    assert report.verdict is None
    assert [f.rule for f in report.findings] == ["JOB005"]


def test_a_kernel_line_is_joined_to_its_rank_by_process_id(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        "[ 1234.5] Out of memory: Killed process 4711 (python) total-vm:99kB, anon-rss:88kB, file-rss:0kB\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:06:27\n  host      : node-01\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 4711)\n  error_file: <N/A>\n  traceback : Signal 9\n=====\n"
    )
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("host-out-of-memory", (2,))
    assert report.verdict.hosts == ("node-01",)


def test_cause_probabilities_are_sorted_and_leave_room_for_the_unknown(of) -> None:  # type: ignore[no-untyped-def]
    for message in (OOM, TIMEOUT, "ModuleNotFoundError: No module named 'x'", "ZeroDivisionError: division by zero"):
        for finding in of(merged((0, trace(message)))).findings:
            shares = [cause.probability for cause in finding.causes]
            assert shares == sorted(shares, reverse=True)
            assert 0 < sum(shares) <= 0.901
