"""Records of collectives beside what else was brought: counts, clocks, stacks, logs of nodes and pods, a monitor's line."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramedic.detect.traces import differences
from paramedic.knowledge import load
from paramedic.model import Finding
from paramedic.pipeline import Options, compile_prefilter, examine, read
from recordings import Rank, job, judged, missing, run_of, training, written

KNOWLEDGE = load()
PREFILTER = compile_prefilter(KNOWLEDGE)

TIMED_OUT = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=13, OpType=ALLREDUCE, Timeout(ms)=60000) ran for 60081 milliseconds before timing out."  # fmt: skip


def _said(folder: Path) -> Finding:
    verdict = judged(folder).verdict
    assert verdict is not None
    return verdict


def _likely(verdict: Finding) -> str:
    return verdict.causes[0].id


# -- dumps of active calls alone ----------------------------------------------------------------------------------------


def _active(ranks: list[Rank], folder: Path, counts: dict[int, tuple[int, int]], number: str = "1") -> Path:
    """As `onlyactive=true` gives it: what is finished is left out, and each group tells how far it has come."""
    folder.mkdir(parents=True)
    for one in ranks:
        enqueued, completed = counts[one.rank]
        status = {"last_enqueued_collective": str(enqueued), "last_completed_collective": str(completed)}
        for entry in one.entries:
            entry["pg_id"] = int(number)
        entries = [{**entry, "record_id": entry["record_id"] + 500} for entry in one.entries if not entry["retired"]]
        (folder / f"{one.rank}.json").write_text(
            json.dumps({**one.dump(), "entries": entries, "pg_status": {number: status}, "rank": one.rank})
        )
    return folder


def _sharded(waits: set[int]) -> list[Rank]:
    ranks = job(4, {"7": [0, 1, 2, 3]})
    for one in ranks:
        for _ in range(20):
            one.call("all_reduce", (8,), group="7")
        if one.rank in waits:
            one.call("all_reduce", (8,), group="7", done=False)
    return ranks


def test_a_rank_without_active_calls_that_has_come_less_far_is_missing(tmp_path: Path) -> None:
    counts = dict.fromkeys(range(4), (21, 20)) | {2: (20, 20)}
    verdict = _said(_active(_sharded({0, 1, 3}), tmp_path / "job", counts))
    assert (verdict.rule, verdict.ranks, verdict.symptom) == ("COL031", (2,), "collective-hang")


def test_dumps_of_active_calls_that_were_taken_one_after_the_other_accuse_nobody(tmp_path: Path) -> None:
    """Rank 2 had called what rank 3 has completed by its own count: it was only asked earlier."""
    counts = {0: (21, 20), 1: (21, 20), 2: (18, 18), 3: (25, 24)}
    assert judged(_active(_sharded({0, 1}), tmp_path / "job", counts)).verdict is None


# -- a log that goes on -------------------------------------------------------------------------------------------------

_MADE = 1_750_000_000  # 15:06:40 UTC


def _called_at(ranks: list[Rank], when: int) -> list[Rank]:
    for one in ranks:
        for entry in one.entries:
            entry["time_created_ns"] = when * 10**9
    return ranks


@pytest.mark.parametrize(("first", "named"), [((15, 6, 30), True), ((15, 7, 30), False), ((20, 37, 30), False)])
def test_who_is_waited_for_while_it_saves_is_not_missing_if_the_log_goes_on(
    tmp_path: Path, first: tuple[int, int, int], named: bool
) -> None:
    """Whichever zone the log's clock has."""
    hour, minute, second = first
    folder = written(_called_at(missing(0), _MADE), tmp_path)
    lines = [f"{hour:02}:{minute:02}:{second + at:02} upd {1840 + at} xent 2.9{at} wps 174k" for at in range(8)]
    (folder / "job.log").write_text("\n".join(lines) + "\n")
    verdict = judged(folder).verdict
    assert (verdict.ranks if verdict else ()) == ((0,) if named else ())


# -- pipelines ----------------------------------------------------------------------------------------------------------


