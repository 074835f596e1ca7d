"""Whom to name: the ranks where the fault was, nobody where all failed alike or where the log does not say."""

from __future__ import annotations

from pathlib import Path

import pytest

from consoles import (
    CLOSED,
    LAUNCH,
    MISSING,
    OOM,
    RESTART,
    STORE,
    TIMEOUT,
    WATCHDOG,
    Said,
    closing,
    nccl,
    of,
    steps,
    table,
    trace,
)
from paramedic import diagnose

# -- all alike -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("heard", [(2,), (1, 3), (0, 1, 2)])
def test_what_no_rank_can_import_is_nobodys_though_the_launcher_ended_the_rest(said: Said, heard: tuple[int]) -> None:
    ended = [18 + rank for rank in range(4) if rank not in heard]
    text = "".join(of(rank, trace(MISSING)) for rank in heard) + closing(*ended)
    assert said(text + table(*((rank, 1, 18 + rank) for rank in heard))).ranks == ()


def test_what_no_rank_can_import_is_nobodys_though_only_one_log_was_kept(said: Said) -> None:
    assert said(**{"rank_0.log": "world_size: 8\n" + trace(MISSING)}).ranks == ()


def test_three_of_four_out_of_memory_are_all_alike_when_the_fourth_was_ended(said: Said) -> None:
    text = "".join(of(rank, trace(OOM)) for rank in (0, 1, 3)) + closing(20)
    assert said(text + table((0, 1, 18), (1, 1, 19), (3, 1, 21))).ranks == ()


def test_of_two_ranks_in_the_middle_of_training_only_the_one_that_raised_is_named(said: Said) -> None:
    bad = "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 12: invalid start byte"
    text = steps(0, 1) + of(1, trace(bad)) + closing(18) + table((1, 1, 19), (0, -15, 18))
    assert said(text).ranks == (1,)


def test_of_two_ranks_before_any_step_the_one_that_raised_was_only_the_faster_one(said: Said) -> None:
    text = of(1, trace("KeyError: 'WANDB_PROJECT'")) + closing(18) + table((1, 1, 19), (0, -15, 18))
    assert said(text).ranks == ()


def test_one_of_four_that_raised_before_the_ranks_met_was_only_the_fastest(said: Said) -> None:
    text = trace("ValueError: unknown scheduler 'cosin'") + closing(18, 19, 20)
    assert said(text + table((3, 1, 21))).ranks == ()


def test_one_of_four_that_raised_after_the_ranks_had_met_is_named(said: Said) -> None:
    text = of(3, trace("ValueError: bad value in row 17")) + closing(18, 19, 20)
    assert said(text + table((3, 1, 21))).ranks == (3,)


def test_a_full_disk_is_the_saving_ranks_own_though_the_other_was_only_ended(said: Said) -> None:
    full = trace("OSError: [Errno 28] No space left on device", (44, "save_checkpoint", "torch.save(state, path)"))
    assert said(of(0, full) + closing(19) + table((0, 1, 18), (1, -15, 19))).ranks == (0,)


def test_a_port_in_use_is_rank_0s_though_the_other_was_only_ended(said: Said) -> None:
    used = (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. "
        "port: 29500, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use"
    )
    assert said(of(0, trace(used)) + closing(19) + table((0, 1, 18), (1, -15, 19))).ranks == (0,)


def test_ranks_without_a_device_of_their_number_are_named(said: Said) -> None:
    wrong = "torch.AcceleratorError: CUDA error: invalid device ordinal"
    text = "".join(of(rank, trace(wrong)) for rank in (2, 3)) + closing(18, 19) + table((2, 1, 20), (3, 1, 21))
    assert said(text).ranks == (2, 3)


def test_the_only_process_of_a_job_is_not_blamed(said: Said) -> None:
    assert said(steps(0) + of(0, trace(OOM)) + table((0, 1, 18))).ranks == ()
    assert said("world_size: 1\n" + of(0, trace(OOM))).ranks == ()


def test_rank_0_is_not_alone_when_others_are_merely_not_heard(said: Said) -> None:
    assert said(of(0, trace(OOM)) + closing(19, 20) + table((0, 1, 18))).ranks == (0,)


# -- somebody else's words ------------------------------------------------------------------------------------------


def test_an_unknown_message_about_another_rank_accuses_that_one(said: Said) -> None:
    words = trace("RuntimeError: Rank 2 failed to arrive at the weight exchange, all_reduce barrier timed out")
    assert said("".join(of(rank, words) for rank in (0, 1, 3))).ranks == (2,)


def test_the_job_s_mistake_is_preferred_to_what_one_rank_met_because_of_it(said: Said) -> None:
    few = (
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Could not apply FILE based sharding: the dataset "
        "only has 1 file(s), which is not enough for the required 2 shards/workers. [Op:IteratorGetNext] name: "
    )
    found = said(**{"rank__0.log": trace(few), "rank__1.log": trace("StopIteration")})
    assert (found.rule, found.ranks) == ("DATA006", ())


def test_a_timeout_and_a_closed_connection_together_accuse_the_silent_rank(said: Said) -> None:
    text = steps(0, 1, 2, 3) + of(0, trace(TIMEOUT)) + of(1, trace(TIMEOUT)) + of(3, trace(CLOSED))
    found = said(text + table((0, 1, 18), (1, 1, 19), (3, 1, 21), (2, -15, 20)))
    assert (found.symptom, found.ranks) == ("collective-hang", (2,))


def test_a_rank_that_torchruns_table_leaves_out_had_ended_well(said: Said) -> None:
    text = "".join(of(rank, trace(CLOSED)) for rank in (0, 2, 3))
    assert said(text + table((0, 1, 18), (2, 1, 20), (3, 1, 21))).ranks == (1,)


# -- hosts, processes, pods -----------------------------------------------------------------------------------------


def test_a_kernel_line_is_joined_to_its_rank_by_the_process_that_nccl_named(said: Said) -> None:
    ranks = {f"rank_{r}.log": nccl("node-b", 4000 + r, r) + ("" if r == 2 else of(r, trace(CLOSED))) for r in range(4)}
    kernel = "[Sat Nov 14 19:30:41 2026] NVRM: Xid (PCI:0000:84:00): 74, pid=4002, name=python, NVLink: fatal error detected on link 5\n"
    assert said(**ranks, **{"dmesg.txt": kernel}).ranks == (2,)


