"""What somebody says of his job beside its logs: it chooses among remarks, and never overrules what failed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paramedic.commands import main
from paramedic.detect.description import SUREST, content

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")

TRAINS = "".join(f"step {step} loss {3 - step / 1000:.4f} 0.52 s/it\n" for step in range(0, 400, 20))
SWITCHED_OFF = "a:1:9 [0] NCCL INFO NCCL_P2P_DISABLE set by environment to 1.\n" + TRAINS
SLOW = "each step takes four times as long as on the old machines, GPUs hardly busy, link seems slow"


def diagnosed(capsys: Captured, *arguments: str) -> dict[str, Any]:
    main(["diagnose", *arguments, "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "train.log").write_text(SWITCHED_OFF)
    return folder


def test_a_remark_that_explains_the_words_becomes_the_answer(logs: Path, capsys: Captured) -> None:
    assert diagnosed(capsys, str(logs))["verdict"] is None
    verdict = diagnosed(capsys, str(logs), "--saw", SLOW)["verdict"]
    assert (verdict["rule"], verdict["symptom"]) == ("PERF022", "unexpected-transport")
    assert verdict["confidence"] <= SUREST
    assert verdict["evidence"][-1]["text"] == SLOW


def test_what_failed_stays_the_verdict_whatever_is_said(logs: Path, capsys: Captured) -> None:
    (logs / "train.log").write_text(
        SWITCHED_OFF + "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n"
    )
    verdict = diagnosed(capsys, str(logs), "--saw", SLOW)["verdict"]
    assert verdict["symptom"] == "device-out-of-memory"


def test_without_anything_that_explains_them_the_words_alone_are_said_to_be_it(logs: Path, capsys: Captured) -> None:
    (logs / "train.log").write_text(TRAINS)
    words = "after resuming from the checkpoint the loss is back where it was at the start"
    verdict = diagnosed(capsys, str(logs), "--saw", words)["verdict"]
    assert (verdict["rule"], verdict["symptom"]) == ("JOB017", "checkpoint-resume-failure")
    assert verdict["summary"].startswith("Nothing in the files explains it. From the words alone")


def test_a_message_that_is_named_beside_logs_is_such_words_and_notes_in_the_folder_are_not(
    logs: Path, tmp_path: Path, capsys: Captured
) -> None:
    (logs / "notes.txt").write_text(f"{SLOW}\n")
    assert diagnosed(capsys, str(logs))["verdict"] is None
    message = tmp_path / "message.md"
    message.write_text(f"{SLOW}\n")
    assert diagnosed(capsys, str(logs), str(message))["verdict"]["rule"] == "PERF022"


def test_words_say_nothing_of_how_large_the_job_is(logs: Path, tmp_path: Path, capsys: Captured) -> None:
    message = tmp_path / "message.md"
    message.write_text("With one GPU it was fine, now we use 64 GPUs and it is slow, each step takes forever.\n")
    run = diagnosed(capsys, str(logs), str(message))["run"]
    assert run["world_size"] is None


@pytest.mark.parametrize(
    "talk",
    ["thanks, it all works now", "How do I enable FSDP in the trainer?", "we plan to move to torch 2.8 next month"],
)
def test_mere_talk_accuses_nobody(logs: Path, capsys: Captured, talk: str) -> None:
    assert diagnosed(capsys, str(logs), "--saw", talk)["verdict"] is None


@pytest.mark.parametrize(
    "praise",
    ["everything looks fine", "loss goes down as expected, no problem", "all good", "It works as expected. Thanks!"],
)
def test_who_is_content_accuses_nobody(logs: Path, capsys: Captured, praise: str) -> None:
    (logs / "train.log").write_text(TRAINS)
    document = diagnosed(capsys, str(logs), "--saw", praise)
    assert (document["verdict"], document["findings"]) == (None, [])
    assert content(praise)


@pytest.mark.parametrize(
    "complaint",
    [
        "everything looks fine but each step is slower than before",
        "works fine on one GPU, hangs on 8",
        "no errors, it just stops",
        "it runs some hours and then blocks without any error",
        "training runs fine, accuracy at chance",
        "loss is as expected, GPU memory grows with each epoch",
        "the same code was fine last week",
    ],
)
def test_praise_beside_a_complaint_is_no_contentment(complaint: str) -> None:
    assert not content(complaint)


def test_words_that_are_too_unsure_are_a_remark_and_take_nothing_from_what_failed(logs: Path, capsys: Captured) -> None:
    vague = "something feels off, gpu fans are quiet"
    (logs / "train.log").write_text(TRAINS)
    document = diagnosed(capsys, str(logs), "--saw", vague)
    assert document["verdict"] is None
    assert [(one["rule"], one["severity"]) for one in document["findings"]] == [("JOB017", "warning")]
    assert main(["diagnose", str(logs), "--saw", vague, "--quiet"]) == 0
    end = "slurmstepd: error: *** JOB 9 ON a CANCELLED AT 2024-01-29T23:07:12 DUE TO TIME LIMIT ***\n"
    (logs / "train.log").write_text(TRAINS + end)
    document = diagnosed(capsys, str(logs), "--saw", vague)
    assert [one["rule"] for one in document["findings"]] == ["JOB006", "JOB017"]
    assert document["verdict"]["rule"] == "JOB006"


def test_words_without_any_file_are_read_as_on_standard_input(capsys: Captured) -> None:
    document = diagnosed(
        capsys, "--saw", "rank 3 died with CUDA error: device-side assert triggered on 2 nodes x 4 GPUs"
    )
    assert (document["verdict"]["symptom"], document["verdict"]["ranks"]) == ("accelerator-fault", [3])
    assert document["run"]["world_size"] == 8
    document = diagnosed(capsys, "--format", "json", "--saw", "my training hangs after the first epoch, NCCL timeout")
    assert (document["verdict"]["rule"], document["verdict"]["symptom"]) == ("JOB017", "collective-hang")
    assert document["verdict"]["evidence"][0]["source"] == "what you saw"
    assert diagnosed(capsys, "--saw", "everything looks fine")["findings"] == []


def test_without_files_and_words_there_is_nothing_to_diagnose(capsys: Captured) -> None:
    assert main(["diagnose", "--saw", "  "]) == 2
    assert "required: PATH" in capsys.readouterr().err


def test_files_may_stand_behind_the_words(logs: Path, capsys: Captured) -> None:
    assert diagnosed(capsys, "--saw", SLOW, "-v", str(logs), "--fail-on", "never")["verdict"]["rule"] == "PERF022"


def test_a_time_limit_does_not_answer_what_somebody_asks(logs: Path, capsys: Captured) -> None:
    end = "slurmstepd: error: *** JOB 9 ON a CANCELLED AT 2024-01-29T23:07:12 DUE TO TIME LIMIT ***\n"
    (logs / "train.log").write_text(SWITCHED_OFF + end)
    assert diagnosed(capsys, str(logs))["verdict"]["rule"] == "JOB006"
    assert diagnosed(capsys, str(logs), "--saw", SLOW)["verdict"]["rule"] == "PERF022"
    killed = "the scheduler killed my job after a day, is a node lost or were we preempted?"
    assert diagnosed(capsys, str(logs), "--saw", killed)["verdict"]["rule"] == "JOB006"


def test_nothing_said_is_nothing_asked_and_secrets_are_not_kept(logs: Path, capsys: Captured) -> None:
    assert diagnosed(capsys, str(logs), "--saw", "  ")["verdict"] is None
    main(["diagnose", str(logs), "--saw", f"{SLOW}, token=hf_abcdefghijklmnopqrstuvwxyz0123456789"])
    assert "hf_abcdefghijkl" not in capsys.readouterr().out
