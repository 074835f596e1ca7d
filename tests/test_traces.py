"""Planted faults: the rank that is at fault is named, in whatever order the files come and whichever one is missing."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from paramedic.detect.traces import differences
from recordings import Rank, job, judged, missing, run_of, training, written

Fault = Callable[[int], list[Rank]]


def _type(bad: int) -> list[Rank]:
    ranks = training()
    for one in ranks:
        one.call("broadcast" if one.rank == bad else "all_reduce", (8,), line=77 if one.rank == bad else 20, done=False)
    return ranks


def _shape(bad: int) -> list[Rank]:
    ranks = training()
    for one in ranks:
        one.call("all_reduce", (9 if one.rank == bad else 8,), line=20, done=False)
    return ranks


def _dtype(bad: int) -> list[Rank]:
    ranks = training()
    for one in ranks:
        one.call("all_reduce", (8,), dtype="Half" if one.rank == bad else "Float", line=20, done=False)
    return ranks


def _skipped(bad: int) -> list[Rank]:
    ranks = training()
    for one in ranks:
        if one.rank != bad:
            one.call("all_reduce", (8,), line=20, done=False)
        one.call("_reduce_scatter_base", (16,), line=21, done=False)
    return ranks


def _ahead(bad: int) -> list[Rank]:
    ranks = training()
    ranks[bad].call("all_reduce", (1,), line=99, done=False)
    return ranks


def _root(bad: int) -> list[Rank]:
    ranks = training()
    for finished in (True, False):
        for one in ranks:
            root = one.rank == (bad + 1) % 4 or (not finished and one.rank == bad)
            one.call("gather", (2,), outs=[[2]] * 4 if root else [], done=finished)
    return ranks


def _group(bad: int) -> list[Rank]:
    ranks = training(4, {"1": [0, 1, 2, 3]})
    for one in ranks:
        one.call("all_reduce", (8,), group="1" if one.rank == bad else "0", done=False)
    return ranks


def _tensor_parallel(bad: int) -> list[Rank]:
    """The bad rank is stuck before its tensor group's call; its peer, and then all data groups, are late."""
    tensor, data = {"1": [0, 1], "2": [2, 3]}, {"3": [0, 2], "4": [1, 3]}
    ranks = training(4, tensor | data)
    mate = bad ^ 1
    for one in ranks:
        tp, dp = ("1" if one.rank < 2 else "2"), ("3" if one.rank % 2 == 0 else "4")
        one.call("all_reduce", (2,), group=tp).call("all_reduce", (2,), group=dp)
        if one.rank == mate:
            one.call("all_reduce", (2,), group=tp, line=30, done=False)
        elif one.rank != bad:
            one.call("all_reduce", (2,), group=tp, line=30).call("all_reduce", (2,), group=dp, line=31, done=False)
    return ranks


FAULTS: dict[str, Fault] = {
    "missing": missing, "type": _type, "shape": _shape, "dtype": _dtype, "order": _skipped, "ahead": _ahead,
    "root": _root, "groups": _group, "tensor-parallel": _tensor_parallel,
}  # fmt: skip


@pytest.mark.parametrize("bad", range(4))
@pytest.mark.parametrize("fault", FAULTS)
def test_the_rank_at_fault_is_named(tmp_path: Path, fault: str, bad: int) -> None:
    report = judged(written(FAULTS[fault](bad), tmp_path))
    assert report.verdict is not None
    assert report.verdict.ranks == (bad,)
    kind = report.verdict.fields["kind"]
    assert kind == {"tensor-parallel": "missing"}.get(fault, fault)
    assert "/job/train.py:" in report.verdict.fields["usual_at"]


@pytest.mark.parametrize("fault", FAULTS)
def test_any_order_of_files_gives_the_same(tmp_path: Path, fault: str) -> None:
    ranks = FAULTS[fault](2)
    files = [written([one], tmp_path / str(one.rank)) for one in ranks]
    forwards, backwards = judged(*files).verdict, judged(*files[::-1]).verdict
    assert forwards and backwards
    assert (forwards.rule, forwards.ranks, forwards.summary) == (backwards.rule, backwards.ranks, backwards.summary)


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("fault", FAULTS)
def test_with_any_file_missing_no_innocent_rank_is_named(tmp_path: Path, fault: str, lost: int) -> None:
    verdict = judged(written(FAULTS[fault](1), tmp_path, missing=lost)).verdict
    assert verdict is None or set(verdict.ranks) <= {1}, verdict.summary
    if fault in ("missing", "tensor-parallel", "type", "shape", "dtype") and lost != 1:
        assert verdict is not None
        assert verdict.ranks == (1,)


