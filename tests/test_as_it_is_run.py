"""Logs as jobs really leave them: emptied while written, ended by hand, begun again below, full of what is passed over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.collect.activity import shows_progress
from paramedic.collect.readings import said_in
from paramedic.model import Finding, Report

Told = Callable[..., Report]

pytestmark = pytest.mark.usefixtures("rules_loaded_once")


@pytest.fixture
def told(tmp_path: Path) -> Told:
    def report(text: str | bytes, name: str = "train.log", **beside: str) -> Report:
        data = text if isinstance(text, bytes) else text.encode()
        (tmp_path / name).write_bytes(data)
        for other, said in beside.items():
            (tmp_path / other.replace("__", ".")).write_text(said, "utf-8")
        return diagnose(tmp_path)

    return report


def verdict(report: Report) -> Finding:
    assert report.verdict is not None
    return report.verdict


def steps(first: int = 0, count: int = 12, prefix: str = "") -> str:
    return "".join(
        f"{prefix}2026-05-04 10:{n // 60:02}:{n % 60:02} step {n} loss {4 - n / 100:.3f}\n"
        for n in range(first, first + count)
    )


def raised(*frames: str, error: str, head: str = "Traceback (most recent call last):", prefix: str = "") -> str:
    lines = [head]
    for frame in frames:
        path, line, function = frame.rsplit(":", 2)
        lines += [f'  File "{path}", line {line}, in {function}', "    call()"]
    return "".join(f"{prefix}{line}\n" for line in (*lines, error))


OOM = raised(
    "/srv/train.py:40:<module>",
    "/srv/train.py:31:step",
    error="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.20 GiB is free.",
)


# -- what the file is --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hole", [100, 70_000, 3_000_000])
def test_a_log_that_was_emptied_while_written_is_read_behind_its_hole(told: Told, hole: int) -> None:
    report = told(b"nohup: ignoring input\n" + b"\0" * hole + (steps() + OOM).encode())
    found = verdict(report)
    assert found.symptom == "device-out-of-memory"
    assert found.evidence[0].event.line == 1 + 12 + len(OOM.splitlines())
    assert not report.skipped


def test_noughts_between_other_bytes_are_no_log(told: Told) -> None:
    report = told(bytes(range(256)) * 8 + b"\0" * 4096 + bytes(range(256)) * 8)
    assert [one.why for one in report.skipped] == ["binary file"]


# -- what is printed and passed over -----------------------------------------------------------------------------------


def test_exceptions_that_python_passes_over_at_exit_are_no_last_words(told: Told) -> None:
    ignored = raised(
        "/opt/site-packages/tool/tables.py:480:write_tables",
        "/opt/site-packages/tool/tables.py:105:put",
        error="FileNotFoundError: [Errno 2] No such file or directory: '/home/ann/.cache/table.tmp'",
    )
    header = "Exception ignored in atexit callback: <function write_tables at 0x7f7c869e3060>\n"
    assert told(steps() + header + ignored).verdict is None


def test_finalisers_of_multiprocessing_print_and_go_on(told: Told) -> None:
    swallowed = raised(
        "/usr/lib/python3.11/multiprocessing/util.py:300:_run_finalizers",
        "/usr/lib/python3.11/multiprocessing/util.py:224:__call__",
        "/usr/lib/python3.11/multiprocessing/synchronize.py:87:_cleanup",
        error="FileNotFoundError: [Errno 2] No such file or directory",
    )
    assert told(steps() + swallowed).verdict is None


@pytest.mark.parametrize(
    "place",
    [
        "W0412 22:35:58.342000 92360 torch/_inductor/codecache.py:1021] [0/6] ",
        "E0416 03:02:27.979000 54080 torch/_inductor/select_algorithm.py:3541] [0/0] ",
        "E0416 03:02:27.979000 54080 /opt/site-packages/torch/_inductor/select_algorithm.py:99] [0/0] ",
    ],
)
def test_what_torch_logs_and_does_without_is_no_failure(told: Told, place: str) -> None:
    logged = raised(
        "/opt/site-packages/torch/_inductor/runtime.py:664:make",
        error="EOFError: Ran out of input",
        prefix=f"[rank4]:{place}",
    )
    assert told(steps() + logged * 2 + steps(12)).verdict is None


def test_a_warning_of_a_package_that_is_done_without_is_no_failure(told: Told) -> None:
    warned = (
        "/opt/site-packages/geo/typing.py:63: UserWarning: An issue occurred while importing 'geo-scatter'. Disabling its "
        "usage. Stacktrace: /opt/site-packages/geo_scatter/_version.so: undefined symbol: _ZN5torch3jit17parseSchemaE\n"
    )
    assert told(warned + steps()).verdict is None
    assert verdict(told(warned.partition("Stacktrace: ")[2])).symptom == "import-or-missing-symbol"


def test_a_thread_that_pins_batches_loses_its_workers_when_the_job_ends(told: Told) -> None:
    lost = raised(
        "/opt/python3.11/threading.py:1016:_bootstrap_inner",
        "/opt/site-packages/torch/utils/data/_utils/pin_memory.py:53:_pin_memory_loop",
        "/opt/python3.11/multiprocessing/connection.py:379:_recv",
        error="ConnectionResetError: [Errno 104] Connection reset by peer",
        head="Exception in thread Thread-1 (_pin_memory_loop):\nTraceback (most recent call last):",
    )
    assert told(steps() + lost).verdict is None


def test_a_call_that_fails_time_after_time_while_training_goes_on_is_guarded(told: Told) -> None:
    failed = "(Worker pid=711) ERROR:" + raised(
        "/srv/env.py:470:update", "/srv/env.py:282:read", error="ValueError: no tag"
    )
    mixed = "".join(failed + steps(4 * n, 4) for n in range(9))
    assert told(mixed + failed).verdict is None
    uncaught = raised(
        "/srv/train.py:9:<module>", "/srv/env.py:470:update", "/srv/env.py:282:read", error="ValueError: no tag"
    )
    assert told(steps() + uncaught).verdict is not None


def test_two_processes_that_are_interrupted_at_once_are_interrupted(told: Told) -> None:
    twice = raised("/srv/train.py:9:<module>", "/srv/train.py:5:forward", error="KeyboardInterruptKeyboardInterrupt")
    assert told(steps() + twice).verdict is None


def test_a_program_that_says_that_it_was_interrupted_has_not_failed(told: Told) -> None:
    said = "2026-05-04 10:11:50 - LOGS - Keyboard interruption. Exiting from early training\n"
    late = raised("/srv/train.py:9:<module>", "/srv/net.py:5:send", error="BrokenPipeError: [Errno 32] Broken pipe")
    assert told(steps() + said + late).verdict is None


def test_nccl_that_goes_on_without_collnet_has_not_failed(told: Told) -> None:
    at = "n1:7276:7875 [0] "
    fell_back = f"\n{at}transport.cc:253 NCCL WARN Cannot initialize CollNet, using point-to-point network instead\n"
    gave_up = f"{at}NCCL INFO init.cc:765 -> 2\n"
    assert told(fell_back + gave_up + f"{at}NCCL INFO comm 0x5 rank 0 nranks 8 - Init COMPLETE\n").verdict is None
    assert verdict(told(gave_up)).rule == "NET302"


# -- who ended it ------------------------------------------------------------------------------------------------------


def test_a_child_of_torchs_spawn_that_was_killed_is_named(told: Told) -> None:
    ended = raised(
        "/srv/main.py:42:<module>",
        "/opt/site-packages/torch/multiprocessing/spawn.py:140:join",
        error="torch.multiprocessing.spawn.ProcessExitedException: process 3 terminated with signal SIGKILL",
    )
    found = verdict(told(steps() + ended + "2026-05-04 10:00:30 image 29606 is possibly corrupt\n"))
    assert (found.symptom, found.ranks) == ("worker-or-node-loss", (3,))


def test_a_job_that_somebody_cancelled_while_it_went_well_has_not_failed(told: Told) -> None:
    cancelled = "slurmstepd: error: *** JOB 2566 ON n1 CANCELLED AT 2026-05-04T10:01:00 ***\n"
    report = told(steps(count=60) + cancelled)
    assert report.verdict is None
    assert [(one.rule, one.severity) for one in report.findings] == [("JOB014", "warning")]
    assert verdict(told(steps() + OOM + cancelled)).symptom == "device-out-of-memory"


def test_a_script_that_says_done_behind_a_failure_was_no_success(told: Told) -> None:
    failed = raised("/srv/train.py:9:<module>", "/srv/train.py:5:forward", error="KeyError: 'text'")
    ends = "srun: error: n1: task 1: Exited with exit code 1\nsrun: Terminating StepId=7.0\n"
    assert told(steps() + failed + ends + "All done!\n").verdict is not None


def test_a_script_that_says_done_in_its_output_was_no_success_where_its_errors_say_otherwise(told: Told) -> None:
    failed = raised("/srv/train.py:9:<module>", "/srv/train.py:5:forward", error="KeyError: 'text'", prefix="1: ")
    errors = failed + "srun: error: n1: task 1: Exited with exit code 1\n"
    assert told("> finished creating datasets\nDone. Results in /srv/out\n", "7.out", **{"7__err": errors}).verdict


def test_a_failure_before_a_time_limit_is_no_echo_of_it(told: Told) -> None:
    limit = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-05-04T14:00:00 DUE TO TIME LIMIT ***\n"
    assert verdict(told(steps() + OOM + limit)).symptom == "device-out-of-memory"
    assert verdict(told(OOM + steps() + limit)).rule == "JOB006"  # who went on for so long had caught it


def test_a_host_that_cannot_be_reached_is_no_echo_of_a_crash_behind_it(told: Told) -> None:
    connect = (
        "4: n2:53622:56536 [0] include/socket.h:406 NCCL WARN Connect to 10.0.0.61<42427> failed : No route to host\n"
    )
    crash = "srun: error: n2: task 4: Segmentation fault\nsrun: Terminating job step 7.1\n"
    assert verdict(told(connect + crash)).symptom == "rendezvous-setup-failure"


def test_slurm_that_starts_elsewhere_has_failed_only_who_misses_a_file(told: Told) -> None:
    elsewhere = "slurmstepd: error: couldn't chdir to `/workspace': No such file or directory: going to /tmp instead\n"
    assert told(elsewhere + steps()).verdict is None
    missing = raised(
        "/srv/train.py:9:<module>", error="FileNotFoundError: [Errno 2] No such file or directory: 'a.yaml'"
    )
    assert verdict(told(elsewhere + missing)).symptom == "path-or-permission-error"


def test_an_import_that_fails_beside_ranks_that_all_train_was_somebody_elses(told: Told) -> None:
    helper = raised("/usr/bin/wandb:5:<module>", error="ModuleNotFoundError: No module named 'dataclasses'")
    ranks = "".join(steps(n, 1, prefix=f"[rank{rank}]: ") for n in range(12) for rank in (0, 1))
    lost = raised(
        "/srv/train.py:40:<module>",
        "/srv/data.py:31:read",
        error="OSError: [Errno 5] Input/output error",
        prefix="[rank1]: ",
    )
    assert verdict(told(helper + "world_size: 2\n" + ranks + lost)).ranks == (1,)


# -- what numbers are not ----------------------------------------------------------------------------------------------


def test_a_programs_arguments_are_no_measurements() -> None:
    said = said_in("args Namespace(batch_size=128, epochs=300, model_ema_decay=0.99996, lr=0.1, dropout=0.2)")
    assert {one.name for one in (*said.values, *said.others)} == {"lr", "said epochs"}


@pytest.mark.parametrize(
    "line",
    [
        "len infos['acc']: 1800",
        "test_acc [2026-01-03-101643]",
        "memory to communication work ratio: 4.000000",
    ],
)
def test_what_stands_beside_a_name_need_not_be_its_value(line: str) -> None:
    assert said_in(line).values == ()


def test_an_average_that_starts_at_nought_is_not_the_loss() -> None:
    said = {one.name: one.value for one in said_in("Iteration: 0, Loss function: 22.981, Average Loss: 0.023").values}
    assert said["loss"] == 22.981


def test_a_place_in_an_epoch_of_several_is_a_step() -> None:
    assert said_in("Epoch: [0/100]  [  10/1562]  eta: 0:30:15  loss: 10.88 (10.88)").label == "epoch 0 step 10"


def test_a_benchmarks_marks_show_that_it_trains() -> None:
    assert shows_progress(':::MLLOG {"key": "epoch_stop", "metadata": {"file": "train.py", "epoch_num": 3}}')


def test_memory_that_is_told_several_times_of_one_step_does_not_grow(told: Told) -> None:
    loads = "".join(
        f"[INFO] [utils.py:789:see_memory_usage] CPU Virtual Memory:  used = {50 + 9 * n} GB\n" for n in range(9)
    )
    assert told("Creating ZeRO stage at step 2\n" + loads).verdict is None


def test_a_clock_that_was_started_once_is_no_step_that_slows_down(told: Told) -> None:
    chunks = "".join(f"chunk step {n} loss {1 - n / 900:.4f} time={5 + 7.3 * n:.1f}s\n" for n in range(60))
    assert told(chunks).verdict is None


def test_a_bar_that_is_drawn_anew_with_old_values_has_measured_nothing(told: Told) -> None:
    bar = "{pct:3}%|████ | {n}/100001 [4:00:19<2:42:02,  5.00it/s] train iter 51000 loss: 0.8809, 'acc': 0.8850\n"
    assert told("".join(bar.format(pct=51, n=51_400 + 11 * k) for k in range(30))).verdict is None


def test_a_loop_over_tasks_that_counts_its_epochs_anew_is_one_process(told: Told) -> None:
    epochs = "".join(
        f"Epoch: [{epoch}][{step}/157] loss {2 - epoch / 10:.3f}\n"
        for _ in range(9)
        for epoch in range(1, 6)
        for step in (50, 157)
    )
    assert told("world_size: 1\n" + epochs).verdict is None


# -- what looks like that and is a failure -----------------------------------------------------------------------------


def test_a_fault_of_the_device_behind_a_guarded_call_is_no_guarded_call(told: Told) -> None:
    guarded = "skipping: " + raised("/srv/train.py:31:step", "/srv/data.py:9:parse", error="ValueError: no tag")
    fatal = raised("/srv/train.py:31:step", error="RuntimeError: CUDA error: an illegal memory access was encountered")
    mixed = "".join(guarded + steps(4 * n, 4) for n in range(7))
    assert verdict(told(mixed + fatal)).symptom == "accelerator-fault"


def test_a_package_that_is_missed_late_is_missed_where_the_launcher_saw_its_process_die(told: Told) -> None:
    missing = raised("/srv/train.py:40:<module>", error="ModuleNotFoundError: No module named 'sacrebleu'")
    ends = "srun: error: n1: task 0: Exited with exit code 1\n"
    assert verdict(told(steps() + missing + steps(12, 20) + ends)).symptom == "import-or-missing-symbol"


def test_a_help_text_about_the_keyboard_interrupts_nothing(told: Told) -> None:
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f (most recent call first):\n"
    assert verdict(told("Stop at any time by keyboard interrupt.\n" + steps() + crash)).symptom == "native-crash"


def test_a_job_that_had_hung_for_hours_when_it_was_cancelled_is_not_told_to_have_gone_well(told: Told) -> None:
    cancelled = "slurmstepd: error: *** JOB 2566 ON n1 CANCELLED AT 2026-05-04T13:04:27 ***\n"
    assert verdict(told(steps() + cancelled)).rule == "JOB014"


def test_what_a_guarded_call_raised_is_no_reason_for_a_time_limit(told: Told) -> None:
    pushed = raised("/srv/report.py:9:push", error="ConnectionError: metrics.example.org cannot be reached")
    limit = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-05-04T10:01:00 DUE TO TIME LIMIT ***\n"
    assert verdict(told(steps(count=50) + pushed + limit)).rule == "JOB006"


@pytest.mark.parametrize("share", ["max to mean load ratio", "slowest to fastest time ratio"])
def test_how_uneven_the_ranks_are_is_read(share: str) -> None:
    assert "imbalance" in {one.name for one in said_in(f"step 40 loss 2.1 {share}: 4.18").values}


def test_memory_that_grows_within_one_epoch_grows(told: Told) -> None:
    lines = "".join(f"[Epoch 0] loss {3 - n / 80:.3f} | mem allocated: {10 + n * 0.31:.2f} GB\n" for n in range(80))
    assert verdict(told(lines)).symptom == "memory-growth"


def test_steps_that_take_ever_longer_are_no_clock(told: Told) -> None:
    lines = "".join(f"step {n} loss 1.5 step_time: {0.1 + n * n * 3e-5:.2f}s\n" for n in range(300))
    assert verdict(told(lines)).symptom == "low-throughput"


def test_a_crash_of_another_program_in_the_kernels_log_explains_no_hang(told: Told) -> None:
    kernel = (
        "[6437.300616] gnome-shell[1508]: segfault at 7f4 ip 00007f59 sp 00007f4b error 4 in libgjs.so.0[7f59+8fd000]\n"
    )
    hang = (
        "[rank2]:[E602 22:10:01.1 ProcessGroupNCCL.cpp:632] [Rank 2] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=60000) ran for 60001 milliseconds "
        "before timing out.\n"
    )
    assert verdict(told(hang, dmesg__log=kernel)).symptom == "collective-hang"


def test_what_is_killed_behind_a_good_end_was_something_else(told: Told) -> None:
    assert told(steps() + "Training complete\nSaving model to out\nKilled\n").verdict is None


# -- what further real logs showed -------------------------------------------------------------------------------------


def test_a_cancelled_job_whose_log_shows_no_step_is_warned_of(told: Told) -> None:
    report = told("wandb: Syncing run 7\nslurmstepd: error: *** JOB 4711 ON n1 CANCELLED AT 2026-05-04T10:01:00 ***\n")
    assert report.verdict is None
    assert [(one.rule, one.severity) for one in report.findings] == [("JOB014", "warning")]


def test_what_threads_lose_before_a_program_says_that_it_was_interrupted(told: Told) -> None:
    thread = raised(
        "/usr/lib/python3.11/threading.py:1016:_bootstrap_inner",
        "/usr/lib/python3.11/multiprocessing/connection.py:383:_recv",
        error="EOFError",
        head="Exception in thread Thread-1 (listen):\nTraceback (most recent call last):",
    )
    assert told(f"{steps()}{thread}Keyboard interruption. Exiting from early training\n").verdict is None
    assert told(f"{steps()}{thread}").verdict is not None


def test_a_nodes_log_is_no_ranks_log(told: Told) -> None:
    """Task 1 of srun started ranks 2 and 3."""
    table = (
        "E0530 16:25:29.751000 36679 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) "
        "local_rank: 0 (pid: 36680) of binary: /usr/bin/python3\n"
        "============================================================\ntrain.py FAILED\nFailures:\n  <NO_OTHER_FAILURES>\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2025-05-30_16:25:24\n  host      : n2\n"
        "  rank      : 2 (local_rank: 0)\n  exitcode  : -9 (pid: 36680)\n  error_file: <N/A>\n"
        "  traceback : Signal 9 (SIGKILL) received by PID 36680\n"
        "============================================================\n"
        "slurmstepd: error: Detected 1 oom_kill event in StepId=62.0. Some of the step tasks have been OOM Killed.\n"
    )
    report = told(table, "job-62_1.out", **{"job-62_0__out": steps()})
    assert verdict(report).symptom == "host-out-of-memory"
    assert 1 not in verdict(report).ranks


def test_ranks_that_cannot_take_their_device_are_of_another_start_where_all_train_behind(told: Told) -> None:
    trace = raised(
        "/srv/train.py:71:<module>",
        "/usr/lib/python3.11/site-packages/torch/cuda/__init__.py:567:set_device",
        error="torch.AcceleratorError: CUDA error: invalid device ordinal",
    )
    end = (
        "E1110 22:28:50.276000 919 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1) "
        "local_rank: 5 (pid: 925) of binary: /usr/bin/python3\n"
    )
    assert told(f"{trace}{end}{steps()}").verdict is None
    assert verdict(told(f"{steps()}{trace}{end}")).symptom == "device-placement-error"


def test_a_lone_finished_behind_a_programs_end_is_its_scripts_word(told: Told) -> None:
    trace = raised("/srv/eval.py:7:<module>", error="RuntimeError: No CUDA GPUs are available")
    assert verdict(told(f"{trace}finished\n")).rule == "GPU008"


def test_ignored_exceptions_of_two_processes_that_are_torn_into_each_other(told: Told) -> None:
    head = "Exception ignored in atexit callback: <function update at 0x7f972d1c3100>"
    whole = raised(
        "/x/site-packages/cache.py:480:update",
        "/x/site-packages/cache.py:186:put",
        error="FileNotFoundError: [Errno 2] No such file or directory: '/home/a/cache.tmp'",
        head=f"{head}\nTraceback (most recent call last):",
    ).splitlines(keepends=True)
    torn = "".join([*whole[:4], *whole, "\n", *whole[4:]])
    assert told(f"{steps()}{torn}final memory 7.83 GB\n").verdict is None


def test_a_complaint_that_training_has_passed_before_is_no_last_word(told: Told) -> None:
    said = "error!! index 2 is out of bounds for dimension 0 with size 2\n"
    assert told(f"{steps(0, 6)}{said}{steps(6, 6)}{said}PC: @ 0x7fb868051117 (unknown)\n").verdict is None
    assert told(f"{steps(0, 12)}{said}").verdict is not None


@pytest.mark.parametrize("end", ["训练结束 | 2000 步 | 386.4 min", "训练完成"])
def test_ends_are_told_in_chinese(told: Told, end: str) -> None:
    nccl = "torch.distributed.DistBackendError: NCCL error: remote process exited or there was a network error\n"
    assert told(f"{steps()}{nccl}{end}\n").verdict is None
    assert told(f"{steps()}{nccl}第3轮{end}\n").verdict is not None


def test_a_unit_in_a_numbers_name_is_no_value() -> None:
    said = said_in("step:1 - train/loss:0.895 - train/lr(1e-3):0.00027 - train/time(s):4.84")
    assert {one.name: one.value for one in said.values} == {"loss": 0.895, "lr": 0.00027, "step": 1.0}


def test_what_all_ranks_meet_is_not_told_of_the_only_one_that_is_heard(told: Told) -> None:
    trace = raised(
        "/srv/train.py:24:<module>",
        "/x/site-packages/torch/nn/modules/module.py:1964:__getattr__",
        error="AttributeError: 'DistributedDataParallel' object has no attribute 'policy'",
        prefix="[rank0]: ",
    )
    assert verdict(told(trace)).ranks == ()


@pytest.mark.parametrize(
    ("error", "symptom"),
    [
        ("AttributeError: 'EasyDict' object has no attribute 'EVAL_METRIC'", "invalid-run-configuration"),
        ("AttributeError: 'list' object has no attribute 'split'", "step-execution-error"),
        ("AttributeError: 'LlamaModel' object has no attribute 'rotary'", "unsupported-api-or-attribute"),
    ],
)
def test_what_lacks_an_attribute_says_what_is_wrong(told: Told, error: str, symptom: str) -> None:
    assert verdict(told(raised("/srv/train.py:24:<module>", "/srv/evaluate.py:9:run", error=error))).symptom == symptom


@pytest.mark.parametrize(
    "said", ["Epoch 3 训练完成", "预训练完成, 加载权重", "等待各进程训练完成", "训练完成度 40%", "第一阶段训练完成"]
)
def test_what_ends_in_chinese_is_not_always_the_job(told: Told, said: str) -> None:
    assert verdict(told(f"{steps()}{said}\nKilled\n")).rule == "HOST031"


def test_a_job_that_hung_before_its_first_step_for_hours_is_not_told_to_have_gone_well(told: Told) -> None:
    log = (
        "2026-05-04 10:00:00 waiting for all ranks\n"
        "slurmstepd: error: *** JOB 8812 ON n1 CANCELLED AT 2026-05-04T16:11:00 ***\n"
    )
    assert verdict(told(log)).rule == "JOB014"


def test_a_thread_that_fails_and_is_waited_for_is_why_somebody_interrupts(told: Told) -> None:
    thread = raised(
        "/usr/lib/python3.11/threading.py:1016:_bootstrap_inner",
        "/srv/loader.py:83:_prefetch",
        error="OSError: [Errno 5] Input/output error: '/mnt/nfs/shards/000123.npy'",
        head="Exception in thread Thread-4 (_prefetch):\nTraceback (most recent call last):",
    )
    ended = raised("/srv/train.py:90:<module>", "/srv/train.py:41:main", error="KeyboardInterrupt")
    assert verdict(told(f"{steps()}{thread}{ended}")).evidence[0].event.text.startswith("OSError: [Errno 5]")


def test_an_agent_that_misses_its_store_again_and_again_has_lost_it(told: Told) -> None:
    beat = (
        "W0504 10:{0}:06.176000 538977 torch/distributed/elastic/rendezvous/dynamic_rendezvous.py:1331] The node 'n1_53_0' "
        "has failed to send a keep-alive heartbeat to the rendezvous '1365' due to an error of type RendezvousConnectionError.\n"
    )
    assert told(f"{steps()}{beat.format(15)}").verdict is None
    assert verdict(told(steps() + "".join(beat.format(n) for n in range(15, 34)))).rule == "JOB070"


def test_a_number_in_brackets_is_a_unit_only_where_it_is_a_power_of_ten() -> None:
    assert {one.name: one.value for one in said_in("Iter(590): loss 2.31").values} == {"loss": 2.31, "step": 590.0}


def test_a_helper_that_fails_between_epochs_is_not_the_job(told: Told) -> None:
    trace = raised("/srv/plot.py:9:<module>", "/srv/plot.py:5:draw", error="KeyError: 'loss'")
    assert told(f"{steps()}{trace}{steps(12, 6)}{trace}Finished.\n").verdict is None


def test_yolos_table_of_classes_is_no_row_of_training(told: Told) -> None:
    head = "      Epoch    GPU_mem   box_loss   cls_loss   dfl_loss  Instances       Size\n"
    row = "    {0}/100      2.27G     0.{1}     0.6217     0.8328         12        640: 100%\n"
    rows = "".join(f"{head}{row.format(n, 900 - n)}" for n in range(1, 20))
    table = "                 Class     Images  Instances      Box(P          R      mAP50  mAP50-95)\n"
    for n in range(10, 40):
        table += f"                    {n}c        1{n}        1{n + 5}      0.701      0.971      0.768      0.595\n"
    assert told(f"{rows}{table}").verdict is None


def test_a_trackers_own_threads_do_not_end_the_job(told: Told) -> None:
    trace = raised(
        "/usr/lib/python3.10/threading.py:1016:_bootstrap_inner",
        "/x/site-packages/wandb/sdk/interface/router.py:60:message_loop",
        error="wandb.sdk.interface.router.MessageRouterClosedError",
        head="Exception in thread MsgRouterThr:\nTraceback (most recent call last):",
    )
    assert told(f"{steps()}{trace}").verdict is None


def test_what_a_program_logs_and_goes_on_from_for_long_is_no_failure(told: Told) -> None:
    error = "TypeError: cannot unpack non-iterable NoneType object"
    head = "ERROR:2025-12-25 23:46:30,691:Traceback (most recent call last):"
    trace = raised("/srv/env.py:470:update_state", error=error, head=head)
    assert told(trace + "a line of an answer\n" * 250).verdict is None
    assert told(trace + "a line of an answer\n" * 20).verdict is not None


def test_settings_that_are_printed_show_no_training(told: Told) -> None:
    """However many processes print them; who counts says another number each time."""
    error = "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
    dump = "{   'data': {'batch_size': 64},\n    'optimization': {   'ema': [0.9, 1.0],\n                        'epochs': 300,\n"
    trace = raised("/srv/train.py:9:<module>", "/srv/train.py:5:main", error=error)
    assert verdict(told(dump + trace + 4 * dump)).rule == "CODE026"
    shard = raised("/srv/data.py:40:read", error="FileNotFoundError: [Errno 2] No such file or directory: 's/04.tar'")
    counts = [f"Steps: {n}000\n" for n in range(1, 30)]
    assert told("".join(counts[:13]) + shard + "".join(counts[13:])).verdict is None
    told_so = [f'{{"env_steps": {n}048, "return": {n}.3}}\n' for n in range(1, 30)]
    assert told("".join(told_so[:13]) + shard + "".join(told_so[13:])).verdict is None


def test_the_end_of_a_long_log_is_read_in_front_of_what_scripts_write_when_it_is_over(told: Told) -> None:
    """Whatever little is left of it in the last block that is read."""
    rows = "".join(
        f"Epoch 3: {n // 60:3}%|##        | {n}/6000 [01:{n % 60:02}<2:16:06,  1.21it/s, v_num=7, train_loss_step=nan.0]\n"
        for n in range(6000)
    )
    over = "[platform epilog] node usage, and what else there is to tell about it once a job has ended\n" * 120
    before = "reading the dataset from /mnt/data and cleaning the graph of its nodes\n" * 600
    assert verdict(told(before + rows + over)).rule == "NUM005"


def test_a_script_that_failed_at_a_tool_of_its_own_started_ranks_which_trained(told: Told) -> None:
    tool = raised("/home/a/.local/bin/tracker:5:<module>", error="ModuleNotFoundError: No module named 'dataclasses'")
    ranks = "".join(f"{rank}: loading the model\n" for rank in range(4)) * 9
    trained = "".join(steps(n, 1, f"{rank}: ") for n in range(12) for rank in range(4))
    assert told(tool + ranks + trained).verdict is None
    stop = "".join(
        raised("/srv/t.py:9:<module>", "/srv/t.py:3:go", error="StopIteration", prefix=f"{n}: ") for n in (0, 2)
    )
    found = verdict(told(tool + ranks + stop, name="job.err", job__out=ranks + trained))
    assert (found.symptom, found.ranks) == ("data-pipeline-failure", (0, 2))
    assert verdict(told(tool + ranks)).symptom == "import-or-missing-symbol"
    untagged = trained.replace("0: ", "").replace("1: ", "").replace("2: ", "").replace("3: ", "")
    late = "[rank0]:[E ProcessGroupNCCL.cpp:616] the others wait\n" + steps(12, 1)
    assert verdict(told(untagged + tool + late)).symptom == "import-or-missing-symbol"


def test_an_agent_that_a_cancelled_job_asked_to_end_has_not_lost_it(told: Told) -> None:
    asked = (
        "W0504 {clock}.176000 913 torch/distributed/elastic/agent/server/api.py:719] Received Signals.SIGTERM death signal, "
        "shutting down workers\n"
    )
    cancelled = "slurmstepd: error: *** STEP 1364.0 ON n1 CANCELLED AT 2026-05-04T10:00:14 ***\n"
    report = told(steps() + asked.format(clock="10:00:13") + cancelled)
    assert report.verdict is None
    assert {one.rule: one.severity for one in report.findings} == {"JOB008": "warning", "JOB014": "warning"}
    assert verdict(told(steps() + asked.format(clock="10:00:13"))).rule == "JOB008"
    assert verdict(told(steps() + OOM + asked.format(clock="10:00:13") + cancelled)).symptom == "device-out-of-memory"
    late = cancelled.replace("10:00:14", "10:09:40")  # and the job had waited for it since
    assert verdict(told(steps() + asked.format(clock="10:00:13") + late)).rule == "JOB008"


def test_a_caught_failure_to_listen_is_why_there_is_no_group(told: Told) -> None:
    caught = (
        "INFO:root:cannot train distributed: The server socket has failed to listen on any local network address. "
        "The server socket has failed to bind to [::]:41020 (errno: 98 - Address already in use).\n"
    )
    error = "ValueError: Default process group has not been initialized, please make sure to call init_process_group."
    trace = raised("/srv/train.py:9:<module>", "/srv/train.py:5:main", error=error)
    assert verdict(told(caught + trace)).rule == "NET770"
    other = caught.replace("cannot train distributed", "port 41020 is taken, using 41021")
    assert told(f"{other}process group ready, world size 8\n{steps(count=2)}").verdict is None


def test_whom_deepspeeds_launcher_sees_crash_when_a_rank_had_fallen_and_was_missed_crashed_on_its_way_out(
    told: Told,
) -> None:
    fell = raised(
        "/srv/pretrain.py:360:<module>",
        "/x/site-packages/torch/distributed/distributed_c10d.py:5276:new_group",
        error="torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.cpp:230, "
        "unhandled cuda error (run with NCCL_DEBUG=INFO for details), NCCL version 2.26.2",
        prefix="n1: [rank0]: ",
    )
    missed = (
        "n1: [rank7]:[W324 13:16:48.464050259 TCPStore.cpp:125] [c10d] recvValue failed on SocketImpl(fd=138, "
        "addr=[::]:58239, remote=[::]:43445): Failed to recv, got 0 bytes. Connection was likely closed.\n"
    )
    crashed = (
        "n1: [2026-03-24 13:17:05,699] [ERROR] [launch.py:341:sigkill_handler] "
        "['/usr/bin/python3', '-u', 'pretrain.py', '--local_rank=15'] exits with return code = -11\n"
    )
    found = verdict(told("n1: the hosts are there\n" * 12 + fell + missed + crashed))
    assert (found.rule, found.evidence[0].event.rank) == ("NET009", 0)
    assert verdict(told("n1: the hosts are there\n" * 12 + missed + crashed + fell)).symptom == "native-crash"


def test_a_record_that_cannot_be_written_is_passed_over_by_pythons_own_handler(told: Told) -> None:
    emit = "/usr/lib/python3.11/logging/__init__.py:1110:emit"
    passed = raised(
        emit, "/usr/lib/python3.11/logging/__init__.py:377:getMessage", error="TypeError: not all arguments converted"
    )
    stack = "Call stack:\n  File \"/srv/train.py\", line 296, in <module>\n    main()\nMessage: 'REFERENCE: '\nArguments: ('a',)\n"
    assert told(f"{steps()}--- Logging error ---\n{passed}{stack}").verdict is None
    through = raised("/srv/train.py:296:<module>", emit, error="TypeError: not all arguments converted")
    assert verdict(told(steps() + through)).symptom == "step-execution-error"


def test_whom_mpi_ends_after_an_error_was_not_killed_from_outside(told: Told) -> None:
    log = (
        "0: the hosts are there\n1: the hosts are there\n"
        * 4
        + "0: [n17:53890] pml_ucx.c:775  Error: ucx send failed: Input/output error\n"
        "0: [n17:53890] *** An error occurred in MPI_Bcast\n0: [n17:53890] *** on communicator MPI_COMM_WORLD\n"
        "0: [n17:53890] *** MPI_ERR_OTHER: known error not in list\n"
        "0: [n17:53890] *** MPI_ERRORS_ARE_FATAL (processes in this communicator will now abort,\n"
        "0: [n17:53890] ***    and potentially your MPI job)\n"
        "srun: error: n17: task 0: Killed\nsrun: Terminating job step 4223.0\nsrun: error: n17: task 1: Killed\n"
    )
    assert verdict(told(log)).symptom == "communication-runtime-error"
    assert verdict(told("srun: error: n17: task 0: Killed\n")).rule == "JOB002"


def test_epochs_of_a_log_too_long_to_be_read_whole_may_be_those_of_two_runs(told: Told) -> None:
    first = "".join(f"Epoch [1][{n}/400] loss: 0.2{n % 7}\n" for n in range(10, 400))
    between = "the second run begins, with another model\n" * 4_000
    last = "".join(f"Epoch [{e}][{n}/400] loss: 0.3{n % 7}\n" for e in (39, 40) for n in range(10, 400))
    assert told(first + between + last).verdict is None


@pytest.mark.parametrize("daemon", ["slurmstepd: error:", "[2026-05-04T10:00:23.817] error:"])
def test_whom_slurm_kills_after_a_task_failed_was_not_first(told: Told, daemon: str) -> None:
    failed = raised(
        "/srv/train.py:40:<module>",
        "/opt/torch/distributed/c10d_logger.py:97:wrapper",
        error="torch.distributed.DistBackendError: NCCL error in: /opt/torch/csrc/distributed/c10d/NCCLUtils.cpp:93, "
        "invalid usage (run with NCCL_DEBUG=WARN for details), NCCL version 2.29.3\n5: ncclInvalidUsage: This usually "
        "reflects invalid usage of NCCL library.\n5: Last error:\n5: Failed to initialize any NET plugin",
        prefix="5: ",
    )
    text = (
        f"{failed}srun: error: node-03: task 5: Exited with exit code 1\nsrun: Terminating StepId=4711.0\n"
        f"0: {daemon} *** STEP 4711.0 ON node-01 CANCELLED AT 2026-05-04T10:00:23 DUE TO TASK FAILURE ***\n"
        "srun: error: node-02: tasks 2-3: Killed\nsrun: error: node-01: tasks 0-1: Killed\n"
        "srun: error: node-03: task 4: Killed\nsrun: Force Terminated StepId=4711.0\n"
    )
    found = verdict(told(text))
    assert (found.rule, found.ranks, found.hosts) == ("NET027", (5,), ("node-03",))


def test_a_run_that_wandb_tracks_after_a_launcher_gave_up_is_another(told: Told) -> None:
    def tracked(since: str) -> str:
        return f"wandb: Run data is saved locally in /srv/wandb/run-{since}-1oma3dzi\nTraining with one process.\n"

    def epoch(number: int) -> str:
        return "".join(f"epoch {number} [{n}/288] loss {1 - n / 300:.4f}\n" for n in range(0, 280, 10))

    gave_up = (
        raised("/srv/train.py:198:<module>", "/srv/train.py:150:main", error="RuntimeError: the tracker is away")
        + "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 2672) of binary: "
        "/usr/bin/python\n"
        + raised("/opt/torch/distributed/run.py:765:<module>", error="torch.distributed.elastic.ChildFailedError: ")
    )
    hung_up = (
        "WARNING:torch.distributed.elastic.agent.server.api:Received 1 death signal, shutting down workers\n"
        + raised(
            "/opt/torch/distributed/run.py:765:<module>",
            error="torch.distributed.elastic.multiprocessing.api.SignalException: Process 1914 got signal: 1",
        )
    )
    first = tracked("20260504_085830") + epoch(1)
    assert verdict(told(first + gave_up + tracked("20260504_121531") + epoch(1) + hung_up)).rule == "JOB051"
    other_rank = tracked("20260504_085932")
    assert verdict(told(first + other_rank + gave_up)).attempt == 0


def test_a_program_that_an_old_python_cannot_read_never_began(told: Told) -> None:
    text = '  File "train.py", line 201\n    print(f"rank {rank}")\n                       ^\nSyntaxError: invalid syntax\n'
    found = verdict(told(text, train__py="from torchvision import datasets\n"))
    assert (found.rule, found.symptom) == ("ENV055", "unsupported-api-or-attribute")
    warned = '  File "train.py", line 201\n    print(x)\nDeprecationWarning: x is old\n'
    assert told(warned + steps()).verdict is None
