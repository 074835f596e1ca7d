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
from recordings import Rank, job, judged, run_of, written

Fault = Callable[[int], list[Rank]]


def _training(size: int = 4, groups: dict[str, list[int]] | None = None) -> list[Rank]:
    ranks = job(size, groups)
    for one in ranks:
        for _ in range(6):
            one.call("all_reduce", (8,), line=20).call("_reduce_scatter_base", (16,), line=21)
    return ranks


def _missing(bad: int) -> list[Rank]:
    ranks = _training()
    for one in ranks:
        if one.rank != bad:
            one.call("all_reduce", (8,), line=20, done=False)
    return ranks


def _type(bad: int) -> list[Rank]:
    ranks = _training()
    for one in ranks:
        one.call("broadcast" if one.rank == bad else "all_reduce", (8,), line=77 if one.rank == bad else 20, done=False)
    return ranks


def _shape(bad: int) -> list[Rank]:
    ranks = _training()
    for one in ranks:
        one.call("all_reduce", (9 if one.rank == bad else 8,), line=20, done=False)
    return ranks


def _dtype(bad: int) -> list[Rank]:
    ranks = _training()
    for one in ranks:
        one.call("all_reduce", (8,), dtype="Half" if one.rank == bad else "Float", line=20, done=False)
    return ranks


def _skipped(bad: int) -> list[Rank]:
    ranks = _training()
    for one in ranks:
        if one.rank != bad:
            one.call("all_reduce", (8,), line=20, done=False)
        one.call("_reduce_scatter_base", (16,), line=21, done=False)
    return ranks


def _ahead(bad: int) -> list[Rank]:
    ranks = _training()
    ranks[bad].call("all_reduce", (1,), line=99, done=False)
    return ranks


def _root(bad: int) -> list[Rank]:
    ranks = _training()
    for finished in (True, False):
        for one in ranks:
            root = one.rank == (bad + 1) % 4 or (not finished and one.rank == bad)
            one.call("gather", (2,), outs=[[2]] * 4 if root else [], done=finished)
    return ranks


def _group(bad: int) -> list[Rank]:
    ranks = _training(4, {"1": [0, 1, 2, 3]})
    for one in ranks:
        one.call("all_reduce", (8,), group="1" if one.rank == bad else "0", done=False)
    return ranks


def _tensor_parallel(bad: int) -> list[Rank]:
    """The bad rank is stuck before its tensor group's call; its peer, and then all data groups, are late."""
    tensor, data = {"1": [0, 1], "2": [2, 3]}, {"3": [0, 2], "4": [1, 3]}
    ranks = _training(4, tensor | data)
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
    "missing": _missing, "type": _type, "shape": _shape, "dtype": _dtype, "order": _skipped, "ahead": _ahead,
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
    verdict = judged(written(_missing(1), tmp_path, missing=1)).verdict
    assert verdict is not None
    assert verdict.ranks == (1,)


def _peers() -> list[Rank]:
    ranks = _training()
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
    ranks = _training()
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
    ranks = _missing(3)
    for one in ranks:
        one.entries = one.entries[one.rank + 2 :]
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == (3,)


def test_two_camps_of_equal_size_accuse_nobody(tmp_path: Path) -> None:
    ranks = _training()
    for one in ranks:
        one.call("all_reduce" if one.rank < 2 else "barrier", (3,), done=False)
    verdict = judged(written(ranks, tmp_path)).verdict
    assert verdict is not None
    assert verdict.ranks == ()


def test_of_two_ranks_what_came_before_decides(tmp_path: Path) -> None:
    ranks = _training(2)
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
    folder = written(_missing(2), tmp_path / "job", missing=2)
    (folder / "job.log").write_text(
        "[rank2]: Traceback (most recent call last):\n"
        '[rank2]:   File "/job/train.py", line 3, in step\n'
        "[rank2]: ValueError: the label is negative\n"
    )
    verdict = judged(folder).verdict
    assert verdict is not None
    assert not verdict.rule.startswith("COL03")
    assert verdict.ranks == (2,)


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
