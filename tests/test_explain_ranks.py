"""Whom to name: the ranks where the fault was, nobody where all failed alike or where the log does not say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.model import Finding

Said = Callable[..., Finding]

GLOO = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"
CLOSED = (
    GLOO
    + "pair.cc:553] Connection closed by peer [127.0.0.1]:20911. This is typically caused by a remote worker crashing."
)
TIMEOUT = GLOO + "unbound_buffer.cc:78] Timed out waiting 30000ms for recv operation to complete"
STORE = "torch.distributed.DistStoreError: Timed out after 61 seconds waiting for clients. 3/4 clients joined."
MISSING = "ModuleNotFoundError: No module named 'flash_attn'"
OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free."
)
LAUNCH = "CUDA error: unspecified launch failure"
WATCHDOG = (
    "[rank{r}]:[E1115 03:24:03.104882671 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=24, OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=600000) ran for 600071 "
    "milliseconds before timing out.\n"
)
RESTART = "I1115 06:15:20.519000 16 torch/distributed/elastic/agent/server/api.py:906] [default] Worker group FAILED. 1/1 attempts left; will restart worker group\n"


@pytest.fixture
def said(tmp_path: Path) -> Said:
    def verdict(console: str = "", **files: str) -> Finding:
        for name, text in ({"console.log": console} if console else files).items():
            (tmp_path / name.replace("__", "-")).write_text(text, "utf-8")
        found = diagnose(tmp_path).verdict
        assert found is not None
        return found

    return verdict


def trace(message: str, *frames: tuple[int, str, str]) -> str:
    calls = frames or ((70, "main", "train(model)"),)
    shown = "".join(f'  File "/srv/job/run.py", line {line}, in {name}\n    {code}\n' for line, name, code in calls)
    return f"Traceback (most recent call last):\n{shown}{message}\n"


def of(rank: int, text: str) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


def steps(*ranks: int) -> str:
    return "".join(f"2026-11-15 06:15:0{s},830 INFO rank {r} step {s} loss 1.9{s}\n" for s in range(4) for r in ranks)


def closing(*pids: int) -> str:
    line = "W1115 06:15:20.354000 16 torch/distributed/elastic/multiprocessing/api.py:1028] Sending process {} closing signal SIGTERM\n"
    return "".join(line.format(pid) for pid in pids)


def table(*rows: tuple[int, int, int]) -> str:
    """The first row is torchrun's root cause: (rank, exit code, pid)."""
    shown = [
        f"[{at}]:\n  time      : 2026-11-15_06:15:20\n  host      : node-01\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : {code} (pid: {pid})\n  error_file: <N/A>\n  traceback : -\n"
        for at, (rank, code, pid) in enumerate(rows)
    ]
    others = "".join(shown[1:]) or "  <NO_OTHER_FAILURES>\n"
    rule = "-" * 60
    return f"{'=' * 60}\nrun.py FAILED\n{rule}\nFailures:\n{others}{rule}\nRoot Cause (first observed failure):\n{shown[0]}{'=' * 60}\n"


def nccl(host: str, pid: int, rank: int, of_all: int = 4) -> str:
    return f"{host}:{pid}:{pid + 9} [0] NCCL INFO comm 0x55 rank {rank} nranks {of_all} cudaDev 0 busId 1000 - Init COMPLETE\n"


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


def test_an_ecc_error_without_a_rank_is_that_of_the_one_that_was_aborted(said: Said) -> None:
    error = "[E ProcessGroupNCCL.cpp:916] [Rank 1] NCCL watchdog thread terminated with exception: CUDA error: uncorrectable ECC error encountered\n"
    assert said(error + table((1, -6, 5121))).ranks == (1,)


# -- which file, host or process is which rank ---------------------------------------------------------------------


def test_files_that_count_are_ranks_where_some_say_who_they_are(said: Said) -> None:
    others = {f"mae_{n}.log": f"| distributed init (rank {n}): env://, gpu {n}\n" for n in (1, 2, 3)}
    assert said(**others, **{"mae_0.log": trace(OOM), "free.txt": "total used\n"}).ranks == (0,)


def test_files_that_merely_count_are_not_ranks(said: Said) -> None:
    assert said(**{"try_0.log": steps(0), "try_1.log": trace(OOM)}).ranks == ()


def test_one_file_that_says_its_rank_joins_those_that_are_named_after_theirs(said: Said) -> None:
    full = trace("OSError: [Errno 28] No space left on device", (9, "save_checkpoint", "torch.save(state, path)"))
    others = {f"rank{n}.log": WATCHDOG.format(r=n) for n in (1, 2, 3)}
    verdict = said(**others, **{"nohup.out": "Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/4\n" + full})
    assert (verdict.symptom, verdict.ranks) == ("checkpoint-save-failure", (0,))