def test_a_kernel_line_without_a_process_belongs_to_the_rank_that_says_the_same(said: Said) -> None:
    ranks = {f"rank_{r}.log": WATCHDOG.format(r=r) for r in (0, 1, 2)}
    ranks["rank_3.log"] = of(3, trace(f"torch.AcceleratorError: {LAUNCH}"))
    kernel = "[Sat Nov 14 03:14:02 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    found = said(**ranks, **{"kern.log": kernel})
    assert (found.rule, found.ranks) == ("GPU003", (3,))


def test_a_kernel_line_without_a_process_belongs_to_the_rank_that_the_others_miss(said: Said) -> None:
    ranks = {f"rank_{r}.log": steps(r) + ("" if r == 1 else of(r, trace(CLOSED))) for r in range(3)}
    kernel = "[12345.7] Memory cgroup out of memory: Killed process 218847 (python) total-vm:6kB, anon-rss:3kB, file-rss:0kB\n"
    assert said(**ranks, **{"dmesg.txt": kernel}).ranks == (1,)


def test_a_kernel_line_in_a_hosts_file_is_the_only_rank_there(said: Said) -> None:
    ranks = {f"rank_{r}.log": nccl(f"gpu-{r + 1}", 400, r, 3) + steps(r) for r in range(3)}
    kernel = "[Sat Nov 14 03:14:02 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    assert said(**ranks, **{"dmesg_gpu-2.log": kernel}).ranks == (1,)


def test_a_program_that_names_host_and_rank_tells_who_was_there(said: Said) -> None:
    line = "2026-11-14 03:12:4{s},006 node-0{n} rank {r} INFO step {s} loss 1.9{s}\n"
    ranks = {f"rank_{r}.log": "".join(line.format(s=s, n=r + 1, r=r) for s in range(4)) for r in range(2)}
    kernel = (
        "[Sat Nov 14 03:14:02 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"
    )
    assert said(**ranks, **{"kernel-node-02.log": kernel}).ranks == (1,)


def test_a_host_with_several_ranks_does_not_say_whose_device_it_was(said: Said) -> None:
    ranks = {f"rank_{r}.log": nccl("gpu-1" if r < 2 else "gpu-2", 400 + r, r) + steps(r) for r in range(4)}
    kernel = "[Sat Nov 14 03:14:02 2026] NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    assert said(**ranks, **{"dmesg_gpu-2.log": kernel}).ranks == ()


def test_a_lost_node_is_all_its_ranks_where_they_are_known(said: Said) -> None:
    started = "".join(
        f"{r}: {nccl('node-a' if r < 2 else 'node-b', 4000 + r, r)}{r}: step 1 loss 2.0\n" for r in range(4)
    )
    lost = (
        "srun: error: Node failure on node-b\nslurmstepd: error: *** JOB 4711 ON node-a CANCELLED AT "
        "2026-11-14T03:14:02 DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS ***\n"
    )
    assert said(started + lost).ranks == (2, 3)
    assert said("".join(f"{r}: step 1 loss 2.0\n" for r in range(4)) + lost).ranks == ()


def test_a_time_limit_is_nobodys_though_a_node_is_named(said: Said) -> None:
    lines = nccl("node-a", 4000, 0, 2) + nccl("node-b", 4000, 1, 2) + steps(0, 1)
    assert (
        said(
            lines + "slurmstepd: error: *** STEP 4.0 ON node-a CANCELLED AT 2026-11-14T03:14:02 DUE TO TIME LIMIT ***\n"
        ).ranks
        == ()
    )


def test_a_ray_node_that_died_is_the_workers_on_its_address(said: Said) -> None:
    text = "(TrainController pid=378) Started training worker group of size 3: \n"
    for rank, node in enumerate((0, 1, 1)):
        text += f"(TrainController pid=378) - (ip=192.0.2.{2 + node}, pid={565 + rank}) world_rank={rank}, local_rank=0, node_rank={node}\n"
    text += (
        "(raylet) The node with node id: 7e1f0d5b and address: 192.0.2.3 and node name: 192.0.2.3 has been marked dead "
        "because the detector has missed too many heartbeats from it. This can happen when a raylet crashes\n"
    )
    assert said(text).ranks == (1, 2)


def test_a_pod_beside_a_master_counts_from_rank_1(said: Said) -> None:
    event = "2m          Warning   NodeNotReady  pod/train-worker-1     Node is not ready\n"
    logs = {
        "train-master-0.log": steps(0) + of(0, trace(CLOSED)),
        "train-worker-0.log": steps(1) + of(1, trace(CLOSED)),
    }
    assert said(**logs, **{"events.txt": event}).ranks == (2,)
    assert said(**logs, **{"train-worker-1.log": steps(2), "events.txt": event}).ranks == (2,)


@pytest.mark.parametrize("world", ["", ", world_size=4"])
def test_what_only_the_second_hosts_file_says_is_the_second_hosts_ranks(said: Said, world: str) -> None:
    first = f"2026-11-15 06:37:04,118 node-01 rank 1 INFO joining node-01:29500{world}\n"
    absent_file = trace("FileNotFoundError: [Errno 2] No such file or directory: '/opt/project/base.json'")
    assert said(**{"node-01.log": first, "node-02.log": absent_file * 2}).ranks == (2, 3)


def test_what_every_hosts_file_says_is_nobodys(said: Said) -> None:
    assert said(**{"node-01.log": trace(MISSING) * 2, "node-02.log": trace(MISSING) * 2}).ranks == ()


def test_an_import_that_only_fails_on_one_host_is_its_ranks(said: Said) -> None:
    hosts = "".join(nccl("node-a" if r < 2 else "node-b", 4000 + r, r) for r in range(4))
    assert said(hosts + "".join(of(rank, trace(MISSING)) for rank in (2, 3)) + closing(18, 19)).ranks == (2, 3)


# -- who never came --------------------------------------------------------------------------------------------------


def test_a_rank_that_never_joined_is_the_one_that_nobody_heard(said: Said) -> None:
    logs = {f"rank_{r}.log": "joining 10.0.0.1:29500 world_size=4\n" for r in (1, 2)}
    found = said(**logs, **{"rank_0.log": "joining 10.0.0.1:29500 world_size=4\n" + of(0, trace(STORE))})
    assert found.ranks == (3,)
    assert found.summary.startswith("Rank 0 gave up waiting")


