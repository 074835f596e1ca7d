"""Large jobs, of which only a part is kept: who is to blame among hundreds that were killed, aborted or lost."""

from __future__ import annotations

import pytest

from consoles import WATCHDOG, Said, of, steps, trace

DUMPED = (
    "[rank{r}]:[E1115 03:24:04.104882671 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank {r}] Received a "
    "dump signal due to a collective timeout from  rank 1 and we will try our best to dump the debug info. Last enqueued "
    "NCCL work: 23, last completed NCCL work: 23.\n"
)
ENDED = "srun: Job step aborted: Waiting up to 32 seconds for job step to finish.\n"


def test_aborts_of_ranks_without_a_file_follow_from_the_timeouts_of_others(said: Said) -> None:
    aborted = "".join(f"ERROR:composer.cli.launcher:Rank {n} crashed with exit code -6.\n" for n in range(2, 10))
    verdict = said(**{f"rank{n}.txt": steps(n) + WATCHDOG.format(r=n) for n in (0, 1)}, **{"launcher.txt": aborted})
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", ())


def test_an_abort_without_a_word_is_a_crash_where_hardly_anybody_else_aborts(said: Said) -> None:
    crashed = "ERROR:composer.cli.launcher:Rank 2 crashed with exit code -6.\n"
    verdict = said(**{f"rank{n}.txt": steps(n) + WATCHDOG.format(r=n) for n in (0, 1)}, **{"launcher.txt": crashed})
    assert (verdict.symptom, verdict.ranks) == ("native-crash", (2,))


def test_of_the_ranks_whose_files_are_kept_the_one_that_did_not_wait_is_missing(said: Said) -> None:
    files = {f"rank{n}.txt": steps(n) + WATCHDOG.format(r=n) for n in (0, 1, 12, 23, 31)}
    verdict = said(**files, **{"rank11.txt": steps(11) + "leaving the loop of stage 1\n"})
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (11,))


def test_a_rank_that_was_alive_when_the_others_gave_up_was_killed_for_it(said: Said) -> None:
    waiting = "".join(WATCHDOG.format(r=n) for n in range(8) if n != 3)
    verdict = said(steps(0) + waiting + DUMPED.format(r=3) + "srun: error: pcl225: task 3: Killed\n")
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (3,))


def test_whom_srun_kills_when_the_step_is_over_was_not_lost(said: Said) -> None:
    lost = (
        "[rank5]:[E1115 03:59:40.075507265 ProcessGroupNCCL.cpp:562] [Rank 5] Collective WorkNCCL(SeqNum=30078, "
        "OpType=_REDUCE_SCATTER_BASE, NumelIn=4026, NumelOut=251, Timeout(ms)=1800000) raised the following async "
        "exception: NCCL error: remote process exited or there was a network error, NCCL version 2.26.2\n"
    )
    killed = "".join(f"srun: error: n{n}: tasks {8 * n}-{8 * n + 7}: Killed\n" for n in range(4))
    verdict = said(steps(5) + lost + "srun: error: n0: task 5: Aborted (core dumped)\n" + ENDED + killed)
    assert verdict.symptom == "communication-runtime-error"


def test_a_host_is_numbered_by_its_rack_where_the_others_tell_how_many_stand_in_one(said: Said) -> None:
    def node(name: str, first: int) -> str:
        return "".join(f"{name}:{700 + n}:{800 + n} [{n}] NCCL INFO comm 0x1 rank {first + n} nranks 512 cudaDev {n}\n"
                       for n in range(8))  # fmt: skip

    known = node("r1n00", 0) + node("r1n12", 96) + node("r3n08", 320) + node("r4n15", 504)
    verdict = said(f"world size: 512\n{known}srun: error: Node failure on r3n05\n")
    assert verdict.ranks == tuple(range(296, 304))


def test_an_adapters_own_error_is_of_the_rank_that_reports_it(said: Said) -> None:
    world = "[2026-11-20 14:03:17,479] [INFO] [launch.py:145:main] WORLD INFO DICT: {'w-1': [0, 1], 'w-2': [0, 1]}\n"
    port = "w-2:20114:20933 [1] transport/net_ib.cc:93 NCCL WARN NET/IB : mlx5_2:1 Got async event : port error\n"
    verdict = said(f"w-1: {world}w-2: {world}w-1: ready\nw-2: {port}")
    assert (verdict.symptom, verdict.ranks) == ("communication-runtime-error", (3,))


def test_a_projects_quota_is_met_by_whoever_writes_next(said: Said) -> None:
    full = trace("OSError: [Errno 122] Disk quota exceeded", (9, "save_checkpoint", "torch.save(state, path)"))
    files = {f"rank{n}.log": steps(n) + (full if n in (1, 4) else "") for n in range(8)}
    assert said(**files).ranks == ()


def test_an_excerpt_of_an_earlier_run_below_shows_no_recovery(said: Said) -> None:
    table = "rank      : 1 (local_rank: 1)\n  exitcode  : -6 (pid: 3301)\n"
    failed = "".join(WATCHDOG.format(r=n) for n in range(4)) + f"Root Cause (first observed failure):\n[0]:\n  {table}"
    earlier = "".join(f"2025-07-13 0{n}:00:58,000 - root - INFO - step: {n} loss: 2.{n}\n" for n in range(9))
    verdict = said(f"2025-11-15 03:00:00,000 start\n{failed}{earlier}2025-07-13 10:00:00,000 - training finished\n")
    assert verdict.symptom == "collective-hang"


@pytest.mark.parametrize(("event", "reason"), [("Evict", "preempt"), ("Evict", "reclaim")])
def test_volcano_tells_which_pod_it_evicted(said: Said, event: str, reason: str) -> None:
    line = (
        f"9m10s       Normal    {event}               pod/sft-worker-3            Pod is evicted, because of {reason}\n"
    )
    verdict = said(line)
    assert (verdict.symptom, verdict.ranks) == ("worker-or-node-loss", (3,))
    assert verdict.causes[0].id == "preemption-or-scheduler-action"


def test_agents_that_each_start_their_workers_again_start_one_attempt(said: Said) -> None:
    broken = of(5, trace("RuntimeError: CUDA error: uncorrectable ECC error encountered"))
    agents = [f"[2025-05-29 13:02:05,8{n}1] [INFO] [ft_launcher88{n}@cl-h0{n}] [default] " for n in range(4)]
    again = f"{agents[1]}Worker group FAILED. 2/2 attempts left; will restart worker group\n" + "".join(
        f"{agent}Detected 1 new nodes from group_rank=0; will restart worker group\n"
        for agent in agents
        if agent != agents[1]
    )
    verdict = said("world size: 8\n" + steps(5) + again.join([broken, broken, broken]))
    assert (verdict.symptom, verdict.ranks, verdict.attempt) == ("failed-recovery", (5,), 2)
    assert verdict.causes[0].id == "hardware-fault"
