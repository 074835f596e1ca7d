"""Which file, host, process or GPU is which rank: told by whatever says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from consoles import CLOSED, MISSING, OOM, WATCHDOG, Said, nccl, of, steps, table, trace
from paramedic import diagnose
from paramedic.collect.rosters import roster
from paramedic.detect.hostnames import parts_of_name
from paramedic.model import Source
from paramedic.report.action import copyable

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


def test_tasks_of_srun_are_nodes_where_each_has_several_ranks(said: Said) -> None:
    lost = "srun: error: Node failure on nid003\n"
    ended = "".join(f"srun: error: nid00{n + 1}: task {n}: Terminated\n" for n in (0, 1, 3))
    head = "SLURM_JOB_NODELIST=nid[001-004] NNODES=4 WORLD_SIZE=32\n"
    assert said(f"{head}step 1 loss 2.0\n{lost}{ended}").ranks == (16, 17, 18, 19, 20, 21, 22, 23)


def test_a_pod_that_was_on_a_node_which_went_away_has_the_ranks_of_its_number(said: Said) -> None:
    events = "5m28s  Normal  NodeNotReady  node/gke-a3-k4xq  Node gke-a3-k4xq status is now: NodeNotReady\n"
    pod = "Name:             cpt-worker-2\nNamespace:        ml\nNode:             gke-a3-k4xq/10.128.0.61\n"
    closed = {n: f"hostname: cpt-worker-{n} rank: {8 * n + 3}\n" + of(8 * n + 3, trace(CLOSED)) for n in (0, 1, 3)}
    logs = {f"cpt-worker-{n}.log": text for n, text in closed.items()}
    verdict = said(**{"events.txt": events, "worker-2.describe": pod}, **logs)
    assert (verdict.symptom, verdict.ranks) == ("worker-or-node-loss", tuple(range(16, 24)))


@pytest.mark.parametrize(
    ("log", "each", "named"), [("gx-12_agent", 8, (14,)), ("agent", 8, ()), ("gx-12_agent", 4, ())]
)
def test_the_gpu_that_the_driver_numbers_is_that_of_the_rank_in_its_place(
    said: Said, log: str, each: int, named: tuple[int, ...]
) -> None:
    """Where the agent of its host tells which ranks are there, one for each of eight GPUs."""
    met = f"[default] Rendezvous complete for workers. Result:\n  role_ranks={list(range(each, 2 * each))}\n"
    xid = "NVRM: Xid (PCI:0000:d1:00): 119, pid=88, name=python, Timeout after 45s of waiting for RPC response from GPU6 GSP!"
    kernel = f"[Mon May  5 02:03:48 2025] {xid} Expected function 76 (GSP_RM_CONTROL) (0x20801702 0x4).\n"
    console = f"world size: {2 * each}\n" + of(0, WATCHDOG.format(r=0) + "\n")
    files = {f"{log}.log": met, "gx-12_dmesg.txt": kernel, "train.log": console}
    verdict = said(**files)
    assert (verdict.symptom, verdict.ranks) == ("accelerator-fault", named)


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


def in_call(rank: int, call: str) -> str:
    return (
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: "
        f"WorkNCCL(SeqNum=9, OpType={call}, NumelIn=2, NumelOut=2, Timeout(ms)=600000) ran for 600009 milliseconds before timing out.\n"
    )


def test_who_says_nothing_has_not_stayed_away_where_the_others_have_parted_under_one_number(said: Said) -> None:
    begun = "world size: 8\n" + steps(*range(8))
    reduces = "".join(in_call(rank, "ALLREDUCE") for rank in (1, 2, 5, 7))
    assert said(begun + reduces + in_call(0, "_ALLGATHER_BASE")).ranks == (0,)
    through = "".join(f"2026-11-15 06:15:09,830 INFO rank {rank} epoch 0 finished\n" for rank in (3, 4, 6))
    gathers = "".join(in_call(rank, "ALLGATHER") for rank in (3, 4, 6))
    verdict = said(begun + through + reduces + gathers)
    assert (verdict.ranks, verdict.causes[0].id) == ((3, 4, 6), "uneven-work-across-ranks")
    assert "same number of batches: ranks 3, 4, 6" in verdict.fixes[0].title
    assert not {0} & {*said(begun + reduces + gathers).ranks}


def test_ranks_beyond_those_of_a_node_are_counted_over_all_nodes(said: Said) -> None:
    """`--role rank` makes torchrun's local numbers look like torch's."""
    failed = of(29, trace("torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered"))
    rows = table((29, 1, 40)).replace("(local_rank: 29)", "(local_rank: 5)")
    launch = "+ srun torchrun --nnodes 8 --nproc_per_node 8 --role rank --tee 3 train.py\n"
    assert said(launch + steps(0) + failed + rows).ranks == (29,)


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
    assert "killed process 402" in copyable(verdict.fixes[0].action)
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


def test_a_lost_rank_was_on_its_own_host_and_not_on_those_of_the_others(said: Said) -> None:
    gone = (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:2251, "
        "remote process exited or there was a network error, NCCL version 2.21.5"
    )
    lines = [f"[pod/train-worker-{n}/pytorch] step {step} loss 2.1" for step in range(0, 90, 10) for n in range(4)]
    lines += [f"[pod/train-worker-{n}/pytorch] {gone}" for n in (0, 1, 3)]
    verdict = said("\n".join(lines) + "\n")
    assert (verdict.ranks, verdict.hosts) == ((2,), ("train-worker-2",))


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
    assert "called ALLGATHER where the others called ALLREDUCE" in found.summary


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


def test_a_pod_whose_log_shows_its_first_rank_alone_has_all_its_ranks(said: Said) -> None:
    mesh = "[titan] INFO - Building 2-D device mesh with ['dp_shard', 'tp'], [6, 2]\n"
    lost = "torch.distributed.DistBackendError: NCCL error in: NCCLUtils.cpp:133, remote process exited or there was a network error"
    pods = {f"pre-worker-{n}.log": of(4 * n, mesh) + of(4 * n + 1, trace(lost)) for n in (0, 1)}
    told = of(8, mesh + "step 4 loss 2.1") + "W0101 Received Signals.SIGTERM death signal, shutting down workers\n"
    events = "2m1s  Normal  TaintManagerEviction  pod/pre-worker-2   Marking for deletion Pod ml/pre-worker-2\n"
    found = said(**pods, **{"pre-worker-2.log": told, "events.txt": events})
    assert found.ranks == (8, 9, 10, 11)


def test_a_pod_of_which_nothing_is_left_has_its_place_among_its_fellows(said: Said) -> None:
    """Its number is not its rank where its fellows have several each."""
    pods = {
        f"ft__spot__{n}.log": "".join(begun(f"ft-spot-{n}", 8 * n + i, i, 24, f"{i}1000") for i in (0, 3, 7))
        for n in (0, 2)
    }
    event = "2m57s  Warning  NodeNotReady  pod/ft-spot-1   Node is not ready\n"
    found = said(**pods, **{"events.txt": event})
    assert (found.rule, found.ranks) == ("JOB011", tuple(range(8, 16)))


def test_a_pod_of_a_job_that_nobody_could_have_is_not_all_its_ranks(said: Said) -> None:
    """A file may be called after a rank of any number."""
    event = "2m57s  Warning  NodeNotReady  pod/ft-spot-1   Node is not ready\n"
    found = said(**{"rank_99999.log": event})
    assert (found.rule, len(found.ranks) < 2) == ("JOB011", True)


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


def test_a_rank_may_stand_in_an_actors_own_tag(said: Said) -> None:
    saves = "".join(
        f"(WorkerDict pid={900 + r}, ip=10.0.0.{1 + r // 2}) [rank-{r}]: Saving to /ckpt/{r}.pt\n" for r in range(4)
    )
    full = trace("OSError: [Errno 28] No space left on device", (9, "save_checkpoint", "torch.save(state, path)"))
    verdict = said(saves + "".join(f"(WorkerDict pid=902, ip=10.0.0.2) {line}\n" for line in full.splitlines()))
    assert (verdict.symptom, verdict.ranks) == ("checkpoint-save-failure", (2,))


def test_what_all_ranks_of_one_host_lack_is_the_hosts_difference(said: Said) -> None:
    lacks = trace("ImportError: /opt/lib/libtorch_cuda.so: undefined symbol: ncclCommRegister")
    files = {
        f"r{n}.log": nccl(f"n{n // 2}", 40 + n, n, 6) + of(n, lacks if n in (2, 3) else trace(CLOSED)) for n in range(6)
    }
    verdict = said(**files)
    assert (verdict.ranks, verdict.causes[0].id) == ((2, 3), "cross-node-environment-skew")


def test_a_pods_log_shows_that_its_volume_came_in_the_end(said: Said) -> None:
    mount = '52m   Warning   FailedMount   pod/job-node-1   MountVolume.SetUp failed for volume "api" : timed out\n'
    shm = of(1, trace("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error."))
    verdict = said(**{"events.txt": mount, "job-node-1.log": steps(1) + shm, "job-node-0.log": steps(0)})
    assert (verdict.symptom, verdict.ranks) == ("host-out-of-memory", (1,))


def test_ranks_that_agents_tell_are_bounded() -> None:
    met = f"  group_rank=1 global_ranks=[0, {'9' * 30}, 1234567] global_world_sizes=[3, 3]"
    assert {fact.rank for fact in roster([met], Source("n1.log", "log")) if fact.name == "host"} == {0}


@pytest.mark.parametrize(
    "lines",
    [
        ["cmd = pdsh -S -w n1,n2 python -u -m deepspeed.launcher.launch --world_info=eyJuMSI6IFswLCAxXSwgIm4yIjogWzAsIDFdfQ== --node_rank=%n"],
        ["ranks    0-   1 host n1 | 47.1 46.9", "ranks    2-   3 host n2 | 47.0 47.3"],
        ["# rank -> host, from SLURM_PROCID map", "0-1 n1", "2-3 n2"],
        ["rank: node", "0 n1", "1 n1", "2 n2", "3 n2"],
    ],
    ids=["DeepSpeed's argument", "spans in a table", "spans below a heading", "ranks below a heading"],
)  # fmt: skip
def test_hosts_of_ranks_are_read_from_lists(lines: list[str]) -> None:
    told = [(fact.rank, fact.value) for fact in roster(lines, Source("map.txt", "log")) if fact.name == "host"]
    assert told == [(0, "n1"), (1, "n1"), (2, "n2"), (3, "n2")]


@pytest.mark.parametrize("line", ["--world_info=AAAA----", "--world_info=W10=W10=", "--world_info=bnVsbA==", "0-1 n1"])
def test_what_is_no_list_of_hosts_tells_of_none(line: str) -> None:
    assert not [fact for fact in roster([line], Source("map.txt", "log")) if fact.name == "host"]


def test_a_ray_node_that_is_gone_is_its_ranks_and_not_the_node_whose_disk_fills_up(said: Said) -> None:
    up = "".join(f"(Worker pid={30 + r}, ip=10.4.1.{r // 2}) [rank {r}/4] worker up\n" for r in range(4))
    text = (
        f"{up}(raylet, ip=10.4.1.0) file_system_monitor.cc:116: /tmp/ray/s is over 95% full, available space: 4 GB; "
        "capacity: 877 GB. Object creation will fail if spilling is required.\n"
        "(raylet) The node with node id: 0c55e1 and address: 10.4.1.1 and node name: 10.4.1.1 has been marked dead because "
        "the detector has missed too many heartbeats from it.\n"
    )
    verdict = said(text)
    assert (verdict.symptom, verdict.ranks) == ("worker-or-node-loss", (2, 3))
    board = "1a2 | 08/21/2026 | 17:26:58 | Power Supply PSU2_Status | Power Supply AC lost | Asserted\n"
    assert said(**{"driver.log": text, "bmc_10.4.1.1.txt": board}).causes[0].id == "hardware-fault"


def test_deepspeeds_agents_tell_which_ranks_a_node_has() -> None:
    lines = [f"dl{n}: [INFO] [launch.py:151:main] nnodes=2, num_local_procs=4, node_rank={n - 1}" for n in (1, 2)]
    assert [fact.value for fact in roster(lines, Source("run.log", "log"))] == ["dl1 0 4", "dl2 1 4"]


def test_the_host_that_gives_out_its_loopback_is_at_fault_and_not_who_was_refused(said: Said) -> None:
    pair = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:"
    refused = trace(f"{pair}799] connect [127.0.1.1]:41020: Connection refused")
    closed = trace(f"{pair}598] Connection closed by peer [10.2.0.11]:39114")
    first = refused * 2 + table((0, 1, 11), (1, 1, 12)).replace("node-01", "n11")
    second = closed * 2 + table((2, 1, 21), (3, 1, 22)).replace("node-01", "n12")
    assert said(**{"a.out": first, "b.out": second}).ranks == (2, 3)


def test_the_pods_of_a_machine_that_is_taken_back_are_those_that_were_ended_then(said: Said) -> None:
    """Each has eight ranks, as those that speak tell, though not all of them do."""
    events = (
        "14m  Normal  SpotInterruption  node/ip-10-0-3-19.ec2.internal  Spot ITN received. Instance will be interrupted at 2\n"
        "14m  Normal  Killing           pod/lm-worker-2                 Stopping container main\n"
    )
    lost = {
        f"lm-worker-{n}.log": "".join(
            of(8 * n + k, trace("RuntimeError: NCCL error: remote process exited")) for k in (1, 6)
        )
        for n in (0, 1, 3)
    }
    verdict = said(**lost, **{"lm-worker-2.log": steps(0), "events.txt": events})
    assert (verdict.symptom, verdict.ranks) == ("worker-or-node-loss", tuple(range(16, 24)))


@pytest.mark.parametrize(
    "line", ["group_rank 2: gx-203  ranks 16-23", "== gx-203 (ranks 16-23) ==", "gx-203: global ranks 16 to 23"]
)
def test_a_host_before_its_ranks_is_where_they_are(line: str) -> None:
    told = {(fact.value, fact.rank) for fact in roster([line], Source("map.txt", "log")) if fact.name == "host"}
    assert told == {("gx-203", rank) for rank in range(16, 24)}


@pytest.mark.parametrize("line", ["step1 done, waiting ranks 3-5 next", "stage2: ranks 8-15", "pp0 ranks 0-7"])
def test_a_sentence_about_ranks_is_no_map(line: str) -> None:
    assert not [fact for fact in roster([line], Source("train.log", "log")) if fact.name == "host"]


def test_a_file_may_begin_with_its_hosts_name() -> None:
    assert "node-02" in parts_of_name("logs/node-02_dmesg.txt")
    assert "node" not in parts_of_name("logs/node-kernel.txt") - {"node-kernel"}


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (["n1 0-1", "n2 2-3"], [("host", "n1", 0), ("host", "n1", 1), ("host", "n2", 2), ("host", "n2", 3)]),
        (["# scontrol show hostnames", "gpu007", "gpu011", "gpu012"], [("nodelist", "gpu007,gpu011,gpu012", None)]),
        (["JobId=6 NodeList=lx-a[1-2],lx-b[07-08],lx9 #CPUs=4"], [("nodelist", "lx-a1,lx-a2,lx-b07,lx-b08,lx9", None)]),
        (["PID      JOBID    STEPID   LOCALID GLOBALID", "4242  17  0  1  9"], [("pid", 4242, 9)]),
        (["  PID STAT WCHAN  SLURM_PROCID CMD", "  51 Dl  ll_fsync 12 python t.py", "done 7"], [("pid", 51, 12)]),
        (["NAME  NODE  JOB_COMPLETION_INDEX", "t-0-x1  w-a3  0", "t-1-x2  w-b7  1"], [("place", "w-a3 0", None), ("place", "w-b7 1", None)]),
    ],
    ids=["hosts with their ranks", "nothing but hosts", "Slurm's list of several kinds", "scontrol listpids", "ps with the rank", "pods with their numbers"],
)  # fmt: skip
def test_tables_of_platforms_tell_who_is_where(lines: list[str], told: list[tuple[str, str | int, int | None]]) -> None:
    assert [(fact.name, fact.value, fact.rank) for fact in roster(lines, Source("list.txt", "log"))] == told


@pytest.mark.parametrize(
    "lines",
    [["n1 0-1", "n2 4-5"], ["gpu007", "login1"], ["PID USER STARTED RANK", "9 me Mon 12 3"], ["PID RANK", "9 x"]],
    ids=["a gap", "hosts of several kinds", "a time of several words", "no number"],
)
def test_what_is_no_table_of_ranks_tells_of_none(lines: list[str]) -> None:
    assert not list(roster(lines, Source("list.txt", "log")))


def test_torchruns_table_tells_that_a_numbered_pod_has_several_ranks(said: Said) -> None:
    lost = "".join(trace(MISSING) for _ in range(4))
    rows = table((12, 1, 92)).replace("(local_rank: 12)", "(local_rank: 0)")
    files = {f"sft-worker-{n}.log": of(4 * n, steps(4 * n)) + of(4 * n + 1, steps(4 * n + 1)) for n in (0, 1, 2)}
    assert said(**files, **{"sft-worker-3.log": lost + rows, "launch.txt": "world_size=16\n"}).ranks == (12, 13, 14, 15)


def test_what_a_nodes_daemon_says_is_of_the_tasks_that_left_by_themselves(said: Said) -> None:
    failed = "slurmstepd: error: pyxis: container start failed with error code: 1\nsrun: error: c3: task 4: Exited with exit code 1\n"
    ended = "srun: error: c1: tasks 0-1: Terminated\nsrun: error: c2: tasks 2-3: Terminated\nsrun: error: c3: task 5: Exited with exit code 1\n"
    assert said(failed + ended).ranks == (4, 5)
    assert said(failed + "srun: error: c3: task 5: Exited with exit code 1\n").ranks == (), "perhaps all of them"


def test_whose_process_stands_still_in_the_kernel_is_whom_the_others_wait_for(said: Said) -> None:
    waiting = "".join(WATCHDOG.format(r=n) for n in (0, 1, 4, 5))
    pids = "PID JOBID STEPID LOCALID GLOBALID\n700 9 0 0 2\n701 9 0 1 3\n"
    kernel = "Nov  6 04:04:06 n2 kernel: INFO: task python:701 blocked for more than 122 seconds.\n"
    verdict = said(**{"console.log": waiting, "pids_n2.txt": pids, "kern_n2.log": kernel})
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", (3,))
    assert verdict.causes[0].id == "storage-or-external-service-fault"


def test_a_host_of_which_half_run_another_collective_runs_it(said: Said) -> None:
    def mismatch(rank: int, op: str, other: int, theirs: str) -> str:
        prints = [f"CollectiveFingerPrint(SequenceNumber=7, OpType={o}, TensorShape=[1])" for o in (op, theirs)]
        return of(
            rank,
            trace(
                "RuntimeError: Detected mismatch between collectives on ranks. "
                f"Rank {rank} is running collective: {prints[0]}, but Rank {other} is running collective: {prints[1]}."
            ),
        )

    hosts = "".join(f"rank={n} host=n{n // 4 + 1}\n" for n in range(12))
    odd = "".join(mismatch(n, "BROADCAST", 0, "ALLREDUCE") for n in (4, 6))
    usual = "".join(mismatch(n, "ALLREDUCE", 4, "BROADCAST") for n in (0, 1, 2, 8, 9))
    assert said(hosts + odd + usual).ranks == (4, 5, 6, 7)
    assert said(hosts + odd + usual + mismatch(5, "ALLREDUCE", 4, "BROADCAST")).ranks == (4, 6)


LOST_DAEMON = (
    "PRTE has lost communication with a remote daemon.\n\n  HNP daemon   : [prterun-a1-77@0,0] on node a1\n"
    "  Remote daemon: [prterun-a1-77@0,1] on node {}\n"
)


def test_a_node_that_mpirun_lost_has_the_ranks_of_its_slots(said: Said) -> None:
    start = "$ mpirun -np 12 -H a1:4,a2:4,a3:4 python train.py\n" + steps(0)
    assert said(start + LOST_DAEMON.format("a2")).ranks == (4, 5, 6, 7)


def test_a_hostfile_beside_the_log_tells_where_ranks_are(said: Said) -> None:
    files = {"hostfile": "a1 slots=2\na2 slots=2\na3 slots=2\n", "job.log": steps(0) + LOST_DAEMON.format("a3")}
    assert said(**files).ranks == (4, 5)


@pytest.mark.parametrize("how", ["--map-by node", "--map-by ppr:2:node", "-bynode"])
def test_ranks_that_are_dealt_out_otherwise_are_not_those_of_slots(said: Said, how: str) -> None:
    start = f"$ mpirun -np 12 -H a1:4,a2:4,a3:4 {how} python train.py\n" + steps(0)
    assert said(start + LOST_DAEMON.format("a2")).ranks == ()


@pytest.mark.parametrize(
    "line",
    [
        "[1,3]<stdout>:mitte pid 36610 hvd rank 3/6 local 1",
        "gpu07: rank 3 of 8 cuda:3",
        "[0] MPI startup(): 3       52112    icx-115    {36,37,38}",
        "byteps rank 3..3 of 16 on bps-w2",
    ],
)
def test_a_host_at_the_head_of_a_rank_s_line_is_where_it_is(line: str) -> None:
    assert [(fact.name, fact.rank) for fact in roster([line], Source("x.log", "log")) if fact.name == "host"] == [
        ("host", 3)
    ]


@pytest.mark.parametrize("line", ["Starting rank 3/8", "[rank 3/8] ready", "epoch2: rank 3 done", "localhost slots=8"])
def test_a_word_before_a_rank_is_not_always_a_host(line: str) -> None:
    assert not [fact for fact in roster([line], Source("x.log", "log")) if fact.name in ("host", "slots")]


def test_azures_logs_are_named_after_their_processes(said: Said) -> None:
    files = {f"std_log_process_{n:02}.txt": steps(0) for n in range(3)} | {"std_log_process_03.txt": trace(OOM)}
    assert said(**files).ranks == (3,)


COORDINATES = (
    "INFO:tensorflow:ParameterServerStrategyV2 is now connecting to cluster with cluster_spec: ClusterSpec({})\n"
)
HANDED_OUT = (
    "ERROR:tensorflow: /job:worker/task:1 encountered the following error when processing closure:"
    " InvalidArgumentError():Graph execution error:\n"
)
UNLIKE = "tensorflow.python.framework.errors_impl.InvalidArgumentError: Incompatible shapes: [32,8] vs. [32,4]"


def test_a_chief_that_only_hands_out_work_is_no_rank(said: Said) -> None:
    chief = COORDINATES + steps(0) + HANDED_OUT + trace(UNLIKE)
    workers = {f"rec-worker-{n}.log": "Started server with target: grpc://w:2222\n" for n in (0, 2)}
    own = {"rec-worker-1.log": "W op_kernel.cc:1745] OP_REQUIRES failed : Incompatible shapes: [32,8] vs. [32,4]\n"}
    assert said(**{"rec-chief-0.log": chief}, **workers, **own).ranks == (1,)


def test_what_a_coordinator_tells_of_a_worker_is_that_workers_failure(said: Said) -> None:
    assert said(COORDINATES + steps(0) + HANDED_OUT + trace(UNLIKE)).ranks == (1,)


PORT = (
    "{host}:{pid}:{tid} [{gpu}] transport/net_ib.cc:250 NCCL WARN NET/IB : mlx5_{gpu}:1 Got async event : port error\n"
)
LOST_PEER = (
    "[rank{rank}]: Traceback (most recent call last):\n"
    '[rank{rank}]:   File "/fsx/t/pretrain.py", line 333, in <module>\n'
    "[rank{rank}]: torch.distributed.DistBackendError: NCCL error in: NCCLUtils.hpp:317, remote process exited or there"
    " was a network error, NCCL version 2.20.5\n"
)

NO_ANSWER = (
    "px-{node:02}:44001:44701 [1] transport/net_ib.cc:1696 NCCL WARN NET/IB : Got completion from peer 10.90.3.15<4>"
    " with status=12 opcode=0 len=0 vendor err 129\n"
)


def test_ports_that_go_down_on_all_hosts_at_once_are_nobodys(tmp_path: Path) -> None:
    """Of some ranks the launcher's table tells, of others their own lines: together these are all."""
    lines = [
        PORT.format(host=f"gpu-{node}", pid=9000 + 10 * node + gpu, tid=77, gpu=gpu)
        for node in range(2)
        for gpu in range(2)
    ]
    table = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\nFailures:\n[1]:\n"
        "  time      : 2025-06-02_08:51:07\n  host      : gpu-1\n  rank      : 2 (local_rank: 0)\n"
        "  exitcode  : 1 (pid: 9010)\n  error_file: <N/A>\n"
        "Root Cause (first observed failure):\n[0]:\n"
        "  time      : 2025-06-02_08:51:07\n  host      : gpu-1\n  rank      : 3 (local_rank: 1)\n"
        "  exitcode  : 1 (pid: 9011)\n  error_file: <N/A>\n"
    )
    text = "world size: 4\n" + "".join(lines) + "".join(LOST_PEER.format(rank=n) for n in range(4)) + table
    (tmp_path / "job.log").write_text("rank 0 on host gpu-0\nrank 1 on host gpu-0\n" + text)
    found = diagnose(tmp_path).verdict
    assert found is not None and (found.rule, found.ranks) == ("NET034", ())


