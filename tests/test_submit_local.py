"""Jobs on this machine, with real ranks: to their end, through failures, and away when they are cancelled."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import paramedic
from paramedic.commands import main
from paramedic.submit import ending
from paramedic.submit.code import PACKAGES
from paramedic.submit.store import Store
from paramedic.watch.process import look

PROGRAM = Path(__file__).parent / "submitted" / "train.py"
_PATIENCE = 240


def until(true: Callable[[], object], seconds: float = _PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Jobs of this test alone; whatever is left of them is ended."""
    place = str(tmp_path / "jobs")
    monkeypatch.setenv("PARAMEDIC_JOBS", place)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.delenv("PARAMEDIC_DEBUG", raising=False)
    yield place
    for entry in Store(place).entries():
        handle = paramedic.Job(entry.id, place)
        if handle.standing.phase not in ("done", "failed", "cancelled"):
            handle.cancel()


@pytest.fixture
def submit(root: str, tmp_path: Path) -> Callable[..., paramedic.Job]:
    def begin(cfg: dict[str, Any] | None = None, **settings: Any) -> paramedic.Job:
        spec = importlib.util.spec_from_file_location("train", PROGRAM)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules["train"] = module
        spec.loader.exec_module(module)
        given = {"steps": 8, "log": str(tmp_path / "log"), "once": str(tmp_path / "once"), **(cfg or {})}
        function = paramedic.job(**{"world_size": 2, **settings})(module.train.__wrapped__)
        return function.submit(given, root=root)

    return begin


def alive(job: paramedic.Job) -> set[int]:
    return {pid for one in job.attempts for pid in ending.marked(f"{job.id}/{one.number}")}


def controller_of(job: paramedic.Job) -> int:
    return int(next(e.fields["pid"] for e in reversed(list(job.events())) if "pid" in e.fields))


def notes(tmp_path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]