def test_a_rank_that_never_joined_is_found_whoever_of_the_others_gave_up_first(said: Said) -> None:
    keys = "torch.distributed.DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0"
    waited = {f"rank_{r}.log": trace(keys) for r in (1, 3)}
    assert said(**waited, **{"rank_0.log": "starting\n" + trace(STORE)}).ranks == (2,)


def test_a_rank_whose_file_is_empty_never_joined(said: Said) -> None:
    logs = {f"rank_{r}.log": "joining 10.0.0.1:29500 world_size=4\n" for r in (1, 3)}
    assert said(**logs, **{"rank_0.log": of(0, trace(STORE)), "rank_2.log": ""}).ranks == (2,)


def test_launchers_that_did_not_meet_say_nothing_about_ranks(said: Said) -> None:
    frame = '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/elastic/rendezvous/static_tcp_rendezvous.py", line 67, in next_rendezvous\n'
    text = f"world_size=2\nTraceback (most recent call last):\n{frame}    self._store = TCPStore(\n{STORE.replace('3/4', '1/2')}\n"
    assert said(**{"rank_0.log": text}).ranks == ()


def test_more_heard_than_joined_accuses_nobody(said: Said) -> None:
    logs = {f"rank_{r}.log": "joining 10.0.0.1:29500 world_size=4\n" for r in (1, 2, 3)}
    assert said(**logs, **{"rank_0.log": of(0, trace(STORE))}).ranks == ()


# -- who did something else ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("others", [(1,), (1, 2)])
def test_of_tensorflow_workers_in_unlike_collectives_the_one_that_validates_is_named(
    said: Said, others: tuple[int]
) -> None:
    unlike = (
        "tensorflow.python.framework.errors_impl.InvalidArgumentError: Collective ops is aborted by: Shape mismatch in the "
        "collective instance 121. Op at device /job:worker/replica:0/task:0/device:CPU:0 expected shape [1] but another "
        "member in the group expected shape [65]. [Op:__inference_step_578]"
    )
    logs = {f"rank__{r}.log": trace(unlike, (55, "<module>", "step()"), (43, "train_step", "reduce()")) for r in others}
    logs["rank__0.log"] = trace(unlike, (59, "<module>", "check()"), (51, "validate", "reduce()"))
    assert said(**logs).ranks == (0,)


# -- restarts --------------------------------------------------------------------------------------------------------


def lost_then(message: str) -> str:
    text = steps(0, 1) + of(0, trace(CLOSED))
    text += "E1115 06:15:20.519000 16 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 19) of binary: python\n"
    again = "".join(
        of(rank, trace(message, (81, "resume", "model.load_state_dict(torch.load(path))"))) for rank in (0, 1)
    )
    return text + RESTART + again + table((0, 1, 28), (1, 1, 29))


def test_a_checkpoint_that_does_not_fit_stops_the_restart_whoever_was_lost(said: Said) -> None:
    keys = 'RuntimeError: Error(s) in loading state_dict for Sequential:\n\tMissing key(s) in state_dict: "0.weight".'
    found = said(lost_then(keys))
    assert (found.symptom, found.ranks) == ("failed-recovery", ())


def test_a_checkpoint_that_is_torn_is_that_of_the_rank_that_was_lost(said: Said) -> None:
    found = said(lost_then("EOFError: Ran out of input"))
    assert (found.symptom, found.ranks) == ("failed-recovery", (1,))


def test_the_ranks_of_the_attempt_that_is_judged_are_named(said: Said) -> None:
    first = (
        steps(0, 1, 2)
        + "E1115 06:15:20.519000 16 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 2 (pid: 20) of binary: python\n"
    )
    second = steps(0, 1, 2) + of(0, trace(OOM)) + of(1, trace(CLOSED)) + of(2, trace(CLOSED))
    assert said(first + RESTART + second + table((0, 1, 28), (1, 1, 29), (2, 1, 30))).ranks == (0,)


def test_who_says_again_and_again_what_it_waits_for_is_named_in_a_silent_set_up(said: Said) -> None:
    joined = "".join(f"10:00:0{rank} worker rank{rank} joining a job of 3\n" for rank in (1, 2, 0))
    waits = "".join(f"10:00:{10 + n} cache rank0 waiting for /data/prepare.lock\n" for n in range(5))
    found = said(joined + waits)
    assert (found.symptom, found.ranks) == ("rendezvous-setup-hang", (0,))
    assert found.causes[0].id == "resource-leak-or-retained-reference"


def test_one_line_of_waiting_names_nobody(said: Said) -> None:
    found = said("10:00:01 worker rank1 joining a job of 2\n10:00:02 cache rank0 waiting for the others\n")
    assert (found.symptom, found.ranks) == ("rendezvous-setup-hang", ())


def test_a_model_that_differs_on_one_of_three_ranks_names_it(said: Said) -> None:
    unlike = "RuntimeError: [2]: params[0] in this process with sizes [7, 4] appears not to match sizes of the same param in process 0."
    told = of(2, trace(unlike)) + of(0, trace(CLOSED)) + of(1, trace(CLOSED, (90, "main", "loss.backward()")))
    found = said(told)
    assert (found.symptom, found.ranks) == ("collective-desync", (2,))


def test_of_two_unlike_models_nobody_knows_which_is_right(said: Said) -> None:
    unlike = "RuntimeError: [1]: params[0] in this process with sizes [7, 4] appears not to match sizes of the same param in process 0."
    assert said(of(1, trace(unlike)) + of(0, trace(CLOSED))).ranks == ()


def test_a_log_that_is_called_by_a_number_is_nobodys_but_beside_others_that_count(tmp_path: Path) -> None:
    error = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    (tmp_path / "013.log").write_text(error)
    alone = diagnose(tmp_path / "013.log").verdict
    assert alone is not None
    assert alone.ranks == ()
    (tmp_path / "run").mkdir()
    for rank, text in enumerate(("step 1\n", error)):
        (tmp_path / "run" / f"{rank}.log").write_text(text)
    counted = diagnose(tmp_path / "run").verdict
    assert counted is not None
    assert counted.ranks == (1,)


