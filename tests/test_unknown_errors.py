"""Errors of software that nobody wrote a signature for."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.knowledge.clues import load_clues
from paramedic.knowledge.cures import load_cures
from paramedic.knowledge.taxonomy import load_taxonomy

ACME = "/opt/venv/lib/python3.11/site-packages/acme"
CASES = {
    "a setting that does not divide": (
        "invalid-run-configuration",
        "parallel-strategy-misconfiguration",
        [f"{ACME}/config.py:88 in _validate_degrees"],
        "acme.errors.PlanError: acme hidden width 30 must be divisible by the stripe degree 4",
    ),
    "features that exclude each other": (
        "invalid-run-configuration",
        "framework-model-or-feature-incompatibility",
        [f"{ACME}/plan.py:12 in __post_init__"],
        "ValueError: stripes are not supported with offload, `offload=True`",
    ),
    "a call that this release has no more": (
        "unsupported-api-or-attribute",
        "framework-version-incompatibility",
        [],
        "acme.errors.GoneError: Engine.stripe was removed in 3.0",
    ),
    "a record that cannot be read": (
        "data-pipeline-failure",
        "data-or-input-defect",
        ["/srv/train/rows.py:14 in read_rows"],
        "acme.errors.RowError: malformed row 17",
    ),
    "replicas that a program finds unlike": (
        "replica-divergence",
        None,
        ["/srv/train/checks.py:41 in check_consistency"],
        "RuntimeError: replicas are out of sync",
    ),
    "a tokenizer's file that is not there": (
        "path-or-permission-error",
        None,
        ["/srv/train/tok.py:12 in load_tokenizer"],
        'OSError: Not found: "/models/m4/tokenizer.model": No such file or directory Error #2',
    ),
    "ranks that disagree": (
        "collective-desync",
        None,
        [f"{ACME}/wire.py:9 in sum"],
        "acme.errors.WireError: rank 0 sends 8 numbers while rank 3 sends 6: counts must be equal across all ranks",
    ),
    "a collective that nobody joined": (
        "collective-hang",
        None,
        [f"{ACME}/wire.py:9 in sum"],
        "acme.errors.WireTimeout: barrier timed out after 60 s, ranks have not joined: 2",
    ),
    "a save that fails": (
        "checkpoint-save-failure",
        None,
        ["/srv/train/train.py:70 in main", f"{ACME}/store.py:31 in save_shard"],
        "acme.errors.StoreError: part 3 is not whole",
    ),
    "a restore that fails": (
        "checkpoint-resume-failure",
        None,
        [f"{ACME}/store.py:77 in restore_shards"],
        "acme.errors.StoreError: part 3 is not whole",
    ),
    "too few machines": (
        "resource-allocation-failure",
        "launcher-or-rank-misconfiguration",
        [f"{ACME}/launch.py:31 in main"],
        "acme.errors.LaunchError: requested 16 slots but only 8 are available on 2 hosts",
    ),
    "a number that is none": (
        "numerical-instability",
        None,
        [f"{ACME}/guard.py:31 in watch"],
        "acme.errors.GuardError: gradient of layer 3 is nan",
    ),
    "a device that is not there": (
        "device-placement-error",
        "device-assignment-error",
        [f"{ACME}/place.py:31 in put"],
        "acme.errors.PlaceError: device acme:7 does not exist, available devices are acme:0 and acme:1",
    ),
    "a worker that died": (
        "worker-or-node-loss",
        None,
        [f"{ACME}/pool.py:31 in poll"],
        "acme.errors.PoolError: worker 5 on node n3 died unexpectedly",
    ),
    "something used before it exists": (
        "step-execution-error",
        "distributed-api-misuse",
        [f"{ACME}/state.py:31 in stripes"],
        "AssertionError: stripe group with mirrors combined is not initialized",
    ),
    "a hook of the training loop": (
        "step-execution-error",
        None,
        ["/srv/train/train.py:70 in on_train_batch_end"],
        "KeyError: 'logits'",
    ),
    "optimizer state that cannot be read": (
        "checkpoint-resume-failure",
        None,
        [f"{ACME}/loop.py:31 in _load_optimizer_and_scheduler", f"{ACME}/files.py:9 in read"],
        "OSError: [Errno 22] Invalid argument",
    ),
    "a package that a check asks for": (
        "import-or-missing-symbol",
        "missing-or-misresolved-dependency",
        [f"{ACME}/plan.py:12 in __init__"],
        "acme.errors.PlanError: stripes require acme-stripes to be installed. Run `pip install acme-stripes`.",
    ),
    "a service that cannot be reached": (
        "path-or-permission-error",
        "storage-or-external-service-fault",
        [f"{ACME}/hub.py:12 in fetch"],
        "acme.errors.HubError: Cannot reach https://hub.example.org: offline mode is enabled",
    ),
    "tensors that do not fit, in an argument of an operation": (
        "tensor-shape-or-dtype-mismatch",
        None,
        [f"{ACME}/ops.py:12 in run"],
        "acme.errors.InvalidArgumentError: Shapes of all inputs must match: values[0].shape = [2] != values[1].shape",
    ),
    "memory of the host, whoever allocates": (
        "host-out-of-memory",
        None,
        [f"{ACME}/ops.py:12 in run"],
        "acme.errors.ResourceExhaustedError: OOM when allocating a buffer of 9 GB by allocator acme_cpu",
    ),
    "a save onto a full disk": (
        "checkpoint-save-failure",
        "host-resource-exhaustion",
        [f"{ACME}/store.py:31 in save_shard"],
        "acme.errors.StoreError: part 3: file write failed",
    ),
    "an ordinary bug": (
        "step-execution-error",
        None,
        ["/srv/train/train.py:70 in main"],
        "ZeroDivisionError: division by zero",
    ),
}


def trace(frames: list[str], error: str, rank: int) -> str:
    lines = ["Traceback (most recent call last):"]
    for frame in ["/srv/train/train.py:9 in <module>", *frames]:
        place, name = frame.split(" in ")
        file, line = place.rsplit(":", 1)
        lines += [f'  File "{file}", line {line}, in {name}', "    call()"]
    return "\n".join(f"[rank{rank}]: {line}" for line in [*lines, error])


@pytest.mark.parametrize("name", CASES)
def test_its_words_and_frames_say_what_it_is(name: str, tmp_path: Path) -> None:
    symptom, cause, frames, error = CASES[name]
    log = tmp_path / "console.log"
    log.write_text("world size: 4\n" + trace(frames, error, 2) + "\n")
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.symptom) == ("JOB001", symptom)
    assert cause is None or verdict.causes[0].id == cause
    assert verdict.confidence < 0.9


def test_the_fix_follows_the_cause(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("world size: 4\n" + trace([], CASES["a call that this release has no more"][3], 2) + "\n")
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert verdict.fixes[0].pattern == "version-and-dependency-management"


def test_last_words_without_a_traceback_are_read_too(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("acme: 2 hosts\nacme: error: requested 16 slots but only 8 are available\n")
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.symptom, verdict.ranks) == ("JOB016", "resource-allocation-failure", ())


def test_last_words_of_a_run_that_finished_are_not(tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_text("acme: error: requested 16 slots but only 8 are available\nstep 4 loss 0.3\ntraining finished\n")
    assert diagnose(log).verdict is None


def test_every_clue_speaks_for_something() -> None:
    assert all(clue.symptoms or clue.causes for clue in load_clues())


def test_there_is_one_cure_for_each_cause() -> None:
    assert set(load_cures()) == set(load_taxonomy().causes)


def test_the_one_line_that_is_left_of_a_traceback_speaks(tmp_path: Path) -> None:
    log = tmp_path / "post.log"
    log.write_text("acme.errors.PlanError: width 30 must be divisible by the stripe degree 4\n")
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.confidence) == ("invalid-run-configuration", 0.7)


def test_an_exception_line_that_says_nothing_is_no_verdict(tmp_path: Path) -> None:
    log = tmp_path / "post.log"
    log.write_text("acme.errors.OddError: 17\n")
    assert diagnose(log).verdict is None


def test_a_nameless_error_is_the_word_of_the_only_rank_that_ended(tmp_path: Path) -> None:
    log = tmp_path / "post.log"
    log.write_text(
        "RuntimeError: Timed out initializing process group in store based barrier on rank: 0, for key: "
        "store_based_barrier_key:1 (world_size=4, worker_count=16, timeout=0:30:00)\n"
        "ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) local_rank: 0 (pid: 820) of binary: "
        "/usr/bin/python\n"
    )
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert verdict.symptom == "rendezvous-setup-hang"


def test_an_editor_that_says_the_process_finished_does_not_say_that_it_went_well(tmp_path: Path) -> None:
    log = tmp_path / "post.log"
    log.write_text("RuntimeError: CUDA error: misaligned address\n\nProcess finished with exit code 1\n")
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert verdict.symptom == "accelerator-fault"


def _raised(code: str, message: str, *below: str) -> str:
    frames = "".join(f'  File "{path}", line 9, in call\n    call()\n' for path in below)
    return (
        f'Traceback (most recent call last):\n  File "/srv/train.py", line 44, in main\n    {code}\n{frames}{message}\n'
    )


def test_an_error_of_the_programs_own_code_is_no_misuse_of_a_distributed_call(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(_raised('cfg["warmup"]', "KeyError: 'warmup'"), "utf-8")
    verdict = diagnose(log).verdict
    assert verdict is not None and verdict.causes[0].id == "model-construction-error"
    assert verdict.fixes[0].title == "Start at the innermost frame of your own code: /srv/train.py:44 in main"
    assert all(cause.id != "distributed-api-misuse" or cause.probability < 0.15 for cause in verdict.causes)


def test_an_error_beside_a_distributed_call_may_be_its_misuse(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text(_raised("plan[dist.get_rank()]", "KeyError: 3"), "utf-8")
    verdict = diagnose(log).verdict
    assert verdict is not None and verdict.causes[0].id == "distributed-api-misuse"


def test_a_bare_exception_is_told_from_nothing_and_its_traceback_asked_for(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    log.write_text("KeyError: 'warmup'\n", "utf-8")
    report = diagnose(log)
    assert report.verdict is None
    assert "mapping key not found" in report.findings[0].summary
    assert report.findings[0].fixes[0].title == "Show the whole traceback of every rank"