def _micro_batches(stages: int, sends: int) -> list[Rank]:
    """Steps of four micro-batches forwards and backwards; then stage 0 sends fewer than the others await."""
    ranks = job(stages)
    for step in range(3):
        for _ in range(4 if step < 2 else sends):
            for at in range(stages - 1):
                ranks[at].call(f"send {at}->{at + 1}", line=48)
                ranks[at + 1].call(f"recv {at + 1}<-{at}", line=35)
        for _ in range(4 if step < 2 else 0):
            for at in range(stages - 1, 0, -1):
                ranks[at].call(f"send {at}->{at - 1}", line=66)
                ranks[at - 1].call(f"recv {at - 1}<-{at}", line=57)
    ranks[0].call("recv 0<-1", line=57, done=False)
    for at in range(1, stages):
        ranks[at].call(f"recv {at}<-{at - 1}", line=35, done=False)
    return ranks


def test_a_stage_that_only_hands_on_what_it_gets_is_not_named(tmp_path: Path) -> None:
    verdict = _said(written(_micro_batches(4, sends=3), tmp_path))
    assert (verdict.ranks, verdict.symptom, _likely(verdict)) == ((0,), "collective-hang", "uneven-work-across-ranks")


def _replicas(more: int) -> list[Rank]:
    """Two pipelines of three stages, each with four micro-batches; the last stage of one awaits another one."""
    ranks = job(6, {"7": [0, 2, 4], "8": [1, 3, 5]})
    for step in range(3):
        for first in (0, 1):
            group, stages = str(7 + first), [ranks[first + 2 * at] for at in range(3)]
            for _ in range(4):
                for at in (0, 1):
                    stages[at].call(f"send {at}->{at + 1}", group=group)
                    stages[at + 1].call(f"recv {at + 1}<-{at}", group=group)
            if step == 2 and stages[2].rank == more:
                stages[2].call("recv 2<-1", group=group, done=False)
                stages[1].call("recv 1<-2", group=group, done=False)
                stages[0].call("recv 0<-1", group=group, done=False)
                continue
            for _ in range(4):
                for at in (2, 1):
                    stages[at].call(f"send {at}->{at - 1}", group=group)
                    stages[at - 1].call(f"recv {at - 1}<-{at}", group=group)
    for one in ranks:
        if one.rank % 2 != more % 2:
            one.call("all_reduce", (8,), done=False)
    return ranks


@pytest.mark.parametrize("more", [4, 5])
def test_a_stage_that_awaits_more_than_the_same_stage_of_another_replica_is_named(tmp_path: Path, more: int) -> None:
    verdict = _said(written(_replicas(more), tmp_path))
    assert (verdict.ranks, verdict.symptom, _likely(verdict)) == (
        (more,),
        "collective-hang",
        "uneven-work-across-ranks",
    )


@pytest.mark.parametrize("odd", [2, 3])
def test_of_two_who_differ_the_one_who_does_as_groups_of_its_kind_is_right(tmp_path: Path, odd: int) -> None:
    ranks = job(4, {"7": [0, 1], "8": [2, 3]})
    for one in ranks:
        group = "7" if one.rank < 2 else "8"
        for size in (8, 16, 8, 32):
            one.call("all_reduce", (size,), group=group)
        last = 64 if one.rank == odd else 128
        one.call("all_reduce", (last,), group=group, done=one.rank < 2)
    verdict = _said(written(ranks, tmp_path))
    assert (verdict.symptom, verdict.ranks) == ("collective-desync", (odd,))


def test_two_that_both_send_first_hang_and_nothing_differs(tmp_path: Path) -> None:
    ranks = training(2)
    ranks[0].call("send 0->1", line=31, done=False)
    ranks[1].call("send 1->0", line=31, done=False)
    verdict = _said(written(ranks, tmp_path))
    assert (verdict.rule, verdict.symptom, verdict.ranks) == ("COL035", "collective-hang", ())