def test_an_abort_after_the_watchdogs_timeout_is_no_crash_though_the_rank_is_only_named_in_its_group(
    said: Said,
) -> None:
    words = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=412, OpType=ALLREDUCE, Timeout(ms)=600000)"
    timeout = f"[E ProcessGroupNCCL.cpp:828] [Rank 1] {words} ran for 600031 milliseconds before timing out.\n"
    end = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 1 (pid: 70222) of binary: python\n"
    assert said(timeout + end).symptom == "collective-hang"


def test_old_watchdogs_show_who_did_not_come_or_stands_elsewhere(said: Said) -> None:
    words = "[E ProcessGroupNCCL.cpp:828] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 60003{r} milliseconds before timing out.\n"
    size = "| distributed init (rank 0): env://, world_size: 4\n"
    absent = said(size + "".join(words.format(r=rank, seq=412) for rank in (0, 1, 3)))
    behind = said(size + "".join(words.format(r=rank, seq=412 - (rank == 2)) for rank in range(4)))
    assert absent.ranks == behind.ranks == (2,)


def test_nobody_is_accused_where_one_of_an_unknown_number_waited(said: Said) -> None:
    assert said(WATCHDOG.format(r=1)).ranks == ()


def test_a_rank_that_says_it_never_came_to_the_call_is_the_one_awaited(said: Said) -> None:
    told = "[rank0]:[E214 06:31:13.002401090 ProcessGroupNCCL.cpp:1743] [PG ID 0 PG GUID 0(default_pg) Rank 0] Received a dump signal due to a collective timeout from rank 3 and we will try our best to dump the debug info. Last enqueued NCCL work: {}, last completed NCCL work: 23.\n"
    waiting = "".join(WATCHDOG.format(r=rank) for rank in range(1, 4))
    assert said(waiting + told.format(23)).ranks == (0,)


def test_a_traceback_without_a_name_is_of_the_one_rank_that_ended_before_the_others_were_closed(said: Said) -> None:
    end = "[2024-06-12 09:18:45,218] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 1 (pid: 9120) of binary: /opt/bin/python\n"
    found = said(steps(0, 1) + trace("OSError: [Errno 28] No space left on device") + closing(9121, 9122) + end)
    assert found.ranks == (1,)


def test_a_local_rank_is_no_rank_where_there_are_several_nodes(said: Said) -> None:
    end = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: /usr/bin/python\n"
    assert said(steps(0) + end).ranks == (2,)
    assert said("torchrun --nnodes=2 --node-rank=1 train.py\n" + steps(0) + end).ranks == ()


def test_sruns_tasks_are_launchers_where_torchrun_tells_of_its_ranks(said: Said) -> None:
    rows = table((3, -9, 71606))
    killed = "slurmstepd: error: Detected 1 oom_kill event in StepId=88410.0. Some of the step tasks have been OOM Killed.\nsrun: error: node-01: task 1: Out Of Memory\n"
    assert said(rows + killed).ranks == (3,)
    assert said(killed).ranks == (1,)


def test_an_abort_after_the_watchdogs_words_is_its_echo_under_deepspeed_too(said: Said) -> None:
    end = "[2024-09-23 14:40:52,540] [ERROR] [launch.py:325:sigkill_handler] ['/usr/bin/python3', '-u', 'train.py', '--local_rank=3'] exits with return code = -6\n"
    everybody = "".join(WATCHDOG.format(r=rank) for rank in range(4))
    assert said(everybody + end).symptom == "collective-hang"
    assert said(steps(0) + end).symptom == "native-crash"


def test_nccls_processes_are_known_by_what_they_send_and_by_their_devices(said: Said) -> None:
    sends = "".join(
        f"n1:{4000 + r}:90 [{r}] NCCL INFO Channel 22/0 : {r}[{r}] -> {r + 1}[{r + 1}] via P2P/CUMEM/read\n"
        for r in range(3)
    )
    full = "n1:4003:91 [3] include/alloc.h:178 NCCL WARN Cuda failure 'out of memory'\n"
    assert said(sends + full).ranks == (3,)
    other_group = "n1:4001:90 [1] NCCL INFO Channel 00/0 : 0[1] -> 1[3] via P2P/CUMEM/read\n"
    assert said(sends + other_group + full).ranks == ()


def test_who_is_counted_and_never_heard_is_the_one_that_did_not_join(said: Said) -> None:
    joined = "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2\n"
    assert said(
        joined
        + trace(
            "torch.distributed.DistStoreError: Timed out after 1801 seconds waiting for clients. 1/2 clients joined."
        )
    ).ranks == (1,)


@pytest.mark.parametrize(("joined", "named"), [(4, (4, 5)), (2, ())])
def test_nodes_that_nobody_launched_hold_the_ranks_that_did_not_join(
    said: Said, joined: int, named: tuple[int, ...]
) -> None:
    """Only where as many are missing as the store counts."""
    command = "n{0}: torchrun --nnodes=3 --nproc_per_node=2 --node_rank={0} --master_addr=n0 train.py\n"
    late = f"Timed out after 601 seconds waiting for clients. {joined}/6 clients joined."
    text = command.format(0) + command.format(1) + of(0, trace(f"torch.distributed.DistStoreError: {late}"))
    assert said(text).ranks == named


@pytest.mark.parametrize(("each", "named"), [(4, (4, 5, 6, 7)), (2, ())])
def test_of_a_failed_node_are_the_ranks_that_alone_say_nothing(said: Said, each: int, named: tuple[int, ...]) -> None:
    """As many as a node has: of several nodes' worth some may only have no log here."""
    command = f"+ torchrun --nnodes {8 // each} --nproc-per-node {each} --rdzv-backend c10d train.py\n"
    waited = "".join(of(rank, WATCHDOG + "\n") for rank in range(4))
    lost = "srun: error: Node failure on nid0412\n"
    assert said(command + "world size: 8\n" + waited + lost).ranks == named


def test_an_ecc_error_without_a_rank_is_that_of_the_one_that_was_aborted(said: Said) -> None:
    error = "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    assert said(error + table((1, -6, 5121))).ranks == (1,)


