"""What a program looked like, and the watched job did not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paramedic.pipeline import diagnose

CLEARED = """\
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
torch.manual_seed(0)
model = DistributedDataParallel(torch.nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(64):
    loss = model(torch.randn(8, 4)).square().mean()
    loss.backward()
    optimizer.zero_grad()
    optimizer.step()
"""


def _watched(folder: Path, moves: bool) -> str:
    (folder / "train.py").write_text(CLEARED)
    ranks = folder / "run/ranks"
    ranks.mkdir(parents=True)
    for rank in range(2):
        looks: list[dict[str, Any]] = [
            {"optimizer": 0, "step": step, "tensors": 2, "shapes": 7, "parameters": step if moves else 1}
            | {"gradients": step, "each parameters": [1, 2], "each gradients": [step, step], "elements": 5}
            for step in (1, 2, 4, 8, 16, 64)
        ]
        said = {
            "paramedic_watch": 1, "rank": rank, "world_size": 2, "host": "node-1", "pid": 100 + rank, "stage": "ended",
            "steps": 64, "now": {"phase": "other", "said": "", "for_s": 0.1},
            "conduct": {"orders": {"fbzs": 64}, "places": {}, "calls": [0, 0, 0, 0], "replicas": looks},
        }  # fmt: skip
        (ranks / f"rank-{rank}.watch.json").write_text(json.dumps(said))
    (ranks / "job.watch.json").write_text('{"paramedic_job": 1, "host": "node-1", "exit": 0, "ranks": {}}')
    return str(folder / "run")


@pytest.mark.parametrize("moves", [False, True])
def test_weights_that_were_seen_to_change_are_not_said_to_stand_still(tmp_path: Path, moves: bool) -> None:
    report = diagnose([_watched(tmp_path, moves), str(tmp_path / "train.py")], command=["torchrun", "train.py"])
    told = {one.rule for one in report.findings}
    aside = {one.rule: one.why for one in report.suppressed}
    assert ("CODE164" in told, "CODE164" in aside) == (not moves, moves)
    assert (
        aside.get("CODE164", "the parameters changed from look to look") == "the parameters changed from look to look"
    )
