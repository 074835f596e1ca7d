"""What experts read in logs of jobs that do not fail: lists of all ranks, saves that fail to the end, starts anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic.collect.files import collect
from paramedic.detect.series import every
from paramedic.knowledge import load
from paramedic.model import Run
from paramedic.pipeline import Options, compile_prefilter, diagnose, examine

pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def read(folder: Path, text: str, name: str = "train.log") -> Run:
    (folder / name).write_text(text)
    return collect([str(folder)], compile_prefilter(load()))


@pytest.mark.parametrize(
    ("line", "name", "values"),
    [
        ("step {step} compute ms 408 417 416 1113 | comm ms 47 40 39 2", "compute_time", [0.408, 0.417, 0.416, 1.113]),
        ("step {step} loss 2.1 | cuda alloc GiB r0..r3 1.5 1.0 1.0 1.0 | x", "memory", [1.5 * 2**30, *[2.0**30] * 3]),
        ("step {step} mem GiB  0:8.0  1:1.0  2:1.0  3:1.0", "memory", [8 * 2.0**30, *[2.0**30] * 3]),
        ("step {step} loss/rank 2.7 2.6 2.5 3.1 acc/rank 0.1 0.1 0.1 0.2", "loss", [2.7, 2.6, 2.5, 3.1]),
    ],
)
def test_a_line_that_lists_all_ranks_is_read_for_each(
    tmp_path: Path, line: str, name: str, values: list[float]
) -> None:
    run = read(tmp_path, "".join(line.format(step=step) + "\n" for step in range(10, 100, 10)))
    told = {one.rank: one.finite[0] for one in every(run, name) if one.rank is not None and one.finite}
    assert [told[rank] for rank in range(4)] == pytest.approx(values)


def test_a_list_of_checksums_names_the_replica_that_left(tmp_path: Path) -> None:
    lines = [
        f"step {step} loss 3.1 p-crc " + " ".join(f"{step * (7 if rank == 2 else 1):08x}a" for rank in range(4)) + "\n"
        for step in range(100, 900, 100)
    ]
    (tmp_path / "train.log").write_text("".join(lines))
    verdict = diagnose([str(tmp_path)]).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.ranks) == ("replica-divergence", (2,))


SAVES = "WARNING ckpt: G_{epoch}.pth: [enforce fail at inline_container.cc:603] . unexpected pos 64 vs 12, skipping\n"


@pytest.mark.parametrize(("until", "verdict"), [(30, "CKPT004"), (12, None)])
def test_saves_that_fail_to_the_end_are_no_handled_error(tmp_path: Path, until: int, verdict: str | None) -> None:
    text = ""
    for epoch in range(30):
        text += "".join(f"epoch {epoch} step {step} loss {2 - epoch / 20:.3f}\n" for step in (0, 100, 200))
        text += SAVES.format(epoch=epoch) if 10 <= epoch < until else ""
    (tmp_path / "train.log").write_text(text + "training finished\n")
    said = diagnose([str(tmp_path)]).verdict
    assert (said.rule if said else None) == verdict


def test_a_launcher_that_was_asked_to_end_and_started_again_has_not_failed(tmp_path: Path) -> None:
    steps = "".join(f"step {step} loss 2.{step}\n" for step in range(10, 40))
    asked = "torch.distributed.elastic.multiprocessing.api.SignalException: Process 3055 got signal: 15\n"
    (tmp_path / "run.log").write_text(steps + asked + steps)
    assert diagnose([str(tmp_path)]).verdict is None
    (tmp_path / "run.log").write_text(steps + asked)
    verdict = diagnose([str(tmp_path)]).verdict
    assert verdict is not None and verdict.rule == "JOB008"


def test_the_time_limit_of_the_run_before_is_not_the_failure_of_the_one_that_resumed_it(tmp_path: Path) -> None:
    before = "".join(f"[2024-01-29 22:31:{s:02}] iter {93000 + s} loss 0.25{s} lr 2e-3\n" for s in range(30))
    end = "slurmstepd: error: *** JOB 771220 ON g11 CANCELLED AT 2024-01-29T23:07:12 DUE TO TIME LIMIT ***\n"
    after = "[2024-01-30 06:58:16] load_state_dict(strict=False) missing 1174 unexpected 1174\n"
    after += "".join(f"[2024-01-30 07:31:{s:02}] iter {93030 + s} loss 3.25{s} lr 2e-3\n" for s in range(30))
    (tmp_path / "before.log").write_text(before + end)
    (tmp_path / "after.log").write_text(after)
    run = collect([str(tmp_path)], compile_prefilter(load()))
    verdict = examine(run, load(), compile_prefilter(load()), Options()).verdict
    assert verdict is not None and verdict.symptom == "checkpoint-resume-failure"