# -- exchanges, shards, revisions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rows", "named"), [(6, (2,)), (4, ())])
def test_an_exchange_in_which_more_is_awaited_than_is_sent_is_told(
    tmp_path: Path, rows: int, named: tuple[int, ...]
) -> None:
    """Each may bring and take another number; all together take what all bring."""
    ranks = training()
    for one in ranks:
        takes = {0: 3, 1: 5, 2: rows, 3: 4}[one.rank]
        one.call("all_to_all", (4, 2), outs=[[takes, 2]], line=90 if one.rank == 2 else 80, done=False)
    found = [one for one in differences(run_of(written(ranks, tmp_path))) if one.kind == "shape"]
    assert [one.ranks for one in found] == ([named] if named else [])


@pytest.mark.parametrize(("op", "cause"), [("_all_gather_base", "model-construction-error"), ("all_gather", "")])
def test_shards_of_the_parameters_that_differ_come_from_models_that_do(tmp_path: Path, op: str, cause: str) -> None:
    ranks = training()
    for one in ranks:
        size = 100_096 if one.rank == 1 else 100_000
        one.call(op, (size,), outs=[[4 * size]], line=88, done=False)
    verdict = _said(written(ranks, tmp_path))
    assert (verdict.rule, verdict.ranks) == ("COL033", (1,))
    assert (_likely(verdict) == "model-construction-error") == bool(cause)


def _with_callers(ranks: list[Rank], shifted: set[int]) -> list[Rank]:
    for one in ranks:
        for entry in one.entries:
            own = entry["frames"][-1]
            by = -9 if one.rank in shifted else 0
            caller = {"name": "fit", "filename": own["filename"], "line": 230 + by}
            entry["frames"] = [*entry["frames"][:-1], {**own, "line": own["line"] + by}, caller]
    return ranks


def test_ranks_whose_lines_all_differ_run_another_revision(tmp_path: Path) -> None:
    """The third node saves without the check that the others make: who has the older program went another way."""
    ranks = training(6, {"1": [*range(6)]})
    for one in ranks:
        if one.rank < 4:
            one.call("all_gather", (1,), group="1", line=88, outs=[[6, 1]], done=False)
        else:
            one.call("all_reduce_barrier", (1,), line=90, done=False)
    nobody = _said(written(ranks, tmp_path / "alike"))
    assert nobody.ranks == ()
    verdict = _said(written(_with_callers(ranks, {4, 5}), tmp_path / "other"))
    assert (verdict.ranks, verdict.symptom) == ((4, 5), "collective-desync")
    for one in ranks:
        one.entries[-1]["frames"][-1]["name"] = "save_shards"
    saving = _said(written(ranks, tmp_path / "saving"))
    assert (saving.ranks, saving.symptom, _likely(saving)) == ((4, 5), "collective-hang", "cross-node-environment-skew")


@pytest.mark.parametrize(("function", "named"), [("step", (0,)), ("validate", ())])
def test_of_two_ranks_the_one_that_evaluates_for_the_first_time_may_be_right(
    tmp_path: Path, function: str, named: tuple[int, ...]
) -> None:
    ranks = training(2)
    ranks[0].call("all_reduce_barrier", (1,), line=119, done=False)
    ranks[0].entries[-1]["frames"][-1]["name"] = function
    ranks[1].call("all_reduce", (8,), line=20, done=False)
    assert _said(written(ranks, tmp_path)).ranks == named


# -- stacks -------------------------------------------------------------------------------------------------------------

_HEAD = "Process {pid}: python train.py\nPython v3.12.1 (/usr/bin/python3.12)\n\n"


def _stack(pid: int, *frames: str) -> str:
    shown = "".join(f"    {frame}\n" for frame in (*frames, "<module> (train.py:60)"))
    return _HEAD.format(pid=pid) + f'Thread {pid} (idle): "MainThread"\n{shown}\n'


_UPLOADS = ("create_connection (urllib3/util/connection.py:73)", "put (botocore/client.py:569)", "export (train.py:44)")
_REDUCES = ("all_reduce (torch/distributed/distributed_c10d.py:2810)", "step (train.py:20)")


@pytest.mark.parametrize("name", ["spy_2.txt", "pyspy_r002.txt"])
def test_a_number_in_the_name_of_a_stack_is_the_rank_that_the_records_know(tmp_path: Path, name: str) -> None:
    folder = written(missing(2), tmp_path)
    (folder / name).write_text(_stack(4711, *_UPLOADS))
    verdict = _said(folder)
    assert verdict.ranks == (2,)
    assert "train.py:44 in export" in verdict.summary
    assert _likely(verdict) == "storage-or-external-service-fault"


