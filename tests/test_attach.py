"""`paramedic attach` to real jobs: four ranks on gloo that hang in several ways, one after the other."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.pipeline import diagnose
from paramedic.watch.attach import Spy, _newest, chosen, take
from paramedic.watch.process import Process, RankProcess, look, missing, open_files, processes, ranks_in, tree_of

pytestmark = pytest.mark.usefixtures("rules_loaded_once")
needs_spy = pytest.mark.skipif(Spy.here() is None, reason="py-spy is not installed")

PROGRAM = """
import os, sys
import torch, torch.distributed as dist

def wait_for(name):
    with open(name) as file:
        return file.read()

class Shards(torch.utils.data.Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, i):
        wait_for(os.environ["FIFO"])
        return 0

def load_ops():
    from torch.utils.file_baton import FileBaton
    FileBaton(os.environ["LOCK"]).wait()

def step(kind, rank):
    odd = rank == int(os.environ["ODD"])
    open(f"{kind}-{rank}", "w").close()
    if kind == "shard" and odd:
        wait_for(os.environ["FIFO"])
    if kind == "data" and odd:
        next(iter(torch.utils.data.DataLoader(Shards())))
    if kind == "lock" and odd:
        load_ops()
    if kind == "desync" and odd:
        dist.broadcast(torch.zeros(3), int(os.environ["ODD"]) ^ 1)
    if kind == "data":
        dist.all_reduce(torch.zeros(2), async_op=True).wait()
    else:
        dist.all_reduce(torch.zeros(2))

def main():
    dist.init_process_group("gloo")
    for kind in sys.argv[1:]:
        step(kind, dist.get_rank())
    dist.destroy_process_group()

if __name__ == "__main__":
    main()
