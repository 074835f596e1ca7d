"""What agents see a job do: real jobs with and without a fault, and what is made of damaged records of it."""

from __future__ import annotations

import copy
import json
import os
import random
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from paramedic.detect import RUN_DETECTORS
from paramedic.knowledge import load
from paramedic.knowledge.rules import OF_CONDUCT
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.rank import hooks

PROGRAM = Path(__file__).parent / "conduct" / "silent_job.py"
PAIR = PROGRAM.with_name("silent_pair.py")
TARGET = PROGRAM.with_name("silent_target.py")
HAND = PROGRAM.with_name("silent_hand.py")
WASTE = PROGRAM.with_name("silent_waste.py")
KNOWLEDGE = load()
PREFILTER = compile_prefilter(KNOWLEDGE)


def watched(folder: Path, fault: str = "", ranks: int = 2, program: Path = PROGRAM) -> Path:
    """The job under `paramedic run`, ended; its folder."""
    target = folder / f"watched-{fault or 'healthy'}".replace(" ", "-")
    launch = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(ranks),
        str(program),
    ]
    command = [sys.executable, "-m", "paramedic", "run", "--quiet", "--no-live", "--dir", str(target), "--", *launch]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "FAULT": fault}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return target


def findings(folder: Path) -> set[str]:
    """Rules over what agents saw."""
    report = examine(read([str(folder)], PREFILTER), KNOWLEDGE, PREFILTER, Options())
    ours = {id for id, rule in KNOWLEDGE.rules.items() if rule.of_conduct}
    return {one.rule for one in report.findings} & ours


