"""Who failed first: by causality, then by clocks or position; what followed is folded; unsure means no verdict."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from pathlib import Path

import pytest

from consoles import Said
from paramedic import diagnose
from paramedic.causes import summary
from paramedic.knowledge import load
from paramedic.model import Finding
from paramedic.report import ShownReport

OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
    "GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free."
)
CLOSED = "RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:20911"
TIMEOUT = (
    "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 8000ms for recv operation to complete"
)
WATCHDOG = (
    "[E1115 02:46:21.002180683 ProcessGroupNCCL.cpp:689] [Rank {r}] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=6, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=6000) ran for 6095 milliseconds before timing out."
)


def trace(message: str, line: int = 10) -> str:
    return f'Traceback (most recent call last):\n  File "/srv/train.py", line {line}, in main\n    work()\n{message}'


def merged(*texts: tuple[int, str]) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for rank, text in texts for line in text.split("\n"))


@pytest.fixture
def of(tmp_path: Path):  # type: ignore[no-untyped-def]
    def report(text: str) -> ShownReport:
        file = tmp_path / "console.log"
        file.write_text(text, "utf-8")
        return diagnose(file)

    return report


def files(tmp_path: Path, texts: dict[int, str]) -> ShownReport:
    for rank, text in texts.items():
        (tmp_path / f"rank_{rank}.log").write_text(text, "utf-8")
    return diagnose(tmp_path)


def test_the_cause_comes_first_in_whatever_order_the_lines_were_flushed(of) -> None:  # type: ignore[no-untyped-def]
    said = [(0, trace(CLOSED)), (1, trace(CLOSED)), (2, trace(OOM)), (3, trace(TIMEOUT))]
    for order in itertools.permutations(said):
        verdict = of(merged(*order)).verdict
        assert verdict is not None
        assert (verdict.symptom, verdict.ranks) == ("device-out-of-memory", (2,))


def test_the_cause_comes_first_when_its_hosts_clock_is_minutes_late(tmp_path: Path) -> None:
    report = files(
        tmp_path,
        {
            0: f"2026-11-15 02:00:08,000 ERROR {CLOSED}\n",
            1: f"2026-11-15 02:00:09,000 ERROR {CLOSED}\n",
            2: f"2026-11-15 02:07:31,000 ERROR {OOM}\n",
        },
    )
    assert report.verdict is not None
    assert report.verdict.ranks == (2,)
    assert [(c.symptom, c.ranks) for c in report.cascades] == [("communication-runtime-error", (0, 1))]


def test_lines_of_all_ranks_shuffled_into_each_other_are_told_apart(of) -> None:  # type: ignore[no-untyped-def]
    rng = random.Random(7)
    queues = {r: merged((r, trace(OOM if r == 1 else CLOSED))).splitlines(keepends=True) for r in range(4)}
    lines = []
    while any(queues.values()):
        lines.append(queues[rng.choice([r for r, q in queues.items() if q])].pop(0))
    verdict = of("".join(lines)).verdict
    assert verdict is not None
    assert verdict.ranks == (1,)


def test_a_rank_that_says_nothing_while_all_others_wait_is_the_suspect(tmp_path: Path) -> None:
    report = files(tmp_path, {r: "step 1 loss 2.0\n" + ("" if r == 3 else trace(TIMEOUT) + "\n") for r in range(4)})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("collective-hang", (3,))


def test_a_rank_that_waited_at_another_line_is_the_suspect(tmp_path: Path) -> None:
    report = files(tmp_path, {r: trace(TIMEOUT, line=99 if r == 1 else 10) + "\n" for r in range(4)})
    assert report.verdict is not None
    assert report.verdict.ranks == (1,)


def test_nobody_is_blamed_when_all_waited_alike(tmp_path: Path) -> None:
    report = files(tmp_path, {r: trace(TIMEOUT) + "\n" for r in range(4)})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks, report.verdict.scope) == ("collective-hang", (), "job")


def test_nobody_is_blamed_when_half_the_ranks_are_silent(tmp_path: Path) -> None:
    report = files(tmp_path, {r: "step 1 loss 2.0\n" + (trace(TIMEOUT) + "\n" if r == 0 else "") for r in range(4)})
    assert report.verdict is None or report.verdict.ranks == ()


def test_watchdog_reporters_are_victims_not_culprits(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of("".join(f"[rank{r}]:{WATCHDOG.format(r=r)}\n" for r in (0, 1))).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.ranks) == ("collective-hang", ())


def test_the_last_attempt_is_judged_and_the_earlier_failure_is_kept(tmp_path: Path) -> None:
    for attempt, message in ((0, OOM), (1, "ModuleNotFoundError: No module named 'flash_attn'")):
        folder = tmp_path / "job_x" / f"attempt_{attempt}" / "1"
        folder.mkdir(parents=True)
        (folder / "stderr.log").write_text(merged((1, trace(message))))
    report = diagnose(tmp_path)
    assert report.verdict is not None
    assert report.verdict.symptom == "import-or-missing-symbol"
    assert [f.symptom for f in report.findings] == ["import-or-missing-symbol", "device-out-of-memory"]


def test_what_a_rank_survived_is_set_aside_and_said(tmp_path: Path) -> None:
    report = files(tmp_path, {0: f"{trace(OOM)}\nretrying with half the batch\nstep 7 loss 1.9\nstep 8 loss 1.8\n"})
    assert report.verdict is None
    assert report.findings == ()
    assert "went on" in report.suppressed[0].why


def test_others_going_on_for_a_moment_does_not_mean_that_the_rank_survived(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of(f"[rank2]: {OOM}\nstep 7 loss 1.9\nstep 8 loss 1.8\n").verdict
    assert verdict is not None
    assert verdict.ranks == (2,)


def test_a_traceback_without_prefix_gets_the_rank_that_the_line_before_it_names(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        f"2026-11-15 02:27:05,884 ERROR train: rank 2 failed at step 12\n{trace(OOM)}\n{merged((0, trace(CLOSED)))}"
    )
    assert report.verdict is not None
    assert report.verdict.ranks == (2,)
    assert (report.verdict.evidence[0].event.time or "").startswith("2026-11-15T02:27:05.884")


def test_a_table_alone_is_not_enough_for_a_verdict(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:06:27\n  host      : node-01\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>\n  traceback : To enable\n=====\n"
    )
    assert report.verdict is None
    assert [f.rule for f in report.findings] == ["JOB005"]


def test_a_kernel_line_is_joined_to_its_rank_by_process_id(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        "[ 1234.5] Out of memory: Killed process 4711 (python) total-vm:99kB, anon-rss:88kB, file-rss:0kB\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:06:27\n  host      : node-01\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -9 (pid: 4711)\n  error_file: <N/A>\n  traceback : Signal 9\n=====\n"
    )
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("host-out-of-memory", (2,))
    assert report.verdict.hosts == ("node-01",)


def test_cause_probabilities_are_sorted_and_leave_room_for_the_unknown(of) -> None:  # type: ignore[no-untyped-def]
    for message in (OOM, TIMEOUT, "ModuleNotFoundError: No module named 'x'", "ZeroDivisionError: division by zero"):
        for finding in of(merged((0, trace(message)))).findings:
            shares = [cause.probability for cause in finding.causes]
            assert shares == sorted(shares, reverse=True)
            assert 0 < sum(shares) <= 0.901


ACTOR_DIED = (
    "ray.exceptions.ActorDiedError: The actor died unexpectedly before finishing this task.\n\tclass_name: Engine\n"
    "The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker "
    "unexpectedly exits with a connection error code 2. End of file."
)


def test_an_actor_that_shut_down_for_its_own_error_did_not_die_unexpectedly(of) -> None:  # type: ignore[no-untyped-def]
    error = trace("ValueError: There is no module or parameter named 'model.visual.merger' in Qwen2ForCausalLM")
    gave_up = "(Engine pid=71) CRITICAL Got fatal signal from worker processes, shutting down. See stack trace above\n"
    verdict = of(f"{error}\n{gave_up}{trace(ACTOR_DIED)}\n").verdict
    assert verdict is not None and verdict.symptom != "worker-or-node-loss"
    assert of(f"starting\n{trace(ACTOR_DIED)}\n").verdict.symptom == "worker-or-node-loss"


def test_what_moved_a_cause_away_from_its_base_rate_is_said(of) -> None:  # type: ignore[no-untyped-def]
    hanging = of(merged((0, trace(TIMEOUT)))).findings[0]
    for cause in hanging.causes:
        moved, usual = cause.why.rsplit("; ", 1)
        assert usual.startswith("base rate ") and usual.endswith(" in labs")
        assert "meant by this message" in moved or "what was seen speaks" in moved
    assert "mostly meant by this message" in hanging.causes[0].why


@pytest.mark.parametrize("reason", ["TIME LIMIT", "JOB REQUEUE"])
def test_numbers_that_went_wrong_for_good_come_before_the_scheduler_that_ended_it(said: Said, reason: str) -> None:
    steps = [f"2025-06-03 04:00:{n:02d} step {n} loss {'nan' if n > 9 else 2.5 - n / 10}\n" for n in range(1, 40)]
    end = f"slurmstepd: error: *** JOB 17 ON node01 CANCELLED AT 2025-06-03T04:00:50 DUE TO {reason} ***\n"
    assert said("".join(steps) + end).symptom == "numerical-instability"
    assert said("".join(steps[:9]) + end).symptom == "worker-or-node-loss"


def test_a_time_limit_has_no_other_cause(of) -> None:  # type: ignore[no-untyped-def]
    said = "slurmstepd: error: *** JOB 17 ON node01 CANCELLED AT 2025-06-03T04:00:50 DUE TO TIME LIMIT ***\n"
    verdict = of(said).verdict
    assert verdict is not None
    assert [cause.id for cause in verdict.causes] == ["preemption-or-scheduler-action"]


@pytest.mark.parametrize(
    "after",
    [
        "wandb:   train/loss 1.82",
        "  1%|          | 11/1200 [00:46<1:23:12,  4.20s/it]",
        "step 12 loss 2.0",
        "Epoch 0:  23%|##3 | 23/100 [00:10<00:33]",
        "    Finished:     Mon, 02 Jun 2025 11:00:00 +0000",
    ],
)
def test_what_a_dying_process_still_prints_is_no_sign_of_life(of, after: str) -> None:  # type: ignore[no-untyped-def]
    verdict = of(f"step 11 loss 2.0\n{trace(OOM)}\n{after}\n").verdict
    assert verdict is not None
    assert verdict.symptom == "device-out-of-memory"


def test_a_rank_that_the_launcher_saw_die_did_not_survive(tmp_path: Path) -> None:
    (tmp_path / "torchrun.log").write_text(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:06:27\n  host      : node-01\n"
        "  rank      : 0 (local_rank: 0)\n  exitcode  : 1 (pid: 4711)\n  error_file: <N/A>\n  traceback : x\n=====\n"
    )
    ending = "step 8 loss 2.0\nstep 9 loss 2.0\ntraining finished\n"
    report = files(tmp_path, {0: f"{trace(OOM)}\n{ending}", 1: trace(CLOSED) + "\n"})
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("device-out-of-memory", (0,))


def test_ranks_outside_a_subgroup_are_not_blamed_for_its_timeout(tmp_path: Path) -> None:
    line = "[rank{r}]:" + WATCHDOG.replace("[Rank {r}]", "[PG ID 3 PG GUID 9(TENSOR_MODEL_PARALLEL_GROUP) Rank {r}]")
    texts = {r: "step 1003 loss 2.0\n" + (line.format(r=r) + "\n" if r < 3 else "") for r in range(4)}
    report = files(tmp_path, texts)
    assert report.verdict is None or report.verdict.ranks == ()


def test_a_rank_in_another_collective_is_the_suspect(of) -> None:  # type: ignore[no-untyped-def]
    lines = [WATCHDOG.format(r=r).replace("ALLREDUCE", "_ALLGATHER_BASE" if r == 2 else "ALLREDUCE") for r in range(4)]
    verdict = of("".join(f"[rank{r}]:{line}\n" for r, line in enumerate(lines))).verdict
    assert verdict is not None
    assert verdict.ranks == (2,)


def test_every_rank_is_only_said_when_it_is_every_rank(of) -> None:  # type: ignore[no-untyped-def]
    some = of("".join(f"[rank{r}]:{WATCHDOG.format(r=r)}\n" for r in (0, 1)) + "[rank7]: step 3 loss 2.0\n").verdict
    assert some is not None
    assert not some.summary.startswith("Every rank")


def test_a_rank_of_another_kind_is_not_taken_for_a_process(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of(f"2026-11-10 10:00:00 INFO LoRA rank: 16 alpha 32\n{trace(OOM)}\n").verdict
    assert verdict is not None
    assert verdict.ranks == ()


def test_a_process_that_does_not_know_its_own_number_is_not_another_process(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of(
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.95 GiB. GPU 3 has a total capacity of "
        "79.15 GiB of which 512.00 MiB is free. Process 2938841 has 78.64 GiB memory in use. Of the allocated memory "
        "75.91 GiB is allocated by PyTorch, and 1.20 GiB is reserved by PyTorch but unallocated.\n"
    ).verdict
    assert verdict is not None
    assert verdict.rule == "MEM001"


def test_clocks_that_may_be_in_different_zones_decide_nothing(tmp_path: Path) -> None:
    report = files(
        tmp_path,
        {
            0: f"2026-11-10 19:00:00,000 ERROR {OOM}\n",
            1: "2026-11-10 10:00:05,000 ERROR torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n",
        },
    )
    assert {f.symptom for f in report.findings} == {"device-out-of-memory", "accelerator-fault"}


def test_a_crash_line_without_a_rank_gets_that_of_the_only_rank_that_crashed(of) -> None:  # type: ignore[no-untyped-def]
    report = of(
        "Fatal Python error: Segmentation fault\n"
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-11-15_02:06:27\n  host      : node-01\n"
        "  rank      : 2 (local_rank: 2)\n  exitcode  : -11 (pid: 4711)\n  error_file: <N/A>\n  traceback : Signal 11\n=====\n"
    )
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.ranks) == ("native-crash", (2,))


def test_the_exception_is_quoted_not_the_last_line_of_its_message(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of(
        merged(
            (
                1,
                trace(
                    "pkg.ConfigAttributeError: Key 'modle' is not in struct\n    full_key: modle\n    object_type=dict"
                ),
            )
        )
    ).verdict
    assert verdict is not None
    assert "Key 'modle' is not in struct" in verdict.summary


def test_a_gap_among_the_ranks_that_wait_is_the_suspect(of) -> None:  # type: ignore[no-untyped-def]
    verdict = of("".join(f"[rank{r}]:{WATCHDOG.format(r=r)}\n" for r in (0, 1, 3))).verdict
    assert verdict is not None
    assert verdict.ranks == (2,)


def test_one_rank_that_waits_is_spoken_of_in_the_singular() -> None:
    rule = load().rules["COL045"]
    fields = {"does": "is stopped", "waiting": "0"}
    one = Finding(rule.id, rule.symptom, "error", "rank", (1,), (), 0.9, rule.title, (), fields=fields)
    assert summary(rule, one) == "The process of rank 1 is stopped, while rank 0 waits for it."
    many = replace(one, fields={**fields, "waiting": "0, 2"})
    assert summary(rule, many) == "The process of rank 1 is stopped, while ranks 0, 2 wait for it."


def test_others_that_train_for_long_mean_that_the_message_was_no_end(of) -> None:  # type: ignore[no-untyped-def]
    line = "[rank0]:E0912 11:54:53.366000 1121181 torch/_inductor/select_algorithm.py:2100] [7/0] No valid triton configs. OutOfResources: out of resource: shared memory, Required: 147456, Hardware limit: 101376.\n"
    assert of(line + "".join(f"step {n} loss 1.{n} 3.1 it/s\n" for n in range(8))).verdict is None


def test_bars_that_advance_show_that_training_goes_on(of) -> None:  # type: ignore[no-untyped-def]
    handled = trace("ModuleNotFoundError: No module named 'triton'")
    bars = [f"Epoch {n}: 100%|####| 400/400 [03:10<00:00, 2.08it/s]" for n in range(12)]
    assert of(handled + "\n" + "\n".join(bars) + "\n").verdict is None
    again = [bars[0]] * 12
    assert of(handled + "\n" + "\n".join(again) + "\n").verdict is not None, "one bar that is drawn again and again"


def test_a_stall_is_over_when_those_who_were_waited_for_train_on(of) -> None:  # type: ignore[no-untyped-def]
    stall = (
        "[1,1]<stderr>:[2026-05-17 10:31:40. 89665: W horovod/common/stall_inspector.cc:107] One or more tensors were "
        "submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for remainder of ranks for "
        "more than 60 seconds.\n[1,1]<stderr>:Missing ranks:\n[1,1]<stderr>:0: [broadcast.conv1.weight]\n"
    )
    assert of(stall).verdict is not None
    assert of(stall + "".join(f"[1,0]<stdout>:step {n} loss 1.{n}\n" for n in range(8))).verdict is None


def test_who_is_stopped_after_training_has_ended_has_lost_nothing(of) -> None:  # type: ignore[no-untyped-def]
    stopped = "slurmstepd: error: *** STEP 77.0 ON n1 CANCELLED AT 2026-09-01T12:00:31 DUE TO PREEMPTION ***\n"
    steps = "".join(f"step {n} loss 1.{n}\n" for n in range(4))
    assert of(steps + stopped).verdict is not None
    assert of(steps + "Training complete.\n" + stopped).verdict is None
    assert of(steps + stopped + "resuming\n" + steps + "Job completed successfully\n").verdict is None, "it came back"


def test_a_crash_after_training_has_ended_is_still_one(of) -> None:  # type: ignore[no-untyped-def]
    full = trace("OSError: [Errno 28] No space left on device")
    assert of(f"step 1 loss 1.1\nTraining complete.\n{full}\n").verdict is not None


def test_a_sentence_about_nobody_gives_way_to_the_title() -> None:
    rule = load().rules["COL041"]
    fields = {"waiting": "", "where": "a.py:1"}
    one = Finding(rule.id, rule.symptom, "error", "job", (), (), 0.8, rule.title, (), fields=fields)
    assert summary(rule, one) == rule.title


def test_a_processor_without_the_instruction_is_a_mismatch_of_builds(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_text(
        "E1115 03:01:07.120000 71 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -4) local_rank: 1 (pid: 412) of binary: /usr/bin/python\n"
    )
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None and verdict.symptom == "native-crash"
    assert verdict.causes[0].id == "driver-toolkit-or-architecture-mismatch"


@pytest.mark.parametrize("percent, symptom", [("93.8", "host-out-of-memory"), ("41.0", "worker-or-node-loss")])
def test_who_is_killed_when_memory_is_nearly_full_ran_out_of_it(tmp_path: Path, percent: str, symptom: str) -> None:
    (tmp_path / "console.log").write_text(
        f"[2025-01-08 03:16:00,433] [INFO] [utils.py:789:see_memory_usage] CPU Virtual Memory:  used = 472.47 GB, percent = {percent}%\n"
        "E1115 03:17:07.120000 71 torch/distributed/elastic/multiprocessing/api.py:869] failed (exitcode: -9) local_rank: 1 (pid: 412) of binary: /usr/bin/python\n"
    )
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None and verdict.symptom == symptom


IMPORT = 'Traceback (most recent call last):\n  File "/srv/train.py", line 1, in <module>\n    import x\n'
IMPORT += "ModuleNotFoundError: No module named 'x'\n"
ENDED = """  time      : 2026-11-17_02:40:17
  host      : localhost
  rank      : {0} (local_rank: {0})
  exitcode  : 1 (pid: 403{0})
  error_file: <N/A>