def test_a_lost_file_of_the_missing_rank_is_enough(tmp_path: Path) -> None:
    verdict = judged(written(missing(1), tmp_path, missing=1)).verdict
    assert verdict is not None
    assert verdict.ranks == (1,)


def _peers() -> list[Rank]:
    ranks = training()
    ranks[0].call("send 0->1", done=True).call("send 0->1", done=False, line=50)
    ranks[1].call("recv 1<-0", done=True)
    return ranks


def test_a_send_without_a_receive(tmp_path: Path) -> None:
    (one,) = differences(run_of(written(_peers(), tmp_path)))
    assert (one.kind, one.ranks, one.waiting) == ("p2p", (1,), (0,))


def test_a_receive_from_the_wrong_rank(tmp_path: Path) -> None:
    ranks = _peers()
    ranks[1].call("recv 1<-3", done=False, line=60)
    (one,) = differences(run_of(written(ranks, tmp_path)))
    assert (one.kind, one.ranks) == ("p2p", (1,))
    assert (one.odd, one.odd_site) == ("recv 1<-3", "/job/train.py:60 in step")


def test_a_receive_of_another_size(tmp_path: Path) -> None:
    ranks = _peers()
    ranks[1].call("recv 1<-0", (8,), done=False)
    (one,) = differences(run_of(written(ranks, tmp_path)))
    assert (one.kind, one.ranks) == ("p2p-size", (1,))


@pytest.mark.parametrize("done", [True, False])
def test_differences_that_are_right_are_not_accused(tmp_path: Path, done: bool) -> None:
    ranks = training()
    for one in ranks:
        own = one.rank + 1
        one.call("all_to_all", (own,), outs=[[5 - own]])
        one.call("all_gather", (own,), outs=[[1], [2], [3], [4]])
        one.call("gather", (own,), outs=[[1], [2], [3], [4]] if one.rank == 0 else [])
        one.call("broadcast", (own,), dtype="Byte")
        one.call("all_reduce", (2, 2) if one.rank else (4,))
        if one.rank < 2:
            one.call("send 0->1" if one.rank == 0 else "recv 1<-0", (3,))
        one.call("all_reduce", (8,), done=done)
    assert differences(run_of(written(ranks, tmp_path))) == []


def test_rings_that_have_wrapped_are_aligned_by_number(tmp_path: Path) -> None:
    ranks = missing(3)
    for one in ranks:
        one.entries = one.entries[one.rank + 2 :]
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == (3,)


def test_two_camps_of_equal_size_accuse_nobody(tmp_path: Path) -> None:
    ranks = training()
    for one in ranks:
        one.call("all_reduce" if one.rank < 2 else "barrier", (3,), done=False)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == ()


def test_of_two_ranks_what_came_before_decides(tmp_path: Path) -> None:
    ranks = training(2)
    ranks[0].call("all_reduce", (8,), done=False)
    ranks[1].call("broadcast", (8,), done=False)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == (1,)


def test_the_record_decides_where_logs_only_show_timeouts(tmp_path: Path) -> None:
    folder = written(_shape(2), tmp_path / "job")
    said = "RuntimeError: [/p/gloo/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
    (folder / "job.log").write_text("".join(f"[rank{rank}]: {said}\n" for rank in (0, 1, 3)))
    verdict = judged(folder).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL033", (2,))


def test_a_rank_that_says_what_befell_it_is_believed(tmp_path: Path) -> None:
    folder = written(missing(2), tmp_path / "job", missing=2)
    (folder / "job.log").write_text(
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/job/train.py", line 3, in step\n'
        "[rank2]: ValueError: the label is negative\n"
    )
    verdict = judged(folder).verdict
    assert verdict is not None
    assert not verdict.rule.startswith("COL03")
    assert verdict.ranks == (2,)


# -- ranks that leave no record, or whose GPU does not come -----------------------------------------------------------


def _all_waiting(size: int = 6) -> list[Rank]:
    ranks = training(size)
    for one in ranks:
        one.call("all_reduce", (8,), line=20, done=False)
    return ranks