def test_a_task_that_was_killed_with_the_step_is_still_asked_where_it_stood(said: Said) -> None:
    behind = "[rank3]:[E1115 03:24:09.1 ProcessGroupNCCL.cpp:1484] [PG ID 0 PG GUID 0(default_pg) Rank 3] Received a dump signal due to a collective timeout from  rank 0 and we will try our best to dump the debug info. Last enqueued NCCL work: 23, last completed NCCL work: 23.\n"
    ends = "srun: error: n1: tasks 0-2: Aborted (core dumped)\nsrun: Terminating StepId=7.0\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-15T03:24:20 ***\nsrun: error: n1: task 3: Killed\n"
    verdict = said(steps(0, 1, 2, 3) + "".join(WATCHDOG.format(r=r) for r in (0, 1, 2)) + behind + ends)
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (3,))


def test_of_two_large_camps_in_unlike_calls_nobody_is_the_odd_one(said: Said) -> None:
    other = WATCHDOG.replace("ALLREDUCE", "ALLGATHER")
    camps = "".join((other if r in (0, 3, 5) else WATCHDOG).format(r=r) for r in range(8))
    assert said(steps(*range(8)) + camps).ranks == ()
    camps = "".join((other if r == 5 else WATCHDOG).format(r=r) for r in range(8))
    assert said(steps(*range(8)) + camps).ranks == (5,)


def test_an_agent_that_gives_up_has_not_started_its_workers_again(said: Said) -> None:
    ordinal = "".join(
        f"[10.0.0.9] {line}\n" for line in trace("RuntimeError: CUDA error: invalid device ordinal").splitlines()
    )
    failed = "[10.0.0.9] ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 3 (pid: 94) of binary: /opt/python\n"
    others = "".join(f"[10.0.0.4] {line}\n" for _ in range(3) for line in trace(CLOSED).splitlines())
    given_up = "[10.0.0.4] torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    assert said(ordinal + failed + others + given_up).symptom == "device-placement-error"


def test_a_loader_worker_that_the_scheduler_killed_for_memory_is_out_of_memory(said: Said) -> None:
    killed = trace("RuntimeError: DataLoader worker (pid 402) is killed by signal: Killed. ")
    told = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=9.0. Some of your processes may have been killed.\nsrun: error: n4: task 1: Out Of Memory\n"
    verdict = said(killed + told)
    assert (verdict.symptom, verdict.ranks) == ("host-out-of-memory", (1,))


@pytest.mark.parametrize(("steps", "cause"), [(103, "uneven-work-across-ranks"), (107, "collective-order-divergence")])
def test_a_rank_that_is_missed_and_has_fewer_steps_than_the_others_has_run_out(
    tmp_path: Path, steps: int, cause: str
) -> None:
    lines = [
        f"[1,{rank}]<stdout>:shard {rank}: 1712 tfrecord examples -> {steps if rank == 2 else 107} steps/epoch"
        for rank in range(4)
    ]
    lines += [
        "[1,0]<stderr>:[2022-10-18 08:48:17.268671: W horovod/common/stall_inspector.cc:107] One or more tensors were "
        "submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks "
        "for more than 60 seconds.",
        "[1,0]<stderr>:Missing ranks:",
        "[1,0]<stderr>:2: [HorovodAllreduce_grads_6_0]",
    ]
    (tmp_path / "hvd.log").write_text("\n".join(lines))
    verdict = diagnose(tmp_path / "hvd.log").verdict
    assert verdict is not None and (verdict.ranks, verdict.causes[0].id) == ((2,), cause)


def test_a_traceback_is_of_the_one_rank_that_aborted_behind_it(said: Said) -> None:
    full = "RuntimeError: [enforce fail at inline_container.cc:337] . unexpected pos 733481472 vs 733481360"
    raised = trace(full, (9, "save", "torch.save(state, path)")) + f"terminate called\n  what():  {full[14:]}\n"
    assert said(raised + closing(19) + table((0, -6, 18))).ranks == (0,)


def test_who_said_last_that_it_had_no_more_data_had_less_work(said: Said) -> None:
    logs = {f"rank{n}.log": steps(n) + WATCHDOG.format(r=n) for n in (0, 1, 3)}
    verdict = said(**logs, **{"rank2.log": steps(2) + "reached the end of the loader\nprobe 0.41, waiting\n"})
    assert (verdict.ranks, verdict.causes[0].id) == ((2,), "uneven-work-across-ranks")


def test_memory_that_the_attempt_before_has_left_taken_keeps_a_job_from_coming_back(said: Said) -> None:
    held = (
        OOM
        + " Process 51377 has 44.86 GiB memory in use. Including non-PyTorch memory, this process has 33.1 GiB memory in use."
    )
    first = of(3, steps(3) + trace("ValueError: a sample of no length"))
    verdict = said(first + RESTART + of(3, trace(held)) + table((3, 1, 31)))
    assert (verdict.symptom, verdict.ranks) == ("failed-recovery", (3,))
    assert verdict.causes[0].id == "resource-leak-or-retained-reference"


def met(first: int) -> str:
    there = ", ".join(map(str, range(first, first + 4)))
    return f"INFO:torch.distributed.elastic.agent.server.api:[default] Rendezvous complete for workers. Result:\n  global_ranks=[{there}]\n"


def test_restarts_onto_one_bad_gpu_are_of_the_rank_that_the_agent_names_by_its_place_on_the_node(said: Said) -> None:
    broken = "RuntimeError: CUDA error: uncorrectable ECC error encountered\n"
    agent = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 2 (pid: {}) of binary: python\n"
    attempts = [met(4) + broken + agent.format(pid) for pid in (31, 41, 51)]
    verdict = said(RESTART.join(attempts))
    assert (verdict.symptom, verdict.ranks) == ("failed-recovery", (6,))


def test_gpus_that_a_node_does_not_have_are_those_of_all_ranks_from_a_number_on(said: Said) -> None:
    ordinal = trace(
        "RuntimeError: CUDA error: invalid device ordinal", (41, "main", "torch.cuda.set_device(local_rank)")
    )
    rows = table(*((rank, 1, 10 + rank) for rank in (4, 5, 6, 7)))
    assert said(ordinal + closing(10, 11, 12, 13) + rows).ranks == (4, 5, 6, 7)


