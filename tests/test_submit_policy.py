"""Whether a job is tried again: decided by the diagnosed cause."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramedic import ParamedicError, diagnose
from paramedic.knowledge.retries import load_retries
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.submit.policy import Ended, Failure, Room, decide, failure_of, less_memory, policy_of
from paramedic.submit.spec import Tunable

BUG = Failure("data-or-input-defect", 0.9, "f1", "diagnosis", "data-pipeline-failure")
LOST = Failure("hardware-fault", 1.0, "n1", "slurm", "worker-or-node-loss", "node-lost", hosts=("node-02",))
TAKEN = Failure("preemption-or-scheduler-action", 1.0, "p1", "slurm", "worker-or-node-loss", "preempted")
FULL = Failure("device-memory-overcommit", 0.9, "m1", "diagnosis", "device-out-of-memory")
LIMITS = {"micro_batch": Tunable(8, 1, 64), "accumulation": Tunable(1, 1, 64)}


def decided(*failures: Failure, chosen: dict[str, int | str] | None = None, **room: Any) -> Any:
    more = {"most_attempts": 10, "values": {}, "limits": {}, "can_exclude": True, **room}
    return decide(policy_of(chosen or {}), failures, Room(**more))


def test_every_cause_of_the_taxonomy_has_a_policy_and_a_reason() -> None:
    assert load_retries().keys() == load_taxonomy().causes.keys()
    assert len(load_retries()) == 28
    assert all(entry.why and entry.times >= 0 for entry in load_retries().values())


def test_a_deterministic_bug_is_tried_once() -> None:
    found = decided(BUG)
    assert (found.action, found.cause) == ("stop", "data-or-input-defect")
    assert "the same sample is read again" in found.reason


def test_a_lost_node_is_left_out_where_the_engine_can() -> None:
    assert decided(LOST).exclude == ("node-02",)
    assert "without node-02" in decided(LOST).reason
    here = decided(LOST, can_exclude=False)
    assert (here.action, here.exclude) == ("retry", ())


def test_the_same_failure_is_not_tried_a_third_time() -> None:
    assert decided(LOST).action == "retry"
    again = decided(LOST, LOST)
    assert (again.action, "same failure came 2 times" in again.reason) == ("stop", True)
    other = replace(LOST, fingerprint="n2", hosts=("node-03",))
    assert decided(LOST, other).action == "retry"


def test_a_newer_checkpoint_between_two_failures_counts_as_progress() -> None:
    assert decided(LOST, replace(LOST, progressed=True)).action == "retry"


def test_preemption_may_come_again_and_again_but_not_for_ever() -> None:
    assert decided(*[TAKEN] * 9).action == "retry"
    assert decided(*[TAKEN] * 12, most_attempts=100).action == "stop"
    assert "as many as are allowed" in decided(*[TAKEN] * 3, most_attempts=3).reason


def test_a_rank_that_is_killed_again_and_again_is_not_taken_for_preempted_for_ever() -> None:
    killed = replace(TAKEN, said_by="diagnosis", probability=0.5, reason="")
    assert decided(killed, killed).action == "retry"
    assert decided(killed, killed, killed).action == "stop"


def test_a_time_limit_without_a_new_checkpoint_would_come_again() -> None:
    timed = replace(TAKEN, reason="time-limit")
    assert decided(timed).action == "stop"
    assert decided(replace(timed, progressed=True)).action == "retry"


def test_memory_is_planned_anew_with_the_same_batch() -> None:
    found = decided(FULL, values={"micro_batch": 8, "accumulation": 1}, limits=LIMITS)
    assert (found.action, dict(found.tunables)) == ("replan", {"micro_batch": 4, "accumulation": 2})
    assert "micro_batch 8 → 4, accumulation 1 → 2" in found.reason


@pytest.mark.parametrize("values", [{"micro_batch": 1, "accumulation": 8}, {"micro_batch": 3, "accumulation": 1}, {}])
def test_what_would_change_the_batch_is_not_planned(values: dict[str, int]) -> None:
    assert less_memory(values, LIMITS) is None
    assert decided(FULL, values=values, limits=LIMITS).action == "stop"


def test_accumulation_keeps_its_limit() -> None:
    limits = LIMITS | {"accumulation": Tunable(1, 1, 1)}
    assert less_memory({"micro_batch": 8, "accumulation": 1}, limits) is None


def test_without_tunables_memory_is_not_tried_again() -> None:
    assert "no tunables were declared" in decided(FULL).reason


def test_the_user_decides_for_a_cause() -> None:
    assert decided(LOST, chosen={"hardware-fault": "never"}).action == "stop"
    assert decided(BUG, chosen={"data-or-input-defect": 1}).action == "retry"
    assert decided(BUG, BUG, chosen={"data-or-input-defect": 1}).action == "stop"


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ({"hardware-falt": 3}, "did you mean hardware-fault"),
        ({"hardware-fault": "often"}, "a number of times"),
        ({"hardware-fault": -1}, "a number of times"),
        ({"hardware-fault": True}, "a number of times"),
    ],
)
def test_a_wrong_policy_is_refused(chosen: dict[str, int | str], why: str) -> None:
    with pytest.raises(ParamedicError, match=why):
        policy_of(chosen)


def test_a_failure_without_diagnosis_is_not_tried_blindly() -> None:
    failure = failure_of(None, Ended("local", "", 3, last="boom"))
    assert decided(failure).action == "stop"
    assert "not diagnosed" in decided(failure).reason


def test_what_somebody_ended_at_the_engine_is_not_started_again() -> None:
    assert decided(replace(TAKEN, reason="cancelled-outside")).action == "stop"


def test_an_unsure_cause_is_no_ground_for_another_attempt() -> None:
    assert decided(replace(LOST, said_by="diagnosis", probability=0.1)).action == "stop"


def verdict_of(text: str, folder: Path) -> Any:
    (folder / "job.log").write_text(text)
    return diagnose(folder / "job.log").verdict


def test_fingerprints_are_the_same_for_the_same_failure_and_differ_for_others(tmp_path: Path) -> None:
    oom = "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {} GiB.\n"
    one, same = (failure_of(verdict_of(oom.format(size), tmp_path), Ended("local", "", 1)) for size in ("2.00", "3.50"))
    other = failure_of(
        verdict_of("[rank1]: ValueError: a label is out of range: 17\n", tmp_path), Ended("local", "", 1)
    )
    assert one.cause == "device-memory-overcommit"
    assert one.fingerprint == same.fingerprint != other.fingerprint


def test_what_the_engine_knows_counts_before_what_the_logs_show(tmp_path: Path) -> None:
    verdict = verdict_of("[rank0]: RuntimeError: Connection closed by peer [10.0.0.2]:3411\n", tmp_path)
    failure = failure_of(verdict, Ended("slurm", "node-lost", 1, ("node-02",)))
    assert (failure.cause, failure.said_by, failure.hosts) == ("hardware-fault", "slurm", ("node-02",))
