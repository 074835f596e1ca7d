"""Out of memory: what the files beside a log say, and the command that plans with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paramedic.collect.project import read_project
from paramedic.commands import main
from paramedic.detect import footprint
from paramedic.detect.setup import Setup
from paramedic.pipeline import diagnose

LLAMA = {"model_type": "llama", "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 32, "vocab_size": 32000, "tie_word_embeddings": False}  # fmt: skip
LOG = (
    "[rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.20 GiB. GPU 0 has a total capacity of 39.49 GiB"
    " of which 812.00 MiB is free. Including non-PyTorch memory, this process has 38.69 GiB memory in use. Of the allocated"
    " memory 37.90 GiB is allocated by PyTorch, and 210.00 MiB is reserved by PyTorch but unallocated.\n"
)
TRAIN = "from transformers import Trainer, TrainingArguments\nTrainer(model=model, args=args).train()\n"


def project(folder: Path, zero: dict[str, object] | None = None, ranks: int = 4, more: str = "") -> Path:
    (folder / "train.log").write_text("[rank0]: Traceback (most recent call last):\n" + LOG)
    (folder / "config.json").write_text(json.dumps(LLAMA))
    (folder / "train.py").write_text(TRAIN)
    words = f"torchrun --nproc_per_node {ranks} train.py --model_name_or_path . --per_device_train_batch_size 2 --max_seq_length 2048"
    if zero is not None:
        content = {"train_micro_batch_size_per_gpu": 2, "zero_optimization": zero, "bf16": {"enabled": True}}
        (folder / "ds.json").write_text(json.dumps(content))
        words += " --deepspeed ds.json"
    (folder / "run.sh").write_text(f"#!/bin/bash\n#SBATCH --gres=gpu:v100:{ranks}\n{words} {more}\n")
    return folder


def job(folder: Path) -> footprint.Job:
    (found,) = footprint.jobs(Setup(read_project(str(folder))))
    return found


def test_parameters_are_counted_as_the_model_has_them() -> None:
    exact = 6_738_415_616
    counted = footprint.parameters(LLAMA)
    assert counted is not None
    assert exact * 0.999 < counted <= exact
    assert footprint.parameters(LLAMA | {"model_type": "other"}) is None
    assert footprint.parameters(LLAMA | {"hidden_size": "4096"}) is None


@pytest.mark.parametrize(
    ("zero", "each"),
    [
        (None, 8.0),
        ({"stage": 0}, 2.0),
        ({"stage": 2}, 2 + 3.0),
        ({"stage": 3}, 3.5),
        ({"stage": 3, "offload_optimizer": {"device": "cpu"}}, 0.5),
        ({"stage": 3, "offload_param": {"device": "cpu"}}, 0.0),
    ],
)
def test_the_least_that_each_rank_holds(zero: dict[str, object] | None, each: float, tmp_path: Path) -> None:
    assert footprint.least_bytes(job(project(tmp_path, zero)), 1000) == int(1000 * each)


@pytest.mark.parametrize(
    "more", ["--optim adafactor", "--lora_rank 8", "--fsdp $MODE", "--load_in_4bit", "--deepspeed away.json"]
)
def test_what_is_not_certain_is_not_said(more: str, tmp_path: Path) -> None:
    project(tmp_path, None, more=more)
    assert list(footprint.states_exceed_card(Setup(read_project(str(tmp_path))))) == []


def test_states_beyond_the_card_are_said_before_the_launch(tmp_path: Path) -> None:
    (hit,) = footprint.states_exceed_card(Setup(read_project(str(project(tmp_path)))))
    assert hit.fields["card"] == "32.00 GiB"


def test_a_diagnosis_fills_the_command_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(tmp_path, {"stage": 3})
    assert main(["diagnose", str(tmp_path), "--format", "json"]) == 1
    (first, second, *_) = json.loads(capsys.readouterr().out)["verdict"]["fixes"]
    assert first["title"].startswith("Halve the micro-batch")
    assert second["action"]["run"] == (
        f"paramedic memory plan --model {tmp_path}/config.json --batch 2 --seq 2048 --world-size 4 --strategy zero3 "
        "--gpu a100-40 --gpu-memory 39.49GiB"
    )


def test_a_diagnosis_says_when_no_batch_can_fit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    project(tmp_path)
    main(["diagnose", str(tmp_path), "--format", "json"])
    (first, *_) = json.loads(capsys.readouterr().out)["verdict"]["fixes"]
    assert first["title"].startswith("Parameters and optimizer states alone take 50.20 GiB of 39.49 GiB")


def test_a_log_alone_gives_what_it_knows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "train.log").write_text(LOG)
    main(["diagnose", str(tmp_path / "train.log"), "--format", "json"])
    fixes = json.loads(capsys.readouterr().out)["verdict"]["fixes"]
    assert "--gpu a100-40 --gpu-memory 39.49GiB" in fixes[-1]["action"]["run"]


def test_the_first_fixes_use_what_log_and_message_state(tmp_path: Path) -> None:
    oom = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.81 GiB. GPU 5 has a total capacity of 79.15 GiB "
        "of which {free} GiB is free. Of the allocated memory 70.51 GiB is allocated by PyTorch, and 4.83 GiB is reserved "
        "by PyTorch but unallocated.\n"
    )
    titles = {}
    for free, batch in (("3.02", "--per_device_train_batch_size 8\n"), ("1.02", "")):
        (tmp_path / "job.log").write_text(batch + oom.format(free=free))
        verdict = diagnose([str(tmp_path / "job.log")]).verdict
        assert verdict is not None and verdict.rule == "MEM001"
        titles[free] = [fix.title for fix in verdict.fixes]
    assert titles["3.02"][0].startswith("Halve the micro-batch, 8 → 4, and double")
    assert titles["3.02"][1].startswith("Let the allocator join its pieces: 7.85 GiB")
    assert titles["1.02"][0].startswith("Halve the micro-batch and double")
    assert not any("pieces" in title for title in titles["1.02"])