@pytest.mark.parametrize(("index", "ranks"), [(2, (2,)), (0, ()), (5, ())])
def test_the_number_of_a_gpu_is_the_ranks_where_one_node_has_all(
    said: Said, index: int, ranks: tuple[int, ...]
) -> None:
    full = f"RuntimeError: CUDA out of memory. Tried to allocate 1.32 GiB (GPU {index}; 15.78 GiB total capacity; 12.87 GiB already allocated)"
    assert said(trace(full) + "".join(f"Killing subprocess {pid}\n" for pid in range(3811, 3815))).ranks == ranks


def test_a_file_that_the_first_rank_opens_for_all_is_missing_for_all(said: Said) -> None:
    frame = (198, "__init__", "with open(idx_path, 'rb') as stream:")
    missing = trace("FileNotFoundError: [Errno 2] No such file or directory: '/lustre/tok/web_03.idx'", frame)
    text = missing.replace("/srv/job/run.py", "/ws/Megatron-LM/megatron/core/datasets/indexed_dataset.py")
    verdict = said("> building train, validation, and test datasets for GPT ...\n" + of(0, text))
    assert (verdict.symptom, verdict.ranks) == ("data-pipeline-failure", ())


def test_mpirun_names_one_of_several_that_crash_alike(said: Said) -> None:
    crash = "[neptun:{0}] *** Process received signal ***\n[neptun:{0}] Signal: Segmentation fault (11)\n"
    end = "mpirun noticed that process rank 1 with PID 77311 on node neptun exited on signal 11 (Segmentation fault).\n"
    assert said(crash.format(77311) + end).ranks == (1,)
    assert said(crash.format(77311) + crash.format(77312) + end).ranks == ()


NAN_ON = (
    "[rank{rank}]: AssertionError: Rank {rank}: found NaN in local grad norm in backward pass before data-parallel"
    " communication collective. Device: {device}, node: {node}\n"
)


def nan_at(rank: int, node: str) -> str:
    trace = (
        f'[rank{rank}]: Traceback (most recent call last):\n[rank{rank}]:   File "/m/train.py", line 3, in <module>\n'
    )
    return trace + NAN_ON.format(rank=rank, device=rank % 8, node=node)


def test_a_gpu_that_two_ranks_had_one_after_the_other_is_told_by_the_first(said: Said) -> None:
    again = "step 10 loss 2.0\nstep 20 loss 2.0\n"
    verdict = said("world size: 32\n" + again + nan_at(21, "n-7") + again + nan_at(5, "n-7"))
    assert (verdict.ranks, verdict.causes[0].id) == ((21,), "hardware-fault")
    verdict = said("world size: 32\n" + again + nan_at(21, "n-7") + again + nan_at(5, "n-3"))
    assert verdict.ranks == (5, 21) and verdict.causes[0].id != "hardware-fault"


def test_hydras_boxes_tell_which_rank_crashed(said: Said) -> None:
    box = (
        "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n=   RANK {rank} PID 44{rank} RUNNING AT n{rank}\n"
        "=   KILLED BY SIGNAL: {signal}\n=====\n"
    )
    ended = [(0, "6 (Aborted)"), (1, "9 (Killed)"), (3, "11 (Segmentation fault)")]
    verdict = said("world size: 4\n" + "".join(box.format(rank=rank, signal=signal) for rank, signal in ended))
    assert (verdict.rule, verdict.ranks) == ("JOB032", (3,))


def test_gpus_that_a_process_counts_are_its_ranks_where_its_host_has_two_names(said: Said) -> None:
    full = trace("torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 1 has 79 GiB")
    hosts = "".join(f"rank {n} on host box-2\n" for n in range(4))
    command = "torchrun --nproc_per_node=4 --nnodes=1 --node_rank=0 t.py on 127.0.0.1, is localhost: True"
    assert said(f"world size: 4\n{hosts}{full}Error: failed to run {command}\n").ranks == (1,)


def test_whose_loss_was_first_no_number_is_told_before_who_stopped_for_it(said: Said) -> None:
    """The first rank prints steps beside its own, the others only what is theirs; DeepSpeed's launcher counts them."""

    def own(rank: int, clock: bool) -> str:
        lines = []
        for n in range(12):
            stamp = f"2025-01-15 02:10:{n:02} " if clock else ""
            lost = n > 8 or (n == 8 and rank == 2)
            lines.append(f"{stamp}micro batch of shard {rank}: local_loss {'nan' if lost else f'1.8{n}{rank}'}\n")
            if rank == 0:
                lines.append(f"{stamp}step {100 + n} mean_loss {'nan' if n >= 8 else f'1.8{n}'} grad_norm 1.0{n}\n")
        return "".join(lines) + (trace("FloatingPointError: loss is nan for 3 steps, stopping") if rank == 0 else "")

    launcher = "".join(
        f"[2025-01-15 02:15:01,330] [INFO] [launch.py:319] Killing subprocess 188{n}\n" for n in range(4)
    )
    for clock in (True, False):
        verdict = said(**{f"out.{n}.txt": own(n, clock) for n in range(4)}, **{"launcher.txt": launcher})
        assert (verdict.symptom, verdict.ranks) == ("numerical-instability", (2,))


# -- attempts, the last of which is judged ------------------------------------------------------------------------------

BATCH = "AssertionError: global batch size (384) is not divisible by micro batch size (2) times data parallel size (5)"
AGENT = "E1115 06:15:20.519000 16 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: 1) local_rank: 0 (pid: 18) of binary: python\n"


def test_who_was_heard_in_an_earlier_attempt_alone_has_failed_like_the_others_in_the_last(said: Said) -> None:
    first = steps(0, 1, 2, 3) + of(2, trace(OOM)) + AGENT
    ends = table(*((rank, 1, 18 + rank) for rank in range(4)))
    found = said(first + RESTART + of(0, trace(BATCH)) + closing(20, 21) + ends)
    assert (found.symptom, found.ranks) == ("invalid-run-configuration", ())


def of_megatron(rank: int, node: str, restart: int) -> str:
    top = f"job 88 restart {restart}\nbegins on {node} and others\nusing world size: 16\n"
    clock = f"2025-04-2{restart}"
    said = f"RuntimeError: Rank {rank}, node {node}, device 3, iteration 18{restart}17: Unexpected result nan (message='found NaN in local grad norm for bucket #4')"
    end = f"srun: Terminating StepId=88.{restart}\nslurmstepd: error: *** STEP 88.{restart} ON n1 CANCELLED AT {clock}T05:45:40 ***\n"
    return f"{top}[{clock} 05:02:13] iteration 18010/ 500000 | lm loss: 2.1\n" + of(rank, trace(said)) + end