def test_what_tail_prints_of_several_files_is_read_as_those_files(said: Said) -> None:
    parts = [f"==> logs/rank_{n}.log <==\n{trace(OOM) if n == 2 else steps(n)}\n" for n in range(3)]
    verdict = said("$ tail -n 20 logs/*\n" + "".join(parts))
    assert verdict.ranks == (2,)
    assert verdict.evidence[0].event.source.endswith("console.log/logs/rank_2.log")
    assert verdict.evidence[0].event.line == 1 + 6 + 6 + 5, "as counted in the file that was given"


def test_determineds_lines_are_of_the_rank_that_they_name(said: Said) -> None:
    own = "".join(f"[2026-05-17T08:12:01.160350Z] b8d0e2c1 || [rank=5] {line}\n" for line in trace(OOM).splitlines())
    verdict = said("".join(f"[2026-05-17T08:12:00Z] 3f7c10aa || [rank={n}] step 1 loss 2\n" for n in range(4)) + own)
    assert verdict.ranks == (5,)


def test_deepspeeds_list_of_hosts_tells_whose_ranks_failed(said: Said) -> None:
    world = "[2026-11-20 14:03:17,479] [INFO] [launch.py:145:main] WORLD INFO DICT: {'w-1': [0, 1], 'w-2': [0, 1]}\n"
    failed = "".join(f"w-2: {line}\n" for line in trace(MISSING).splitlines())
    assert said(f"w-1: {world}w-2: {world}w-1: ready\n{failed}{failed}w-1: step 1\n").ranks == (2, 3)


def test_a_node_that_slurm_lost_has_the_ranks_of_its_place_in_the_list(said: Said) -> None:
    lost = "srun: error: Node failure on nid003\n"
    ended = "".join(f"srun: error: nid00{n + 1}: tasks {4 * n}-{4 * n + 3}: Terminated\n" for n in (0, 1, 3))
    assert said(f"job 77 on nid[001-004], 16 GPUs\nstep 1 loss 2.0\n{lost}{ended}").ranks == (8, 9, 10, 11)


def test_a_worker_that_ray_killed_is_the_rank_that_its_name_says(said: Said) -> None:
    why = (
        "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\n"
        "Memory on the node (IP: 10.4.3.7, ID: 51c9) where the task (actor ID: d9cc, name=Zap0WorkerDict_1:3, pid=423,"
        " memory used=121.46GB) was running was 957.11GB / 1007.40GB (0.95), which exceeds the memory usage threshold of 0.95.\n"
    )
    assert said(f"trainer.n_gpus_per_node=8\nstep:31 - actor/pg_loss:0.004\n{why}").ranks == (11,)


def test_rays_files_are_of_the_rank_whose_process_wrote_them(said: Said) -> None:
    driver = "".join(
        f"(TorchTrainer pid=50, ip=10.2.0.5) - (node_id=9c{n}, ip=10.2.0.5, pid={2100 + n}) world_rank={n}, local_rank={n}, node_rank=0\n"
        for n in range(3)
    )
    assert said(**{"driver.txt": driver, "worker-5d1b-01000000-2102.err": trace("ValueError: odd batch")}).ranks == (2,)


def test_sagemakers_prefix_names_the_rank(said: Said) -> None:
    own = "".join(f"[1,mpirank:8,algo-2]<stderr>:{line}\n" for line in trace(OOM).splitlines())
    assert said(f"[1,mpirank:0,algo-1]<stdout>:step 1 loss 2.0\n{own}").ranks == (8,)


def test_of_several_that_say_the_same_nobody_is_named_where_the_rest_is_not_heard(said: Said) -> None:
    failed = "torch._dynamo.exc.BackendCompilerFailed: backend='inductor' raised:\nAssertionError: bad graph"
    assert said("world_size: 8\n" + of(2, trace(failed)) + of(5, trace(failed))).ranks == ()


def test_a_few_lines_after_the_agents_word_are_no_new_attempt(said: Said) -> None:
    agent = (
        "E0515 06:22:10.981000 7021 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "
        "local_rank: 0 (pid: 7103) of binary: /opt/venv/bin/python\n"
    )
    verdict = said(of(8, trace("IndexError: list index out of range")) + agent + WATCHDOG.format(r=0))
    assert verdict.ranks == (8,)


def test_a_pod_in_which_a_launcher_starts_several_ranks_is_no_rank(said: Said) -> None:
    start = "+ exec torchrun --nnodes=2 --nproc_per_node=2 --rdzv_backend=c10d train.py\n"
    lost = "3m12s   Warning   NodeNotReady   pod/moe-worker-1   Node is not ready\n"
    logs = {f"moe-worker-{n}.log": start + "step 1 loss 2.0\n" for n in (0, 1)}
    assert said(**logs, **{"events.txt": "LAST SEEN   TYPE   REASON   OBJECT   MESSAGE\n" + lost}).ranks == (2, 3)


