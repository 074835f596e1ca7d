"""`paramedic run` beside real torchrun jobs with a planted fault, through the harness that measures it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
import hang_trial
import hangs
from hang_kinds import HEALTHY, KINDS, Kind, Trial, faults, healthy

from paramedic.commands import VERBS
from paramedic.knowledge.taxonomy import load_taxonomy

BY_NAME = {kind.name: kind for kind in (*KINDS, *HEALTHY)}
WATCHES = pytest.mark.skipif("run" not in VERBS, reason="needs paramedic run")


def planted(name: str, how: str, rank: int | None = 2) -> Trial:
    return Trial(0, BY_NAME[name], how, world=4, rank=rank, step=23, batch=64)


def outcome(name: str, how: str, **said: object) -> hang_trial.Outcome:
    return hang_trial.Outcome(planted(name, how), 124, True, **said)  # type: ignore[arg-type]


# -- with the watcher ----------------------------------------------------------------------------------------------


@WATCHES
@pytest.mark.parametrize(
    ("name", "how"),
    [
        pytest.param("asleep", "fifo", marks=pytest.mark.slow),
        ("killed", "kill"),
        pytest.param("stopped", "stop", marks=pytest.mark.slow),
        pytest.param("type", "gather", marks=pytest.mark.slow),
        pytest.param("missing rank", "skip", marks=pytest.mark.slow),
        pytest.param("data error", "raise-worker", marks=pytest.mark.slow),
        pytest.param("slow data", "slow-disk", marks=pytest.mark.slow),
    ],
)
def test_the_rank_at_fault_is_named(name: str, how: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = hang_trial.run(planted(name, how), tmp_path)
    assert found.planted, (tmp_path / "output.txt").read_text()
    assert hangs.wrong(found) == "", found


@WATCHES
@pytest.mark.slow
@pytest.mark.parametrize("kind", HEALTHY, ids=lambda kind: kind.name)
def test_a_healthy_job_gets_no_verdict_and_ends_well(kind: Kind, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    found = hang_trial.run(planted(kind.name, "", rank=None), tmp_path, hang_trial.Timing(long=12))
    assert hangs.wrong(found) == "", found


# -- the harness ---------------------------------------------------------------------------------------------------


def test_the_truth_speaks_the_taxonomy() -> None:
    symptoms = set(load_taxonomy().symptoms)
    assert all({kind.symptom, kind.also or kind.symptom} <= symptoms for kind in KINDS)
    assert len(BY_NAME) == len(KINDS) + len(HEALTHY)


def test_a_seed_decides_what_is_run() -> None:
    assert faults(100, 1) == faults(100, 1) != faults(100, 2)
    assert {(trial.kind.name, trial.how) for trial in faults(100, 1)} == {
        (kind.name, how) for kind in KINDS for how in kind.hows
    }
    assert {trial.kind for trial in healthy(20, 1)} == set(HEALTHY)
    assert faults(3, 1, "evaluation") == [] == healthy(3, 1, "asleep")
    assert all(trial.rank in range(trial.world) for trial in faults(100, 1))


def test_answers_are_judged() -> None:
    right = outcome("order", "swap", symptom="collective-hang", ranks=(2,), seconds=3.0)
    assert hangs.wrong(right) == ""
    innocent = outcome("order", "swap", symptom="native-crash", ranks=(1, 2), seconds=5.0)
    assert hangs.wrong(innocent) == "names rank 1, 2, says native-crash"
    silent = outcome("order", "swap")
    assert hangs.wrong(silent) == "no verdict"
    page = hangs.markdown([right, innocent, silent], 1)
    assert "| order | 3 | 1 | 1 | 1 | 1 | 1 | 4.0 | 5.0 |" in page
    assert "**names rank 1, 2, says native-crash**" in page


def test_a_run_whose_fault_never_struck_counts_for_nothing() -> None:
    void = hang_trial.Outcome(planted("asleep", "fifo"), None, planted=False)
    assert "| asleep | 0 | 0 | 0 | 0 | 0 | 0 | – | – |" in hangs.markdown([void], 1)
    assert "never reached" in hangs.markdown([void], 1)


DETACHED = """
import json, os, pathlib, signal, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
os.kill(child.pid, signal.SIGSTOP)
pathlib.Path("child").write_text(str(child.pid))
pathlib.Path(os.environ["FAULT_MARK"]).write_text(repr(time.time()))
"""


def test_nothing_that_a_run_started_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a rank in a session of its own nor one that is stopped."""
    monkeypatch.setattr(hang_trial, "watched", lambda trial, place: [sys.executable, "-c", DETACHED])
    found = hang_trial.run(planted("stopped", "stop"), tmp_path)
    assert (found.code, found.planted, found.symptom) == (0, True, None)
    child = Path(f"/proc/{(tmp_path / 'child').read_text()}/stat")
    assert not child.exists() or child.read_text().rsplit(")")[1].split()[0] in "ZX"


def test_a_job_that_outlasts_its_time_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        hang_trial, "watched", lambda trial, place: [sys.executable, "-c", "import time; time.sleep(600)"]
    )
    found = hang_trial.run(planted("asleep", "fifo"), tmp_path, hang_trial.Timing(limit=0.1, start=0.1))
    assert (found.code, found.planted) == (None, False)


def test_a_warning_is_the_answer_for_a_job_that_limps(tmp_path: Path) -> None:
    finding = {"severity": "warning", "symptom": "straggler-or-imbalance", "ranks": [2], "summary": "Rank 2 is slow."}
    (tmp_path / "watched").mkdir()
    (tmp_path / "mark").write_text("100.0")
    (tmp_path / "report.json").write_text(json.dumps({"verdict": None, "findings": [finding]}))
    (tmp_path / "watched" / "verdict.json").write_text('{"at": 112.5, "kind": "straggler"}')
    found = hang_trial.judged(planted("slow link", "link"), tmp_path, 0)
    assert (hangs.wrong(found), found.seconds) == ("", 12.5)
    assert hang_trial.judged(planted("asleep", "fifo"), tmp_path, 0).symptom is None