def test_a_number_that_is_the_process_is_no_rank(tmp_path: Path) -> None:
    folder = written(missing(2), tmp_path)
    (folder / "spy_3.txt").write_text(_stack(3, *_UPLOADS))
    assert "train.py:44" not in _said(folder).summary


@pytest.mark.parametrize(("others", "known"), [(_REDUCES, True), (_UPLOADS, False)])
def test_the_one_process_that_stands_elsewhere_is_the_rank_that_is_missing(
    tmp_path: Path, others: tuple[str, ...], known: bool
) -> None:
    folder = written(missing(2), tmp_path)
    stacks = [_stack(300 + at, *(_UPLOADS if at == 1 else others)) for at in range(4)]
    (folder / "stacks_of_all.txt").write_text("".join(stacks))
    assert ("train.py:44 in export" in _said(folder).summary) == known


def test_workers_that_wait_for_a_lock_since_their_fork_are_a_defect(tmp_path: Path) -> None:
    folder = written(missing(2), tmp_path)
    frames = ("wait (threading.py:359)", "result (torch/_inductor/codecache.py:3320)", "forward (train.py:30)")
    worker = ("_acquireLock (logging/__init__.py:239)", "_process_worker (concurrent/futures/process.py:240)")
    (folder / "rank2.txt").write_text(_stack(90, *frames) + _stack(91, *worker) + _stack(92, *worker))
    verdict = _said(folder)
    assert "train.py:30 in forward" in verdict.summary  # the rank's own place, and not its workers'
    assert _likely(verdict) == "framework-implementation-defect"


def test_a_stack_of_a_strangers_recording_need_not_say_whose_it_is(tmp_path: Path) -> None:
    folder = written(missing(2), tmp_path)
    (folder / "rank2.txt").write_text(_stack(90, *_UPLOADS))
    run = read([str(folder)], PREFILTER)
    bare = [replace(one, fields={k: v for k, v in one.fields.items() if k != "main"}) for one in run.events]
    report = examine(replace(run, events=tuple(bare)), KNOWLEDGE, PREFILTER, Options())
    assert report.verdict is not None
    assert report.verdict.ranks == (2,)


def test_what_the_kernel_says_of_the_storage_outweighs_that_loaders_may_just_be_slow(tmp_path: Path) -> None:
    folder = written(missing(2), tmp_path)
    frames = ("_try_get_data (torch/utils/data/dataloader.py:1251)", "__next__ (torch/utils/data/dataloader.py:708)")
    (folder / "rank2.txt").write_text(_stack(90, *frames, "train (train.py:30)"))
    assert _likely(_said(folder)) == "uneven-work-across-ranks"
    (folder / "dmesg.txt").write_text("[Thu Jun 19 21:40:18 2025] nfs: server stor-b not responding, still trying\n")
    assert _likely(_said(folder)) == "storage-or-external-service-fault"


# -- logs beside ----------------------------------------------------------------------------------------------------------


def test_a_monitor_that_could_not_take_the_interpreters_lock_tells_why_its_rank_is_missing(tmp_path: Path) -> None:
    folder = written(missing(1), tmp_path)
    line = "[rank{}]:[E ProcessGroupNCCL.cpp:1919] [PG ID 0 PG GUID 0(default_pg) Rank {}] Could not acquire GIL within 300 ms on exit, possible GIL induced hang\n"
    (folder / "job.log").write_text(line.format(1, 1))
    verdict = _said(folder)
    assert (verdict.rule, verdict.ranks, _likely(verdict)) == ("COL031", (1,), "framework-implementation-defect")