"""


class Job:
    """Four ranks, started as a launcher starts them."""

    def __init__(self, folder: Path, odd: int, *kinds: str) -> None:
        self.folder, self.odd = folder, odd
        (folder / "train.py").write_text(PROGRAM)
        (folder / "lock").touch()
        os.mkfifo(folder / "fifo")
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        shared = {
            **os.environ, "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "OMP_NUM_THREADS": "1", "ODD": str(odd), "FIFO": str(folder / "fifo"), "LOCK": str(folder / "lock"),
        }  # fmt: skip
        self.ranks = []
        for rank in range(4):
            log = (folder / f"worker{rank}.log").open("wb")
            self.ranks.append(
                subprocess.Popen(
                    [sys.executable, str(folder / "train.py"), *kinds], cwd=folder, stdout=log, stderr=log,
                    env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                )
            )  # fmt: skip
            log.close()

    def until_it_stands(self, kind: str) -> None:
        """All have come so far, and nobody uses the CPU any more."""
        end = time.monotonic() + 120
        before = -1.0
        while time.monotonic() < end:
            seen = [look(one.pid) for one in self.ranks]
            assert None not in seen, (self.folder / "worker0.log").read_text()
            cpu = sum(one.cpu for one in seen if one)
            if all((self.folder / f"{kind}-{rank}").exists() for rank in range(4)) and cpu == before:
                return
            before = cpu
            time.sleep(0.5)
        raise AssertionError(f"{kind}: never stood still")

    def release(self) -> None:
        (self.folder / "fifo").write_text("go")

    def end(self) -> None:
        for one in self.ranks:
            one.kill()
            one.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    started: list[Job] = []

    def start(*kinds: str, odd: int) -> Job:
        folder = tmp_path / "job"
        folder.mkdir()
        started.append(Job(folder, odd, *kinds))
        return started[-1]

    yield start
    for one in started:
        one.end()


def attached(place: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    main(["attach", "--dir", str(place), "--format", "json", *arguments])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    later = diagnose([str(place)])
    verdict = document["verdict"]
    if verdict:
        assert later.verdict is not None
        assert (later.verdict.rule, list(later.verdict.ranks)) == (verdict["rule"], verdict["ranks"])
    return document


@needs_spy
def test_a_job_that_hangs_and_one_that_is_stopped(
    job: Callable[..., Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = job("shard", "desync", odd=2)
    hanging.until_it_stands("shard")
    stopped = hanging.ranks[2]
    document = attached(tmp_path / "one", capsys, "--pid", str(hanging.ranks[0].pid))
    verdict = document["verdict"]
    assert (verdict["rule"], verdict["symptom"], verdict["ranks"]) == ("COL041", "collective-hang", [2])
    assert "train.py:6 in wait_for" in verdict["summary"]
    assert document["run"]["world_size"] == 4
    assert sorted(path.name for path in (tmp_path / "one" / "ranks").iterdir()) == [
        f"rank-{r}.process.json" for r in range(4)
    ]

    stopped.send_signal(signal.SIGSTOP)
    try:
        verdict = attached(tmp_path / "two", capsys, "--pid", str(stopped.pid))["verdict"]
        assert (verdict["rule"], verdict["ranks"]) == ("COL045", [2])
        state = look(stopped.pid)
        assert state is not None
        assert state.state == "T"  # looked at, and still stopped
    finally:
        stopped.send_signal(signal.SIGCONT)

    hanging.release()
    hanging.until_it_stands("desync")
    verdict = attached(tmp_path / "three", capsys, "--pid", str(stopped.pid))["verdict"]
    assert (verdict["rule"], verdict["symptom"], verdict["ranks"]) == ("COL042", "collective-desync", [2])
    assert [one.poll() for one in hanging.ranks] == [None] * 4  # no harm done


@needs_spy
@pytest.mark.slow
def test_a_loader_that_waits_and_a_lock_that_nobody_gives_back(
    job: Callable[..., Job], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hanging = job("data", "lock", odd=0)
    hanging.until_it_stands("data")
    verdict = attached(tmp_path / "one", capsys, "--pid", str(hanging.ranks[3].pid))["verdict"]
    assert (verdict["rule"], verdict["ranks"]) == ("COL041", [0])
    assert "waits for data" in verdict["summary"]
    hanging.release()
    hanging.until_it_stands("lock")
    verdict = attached(tmp_path / "two", capsys, "--pid", str(hanging.ranks[3].pid))["verdict"]
    assert (verdict["rule"], verdict["ranks"]) == ("COL043", [0])
    (hanging.folder / "lock").unlink()
    assert [one.wait(60) for one in hanging.ranks] == [0] * 4


def sleeper(folder: Path, *more: str, **environment: str) -> subprocess.Popen[bytes]:
    """A process that says that it runs, and then waits."""
    code = "import sys; print('runs', flush=True); sys.stdin.read()"
    variables = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    started = subprocess.Popen(
        [sys.executable, "-c", code, *more], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        env={**variables, **environment},
    )  # fmt: skip
    assert started.stdout is not None
    assert started.stdout.readline() == b"runs\n"
    return started


@pytest.fixture
def sleepers(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def start(*more: str, **environment: str) -> subprocess.Popen[bytes]:
        started.append(sleeper(tmp_path, *more, **environment))
        return started[-1]

    yield start
    for one in started:
        one.communicate()


def test_several_jobs_are_listed_and_a_pid_chooses(sleepers: Callable[..., subprocess.Popen[bytes]]) -> None:
    one = [sleepers(RANK=str(rank), WORLD_SIZE="2", MASTER_PORT="1") for rank in range(2)]
    two = [sleepers(RANK=str(rank), WORLD_SIZE="2", MASTER_PORT="2") for rank in range(2)]
    found = {pid: process for pid, process in processes().items() if pid in {p.pid for p in (*one, *two)}}
    with pytest.raises(ParamedicError, match=f"2 jobs run here, choose one: --pid {one[0].pid}: 2 ranks of "):
        chosen([], found, os.getuid())
    assert [rank.process.pid for rank in chosen([two[1].pid], found, os.getuid())] == [p.pid for p in two]
    with pytest.raises(ParamedicError, match="no rank of a job was found"):
        chosen([], found, os.getuid() + 1)


def test_without_py_spy_it_says_so_and_still_looks(
    sleepers: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr(Spy, "here", classmethod(lambda cls: None))
    here = sleepers(RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    assert main(["attach", "--pid", str(here.pid), "--dir", str(tmp_path / "seen")]) == 0
    shown = capsys.readouterr()
    first = " ".join(shown.out.split())
    assert first.startswith("No verdict: without their stacks it cannot be told where the ranks stand")
    assert "pip install py-spy" in first
    assert json.loads((tmp_path / "seen" / "ranks" / "rank-0.process.json").read_text())["state"] == "S"


def test_stacks_that_may_not_be_read_are_said_first(
    sleepers: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr(Spy, "here", classmethod(lambda cls: cls("py-spy")))
    monkeypatch.setattr(Spy, "dump", lambda *_: ("", "py-spy: Permission Denied"))
    here = sleepers(RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    main(["attach", "--pid", str(here.pid), "--dir", str(tmp_path / "seen")])
    first = " ".join(capsys.readouterr().out.split())
    assert (
        "it cannot be told where the ranks stand (py-spy: Permission Denied; it may need root or SYS_PTRACE)" in first
    )


def test_dumps_and_logs_that_ranks_left_are_taken(tmp_path: Path) -> None:
    """The trace only if it is younger than the rank."""
    log = tmp_path / "train.out"
    environment = {
        **os.environ,
        "RANK": "5",
        "WORLD_SIZE": "8",
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE": str(tmp_path / "trace_"),
    }
    code = "import sys; print('runs', flush=True); sys.stdin.read()"
    with log.open("wb") as out:
        rank = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=out, env=environment)
    try:
        while log.read_bytes() != b"runs\n":
            time.sleep(0.01)
        process = look(rank.pid)
        assert process is not None
        one = RankProcess(5, process, ())
        (tmp_path / "trace_5").write_bytes(b"x")
        os.utime(tmp_path / "trace_5", (1, 1))
        assert _newest(one, process.started) is None
        (tmp_path / "trace_5").write_bytes(b"xyz")
        take([one], tmp_path / "seen", None)
        assert (tmp_path / "seen" / "traces" / "rank_5").read_bytes() == b"xyz"
        assert (tmp_path / "seen" / "logs" / "rank-5.train.out").read_bytes() == b"runs\n"
        assert open_files(rank.pid) == {str(log): True}
    finally:
        rank.communicate()


def test_a_dump_is_asked_for_through_the_pipe_of_torch(
    tmp_path: Path, sleepers: Callable[..., subprocess.Popen[bytes]]
) -> None:
    rank = sleepers(
        RANK="1",
        TORCH_NCCL_DEBUG_INFO_PIPE_FILE=str(tmp_path / "p"),
        TORCH_NCCL_DEBUG_INFO_TEMP_FILE=str(tmp_path / "t"),
    )
    os.mkfifo(tmp_path / "p1.pipe")
    pipe = os.open(tmp_path / "p1.pipe", os.O_RDONLY | os.O_NONBLOCK)

    def torch() -> None:
        os.set_blocking(pipe, True)
        while not os.read(pipe, 128):
            time.sleep(0.01)
        (tmp_path / "t1").write_bytes(b"dumped")

    thread = threading.Thread(target=torch)
    thread.start()
    process = look(rank.pid)
    assert process is not None
    take([RankProcess(1, process, ())], tmp_path / "seen", None)
    thread.join()
    os.close(pipe)
    assert (tmp_path / "seen" / "traces" / "rank_1").read_bytes() == b"dumped"


def process(pid: int, parent: int, *command: str, **environment: str) -> Process:
    return Process(pid, parent, command, "S", 1.0, float(pid), 0, os.path.basename(command[0]), environment)


def tree(*found: Process) -> Mapping[int, Process]:
    return {one.pid: one for one in found}


def test_ranks_are_neither_launchers_nor_workers() -> None:
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_JOB_ID": "9"}
    found = tree(
        process(1, 0, "bash", "job.sh", **slurm),
        process(2, 1, "python", "/x/bin/torchrun", "train.py", **slurm),
        process(
            3,
            2,
            "python3.11",
            "-u",
            "train.py",
            RANK="0",
            LOCAL_RANK="0",
            LOCAL_WORLD_SIZE="3",
            WORLD_SIZE="6",
            **slurm,
        ),
        process(
            4,
            2,
            "python3.11",
            "-u",
            "train.py",
            RANK="1",
            LOCAL_RANK="1",
            LOCAL_WORLD_SIZE="3",
            WORLD_SIZE="6",
            **slurm,
        ),
        process(5, 3, "python3.11", "-u", "train.py", RANK="0", LOCAL_RANK="0", **slurm),
        process(6, 5, "ninja", RANK="0", **slurm),
    )
    ranks = ranks_in(found)
    assert [(one.rank, one.process.pid, one.world_size) for one in ranks] == [(0, 3, 6), (1, 4, 6)]
    assert missing(ranks) == [2]
    assert sorted(tree_of(3, found)) == [3, 5, 6]


@pytest.mark.parametrize("name", ["OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"])
def test_ranks_of_other_launchers(name: str) -> None:
    found = tree(
        process(1, 0, "mpirun", "python", "t.py"),
        *(process(n, 1, "python3", "t.py", **{name: str(n - 2)}) for n in (2, 3)),
    )
    assert [(one.rank, one.process.pid) for one in chosen([], found, 0)] == [(0, 2), (1, 3)]
    assert [one.rank for one in chosen([1], found, 0)] == [0, 1]


def test_children_of_spawn_are_counted_in_their_order() -> None:
    spawn = ("python3", "-c", "from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5)")
    tracker = ("python3", "-c", "from multiprocessing.resource_tracker import main;main(4)")
    found = tree(
        process(1, 0, "python3", "t.py"),
        process(2, 1, *tracker),
        *(process(n, 1, *spawn) for n in (3, 4)),
        process(5, 3, *spawn),
    )
    for pid in (1, 4):
        assert [(one.rank, one.process.pid, one.guessed) for one in chosen([pid], found, 0)] == [
            (0, 3, True),
            (1, 4, True),
        ]


def test_odd_things_of_proc_are_survived(tmp_path: Path) -> None:
    for pid, stat in {"1": "", "2": "1 (a) b) S", "3": "3 (py) thon (x)) S 1 " + "7 " * 30}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(stat)
        (tmp_path / pid / "cmdline").write_bytes(b"python\0\xff\0")
    found = processes(str(tmp_path))
    assert list(found) == [3]
    assert (found[3].state, found[3].parent, found[3].rank) == ("S", 1, None)
    assert replace(found[3], environment={"RANK": "x" * 50}).rank is None
    assert look(1 << 30) is None


def test_what_cannot_be_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    for arguments, why in {
        ("--pid", "999999999"): "no such process",
        ("--dir", str(tmp_path / "full")): "is not empty",
        ("--listen", "a:1"): "needs --token-file",
        ("--listen", "a:1", "--token-file", "t"): "needs --nodes",
        ("--gather", "a:1", "--via", "x"): "choose one",
        ("--via", "x", "--pid", "1"): "takes no --pid",
        ("--via", "x"): "needs --dir",
    }.items():
        given = (
            list(arguments)
            if "--dir" in arguments or "--via" in arguments
            else ["--dir", str(tmp_path / "new"), *arguments]
        )
        assert main(["attach", *given]) == 2
        assert why in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_nodes_send_and_the_listener_says(
    sleepers: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    monkeypatch.setattr(Spy, "here", classmethod(lambda cls: None))
    ranks = [sleepers(RANK=str(rank), WORLD_SIZE="2", MASTER_PORT="1") for rank in range(2)]
    (tmp_path / "token").write_text("0123456789abcdef")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    shared = ["--token-file", str(tmp_path / "token")]
    command = [
        sys.executable,
        "-m",
        "paramedic",
        "attach",
        "--listen",
        f"127.0.0.1:{port}",
        "--nodes",
        "1",
        "--format",
        "json",
    ]
    listener = subprocess.Popen(
        [*command, *shared, "--dir", str(tmp_path / "all")], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert listener.stderr is not None
    assert "waits for 1 nodes" in listener.stderr.readline()
    assert main(["attach", "--gather", f"127.0.0.1:{port}", "--pid", str(ranks[0].pid), *shared]) == 0
    document = json.loads(listener.communicate(timeout=120)[0])
    assert document["run"]["ranks_seen"] == [0, 1]
    assert "sent 2 files" in capsys.readouterr().err


def test_a_command_of_the_user_starts_it_on_the_nodes(
    sleepers: Callable[..., subprocess.Popen[bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    sleepers(RANK="0", WORLD_SIZE="2", MASTER_PORT="1")
    fake = tmp_path / "srun"
    fake.write_text('#!/bin/sh\nmkdir -p "${8}/node-1/ranks"\necho "$@" > "${8}/node-1/words.log"\n')
    fake.chmod(0o755)
    assert main(["attach", "--via", f"{fake} -N2", "--dir", str(tmp_path / "all"), "--fail-on", "never"]) == 0
    words = (tmp_path / "all" / "node-1" / "words.log").read_text().split()
    assert words[:5] == ["-N2", sys.executable, "-m", "paramedic", "attach"]
    assert main(["attach", "--via", "/no/such/srun", "--dir", str(tmp_path / "other")]) == 2
    assert "no such command" in capfd.readouterr().err