def test_a_rank_that_became_slow_in_the_middle_is_named(said: Said) -> None:
    def line(rank: int, step: int) -> str:
        slow = rank == 2 and step >= 8
        return (
            f"step {step} | step_time 1.7s | fwd_bwd {1.6 if slow else 0.7}s | allreduce_wait {0.1 if slow else 1.0}s\n"
        )

    verdict = said(**{f"rank{r}.log": "".join(line(r, step) for step in range(16)) for r in range(4)})
    assert (verdict.symptom, verdict.ranks) == ("straggler-or-imbalance", (2,))


def test_a_gpu_that_the_kernel_names_is_of_the_rank_that_nccl_says(said: Said) -> None:
    buses = ("18000", "2a000", "7000", "ab000")
    started = "".join(
        f"gpu-0{1 + n // 2}:{900 + n}:{950 + n} [{n % 2}] NCCL INFO ncclCommInitRankConfig comm 0x55d{n} rank {n} nranks 4"
        f" cudaDev {n % 2} nvmlDev {n % 2} busId {bus} commId 0x7f1 - Init START\n"
        for n, bus in enumerate(buses)
    )
    kernel = "[81234.5] NVRM: Xid (PCI:0000:ab:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
    verdict = said(**{"job.log": started + steps(0), "dmesg-gpu-02.txt": kernel})
    assert (verdict.symptom, verdict.ranks) == ("accelerator-fault", (3,))


def test_a_gpu_that_the_kernel_names_is_of_the_rank_in_its_place_on_the_node(said: Said) -> None:
    table = "".join(
        f"|   {n}  NVIDIA A100-SXM4-80GB          On  | 00000000:{bus}:00.0 Off |                    0 |\n"
        for n, bus in enumerate(("0F", "47"))
    )
    hosts = "".join(f"rank {n} on host n{1 + n // 2}\n" for n in range(4))
    kernel = "[81234.5] NVRM: Xid (PCI:0000:47:00): 95, pid=71, Uncontained ECC error\n"
    files = {"job.log": hosts + steps(0), "nvidia-smi-n2.txt": table, "dmesg-n2.txt": kernel}
    assert said(**files).ranks == (3,)


def test_the_tables_of_torchrun_tell_which_rank_a_local_prefix_means(said: Said) -> None:
    own = "".join(f"[default1]:{line}\n" for line in trace(OOM).splitlines())
    rows = "".join(
        f"[{n}]:\n  time      : 2026-02-20_19:31:58\n  host      : pluto-2\n  rank      : {12 + n} (local_rank: {n})\n"
        f"  exitcode  : 1 (pid: {2123 + n})\n  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
        for n in (0, 1)
    )
    bar = "=" * 60 + "\n"
    table = f"torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n{bar}run.py FAILED\nFailures:\n{rows}{bar}"
    assert said("using world size: 16, data-parallel size: 16\n" + own + table).ranks == (13,)


def test_a_node_that_is_told_to_end_has_the_ranks_that_its_agent_was_given(said: Said) -> None:
    met = "".join(
        f"[pod/llm-worker-{n}/pytorch] [default] Rendezvous complete for workers. Result: restart_count=0 group_rank={n}"
        f" group_world_size=3 global_ranks=[{2 * n}, {2 * n + 1}] global_world_sizes=[6, 6]\n"
        for n in range(3)
    )
    gone = "[pod/llm-worker-1/pytorch] W0909 14:41:10.2 1 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, shutting down workers\n"
    assert said(met + gone + "[pod/llm-worker-0/pytorch] [rank0]: waiting\n").ranks == (2, 3)


def test_who_did_not_join_is_named_where_the_others_said_where_they_are(said: Said) -> None:
    here = "".join(f"rank {n}: init_process_group(nccl, env://) world_size=4 host=gx3{n}\n" for n in range(3))
    why = "torch.distributed.DistStoreError: Timed out initializing process group in store based barrier on rank {}, for key: store_based_barrier_key:1 (world_size=4, num_workers_joined=3, timeout=0:30:00)"
    assert said(here + trace(why.format(0)) + trace(why.format(2))).ranks == (3,)


def test_who_says_that_its_own_communicator_was_aborted_leaves_the_first_traceback_to_the_rank_that_ended(
    said: Said,
) -> None:
    aborted = "RuntimeError: NCCL communicator was aborted on rank {}.  Original reason for failure was: NCCL error: unhandled system error, NCCL version 2.10.3"
    first = trace("ValueError: image 3 has no mask")
    said_before = "INFO:root:rank 2 caught ValueError, exiting\n"
    ended = "".join(
        f"WARNING:torch.distributed.elastic.multiprocessing.api:Sending process {210 + n} closing signal SIGTERM\n"
        for n in (0, 1, 3)
    )
    agent = "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 2 (pid: 212) of binary: /usr/bin/python3\n"
    others = "".join(trace(aborted.format(n)) for n in (0, 3, 1))
    assert said("8 workers, 4 ranks\n" + first + said_before + others + ended + agent).ranks == (2,)