def test_numbers_that_go_wrong_on_one_gpu_under_another_rank_each_time_are_the_gpus(said: Said) -> None:
    found = said(of_megatron(3, "n5", 0) + of_megatron(11, "n5", 1))
    assert (found.symptom, found.causes[0].id, found.ranks) == ("numerical-instability", "hardware-fault", (11,))
    elsewhere = said(of_megatron(3, "n5", 0) + of_megatron(11, "n6", 1))
    assert elsewhere.causes[0].id != "hardware-fault"


def test_memory_that_a_process_of_the_attempt_before_holds_was_left_behind(said: Said) -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.25 GiB. GPU 1 has a total capacity of 79.25 GiB of which 912.44 MiB is free. Process {} has 62.71 GiB memory in use. Including non-PyTorch memory, this process has 15.62 GiB memory in use."
    before = steps(0, 1) + of(0, trace(OOM)) + closing(4711) + AGENT + RESTART
    ends = table((1, 1, 29))
    left = said(before + of(1, trace(full.format(4711))) + ends)
    assert (left.causes[0].id, left.ranks) == ("resource-leak-or-retained-reference", (1,))
    bound = said(before + of(1, trace(full.format(99))) + ends)
    assert bound.causes[0].id == "resource-leak-or-retained-reference"  # it is on a GPU of its own, with a stranger
    on_the_first = full.format(99).replace("GPU 1", "GPU 0")
    assert said(before + of(1, trace(on_the_first)) + ends).causes[0].id == "device-assignment-error"


# -- jobs that were begun more than once ----------------------------------------------------------------------------

LAUNCHED = "W1115 {clock} 17 torch/distributed/run.py:793] Setting OMP_NUM_THREADS environment variable for each process to be 1\n"
LEFT = "E1115 06:15:21.000000 16 torch/distributed/elastic/multiprocessing/api.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 19) of binary: python\n"
OTHER_SIZE = "RuntimeError: The checkpoint being loaded used a DP world size of 4 but the current world size is 2."


def test_a_checkpoint_that_does_not_fit_a_new_start_is_that_starts_own_failure(said: Said) -> None:
    first = (
        LAUNCHED.format(clock="06:15:00.000000") + steps(0, 1, 2, 3) + of(1, trace(CLOSED)) + LEFT + table((1, -9, 19))
    )
    again = LAUNCHED.format(clock="07:15:00.000000") + "".join(of(rank, trace(OTHER_SIZE)) for rank in (0, 1))
    verdict = said(first + again + table((0, 1, 28), (1, 1, 29)))
    assert (verdict.symptom, verdict.attempt) == ("checkpoint-resume-failure", 1)


def test_an_attempt_may_have_fewer_ranks_as_it_says_itself(said: Said) -> None:
    first = LAUNCHED.format(clock="06:15:00.000000") + "world_size: 4\n" + steps(0, 1, 2, 3) + LEFT + table((1, -9, 19))
    again = LAUNCHED.format(clock="07:15:00.000000") + "world_size: 2\n"
    again += "".join(of(rank, trace(OTHER_SIZE)) for rank in (0, 1))
    assert said(first + again + table((0, 1, 28), (1, 1, 29))).ranks == ()


def test_nothing_fails_to_recover_from_what_an_attempt_in_between_made_up_for(said: Said) -> None:
    torn = "EOFError: Ran out of input"
    trained = "".join(f"2026-11-15 06:25:0{s},830 INFO rank 0 step {s} loss 1.9{s}\n" for s in range(4))
    first = of(1, trace("ValueError: a sample of no length")) + RESTART + trained + RESTART
    again = "".join(of(r, trace(torn, (81, "resume", "model.load_state_dict(torch.load(path))"))) for r in (0, 1))
    verdict = said(first + again + table((0, 1, 28), (1, 1, 29)))
    assert verdict.symptom == "checkpoint-resume-failure"


def test_a_folder_that_an_exchanged_node_lacks_is_missed_by_all_its_ranks(said: Said) -> None:
    lost = "srun: error: Node failure on n2\nslurmstepd: error: *** STEP 7.0 ON n1 CANCELLED AT 2026-11-15T06:20:00 DUE TO NODE FAILURE ***\n"
    met = "".join(f"n{rank // 2 + 1} rank {rank}/4\n" for rank in range(4))
    first = LAUNCHED.format(clock="06:10:00.000000") + "world_size: 4\n" + met + steps(0, 1, 2, 3) + lost
    missing = trace("FileNotFoundError: [Errno 2] No such file or directory: '/shared/job.yaml'")
    chdir = "slurmstepd-n3: error: couldn't chdir to `/shared/job': No such file or directory: going to /tmp instead\n"
    row = table((3, 1, 29)).replace("node-01", "n3").replace("local_rank: 3", "local_rank: 1")
    again = LAUNCHED.format(clock="06:40:00.000000") + chdir + of(3, missing)
    verdict = said(first + again + row)
    assert (verdict.symptom, verdict.ranks) == ("path-or-permission-error", (2, 3))


SPOT = "ERROR:root:failed to activate new hosts -> stop running\n"


def elastic(code: int, words: str) -> str:
    gone = "".join(f"Process {rank} exit with status code {code}.\n" for rank in (2, 3))
    lines = "".join(f"[0]<stdout>:step {n} loss 1.{n}\n" for n in range(9))
    return f"{lines}{words}{gone}WARNING:root:blacklist failing host: h2\n{lines}"


def test_a_driver_that_finds_no_more_room_misses_those_to_whose_host_its_ssh_broke(said: Said) -> None:
    verdict = said(elastic(255, "").rpartition("[0]<stdout>:step 0")[0] + "\n" * 8 + SPOT)
    assert (verdict.symptom, verdict.ranks) == ("failed-recovery", (2, 3))