"""
TABLE = f"""torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
[1]:
{ENDED.format(1)}------------------------------------------------------------
Root Cause (first observed failure):
[0]:
{ENDED.format(0)}============================================================
"""


def test_what_no_rank_could_do_is_said_so(of) -> None:  # type: ignore[no-untyped-def]
    restore = 'RuntimeError: Error(s) in loading state_dict for Net:\n\tMissing key(s) in state_dict: "a".'
    said = of(merged((0, trace(restore)), (1, trace(restore)))).verdict.summary
    assert said.startswith("No rank can restore the saved state into Net")
    assert of(IMPORT * 2 + TABLE).verdict.summary.startswith("No rank can import 'x'")
    assert of(IMPORT + TABLE).verdict.summary.startswith("A rank cannot import 'x'")


@pytest.mark.parametrize(
    ("said", "of_many"),
    [
        ("was ended", "were ended"),
        ("multiplies a by b", "multiply a by b"),
        ("mixes types", "mix types"),
        ("could not save", "could not save"),
    ],
)
def test_several_ranks_are_spoken_of_in_the_plural(said: str, of_many: str) -> None:
    knowledge = load()
    rule = replace(knowledge.rules["CKPT001"], summary=f"Rank {{rank}} {said}.")
    one = Finding(rule.id, rule.symptom, "error", "rank", (0, 2), (), 0.9, "", ())
    assert summary(rule, one) == f"Ranks 0 and 2 {of_many}."
    assert summary(rule, replace(one, ranks=(2,))) == f"Rank 2 {said}."
