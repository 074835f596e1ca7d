"""The job's program and command as witnesses beside its logs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paramedic import pipeline
from paramedic.collect.beside import RAN, read_beside
from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.knowledge import load
from paramedic.report.timeline import timeline

HEALTHY = "".join(f"rank {rank} epoch {epoch} loss {1 / (epoch + 1):.4f}\n" for epoch in range(6) for rank in range(2))
SILENT = """
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

def train(loader, net):
    dist.init_process_group("gloo")
    model = DDP(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model.module(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    dist.destroy_process_group()
"""
SOUND = SILENT.replace("model.module(x)", "model(x)")
RULE = "CODE180"
HANGS = """
import torch.distributed as dist

def save(rank, model):
    if rank == 0:
        dist.barrier()
"""
TIMEOUT = (
    "[rank1]:[E1115 10:00:00.000000000 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600010 "
    "milliseconds before timing out.\n"
)


def job(folder: Path, program: str, log: str = HEALTHY) -> list[str]:
    (folder / "train.py").write_text(program)
    (folder / "job.log").write_text(log)
    return [str(folder)]


def test_what_the_log_does_not_say_is_told_by_the_program(tmp_path: Path) -> None:
    verdict = pipeline.diagnose(job(tmp_path, SILENT)).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.symptom, verdict.ranks, verdict.severity) == (
        RULE,
        "replica-divergence",
        (),
        "error",
    )
    where = verdict.evidence[0].event
    assert (os.path.basename(where.source), where.line) == ("train.py", 11)


def test_a_sound_program_is_no_verdict(tmp_path: Path) -> None:
    assert pipeline.diagnose(job(tmp_path, SOUND)).verdict is None


def test_the_log_alone_is_no_verdict(tmp_path: Path) -> None:
    job(tmp_path, SILENT)
    assert pipeline.diagnose([str(tmp_path / "job.log")]).verdict is None


def test_what_the_log_shows_comes_before_what_the_program_might_do(tmp_path: Path) -> None:
    report = pipeline.diagnose(job(tmp_path, SILENT, HEALTHY + "[rank1]: MemoryError: \n" + TIMEOUT))
    assert report.verdict is not None
    assert report.verdict.rule != RULE
    assert RULE in {one.rule for one in report.findings}


def test_a_program_that_leads_to_the_symptom_names_the_cause(tmp_path: Path) -> None:
    paths = job(tmp_path, HANGS, HEALTHY + TIMEOUT)
    alone = pipeline.diagnose([str(tmp_path / "job.log")]).verdict
    beside = pipeline.diagnose(paths).verdict
    assert alone is not None and beside is not None
    assert alone.symptom == beside.symptom == "collective-hang"
    foreseen = {one.rule: one for one in pipeline.diagnose(paths).findings}["CODE110"]
    cause = foreseen.causes[0].id
    probability = {one.id: one.probability for one in alone.causes}.get(cause, 0.0)
    assert {one.id: one.probability for one in beside.causes}[cause] > probability
    assert any(item.event.source.endswith("train.py") for item in beside.evidence)


def test_of_several_programs_only_the_one_that_was_started_is_a_witness(tmp_path: Path) -> None:
    paths = job(tmp_path, SOUND)
    (tmp_path / "old.py").write_text(SILENT)
    assert pipeline.diagnose(paths).verdict is None
    started = ["torchrun", "--nproc-per-node", "2", str(tmp_path / "old.py")]
    verdict = pipeline.diagnose(paths, command=started).verdict
    assert verdict is not None and verdict.rule == RULE
    started[-1] = str(tmp_path / "train.py")
    assert pipeline.diagnose(paths, command=started).verdict is None


def test_modules_that_the_program_imports_ran_too(tmp_path: Path) -> None:
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "__init__.py").write_text("from .steps import train  # torch\n")
    (tmp_path / "loop" / "steps.py").write_text(SILENT)
    (tmp_path / "unused.py").write_text(SILENT)
    (tmp_path / "main.py").write_text("import torch\nfrom loop import train\ntrain(torch.nn.Linear(1, 1), 1, 1)\n")
    beside = read_beside([str(tmp_path)], ["python", "main.py"], str(tmp_path))
    assert beside is not None
    ran = {os.path.relpath(fact.source, tmp_path) for fact in beside.facts if fact.name == RAN}
    assert "loop/steps.py" in ran and "unused.py" not in ran
    only = read_beside([], ["python", "main.py"], str(tmp_path))
    assert only is not None
    assert {os.path.relpath(one.id, tmp_path) for one in only.sources if one.kind == "code"} >= {"loop/steps.py"}


def test_an_allowed_place_is_set_aside(tmp_path: Path) -> None:
    program = SILENT.replace("model.module(x), y)", f"model.module(x), y)  # paramedic: allow {RULE} on purpose")
    report = pipeline.diagnose(job(tmp_path, program))
    assert report.verdict is None
    assert RULE in {one.rule for one in report.suppressed}


def test_an_ignored_rule_is_no_verdict(tmp_path: Path) -> None:
    assert pipeline.diagnose(job(tmp_path, SILENT), pipeline.Options(ignore=(RULE,))).verdict is None


def test_a_program_without_logs_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job(tmp_path, SILENT)
    assert main(["diagnose", str(tmp_path / "train.py")]) == 2
    assert "name the job's logs" in capsys.readouterr().err


def test_the_command_is_read_from_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    job(tmp_path, SILENT)
    monkeypatch.chdir(tmp_path)
    command = ["--", "torchrun", "--nproc-per-node", "2", "train.py"]
    assert main(["diagnose", "job.log", "--format", "json", *command]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["rule"] == RULE


@pytest.mark.parametrize(
    "program",
    [b"\0\1\2", b"import torch\ndef (", b"import torch\n" + b"(" * 5000, "import torch\nx = 'ä'\n".encode("latin-1")],
    ids=["binary", "no Python", "nested", "no UTF-8"],
)
def test_a_program_that_cannot_be_read_loses_nothing(tmp_path: Path, program: bytes) -> None:
    (tmp_path / "train.py").write_bytes(program)
    (tmp_path / "job.log").write_text(HEALTHY + TIMEOUT)
    verdict = pipeline.diagnose([str(tmp_path)]).verdict
    assert verdict is not None and verdict.symptom == "collective-hang"


def test_nothing_outside_the_folder_is_read(tmp_path: Path) -> None:
    inside, outside = tmp_path / "job", tmp_path / "elsewhere"
    inside.mkdir()
    outside.mkdir()
    (outside / "train.py").write_text(SILENT)
    (inside / "job.log").write_text(HEALTHY)
    (inside / "train.py").symlink_to(outside / "train.py")
    assert pipeline.diagnose([str(inside)]).verdict is None
    (inside / "main.py").write_text("import torch\nimport train\nfrom ..elsewhere import train\n")
    beside = read_beside([], ["python", "main.py"], str(inside))
    assert beside is not None
    assert not any("elsewhere" in os.path.realpath(source.id) for source in beside.sources)


def test_without_a_program_settings_are_told_for_advice_and_not_examined(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(HEALTHY)
    assert read_beside([str(tmp_path)]) is None
    (tmp_path / "hparams.yaml").write_text("trainer:\n  devices: 2   # a node\n# a remark\n")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --requeue\nexport WANDB_API_KEY=0123456789abcdef0123\n")
    beside = read_beside([str(tmp_path)])
    assert beside is not None and not beside.sources
    assert [event.text for event in beside.events] == [
        "trainer:", "devices: 2   # a node", "#SBATCH --requeue", "export WANDB_API_KEY=[redacted]",
    ]  # fmt: skip
    assert pipeline.diagnose([str(tmp_path)]).verdict is None
    (tmp_path / "job.sbatch").write_text("x " * 244 + "sk-proj-7vAccTJxkJURcDoPWVnvLqz69fidxUkDvaAXKddAY\n")
    cut = read_beside([str(tmp_path)])
    assert cut is not None and not any("7vA" in event.text for event in cut.events)


def test_a_watched_job_that_ends_well_is_told_what_its_program_does(tmp_path: Path) -> None:
    program = "import sys\nprint('step 1 loss 0.5')\nsys.exit()\n" + SILENT
    (tmp_path / "train.py").write_text(program)
    command = [sys.executable, "-m", "paramedic", "run", "--dir", "seen", "--", sys.executable, "train.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    assert "gradients are not reduced" in done.stderr
    report = json.loads((tmp_path / "seen" / "report.json").read_text())
    assert report["verdict"]["rule"] == RULE


def test_no_logs_at_all_is_an_error_as_before(tmp_path: Path) -> None:
    with pytest.raises(ParamedicError, match="no such file"):
        pipeline.diagnose([str(tmp_path / "nothing.log")])


def test_damaged_programs_are_survived(tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
    import fuzz_programs

    for number in range(1, 41):
        fuzz_programs.once(number, tmp_path, shown=number % 20 == 0)


def test_a_line_of_the_program_has_no_place_on_the_time_line(tmp_path: Path) -> None:
    report = pipeline.diagnose(job(tmp_path, SILENT))
    drawn = timeline(report)
    assert report.verdict is not None and drawn is not None
    assert "first" not in drawn.kinds


UNTOLD = """
import os, time
import torch, torch.distributed as dist, torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
{given}
dist.init_process_group("gloo")
r = dist.get_rank()
model = DDP(nn.Linear(8, 2))
opt = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in DataLoader(data, batch_size=8, sampler=DistributedSampler(data)):
    opt.zero_grad()
    nn.functional.cross_entropy(model(x), y).backward()
    if r == 1:
        {condition} time.sleep(600)
    opt.step()
"""


@pytest.mark.parametrize(
    ("given", "condition"),
    [
        ('F = os.environ.get("FAULT", "")', 'if F == "hang":'),
        ("F = None", 'if os.environ["FAULT"] == "hang":'),
        ("import argparse\nargs = argparse.ArgumentParser().parse_args()", 'if args.fault == "hang":'),
    ],
)
def test_what_stands_under_a_condition_that_nobody_tells_is_no_verdict(
    tmp_path: Path, given: str, condition: str
) -> None:
    report = pipeline.diagnose(job(tmp_path, UNTOLD.format(given=given, condition=condition)))
    pauses = [one for one in report.findings if one.rule == "CODE224"]
    assert report.verdict is None and pauses[0].confidence < 0.7
    verdict = pipeline.diagnose(job(tmp_path, UNTOLD.format(given=given, condition="if True:"))).verdict
    assert verdict is not None and verdict.rule == "CODE224"


def test_an_argument_that_the_command_tells_is_known(tmp_path: Path) -> None:
    program = UNTOLD.format(
        given="import argparse\nargs = argparse.ArgumentParser().parse_args()", condition='if args.fault == "hang":'
    )
    verdict = pipeline.diagnose(job(tmp_path, program), command=["torchrun", "train.py", "--fault", "hang"]).verdict
    assert verdict is not None and verdict.rule == "CODE224"


def test_files_that_several_ranks_would_tear_are_no_verdict_on_a_job_of_one(tmp_path: Path) -> None:
    program = next(case.text for case in load().rules["CODE145"].cases() if case.expect == "bad")
    several = pipeline.diagnose(job(tmp_path, program)).verdict
    assert several is not None and several.rule == "CODE145"
    alone = "".join(f"[Rank 0] step {step} loss {1 / (step + 1):.4f}\n" for step in range(6))
    report = pipeline.diagnose(job(tmp_path, program, alone))
    assert report.verdict is None
    assert any(finding.rule == "CODE145" for finding in report.findings)