def test_a_function_runs_on_all_its_ranks_and_its_result_comes_back(
    submit: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = submit()
    assert isinstance(job.result(_PATIENCE), float)
    phases = [event.text for event in job.events() if event.kind == "phase"]
    assert phases == ["plan", "preflight", "queued", "rendezvous", "running", "done"]
    assert list(job.logs(rank=1)) == ["rank 1 is through"]
    assert sorted(job.logs()) == ["0: rank 0 is through", "1: rank 1 is through"]
    assert job.report is None
    assert main(["logs", job.id[:-2], "--rank", "0"]) == 0
    assert "rank 0 is through" in capsys.readouterr().out
    assert main(["jobs", job.id]) == 0
    assert "done on local" in capsys.readouterr().out
    assert alive(job) == set()


@pytest.mark.slow
def test_a_deterministic_bug_is_tried_once_and_raised_with_the_rank_s_own_words(submit: Any) -> None:
    job = submit({"fault": "exception", "always": True}, checkpoint="")
    with pytest.raises(paramedic.RankFailed, match="a label is out of range: 17") as raised:
        job.result(_PATIENCE)
    assert raised.value.ranks == (1,)
    assert "in happen" in raised.value.text
    assert len(job.attempts) == 1
    assert job.attempts[0].action == "stop"
    assert job.report is not None
    assert json.loads(Path(job.folder(), "report.json").read_text())["verdict"]["ranks"] == [1]
    assert alive(job) == set()


@pytest.mark.slow
def test_a_job_goes_on_without_its_controller_and_cancel_ends_it_all_the_same(submit: Any, tmp_path: Path) -> None:
    job = submit({"fault": "wait"})
    until((tmp_path / "once").exists)
    os.kill(controller_of(job), signal.SIGKILL)
    ranks = alive(job)
    assert len(ranks) >= 4
    seen = paramedic.Job(job.id, job._store.root)  # as another shell would
    assert seen.cancel() == "cancelled"
    assert alive(job) == set()
    with pytest.raises(paramedic.JobCancelled):
        job.result(10)


@pytest.mark.slow
def test_a_program_of_the_command_line_is_retried_by_cause(
    root: str, in_tmp: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Killed once from outside: started again; its own exit code after a bug: passed through."""
    (in_tmp / "train.py").write_text(
        "import os, signal, sys\n"
        "if not os.path.exists('once'):\n"
        "    open('once', 'w').close(); os.kill(os.getpid(), signal.SIGKILL)\n"
        "print('resumed with', sys.argv[1:]); sys.exit(0)\n"
    )
    words = [sys.executable, "train.py", "--batch", "{micro_batch}", "--resume={resume}"]
    assert main(["submit", "--wait", "--tunable", "micro_batch=8:1:64", "--", *words]) == 0
    captured = capfd.readouterr()
    assert "resumed with ['--batch', '8']" in captured.out
    assert "attempt 1:" in captured.err
    job = paramedic.Job("train", root)
    assert len(job.attempts) == 2


# -- slower --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_memory_is_planned_anew_until_it_suffices(submit: Any) -> None:
    bounds = {"micro_batch": (1, 64), "accumulation": (1, 64)}
    job = submit({"memory": 4, "micro_batch": 8, "accumulation": 4}, tunable=bounds)
    planned = job.result(_PATIENCE)
    assert [dict(one.tunables) for one in job.attempts] == [
        {"micro_batch": 8, "accumulation": 4}, {"micro_batch": 4, "accumulation": 8},
    ]  # fmt: skip
    assert job.attempts[0].cause == "device-memory-overcommit"
    assert submit({"micro_batch": 4, "accumulation": 8}).result(_PATIENCE) == planned


@pytest.mark.slow
def test_an_attempt_goes_on_from_the_newest_complete_checkpoint(submit: Any, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints"
    job = submit({"fault": "kill", "steps": 12, "at": 9}, checkpoint=str(folder))
    plain = job.result(_PATIENCE)
    begins = [one["begin"] for one in notes(tmp_path) if "begin" in one]
    assert begins == [0, 8]
    assert job.attempts[1].resume == str(folder / "step-8.pt")
    assert submit({"steps": 12}).result(_PATIENCE) == plain


@pytest.mark.slow
def test_a_killed_controller_is_replaced_by_whoever_asks_and_nothing_runs_twice(submit: Any, tmp_path: Path) -> None:
    job = submit({"fault": "wait"})
    until((tmp_path / "once").exists)
    os.kill(controller_of(job), signal.SIGKILL)
    (tmp_path / "once.go").touch()
    assert isinstance(job.result(_PATIENCE), float)
    assert len([one for one in notes(tmp_path) if "begin" in one]) == 1
    assert [e.text for e in job.events() if e.kind == "controller"] == [
        "begins",
        "goes on where the former one stopped",
    ]


@pytest.mark.slow
def test_the_submitter_may_be_killed(root: str, tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(PROGRAM.parent)!r}); import train\n"
        "job = train.train.submit({'steps': 4}); print(job.id, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    assert isinstance(paramedic.Job(done.stdout.strip(), root).result(_PATIENCE), float)


@pytest.mark.slow
def test_cancel_ends_children_that_ignore_signals_and_left_their_session(root: str, in_tmp: Path) -> None:
    (in_tmp / "train.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "if len(sys.argv) > 1:\n"
        "    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP): signal.signal(number, signal.SIG_IGN)\n"
        "    open(f'child-{os.getpid()}', 'w').close()\n"
        "    time.sleep(600)\n"
        "subprocess.Popen([sys.executable, __file__, 'child'], start_new_session=True)\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "time.sleep(600)\n"
    )
    assert main(["submit", "--ranks", "2", "--", sys.executable, "train.py"]) == 0
    job = paramedic.Job("train", root)
    until(lambda: len(list(in_tmp.glob("child-*"))) == 2)
    children = [int(path.name.removeprefix("child-")) for path in in_tmp.glob("child-*")]
    assert set(children) <= alive(job)
    assert job.cancel() == "cancelled"
    assert alive(job) == set()
    assert all((one := look(pid)) is None or one.state in "ZX" for pid in children)


@pytest.mark.slow
def test_run_retry_decides_by_the_cause(in_tmp: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (in_tmp / "once.py").write_text(
        "import os, signal\nif os.environ['PARAMEDIC_TRY'] == '1': os.kill(os.getpid(), signal.SIGKILL)\nprint('through')\n"
    )
    (in_tmp / "bug.py").write_text("raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')\n")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    assert main(["run", "--retry", "--dir", "a", "--", *torchrun, "once.py"]) == 0
    captured = capfd.readouterr()
    assert captured.out.count("through") == 2
    assert "attempt 1: retry" in captured.err
    assert sorted(path.name for path in Path("a").iterdir()) == ["attempt-1", "attempt-2"]
    assert main(["run", "--retry", "--dir", "b", "--", *torchrun, "bug.py"]) == 1
    assert "attempt 1: stop" in capfd.readouterr().err