def state(folder: Path, rank: int = 0) -> Any:
    return json.loads((folder / "ranks" / f"rank-{rank}.watch.json").read_text())


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A second run, which goes on from the checkpoint of the first."""
    folder = tmp_path_factory.mktemp("healthy")
    watched(folder, "first")
    return watched(folder)


def test_a_healthy_job_is_seen_whole_and_nothing_is_found(healthy: Path) -> None:
    seen = state(healthy)
    assert seen["off"] == {}
    said = seen["conduct"]
    assert max(said["orders"], key=said["orders"].get) == "lznbfbcs"
    assert [one["epochs"] for one in said["loaders"]] == [[0, 0, 1, 1]]
    assert said["states"] == {"optimizer": 1, "scheduler": 1}
    assert said["loads"][0]["holds"] == ["optimizer", "scheduler", "tensors"]
    assert said["models"][0]["of_them_in_training"] == 0 < said["models"][0]["without_gradients"]
    assert findings(healthy) == set()


@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        pytest.param("inner", "NUM400"),
        pytest.param("head reset", "NUM401", marks=pytest.mark.slow),
        pytest.param("no rate", "NUM403", marks=pytest.mark.slow),
        pytest.param("cleared", "NUM410", marks=pytest.mark.slow),
        pytest.param("never cleared", "NUM411", marks=pytest.mark.slow),
        pytest.param("late clip", "NUM412", marks=pytest.mark.slow),
        pytest.param("dropout", "NUM416", marks=pytest.mark.slow),
        pytest.param("no sampler", "DATA410", marks=pytest.mark.slow),
        pytest.param("no epoch", "DATA411", marks=pytest.mark.slow),
        pytest.param("own part", "NUM430", marks=pytest.mark.slow),
    ],
)
def test_a_job_that_goes_wrong_without_a_word_is_found(fault: str, rule: str, tmp_path: Path) -> None:
    assert rule in findings(watched(tmp_path, fault))


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        ("", set()),
        pytest.param("target", {"NUM407"}, marks=pytest.mark.slow),
        pytest.param("some restore", {"CKPT416"}, marks=pytest.mark.slow),
        pytest.param("live", {"CKPT417"}, marks=pytest.mark.slow),
        pytest.param("one file", {"CKPT413", "CKPT418"}, marks=pytest.mark.slow),
        pytest.param("alone", {"JOB410", "CKPT413"}, marks=pytest.mark.slow),
    ],
)
def test_targets_files_and_threads_are_seen(fault: str, rules: set[str], tmp_path: Path) -> None:
    folder = watched(tmp_path, fault, program=TARGET)
    assert state(folder)["off"] == {}
    assert findings(folder) == rules


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        ("", set()),
        pytest.param("same draws", {"DATA419"}, marks=pytest.mark.slow),
        pytest.param("summed", {"NUM417"}, marks=pytest.mark.slow),
        pytest.param("half", {"NUM427"}, marks=pytest.mark.slow),
    ],
)
def test_gradients_averaged_by_hand_are_seen(fault: str, rules: set[str], tmp_path: Path) -> None:
    folder = watched(tmp_path, fault, program=HAND)
    assert state(folder)["off"] == {}
    assert findings(folder) == rules


@pytest.mark.parametrize(
    ("fault", "rules"),
    [
        pytest.param("", set(), marks=pytest.mark.slow),
        ("kept", {"MEM415", "MEM416", "NUM431", "DATA420"}),
        pytest.param("units", {"PERF425", "CKPT420"}, marks=pytest.mark.slow),
        pytest.param("rows", {"PERF426"}, marks=pytest.mark.slow),
        pytest.param("sorted", {"DATA421"}, marks=pytest.mark.slow),
    ],
)
def test_what_is_kept_and_sent_without_need_is_seen(fault: str, rules: set[str], tmp_path: Path) -> None:
    folder = watched(tmp_path, fault, program=WASTE)
    assert state(folder)["off"] == {}
    run = read([str(folder)], PREFILTER)
    conduct = [rule for rule in KNOWLEDGE.rules.values() if rule.of_conduct]
    assert {rule.id for rule in conduct if any(RUN_DETECTORS[rule.detector](run, rule, []))} == rules


@pytest.mark.slow
def test_a_healthy_job_of_two_models_is_seen_whole_and_nothing_is_found(tmp_path: Path) -> None:
    folder = watched(tmp_path, program=PAIR)
    assert state(folder)["off"] == {}
    assert [one["type"] for one in state(folder)["conduct"]["optimizers"]] == ["SGD", "Adam"]
    assert findings(folder) == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "rule"),
    [
        ("critic alone", "NUM400"),
        ("same rows", "DATA415"),
        ("first batch", "DATA416"),
        ("warm-up", "NUM419"),
        ("cut off", "NUM421"),
        ("best", "CKPT415"),
        ("left over", "NUM424"),
        ("anomaly", "PERF412"),
        ("again", "PERF414"),
    ],
)
def test_a_job_of_two_models_that_goes_wrong_without_a_word_is_found(fault: str, rule: str, tmp_path: Path) -> None:
    assert rule in findings(watched(tmp_path, fault, program=PAIR))


@pytest.mark.slow
def test_a_state_left_in_the_checkpoint_is_found(tmp_path: Path) -> None:
    watched(tmp_path, "first")
    assert "CKPT410" in findings(watched(tmp_path, "moments"))


def _parted(folder: Path, conduct: dict[str, Any]) -> Path:
    """Two replicas that are the same until step 16, and not at the steps that were looked at later."""
    (folder / "ranks").mkdir(parents=True)
    steps = (2, 4, 8, 16, 32, 64)
    for rank in range(2):
        digests = [
            {"what": "agreement", "step": step, "digest": f"{step}-{rank if step > 16 else 0}", "of": 2}
            for step in steps
        ]
        said = {"paramedic_watch": 1, "rank": rank, "world_size": 2, "host": "a", "pid": 100 + rank, "stage": "ended",
                "steps": 100, "ticks": 900, "groups": [{"name": "0", "desc": "default_pg", "ranks": [0, 1]}],
                "now": {"phase": "other", "said": "", "for_s": 0.1}, "digests": digests,
                "conduct": conduct}  # fmt: skip
        (folder / "ranks" / f"rank-{rank}.watch.json").write_text(json.dumps(said))
    job = {"paramedic_job": 1, "host": "a", "exit": 0, "suspected": None, "ranks": {}}
    (folder / "ranks" / "job.watch.json").write_text(json.dumps(job))
    return folder


@pytest.mark.parametrize(
    ("conduct", "verdict"),
    [
        ({"orders": {"fzbrs": 80, "rfzbrs": 20}, "hook": "torch.post_localSGD_hook.post_localSGD_hook"}, None),
        ({"orders": {"fzbrs": 100}, "hook": "torch.post_localSGD_hook.post_localSGD_hook"}, "NUM019"),
        ({"orders": {"fzbs": 80, "rfzbs": 20}, "moved": [0, 0, 0, 1]}, "NUM019"),
        ({"orders": {"fzbs": 100}}, "NUM019"),
    ],
)
def test_replicas_may_part_between_two_averages_of_their_weights(
    conduct: dict[str, Any], verdict: str | None, tmp_path: Path
) -> None:
    folder = _parted(tmp_path / "run", conduct)
    report = examine(read([str(folder)], PREFILTER), KNOWLEDGE, PREFILTER, Options())
    assert (report.verdict.rule if report.verdict else None) == verdict
    assert "NUM019" in {one.rule for one in report.findings}


INSIDE = """
import torch, torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
dist.init_process_group("gloo")
torch.manual_seed(0)
model = DDP(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1)))
adam = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
chance = torch.Generator().manual_seed(dist.get_rank())
for _ in range(24):
    loss = model(torch.randn(4, 8, generator=chance)).square().mean()
    adam.zero_grad()
    loss.backward()
    adam.step()