@pytest.mark.parametrize(("limit", "cause"), [(60_000, True), (1_800_000, False)])
def test_a_bar_that_moves_on_after_the_timeout_tells_that_the_limit_is_short(
    tmp_path: Path, limit: int, cause: bool
) -> None:
    ranks = missing(0)
    for one in ranks:
        for entry in one.entries:
            entry["timeout_ms"] = limit
    folder = written(ranks, tmp_path)
    bars = [f"generate: {at}%|##   | {at}/100 [00:{at}<01:30,  4.12it/s]\n" for at in range(10, 60, 5)]
    said = "".join(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:629] [Rank {rank}] {TIMED_OUT}\n" for rank in (1, 2, 3))
    (folder / "job.log").write_text("".join(bars[:5]) + said + "".join(bars[5:]))
    verdict = _said(folder)
    assert (verdict.rule, verdict.ranks) == ("COL031", (0,))
    likely = {one.id: one.probability for one in verdict.causes}
    assert (likely.get("communication-backend-misconfiguration", 0.0) > 0.1) == cause


def test_a_node_that_slurm_lost_has_the_ranks_that_left_no_record(tmp_path: Path) -> None:
    ranks = training(16)
    for one in ranks:
        one.call("all_reduce", (8,), line=20, done=False)
    folder = written([one for one in ranks if one.rank not in range(4, 8)], tmp_path)
    said = f"[rank0]:[E ProcessGroupNCCL.cpp:629] [Rank 0] {TIMED_OUT}\nsrun: error: Node failure on nid000917\n"
    (folder / "job.log").write_text(said)
    verdict = _said(folder)
    assert (verdict.rule, verdict.ranks) == ("JOB013", (4, 5, 6, 7))


def test_a_pod_has_the_ranks_that_speak_in_the_file_named_after_it(tmp_path: Path) -> None:
    for pod in (0, 2, 3):
        said = "".join(f"[rank{rank}]:[E ProcessGroupNCCL.cpp:629] [Rank {rank}] {TIMED_OUT}\n" for rank in range(4 * pod, 4 * pod + 4))  # fmt: skip
        (tmp_path / f"logs_asr-worker-{pod}.txt").write_text(said)
    (tmp_path / "logs_asr-worker-1.txt").write_text("worker 1 ready, 4 gpus\n")
    lost = "8m12s   Normal   Preempted   pod/asr-worker-1   Preempted by pod 0b6c1d0e-6a5a on node ip-10-3-77-14\n"
    (tmp_path / "events.txt").write_text(lost)
    ranks = training(16)
    for one in ranks:
        one.call("all_reduce", (8,), line=20, done=False)
    folder = written([one for one in ranks if one.rank not in range(4, 8)], tmp_path)
    verdict = _said(folder)
    assert (verdict.rule, verdict.ranks) == ("JOB011", (4, 5, 6, 7))


def test_a_collective_that_the_library_gave_up_with_an_error_is_that_error(tmp_path: Path) -> None:
    """The first that fails tells all others to write their records: that is no timeout of theirs."""
    ranks = training(4)
    for one in ranks:
        one.call("all_reduce", (8,), line=20, done=False)
        for entry in one.entries:
            entry["timeout_ms"] = 1_800_000
    folder = written(ranks, tmp_path)
    warned = "gpu-a:4182:4231 [1] transport/net_ib.cc:2281 NCCL WARN NET/IB: Got completion from peer 10.3.4.2<5261> with status=IBV_WC_RETRY_EXC_ERR(12) opcode=IBV_WC_SEND(0) vendor_err=129 req_type=Send hca mlx5_1\n"
    told = "[rank{}]:[E ProcessGroupNCCL.cpp:1682] [PG ID 0 PG GUID 0(default_pg) Rank {}] Observed flight recorder dump signal from another rank via TCPStore.\n"
    (folder / "job.log").write_text(f"[rank1]: {warned}" + "".join(told.format(r, r) for r in (0, 2, 3)))
    assert _said(folder).symptom == "communication-runtime-error"


def test_counts_that_are_no_numbers_are_nothing(tmp_path: Path) -> None:
    ranks = missing(1)
    for one in ranks:
        dump: dict[str, Any] = one.dump()
        dump["pg_status"] = {"0": {"last_enqueued_collective": "many", "last_completed_collective": [1]}, "1": None}
        (tmp_path / f"nccl_trace_rank_{one.rank}").write_bytes(pickle.dumps(dump, 2))
    assert _said(tmp_path).ranks == (1,)
