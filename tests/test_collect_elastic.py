"""torchrun's table, its agent's lines and its error files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import ReadLog
from paramedic.collect.elastic import read_error_file
from paramedic.collect.files import collect
from paramedic.knowledge import Knowledge
from paramedic.model import Event, Run
from paramedic.pipeline import Options, examine
from paramedic.prefilter import Prefilter

TRACEBACK = """\
Traceback (most recent call last):
    File "/srv/train.py", line 345, in train
      loss = f(x)
             ^^^^
  ValueError: Expected input batch_size (16) to match target batch_size (11).
  """


def row(index: int, rank: int, code: int = 1, signal: str = "", traceback: str = "To enable traceback see: x") -> str:
    return (
        f"[{index}]:\n  time      : 2026-11-15_02:28:1{rank}\n  host      : node-0{rank}\n"
        f"  rank      : {rank} (local_rank: {rank})\n  exitcode  : {code} (pid: {100 + rank}) {signal}\n"
        f"  error_file: <N/A>\n  traceback : {traceback}\n"
    )


def table(root: str, *others: str) -> str:
    failures = "".join(others) or "  <NO_OTHER_FAILURES>\n"
    rule, line = "=" * 60 + "\n", "-" * 60 + "\n"
    return f"{rule}train.py FAILED\n{line}Failures:\n{failures}{line}Root Cause (first observed failure):\n{root}{rule}"


def exits(events: list[Event]) -> list[tuple[int | None, int]]:
    return [(event.rank, event.fields["exitcode"]) for event in events if event.kind == "exit"]


def test_every_row_is_an_event_and_the_first_failure_is_marked(read: ReadLog) -> None:
    found = read(table(row(0, 2, -9, "(SIGKILL)"), row(1, 0), row(2, 1, -15, " (SIGTERM)"))).events
    assert exits(found) == [(0, 1), (1, -15), (2, -9)]
    first = [event for event in found if event.kind == "exit" and event.fields["first_observed"]]
    assert [event.rank for event in first] == [2]
    assert (first[0].fields["pid"], first[0].fields["host"]) == (102, "node-02")
    assert first[0].time_text == "2026-11-15_02:28:12"
    assert first[0].line == 21


def test_a_table_may_be_prefixed_and_interleaved(read: ReadLog) -> None:
    a, b = table(row(0, 0)).splitlines(), table(row(0, 1, -9)).splitlines()
    lines = [line for pair in zip(a, b, strict=True) for line in (f"0: {pair[0]}", f"1: {pair[1]}")]
    assert sorted(exits(read("\n".join(lines)).events)) == [(0, 1), (1, -9)]


def test_the_next_attempts_table_is_read_too(read: ReadLog) -> None:
    assert exits(read(table(row(0, 0)) + "restarting\n" + table(row(0, 1, -6))).events) == [(0, 1), (1, -6)]


@pytest.mark.parametrize("lines", [10, 12, 13])
def test_a_table_cut_by_the_end_of_the_file_gives_its_whole_rows(read: ReadLog, lines: int) -> None:
    text = "\n".join(table(row(0, 1), row(1, 0)).splitlines()[:lines])
    assert exits(read(text).events) == [(0, 1)]


def test_a_recorded_traceback_in_the_table_counts_where_the_rank_was_not_heard(read: ReadLog) -> None:
    found = read(table(row(0, 3, 1, traceback=TRACEBACK), row(1, 0, 1, traceback="Signal 9 (SIGKILL) received")))
    (event,) = [event for event in found.events if event.kind == "traceback"]
    assert (event.rank, event.fields["types"]) == (3, ["ValueError"])
    assert event.fields["frames"] == ["/srv/train.py:345 in train"]
    assert event.time_text == "2026-11-15_02:28:13"
    assert exits(found.events) == [(0, 1), (3, 1)]


def test_a_recorded_traceback_is_not_told_twice(tmp_path: Path, prefilter: Prefilter) -> None:
    (tmp_path / "console.log").write_text(table(row(0, 3, 1, traceback=TRACEBACK)))
    (tmp_path / "rank3.log").write_text(TRACEBACK.replace("\n  ", "\n"))
    run = collect([str(tmp_path)], prefilter)
    assert [event.source.rsplit("/")[-1] for event in run.events if event.kind == "traceback"] == ["rank3.log"]


def test_a_summary_that_only_looks_like_a_table_swallows_nothing(read: ReadLog) -> None:
    text = "Failures: 0\n" + "step\n" * 10 + "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
    assert [event.line for event in read(text).events if event.kind == "line"] == [12]


def test_lines_between_the_rows_are_not_lost(read: ReadLog) -> None:
    lines = table(row(0, 2), row(1, 0)).splitlines()
    lines[6:6] = ["RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"]
    found = read("\n".join(lines)).events
    assert exits(found) == [(0, 1), (2, 1)]
    assert [event.line for event in found if event.kind == "line"] == [7]


def test_a_table_without_an_end_does_not_swallow_the_log(read: ReadLog) -> None:
    text = "Failures:\n" + "ordinary line\n" * 300 + "RuntimeError: CUDA out of memory. Tried to allocate 1.00 GiB\n"
    assert [event.line for event in read(text).events if event.kind == "line"] == [302]


def test_a_row_that_lost_its_heading_is_still_a_row_with_its_line(read: ReadLog) -> None:
    text = table(row(0, 0)).replace("[0]:\n", "")
    assert [(event.rank, event.line) for event in read(text).events if event.kind == "exit"] == [(0, 8)]


def test_absurd_numbers_in_a_row_are_no_row(read: ReadLog) -> None:
    assert exits(read(table(row(0, 0).replace("(pid: 100)", f"(pid: {'9' * 5000})"))).events) == []


def test_the_agents_line_counts_where_the_table_is_missing(read: ReadLog) -> None:
    text = "E0325 20:57:27.620000 2606 api.py:869] failed (exitcode: -9) local_rank: 2 (pid: 4711) of binary: python\n"
    (event,) = [event for event in read(text).events if event.kind == "exit"]
    fields = event.fields
    assert (event.rank, fields["local_rank"], fields["exitcode"], fields["pid"]) == (2, 2, -9, 4711)
    several = [event for event in read(f"torchrun --nnodes=2\n{text}").events if event.kind == "exit"]
    assert [event.rank for event in several] == [None]


@pytest.mark.parametrize(
    "document", ['{"message": "ValueError: plain"}', '{"message": {"message": "ValueError: plain"}}']
)
def test_error_files_of_both_shapes_are_read(document: str) -> None:
    error = read_error_file(document.encode())
    assert error is not None
    assert (error.message, error.callstack, error.epoch_seconds) == ("ValueError: plain", "", None)


def error_file(folder: Path, content: object) -> Path:
    place = folder / "attempt_1" / "3"
    place.mkdir(parents=True)
    (place / "error.json").write_text(content if isinstance(content, str) else json.dumps(content))
    return place


def test_an_error_file_is_a_traceback_of_its_rank(tmp_path: Path, prefilter: Prefilter) -> None:
    stack = 'Traceback (most recent call last):\n  File "/srv/a.py", line 3, in f\n    g()\nValueError: bad\nmore\n'
    extra = {"py_callstack": stack, "timestamp": "1794709720"}
    error_file(tmp_path, {"message": {"message": "ValueError: bad\nmore", "extraInfo": extra}})
    run = collect([str(tmp_path)], prefilter)
    (event,) = run.events
    assert (event.kind, event.rank, event.attempt, event.text) == ("traceback", 3, 1, "ValueError: bad\nmore")
    assert event.utc_ns == 1794709720 * 10**9
    assert event.fields["frames"] == ["/srv/a.py:3 in f"]
    assert event.fields["types"] == ["ValueError"]
    assert run.sources[0].kind == "error-file"


@pytest.mark.parametrize(
    "content",
    [
        "",
        "no json",
        "[]",
        "3",
        '{"message": 3}',
        '{"message": []}',
        '{"message": {"message": 3}}',
        '{"message": {}}',
        '{"other": 1}',
        "[" * 200_000,
        '{"message": ' * 200_000,
        "\x00\x01",
    ],
)
def test_what_is_no_error_file_is_skipped_by_name(tmp_path: Path, prefilter: Prefilter, content: str) -> None:
    place = error_file(tmp_path, content)
    run = collect([str(tmp_path)], prefilter)
    assert run.events == ()
    assert [(s.what, s.why) for s in run.skipped] == [
        (str(place / "error.json"), "not an error file as torchrun writes it")
    ]


@pytest.mark.parametrize("stamp", ["²", "٣", "9" * 11, "-1", "", "1e9", None, 1.5, [], True])
def test_an_odd_timestamp_in_an_error_file_is_left_out(stamp: object) -> None:
    document = {"message": {"message": "ValueError: x", "extraInfo": {"timestamp": stamp}}}
    error = read_error_file(json.dumps(document).encode())
    assert error is not None
    assert error.epoch_seconds is None


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["message", "extraInfo", "timestamp", "py_callstack"]), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(json_values)
def test_no_json_breaks_the_reader_of_error_files(value: object) -> None:
    read_error_file(json.dumps(value).encode())


# -- restarts within one console ---------------------------------------------------------------------------------------

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


def failed(code: int, local: int, pid: int, agent: int = 19, clock: str = "06:03:01") -> str:
    where = "torch/distributed/elastic/multiprocessing/api.py:1002]"
    return f"E1115 {clock}.356000 {agent} {where} failed (exitcode: {code}) local_rank: {local} (pid: {pid}) of binary: x\n"


def attempts(events: list[Event], kind: str = "line") -> list[tuple[int | None, int]]:
    return [(event.rank, event.attempt) for event in events if event.kind == kind]


def test_an_agent_that_prints_no_table_has_started_its_workers_again(read: ReadLog) -> None:
    """At its usual level torchrun says nothing of a restart."""
    text = f"[rank0]: {OOM}\n{failed(1, 0, 61)}[rank1]: {OOM}\n{failed(1, 1, 248)}{table(row(0, 1))}"
    found = read(text).events
    assert attempts(found) == [(0, 0), (1, 1)]
    assert attempts(found, "exit") == [(0, 0), (1, 1), (1, 1)]


def test_a_run_without_restart_has_one_attempt(read: ReadLog) -> None:
    found = read(f"[rank0]: {OOM}\n{failed(1, 0, 61)}{table(row(0, 0))}").events
    assert {event.attempt for event in found} == {0}


def test_a_restart_that_goes_on_well_is_an_attempt(read: ReadLog) -> None:
    found = read(f"[rank0]: {OOM}\n{failed(1, 0, 61)}rank 0 step 5 loss 1.0\n").events
    assert attempts(found, "progress") == [(0, 1)]


def test_agents_of_several_nodes_fail_in_the_same_attempt(read: ReadLog) -> None:
    once = f"[rank0]: {OOM}\n{failed(1, 0, 61, agent=19)}[rank9]: {OOM}\n{failed(1, 1, 62, agent=23)}"
    assert attempts(read(once + table(row(0, 0)) + table(row(0, 1))).events) == [(0, 0), (9, 0)]
    twice = read(once + once.replace("06:03", "06:04") + table(row(0, 0)) + table(row(0, 1))).events
    assert attempts(twice) == [(0, 0), (9, 0), (0, 1), (9, 1)]


def test_agents_that_do_not_say_their_number_are_counted_by_their_tables(read: ReadLog) -> None:
    old = "[2024-05-08 08:47:31,877] torch.distributed.elastic.multiprocessing.api: [ERROR] failed (exitcode: 1) local_rank: 0 (pid: {pid}) of binary: x\n"
    once = f"[rank0]: {OOM}\n{old.format(pid=1)}[rank9]: {OOM}\n{old.format(pid=2)}"
    assert attempts(read(once + table(row(0, 0)) + table(row(0, 1))).events) == [(0, 0), (9, 0)]
    assert attempts(read(once + table(row(0, 1))).events) == [(0, 0), (9, 1)]


def test_a_restart_that_torchrun_announces(read: ReadLog) -> None:
    said = "I1115 06:03:01.400000 19 torch/distributed/elastic/agent/server/api.py:943] [default] Worker group FAILED. 3/3 attempts left; will restart worker group\n"
    found = read(
        f"[rank0]: {OOM}\n{failed(1, 0, 61)}{said}[rank1]: {OOM}\n{failed(1, 1, 248)}{table(row(0, 1))}"
    ).events
    assert attempts(found) == [(0, 0), (1, 1)]


def test_the_last_attempt_is_judged(read: ReadLog, knowledge: Knowledge, prefilter: Prefilter) -> None:
    text = f"[rank0]: {OOM}\n{failed(1, 0, 61)}[rank1]: {OOM}\n{failed(1, 1, 248)}{table(row(0, 1), row(1, 0, -15))}"
    log = read(text)
    run = Run("x", (log.source,), tuple(log.events), world_size=4)
    verdict = examine(run, knowledge, prefilter, Options()).verdict
    assert verdict is not None
    assert (verdict.ranks, verdict.attempt) == ((1,), 1)


def test_rays_second_worker_group_is_the_second_attempt(read: ReadLog) -> None:
    start = (
        "(TrainController pid=20) Attempting to start training worker group of size 2 with the following resources: x"
    )
    lines = [
        start,
        "(TrainController pid=20) - (ip=10.0.0.1, pid=31) world_rank=0, local_rank=0, node_rank=0",
        f"(RayTrainWorker pid=31) {OOM}",
        start,
        f"(RayTrainWorker pid=31) {OOM} again, late",
        "(TrainController pid=20) - (ip=10.0.0.1, pid=41) world_rank=0, local_rank=0, node_rank=0",
        f"(RayTrainWorker pid=41) {OOM}",
    ]
    assert attempts(read("\n".join(lines)).events) == [(0, 0), (0, 0), (0, 1)]


def test_the_older_ray_trainer_says_that_it_restarts(read: ReadLog) -> None:
    lines = [
        OOM,
        "Failure identified during training. Restarting all workers and continuing training from latest checkpoint.",
        OOM,
    ]
    ooms = [event for event in read("\n".join(lines)).events if event.text in OOM]
    assert attempts(ooms) == [(None, 0), (None, 1)]


def test_whenever_all_workers_of_horovods_elastic_driver_have_met_again_it_is_another_attempt(read: ReadLog) -> None:
    met = "INFO:root:all 2 workers recorded"
    lines = [met, f"[1]<stderr>:{OOM}", "Process 1 exit with status code 1.", met, f"[1]<stderr>:{OOM}"]
    for said in (lines, lines[1:]):  # the second tells of them only when they meet again
        assert [e.attempt for e in read("\n".join(said)).events if e.kind == "line" and e.rank == 1] == [0, 1]


def test_a_requeued_slurm_job_goes_on_in_the_same_file(read: ReadLog) -> None:
    assert attempts(read(f"{OOM}\nRequeued SLURM job: 4711\n{OOM}\n").events) == [(None, 0), (None, 1)]


def test_a_nameless_traceback_is_the_one_rank_that_ended_unheard(read: ReadLog) -> None:
    trace = 'Traceback (most recent call last):\n  File "/srv/train.py", line 3, in f\n    g()\nValueError: early\n'
    found = read(trace + table(row(0, 1, 1), row(1, 0, -15), row(2, 2, -15))).events
    assert [(e.rank, e.host) for e in found if e.kind == "traceback"] == [(1, "node-01")]
    found = read(trace + table(row(0, 1, 1), row(1, 0, 1))).events
    assert [e.rank for e in found if e.kind == "traceback"] == [None]


# -- what other launchers say of an end ----------------------------------------------------------------------------------

DEEPSPEED = "[2026-11-15 06:24:58,005] [ERROR] [launch.py:259:sigkill_handler] ['/venv/bin/python', '-u', 'x.py', '--local_rank=1', '--lr', '1'] exits with return code = -9\n"


def test_deepspeeds_launcher_does_not_tell_which_of_its_processes_ended(read: ReadLog) -> None:
    """It prints the command that it had started last, whichever process has the return code."""
    node = "[2026-11-15 06:24:39,854] [INFO] [launch.py:158:main] nnodes={n}, num_local_procs=4, node_rank={r}\n"
    assert exits(read(node.format(n=1, r=0) + DEEPSPEED).events) == [(None, -9)]
    assert exits(read(node.format(n=2, r=1) + DEEPSPEED).events) == [(None, -9)]


def test_deepspeeds_only_process_of_a_node_is_the_one_that_ended(read: ReadLog) -> None:
    only = DEEPSPEED.replace("--local_rank=1", "--local_rank=0")
    assert exits(read(only).events) == [(0, -9)]
    node = "[2026-11-15 06:24:39,854] [INFO] [launch.py:158:main] nnodes=2, num_local_procs=1, node_rank={r}\n"
    lines = [f"worker-{r + 1}: {node.format(r=r)}" for r in (0, 1)] + [f"worker-{n}: x\n" for n in (1, 2)]
    assert exits(read("".join(lines) + f"worker-2: {only}").events) == [(1, -9)]
    assert exits(read("Running on the following workers: a,b (hostfile)\n" + only).events) == [(None, -9)]


def test_mpirun_names_the_process_that_a_signal_ended(read: ReadLog) -> None:
    line = "mpirun noticed that process rank 3 with PID 4711 on node node02 exited on signal 9 (Killed).\n"
    (event,) = [e for e in read(line).events if e.kind == "exit"]
    assert (event.rank, event.fields["exitcode"], event.fields["pid"], event.fields["host"]) == (3, -9, 4711, "node02")


def test_srun_names_the_tasks_that_a_signal_ended(read: ReadLog) -> None:
    assert exits(read("srun: error: node02: tasks 1,4-5: Killed\n").events) == [(1, -9), (4, -9), (5, -9)]
    assert exits(read("srun: error: node02: task 1: Exited with exit code 1\n").events) == []
    assert exits(read("srun: error: node02: tasks 5-1,9-99999999: Killed\n").events) == []


@pytest.mark.parametrize(
    ("line", "rank", "code"),
    [
        (
            "subprocess.CalledProcessError: Command '['/usr/bin/python', '-u', 'train.py', '--local_rank=5', '--lr', '1']' "
            "returned non-zero exit status 1.",
            5,
            1,
        ),
        (
            "subprocess.CalledProcessError: Command '['/usr/bin/python', 'train.py', '--local-rank=2']' "
            "died with <Signals.SIGKILL: 9>.",
            2,
            -9,
        ),
        ("ERROR:composer.cli.launcher:Rank 6 crashed with exit code -7.", 6, -7),
        ("ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: -6) local_rank: 1", 1, -6),
    ],
)
def test_other_launchers_say_who_ended(read: ReadLog, line: str, rank: int, code: int) -> None:
    (end,) = [e for e in read(line + "\n").events if e.kind == "exit"]
    assert (end.rank, end.fields["local_rank"], end.fields["exitcode"]) == (rank, rank, code)
    assert f"rank {rank} ended" in end.text


# -- jobs begun once more below old output -------------------------------------------------------------------------------


def launched(clock: str, agent: int) -> str:
    where = f"W1115 {clock}.100000 {agent} torch/distributed/run.py:793]"
    words = "Setting OMP_NUM_THREADS environment variable for each process to be 1 in default, to avoid your system"
    return f"{where} \n{where} {'*' * 41}\n{where} {words}\n{where} {'*' * 41}\n"


def a_start(clock: str, agent: int, rank: int) -> str:
    return launched(clock, agent) + f"lora: bs {agent}\n[rank{rank}]: {OOM}\n"


def test_whoever_starts_torchrun_again_below_its_old_output_has_begun_another_attempt(read: ReadLog) -> None:
    first = a_start("06:02:00", 19, 0) + failed(1, 0, 61) + table(row(0, 0))
    second = a_start("06:09:00", 23, 1) + failed(1, 1, 92, 23, "06:09:30") + table(row(0, 1))
    found = read(first + second).events
    assert attempts(found, "line") == [(0, 0), (1, 1)]
    assert {event.attempt for event in found if event.kind == "exit"} == {0, 1}
    assert attempts(
        read(first + launched("06:09:00", 23) + "{'loss': 1.5, 'epoch': 0.01}\n" * 4).events, "progress"
    ) == [(None, 1)]


def test_a_start_that_failed_before_its_workers_began_is_an_attempt_too(read: ReadLog) -> None:
    first = a_start("06:02:00", 19, 0) + failed(1, 0, 61) + table(row(0, 0))
    port = launched("06:09:00", 23) + "RuntimeError: Address already in use\n"
    assert attempts(read(first + port + a_start("06:10:00", 29, 1)).events) == [(0, 0), (None, 1), (1, 2)]


def test_logs_of_nodes_one_behind_the_other_are_of_one_attempt(read: ReadLog) -> None:
    """Each has the same first lines, after the end of the one above; the clock goes back."""
    node = a_start("06:02:00", 19, 0) + failed(1, 0, 61) + table(row(0, 0))
    other = a_start("06:02:01", 23, 8) + failed(1, 0, 62, 23) + table(row(0, 8))
    assert {event.attempt for event in read(node + other).events} == {0}


def a_batch(day: str, rank: int, name: str = "train") -> str:
    top = f"loading env/2025.1\npython {name}.py on 2 nodes\n[{day} 08:00:05] {name} begins\n"
    return top + f"[{day} 08:10:00] step 10 loss 2.1\n[rank{rank}]: {OOM}\n"


CANCELLED = "slurmstepd: error: *** STEP 771.0 ON n1 CANCELLED AT 2025-06-02T08:11:00 ***\n"


def test_a_logs_first_lines_once_more_after_the_end_of_a_step_begin_another_attempt(read: ReadLog) -> None:
    found = read(a_batch("2025-06-02", 3) + CANCELLED + a_batch("2025-06-03", 5)).events
    assert [one for one in attempts(found) if one[0] is not None] == [(3, 0), (5, 1)]
    soon = read(a_batch("2025-06-02", 3) + CANCELLED + a_batch("2025-06-02", 5)).events
    assert {event.attempt for event in soon} == {0}
    other = read(a_batch("2025-06-02", 3) + CANCELLED + a_batch("2025-06-03", 5, "report")).events
    assert {event.attempt for event in other} == {0}


def test_first_lines_that_are_said_once_more_while_nothing_has_ended_begin_nothing(read: ReadLog) -> None:
    assert {e.attempt for e in read(a_batch("2025-06-02", 3) + a_batch("2025-06-03", 5)).events} == {0}


def test_a_script_that_goes_on_to_evaluate_has_not_made_up_for_its_training(
    read: ReadLog, knowledge: Knowledge, prefilter: Prefilter
) -> None:
    def verdict(then: str) -> str | None:
        first = a_start("06:02:00", 19, 0) + failed(1, 0, 61) + table(row(0, 0))
        log = read(first + launched("06:09:00", 23) + then * 4)
        run = Run("x", (log.source,), tuple(log.events), world_size=2)
        said = examine(run, knowledge, prefilter, Options()).verdict
        return said.rule if said else None

    assert verdict("[eval] step 10/40 loss 1.50\n") == "MEM001"
    assert verdict("step 10/40 loss 1.50\n") is None


def test_a_traced_script_that_starts_its_next_step_after_one_was_ended_has_begun_another_attempt(read: ReadLog) -> None:
    ended = f"[rank3]: {OOM}\nsrun: error: n2: task 3: Segmentation fault\nsrun: Terminating StepId=771.0\n"
    then = f"+ srun -n 2 -l python train.py\n[rank1]: {OOM}\n"
    assert attempts(read("+ srun -n 4 -l python make.py\n" + ended + then).events)[-1] == (1, 1)
    assert attempts(read(ended + then).events)[-1] == (1, 1)
    together = read("+ srun -n 4 -l python make.py\n+ srun -n 2 -l python train.py\n" + ended + f"[rank1]: {OOM}\n")
    assert {event.attempt for event in together.events} == {0}


def test_a_launcher_whose_platform_tells_of_its_end_has_started_nothing_again(read: ReadLog) -> None:
    end = (
        "2024-06-11 06:32:25,534 sagemaker-training-toolkit ERROR    Reporting training FAILURE\n",
        "srun: error: n1: task 0: Exited with exit code 1\n",
    )
    for said in end:
        text = f"[rank0]: {OOM}\n{failed(1, 0, 61)}{said}" + "some words of a wrapper\n" * 4
        assert {event.attempt for event in read(text).events} == {0}


def test_a_count_of_restarts_that_has_grown_since_the_end_begins_another_attempt(read: ReadLog) -> None:
    def begun(count: int, rank: int) -> str:
        return f"=== SLURM_JOB_ID=771 SLURM_RESTART_COUNT={count}\n[rank{rank}]: {OOM}\n"

    def told(text: str) -> list[tuple[int | None, int]]:
        return [one for one in attempts(read(text).events) if one[0] is not None]

    assert told(begun(0, 3) + CANCELLED + begun(1, 5)) == [(3, 0), (5, 1)]
    assert told(begun(1, 3) + CANCELLED + begun(1, 5)) == [(3, 0), (5, 0)]  # two nodes' logs in one file


def test_a_host_that_horovods_driver_gives_up_ends_a_round_with_the_others_last_words(read: ReadLog) -> None:
    shut = "[0]<stderr>:HorovodInternalError: Horovod has been shut down."
    lost = ["Process 1 exit with status code 255.", "WARNING:root:blacklist failing host: h2", shut]
    lines = [*lost, "[0]<stdout>:step 4 loss 1.0", *["[0]<stdout>:fine"] * 9, f"[0]<stderr>:{OOM}", *lost]
    lines += ["ERROR:root:failed to activate new hosts -> stop running", "Process 0 exit with status code 1."]
    found = read("\n".join(lines)).events
    assert [e.attempt for e in found if e.kind == "line" and OOM in e.text] == [1]
    assert [e.attempt for e in found if e.kind == "exit"] == [0, 1, 2]
    assert [e.attempt for e in found if "stop running" in e.text and e.kind == "line"] == [2]