dist.destroy_process_group()
"""


@pytest.mark.slow
def test_an_optimizer_inside_another_has_no_gradients_of_anothers_loss(tmp_path: Path) -> None:
    program = tmp_path / "inside.py"
    program.write_text(INSIDE)
    folder = watched(tmp_path, program=program)
    assert not findings(folder) & {"NUM424", "PERF414"}
    assert not any("foreign" in one for one in state(folder)["conduct"]["optimizers"])


def test_a_traceback_does_not_show_our_hooks() -> None:
    ours = str(Path(hooks.__file__).parent / "hooks.py")
    hook: dict[str, Any] = {}
    exec(compile("def called(function):\n    return function()", ours, "exec"), hook)

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError) as raised:
        hook["called"](lambda: hook["called"](fails))
    shown = hooks.without_us(raised.value.__traceback__)
    assert {frame.filename for frame in traceback.extract_tb(shown)} == {__file__}


def _damaged(value: Any, chance: random.Random) -> Any:
    """Somewhere in it a value of another kind."""
    if chance.random() < 0.02:
        return copy.deepcopy(
            chance.choice([None, True, -1, 1 << 62, 0.5, "", "x", [], [[]], {}, {"a": []}, [1, "2", None]])
        )
    if isinstance(value, dict):
        return {name: _damaged(one, chance) for name, one in value.items()}
    return [_damaged(one, chance) for one in value] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_record_of_a_job_is_no_failure_of_ours(seed: int, healthy: Path, tmp_path: Path) -> None:
    chance = random.Random(seed)
    (tmp_path / "ranks").mkdir()
    for rank in range(2):
        (tmp_path / "ranks" / f"rank-{rank}.watch.json").write_text(json.dumps(_damaged(state(healthy, rank), chance)))
    findings(tmp_path)


def test_every_rule_over_conduct_is_registered() -> None:
    named = {rule.detector for rule in KNOWLEDGE.rules.values() if rule.of_conduct}
    assert named == {name for name in RUN_DETECTORS if name.partition(".")[0] in OF_CONDUCT}