def test_a_program_may_tag_its_lines_with_a_bare_R(said: Said) -> None:
    text = "".join(
        f"11/05 10:0{step}:10 [R{n}] Epoch [3][{step}00/12811] loss 4.9{n} data_time {0.67 if n == 2 else 0.005} total 1.281\n"
        for step in range(1, 9)
        for n in range(4)
    )
    verdict = said(text)
    assert (verdict.symptom, verdict.ranks) == ("straggler-or-imbalance", (2,))


def test_what_composers_launcher_prints_of_a_rank_is_that_ranks(said: Said) -> None:
    def printed(rank: int, code: int, text: str) -> str:
        head = f"Global rank {rank} (PID {310 + rank}) exited with code {code}\n"
        return f"{head}----------Begin global rank {rank} STDERR----------\n{text}----------End global rank {rank} STDERR----------\n"

    ended = trace("RuntimeError: DataLoader worker (pid 402) is killed by signal: Terminated. ")
    text = "".join(printed(n, -15, ended) for n in range(3)) + printed(3, 1, trace("ValueError: image 7 is empty"))
    assert said("[batch=1/4800]:\n" + text).ranks == (3,)


def test_who_is_killed_when_slurm_ends_the_step_was_not_lost(said: Said) -> None:
    out = "torch.distributed.DistBackendError: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600009 milliseconds before timing out."
    waits = "".join(f"{n}: [rank{n}]: {line}\n" for n in range(3) for line in trace(out).splitlines())
    ends = "srun: error: n1: tasks 0-2: Aborted (core dumped)\n"
    step = "slurmstepd: error: *** STEP 771204.0 ON n1 CANCELLED AT 2026-10-03T02:01:50 ***\n"
    killed = "srun: error: n2: task 3: Killed\n"
    assert said(f"0: step 1 loss 2\n{waits}{ends}{step}{killed}").symptom == "collective-hang"
    assert said(f"0: step 1 loss 2\n{killed}{waits}{ends}{step}").symptom == "worker-or-node-loss"


def test_ranks_that_lost_a_peer_did_not_stay_away_from_the_collective(said: Said) -> None:
    out = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600009 milliseconds before timing out."
    waits = "".join(f"[rank{n}]:[E ProcessGroupNCCL.cpp:616] [Rank {n}] {out}\n" for n in range(6))
    others = "".join(f"[rank{n}]: NCCL WARN Connection closed by remote peer 10.0.0.1<5012>\n" for n in (6, 7))
    begun = "world size: 8\nstep 1 loss 2.0\nstep 2 loss 1.9\n"
    assert said(begun + waits).ranks == (6, 7)
    assert said(begun + waits + others).ranks == ()


def test_processes_of_two_pods_may_have_the_same_number(said: Said) -> None:
    lost = of(0, trace(CLOSED)) + table((0, 1, 14))
    verdict = said(**{"bert-master-0.log": steps(0) + lost, "bert-worker-0.log": steps(1) + table((1, -9, 14))})
    assert (verdict.rule, verdict.ranks) == ("JOB002", (1,))


def test_a_pod_in_which_nobody_says_his_rank_has_as_many_as_the_pods_beside_it(said: Said) -> None:
    lost = "torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1275, remote process exited or there was a network error, NCCL version 2.20.5"
    pods = {f"bert-worker-{n}.log": steps(0) + "".join(of(2 * n + k, trace(lost)) for k in (0, 1)) for n in (0, 1)}
    events = "9m   Normal   Preempted   pod/bert-worker-2   Preempted by pod 1f0d9f2e-11c0 on node np-4\n"
    verdict = said(**pods, **{"bert-worker-2.log": "fetching\n", "kubectl_events.txt": events})
    assert (verdict.symptom, verdict.ranks) == ("worker-or-node-loss", (4, 5))


def test_the_rank_that_still_tries_to_read_is_the_one_that_the_others_wait_for(said: Said) -> None:
    out = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=_ALLGATHER_BASE, NumelIn=1, NumelOut=8, Timeout(ms)=600000) ran for 600009 milliseconds before timing out."
    tries = "".join(
        f"[rank5]:2026-08-05 12:22:5{n} WARNING - Got disconnected from remote data host. Retrying in 5sec [{n}/1000]\n"
        for n in range(6)
    )
    waits = "".join(f"[rank{n}]:[E0805 12:33:00.6 ProcessGroupNCCL.cpp:616] [Rank {n}] {out}\n" for n in (0, 2, 7))
    verdict = said("64 ranks\nstep 1 loss 2.0\n" + tries + waits)
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (5,))
    assert verdict.causes[0].id == "storage-or-external-service-fault"