def _timed(ranks: list[Rank], begun: set[int], age: float | None = None) -> list[Rank]:
    """As with TORCH_NCCL_ENABLE_TIMING; what has begun is found so when the dump is written."""
    for one in ranks:
        for entry in one.entries:
            entry |= {"time_created_ns": 10**18, "timeout_ms": 600_000}
            if entry["state"] == "completed":
                entry["duration_ms"] = 0.5
            elif one.rank in begun:
                entry["state"] = "started"
                entry["time_discovered_started_ns"] = 10**18 + int((age or 0.02) * 1e9)
    return ranks


def test_several_ranks_without_a_record_are_named_if_most_have_one(tmp_path: Path) -> None:
    folder = written([one for one in _all_waiting() if one.rank not in (2, 3)], tmp_path)
    verdict = judged(folder).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL060", (2, 3))
    assert verdict.causes[0].id == "hardware-fault"


def test_ranks_are_not_named_because_their_files_were_not_brought(tmp_path: Path) -> None:
    assert judged(written(_all_waiting()[:3], tmp_path)).verdict is None


def test_a_gpu_that_has_not_begun_what_the_others_have_is_named(tmp_path: Path) -> None:
    verdict = judged(written(_timed(_all_waiting(), {0, 1, 2, 3, 5}, 700), tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL061", (4,))
    assert verdict.causes[0].id == "hardware-fault"


def test_ranks_that_still_call_more_are_only_a_moment_apart(tmp_path: Path) -> None:
    ranks = _all_waiting()
    for one in ranks[2:]:
        one.call("_reduce_scatter_base", (16,), line=21, done=False)
    assert judged(written(_timed(ranks, {0, 1, 2, 3, 5}), tmp_path)).verdict is None


def test_without_times_nobody_is_late_on_the_gpu(tmp_path: Path) -> None:
    assert differences(run_of(written(_all_waiting(), tmp_path))) == []


@pytest.mark.parametrize(("age", "rule"), [(0.05, None), (30, None), (601, "COL062")])
def test_what_all_have_entered_alike_is_a_hang_only_if_it_lasts(tmp_path: Path, age: float, rule: str | None) -> None:
    verdict = judged(written(_timed(_all_waiting(), {*range(6)}, age), tmp_path)).verdict
    assert (verdict and verdict.rule) == rule
    if verdict:
        assert verdict.ranks == ()
        assert verdict.causes[0].id == "network-fabric-fault"


def test_what_all_have_entered_alike_is_a_hang_if_a_log_tells_of_the_timeout(tmp_path: Path) -> None:
    folder = written(_all_waiting(), tmp_path / "job")
    said = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=13, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600081 milliseconds before timing out."  # fmt: skip
    (folder / "job.log").write_text("".join(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:629] [Rank {rank}] {said}\n" for rank in range(6)))  # fmt: skip
    verdict = judged(folder).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL062", ())


def test_the_first_call_of_all_that_hangs_is_a_set_up_that_hangs(tmp_path: Path) -> None:
    ranks = [one.call("all_reduce", (1,), done=False) for one in job(4)]
    verdict = judged(written(_timed(ranks, {*range(4)}, 700), tmp_path)).verdict
    assert verdict is not None
    assert verdict.symptom == "rendezvous-setup-hang"


# -- a rank that always comes last -----------------------------------------------------------------------------------


def _durations(ranks: list[Rank], late: Callable[[int, int, str], bool], wait: float = 600) -> list[Rank]:
    """Who is late is in the collective only for as long as the data need."""
    for one in ranks:
        for entry in one.entries:
            seq = entry["collective_seq_id"]
            took = 1.0 if late(one.rank, seq, entry["process_group"][0]) else wait
            entry |= {"time_created_ns": 10**18 + entry["record_id"] * 10**9, "duration_ms": took}
    return ranks


def test_a_rank_for_which_the_others_always_wait_is_a_straggler(tmp_path: Path) -> None:
    verdict = judged(written(_durations(training(), lambda rank, seq, group: rank == 2), tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL063", (2,))


@pytest.mark.parametrize(
    "late",
    [
        lambda rank, seq, group: rank == 2 or seq != 6,
        lambda rank, seq, group: rank == seq % 4,
        lambda rank, seq, group: rank == (2 if seq < 7 else 1),
        lambda rank, seq, group: rank in (1, 2),
    ],
)
def test_a_rank_that_is_late_once_or_in_turn_is_no_straggler(
    tmp_path: Path, late: Callable[[int, int, str], bool]
) -> None:
    assert judged(written(_durations(training(), late), tmp_path)).verdict is None


def test_waits_that_cost_little_make_no_straggler(tmp_path: Path) -> None:
    assert judged(written(_durations(training(), lambda rank, seq, group: rank == 2, 60), tmp_path)).verdict is None


def test_who_is_late_for_waiting_in_another_group_is_no_straggler(tmp_path: Path) -> None:
    ranks = job(4, {"1": [2, 3], "2": [0, 2]})
    for one in ranks:
        for _ in range(12):
            for group in ("1", "2"):
                if one.rank in one.groups[group]:
                    one.call("all_reduce", group=group)
    slow = {"1": 3, "2": 2}
    verdict = judged(written(_durations(ranks, lambda rank, seq, group: slow[group] == rank), tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == (3,)


def test_a_straggler_whose_gpu_has_not_come_yet_is_not_stuck(tmp_path: Path) -> None:
    ranks = _durations(training(), lambda rank, seq, group: rank == 2)
    for one in ranks:
        one.call("all_reduce", (8,), line=20, done=False)
        one.entries[-1]["state"] = "scheduled" if one.rank == 2 else "started"
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL063", (2,))


# -- sends and receives, one behind the other ---------------------------------------------------------------------------


def _batch(one: Rank, number: int, *ops: str, done: bool = True) -> None:
    """As batch_isend_irecv records it: what is batched has no state, the mark behind it has."""
    for op in ops:
        one.call(op, done=False)
        one.entries[-1]["p2p_seq_id"] = number
    one.call("coalesced", (), done=done)
    one.entries[-1] |= {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}


def _around(size: int, stops: int) -> list[Rank]:
    """A ring: who stands behind the one that stops comes as far as its neighbours let it."""
    ranks = job(size)
    for one in ranks:
        away = min((one.rank - stops) % size, (stops - one.rank) % size)
        ops = f"send {one.rank}->{(one.rank + 1) % size}", f"recv {one.rank}<-{(one.rank - 1) % size}"
        for number in range(1, 4 + away):
            _batch(one, number, *ops)
        if away:
            _batch(one, 4 + away, *ops, done=False)
        for entry in one.entries:
            entry["collective_seq_id"] = 0
    return ranks


@pytest.mark.parametrize("stops", [0, 3])
def test_the_rank_that_stopped_in_a_ring_of_batched_sends_is_named(tmp_path: Path, stops: int) -> None:
    verdict = judged(written(_around(6, stops), tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL031", (stops,))
    assert "posted its half" in verdict.summary


def test_who_has_finished_its_half_is_not_waited_for(tmp_path: Path) -> None:
    """Rank 0 is through and waits in the next collective; rank 1 has its data, but waits for rank 2 in one batch."""
    ranks = training(4)
    _batch(ranks[0], 1, "send 0->1")
    _batch(ranks[1], 1, "recv 1<-0", "send 1->2", done=False)
    for one in (ranks[0], ranks[3]):
        one.call("all_reduce", (8,), line=20, done=False)
    for one in ranks[:2]:
        for entry in one.entries:
            entry["collective_seq_id"] = min(entry["collective_seq_id"] or 12, 13)
    ranks[0].entries[-1]["collective_seq_id"] = 13
    (found,) = differences(run_of(written(ranks, tmp_path)))
    assert (found.kind, found.ranks) == ("missing", (2,))
    assert differences(run_of(written(ranks[:2] + ranks[3:], tmp_path / "without"))) == []


def test_batched_sends_whose_mark_is_finished_are_finished(tmp_path: Path) -> None:
    ranks = job(3)
    for one in ranks:
        _batch(one, 1, f"send {one.rank}->{(one.rank + 1) % 3}", f"recv {one.rank}<-{(one.rank - 1) % 3}")
    run = run_of(written(ranks, tmp_path))
    assert differences(run) == []
    assert all(event.fields["open_at"] == -1 for event in run.events if event.kind == "trace")


def _stages(ranks: list[Rank], *calls: tuple[int, str]) -> list[Rank]:
    for rank, op in calls:
        ranks[rank].call(op, done=False)
    return ranks


def test_of_stages_that_wait_for_each_other_the_one_that_two_ask_in_vain_is_named(tmp_path: Path) -> None:
    """Stage 1 leaves out one micro-batch: stage 0 would send it, stage 2 would receive it."""
    calls = [(0, "send 0->1"), (1, "recv 1<-2"), (1, "send 1->0"), (2, "recv 2<-1"), (2, "send 2->1")]
    (one,) = differences(run_of(written(_stages(training(3), *calls), tmp_path)))
    assert (one.kind, one.ranks, one.waiting) == ("p2p", (1,), (0, 2))


def test_of_two_stages_that_wait_for_each_other_nobody_is_named(tmp_path: Path) -> None:
    calls = [(0, "send 0->1"), (0, "recv 0<-1"), (1, "send 1->0"), (1, "recv 1<-0")]
    (one,) = differences(run_of(written(_stages(training(2), *calls), tmp_path)))
    assert (one.kind, one.ranks) == ("p2p", ())


def test_two_stages_of_several_that_both_send_first_are_named(tmp_path: Path) -> None:
    calls = [(0, "recv 0<-1"), (1, "send 1->2"), (1, "recv 1<-2"), (2, "send 2->1"), (2, "recv 2<-1")]
    (one,) = differences(run_of(written(_stages(training(3), *calls), tmp_path)))
    assert (one.kind, one.ranks) == ("p2p", (1, 2))


def test_who_sends_for_the_first_time_to_one_that_does_not_listen_is_named(tmp_path: Path) -> None:
    """Stage 1 sends to stage 0 instead of stage 2: all wait for each other, and the closing link is the mistake."""
    ranks = job(3)
    for _ in range(3):
        for rank, op in [(0, "send 0->1"), (1, "recv 1<-0"), (1, "send 1->2"), (2, "recv 2<-1")]:
            ranks[rank].call(op)
        for rank, op in [(2, "send 2->1"), (1, "recv 1<-2"), (1, "send 1->0"), (0, "recv 0<-1")]:
            ranks[rank].call(op)
    calls = [(1, "send 1->0"), (1, "recv 1<-2"), (2, "send 2->1"), (0, "send 0->1"), (1, "recv 1<-0")]
    (usual,) = differences(run_of(written(_stages(ranks, *calls), tmp_path)))
    assert usual.ranks == (0, 1)  # it has sent there before: either may be too early
    back = ("send 1->0", "recv 0<-1")
    for one in ranks:
        one.entries = [e for e in one.entries if not (e["retired"] and e["profiling_name"][5:] in back)]
    (found,) = differences(run_of(written(ranks, tmp_path / "first")))
    assert (found.kind, found.ranks) == ("p2p", (1,))


def test_a_stage_that_went_on_without_a_receive_is_named(tmp_path: Path) -> None:
    ranks = training(3)
    ranks[1].call("send 1->2", done=False)
    ranks[0].call("recv 0<-1", done=False)
    ranks[1].call("send 1->0", done=False)
    ranks[2].call("all_reduce", (8,), line=20, done=False)
    (found,) = differences(run_of(written(ranks, tmp_path)))
    assert (found.kind, found.ranks, found.waiting) == ("p2p", (2,), (0, 1))


def test_records_of_different_moments_accuse_nobody(tmp_path: Path) -> None:
    """What needs all ranks is finished on three of them: the fourth has come since its record was written."""
    ranks = training()
    for one in ranks[:3]:
        one.call("all_reduce", (8,), line=20).call("_reduce_scatter_base", (16,), line=21, done=False)
    assert differences(run_of(written(ranks, tmp_path))) == []


def test_of_two_roots_without_any_before_the_one_that_is_not_the_first_rank_is_named(tmp_path: Path) -> None:
    ranks = training()
    for one in ranks:
        one.call("gather", (2,), outs=[[2]] * 4 if one.rank in (0, 3) else [], done=False)
    (found,) = differences(run_of(written(ranks, tmp_path)))
    assert (found.kind, found.ranks) == ("root", (3,))


def test_sends_of_several_sizes_that_wait_in_turn_are_right(tmp_path: Path) -> None:
    ranks = training(2)
    for size in (3, 5):
        ranks[0].call("send 0->1", (size,), done=False)
        ranks[1].call("recv 1<-0", (size,), done=False)
    assert differences(run_of(written(ranks, tmp_path))) == []


# -- why -----------------------------------------------------------------------------------------------------------


def test_ranks_that_take_their_groups_in_another_order_than_before_are_named(tmp_path: Path) -> None:
    rows, columns = {"1": [0, 1], "2": [2, 3]}, {"3": [0, 2], "4": [1, 3]}
    ranks = job(4, rows | columns)
    for one in ranks:
        row, column = ("1" if one.rank < 2 else "2"), ("3" if one.rank % 2 == 0 else "4")
        for _ in range(3):
            one.call("all_reduce", group=row, line=5).call("all_reduce", group=column, line=6)
        one.call("all_reduce", group=column if one.rank in (1, 2) else row, line=7, done=False)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert (verdict.ranks, verdict.fields["kind"]) == ((1, 2), "groups")


@pytest.mark.parametrize("line", [20, 88])
def test_tensors_that_differ_at_another_place_of_the_program_are_another_call(tmp_path: Path, line: int) -> None:
    ranks = training()
    for one in ranks:
        odd = one.rank == 2
        one.call("all_reduce", (3 if odd else 8,), line=line if odd else 20, done=False)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL033", (2,))
    assert (verdict.causes[0].id == "collective-order-divergence") == (line == 88)


def test_the_root_of_a_gather_has_tensors_where_the_others_have_none(tmp_path: Path) -> None:
    """NCCL's process group records a tensor of size 0 that is none."""
    ranks = training()
    for finished in (True, False):
        for one in ranks:
            root = one.rank == 0 or (one.rank == 2 and not finished)
            one.call("gather", (2,), outs=[[2]] * 4 if root else [[0]], done=finished)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL034", (2,))


_ON_GLOO = """
import datetime, os, sys, torch, torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace
folder, rank = sys.argv[1], int(sys.argv[2])
dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=4)
short = datetime.timedelta(seconds=4)
ones = torch.ones(4)
for fault in ("none", "missing", "type"):
    group = dist.new_group([0, 1, 2, 3], timeout=short)
    for _ in range(3):
        dist.all_reduce(ones, group=group)
    dist.barrier(group=group)
    try:
        if fault == "missing" and rank != 2:
            dist.all_reduce(ones, group=group)
        if fault == "type" and rank == 3:
            dist.broadcast(ones, 0, group=group)
        elif fault == "type":
            dist.all_reduce(ones, group=group)
    except RuntimeError:
        pass
open(f"{folder}/rank_{rank}", "wb").write(_dump_fr_trace(True, True, False))
os._exit(0)
"""


@pytest.fixture(scope="module")
def gloo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four real processes, each fault in a group of its own; what each recorded, group by group."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("gloo")
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    program = folder / "train.py"
    program.write_text(_ON_GLOO)
    ranks = [
        subprocess.Popen([sys.executable, str(program), str(folder), str(rank)], env=environment) for rank in range(4)
    ]
    try:
        assert [one.wait(300) for one in ranks] == [0] * 4
    finally:
        for one in ranks:
            one.kill()
    for rank in range(4):
        dump = pickle.loads((folder / f"rank_{rank}").read_bytes())
        for fault, name in (("none", "1"), ("missing", "2"), ("type", "3")):
            (folder / fault).mkdir(exist_ok=True)
            kept = [entry for entry in dump["entries"] if entry["process_group"][0] == name]
            (folder / fault / f"rank_{rank}").write_bytes(pickle.dumps({**dump, "entries": kept}, 2))
    return folder


@pytest.mark.parametrize(("fault", "bad"), [("none", ()), ("missing", (2,)), ("type", (3,))])
def test_real_dumps_of_gloo(gloo: Path, fault: str, bad: tuple[int, ...]) -> None:
    verdict = judged(gloo / fault).verdict
    if not bad:
        assert verdict is None
        return
    assert verdict is not None
    assert (verdict.ranks, verdict.fields["kind"]) == (bad, fault)
    assert "/train.py:" in verdict.fields["usual_at"]


def test_what_to_look_at_is_where_the_missing_rank_stands_if_that_is_known(tmp_path: Path) -> None:
    folder = written(missing(2), tmp_path)
    unseen = judged(folder).verdict
    assert unseen is not None
    assert "never entered collective number 13, all_reduce of [8] Float" in unseen.summary
    assert any("after its last recorded call, _reduce_scatter_base" in fix.title for fix in unseen.fixes)
    (folder / "stacks").mkdir()
    lines = ["Thread 0x00007f01 (most recent call first):", '  File "/job/train.py", line 45 in wait_for_all', ""]
    (folder / "stacks/rank-2.txt").write_text("\n".join(lines))
    seen = judged(folder).verdict
    assert seen is not None
    assert (seen.rule, seen.ranks) == ("COL031", (2,))
    assert "/job/train.py:45 in wait_for_all" in seen.fixes[0].title
    likely = [{one.id: one.probability for one in verdict.causes} for verdict in (unseen, seen)]
    assert likely[1]["collective-order-divergence"] < likely[0]["collective-order-divergence"]  # it is in no other
    assert not any("recorded call" in fix.title or "{" in fix.title for fix in seen.fixes)


def test_of_several_groups_the_one_that_hangs_is_named(tmp_path: Path) -> None:
    ranks = training(4, {"1": [0, 1], "2": [2, 3]})
    for one in ranks:
        one.call("all_reduce", (4,), group="2" if one.rank > 1 else "1", done=one.rank < 2) if one.rank != 3 else one
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert "collective number 1 of group 2" in verdict.summary


# -- records of a job that goes on ----------------------------------------------------------------------------------------

_TIMED_OUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=13, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600081 milliseconds before timing out."  # fmt: skip


def _with_timeout(folder: Path) -> Path:
    (folder / "job.log").write_text(f"[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] {_TIMED_OUT}\n")
    return folder


def test_a_rank_that_has_just_finished_something_is_not_missing(tmp_path: Path) -> None:
    """The watchdog retires what is finished ten times a second: what it has not yet seen is younger than that."""
    ranks = missing(1)
    ranks[1].entries[-1]["retired"] = False
    folder = written(ranks, tmp_path)
    assert judged(folder).verdict is None
    hung = judged(_with_timeout(folder)).verdict
    assert hung is not None
    assert (hung.rule, hung.ranks) == ("COL031", (1,))


def test_who_waits_for_the_missing_rank_but_has_just_finished_something_moves(tmp_path: Path) -> None:
    ranks = missing(1)
    ranks[3].entries[-2]["retired"] = False
    assert judged(written(ranks, tmp_path)).verdict is None


@pytest.mark.parametrize("retired", [None, 600])
def test_a_watchdog_that_never_retires_or_stands_still_says_nothing_of_the_moment(
    tmp_path: Path, retired: int | None
) -> None:
    ranks = missing(1)
    for entry in ranks[1].entries if retired is None else ranks[1].entries[-1:]:
        ended = 10**18 + (retired or 0) * 10**9
        entry |= {"retired": False, "time_created_ns": 10**18, "time_discovered_completed_ns": ended}
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == (1,)


@pytest.mark.parametrize(("age", "named"), [(4, False), (120, True)])
def test_a_rank_that_is_late_for_seconds_is_not_missing(tmp_path: Path, age: float, named: bool) -> None:
    folder = written(_timed(missing(2), {0, 1, 3}, age), tmp_path)
    verdict = judged(folder).verdict
    assert (verdict.ranks if verdict else ()) == ((2,) if named else ())
    hung = judged(_with_timeout(folder)).verdict
    assert hung is not None
    assert (hung.rule, hung.ranks) == ("COL031", (2,))


def test_a_straggler_that_has_not_called_yet_is_not_missing(tmp_path: Path) -> None:
    ranks = _durations(training(), lambda rank, seq, group: rank == 2)
    for one in ranks:
        if one.rank != 2:
            one.call("all_reduce", (8,), line=20, done=False)
            now = one.entries[-2]["time_created_ns"] + 10**9
            one.entries[-1] |= {"state": "started", "time_created_ns": now, "time_discovered_started_ns": now + 10**8}
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL063", (2,))


def test_one_record_of_an_earlier_moment_is_set_aside(tmp_path: Path) -> None:
    ranks = training(8)
    for one in ranks:
        if one.rank != 4:
            one.call("all_reduce", (8,), line=20, done=False)
    ranks[7].entries = ranks[7].entries[:6]
    folder = written(ranks, tmp_path)
    assert judged(folder).verdict is None
    hung = judged(_with_timeout(folder)).verdict
    assert hung is not None
    assert (hung.rule, hung.ranks) == ("COL031", (4,))


def test_records_that_begin_between_sends_and_their_mark_show_no_other_calls(tmp_path: Path) -> None:
    """A ring buffer may have lost what a mark ends: it is no collective of its number."""
    ranks = training(3)
    for one in ranks:
        _batch(one, 1, f"send {one.rank}->{(one.rank + 1) % 3}", f"recv {one.rank}<-{(one.rank - 1) % 3}")
        one.entries[-1] |= {"collective_seq_id": 12, "is_p2p": one.rank != 2}
        one.call("all_reduce", (8,), line=20)
        one.entries[-1]["collective_seq_id"] = 13
    for one in ranks[1:]:
        one.entries = one.entries[-2:]
    assert differences(run_of(written(ranks, tmp_path))) == []


# -- who turned round, who stopped, who is gone ------------------------------------------------------------------------------


def test_a_rank_that_turns_a_ring_round_is_named(tmp_path: Path) -> None:
    """It sends where it has always received; what it posts next is right again, so that nobody is asked in vain."""
    ranks = job(4)
    for one in ranks:
        forth = f"send {one.rank}->{(one.rank + 1) % 4}", f"recv {one.rank}<-{(one.rank - 1) % 4}"
        back = "send 2->1", "recv 2<-3"
        for number in range(1, 4):
            _batch(one, number, *forth)
        _batch(one, 4, *(back if one.rank == 2 else forth), done=False)
        _batch(one, 5, *forth, done=False)
        for entry in one.entries:
            entry["collective_seq_id"] = 0
    (found,) = differences(run_of(written(ranks, tmp_path)))
    assert (found.kind, found.ranks) == ("p2p", (2,))


def test_a_stage_that_receives_from_the_wrong_side_is_named(tmp_path: Path) -> None:
    """Both receive from each other; the one whose line has always received from the other side began it."""
    ranks = job(3)
    for _ in range(3):
        for rank, op, line in [(0, "send 0->1", 5), (1, "recv 1<-0", 4), (1, "send 1->2", 5), (2, "recv 2<-1", 4)]:
            ranks[rank].call(op, line=line)
        for rank, op, line in [(2, "send 2->1", 7), (1, "recv 1<-2", 6), (1, "send 1->0", 7), (0, "recv 0<-1", 6)]:
            ranks[rank].call(op, line=line)
    for rank, op, line in [(1, "recv 1<-2", 4), (1, "send 1->2", 5), (2, "recv 2<-1", 4), (2, "send 2->1", 7)]:
        ranks[rank].call(op, line=line, done=False)
    ranks[0].call("send 0->1", line=5, done=False)
    (found,) = differences(run_of(written(ranks, tmp_path)))
    assert (found.kind, found.ranks, found.waiting) == ("p2p", (1,), (0, 2))


def test_of_two_halves_those_that_stopped_are_named_if_the_others_go_on_as_before(tmp_path: Path) -> None:
    ranks = training()
    for one in ranks[:2]:
        one.call("all_reduce", (8,), line=20, done=False)
    verdict = judged(written(ranks, tmp_path / "step")).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL031", (2, 3))
    assert verdict.causes[0].id == "uneven-work-across-ranks"
    for one in ranks[:2]:
        one.entries[-1]["input_sizes"] = [[1]]
    other = judged(written(ranks, tmp_path / "new")).verdict
    assert other is not None
    assert other.ranks == ()


def test_a_rank_that_never_calls_anything_while_others_make_their_first_call_is_a_set_up_that_hangs(
    tmp_path: Path,
) -> None:
    ranks = job(4)
    for one in ranks[:3]:
        one.call("all_reduce", (1,), done=False)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.ranks) == ("rendezvous-setup-hang", (3,))


def test_a_group_that_stalls_while_most_wait_for_its_members_is_named(tmp_path: Path) -> None:
    ranks = training(8, {"1": [0, 1, 2, 3], "2": [4, 5, 6, 7], "3": [3, 7]})
    for one in ranks:
        if one.rank in (3, 7):
            one.call("all_reduce", (2,), group="3", done=False)
        else:
            one.call("all_reduce", (2,), group="1" if one.rank < 4 else "2", done=False)
    for rank in (3, 7):
        ranks[rank].call("all_reduce", (2,), group="1" if rank < 4 else "2", done=False)
    verdict = judged(_with_timeout(written(ranks, tmp_path))).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL062", (3, 7))


@pytest.mark.parametrize(("gone", "symptom"), [(range(4, 8), "worker-or-node-loss"), (range(5, 9), "collective-hang")])
def test_a_whole_node_without_records_after_a_timeout_is_lost(tmp_path: Path, gone: range, symptom: str) -> None:
    folder = written([one for one in _all_waiting(16) if one.rank not in gone], tmp_path)
    assert judged(folder).verdict.symptom == "collective-hang"  # type: ignore[union-attr]
    verdict = judged(_with_timeout(folder)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks, verdict.symptom) == ("COL060", (*gone,), symptom)
