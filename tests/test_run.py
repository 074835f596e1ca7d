"""`paramedic run`: the job is the same with and without it, and whatever happens to the watcher does not happen to the job."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "bench"))
from hang_trial import end_all

from paramedic.commands import main
from paramedic.ward import environments

PROGRAM = Path(__file__).parent / "watched" / "train.py"
PARAMEDIC = [sys.executable, "-m", "paramedic"]
_PATIENCE = 240


def torchrun(program: Path = PROGRAM, ranks: int = 2, python: str = sys.executable) -> list[str]:
    return [python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(program)]


def environment(**more: object) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", **{name: str(value) for name, value in more.items()}}


@dataclass
class Job:
    """Its output goes to files: a rank that outlives the job would keep a pipe open for ever."""

    process: subprocess.Popen[bytes]
    folder: Path

    def ended(self) -> tuple[int, str, str]:
        code = self.process.wait(timeout=_PATIENCE)
        return code, (self.folder / "out").read_text(), (self.folder / "err").read_text()


@pytest.fixture
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Job]]:
    """Starts a command; whatever of it is left at the end is killed, in whichever session it is."""
    started: list[Job] = []
    mark = f"{os.getpid()}-{time.monotonic_ns()}"

    def begin(command: list[str], place: Path | None = None, **more: object) -> Job:
        folder = tmp_path_factory.mktemp("output")
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            variables = environment(OF_TEST=mark, **more)
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=variables,
                cwd=place,
                start_new_session=True,
            )
        started.append(Job(process, folder))
        return started[-1]

    yield begin
    end_all(f"OF_TEST={mark}")
    for job in started:
        job.process.wait(timeout=_PATIENCE)


def until(true: Callable[[], object], seconds: float = _PATIENCE) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.05)


def said(text: str) -> list[str]:
    return sorted(line for line in text.splitlines() if line.startswith("rank "))


def states(folder: Path) -> dict[int, dict[str, object]]:
    return {
        state["rank"]: state
        for file in folder.glob("ranks/rank-*.watch.json")
        if (state := json.loads(file.read_text()))
    }


# -- the command ---------------------------------------------------------------------------------------------------


def test_the_exit_code_and_both_streams_are_passed_through(tmp_path: Path, start: Callable[..., Job]) -> None:
    program = "import sys; print('to out'); print('to err', file=sys.stderr); sys.exit(7)"
    command = [*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--quiet", "--", sys.executable, "-c", program]
    assert start(command).ended() == (7, "to out\n", "to err\n")
    assert sorted((tmp_path / "d/console.log").read_text().splitlines()) == ["to err", "to out"]
    assert json.loads((tmp_path / "d/report.json").read_text())["schema_version"] == 1


@pytest.mark.parametrize(("command", "code"), [(["/no/such/program"], 127), (["/etc/hostname"], 126)])
def test_a_command_that_cannot_be_started_is_said_in_one_line(
    command: list[str], code: int, tmp_path: Path, start: Callable[..., Job]
) -> None:
    job = [*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--", *command]
    returned, out, err = start(job).ended()
    assert (returned, out) == (code, "")
    assert err.startswith(f"paramedic: {command[0]}: cannot be started")
    assert err.count("\n") == 1


@pytest.mark.parametrize("more", [[], ["--retry"]], ids=["once", "retry"])
def test_a_command_that_cannot_be_started_leaves_nothing(
    more: list[str], tmp_path: Path, start: Callable[..., Job]
) -> None:
    assert start([*PARAMEDIC, "run", *more, "no-such-program"], place=tmp_path).ended()[0] == 127
    assert not any(tmp_path.iterdir())
    named = [*PARAMEDIC, "run", *more, "--dir", "named", "--", "no-such-program"]
    assert start(named, place=tmp_path).ended()[0] == 127
    assert [*tmp_path.rglob("*")] == [tmp_path / "named"]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--"], "name the command"),
        (["--webhook", "ftp://x", "--", "true"], "not an http or https address"),
        (["--dir", "/proc/nothing", "--", "true"], "cannot be used"),
    ],
)
def test_what_is_asked_wrongly_is_refused(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", *arguments]) == 2
    assert why in capsys.readouterr().err


def test_two_jobs_do_not_share_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "console.log").write_text("of another job")
    assert main(["run", "--dir", str(tmp_path), "--", "true"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "console.log").read_text() == "of another job"


def test_a_signal_to_the_watcher_reaches_the_job(tmp_path: Path, start: Callable[..., Job]) -> None:
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(33))\n"
        f"pathlib.Path({str(tmp_path / 'ready')!r}).touch()\n"
        "while True: time.sleep(0.1)\n"
    )
    job = start([*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--quiet", "--", sys.executable, "-c", program])
    until((tmp_path / "ready").exists)
    job.process.send_signal(signal.SIGTERM)
    assert job.ended()[0] == 33


def test_a_verdict_goes_to_a_webhook_and_a_metrics_file(tmp_path: Path, start: Callable[..., Job]) -> None:
    posted: list[bytes] = []

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hook = f"http://127.0.0.1:{server.server_port}/x"
        program = "raise RuntimeError('CUDA out of memory. Tried to allocate 20.00 GiB')"
        flags = ["--dir", str(tmp_path / "d"), "--quiet", "--webhook", hook, "--metrics", str(tmp_path / "m.prom")]
        code, _, _ = start([*PARAMEDIC, "run", *flags, "--", sys.executable, "-c", program]).ended()
        server.shutdown()
    assert code == 1
    assert json.loads(posted[0])["symptom"] == "device-out-of-memory"
    assert "paramedic_job_hung 0" in (tmp_path / "m.prom").read_text()


# -- the same numbers ----------------------------------------------------------------------------------------------


def test_training_is_the_same_bit_for_bit_with_and_without(tmp_path: Path, start: Callable[..., Job]) -> None:
    code, bare, _ = start(torchrun(), WORKERS=1).ended()
    assert code == 0
    watched = start([*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--", *torchrun()], WORKERS=1)
    code, out, err = watched.ended()
    assert (code, said(out)) == (0, said(bare))
    assert len(said(bare)) == 2
    for state in states(tmp_path / "d").values():
        assert (state["steps"], state["world_size"], state["stage"], state["off"]) == (24, 2, "ended", {})
        assert {"loss", "gradient_norm"} <= set(state["values"])  # type: ignore[call-overload]
        assert state["digests"]
    report = json.loads((tmp_path / "d/report.json").read_text())
    assert report["verdict"] is None, err
    assert [one for one in report["findings"] if not one["rule"].startswith("CODE")] == [], err  # remarks on its text


def test_replicas_that_part_and_a_loss_that_is_no_number_are_said_though_the_job_ends_well(
    tmp_path: Path, start: Callable[..., Job]
) -> None:
    job = start([*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--", *torchrun(ranks=3)], PART=1, STEPS=40)
    code, _, err = job.ended()
    assert code == 0
    assert "computation › replica divergence · rank 1" in err
    assert "Evidence" in err
    assert "Do this" in err
    assert "Not examined" not in err  # in the report that is kept
    found = {one["rule"]: one for one in json.loads((tmp_path / "d/report.json").read_text())["findings"]}
    assert found["NUM019"]["ranks"] == [1]
    assert "since step 8" in found["NUM019"]["summary"]


# -- a hang that torch's timeout ends --------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_verdict_of_a_hang_outlives_the_timeout_that_ends_it(tmp_path: Path, start: Callable[..., Job]) -> None:
    folder = tmp_path / "d"
    job = start([*PARAMEDIC, "run", "--dir", str(folder), "--", *torchrun(ranks=3)], ALONE=1, TIMEOUT=30)
    code, _, err = job.ended()
    assert code == 1
    assert "make progress again" not in err
    assert json.loads((folder / "verdict.json").read_text())["kind"] == "hang"
    assert sorted(file.name for file in (folder / "traces").iterdir()) == ["rank_0", "rank_1", "rank_2"]
    verdict = json.loads((folder / "report.json").read_text())["verdict"]
    assert (verdict["symptom"], verdict["ranks"]) == ("collective-desync", [1])
    assert "calls barrier at" in verdict["summary"]
    assert err.count("collective desync · rank 1") == 2  # when it was found, and below the errors of the end
    again = subprocess.run([*PARAMEDIC, "diagnose", str(folder)], capture_output=True, text=True, check=False)
    assert "calls barrier at" in " ".join(again.stdout.split())


# -- never harm ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        pytest.param(signal.SIGKILL, id="killed"),
        pytest.param(signal.SIGSTOP, marks=pytest.mark.slow, id="stopped"),
    ],
)
def test_the_job_outlives_its_watcher(number: signal.Signals, tmp_path: Path, start: Callable[..., Job]) -> None:
    gate, end = tmp_path / "gate", tmp_path / "end"
    job = start([*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--", *torchrun()], GATE=gate, END=end)
    until(lambda: len(states(tmp_path / "d")) == 2 and all(s["steps"] for s in states(tmp_path / "d").values()))
    job.process.send_signal(number)
    gate.touch()
    until(lambda: (tmp_path / "end-0").exists() and (tmp_path / "end-1").exists())
    until(lambda: len(said((tmp_path / "d/console.log").read_text())) == 2)  # what they print is still kept


@pytest.mark.slow
def test_a_full_disk_does_not_reach_the_job(tmp_path: Path, start: Callable[..., Job]) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = ["unshare", "--user", "--map-root-user", "--mount"] if shutil.which("unshare") else []
    trial = subprocess.run(
        [*mount, "mount", "-t", "tmpfs", "-o", "size=64k", "none", str(small)], capture_output=True, check=False
    )
    if trial.returncode or not mount:
        pytest.skip("needs a mount namespace")
    script = 'mount -t tmpfs -o size=64k none "$0" && mkdir "$0/d" && exec "$@"'
    run = [*PARAMEDIC, "run", "--dir", str(small / "d"), "--quiet", "--", *torchrun()]
    code, out, _ = start([*mount, "sh", "-c", script, str(small), *run]).ended()
    assert code == 0
    assert len(said(out)) == 2


KIND = """
import builtins, sys
builtins.mine = "was here"
sys.setswitchinterval(0.004)
"""
HOSTILE = KIND + 'raise ValueError("as it always does")'


@pytest.mark.parametrize(
    ("theirs", "program"),
    [
        (KIND, "import sys, sitecustomize; print(mine, sys.getswitchinterval(), sitecustomize.__file__)"),
        (HOSTILE, "import sys; print(mine, sys.getswitchinterval(), 'sitecustomize' in sys.modules)"),
        (HOSTILE, "import sitecustomize"),
    ],
    ids=["kind", "hostile", "imported again"],
)
def test_a_sitecustomize_of_the_users_own_is_run_as_before(
    theirs: str, program: str, tmp_path: Path, start: Callable[..., Job]
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site/sitecustomize.py").write_text(theirs)
    bare, plain, complaint = start([sys.executable, "-c", program], PYTHONPATH=tmp_path / "site").ended()
    run = [*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--quiet", "--", sys.executable, "-c", program]
    code, out, err = start(run, PYTHONPATH=tmp_path / "site").ended()
    assert (code, out) == (bare, plain)
    assert ("as it always does" in err) == ("as it always does" in complaint) == (theirs == HOSTILE)
    if bare == 0:
        assert plain.startswith("was here 0.004")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "launch"),
    [
        (
            "hf",
            [
                "accelerate",
                "launch",
                "--multi_gpu",
                "--num_processes",
                "2",
                "--num_machines",
                "1",
                "--main_process_port",
            ],
        ),
        ("deepspeed", ["deepspeed", "--num_gpus", "2", "--no_local_rank", "--master_port"]),
    ],
)
def test_other_launchers_are_watched_as_well(
    name: str, launch: list[str], tmp_path: Path, start: Callable[..., Job]
) -> None:
    folder = environments.build(name)
    command = [str(folder / "bin" / launch[0]), *launch[1:], str(free_port()), str(PROGRAM)]
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    job = start([*PARAMEDIC, "run", "--dir", str(tmp_path / "d"), "--", *command], PATH=path)
    code, out, err = job.ended()
    assert code == 0, err
    assert len(said(out)) == 2
    assert {state["steps"] for state in states(tmp_path / "d").values()} == {24}


SLURM = """
hostname node-01
. ./slurm.sh
"$@"
"""


def by_mpirun(folder: Path) -> tuple[list[str], list[str]]:
    names = "RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=$OMPI_COMM_WORLD_SIZE"
    return [], [
        "mpirun",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        "bash",
        "-c",
        f'{names} exec "$@"',
        "rank",
    ]


def by_srun(folder: Path) -> tuple[list[str], list[str]]:
    """Slurm's own daemons, two nodes of them, in namespaces of their own."""
    shutil.copy(Path(environments.__file__).parent / "programs" / "slurm.sh", folder)
    (folder / "launch.sh").write_text(SLURM)
    names = "RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS"
    own = ["--mount", "--propagation", "private", "--uts", "--pid", "--fork", "--mount-proc", "--kill-child"]
    cluster = ["unshare", *own, "bash", "launch.sh"]
    return cluster, ["srun", "-N", "2", "-n", "2", "bash", "-c", f'{names} exec "$@"', "rank"]


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["mpirun", "srun"])
def test_ranks_of_schedulers_are_watched_as_well(launcher: str, tmp_path: Path, start: Callable[..., Job]) -> None:
    if not shutil.which(launcher) or os.geteuid() != 0:
        pytest.skip(f"needs {launcher}, and root for namespaces")
    around, launch = {"mpirun": by_mpirun, "srun": by_srun}[launcher](tmp_path)
    watched = [*PARAMEDIC, "run", "--on-hang", "kill", "--dir", str(tmp_path / "d"), "--", *launch]
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "STOP": 1}
    job = start([*around, *watched, sys.executable, str(PROGRAM)], place=tmp_path, **where)
    code, _, err = job.ended()
    assert code == 124, err
    verdict = json.loads((tmp_path / "d/report.json").read_text())["verdict"]
    assert (verdict["symptom"], verdict["ranks"]) == ("collective-hang", [1])