def test_torchtitans_role_makes_tees_prefix_look_like_torchs(said: Said) -> None:
    command = "+ torchrun --nnodes 2 --nproc_per_node 2 --role rank --tee 3 -m torchtitan.train\n"
    table = (
        "============================================================\ntorchtitan.train FAILED\n"
        "------------------------------------------------------------\nRoot Cause (first observed failure):\n[0]:\n"
        "  time      : 2025-03-11_22:10:22\n  host      : n1\n  rank      : 2 (local_rank: 0)\n  exitcode  : 1 (pid: 798)\n"
        "  error_file: <N/A>\n  traceback : To enable traceback see: https://pytorch.org\n"
        "============================================================\n"
    )
    going = "".join(f"[rank{local}]:[titan] step: {n} loss: 2.{n}\n" for n in range(6) for local in range(2))
    raised = "".join(f"[rank0]:{line}\n" for line in trace(OOM).splitlines())
    assert said(command + going + raised + table).ranks == (2,)


def test_deepspeeds_launcher_says_which_process_is_which_rank(said: Said) -> None:
    spawned = "".join(
        f"n{node}: [2024-06-09 00:44:22,000] [INFO] [launch.py:152:main] nnodes=2, num_local_procs=2, node_rank={node}\n"
        + "".join(
            f"n{node}: [2024-06-09 00:44:22,000] [INFO] [launch.py:256:main] process {900 + 10 * node + local} spawned with "
            f"command: ['/opt/python', '-u', 'sft.py', '--local_rank={local}', '--zero', '3']\n"
            for local in range(2)
        )
        for node in range(2)
    )
    killed = "[1839211.482500] Out of memory: Killed process 911 (python) total-vm:254002108kB, anon-rss:155011108kB\n"
    assert said(**{"console.log": spawned + steps(0), "dmesg_n1.txt": killed}).ranks == (3,)


def test_tensorflows_own_setting_says_whose_log_it_is(said: Said) -> None:
    cluster = '{"cluster": {"worker": ["a:1", "b:1", "c:1"]}, "task": {"type": "worker", "index": %d}}'
    files = {f"worker_{name}.log": f"TF_CONFIG={cluster % n}\n" for n, name in enumerate("abc")}
    files["worker_c.log"] += trace(MISSING)
    assert said(**files).ranks == (2,)


def test_tasks_of_a_node_lead_from_its_place_in_slurms_list_to_ranks(said: Said) -> None:
    told = "JOB 12 nodelist gpu-[0101-0102,0140-0141] ntasks-per-node=4\nsrun: error: Node failure on gpu-0140\n"
    assert said(told).ranks == (8, 9, 10, 11)


def test_an_abort_among_aborts_of_ranks_that_timed_out_is_one_of_them(said: Said) -> None:
    waited = "".join(WATCHDOG.format(r=rank) for rank in (1, 2, 3, 5))
    rows = "".join(
        f"[{n}]:\n  time      : 2025-06-02_19:32:17\n  host      : p4\n  rank      : {rank} (local_rank: {rank})\n"
        f"  exitcode  : -6 (pid: {990 + rank})\n  error_file: <N/A>\n  traceback : Signal 6 (SIGABRT) received by PID {990 + rank}\n"
        for n, rank in enumerate((1, 2, 3, 4, 5))
    )
    line, rule = "-" * 60, "=" * 60
    table = f"{rule}\ntrain.py FAILED\n{line}\nFailures:\n{rows}{line}\nRoot Cause (first observed failure):\n[0]:\n{rule}\n"
    assert said("world_size=6\n" + steps(*range(6)) + waited + table).symptom == "collective-hang"


def test_one_voice_without_a_name_is_that_of_the_rank_whom_all_others_miss(said: Said) -> None:
    waited = "".join(WATCHDOG.format(r=rank) for rank in (0, 1, 3))
    assert said("world_size=4\n" + steps(*range(4)) + trace(MISSING) + waited).ranks == (2,)


def test_a_bus_error_is_that_of_the_rank_whose_gpu_it_was(said: Said) -> None:
    nccl = "".join(
        f"n{n}:23:25 [0] NCCL INFO ncclCommInitRank comm 0x5 rank {n} nranks 3 cudaDev 0 nvmlDev 4 busId 9b000 commId 0x8\n"
        for n in range(3)
    )
    broken = "[1.000001] pcieport 0000:98:01.0: AER: Uncorrected (Fatal) error received: 0000:9b:00.0\n"
    assert said(**{"console.log": nccl + steps(0, 1, 2), "dmesg-n2.txt": broken}).ranks == (2,)


def test_a_killed_loader_worker_is_only_out_of_memory_where_the_kernel_says_so(said: Said) -> None:
    killed = of(1, trace("RuntimeError: DataLoader worker (pid 402) is killed by signal: Killed. "))
    lost = of(0, trace(CLOSED))
    verdict = said(**{"job.log": steps(0, 1) + killed + lost})
    assert (verdict.symptom, verdict.ranks) == ("data-pipeline-failure", (1,))
    assert "dmesg" in verdict.fixes[0].action["run"] and "402" in verdict.fixes[0].action["run"]
    verdict = said(**{"dmesg.txt": "[812345.671] Out of memory: Killed process 402 (pt_data_worker) total-vm:9kB\n"})
    assert (verdict.symptom, verdict.ranks) == ("host-out-of-memory", (1,))


