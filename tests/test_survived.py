"""What a job survived is no verdict: errors that were handled, tests that fail on purpose, what other logs made up for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.collect.activity import complains, shows_progress
from paramedic.detect import resumes
from paramedic.detect.series import Series
from paramedic.model import Event, Finding

Judged = Callable[..., Finding | None]

BUS = (
    "RuntimeError: DataLoader worker (pid 20391) is killed by signal: Bus error. It is possible that dataloader's workers"
    " are out of shared memory. Please try to raise your shared memory limit.\n"
)
PREEMPTED = "slurmstepd: error: *** JOB 7712 ON n1 CANCELLED AT 2026-04-01T01:39:08 DUE TO PREEMPTION ***\n"
KILLED = "[Tue Mar 17 05:15:02 2026] Memory cgroup out of memory: Killed process 790114 (python3) total-vm:68112044kB\n"


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    def verdict(**files: str) -> Finding | None:
        for name, text in files.items():
            (tmp_path / name.replace("_", ".")).write_text(text, "utf-8")
        return diagnose(tmp_path).verdict

    return verdict


def steps(day: str, *clocks: str) -> str:
    return "".join(f"{day} {clock} step {n} loss 1.{n}\n" for n, clock in enumerate(clocks))


@pytest.mark.parametrize(
    "line",
    [
        "step 73/80 reward/mean=0.5788 pass=0.575 runtime_error=0.149 timeout=0.064 grad_norm=0.186",
        "upd 7 step 7 | fps 183 | killed_by_enemy 254 died 245 | episodes_timeout 88 aborted 2 | failed 0.88 | kl 0.01",
        "2026-07-07 07:18:48 step=2800 loss=1.3483 failures=0/3 nan=0 tput=9097",
    ],
)
def test_figures_that_are_named_after_failures_are_figures(line: str) -> None:
    assert shows_progress(line)
    assert not complains(line)


@pytest.mark.parametrize(
    "line",
    [
        "NCCL error 5 at step 3",
        "RuntimeError: expected 3 got 5 at dim 2, size 7, step 8, rank 1",
        "step 12: loader failed, rank=3 pid=77 code=1",
    ],
)
def test_an_error_with_numbers_is_an_error(line: str) -> None:
    assert not shows_progress(line)
    assert complains(line)


@pytest.mark.parametrize(
    "end",
    [
        "====== 93 passed, 1 skipped, 1 xfailed, 1 warning in 214.77s (0:03:34) ======\n",
        "Ran 30 tests in 141.902s\n\nOK (skipped=10)\n",
    ],
)
def test_what_fails_in_tests_that_pass_was_to_fail(judged: Judged, end: str) -> None:
    assert judged(ci_log=BUS + end) is None


def test_what_fails_in_tests_that_fail_is_told(judged: Judged) -> None:
    verdict = judged(ci_log=BUS + "====== 1 failed, 93 passed in 214.77s (0:03:34) ======\n")
    assert verdict is not None
    assert verdict.symptom == "host-out-of-memory"


def test_a_preemption_is_made_up_for_by_the_log_that_tells_of_the_end(judged: Judged) -> None:
    ran = steps("2026-04-01", "01:30:00", "01:35:00", "03:10:00")
    assert judged(slurm_err=PREEMPTED, slurm_out=steps("2026-04-01", "01:30:00", "01:35:00", "01:38:00")) is not None
    assert judged(slurm_err=PREEMPTED, slurm_out=ran + "training finished, exit 0\n") is None


def test_a_scripts_done_alone_makes_up_for_nothing(judged: Judged) -> None:
    verdict = judged(console_log=steps("2026-04-01", "01:30:00", "01:35:00", "01:38:00") + BUS + "Done.\n")
    assert verdict is not None


def test_what_the_kernel_saw_long_before_the_last_step_did_not_end_the_job(judged: Judged) -> None:
    assert judged(dmesg_txt=KILLED) is not None
    assert judged(dmesg_txt=KILLED, job_log=steps("2026-03-17", "06:30:22", "06:31:00", "07:28:40")) is None


def test_clocks_that_may_be_of_different_zones_excuse_nothing(judged: Judged) -> None:
    hours_off = steps("2026-03-17", "07:10:22", "07:11:00", "07:14:40")
    assert judged(dmesg_txt=KILLED, job_log=hours_off) is not None


def test_a_thread_that_fails_after_the_end_takes_nothing_away(judged: Judged) -> None:
    thread = (
        "Exception in thread Thread-4 (_pin_memory_loop):\nTraceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/threading.py", line 1045, in _bootstrap_inner\n    self.run()\n'
        '  File "/usr/lib/python3.11/multiprocessing/connection.py", line 508, in Client\n    answer_challenge(c, key)\n'
        "EOFError\n"
    )
    ran = steps("2026-04-01", "01:30:00", "01:35:00", "03:10:00")
    assert judged(console_log=ran + thread) is not None
    assert judged(console_log=ran + "training finished\n" + thread) is None


def test_a_checkpoint_that_a_passing_test_breaks_was_to_break(judged: Judged) -> None:
    broken = "ERROR ckpt.py:265 shard_1.pt: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
    assert judged(ci_log=broken + "====== 93 passed, 1 skipped in 214.77s (0:03:34) ======\n") is None


RAISED = (
    "(SandboxActor pid=52021)   Traceback (most recent call last):\n"
    '(SandboxActor pid=52021)     File "<candidate>", line 11, in solve\n'
    "(SandboxActor pid=52021)       return a // b\n"
    "(SandboxActor pid=52021)   ZeroDivisionError: integer division or modulo by zero\n"
)


def test_what_a_helper_of_ray_raises_did_not_end_the_training_that_went_on_for_long(judged: Judged) -> None:
    later = "".join(f"(TaskRunner pid=41207) step:{n} - actor/entropy:0.37{n} - loss:0.2{n}\n" for n in range(20))
    assert judged(console_log=RAISED + later) is None


def test_what_somebody_raises_shortly_before_the_last_steps_is_told(judged: Judged) -> None:
    later = "".join(f"(TaskRunner pid=41207) step:{n} - actor/entropy:0.37{n} - loss:0.2{n}\n" for n in range(3))
    assert judged(console_log=RAISED + later) is not None


def test_a_kernels_notice_is_nobodys_last_word(judged: Judged) -> None:
    notice = (
        "[ 9412.380011] mlx5_core 0000:a1:00.0: mlx5_pcie_event:301:(pid 9): Detected insufficient power on the slot\n"
    )
    assert judged(dmesg_txt=notice) is None


CLOCKS = ("01:00:00", "01:01:00", "01:02:00", "01:03:00", "01:04:00")


def test_what_ended_a_containers_former_start_is_over_where_its_next_one_trains(judged: Judged) -> None:
    resolving = "ssh: Could not resolve hostname w-2.w: Name or service not known\n" * 2
    assert judged(launcher_previous_log=resolving, launcher_log=steps("2026-03-01", *CLOCKS)) is None
    assert judged(launcher_log="waiting for workers\n") is not None


def test_a_job_whose_script_left_with_zero_has_not_lost_what_the_kernel_killed(judged: Judged) -> None:
    trained = steps("2026-03-17", *CLOCKS) + "2026-03-17 01:05:00 finished 5 steps\n"
    assert judged(dmesg_txt=KILLED, train_out=trained + "srun exit 0\n") is None
    assert judged(dmesg_txt=KILLED, train_out=trained + "srun exit 137\n") is not None


def test_a_requeued_job_that_went_on_to_its_end_was_not_lost(judged: Judged) -> None:
    """Its errors go to a file of their own, in which a step is named."""
    requeued = "rank 0 received SIGUSR1, will save at the end of step 4\n" + PREEMPTED.replace(
        "PREEMPTION", "JOB REQUEUE"
    )
    trained = steps("2026-04-01", *CLOCKS)
    assert judged(job_err=requeued, job_out=trained + "exit status 0\n") is None
    assert judged(job_err=requeued, job_out=trained) is not None


def test_steps_that_every_epoch_counts_anew_do_not_say_what_was_before_a_resume() -> None:
    def parted(*steps: int) -> tuple[list[float], list[float]]:
        names, values = tuple(f"step {step}" for step in steps), tuple(map(float, steps))
        return resumes._parted(Series("loss", None, names, values, False, Event("a.log", 0, "metric", "")), 200)

    assert parted(100, 200, 300, 100, 200, 300, 100, 200) == ([], [])
    assert parted(100, 200, 150, 300) == ([100, 200, 150], [300])  # a resume goes back once


def test_a_job_that_a_later_log_takes_to_its_end_was_not_lost(judged: Judged) -> None:
    later = steps("2026-04-01", "06:50:00", "06:51:00", "06:52:00") + "training complete\n"
    first = steps("2026-04-01", "01:10:00", "01:20:00") + PREEMPTED
    assert judged(run0_log=first, run1_log=later) is None


def test_a_later_log_that_does_not_tell_of_its_end_makes_up_for_nothing(judged: Judged) -> None:
    later = steps("2026-04-01", "06:50:00", "06:51:00")
    found = judged(first_log=steps("2026-04-01", "01:10:00") + PREEMPTED, second_log=later)
    assert found is not None and found.symptom == "worker-or-node-loss"


def test_the_next_attempt_that_trains_makes_up_for_the_one_before_it(judged: Judged) -> None:
    later = steps("2026-04-01", "06:50:00", "06:51:00")
    assert judged(run0_log=steps("2026-04-01", "01:10:00") + PREEMPTED, run1_log=later) is None


MOUNT = '  Warning  FailedMount  9h  kubelet  MountVolume.SetUp failed for volume "corpus" : rpc error: code = DeadlineExceeded\n'
BEGUN = "  Normal   Started      9h  kubelet  Started container pytorch\n"


def test_what_kept_a_pod_from_starting_is_over_once_it_started(judged: Judged) -> None:
    found = judged(describe_txt="Events:\n" + BEGUN + MOUNT)
    assert found is not None and found.rule == "ENV013"
    assert judged(describe_txt="Events:\n" + MOUNT + BEGUN) is None


def test_another_pods_start_says_nothing_of_this_one(judged: Judged) -> None:
    lists = [line.replace("kubelet", f"pod/{pod}") for line, pod in ((MOUNT, "w-1"), (BEGUN, "w-0"))]
    assert judged(events_txt="".join(lists)) is not None
    assert judged(events_txt=lists[0] + BEGUN.replace("kubelet", "pod/w-1")) is None


BROKEN = 'Traceback (most recent call last):\n  File "/code/data.py", line 61, in __getitem__\n    img = Image.open(p)\nPIL.UnidentifiedImageError: cannot identify image file 3.jpg\n'


def test_what_a_rank_wrote_as_an_error_did_not_end_it_where_its_output_tells_of_a_good_end(judged: Judged) -> None:
    output = "".join(f"{n}00 loss 1.{n}\n" for n in range(8))
    assert judged(stderr_log=BROKEN, stdout_log=output + "clean exit\n") is None
    assert judged(stderr_log=BROKEN, stdout_log=output) is not None


def test_what_the_launcher_could_not_reach_at_first_was_reached_where_ranks_then_train(judged: Judged) -> None:
    ssh = "ssh: Could not resolve hostname w-1.job: Name or service not known\n"
    rates = "".join(f"[1,0]<stdout>:{n}\timages/sec: 2717.2 +/- 1.6 (jitter = 8.4)\t4.6\n" for n in range(20))
    assert judged(launcher_log=ssh + rates) is None
    found = judged(launcher_log=ssh)
    assert found is not None and found.rule == "NET004"


def test_an_exit_before_the_good_end_was_made_up_for(judged: Judged) -> None:
    ended = "E0511 10:44:07.821000 140199 torch/distributed/elastic/multiprocessing/api.py:826] failed (exitcode: 1) local_rank: 3 (pid: 81221) of binary: /usr/bin/python3\n"
    train = "".join(f"step {n} loss 1.{n}\n" for n in range(8)) + "Training completed\n"
    assert judged(console_log=BROKEN + ended + train) is None
    assert judged(console_log=train + BROKEN + ended) is not None


LIMIT = "slurmstepd: error: *** STEP 4.0 ON n1 CANCELLED AT 2026-04-01T01:39:08 DUE TO TIME LIMIT ***\n"
REFUSED = (
    "{}Traceback (most recent call last):\n"
    '  File "/opt/job/train.py", line 90, in resume\n'
    "    state = torch.load(path)\n"
    '  File "/opt/py/lib/python3.11/site-packages/torch/serialization.py", line 779, in __init__\n'
    "    super().__init__(torch._C.PyTorchFileReader(name_or_buffer))\n"
    "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
)


def test_what_ended_the_run_that_cannot_be_resumed_is_not_why_it_cannot(judged: Judged) -> None:
    before = steps("2026-04-01", "01:20:00", "01:25:00", "01:30:00") + LIMIT
    verdict = judged(first_log=before, second_log=REFUSED.format(""))
    assert verdict is not None and verdict.symptom == "checkpoint-resume-failure"


def test_a_job_that_trains_after_a_refusal_may_still_be_ended(judged: Judged) -> None:
    verdict = judged(
        first_log=REFUSED.format("2026-03-31 01:00:00 INFO start\n") + steps("2026-04-01", "01:20:00") + LIMIT
    )
    assert verdict is None or verdict.symptom == "worker-or-node-loss"


RETRIES = "n2:31:40 [1] NCCL INFO Call to connect returned Connection timed out, retrying\n"


def test_who_waits_in_vain_until_the_time_is_over_was_not_ended_by_it(judged: Judged) -> None:
    verdict = judged(console_log="Loading the tokenizer\n" + 6 * RETRIES + LIMIT)
    assert verdict is not None and verdict.symptom == "rendezvous-setup-hang"


def test_who_met_the_others_at_last_is_ended_by_the_time_limit(judged: Judged) -> None:
    verdict = judged(console_log=2 * RETRIES + steps("2026-04-01", "01:20:00", "01:25:00") + LIMIT)
    assert verdict is not None and verdict.symptom == "worker-or-node-loss"


def test_what_is_told_after_the_time_was_over_did_not_lead_to_it(judged: Judged) -> None:
    verdict = judged(console_log="Loading the tokenizer\n" + LIMIT + RETRIES)
    assert verdict is not None and verdict.symptom == "worker-or-node-loss"


@pytest.mark.parametrize(
    "behind",
    [
        "[5/12] c++ -MMD -MF b.o.d -c b.cpp -o b.o",
        "[5/12] /usr/local/cuda/bin/nvcc --generate-dependencies-with-compile -c b.cu -o b.o",
        "[5/12] Building CUDA object CMakeFiles/ops.dir/b.cu.o",
        "#12 81.2   [5/12] Building CXX object b.cpp.o",
        "#9 [5/12] RUN pip install flash-attn",
    ],
)
def test_what_a_compiler_goes_on_with_is_no_training_behind_its_error(judged: Judged, behind: str) -> None:
    missing = "src/a.cpp:3:10: fatal error: nccl.h: No such file or directory\n"
    failed = "ninja: build stopped: subcommand failed.\n"
    verdict = judged(build_log="[1/12] ok\n" + missing + 8 * f"{behind}\n" + failed)
    assert verdict is not None and verdict.rule == "ENV019"


def test_what_torch_warns_of_at_the_end_is_no_progress_behind_an_error(judged: Judged) -> None:
    raised = (
        "RuntimeError: It looks like your LightningModule has parameters that were not used in producing the loss\n"
    )
    warned = (
        "[W402 09:33:12.211457341 ProcessGroupNCCL.cpp:1250] Warning: WARNING: process group has NOT been destroyed before"
        " we destruct ProcessGroupNCCL. On normal program exit, the application should call destroy_process_group to"
        " ensure that any pending NCCL operations have finished in this process. (function operator())\n"
    )
    text = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    fit()\n' + raised + warned
    verdict = judged(job_log="".join(f"[rank{rank}]:{line}\n" for rank in (0, 1) for line in text.splitlines()))
    assert verdict is not None and verdict.symptom == "step-execution-error"


def test_of_slurm_jobs_one_after_another_the_last_one_that_failed_is_judged(judged: Judged) -> None:
    resumed = (
        'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n    model.load_state_dict(state)\n'
    )
    refused = "RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch for head.weight\n"
    verdict = judged(
        **{"slurm-7712_out": steps("2026-04-01", "01:38:00") + PREEMPTED, "slurm-7790_out": resumed + refused}
    )
    assert verdict is not None and verdict.symptom == "checkpoint-resume-failure"


def test_a_job_that_a_later_log_goes_on_with_was_stopped_and_not_lost(judged: Judged) -> None:
    requeued = "slurmstepd: error: *** JOB 61 ON n1 CANCELLED AT 2026-08-01T12:00:14 DUE TO JOB REQUEUE ***\n"
    first = "".join(f"step {n} loss {9 - n / 1000:.3f}\n" for n in range(0, 5000, 100))
    second = "".join(f"step {n} loss {9 - n / 1000:.3f}\n" for n in range(4900, 8000, 100))
    assert judged(**{"a_r0.log": first + requeued}) is not None
    assert judged(**{"a_r0.log": first + requeued, "a_r1.log": "resuming from ckpt step_4900\n" + second}) is None


def test_steps_that_are_counted_out_of_all_show_that_it_trains() -> None:
    assert shows_progress("[p0] 1200/4000 bce 0.3898 peak 28.2/39.4 GiB")
    assert not shows_progress("3/8 nodes ready")


def test_what_slurm_says_of_another_job_on_the_node_is_not_this_ones_end(judged: Judged) -> None:
    full = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 448.00 MiB. GPU 3 has a total capacity of 79.11 GiB\n"
    files = {"slurm-7790.out": 'Traceback (most recent call last):\n  File "t.py", line 9, in <module>\n' + full}
    verdict = judged(**files, **{"slurmd_n1.log": PREEMPTED})
    assert verdict is not None and verdict.symptom == "device-out-of-memory"
    ours = judged(**{"slurm-7712.out": steps("2026-04-01", "01:38:00"), "slurmd_n1.log": PREEMPTED})
    assert ours is not None and ours.symptom == "worker-or-node-loss"


DROPPED = "[{r}]<stderr>:[/tmp/gloo/gloo/transport/tcp/pair.cc:598] Connection closed by peer [10.0.7.4]:2587{r}\n"
MET = "INFO:root:all {n} workers recorded\n"


def _elastic(steps: range) -> str:
    return "".join(f"[0]<stdout>:step {n} loss {9 - n / 100:.2f}\n" for n in steps)


@pytest.mark.parametrize("verbose", [True, False])
def test_workers_that_horovods_elastic_driver_went_on_without_are_no_failure(judged: Judged, verbose: bool) -> None:
    met, over = (MET.format(n=4), "INFO:root:success count == 2 -> stop running\n") if verbose else ("", "")
    lost = DROPPED.format(r=0) + DROPPED.format(r=1) + "Process 2 exit with status code 255.\n"
    end = "[0]<stdout>:done: 30 steps\n" + over
    assert (
        judged(job_log=met + _elastic(range(10)) + lost + met.replace("4", "2") + _elastic(range(10, 30)) + end) is None
    )


def test_workers_that_horovod_ended_for_one_that_failed_are_a_failure(judged: Judged) -> None:
    lost = DROPPED.format(r=0) + DROPPED.format(r=1) + "Process 2 exit with status code 255.\n"
    assert judged(job_log=_elastic(range(20)) + lost + _elastic(range(20, 22))) is not None


def test_the_arguments_of_a_program_are_no_progress() -> None:
    assert not shows_progress("INFO:root:start with arguments Namespace(batch_size=32, epochs=200, lr=0.001)")


TAKEN = "2h10m  Normal  Preempted  pod/{pod}  Preempted by pod 91e7a3d5 on node gpu-3\n"


def test_a_pod_of_another_name_that_was_taken_is_not_this_jobs(tmp_path: Path) -> None:
    for n in range(2):
        (tmp_path / f"vit-worker-{n}.log").write_text("step 1 loss 1.2\n")
    (tmp_path / "events.txt").write_text(TAKEN.format(pod="embed-batch-w9zr2"))
    assert diagnose(tmp_path).verdict is None
    (tmp_path / "events.txt").write_text(TAKEN.format(pod="vit-worker-1"))
    found = diagnose(tmp_path).verdict
    assert found is not None and (found.rule, found.ranks) == ("JOB011", (1,))


def test_a_node_that_went_away_did_not_end_the_job_whose_operator_tells_of_success(tmp_path: Path) -> None:
    gone = "91m  Warning  NodeNotReady  node/cpu-4  Node is not ready\n"
    (tmp_path / "events.txt").write_text(gone)
    (tmp_path / "vit-worker-0.log").write_text("".join(f"step {n} loss 1.{n}\n" for n in range(6)))
    assert diagnose(tmp_path).verdict is not None
    said = "    Message:  PyTorchJob cv/{job} successfully completed.\n    Status:  True\n    Type:  Succeeded\n"
    (tmp_path / "describe.txt").write_text(said.format(job="other"))
    assert diagnose(tmp_path).verdict is not None
    (tmp_path / "describe.txt").write_text(said.format(job="vit"))
    assert diagnose(tmp_path).verdict is None


def part(first: int, end: str = "") -> str:
    """Of a run in slices, as Megatron tells of it."""
    head = f"loading checkpoint from /ck/run at iteration {first}\n" if first else "will start from random\n"
    body = "".join(
        f" iteration {n:8d}/  100000 | elapsed time per iteration (s): 2.5 | lm loss: {9 - n / 1000:.4f} |\n"
        for n in range(first + 2, first + 102, 2)
    )
    return head + body + end


def limit(job: int) -> str:
    return f"slurmstepd: error: *** STEP {job}.0 ON n1 CANCELLED AT 2026-01-11T06:00:19 DUE TO TIME LIMIT ***\n"


def test_slices_of_a_run_that_end_at_their_limit_and_go_on_are_no_loss(judged: Judged) -> None:
    slices = {
        "run-61200.out": part(0, limit(61200)),
        "run-61201.out": part(100, limit(61201)),
        "run-61202.out": part(200),
    }
    assert judged(**slices) is None


def test_the_last_slice_that_ends_at_its_limit_is_told(judged: Judged) -> None:
    found = judged(**{"run-61200.out": part(0, limit(61200)), "run-61201.out": part(100, limit(61201))})
    assert found is not None
    assert found.rule == "JOB006"


@pytest.mark.parametrize(
    "line",
    [
        "[2026-08-04T02:07:30.247] [40219.0] error: *** STEP 40219.0 ON gx12 CANCELLED AT 2026-08-04T02:07:30 DUE TO TIME LIMIT ***\n",
        "[2026-08-04T00:11:17.755] [40210.0] error: Detected 1 oom_kill event in StepId=40210.0. Some of the step tasks have been OOM Killed.\n",
    ],
)
def test_what_slurm_tells_of_jobs_that_were_on_the_node_before_is_not_this_ones(judged: Judged, line: str) -> None:
    trained = "".join(f"[07:05:{n:02}] rank 0 step {n} loss 0.{90 - n}\n" for n in range(10, 50))
    assert judged(**{"job-40244.out": trained, "slurmd_gx12.log": line}) is None


def test_a_day_in_a_logs_name_is_no_number_of_a_job(judged: Judged) -> None:
    trained = steps("2026-08-04", "02:07:10", "02:07:20")
    assert judged(**{"job-20260804.out": trained, "slurmd_gx12.log": limit(40219)}) is not None


def test_what_happened_to_another_jobs_pod_is_not_this_ones(judged: Judged) -> None:
    logs = {f"trainer-0-{n}.log": steps("2026-06-20", "12:45:10", "12:45:20", "12:45:30") for n in range(3)}
    events = "".join(f"320m  Normal  Started  pod/trainer-0-{n}  Started container train\n" for n in range(3))
    killed = "261m  Warning  OOMKilling  pod/spark-exec-4520  Memory cgroup out of memory: Killed process 22119 (node) total-vm:9812344kB\n"
    assert judged(**{**logs, "kubectl_get_events.txt": events + killed}) is None


def test_a_score_that_is_said_again_with_every_step_does_not_stand(judged: Judged) -> None:
    line = "Training epoch 1, iteration {n}/310 | lr: 1e-05 | global_step: {n} | reduced_train_loss: {loss:.4f} | val_loss: 0.9190\n"
    assert judged(**{"nemo.log": "".join(line.format(n=n, loss=1 - n / 1000) for n in range(40))}) is None


@pytest.mark.parametrize(("last", "said"), [("3m (x301 over 25h)", "JOB034"), ("26h", "JOB011")])
def test_pods_that_were_preempted_and_made_again_lack_a_place(judged: Judged, last: str, said: str) -> None:
    """As long as they still wait; what kept them from starting before is over."""
    events = (
        "Events:\n  Type     Reason            Age     From               Message\n"
        f"  Warning  FailedScheduling  {last}  default-scheduler  0/14 nodes are available: 12 Insufficient nvidia.com/gpu.\n"
        "research   25h   Normal   Preempted   pod/bert-worker-0   Preempted by pod 4f0e3d2a on node dgx-07\n"
    )
    verdict = judged(session_txt=steps("2025-06-15", "06:10:00", "06:10:30", "06:11:00") + events)
    assert verdict is not None
    assert verdict.rule == said


GUARD = (
    "[guard] ERROR reading /ckpt/step2000/rank5.pt: PytorchStreamReader failed reading zip archive: not a ZIP archive\n"
)


@pytest.mark.parametrize(("first", "said"), [(1550, None), (50, "checkpoint-resume-failure")])
def test_a_file_that_cannot_be_read_is_made_up_for_by_training_on_from_another(
    judged: Judged, first: int, said: str | None
) -> None:
    lines = "".join(f"2026-04-01 02:{n:02}:00 step {first + 50 * n} loss 1.{n:02}\n" for n in range(40))
    died = (
        steps("2026-04-01", *(f"01:{n:02}:00" for n in range(9)))
        + "ERROR:composer.cli.launcher:Rank 7 crashed with exit code -9.\n"
    )
    found = judged(try1_log=died, try2_log=GUARD + lines + "2026-04-01 03:00:00 training finished\n")
    assert (found.symptom if found else None) == said