# -- several nodes -------------------------------------------------------------------------------------------------


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("way", ["folder", pytest.param("address", marks=pytest.mark.slow)])
def test_nodes_get_one_verdict_and_end_together(way: str, tmp_path: Path, start: Callable[..., Job]) -> None:
    where = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--nproc-per-node", "1"]
    (tmp_path / "token").write_text("a secret of both nodes")
    tcp = [f"127.0.0.1:{free_port()}", "--token-file", str(tmp_path / "token")]
    meet = {
        "folder": [["--dir", str(tmp_path / "d")], ["--dir", str(tmp_path / "d"), "--join"]],
        "address": [
            ["--dir", str(tmp_path / "d"), "--listen", *tcp],
            ["--dir", str(tmp_path / "e"), "--gather", *tcp],
        ],
    }[way]
    jobs = []
    for node in (0, 1):
        launch = [sys.executable, "-m", "torch.distributed.run", *where, "--node-rank", str(node), str(PROGRAM)]
        jobs.append(start([*PARAMEDIC, "run", "--on-hang", "kill", *meet[node], "--", *launch], STOP=1))
    (first, _, err), (second, _, joined) = (job.ended() for job in jobs)
    assert (first, second) == (124, 124), err
    verdict = json.loads((tmp_path / "d/report.json").read_text())["verdict"]
    assert (verdict["symptom"], verdict["ranks"]) == ("collective-hang", [1])
    assert "rank 1" in err
    assert "collective hang" not in joined


def test_who_joins_names_the_folder(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--join", "--", "true"]) == 2
    assert "--join needs --dir" in capsys.readouterr().err