INTERRUPT = "W1117 02:36:46.438000 93 torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down workers\n"
BACKWARD = """Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward
    return Variable._execution_engine.run_backward(
"""


def interrupted(rank: int, line: int, code: str, *below: str) -> str:
    frames = "".join(f'  File "/opt/venv/lib/python3.11/site-packages/{frame}\n    call()\n' for frame in below)
    return of(
        rank,
        'Traceback (most recent call last):\n  File "/srv/run.py", line 59, in <module>\n    main()\n'
        f'  File "/srv/run.py", line {line}, in main\n    {code}\n{frames}KeyboardInterrupt\n',
    )


def in_backward(rank: int) -> str:
    frame = 'torch/autograd/graph.py", line 989, in _engine_run_backward'
    lost = of(rank, BACKWARD + CLOSED + "\n") + "\n"
    chained = of(rank, "During handling of the above exception, another exception occurred:") + "\n"
    return lost + chained + interrupted(rank, 53, "loss.backward()", frame)


def test_the_tracebacks_of_an_interrupted_job_show_whom_the_others_waited_for(said: Said) -> None:
    sleeps = interrupted(1, 45, "time.sleep(600)")
    verdict = said(steps(0, 1, 2) + INTERRUPT + sleeps + in_backward(0) + in_backward(2))
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (1,))
    assert verdict.summary.startswith("Rank 1 sleeps at /srv/run.py:45") and "interrupted" in verdict.summary
    loads = interrupted(1, 41, "for x, y in loader:", 'torch/utils/data/dataloader.py", line 725, in __next__')
    verdict = said(steps(0, 1, 2) + INTERRUPT + loads + in_backward(0) + in_backward(2))
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (1,))


def test_who_stops_a_job_that_trains_has_not_seen_it_fail(tmp_path: Path) -> None:
    forward = 'torch/nn/modules/linear.py", line 134, in forward'
    works = "".join(interrupted(n, 41, "loss = model(x)", forward) for n in (0, 1))
    lost = of(2, trace(CLOSED))
    ends = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 93 got signal: 2\n"
    (tmp_path / "job.log").write_text(steps(0, 1, 2) + INTERRUPT + works + lost + ends, "utf-8")
    report = diagnose(tmp_path)
    assert report.verdict is None
    assert [one.rule for one in report.findings] == ["JOB055"]
    assert any("interrupted by hand" in one.why for one in report.suppressed)


def test_what_failed_before_somebody_interrupted_the_job_is_its_failure(said: Said) -> None:
    works = interrupted(0, 41, "loss = model(x)")
    verdict = said(steps(0, 1) + of(1, trace(OOM)) + INTERRUPT + works)
    assert (verdict.symptom, verdict.ranks) == ("device-out-of-memory", (1,))


def test_a_file_that_is_missing_on_the_only_host_is_no_difference_between_nodes(said: Said) -> None:
    missing = of(1, trace("FileNotFoundError: [Errno 2] No such file or directory: '/data/train-1.bin'"))
    verdict = said("world size: 2\n" + missing + of(0, trace(CLOSED)) + table((1, 1, 401), (0, -15, 400)))
    assert (verdict.symptom, verdict.ranks) == ("path-or-permission-error", (1,))
    assert verdict.causes[0].id == "launcher-or-rank-misconfiguration"


def test_no_scheduler_is_asked_where_there_is_none(said: Said) -> None:
    asked = [fix.action.get("run", "") for fix in said(steps(0, 1) + table((1, -9, 401))).fixes]
    assert "dmesg" in asked[0] and not any("sacct" in one for one in asked)
    asked = [
        fix.action.get("run", "")
        for fix in said("SLURM_JOB_ID=7\n" + steps(0, 1) + table((1, -9, 401)) + "slurmstepd: error: x\n").fixes
    ]
    assert "sacct" in asked[0]


OLD_WATCHDOG = (
    "[E ProcessGroupNCCL.cpp:475] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1208, "
    "OpType={op}, NumelIn=1, NumelOut=1, Timeout(ms)=1800000) ran for 1800202 milliseconds before timing out.\n"
)
OLD_END = "  what():  [Rank {r}] NCCL watchdog thread terminated with exception: " + OLD_WATCHDOG.partition("] ")[2]


def test_the_old_watchdogs_second_line_about_a_call_does_not_make_it_two_groups(said: Said) -> None:
    timeouts = "".join(OLD_WATCHDOG.format(r=r, op="ALLREDUCE") for r in range(1, 8))
    ends = "".join(OLD_END.format(r=r, op="ALLREDUCE") for r in range(1, 8))
    found = said(timeouts + ends)
    assert (found.rule, found.ranks) == ("COL013", (0,))