def test_what_a_cloud_does_not_give_is_nobodys_leftover(said: Said) -> None:
    short = "An error occurred (InsufficientInstanceCapacity) when calling the RunInstances operation\n"
    broken = f"[1]<stderr>:{CLOSED}\n"
    verdict = said(elastic(255, broken).rpartition("[0]<stdout>:step 0")[0] + "\n" * 8 + short + SPOT)
    assert (verdict.symptom, verdict.causes[0].id) == ("failed-recovery", "preemption-or-scheduler-action")


def agent(host: int, *then: str) -> str:
    ranks = f"{host * 2}, {host * 2 + 1}"
    return (
        "I1115 06:15:00.000000 9 torch/distributed/elastic/agent/server/api.py:525] [default] Rendezvous complete for "
        f"workers. Result:\n  restart_count=0\n  group_rank={host}\n  group_world_size=3\n  global_ranks=[{ranks}]\n"
        f"  global_world_sizes=[6, 6]\n" + "".join(then)
    )


def test_of_hosts_that_meet_again_the_one_that_does_not_is_named(said: Said) -> None:
    waits = trace("torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError")
    logs = {f"h{n}.log": "world_size: 6\n" + agent(n, of(n * 2, trace(CLOSED)), RESTART, waits) for n in (0, 1)}
    verdict = said(**logs, **{"h2.log": agent(2)})
    assert (verdict.symptom, verdict.ranks) == ("failed-recovery", (4, 5))


def test_one_process_of_nccls_in_a_file_of_several_ranks_is_nobodys_in_particular(said: Said) -> None:
    warns = "n1:5150:5159 [2] transport/p2p.cc:278 NCCL WARN Cuda failure 220 'uncorrectable NVLink error detected during the execution'\n"
    peer = "[rank5]:[E1115 03:24:03.104882671 ProcessGroupNCCL.cpp:2068] [Rank 5] Process group watchdog thread terminated with exception: NCCL error: unhandled cuda error\n"
    broken = of(
        2, trace("torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution")
    )
    assert said("world_size: 8\n" + steps(0) + warns + broken + peer).ranks == (2,)


def test_a_rank_that_ends_first_in_each_attempt_and_once_says_why_is_on_a_broken_part(said: Said) -> None:
    agent = "[2026-11-15 06:1{n}:00,000] [ERROR] [ft_launcher51@n2] failed (exitcode: {code}) local_rank: 1 (pid: {n}9) of binary: python\n"
    again = "[2026-11-15 06:1{n}:01,000] [INFO] [ft_launcher51@n2] [default] Worker group FAILED. 2/2 attempts left; will restart worker group\n"
    broken = of(1, trace("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"))
    text = steps(0) + agent.format(n=1, code=-9) + again.format(n=1)
    text += steps(0) + broken + agent.format(n=2, code=1) + again.format(n=2)
    verdict = said(text + steps(0) + agent.format(n=3, code=-9) + table((1, -9, 39), (0, -9, 38)))
    assert (verdict.symptom, verdict.ranks, verdict.attempt) == ("failed-recovery", (1,), 2)


def test_memory_that_the_ranks_of_this_attempt_take_from_each_other_was_not_left_behind(said: Said) -> None:
    held = OOM + "".join(f" Process {pid} has 19.6 GiB memory in use." for pid in (30, 31, 33))
    first = of(3, steps(3) + trace("ValueError: a sample of no length"))
    load = (61, "resume", "torch.load(path)")
    again = of(2, trace(held, load)) + of(1, trace(held.replace("31", "32"), load)) + closing(30, 31, 33)
    verdict = said(first + RESTART + again + table((2, 1, 32)))
    assert (verdict.symptom, verdict.ranks) == ("device-out-of-memory", (2,))
    assert verdict.causes[0].id == "device-assignment-error"


def test_a_host_whose_log_nobody_has_does_not_make_the_others_the_odd_ones(said: Said) -> None:
    damaged = "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"
    raised = {n: "".join(of(r, trace(damaged)) for r in (2 * n, 2 * n + 1)) for n in (0, 2)}
    logs = {f"w-{n}.log": "world_size: 6\n" + agent(n) + raised[n] for n in (0, 2)}
    assert said(**logs).ranks == ()


def test_a_pod_of_a_set_of_jobs_stands_for_as_many_ranks_as_its_agent_ended(said: Said) -> None:
    """Its name has the number of its job, its own, and letters that are drawn anew for each start."""
    told = "4m  Warning  NodeShutdown  pod/vq-worker-0-1-k7x2b  Pod was terminated in response to imminent node shutdown.\n"
    shut = "W1115 06:15:19.000000 1 torch/distributed/elastic/agent/server/api.py:719] Received 15 death signal, shutting down workers\n"
    logs = {
        "vq-worker-0-0.log": "world_size: 8\n" + steps(0) + of(0, trace(CLOSED)),
        "vq-worker-0-1.log": shut + closing(30, 31, 32, 33),
    }
    verdict = said(**logs, **{"events.txt": told})
    assert (verdict.symptom, verdict.ranks) == ("worker-or-node-loss", (4, 5, 6, 7))


def test_a_launcher_without_room_was_left_by_a_cloud_that_had_said_so(said: Said) -> None:
    notice = "[2]<stderr>:spot-watch: instance-action=terminate time=2026-03-02T11:04:28Z\n"
    verdict = said(elastic(255, notice).rpartition("[0]<stdout>:step 0")[0] + "\n" * 8 + SPOT)
    assert (verdict.ranks, verdict.causes[0].id) == ((2, 3), "preemption-or-scheduler-action")


_UCX = "{r}: [gpu1:{r}43:1:900] rndv.c:943  Fatal: failed to unpack rendezvous remote key received from peer: Input/output error\n"


def test_a_rank_that_srun_ended_after_another_had_crashed_was_not_the_one_that_was_lost(said: Said) -> None:
    console = "0: world_size 2\n1: step 3 loss 0.5\n" + _UCX.format(r=0)
    ended = "srun: error: gpu1: task {}: {}\n"
    verdict = said(
        console + ended.format(0, "Aborted") + "srun: Terminating job step 7.0\n" + ended.format(1, "Terminated")
    )
    assert (verdict.rule, verdict.ranks, verdict.causes[0].id) == ("COL068", (0,), "network-fabric-fault")
    lost = said(console + ended.format(1, "Terminated") + ended.format(0, "Aborted"))
    assert lost.ranks == (1,)