def test_a_process_number_of_another_host_names_nobody(tmp_path: Path) -> None:
    """Nodes count their processes alike: what the first node's table says of one is not said of its namesake."""
    table = (
        "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:\ntrain.py FAILED\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-06-02_08:51:07\n  host      : px-01\n"
        "  rank      : 3 (local_rank: 3)\n  exitcode  : 1 (pid: 44003)\n  error_file: <N/A>\n"
    )
    (tmp_path / "px-01.err").write_text(LOST_PEER.format(rank=3) + table)
    (tmp_path / "px-09.log").write_text(PORT.format(host="px-09", pid=44003, tid=44903, gpu=3))
    found = diagnose(tmp_path).verdict
    assert found is not None and (found.rule, found.ranks) == ("NET034", ())
    for node, heard in ((2, (8, 15)), (5, (35, 39)), (9, (43,))):
        said = "".join(LOST_PEER.format(rank=rank) for rank in heard)
        port = (
            PORT.format(host=f"px-{node:02}", pid=44003, tid=44903, gpu=3) if node == 9 else NO_ANSWER.format(node=node)
        )
        (tmp_path / f"px-{node:02}.log").write_text(port + said)
    found = diagnose(tmp_path).verdict
    assert found is not None and (found.rule, found.ranks) == ("NET034", (43,))


def test_what_concerns_several_hosts_is_no_ranks_of_the_first(said: Said) -> None:
    met = "{h}:{p}:{p} [{g}] NCCL INFO Bootstrap : Using docker0:172.17.0.1<0>\n"
    started = "+ torchrun --nnodes 2 --nproc_per_node 2 --node_rank {n} --master_addr 10.0.0.1 train.py\n"
    closed = "W0101 10:00:00.000000 30 torch/distributed/elastic/multiprocessing/api.py:900] Sending process {p} closing signal SIGTERM\n"
    verdict = said(
        **{
            f"{host}.log": started.format(n=node)
            + "".join(met.format(h=host, p=40 + gpu, g=gpu) for gpu in (0, 1))
            + "".join(closed.format(p=40 + gpu) for gpu in (0, 1))
            for node, host in enumerate(("wsA", "wsB"))
        }
    )
    assert (verdict.rule, verdict.ranks) == ("NET309", ())