def test_data_that_one_rank_still_prepares_is_uneven_work(said: Said) -> None:
    bars = "".join(
        f"Map (num_proc=1):  {p}%|█   | {p}000/100000 [01:{p}<02:00, 13.1 examples/s]\n" for p in (10, 20, 30)
    )
    timeouts = "".join(OLD_WATCHDOG.format(r=r, op="ALLREDUCE") for r in range(1, 8))
    assert said(bars + timeouts).causes[0].id == "uneven-work-across-ranks"


def test_the_rank_in_another_call_of_the_same_number_is_the_odd_one(said: Said) -> None:
    """It has been told of the others' timeout before it has one itself."""
    told = "[rank3]:[E1115 03:24:03.104 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank 3] Observed flight recorder dump signal from another rank via TCPStore.\n"
    others = "".join(WATCHDOG.format(r=r) for r in (0, 1, 2))
    found = said(others + told + WATCHDOG.format(r=3).replace("ALLREDUCE", "ALLGATHER"))
    assert (found.rule, found.ranks) == ("COL013", (3,))


@pytest.mark.parametrize(
    "day, cause", [("15", "storage-or-external-service-fault"), ("02", "collective-order-divergence")]
)
def test_what_the_kernel_complains_of_the_same_day_is_the_likely_cause_of_a_hang(
    said: Said, day: str, cause: str
) -> None:
    stamped = "2026-11-15 03:24:03 "
    logs = {f"rank_{r}.log": stamped + WATCHDOG.format(r=r) for r in (0, 1, 2)}
    idle = {"rank_3.log": stamped + "step 24 loss 1.9\n"}
    kernel = {
        "dmesg__n1.txt": f"2026-11-{day}T03:20:01,000000+00:00 nfs: server nas3 not responding, still trying\n" * 3
    }
    found = said(**logs, **idle, **kernel)
    assert (found.symptom, found.ranks, found.causes[0].id) == ("collective-hang", (3,), cause)


def info(host: str, rank: int, device: int, said: str) -> str:
    return f"{host}:41{rank}:42{rank} [{device}] NCCL INFO {said}\n"


def begun(host: str, rank: int, device: int, size: int, bus: str) -> str:
    said = f"ncclCommInitRank comm 0x5{rank} rank {rank} nranks {size} cudaDev {device} nvmlDev {device} busId {bus}"
    return info(host, rank, device, said + " commId 0x7c - Init START")


def test_an_address_that_only_its_own_host_can_reach_is_the_fault_of_who_gave_it_out(said: Said) -> None:
    log = "".join(begun(f"gpu{31 + r // 2}", r, r % 2, 4, f"{r + 1}1000") for r in range(4))
    log += "".join(info("gpu31", r, r, "Bootstrap : Using eno1:10.1.4.31<0>") for r in (0, 1))
    log += "".join(info("gpu32", r, r - 2, "Bootstrap : Using docker0:172.17.0.1<0>") for r in (2, 3))
    refused = (
        "misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 172.17.0.1<51007> failed : Connection refused"
    )
    found = said(log + f"gpu31:410:420 [0] {refused}\n")
    assert (found.ranks, found.hosts) == ((2, 3), ("gpu32",))
    assert found.causes[0].id == "network-interface-or-firewall-misconfiguration"
    assert found.summary.startswith(
        "The others, to whom gpu32 gave an address inside its own host, could not connect to 172.17.0.1"
    )


@pytest.mark.parametrize("devices, named", [((0, 1, 2, 2), (3,)), ((0, 0, 0, 0), ())])
def test_of_two_ranks_on_one_gpu_the_one_is_named_that_has_not_the_gpu_of_its_place(
    said: Said, devices: tuple[int, ...], named: tuple[int, ...]
) -> None:
    buses = [f"{device + 1}b000" for device in devices]
    log = "".join(begun("box", r, devices[r], 4, buses[r]) for r in range(4))
    pairs = [(a, b) for a in range(4) for b in range(4) if a != b and devices[a] == devices[b]]
    warned = (
        "box:41{}:42 [0] init.cc:943 NCCL WARN Duplicate GPU detected : rank {} and rank {} both on CUDA device {}\n"
    )
    assert said(log + "".join(warned.format(a, a, b, buses[a]) for a, b in pairs)).ranks == named


def test_a_checkpoint_quotes_those_that_could_not_write_on_all(said: Said) -> None:
    torch = "/lib/python3.11/site-packages/torch/distributed/checkpoint/"
    full = trace("OSError: [Errno 28] No space left on device", (419, "_write_files_from_queue", "os.fsync(stream)"))
    quote = full.replace("last):", "last): (RANK {})").replace("/srv/job/run.py", torch + "filesystem.py")
    told = "torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([2, 3])"
    raised = trace(told, (360, "_save_state_dict", "return distW.all_reduce()"))
    raised = raised.replace("/srv/job/run.py", torch + "state_dict_saver.py")
    found = said("".join(of(rank, raised + quote.format(2) + quote.format(3)) for rank in range(4)))
    assert (found.symptom, found.ranks) == ("checkpoint-save-failure", (2, 3))


