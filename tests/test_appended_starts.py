"""Starts of a job that were appended to one log, without a clock: the last one counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.collect.starts import End, Fall, Start, begun_again, begun_alone
from paramedic.model import Finding, Report

pytestmark = pytest.mark.usefixtures("rules_loaded_once")

HEAD = "loading configuration of run {n}\nusing AdamW with 4 groups\nmodel has 12 layers\n"


def raised(error: str, where: str = "train.py") -> str:
    return (
        f'Traceback (most recent call last):\n  File "{where}", line 90, in <module>\n    main()\n'
        f'  File "{where}", line 41, in main\n    go()\n{error}\n'
    )


NAME, SHAPE = (
    "NameError: name 'scheduler' is not defined",
    "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x4 and 5x3)",
)
TRAINS = "".join(f"epoch 0 step {n} loss {4 - n / 50:.3f}\n" for n in range(12))
ENDED = "FatalError: `Termination signal` is detected by the operating system.\n"


def told(folder: Path, **logs: str) -> Report:
    for name, text in logs.items():
        (folder / f"{name.replace('_', '.')}").write_text(text, "utf-8")
    return diagnose(folder)


def verdict(report: Report) -> Finding:
    assert report.verdict is not None
    return report.verdict


def test_a_program_that_was_mended_and_begun_again_is_judged_by_its_last_start(tmp_path: Path) -> None:
    log = HEAD.format(n=1) + raised(SHAPE) + HEAD.format(n=2) + raised(NAME)
    found = verdict(told(tmp_path, nohup_out=log))
    assert (found.symptom, found.evidence[0].event.line) == ("step-execution-error", 18)


def test_a_program_that_trains_after_it_was_begun_again_has_not_failed(tmp_path: Path) -> None:
    log = HEAD.format(n=1) + raised(SHAPE) + HEAD.format(n=2) + "".join(TRAINS.splitlines(keepends=True)[:2])
    assert told(tmp_path, nohup_out=log).verdict is None


def test_a_failure_behind_which_nothing_begins_is_the_last(tmp_path: Path) -> None:
    assert verdict(told(tmp_path, nohup_out=HEAD.format(n=1) + TRAINS + raised(SHAPE))).symptom.startswith("tensor")


def test_ranks_whose_first_lines_come_late_are_no_starts(tmp_path: Path) -> None:
    """Each writes its head and its error; the first has lost nobody."""
    peer = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error"
    log = HEAD.format(n=1) + HEAD.format(n=2) + raised(SHAPE) + HEAD.format(n=3) + raised(peer)
    assert verdict(told(tmp_path, train_log=log)).symptom == "tensor-shape-or-dtype-mismatch"


def test_who_falls_of_the_same_again_need_not_be_told_apart() -> None:
    starts = [Start(1, None), Start(20, None), Start(40, None)]
    assert begun_alone(starts, [Fall(10, b"a"), Fall(30, b"a"), Fall(50, b"b")], []) == [40]
    assert begun_alone(starts, [Fall(10, b"a"), Fall(30, b"b")], [45]) == [20, 40]
    assert begun_alone(starts, [Fall(10), Fall(30)], [45]) == [20, 40]
    assert begun_alone(starts, [Fall(10, b"a"), Fall(30, b"b")], []) == [20]  # behind 40 nothing is shown
    assert begun_alone(starts, [Fall(10, b"a"), Fall(30, b"b")], None) == [20, 40]
    assert begun_alone(starts, [], [45]) == []
    assert begun_alone(starts, [Fall(10, b"a", "train.py"), Fall(30, b"b", "evaluate.py")], []) == []
    assert begun_alone([Start(1, 5.0), Start(20, 5.0)], [Fall(10, b"a"), Fall(30, b"b")], []) == []  # beside each other


def test_logs_of_ranks_have_the_last_start_in_common(tmp_path: Path) -> None:
    """Rank 1 fell once more than rank 0, which was ended before it said a word."""
    (tmp_path / "workerlog.0").write_text(HEAD.format(n=1) + raised(SHAPE) + HEAD.format(n=3) + raised(NAME))
    twice = HEAD.format(n=1) + raised(SHAPE) + HEAD.format(n=2) + raised("ImportError: cannot import name 'a' from 'b'")
    (tmp_path / "workerlog.1").write_text(twice + HEAD.format(n=3) + raised(NAME))
    found = verdict(diagnose(tmp_path))
    assert (found.symptom, found.ranks) == ("step-execution-error", ())
    assert found.summary.startswith("Every rank")


def test_launchers_of_several_nodes_begin_again_together() -> None:
    nodes = [Start(line, None, by_launcher=True) for line in (1, 2, 3)]
    again = [Start(line, None, by_launcher=True) for line in (11, 12, 13)]
    assert begun_again([*nodes, *again], [End(10, None, by_launcher=True)]) == [11]
    assert begun_again([*nodes, *again[:2]], [End(10, None, by_launcher=True)]) == []  # one of them is merely late


def test_the_rank_that_its_launcher_did_not_end_had_ended_before(tmp_path: Path) -> None:
    for rank in range(4):
        (tmp_path / f"workerlog.{rank}").write_text(HEAD.format(n=1) + TRAINS + (ENDED if rank != 2 else ""))
    found = verdict(diagnose(tmp_path))
    assert (found.rule, found.symptom, found.ranks) == ("JOB770", "worker-or-node-loss", (2,))


@pytest.mark.parametrize("second", [ENDED, "training finished, saving final model\n", None])
def test_where_all_were_asked_to_end_or_had_ended_or_are_not_heard_nobody_has_failed(
    tmp_path: Path, second: str | None
) -> None:
    for rank in range(4):
        if rank != 2 or second is not None:
            end = second if rank == 2 and second else ENDED
            (tmp_path / f"workerlog.{rank}").write_text(HEAD.format(n=1) + TRAINS + end)
    report = diagnose(tmp_path)
    assert report.verdict is None
    assert {(one.rule, one.severity) for one in report.findings} == {("JOB071", "warning")}


def test_one_rank_that_somebody_starts_again_is_no_start_of_the_job(tmp_path: Path) -> None:
    oom = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB "
    oom += "of which 1.20 GiB is free."
    lost = "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:20911"
    (tmp_path / "rank_0.log").write_text(HEAD.format(n=1) + TRAINS + raised(oom) + HEAD.format(n=2) + raised(NAME))
    for rank in (1, 2, 3):
        (tmp_path / f"rank_{rank}.log").write_text(HEAD.format(n=1) + TRAINS + raised(lost))
    found = verdict(diagnose(tmp_path))
    assert (found.symptom, found.ranks) == ("device-out-of-memory", (0,))


def test_another_program_of_the_same_script_is_no_start_of_the_job(tmp_path: Path) -> None:
    log = HEAD.format(n=1) + raised(SHAPE) + HEAD.format(n=2) + raised(NAME, "evaluate.py")
    assert verdict(told(tmp_path, nohup_out=log)).symptom == "tensor-shape-or-dtype-mismatch"


def test_launchers_begin_again_together_also_where_none_of_them_told_its_end() -> None:
    """All of them have spoken since, and each speaks once."""
    nodes = [Start(line, None, by_launcher=True) for line in (1, 2, 3, 11, 12, 13, 21, 22, 23)]
    assert begun_again(nodes, [End(10, None, by_launcher=True)]) == [11, 21]
    assert begun_again(nodes[:8], [End(10, None, by_launcher=True)]) == [11]


def paddle(start: int, minute: int, rank: int) -> str:
    return (
        f"I1219 0{start}:{minute}:12.367899 302449{rank} gen_comm_id_helper.cc:205] Server listening on: 127.0.0.1:41059 successful.\n"
        f"I1219 0{start}:{minute}:15.340770 302449{rank} nccl_context.cc:83] init nccl context nranks: 4 local rank: {rank} gpu id: {rank}\n"
    )


def test_ranks_that_begin_anew_beside_one_that_fell_were_begun_with_it(tmp_path: Path) -> None:
    """Paddle's launcher ends the others without a word; in the next start another one falls."""
    for rank in range(4):
        fell = raised(SHAPE) if rank == 2 else ""
        again = raised(SHAPE) if rank == 1 else ""
        log = paddle(1, 51, rank) + TRAINS + fell + paddle(2, 43, rank) + TRAINS + again
        (tmp_path / f"workerlog.{rank}").write_text(log)
    found = verdict(diagnose(tmp_path))
    assert (found.symptom, found.ranks, found.attempt) == ("tensor-shape-or-dtype-mismatch", (1,), 1)


def test_an_earlier_start_that_failed_is_a_remark_where_the_last_one_trained_to_its_end(tmp_path: Path) -> None:
    """Only rank 0 prints its steps."""
    for rank in range(2):
        trained = f"{TRAINS}training finished\n" if rank == 0 else ""
        log = paddle(1, 51, rank) + raised(SHAPE) + paddle(2, 43, rank) + trained
        (tmp_path / f"workerlog.{rank}").write_text(log)
    report = diagnose(tmp_path)
    assert report.verdict is None
    assert {one.severity for one in report.findings} <= {"warning"}


def test_an_earlier_start_that_failed_stays_a_failure_where_the_last_one_has_hardly_begun(tmp_path: Path) -> None:
    for rank in range(2):
        log = paddle(1, 51, rank) + raised(SHAPE) + paddle(2, 43, rank) + TRAINS[: 90 * (1 - rank)]
        (tmp_path / f"workerlog.{rank}").write_text(log)
    assert "error" in {one.severity for one in diagnose(tmp_path).findings}
