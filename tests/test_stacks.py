"""Where processes stand: every form of dump is read alike, and the one that stands elsewhere is named."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from conftest import ReadLog
from paramedic.collect import stacks
from paramedic.collect.processes import ProcessState, read_process
from paramedic.knowledge.waits import for_peers, is_own_frame, load_waits, waits_in
from paramedic.model import Event, Report
from paramedic.pipeline import diagnose
from paramedic.run_folder import write

pytestmark = pytest.mark.usefixtures("rules_loaded_once")

TORCH = "/opt/venv/lib/python3.11/site-packages/torch/"
Frames = Sequence[tuple[str, int, str]]
MAIN: Frames = [("/srv/train.py", 43, "main"), ("/srv/train.py", 51, "<module>")]
BACKWARD: Frames = [
    (TORCH + "autograd/graph.py", 979, "_engine_run_backward"),
    (TORCH + "autograd/__init__.py", 395, "backward"),
    (TORCH + "_tensor.py", 623, "Tensor.backward"),
    ("/srv/train.py", 27, "step"),
    *MAIN,
]
REDUCE: Frames = [
    (TORCH + "distributed/distributed_c10d.py", 3020, "all_reduce"),
    (TORCH + "distributed/c10d_logger.py", 83, "_exception_logger.<locals>.wrapper"),
    ("/srv/train.py", 29, "step"),
    *MAIN,
]
BARRIER: Frames = [
    (TORCH + "distributed/distributed_c10d.py", 5356, "barrier"),
    ("/srv/train.py", 48, "finish"),
    *MAIN,
]
SAVE_BARRIER: Frames = [
    (TORCH + "distributed/distributed_c10d.py", 5356, "barrier"), ("/srv/train.py", 60, "save_checkpoint"), *MAIN,
]  # fmt: skip
OWN: Frames = [("/srv/data.py", 12, "next_batch"), *MAIN]
LOADER: Frames = [
    ("/root/python/lib/python3.11/threading.py", 331, "wait"),
    ("/root/python/lib/python3.11/queue.py", 180, "get"),
    (TORCH + "utils/data/dataloader.py", 1282, "_MultiProcessingDataLoaderIter._try_get_data"),
    (TORCH + "utils/data/dataloader.py", 1500, "_next_data"),
    *MAIN,
]
DATASET: Frames = [("/srv/data.py", 33, "__getitem__"), (TORCH + "utils/data/_utils/fetch.py", 52, "fetch"), *MAIN]
SAVE: Frames = [(TORCH + "serialization.py", 828, "__init__"), (TORCH + "serialization.py", 1002, "save"), *MAIN]
LOCK: Frames = [(TORCH + "utils/file_baton.py", 50, "FileBaton.wait"), ("/srv/ops.py", 8, "load_ops"), *MAIN]
NINJA: Frames = [(TORCH + "utils/cpp_extension.py", 2500, "_run_ninja_build"), ("/srv/ops.py", 8, "load_ops"), *MAIN]
INIT: Frames = [
    (TORCH + "distributed/rendezvous.py", 278, "_env_rendezvous_handler"),
    (TORCH + "distributed/distributed_c10d.py", 1778, "init_process_group"),
    *MAIN,
]
WORKER: Frames = [
    ("/root/python/lib/python3.11/multiprocessing/queues.py", 113, "get"),
    (TORCH + "utils/data/_utils/worker.py", 306, "_worker_loop"),
    *MAIN,
]


def spied(pid: int, frames: Frames, state: str = "idle", native: Iterable[str] = (), name: str = "MainThread") -> str:
    lines = [f"    {one} (libc.so.6)" for one in native]
    lines += [f"    {function} ({path}:{line})" for path, line, function in frames]
    head = f"Process {pid}: /usr/bin/python -u train.py\nPython v3.11.7 (/usr/bin/python3.11)\n"
    return f'{head}\nThread {pid} ({state}): "{name}"\n' + "\n".join(lines) + "\n"


def dumped(frames: Frames, ident: int = 0x7F01, current: bool = False) -> str:
    lines = [f'  File "{path}", line {line} in {function.rsplit(".", 1)[-1]}' for path, line, function in frames]
    return (
        f"{'Current thread' if current else 'Thread'} 0x{ident:016x} (most recent call first):\n"
        + "\n".join(lines)
        + "\n"
    )


THREAD: Frames = [
    ("/root/python/lib/python3.11/threading.py", 331, "wait"),
    ("/root/python/lib/python3.11/site-packages/tqdm/_monitor.py", 60, "run"),
    ("/root/python/lib/python3.11/threading.py", 1002, "_bootstrap"),
]


def as_json(pid: int, frames: Frames) -> str:
    items = [
        {"name": function, "filename": path, "module": None, "short_filename": path, "line": line, "locals": None}
        for path, line, function in frames
    ]
    one = {
        "pid": pid,
        "thread_id": 1,
        "thread_name": "MainThread",
        "os_thread_id": pid,
        "active": False,
        "owns_gil": False,
    }
    return json.dumps([{**one, "frames": items, "process_info": None}], indent=2)


def mains(events: Iterable[Event]) -> list[Event]:
    return [event for event in events if event.kind == "stack" and event.fields["main"]]


def judged(folder: Path, ranks: dict[int, str], **more: str) -> Report:
    (folder / "stacks").mkdir()
    for rank, text in ranks.items():
        (folder / "stacks" / f"rank-{rank}.txt").write_text(text)
    for name, text in more.items():
        (folder / name.replace("__", "/")).write_text(text)
    return diagnose([str(folder)])


def verdict(report: Report) -> tuple[str, tuple[int, ...]] | None:
    return (report.verdict.rule, report.verdict.ranks) if report.verdict else None


# -- reading -------------------------------------------------------------------------------------------------------


def test_every_form_says_the_same(read: ReadLog, tmp_path: Path) -> None:
    (tmp_path / "py-spy.rank0.json").write_text(as_json(7, REDUCE))
    by_json = [event for event in diagnose([str(tmp_path)]).run.events if event.kind == "stack"]
    locals_shown = spied(7, REDUCE).replace("\n    step", "\n        Arguments:\n            x: 'a secret'\n    step")
    events = [
        mains(read(text, rank=0).events)[0]
        for text in (spied(7, REDUCE), locals_shown, dumped(REDUCE), dumped(REDUCE, current=True), f"=== Rank 0: http://n:1/ ===\n{dumped(REDUCE)}")
    ]  # fmt: skip
    for event in [*events, *by_json]:
        assert event.rank == 0
        assert event.fields["waits"] == "collective"
        assert event.fields["frames"][0] == "/srv/train.py:51 in <module>"
        assert event.fields["frames"][-1] == f"{TORCH}distributed/distributed_c10d.py:3020 in all_reduce"
        assert event.fields["frames"][-2].endswith(" in wrapper")
        assert event.fields["own"][-1] == "/srv/train.py:29 in step"
        assert event.text == "MainThread waits in a collective: /srv/train.py:29 in step (in all_reduce)"
        assert "secret" not in str(event)


def test_the_last_of_several_dumps_counts_and_how_long_it_stood_there(read: ReadLog) -> None:
    text = spied(7, OWN) + "\n" + spied(7, REDUCE) + spied(7, REDUCE, native=["c10d::Work::wait"])
    (event,) = mains(read(text, rank=3).events)
    assert (event.fields["dumps"], event.fields["unchanged"], event.fields["pid"]) == (3, 2, 7)
    assert event.fields["native"] == ["c10d::Work::wait"]


def test_the_main_thread_is_found_among_many(read: ReadLog) -> None:
    timer = "Timeout (0:00:30)!\n" + dumped(THREAD, 1) + "\n" + dumped(THREAD, 2) + "\n" + dumped(OWN, 3)
    twice = timer + "some line of the log\n" + timer
    events = read(twice, rank=1).events
    assert [event.fields["own"][-1] for event in mains(events)] == ["/srv/data.py:12 in next_batch"]
    assert mains(events)[0].fields["dumps"] == 2
    assert len([event for event in events if event.kind == "stack"]) == 3


def test_names_of_threads_and_frames_without_python_are_understood(read: ReadLog) -> None:
    named = (
        dumped(THREAD, 1).replace(" (most", " [tqdm] (most")
        + "Thread 0x2 [pt_autograd] (most recent call first):\n  <no Python frame>\n\n"
    )
    events = read(
        named + dumped(REDUCE, 3) + "  ...\n\nExtension modules: numpy.core, torch._C (total: 2)\n", rank=0
    ).events
    assert {event.fields["thread"] for event in events if event.kind == "stack"} == {"tqdm", "MainThread"}
    assert mains(events)[0].fields["waits"] == "collective"


def test_dumps_in_a_log_with_prefixes_are_told_apart(read: ReadLog) -> None:
    one, two = (dumped(frames, 5).splitlines() for frames in (OWN, REDUCE))
    random.seed(3)
    lines, queues = [], [[f"[rank0]: {line}" for line in one], [f"[rank1]: {line}" for line in two]]
    while any(queues):
        lines.append(random.choice([queue for queue in queues if queue]).pop(0))
    found = {event.rank: event.fields["waits"] for event in mains(read("\n".join(lines) + "\n").events)}
    assert found == {0: "", 1: "collective"}


def test_processes_in_one_file_without_names_are_told_apart(read: ReadLog) -> None:
    text = "".join(dumped(frames, ident, current=True) for ident, frames in enumerate([BARRIER, BARRIER, OWN]))
    assert [event.fields["waits"] for event in mains(read(text).events)] == ["barrier", "barrier", ""]


@pytest.mark.parametrize(
    "title",
    [
        "### rank {} (10.0.0.8)",
        "--- rank{} ---",
        "= Rank {}\n$ py-spy dump",
        "# RANK={}",
        "[n-04 rank {}]",
        "[n4: Rank {}]:",
    ],
)
def test_titles_above_dumps_name_their_ranks(read: ReadLog, title: str) -> None:
    text = "\n\n".join(f"{title.format(rank)}\n{spied(40 + rank, BARRIER)}" for rank in (3, 5))
    assert [event.rank for event in mains(read(text).events)] == [3, 5]


def test_titles_below_dumps_name_their_ranks(read: ReadLog) -> None:
    text = "\n".join(f"{spied(40 + rank, BARRIER)}# ^ rank {rank}\n" for rank in (3, 5))
    assert [event.rank for event in mains(read(text).events)] == [3, 5]


def test_a_dump_of_which_only_the_beginning_was_kept_has_not_moved(read: ReadLog) -> None:
    whole = spied(7, REDUCE)
    cut = "\n".join(whole.split("\n")[:5]) + "\n"
    (event,) = mains(read(f"# rank 3\n{whole}\n$ py-spy dump --pid 7 | head -5\n{cut}").events)
    assert (event.rank, event.fields["dumps"], event.fields["unchanged"]) == (3, 2, 2)
    assert event.fields["own"]


@pytest.mark.parametrize(("size", "named"), [(3, (0,)), (6, ())])
def test_local_ranks_of_a_jobs_only_node_are_its_ranks(tmp_path: Path, size: int, named: tuple[int, ...]) -> None:
    dumps = [spied(40 + rank, SAVE_BARRIER if rank == 0 else REDUCE) for rank in range(3)]
    text = "\n".join(dump.replace("train.py\n", f"train.py --local_rank={n}\n", 1) for n, dump in enumerate(dumps))
    (tmp_path / "stacks.txt").write_text(f"seen at noon\n{text}")
    (tmp_path / "train.log").write_text(f"world_size={size}\n2025-06-02 22:01:10 step 4 loss 3.1\n")
    report = diagnose([str(tmp_path)])
    assert verdict(report) == ("COL042", named)
    assert report.verdict is not None and report.verdict.symptom == "collective-hang"


def below(pid: int, parent: int, frames: Frames) -> str:
    """As `py-spy dump --subprocesses` prints it."""
    return (
        spied(pid, frames).replace("\n\nThread", f"\nParent Process {parent}: python train.py\n\nThread")
        + "-" * 80
        + "\n"
    )


def test_workers_of_a_rank_are_not_the_rank(read: ReadLog) -> None:
    for text in (spied(7, REDUCE) + spied(8, WORKER), spied(7, REDUCE) + below(8, 7, OWN) + below(9, 8, OWN)):
        (event,) = mains(read(text, rank=2).events)
        assert event.fields["pid"] == 7


def test_ranks_below_their_launcher_are_ranks(read: ReadLog) -> None:
    agent: Frames = [
        (TORCH + "distributed/elastic/agent/server/api.py", 923, "_invoke_run"),
        (TORCH + "distributed/run.py", 1028, "main"),
    ]
    text = spied(7, agent) + below(8, 7, REDUCE) + below(9, 7, OWN) + below(10, 9, WORKER)
    assert [event.fields["pid"] for event in mains(read(text).events)] == [8, 9]


@pytest.mark.parametrize(
    ("frames", "native", "kind"),
    [
        (REDUCE, (), "collective"), (BARRIER, (), "barrier"), (BACKWARD, (), "backward"), (LOADER, (), "data"),
        (DATASET, (), "data"), (SAVE, (), "checkpoint"), (LOCK, (), "lock"), (NINJA, (), "compile"), (INIT, (), "rendezvous"),
        (OWN, (), ""), (OWN, ("clock_nanosleep", "time_sleep"), "sleep"), (OWN, ("pthread_cond_wait", "c10d::Work::wait"), "collective"),
        (OWN, ("take_gil",), "gil"), (BACKWARD, ("c10d::Reducer::finalize_backward",), "collective"),
        ([("/root/python/lib/python3.11/socket.py", 718, "readinto"), *OWN], (), "io"),
        ([("/srv/train.py", 80, "all_reduce"), *MAIN], (), ""),
    ],
)  # fmt: skip
def test_what_a_thread_waits_for(frames: Frames, native: Sequence[str], kind: str) -> None:
    outermost_first = [f"{path}:{line} in {function.rsplit('.', 1)[-1]}" for path, line, function in frames][::-1]
    assert waits_in(outermost_first, native) == kind
    assert kind == "" or kind in load_waits()
    short = [
        frame.replace(TORCH, "torch/").replace("/srv/", "").replace("/root/python/lib/python3.11/", "")
        for frame in outermost_first
    ]
    assert waits_in(short, native) == kind


def test_own_code_is_known_by_short_paths_too() -> None:
    assert is_own_frame("train.py:3 in main")
    assert is_own_frame("/srv/train.py:3 in main")
    assert not any(
        map(
            is_own_frame,
            ["torch/_tensor.py:3 in x", "threading.py:1 in wait", "<frozen runpy>:1 in x", "<string>:1 in <module>"],
        )
    )
    assert {"collective", "barrier", "backward", "rendezvous"} == for_peers()


# -- who is named --------------------------------------------------------------------------------------------------


def twice(pid: int, frames: Frames, **more: Any) -> str:
    return spied(pid, frames, **more) + spied(pid, frames, **more)


@pytest.mark.parametrize(
    ("odd", "usual", "expected"),
    [
        (OWN, REDUCE, "COL041"), (OWN, BACKWARD, "COL041"), (LOADER, BARRIER, "COL041"), (SAVE, REDUCE, "COL041"),
        (LOCK, REDUCE, "COL043"), (OWN, INIT, "COL044"), (SAVE_BARRIER, BACKWARD, "COL042"), (REDUCE, BARRIER, "COL042"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("rank", [0, 2, 3])
def test_the_odd_one_is_named(odd: Frames, usual: Frames, expected: str, rank: int, tmp_path: Path) -> None:
    report = judged(tmp_path, {r: twice(100 + r, odd if r == rank else usual) for r in range(4)})
    assert verdict(report) == (expected, (rank,))
    assert report.verdict is not None
    assert "at /srv/" in report.verdict.summary


def test_one_dump_of_each_is_enough_and_faulthandler_will_do(tmp_path: Path) -> None:
    assert verdict(judged(tmp_path, {r: dumped(OWN if r == 1 else REDUCE) for r in range(3)})) == ("COL041", (1,))


def test_a_rank_at_work_is_shown_but_not_blamed(tmp_path: Path) -> None:
    """An evaluation that rank 0 does alone."""
    other: Frames = [("/srv/eval.py", 9, "score"), *MAIN]
    for number, text in enumerate(
        [
            spied(1, OWN, state="active") + spied(1, other, state="active"),
            spied(1, OWN) + spied(1, other),
            twice(1, OWN, state="active"),
            spied(1, OWN, state="active+gil"),
        ]
    ):
        (tmp_path / str(number)).mkdir()
        report = judged(tmp_path / str(number), {0: text, 1: twice(2, BARRIER), 2: twice(3, BARRIER)})
        assert report.verdict is None
        assert [(f.rule, f.severity, f.ranks) for f in report.findings] == [("COL041", "warning", (0,))]


def test_one_that_holds_the_interpreter_at_one_line_is_stuck(tmp_path: Path) -> None:
    text = twice(1, [("/root/python/lib/python3.11/re/__init__.py", 166, "match"), *OWN], state="active+gil")
    assert verdict(judged(tmp_path, {0: text, 1: twice(2, BARRIER), 2: twice(3, BARRIER)})) == ("COL041", (0,))


def test_a_job_that_goes_on_is_left_alone(tmp_path: Path) -> None:
    moving = spied(1, REDUCE) + spied(1, BARRIER)
    assert judged(tmp_path, {0: moving, 1: twice(2, BARRIER), 2: twice(3, OWN)}).findings == ()


@pytest.mark.parametrize(
    "ranks",
    [
        [OWN, DATASET, [("/srv/model.py", 3, "forward"), *MAIN]], [REDUCE, REDUCE, REDUCE], [INIT, INIT], [REDUCE], [OWN],
        [BACKWARD, OWN], [OWN, OWN, REDUCE], [NINJA, LOCK, LOCK], [REDUCE, BARRIER, BACKWARD],
    ],
    ids=["computing", "same", "set-up", "one", "one computing", "two", "most compute", "building", "three places"],
)  # fmt: skip
def test_what_says_nothing_gives_nothing(ranks: list[Frames], tmp_path: Path) -> None:
    report = judged(tmp_path, {rank: twice(rank + 1, frames) for rank, frames in enumerate(ranks)})
    assert [f.rule for f in report.findings] == []


def test_of_two_camps_of_equals_nobody_is_named(tmp_path: Path) -> None:
    ranks = [
        REDUCE,
        REDUCE,
        [(TORCH + "distributed/distributed_c10d.py", 1, "broadcast"), ("/srv/train.py", 7, "step"), *MAIN],
    ]
    report = judged(tmp_path, {rank: twice(rank + 1, ranks[1 + rank // 2]) for rank in range(4)})
    assert verdict(report) == ("COL042", ())


def test_all_wait_for_a_lock(tmp_path: Path) -> None:
    report = judged(tmp_path, {rank: twice(rank + 1, LOCK) for rank in range(4)})
    assert verdict(report) == ("COL043", ())
    assert report.verdict is not None
    assert report.verdict.symptom == "rendezvous-setup-hang"
    assert report.verdict.causes[0].id == "resource-leak-or-retained-reference"


def test_an_exception_is_surer_than_stacks(tmp_path: Path) -> None:
    error = 'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in <module>\nValueError: bad\n'
    (tmp_path / "logs").mkdir()
    ranks = {r: twice(100 + r, OWN if r == 1 else REDUCE) for r in range(3)}
    report = judged(tmp_path, ranks, **{"logs__rank-2.log": error})
    assert "COL041" not in [f.rule for f in report.findings]


def test_a_dump_in_a_log_that_trains_on_is_of_the_past(tmp_path: Path) -> None:
    steps = "".join(f"step {n} loss {2 - n / 9:.2f}\n" for n in range(9))
    for rank in range(3):
        (tmp_path / f"rank{rank}.log").write_text("Timeout (0:00:01)!\n" + dumped(OWN if rank == 1 else REDUCE) + steps)
    assert diagnose([str(tmp_path)]).verdict is None


def test_a_crash_says_more_than_where(tmp_path: Path) -> None:
    crash = "Fatal Python error: Segmentation fault\n\n" + dumped(OWN, current=True)
    report = judged(tmp_path, {0: crash, 1: dumped(REDUCE), 2: dumped(REDUCE)})
    assert "COL041" not in [f.rule for f in report.findings]


# -- states of processes -------------------------------------------------------------------------------------------


def states(folder: Path, letters: Sequence[str]) -> None:
    (folder / "ranks").mkdir()
    for rank, letter in enumerate(letters):
        text = ProcessState(rank, letter, 100 + rank, "node-1", len(letters), "futex_do_wait", 12.5, 0.01).written()
        (folder / "ranks" / f"rank-{rank}.process.json").write_bytes(text)


@pytest.mark.parametrize(
    ("letter", "symptom"), [("T", "collective-hang"), ("Z", "worker-or-node-loss"), ("gone", "worker-or-node-loss")]
)
def test_one_that_is_stopped_or_gone_is_named(letter: str, symptom: str, tmp_path: Path) -> None:
    states(tmp_path, ["S", "S", letter, "S"])
    report = judged(tmp_path, {r: twice(100 + r, REDUCE) for r in (0, 1, 3)})
    assert verdict(report) == ("COL045", (2,))
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.hosts) == (symptom, ("node-1",))


def test_a_bundle_gives_the_same_verdict(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    seen.mkdir()
    states(seen, ["S", "S", "gone", "S"])
    (seen / "ranks" / "rank-2.process.json").write_bytes(ProcessState(2, "gone", world_size=4).written())
    report = judged(seen, {r: twice(100 + r, REDUCE, native=["c10d::Work::wait"]) for r in (0, 1, 3)})
    write(report.run, tmp_path / "bundle")
    again = diagnose([str(tmp_path / "bundle")])
    assert (verdict(again), again.skipped) == (("COL045", (2,)), ())
    assert again.run.events == report.run.events


def test_processes_that_wait_are_not_blamed(tmp_path: Path) -> None:
    states(tmp_path, ["S", "S", "S"])
    assert judged(tmp_path, {r: twice(100 + r, REDUCE) for r in range(3)}).findings == ()


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "{}", '{"paramedic": "process"}', '{"paramedic": "process", "state": "Q", "rank": 1}',
     '{"paramedic": "process", "state": "S", "rank": -1}', '{"paramedic": "process", "state": "S", "rank": true}',
     '{"paramedic": "process", "state": ["S"], "rank": 1}', "[" * 100_000],
)  # fmt: skip
def test_what_is_no_state_is_skipped(text: str, tmp_path: Path) -> None:
    assert read_process(text.encode()) is None
    (tmp_path / "rank-1.process.json").write_text(text)
    assert diagnose([str(tmp_path)]).skipped


def test_odd_values_are_left_out() -> None:
    state = read_process(
        b'{"paramedic": "process", "state": "S", "rank": 1, "pid": "x", "wchan": 3, "cpu": 1e400, "used": null}'
    )
    assert state is not None
    assert (state.pid, state.wchan, state.cpu, state.used) == (None, "", 0.0, None)


# -- bad input -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        b'[{"pid": 1, "frames": [1, null, {"name": null, "line": -3}, {"line": "x"}], "thread_id": 1}]',
        b'[{"pid": 1, "thread_id": 1, "frames": "no"}]', b'[{"pid": true, "thread_id": 1, "frames": []}]',
        b'[{"thread_id": 1, "frames": []', b'[' + b'{"pid": 1, "thread_id": 1, "frames": []},' * 500 + b'1]',
    ],
)  # fmt: skip
def test_json_of_any_kind_is_survived(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "stack.json").write_bytes(data)
    report = diagnose([str(tmp_path)])
    assert report.verdict is None
    assert report.run.sources or report.skipped


def test_any_piece_of_a_dump_is_survived(read: ReadLog) -> None:
    whole = (
        spied(7, LOADER, native=["x"])
        + dumped(THREAD, 1)
        + dumped(REDUCE, 2)
        + "=== Rank 3: http://n/ ===\nState:\tT (stopped)\n"
    )
    random.seed(1)
    for _ in range(300):
        text = "".join(
            random.choice([line, line, line[: random.randrange(len(line) + 1)], ""]) for line in whole.splitlines(True)
        )
        read(text, rank=random.choice([None, 1]))


def test_many_threads_and_frames_stay_in_bounds(read: ReadLog) -> None:
    deep = [("/srv/a.py", n, "f") for n in range(1, 3_000)]
    text = "".join(dumped(THREAD, n) for n in range(300)) + dumped(deep, 999)
    events = [event for event in read(text, rank=0).events if event.kind == "stack"]
    assert len(events) <= stacks.MAX_THREADS
    assert max(len(event.fields["frames"]) for event in events) <= 60


def test_secrets_in_paths_are_taken_out(read: ReadLog) -> None:
    (event,) = mains(read(dumped([("/srv/AKIAIOSFODNN7EXAMPLE/train.py", 3, "x"), *MAIN]), rank=0).events)
    assert "AKIAIOSFODNN7EXAMPLE" not in str(event)