def test_only_the_first_rank_listens_for_the_others(said: Said) -> None:
    message = "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. The server socket has failed to bind to [::]:29500 (errno: 98 - Address already in use)."
    text = trace(message).replace("/srv/job/run.py", "/lib/python3.11/site-packages/torch/distributed/rendezvous.py")
    assert said(text).ranks == (0,)
    assert said(text.replace("distributed/", "distributed/elastic/")).ranks == ()


def test_a_lost_pod_has_the_ranks_that_its_launcher_was_asked_for(said: Said) -> None:
    pods = {
        f"job__workers__0__{n}.log": f"+ torchrun --nnodes=3 --nproc-per-node=4 --node-rank={n} train.py\n"
        + ("" if n == 2 else "".join(WATCHDOG.format(r=4 * n + i) for i in range(3)))
        for n in range(3)
    }
    events = """8m1s  Warning  NodeShutdown      pod/job-workers-0-2   Pod was terminated in response to imminent node shutdown.
6m50s Warning  FailedScheduling  pod/job-workers-0-2   0/9 nodes are available: 9 Insufficient nvidia.com/gpu.
"""
    found = said(**pods, **{"events.txt": events})
    assert (found.rule, found.ranks) == ("JOB011", (8, 9, 10, 11))


def test_colossalais_launcher_says_which_node_failed() -> None:
    from paramedic.collect.rosters import roster
    from paramedic.model import Source

    line = "Error: failed to run torchrun --nproc_per_node=4 --nnodes=3 --node_rank=1 train.py on gn12, is localhost: False"
    (fact,) = roster([line], Source("console.log", "log"))
    assert (fact.name, fact.value) == ("node", "gn12 1 4")


def test_a_pod_of_which_nothing_is_left_has_its_place_among_its_fellows(said: Said) -> None:
    """Its number is not its rank where its fellows have several each."""
    pods = {
        f"ft__spot__{n}.log": "".join(begun(f"ft-spot-{n}", 8 * n + i, i, 24, f"{i}1000") for i in (0, 3, 7))
        for n in (0, 2)
    }
    event = "2m57s  Warning  NodeNotReady  pod/ft-spot-1   Node is not ready\n"
    found = said(**pods, **{"events.txt": event})
    assert (found.rule, found.ranks) == ("JOB011", tuple(range(8, 16)))


def test_what_one_rank_prints_for_all_is_nobodys_in_particular(said: Said) -> None:
    lines = "".join(
        f"[2024-06-30 19:02:0{s},000] [INFO] [Rank 0] step={s} loss={1.0 if s < 4 else 'nan'}\n" for s in range(9)
    )
    others = "".join(f"[2024-06-30 19:01:00,000] [INFO] [Rank {r}] up, world_size=4\n" for r in range(4))
    found = said(others + lines)
    assert (found.symptom, found.ranks) == ("numerical-instability", ())


def test_of_a_pod_in_which_memory_ran_out_the_killed_rank_is_named(said: Said) -> None:
    table = "[0]:\n  time      : 2025-01-22_23:17:44\n  host      : w1\n  rank      : 5 (local_rank: 1)\n  exitcode  : -9 (pid: 212)\n"
    head = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n====\ntrain.py FAILED\n----\nRoot Cause (first observed failure):\n"
    peers = "".join(of(r, trace(CLOSED)) for r in (0, 1, 2, 3, 8, 9, 10, 11))
    kernel = "Jan 22 23:17:43 n7 kernel: Memory cgroup out of memory: Killed process 88801 (python3) total-vm:164841552kB, anon-rss:114018240kB, file-rss:0kB\n"
    other = table.replace("w1", "w0").replace(": 5 (", ": 1 (").replace("-9", "-6")  # in its pod it has the same number
    files = {"console.log": peers, "w0.log": head + other, "w1.log": head + table, "kern__n7.log": kernel}
    found = said(**files)
    assert (found.symptom, found.ranks) == ("host-out-of-memory", (5,))


def test_skypilots_label_is_of_a_node_and_hides_no_traceback(said: Said) -> None:
    label = "(worker1, rank=1, pid=8108, ip=10.42.2.17) "
    text = "".join(
        label + line + "\n" for line in trace("ModuleNotFoundError: No module named 'flash_attn'").splitlines()
    )
    waited = "".join("(head, rank=0, pid=77, ip=10.42.2.16) " + WATCHDOG.format(r=rank) for rank in range(4))
    found = said(text + waited)
    assert (found.symptom, found.ranks) == ("import-or-missing-symbol", ())
