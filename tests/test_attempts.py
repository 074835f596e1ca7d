"""Logs of one job's attempts lie side by side: the last one is judged, and what lies beside it for another reason is not."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest

from paramedic.knowledge import Knowledge, load
from paramedic.model import Report
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter

FIRST = (
    "2025-06-02 22:01:10 INFO starting, world_size=4\n"
    "[rank0]: Traceback (most recent call last):\n"
    '[rank0]:   File "/home/ana/train.py", line 12, in <module>\n'
    "[rank0]:     import flash_attn\n"
    "[rank0]: ModuleNotFoundError: No module named 'flash_attn'\n"
)
STEPS = "".join(f"2025-06-02 22:{31 + n // 60}:{n % 60:02} INFO step {n} loss {5 - n / 50:.3f}\n" for n in range(40))
SECOND = (
    STEPS
    + "[rank1]: Traceback (most recent call last):\n"
    + '[rank1]:   File "/home/ana/train.py", line 88, in <module>\n'
    + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 1 has a total capacity of "
    + "79.15 GiB of which 1.02 GiB is free.\n"
)


def diagnosed(folder: Path, files: dict[str, str]) -> Report:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    knowledge, prefilter = _known()
    return examine(read([str(folder)], prefilter), knowledge, prefilter, Options())


@cache
def _known() -> tuple[Knowledge, Prefilter]:
    knowledge = load()
    return knowledge, compile_prefilter(knowledge)


@pytest.mark.parametrize(
    "names",
    [
        ("attempt1/train.log", "attempt2/train.log"),
        ("try-9/train.log", "try-10/train.log"),
        ("run-20250602-2201.log", "run-20250602-2231.log"),
        ("2025-06-02_22-01/out.log", "2025-06-02_22-31/out.log"),
    ],
)
def test_the_last_attempt_is_judged_and_the_first_is_still_told(tmp_path: Path, names: tuple[str, str]) -> None:
    report = diagnosed(tmp_path, dict(zip(names, (FIRST, SECOND), strict=True)))
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("device-out-of-memory", (1,))
    assert "import-or-missing-symbol" in [one.symptom for one in report.findings]


def test_a_later_attempt_that_trains_has_made_up_for_the_first(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, {"attempt1/train.log": FIRST, "attempt2/train.log": STEPS + "Training complete\n"})
    assert report.verdict is None
    assert [one.symptom for one in report.findings] == ["import-or-missing-symbol"]


def test_named_attempts_need_no_clock(tmp_path: Path) -> None:
    bare = [text.replace("2025-06-02 22:", "") for text in (FIRST, SECOND)]
    report = diagnosed(tmp_path, {"attempt_1/job.log": bare[0], "attempt_2/job.log": bare[1]})
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


def test_logs_that_are_written_at_the_same_time_are_of_one_attempt(tmp_path: Path) -> None:
    early = SECOND.replace("rank1", "rank0")
    late = STEPS + "[rank5]: RuntimeError: Connection closed by peer [10.0.0.1]:4000\n"
    report = diagnosed(tmp_path, {"part-1.log": late, "part-2.log": early})
    assert {event.attempt for event in report.run.events} == {0}
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


@pytest.mark.parametrize("name", ["node{}.log", "rank_{}.log", "worker-{}/train.log", "trial_{}/train.log"])
def test_numbers_of_places_and_trials_are_no_attempts(tmp_path: Path, name: str) -> None:
    report = diagnosed(tmp_path, {name.format(0): FIRST, name.format(1): SECOND})
    assert {event.attempt for event in report.run.events} == {0}


def test_a_log_that_goes_on_in_another_file_is_one(tmp_path: Path) -> None:
    half = len(STEPS) // 2
    cut = STEPS.index("\n", half) + 1
    report = diagnosed(tmp_path, {"train.log.1": STEPS[:cut], "train.log.2": STEPS[cut:] + SECOND[len(STEPS) :]})
    assert {event.attempt for event in report.run.events} == {0}


def test_messages_of_an_earlier_attempt_do_not_follow_from_the_last_ones_failure(tmp_path: Path) -> None:
    ended = FIRST + "slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED AT 2025-06-02T22:02:00 ***\n"
    report = diagnosed(tmp_path, {"attempt1/train.log": ended, "attempt2/train.log": SECOND})
    told = [event.source for cascade in report.cascades for event in cascade.events]
    assert not [source for source in told if "attempt1" in source]


def restarted() -> str:
    """A log of two attempts, the second of which ends in a timeout, too."""
    again = "I0602 22:10:01.000000 9 torch/distributed/elastic/agent/server/api.py:987] [default] Worker group FAILED. "
    stall = (
        "[rank0]:[E602 22:{}.1 ProcessGroupNCCL.cpp:632] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60001 milliseconds "
        "before timing out.\n"
    )
    return (
        "2025-06-02 22:01:10 world_size=4\n"
        + stall.format("10:00")
        + again
        + "1/1 attempts left; will restart worker group\n"
        + "2025-06-02 22:12:10 step 4 loss 3.1\n"
        + stall.format("30:00")
    )


@pytest.mark.parametrize(
    ("when", "symptom"),
    [("Mon Jun  2 22:28:50 2025", "accelerator-fault"), ("Mon Jun  2 22:08:50 2025", "collective-hang")],
)
def test_what_a_kernel_says_belongs_to_the_attempt_that_ran_then(tmp_path: Path, when: str, symptom: str) -> None:
    kernel = f"[{when}] NVRM: Xid (PCI:0000:5e:00): 79, pid=4410, name=python, GPU has fallen off the bus.\n"
    report = diagnosed(tmp_path, {"job.log": restarted(), "n7_dmesg.txt": kernel})
    assert report.verdict is not None and report.verdict.symptom == symptom


def test_a_kernel_by_another_clock_is_of_no_attempt_in_particular(tmp_path: Path) -> None:
    kernel = "2025-06-02T22:28:50+00:00 n7 kernel: NVRM: Xid (PCI:0000:5e:00): 79, pid=4410, name=python, GPU lost\n"
    report = diagnosed(tmp_path, {"job.log": restarted(), "n7_dmesg.txt": kernel})
    assert {event.attempt for event in report.run.events if "NVRM" in event.text} == {0}


KILLED = "[rank3]: RuntimeError: CUDA error: unspecified launch failure\n"
LOST = "[rank0]: RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.9]:41\n"


@pytest.mark.parametrize("name", ["{host}.attempt{n}.log", "restart_{n}/{host}.log", "{host}/app_cycle{n}.log"])
def test_names_of_several_nodes_say_which_attempt_it_was(tmp_path: Path, name: str) -> None:
    files = {name.format(host=host, n=n): text for host in ("eagle", "heron") for n, text in enumerate((FIRST, SECOND))}
    report = diagnosed(tmp_path, {**files, "pip_freeze.txt": "torch==2.5.1\n"})
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"
    assert {event.attempt for event in report.run.events if event.kind == "traceback"} == {0, 1}


def test_what_clocks_contradict_is_no_attempt(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, {"a.attempt0.log": SECOND, "a.attempt1.log": STEPS, "b.txt": "nothing\n"})
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


def test_a_node_that_was_not_started_again_keeps_its_failure(tmp_path: Path) -> None:
    """Without clocks: only one of two nodes has a later log, and nobody knows whether the other was restarted."""
    bare = STEPS.replace("2025-06-02 22:", "")
    report = diagnosed(tmp_path, {"heron.restart0.log": KILLED, "eagle.restart1.log": bare})
    assert {event.attempt for event in report.run.events} == {0}


def test_containers_that_were_all_started_again_and_train_have_lost_nothing(tmp_path: Path) -> None:
    steps = STEPS.replace("2025-06-02 ", "")
    files = {
        "m-0.previous.log": LOST,
        "w-0.previous.log": KILLED,
        "m-0.log": steps,
        "w-0.log": "resumed\nstep 4 loss 1.0\n",
    }
    assert diagnosed(tmp_path, files).verdict is None


def test_one_container_that_was_started_again_does_not_excuse_the_others(tmp_path: Path) -> None:
    steps = STEPS.replace("2025-06-02 ", "")
    report = diagnosed(tmp_path, {"w-0.previous.log": KILLED, "w-0.log": "waiting\n", "m-0.log": steps + LOST})
    assert {event.attempt for event in report.run.events} == {0}
    assert report.verdict is not None and report.verdict.symptom == "accelerator-fault"


def test_what_a_platform_says_of_the_end_is_of_the_last_start(tmp_path: Path) -> None:
    steps = STEPS.replace("2025-06-02 ", "")
    described = "Name: w-0\nState: Terminated\n  Reason: OOMKilled\n  Exit Code: 137\nRestart Count: 1\n"
    files = {"w-0.previous.log": KILLED, "w-0.log": steps, "describe_w-0.txt": described}
    report = diagnosed(tmp_path, files)
    assert report.verdict is not None and report.verdict.symptom == "host-out-of-memory"
    assert all(event.attempt == 1 for event in report.run.events if "describe" in event.source)


def test_restarts_within_named_attempts_are_counted_through(tmp_path: Path) -> None:
    later = SECOND.replace("2025-06-02 22:", "2025-06-02 23:")
    report = diagnosed(
        tmp_path, {"attempt_0.log": restarted(), "attempt_1.log": later, "job.sbatch": "srun train.sh\n"}
    )
    assert max(event.attempt for event in report.run.events if "attempt_0" in event.source) == 1
    assert {event.attempt for event in report.run.events if "attempt_1" in event.source} == {2}
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


@pytest.mark.parametrize("name", ["queue_{}/{}.log", "launch{}/{}.log", "quick-entry{}/{}.log"])
def test_other_numbered_folders_without_clocks_are_no_attempts(tmp_path: Path, name: str) -> None:
    bare = STEPS.replace("2025-06-02 22:", "")
    files = {name.format(n, host): text for n, text in enumerate((KILLED, bare)) for host in ("eagle", "heron")}
    report = diagnosed(tmp_path, files)
    assert {event.attempt for event in report.run.events} == {0}


CANCELLED = "slurmstepd: error: *** STEP 771.0 ON n1 CANCELLED AT 2025-06-02T{} DUE TO PREEMPTION ***\n"
BEFORE = "".join(f"2025-06-02 21:5{n}:00 INFO step {n} loss 3.1\n" for n in range(10))


@pytest.mark.parametrize(
    ("cancelled", "after", "attempts"),
    [
        ("21:59:30", SECOND, 2),  # half an hour later somebody trains
        ("21:59:30", SECOND.replace("22:31:", "21:59:"), 1),  # the last words of those who are ended
        ("14:59:30", SECOND.replace("22:31:", "22:03:"), 1),  # whose clock it is nobody knows
    ],
)
def test_a_job_that_writes_long_after_slurm_has_cancelled_it_was_begun_again(
    tmp_path: Path, cancelled: str, after: str, attempts: int
) -> None:
    report = diagnosed(tmp_path, {"slurm-771.out": BEFORE + CANCELLED.format(cancelled) + after})

    assert len({event.attempt for event in report.run.events}) == attempts


def test_folders_of_the_logs_before_and_of_now_are_two_attempts(tmp_path: Path) -> None:
    files = {f"previous/sft-worker-{n}.log": FIRST for n in (0, 1)} | {
        f"current/sft-worker-{n}.log": STEPS for n in (0, 1)
    }

    assert diagnosed(tmp_path, files).verdict is None


FAILED_FIRST = "\n".join(
    [
        "[rank1]: Traceback (most recent call last):",
        '[rank1]:   File "/home/ana/train.py", line 30, in <module>',
        "[rank1]: RuntimeError: CUDA error: an illegal memory access was encountered",
        "",
    ]
)
MISSING = "\n".join(
    [
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/home/ana/train.py", line 12, in <module>',
        "[rank3]: FileNotFoundError: [Errno 2] No such file or directory: '/scratch/fast/dict.txt'",
        "",
    ]
)


def test_a_script_that_counts_its_attempts_after_an_end_begins_another(tmp_path: Path) -> None:
    ended = "srun: error: n07: task 1: Exited with exit code 1\n"
    report = diagnosed(tmp_path, {"job.log": f"attempt 0: n06 n07\n{FAILED_FIRST}{ended}attempt 1: n06 n09\n{MISSING}"})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("path-or-permission-error", (3,))


def test_tries_to_connect_are_no_attempts_of_the_job(tmp_path: Path) -> None:
    tries = "".join(f"Attempt {n} to connect to n06:29500 failed, trying again\n" for n in range(1, 4))
    ended = "srun: error: n07: task 1: Exited with exit code 1\n"
    report = diagnosed(tmp_path, {"job.log": f"{FAILED_FIRST}{ended}{tries}"})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.attempt) == ("accelerator-fault", 0)


def test_a_command_given_again_at_the_prompt_is_another_attempt(tmp_path: Path) -> None:
    command = "(ml) ana@box:~/job$ ./run.sh 2>&1 | tee -a run.log\n+ torchrun --nproc-per-node 4 train.py\n"
    report = diagnosed(tmp_path, {"run.log": command + FAILED_FIRST + command + MISSING})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.attempt) == ("path-or-permission-error", 1)


def test_a_look_around_at_the_prompt_is_no_attempt(tmp_path: Path) -> None:
    look = "ana@box:~/job$ nvidia-smi -L\nGPU 0: NVIDIA A100\n"
    report = diagnosed(tmp_path, {"run.log": look + FAILED_FIRST + look})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.attempt) == ("accelerator-fault", 0)


def test_logs_named_by_attempts_follow_each_other_also_where_a_node_was_exchanged(tmp_path: Path) -> None:
    nodes = {"attempt_0/n1.log": "ready\n", "attempt_0/n2.log": FAILED_FIRST, "attempt_1/n1.log": "ready\n"}
    console = "attempt 0: n1 n2\nsrun: error: n2: task 1: Exited with exit code 1\nattempt 1: n1 n3\n"
    ended = "srun: error: n3: task 3: Exited with exit code 1\n"
    report = diagnosed(tmp_path, {**nodes, "attempt_1/n3.log": MISSING, "job.out": console + ended})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("path-or-permission-error", (3,))


def test_a_slow_rank_comes_before_the_time_limit_that_it_leads_to(tmp_path: Path) -> None:
    seconds = {0: 1.0, 1: 1.0, 2: 2.6, 3: 1.0}
    rows = "".join(
        f"step {n} rank {rank} compute {seconds[rank] + n % 3 / 100:.2f} s wait {2.65 - seconds[rank]:.2f} s\n"
        for n in range(30)
        for rank in seconds
    )
    limit = "slurmstepd: error: *** JOB 77 ON n1 CANCELLED AT 2025-04-14T14:52:07 DUE TO TIME LIMIT ***\n"
    report = diagnosed(tmp_path, {"job.log": rows + limit})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("straggler-or-imbalance", (2,))


TORN = "[rank{r}]: RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory\n"
SHUT = "2025-06-02 22:40:30 Received 15 death signal, shutting down workers\n"


def gave_up(first: int) -> str:
    raised = "".join(f"[rank{r}]: Traceback (most recent call last):\n{TORN.format(r=r)}" for r in (first, first + 1))
    return f"2025-06-02 22:51:0{first} [rank{first}] world_size=4\n{raised}"


def test_pods_that_came_in_place_of_others_are_of_their_next_attempt(tmp_path: Path) -> None:
    """Only one of them was started in the same pod, which has an earlier log."""
    files = {"m-0.previous.log": STEPS + SHUT, "m-0.log": gave_up(0), "w-0.log": gave_up(2)}
    report = diagnosed(tmp_path, files)
    assert {(Path(s.id).name, s.attempt) for s in report.run.sources} == {
        ("m-0.previous.log", 0), ("m-0.log", 1), ("w-0.log", 1),
    }  # fmt: skip
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("checkpoint-resume-failure", ())


LOST_POD = "{age}  Warning  NodeShutdown  pod/{pod}  Pod was terminated in response to imminent node shutdown.\n"
PLACED = "{age}  Normal  Scheduled  pod/{pod}  Successfully assigned ml/{pod} to node-7\n"


@pytest.mark.parametrize(
    ("lost", "placed", "attempt"),
    [("31m", "24m", 0), ("31m", "40m", 1), ("1h2m", "24m (x3 over 1h)", 0), ("24m", "24m", 0)],
)
def test_what_befell_a_pod_before_its_next_start_is_of_an_earlier_attempt(
    tmp_path: Path, lost: str, placed: str, attempt: int
) -> None:
    events = LOST_POD.format(age=lost, pod="m-0") + PLACED.format(age=placed, pod="m-0")
    files = {"m-0.previous.log": STEPS + SHUT, "m-0.log": gave_up(0), "events.txt": events}
    report = diagnosed(tmp_path, files)
    found = [one for one in report.findings if one.evidence[0].event.source.endswith("events.txt")]
    assert [one.attempt for one in found] == [attempt]


def test_a_list_of_all_pods_starts_does_not_date_those_of_another_job(tmp_path: Path) -> None:
    events = LOST_POD.format(age="31m", pod="m-worker-0") + PLACED.format(age="24m", pod="other-worker-0")
    files = {"m-0.previous.log": STEPS + SHUT, "m-0.log": gave_up(0), "events.txt": events}
    report = diagnosed(tmp_path, files)
    assert {event.attempt for event in report.run.events if event.source.endswith("events.txt")} == {1}


def test_pods_whose_names_are_drawn_anew_follow_each_other(tmp_path: Path) -> None:
    later = FIRST.replace("22:01", "23:01")
    files = {"pods/det-x7k2p.log": SECOND, "pods/det-b9zqd.log": later, "describe.txt": "Backoff Limit: 1\n"}
    report = diagnosed(tmp_path, files)
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.attempt) == ("import-or-missing-symbol", 1)


def test_pods_with_drawn_names_that_run_side_by_side_are_one_attempt(tmp_path: Path) -> None:
    report = diagnosed(tmp_path, {"pods/det-x7k2p.log": SECOND, "pods/det-b9zqd.log": STEPS + KILLED})
    assert {event.attempt for event in report.run.events} == {0}


def test_a_platforms_streams_follow_each_other_beside_its_description(tmp_path: Path) -> None:
    files = {"job/algo-1-1748901600": FIRST, "job/algo-1-1748903400": SECOND, "describe.txt": "Backoff Limit: 1\n"}
    report = diagnosed(tmp_path, files)
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.attempt) == ("device-out-of-memory", 1)


def test_jobs_that_are_only_numbered_beside_a_table_of_all_stay_apart(tmp_path: Path) -> None:
    files = {"x-4411.log": SECOND, "x-4412.log": STEPS.replace("22:", "23:"), "notes/sacct.txt": "4411 FAILED\n"}
    report = diagnosed(tmp_path, files)
    assert report.verdict is not None and report.verdict.symptom == "device-out-of-memory"


def test_a_pod_that_was_up_before_the_others_began_does_not_unmake_an_attempt(tmp_path: Path) -> None:
    late = "".join(f"2025-06-02 23:0{n}:00 INFO step {n} loss 4.1\n" for n in range(5))
    early = "2025-06-02 22:10:00 up\n2025-06-02 23:05:00 [rank1] closing\n"
    files = {"attempt-0/w-0.log": SECOND, "attempt-1/w-0.log": late, "attempt-1/w-1.log": early}
    report = diagnosed(tmp_path, files)
    assert {(s.id.rsplit("/", 2)[1], s.attempt) for s in report.run.sources} == {("attempt-0", 0), ("attempt-1", 1)}


def test_a_program_started_with_other_arguments_at_the_prompt_is_another_attempt(tmp_path: Path) -> None:
    first = "ana@box:~/job$ torchrun --nproc-per-node 4 train.py --bs 8\n" + FAILED_FIRST
    later = "ana@box:~/job$ vim train.py\nana@box:~/job$ torchrun --nproc-per-node 4 train.py --bs 4 --resume last\n"
    report = diagnosed(tmp_path, {"console.txt": first + later + "loading\n" + MISSING})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.attempt) == ("path-or-permission-error", 1)


def test_another_program_at_the_prompt_is_no_attempt_of_the_job(tmp_path: Path) -> None:
    first = "ana@box:~/job$ torchrun --nproc-per-node 4 train.py\n" + FAILED_FIRST
    report = diagnosed(tmp_path, {"console.txt": f"{first}ana@box:~/job$ python plot.py\n{MISSING}"})
    assert {event.attempt for event in report.run.events} == {0}


BEGUN = "2025-06-02 {hour}:00:00 auto_resume: /opt/checkpoint empty or absent, starting at step 0\n"
SAVED = "2025-06-02 {hour}:31:00 saved checkpoint at iteration 30 to {folder}/step_30\n"
TIME_LIMIT = "slurmstepd: error: *** JOB 771 ON n1 CANCELLED AT 2025-06-02T23:59:00 DUE TO TIME LIMIT ***\n"


def a_start(hour: int, first: str, folder: str) -> str:
    trained = "".join(f"2025-06-02 {hour}:{n:02}:10 INFO step {n} loss {5 - n / 50:.3f}\n" for n in range(30))
    return first.format(hour=hour) + trained + SAVED.format(hour=hour, folder=folder)


@pytest.mark.parametrize(
    ("folder", "symptom"), [("/opt/checkpoint", "checkpoint-resume-failure"), ("/opt/checkpoints", None)]
)
def test_a_start_at_nought_beside_a_folder_that_was_saved_to_has_lost_what_was_there(
    tmp_path: Path, folder: str, symptom: str | None
) -> None:
    files = {f"try-{n}/job.log": a_start(20 + n, BEGUN, folder) for n in (1, 2)}
    verdict = diagnosed(tmp_path, files).verdict
    assert (verdict.symptom if verdict else None) == symptom


def test_starts_that_look_in_one_place_and_save_in_another_never_resume(tmp_path: Path) -> None:
    """That their time is over in the end follows from it."""
    missed = "{hour} WARNING: could not find the metadata file /p/run41/latest_checkpointed_iteration.txt\n"
    missed += "{hour}     will not load any checkpoints and will start from random\n"
    files = {f"try-{n}/job.log": a_start(20 + n, missed, "/p/run14") for n in (1, 2)}
    files["try-2/job.log"] += TIME_LIMIT
    verdict = diagnosed(tmp_path, files).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.causes[0].id) == (
        "checkpoint-resume-failure",
        "launcher-or-rank-misconfiguration",
    )


def test_an_attempt_that_has_left_nothing_to_tell_counts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("all nodes are up\n")
    for attempt, text in (("1", "\n"), ("2", "\n")):
        (tmp_path / f"attempt_{attempt}" / "0").mkdir(parents=True)
        (tmp_path / f"attempt_{attempt}" / "0" / "stdout.log").write_text(text)
    run = read([str(tmp_path)], _known()[1])
    assert min(source.attempt for source in run.sources) >= 0
    assert min(event.attempt for event in run.events) >= 0
