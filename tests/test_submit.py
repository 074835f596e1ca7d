"""`paramedic submit`: what is asked for, what is stored, what engines are given; nothing here starts ranks."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramedic import ParamedicError, job
from paramedic.commands import main
from paramedic.commands.submit import shown
from paramedic.submit import code, engines, fits, node, preflight
from paramedic.submit.code import PACKAGES
from paramedic.submit.job import first_plan
from paramedic.submit.spec import Plan, Spec, Tunable, checked, launch, parse_tunable
from paramedic.submit.standing import standing_of
from paramedic.submit.store import Store, StoreError, _is_networked, phase_of

GOLDEN = Path(__file__).parent / "submitted" / "golden"
SPEC = Spec("train", "local", "/opt/venv/bin/python", "/srv/train", ("python", "train.py", "--steps", "4"))
FUNCTION = replace(
    SPEC, command=(), function="train:train", arguments=[[{"micro_batch": 8, "accumulation": 1}], {}],
    code="/shared/code/0123", nodes=2, ranks_per_node=4, gpus_per_rank=1, checkpoint="/shared/runs/x",
    tunable={"micro_batch": Tunable(8, 1, 64), "accumulation": Tunable(1, 1, 64)}, environment={"OMP_NUM_THREADS": "1"},
    time_limit_s=5400,
)  # fmt: skip
PLAN = Plan(
    "train-1a2b3c4d", 2, FUNCTION, "/shared/jobs/train-1a2b3c4d/attempt-2", {"micro_batch": 4, "accumulation": 2},
    "/shared/runs/x/step-8.pt", ("node-07",),
)  # fmt: skip
OPTIONS = {
    "local": {},
    "slurm": {"partition": "train", "account": "lab", "memory": "64G", "sbatch": "--mail-type=END"},
    "ray": {"address": "http://head:8265"},
    "kubernetes-job": {"image": "registry/train:1", "namespace": "lab", "claim": "runs", "memory": "64Gi"},
    "kubernetes-jobset": {"image": "registry/train:1", "kind": "jobset"},
    "kubernetes-trainjob": {"image": "registry/train:1", "kind": "trainjob"},
}


def plan_for(name: str) -> Plan:
    engine = name.split("-", maxsplit=1)[0]
    return replace(
        PLAN, spec=replace(FUNCTION, engine=engine, options=OPTIONS[name], nodes=1 if engine == "local" else 2)
    )


# -- before anything is started ------------------------------------------------------------------------------------


def test_a_configuration_that_fails_for_certain_is_not_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PARAMEDIC_JOBS", str(tmp_path / "jobs"))
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print('hello')\n")
    Path("ds.json").write_text('{"train_micro_batch_size_per_gpu": 1,\n "zero_optimization": {"stage": 4}}\n')
    Path("unnamed.json").write_text('{"zero_optimization": {"stage": 5}}\n')
    assert main(["submit", "--ranks", "2", "--", sys.executable, "train.py", "--deepspeed=ds.json"]) == 2
    said = capsys.readouterr()
    assert "ds.json:2 CFG113" in said.err and "--force" in said.err
    assert "stage" not in said.out and "unnamed" not in said.err
    assert not [*(tmp_path / "jobs").glob("jobs/*")]


def test_what_the_environment_lacks_is_said_and_does_not_block(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_DEBUGG", "INFO")
    (tmp_path / "train.py").write_text("print('hello')\n")
    spec = replace(SPEC, python=sys.executable, workdir=str(tmp_path))
    found = preflight.concerns(first_plan(spec, "train-1", str(tmp_path)))
    assert [one.certain for one in found if "NCCL_DEBUGG" in one.text] == [False]


STEP = (
    "import torch\n"
    "def build():\n"
    "    model = torch.nn.Linear(1024, 1024)\n"
    "    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    "    return model, optimizer, torch.zeros(ROWS, 1024), lambda model, batch: model(batch).sum()\n"
)


def test_a_step_that_does_not_fit_the_card_is_not_started(tmp_path: Path) -> None:
    """Really estimated, in a process of its own."""
    (tmp_path / "train.py").write_text(STEP.replace("ROWS", str(1 << 20)))
    spec = replace(SPEC, python=sys.executable, workdir=str(tmp_path), step="--entry train.py:build --gpu 4090")
    small = replace(spec, step=spec.step + " --gpu-memory 2GiB")
    assert [one.certain for one in preflight._memory(first_plan(small, "train-1", str(tmp_path)))] == [True]
    assert not [*preflight._memory(first_plan(spec, "train-1", str(tmp_path)))]


@pytest.mark.slow
def test_a_step_that_cannot_be_estimated_is_said_and_does_not_block(tmp_path: Path) -> None:
    spec = replace(SPEC, python=sys.executable, workdir=str(tmp_path), step="--entry nowhere.py:build")
    (found,) = preflight._memory(first_plan(spec, "train-1", str(tmp_path)))
    assert not found.certain and "no such file" in found.text


def test_replanning_goes_on_until_the_estimate_fits(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = replace(FUNCTION, step="--model config.json --batch {micro_batch}")
    monkeypatch.setattr(fits, "asked", lambda spec, values: fits.Answer("no" if values["micro_batch"] > 2 else "yes"))
    values = {"micro_batch": 16, "accumulation": 1}
    limits = {"micro_batch": Tunable(16, 1, 64), "accumulation": Tunable(1, 1, 64)}
    assert fits.smaller(spec)(values, limits) == {"micro_batch": 2, "accumulation": 8}
    assert fits.smaller(replace(spec, step=""))(values, limits) == {"micro_batch": 8, "accumulation": 2}


def test_a_step_names_tunables_that_exist() -> None:
    with pytest.raises(ParamedicError, match="no --tunable"):
        checked(replace(SPEC, step="--batch {micro_batches}"))
    with pytest.raises(ParamedicError, match="quotation"):
        checked(replace(SPEC, step="--batch '"))


# -- what engines are given ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIONS)
def test_what_an_engine_is_given_is_as_in_its_golden_file(name: str) -> None:
    plan = plan_for(name)
    text = shown(engines.get(plan.spec.engine).render(plan))
    text = text.replace(sys.executable, "PYTHON").replace(PACKAGES, "PACKAGES") + "\n"
    golden = GOLDEN / f"{name}.txt"
    if os.environ.get("GOLDEN"):
        golden.write_text(text)
    assert text == golden.read_text()


def test_rendering_twice_gives_the_same() -> None:
    for name in OPTIONS:
        plan = plan_for(name)
        assert engines.get(plan.spec.engine).render(plan) == engines.get(plan.spec.engine).render(plan)


def test_the_batch_script_is_bash_and_quotes_what_it_is_given() -> None:
    plan = plan_for("slurm")
    nasty = replace(plan, spec=replace(plan.spec, environment={"X": "a'b; touch /tmp/oops $(id)"}))
    script = engines.get("slurm").render(nasty)
    subprocess.run(["bash", "-n", "-c", script], check=True)
    line = next(line for line in script.splitlines() if line.startswith("export X="))
    assert shlex.split(line)[1] == "X=a'b; touch /tmp/oops $(id)"


def test_a_dry_run_starts_nothing_and_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PARAMEDIC_JOBS", str(tmp_path / "jobs"))
    words = ["submit", "--engine", "kubernetes", "--nodes", "2", "--gpus", "8", "--option", "image=x", "--dry-run"]
    assert main([*words, "--", "python", "train.py"]) == 0
    assert "completionMode: Indexed" in capsys.readouterr().out
    assert not (tmp_path / "jobs").exists()


# -- how ranks are started -----------------------------------------------------------------------------------------


def test_tunables_and_resume_are_filled_in() -> None:
    spec = replace(
        SPEC, command=("python3", "t.py", "--batch={b}", "--resume={resume}"), tunable={"b": Tunable(8, 1, 8)}
    )
    plan = replace(PLAN, spec=spec, tunables={"b": 4})
    assert launch(plan)["program"] == ["t.py", "--batch=4", "--resume=/shared/runs/x/step-8.pt"]
    assert launch(replace(plan, resume=""))["program"] == ["t.py", "--batch=4"]


def test_what_is_no_python_is_started_as_it_is() -> None:
    assert launch(replace(PLAN, spec=replace(SPEC, command=("./train", "x"))))["program"] == [
        "--no-python",
        "./train",
        "x",
    ]


def test_a_function_gets_the_tunables_of_its_attempt() -> None:
    assert launch(PLAN)["call"]["arguments"] == [{"micro_batch": 4, "accumulation": 2}]
    named = replace(FUNCTION, arguments=[[], {"micro_batch": 8, "accumulation": 1}])
    assert launch(replace(PLAN, spec=named))["call"]["named"] == {"micro_batch": 4, "accumulation": 2}


def test_nodes_meet_where_the_engine_says() -> None:
    where = {"PARAMEDIC_HEAD": "node-01", "PARAMEDIC_PORT": "20007"}
    assert node.meeting(1, 0, {}) == ["--standalone"]
    assert "--node-rank 1 --master-addr node-01 --master-port 20007" in " ".join(node.meeting(2, 1, where))
    kubeflow = {"PET_MASTER_ADDR": "job-0", "PET_MASTER_PORT": "29500"}
    assert "--master-addr job-0" in " ".join(node.meeting(2, 0, kubeflow))


# -- the store -----------------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "root"), patience=0.2)


def test_the_phase_is_what_the_last_event_says(store: Store) -> None:
    store.add("train-1", SPEC)
    store.append("train-1", "phase", "queued", 1)
    store.append("train-1", "controller", "begins")
    assert phase_of(store.events("train-1")) == "queued"
    assert store.entry("train-1").spec == SPEC
    assert [event.text for event in store.events("train-1", after=1)] == ["queued", "begins"]


def test_a_key_gives_one_job_and_not_another_one(store: Store) -> None:
    assert store.add("a-1", SPEC, "nightly").id == store.add("a-2", SPEC, "nightly").id == "a-1"
    with pytest.raises(ParamedicError, match="asked for something else"):
        store.add("a-3", replace(SPEC, nodes=2), "nightly")
    assert [entry.id for entry in store.entries()] == ["a-1"]


def test_a_job_is_found_by_the_beginning_of_its_id(store: Store) -> None:
    for id in ("train-1a", "train-1b", "other-2"):
        store.add(id, SPEC)
    assert store.entry("oth").id == "other-2"
    with pytest.raises(ParamedicError, match="2 jobs begin so"):
        store.entry("train-1")
    for nobody in ("x", "", "%"):
        with pytest.raises(ParamedicError):
            store.entry(nobody)


def test_many_writers_lose_nothing(store: Store) -> None:
    store.add("train-1", SPEC)
    program = (
        "import sys; from paramedic.submit.store import Store\n"
        "for n in range(20): Store(sys.argv[1], 30).append('train-1', 'controller', sys.argv[2], n)"
    )
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    writers = [
        subprocess.Popen([sys.executable, "-c", program, store.root, str(number)], env=environment)
        for number in range(3)
    ]
    assert [writer.wait(120) for writer in writers] == [0, 0, 0]
    events = [event for event in store.events("train-1") if event.kind == "controller"]
    assert len(events) == 60
    for number in range(3):
        assert [event.attempt for event in events if event.text == str(number)] == list(range(20))


def test_a_locked_store_is_said_and_readers_go_on(store: Store) -> None:
    store.add("train-1", SPEC)
    with contextlib.closing(sqlite3.connect(Path(store.root) / "jobs.sqlite", isolation_level=None)) as held:
        held.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process keeps it locked"):
            store.append("train-1", "phase", "queued")
        assert phase_of(store.events("train-1")) == "plan"
        held.execute("ROLLBACK")
    store.append("train-1", "phase", "queued")


def test_a_root_that_cannot_be_used_is_said() -> None:
    with pytest.raises(ParamedicError, match="cannot be used"):
        Store("/proc/nothing/here")


def test_a_file_that_is_no_store_is_said(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_text("something else entirely, long enough to be no header of SQLite" * 20)
    with pytest.raises(ParamedicError, match="not a database"):
        Store(str(tmp_path))


def test_the_kind_of_file_system_is_known() -> None:
    assert not _is_networked("/proc")


# -- where a job stands --------------------------------------------------------------------------------------------


def planned(store: Store, number: int = 1) -> None:
    store.append("train-1", "attempt", "planned", number, tunables={}, resume="", exclude=[], not_before=0.0)


def test_the_next_step_follows_from_the_events(store: Store) -> None:
    def following() -> str:
        return standing_of(store.events("train-1"), SPEC).next

    store.add("train-1", SPEC)
    assert following() == "plan"
    planned(store)
    assert following() == "submit"
    store.append("train-1", "attempt", "submitted", 1, id="4711")
    store.append("train-1", "phase", "rendezvous", 1)
    assert following() == "follow"
    store.append("train-1", "attempt", "ended", 1, code=1, reason="node-lost", hosts=["n2"], said="")
    assert following() == "judge"
    failure = {
        "cause": "hardware-fault",
        "probability": 1.0,
        "fingerprint": "f",
        "said_by": "slurm",
        "ranks": [],
        "hosts": ["n2"],
    }
    store.append("train-1", "decision", "another part does the work", 1, action="retry", failure=failure)
    assert following() == "plan"
    planned(store, 2)
    assert following() == "submit"
    store.append("train-1", "phase", "cancelled", 2)
    standing = standing_of(store.events("train-1"), SPEC)
    assert (standing.next, standing.phase, len(standing.attempts)) == ("nothing", "cancelled", 2)
    assert standing.failures[0].hosts == ("n2",)
    assert standing.attempts[0].device_hours > 0


# -- functions -----------------------------------------------------------------------------------------------------


@job(world_size=4, tunable={"micro_batch": (1, 64)})
def decorated(cfg: dict[str, Any]) -> int:
    return int(cfg["micro_batch"]) * 2


def test_a_decorated_function_is_still_a_function() -> None:
    assert decorated({"micro_batch": 21}) == 42
    assert repr(decorated.__wrapped__).startswith("<function decorated")


def test_a_function_is_named_by_its_module_and_its_tunables_come_from_its_arguments() -> None:
    spec = decorated.spec(({"micro_batch": 8},), {}, "slurm", 2)
    assert spec.function.endswith("test_submit:decorated")
    assert (spec.nodes, spec.ranks_per_node, spec.tunable["micro_batch"].value) == (2, 2, 8)
    assert Spec.from_json(spec.to_json()) == spec


@pytest.mark.parametrize(
    ("arguments", "nodes", "why"),
    [
        (({"micro_batch": {1, 2}},), 1, "no JSON"),
        (({"micro_batch": float("nan")},), 1, "no JSON"),
        (({},), 1, "do not name its value"),
        (({"micro_batch": 65},), 1, "not between 1 and 64"),
        (({"micro_batch": 2.5},), 1, "whole numbers"),
        (({"micro_batch": 8},), 3, "shared out evenly"),
    ],
)
def test_arguments_that_cannot_travel_are_refused(arguments: Any, nodes: int, why: str) -> None:
    with pytest.raises(ParamedicError, match=why):
        decorated.spec(arguments, {}, "slurm", nodes)


def test_a_function_that_cannot_be_imported_elsewhere_is_refused() -> None:
    def inner(cfg: Any) -> None: ...

    for function in (inner, lambda cfg: cfg):
        with pytest.raises(ParamedicError, match="top of a module"):
            job()(function).submit({})


def test_code_is_kept_once_for_the_same_content(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "lib").mkdir(parents=True)
    (source / "lib" / "model.py").write_text("x = 1")
    (source / "train.py").write_text("def train(): ...")
    (source / "weights.bin").write_bytes(b"large")
    first = code.ship(str(source), str(tmp_path / "root"))
    assert code.ship(str(source), str(tmp_path / "root")) == first
    assert sorted(path.name for path in Path(first).rglob("*.*")) == ["model.py", "train.py"]
    assert code.defines(first, "train:train")
    assert not code.defines(first, "train:other")
    assert not code.defines(first, "missing:train")
    (source / "train.py").write_text("def train(): return 1")
    assert code.ship(str(source), str(tmp_path / "root")) != first
    assert not list((tmp_path / "root/code").glob(".part-*"))


def test_a_job_that_would_submit_itself_again_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARAMEDIC_JOB", "train-1")
    monkeypatch.setenv("PARAMEDIC_LAUNCH", "/x")
    with pytest.raises(ParamedicError, match="__main__"):
        decorated.submit({"micro_batch": 8})


# -- what is asked wrongly -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"engine": "mesos"}, "not one of local, ray, slurm, kubernetes"),
        ({"nodes": 0}, "0 nodes"),
        ({"ranks_per_node": -1}, "at least one"),
        ({"nodes": 2}, "this machine alone"),
        ({"nodes": 1 << 20, "engine": "slurm"}, "more than any cluster"),
        ({"name": "Train_Me"}, "small letters"),
        ({"gpus_per_rank": -1}, "not negative"),
        ({"command": ()}, "name the program"),
        ({"command": ("torchrun", "train.py")}, "starts the ranks itself"),
        ({"command": ("python", "t.py", "{batch}")}, "no --tunable"),
    ],
)
def test_an_impossible_request_is_refused(change: dict[str, Any], why: str) -> None:
    with pytest.raises(ParamedicError, match=why):
        checked(replace(SPEC, **change))


@pytest.mark.parametrize("text", ["x", "x=1", "x=1:2", "x=3:1:2", "x=0:0:4", "X=1:1:1", "x=1:1:1:1", "x=a:b:c"])
def test_a_wrong_tunable_is_refused(text: str) -> None:
    with pytest.raises(ParamedicError):
        parse_tunable(text)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--", "python", "missing.py"], "missing.py: no such file"),
        (["--gpus", "4096", "--", "python", "train.py"], "4096 GPUs are asked for"),
        (["--", "/no/such/python3", "train.py"], "no such Python"),
        (["--retry", "no-such-cause=3", "--", "python", "train.py"], "no such cause"),
        (["--option", "x", "--", "python", "train.py"], "KEY=VALUE"),
        (["--time-limit", "soon", "--", "python", "train.py"], "written like 90s"),
        (["--checkpoint", "/proc/x", "--", "python", "train.py"], "/proc/x: "),
        (["--engine", "kubernetes", "--", "python", "train.py"], "needs an image"),
        (["--engine", "slurm", "--", "python", "train.py"], "sbatch"),
        (["--engine", "ray", "--", "python", "train.py"], "Ray"),
        (["--"], "name the program"),
    ],
)
def test_what_will_fail_for_certain_is_said_and_leaves_nothing_behind(
    arguments: list[str], why: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("PARAMEDIC_JOBS", str(in_tmp / "jobs"))
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    (in_tmp / "train.py").write_text("")
    assert main(["submit", *arguments]) == 2
    captured = capsys.readouterr()
    assert why in captured.err
    assert captured.out == ""
    assert not (in_tmp / "jobs" / "jobs").exists()
    assert main(["jobs"]) == 0
    assert "no job was submitted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("path", "why"),
    [("slurm:12;id", "number"), ("slurm:", "missing"), ("ray:x", "Ray"), ("k8s:x", "Kubernetes|client")],
)
def test_a_job_of_an_engine_that_is_not_there_is_said(
    path: str, why: str, in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    import re

    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:1")
    monkeypatch.setenv("KUBECONFIG", "/no/such/file")
    assert main(["diagnose", path]) == 2
    assert re.search(why, capsys.readouterr().err)


def test_jobs_that_do_not_exist_are_said(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PARAMEDIC_JOBS", str(in_tmp / "jobs"))
    for words in (["jobs", "x"], ["logs", "x"], ["cancel", "x"]):
        assert main(words) == 2
        assert "x: no such job" in capsys.readouterr().err


def test_the_list_of_jobs_as_json(in_tmp: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("PARAMEDIC_JOBS", str(in_tmp / "jobs"))
    store = Store()
    store.add("train-1", SPEC)
    store.append("train-1", "phase", "done", 1)
    assert main(["jobs", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [(one["id"], one["phase"], one["engine"]) for one in found["jobs"]] == [("train-1", "done", "local")]
    assert main(["jobs", "train"]) == 0
    assert "train-1: done on local" in capsys.readouterr().out


@pytest.mark.skipif(not shutil.which("unshare") or os.geteuid() != 0, reason="needs a mount namespace")
def test_a_full_disk_is_said_before_anything_is_started(in_tmp: Path) -> None:
    (in_tmp / "train.py").write_text("")
    (in_tmp / "small").mkdir()
    script = 'mount -t tmpfs -o size=256k none small && PARAMEDIC_JOBS=$PWD/small/jobs "$@"; code=$?; find small -name "attempt*"; exit $code'
    words = [sys.executable, "-m", "paramedic", "submit", "--", sys.executable, "train.py"]
    environment = {**os.environ, "PYTHONPATH": PACKAGES}
    done = subprocess.run(
        ["unshare", "--mount", "bash", "-c", script, "bash", *words],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert "MB are free" in done.stderr or "disk is full" in done.stderr
