"""Whose line is it: paths, prefixes in layers, and what an outer prefix really counts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from conftest import ReadLog
from paramedic.collect.files import collect
from paramedic.collect.layouts import Place, Prefixes, glued, place_of, plain, pod_ranks, ranks_of_places
from paramedic.collect.logs import LogRead
from paramedic.prefilter import Prefilter

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
PREFIXES = Prefixes()


@pytest.mark.parametrize(
    ("path", "rank", "attempt"),
    [
        ("logs/none_abc/attempt_0/3/stderr.log", 3, 0),
        ("logs/none_abc/attempt_2/11/stdout.log", 11, 2),
        ("attempt_1/0/error.json", 0, 1),
        ("logs/attempt_1/3/output.log", 3, 1),
        ("a.tar.gz!/run/attempt_0/7/stderr.log.gz", 7, 0),
        ("logs/rank3.log", 3, 0),
        ("logs/rank_12.err.zst", 12, 0),
        ("job-4711-rank-5.out", 5, 0),
        ("RANK0", 0, 0),
        ("logs/rank7/train.log", 7, 0),
        ("logs/5.log", 5, 0),
        ("logs/00012.out", 12, 0),
        ("worker-3.txt", 3, 0),
        ("log_4.err.gz", 4, 0),
        ("nemo_log_globalrank-5_localrank-1.txt", 5, 0),
        ("out/1/rank.6/stdout", 6, 0),
        ("job.prterun-node01-4711@1.7.out", 7, 0),
        ("logs/train-worker-3.log", 3, 0),
        ("logs/train-worker-3-x7k2p.log", 3, 0),
    ],
)
def test_a_path_names_the_rank(path: str, rank: int, attempt: int) -> None:
    place = place_of(path)
    assert (place.rank, place.attempt) == (rank, attempt)


@pytest.mark.parametrize(
    "path",
    [
        "slurm-4711.out",
        "4711.out",
        "train.log",
        "frank2.log",
        "node-3.log",
        "rank3.d/x/train.log",
        "-",
        "attempt_0/x/stderr.log",
    ],
)
def test_other_numbers_in_a_path_are_no_rank(path: str) -> None:
    assert place_of(path).rank is None


def test_absurdly_long_numbers_in_a_path_are_no_rank() -> None:
    assert place_of("attempt_0/" + "9" * 5000 + "/stderr.log") == Place()


@pytest.mark.parametrize(
    ("line", "rank", "text"),
    [
        ("[rank3]: boom", 3, "boom"),
        ("[rank3]:[E603 17:48:01.005 x.cpp:1] boom", 3, "[E603 17:48:01.005 x.cpp:1] boom"),
        ("[rank3]:   File", 3, "  File"),
        ("[default3]:boom", 3, "boom"),
        ("[default3]:[rank3]: boom", 3, "boom"),
        ("[trainer0]:boom", 0, "boom"),
        ("[1,7]<stderr>:boom", 7, "boom"),
        ("[1,7]<stdout>:[rank7]: boom", 7, "boom"),
        ("[prterun-node01-4711@1,7]<stdout>: boom", 7, "boom"),
        ("[1,7][node01:4711]<stderr>: boom", 7, "boom"),
        ("[7]<stderr>:boom", 7, "boom"),
        ("[prterun-node01-4711@1,rank 7]<stderr>: boom", 7, "boom"),
        ("Tue May 14 12:00:00 2024[1,7]<stderr>:boom", 7, "boom"),
        ("2026-11-15T11:00:09.123456789Z stderr F [rank7]: boom", 7, "boom"),
        ("boom", None, "boom"),
        ("[rank]: boom", None, "[rank]: boom"),
        ("3: boom", None, "3: boom"),
        ("[rank" + "1" * 50 + "]: x", None, "[rank" + "1" * 50 + "]: x"),
    ],
)
def test_prefixes_are_peeled_in_layers(line: str, rank: int | None, text: str) -> None:
    peeled = PREFIXES.peel(line)
    assert (peeled.rank, peeled.text) == (rank, text)


def test_srun_labels_are_recognised_and_may_be_padded() -> None:
    prefixes = Prefixes.of([" 0: a", "11: [rank11]: b", " 3: c", " 0: d", " 3:"])
    assert prefixes.srun
    peeled = prefixes.peel("11: [rank11]:   File")
    assert (peeled.rank, peeled.text, peeled.by) == (11, "  File", "torch")
    assert prefixes.peel(" 3:").rank == 3


def test_slurms_own_lines_do_not_hide_the_labels() -> None:
    sample = ["2: a", "0: b", "1: c", "srun: error: n1: task 2: Exited", "slurmstepd: error: x", "srun: x"]
    assert Prefixes.of(sample).srun


def test_the_frames_of_a_stack_need_no_label() -> None:
    stack = [f"#{at} step from /job/loop.py:{80 + at}" for at in range(6)]
    assert Prefixes.of(["2: a", "0: b", "1: c", *stack, "0: d"]).srun
    assert not Prefixes.of(["2: a", "0: b", "1: c", "another", "0: d"]).srun


@pytest.mark.parametrize(
    "sample",
    [
        [f"{n}: line of a numbered listing" for n in range(1, 50)],
        [f"{n * 7}: what grep -n found" for n in range(1, 50)],
        ["12:30:01 started", "12:30:02 step", "12:30:02 step"],
        ["0: only", "0: two lines"],
        ["loss: 3", "0: x", "1: y", "0: z"],
    ],
)
def test_numbered_text_is_not_taken_for_srun(sample: list[str]) -> None:
    assert not Prefixes.of(sample).srun


def test_tee_prefixes_count_the_ranks_of_one_node(read: ReadLog) -> None:
    """`[default3]:` on the second node is rank 11, as the lines say that torch itself has prefixed."""
    found = read(f"[default0]:[rank8]: hello\n[default3]:{OOM}\n")
    assert [event.rank for event in found.events if event.kind == "line"] == [11]


def test_tee_prefixes_of_several_nodes_in_one_file_name_nobody(read: ReadLog) -> None:
    found = read(f"[default0]:[rank8]: a\n[default0]:[rank0]: b\n[default3]:{OOM}\n")
    assert [event.rank for event in found.events if event.kind == "line"] == [None]


def test_srun_labels_are_nodes_where_torchrun_runs_on_each(read: ReadLog) -> None:
    lines = ["0: start", "1: start", "0: [rank2]: x", "1: [rank7]: x", f"1: {OOM}"]
    found = read("\n".join(lines))
    assert [event.rank for event in found.events if event.kind == "line"] == [None]


def test_a_file_named_after_a_rank_is_nobodys_when_several_ranks_speak_in_it(read: ReadLog) -> None:
    found = read(f"[rank0]: a\n[rank1]: b\n{OOM}\n", rank=0)
    assert found.source.rank is None
    assert [event.rank for event in found.events if event.kind == "line"] == [None]


def test_torchs_prefix_corrects_the_local_rank_of_a_whole_torchrun_folder(tmp_path: Path, prefilter: Prefilter) -> None:
    root = tmp_path / "run" / "attempt_0"
    for local, text in enumerate(("", f"[rank9]: {OOM}\n", f"{OOM}\n")):
        (root / str(local)).mkdir(parents=True)
        (root / str(local) / "stderr.log").write_text(text)
        (root / str(local) / "stdout.log").write_text(f"{OOM}\n")
    (root / "2" / "error.json").write_text('{"message": {"message": "ValueError: x"}}')
    run = collect([str(tmp_path)], prefilter)
    assert {(s.id.split("attempt_0/")[1], s.rank) for s in run.sources} == {
        ("0/stdout.log", 8), ("0/stderr.log", 8), ("1/stderr.log", 9), ("1/stdout.log", 9),
        ("2/stderr.log", 10), ("2/stdout.log", 10), ("2/error.json", 10),
    }  # fmt: skip
    assert {event.rank for event in run.events} == {8, 9, 10}


def test_a_rank_with_empty_files_still_counts(tmp_path: Path, prefilter: Prefilter) -> None:
    for rank in range(4):
        (tmp_path / f"rank{rank}.log").write_text("" if rank == 2 else f"{OOM}\n")
    run = collect([str(tmp_path)], prefilter)
    assert run.ranks_seen == (0, 1, 2, 3)
    assert run.world_size == 4


def test_terminal_sequences_are_taken_out() -> None:
    assert plain("\x1b[31;1mred\x1b[0m \x1b]0;title\x07x\x1b]8;;u\x1b\\y\x1bM") == "red xy"
    assert plain("\x1b]never ended") == "never ended"


@pytest.mark.parametrize(
    "outer",
    [
        "2026-11-15T11:00:09Z ",
        "2026-11-15T11:00:09.123Z stderr F ",
        "[pod/train-worker-3/pytorch] ",
        "[2026-11-15 11:00:09] [ERROR] ",
        "node7: ",
        "(Worker pid=12) ",
    ],
)
def test_torchs_prefix_is_found_behind_other_prefixes(outer: str) -> None:
    assert Prefixes().peel(f"{outer}[rank3]: ValueError: x")[:3] == (3, "torch", "ValueError: x")


def test_a_rank_spoken_of_far_into_a_line_is_no_prefix() -> None:
    line = "x" * 200 + " [rank3]: ValueError"
    assert Prefixes().peel(line).rank is None


# -- hosts, pods and containers --------------------------------------------------------------------------------------


def ranks(found: LogRead, kind: str = "line") -> list[int | None]:
    return [event.rank for event in found.events if event.kind == kind]


def test_hydras_labels_are_recognised_when_every_line_has_one(read: ReadLog) -> None:
    found = read(f"[0] start\n[1] start\n[0] step\n[1] {OOM}\n")
    assert ranks(found) == [1]
    assert not Prefixes.of(["[0] only", "[0] one", "[0] process"]).outer
    assert not Prefixes.of(["[1] a", "[2] numbered", "[3] list"]).outer


def test_a_host_before_every_line_is_taken_off_and_kept(read: ReadLog) -> None:
    """pdsh, and DeepSpeed through it."""
    lines = ["worker-1: a", "worker-2: b", "worker-1: c", f"worker-2: [rank9]: {OOM}", f"worker-1: {OOM}"]
    found = read("\n".join(lines))
    assert [(e.rank, e.host, e.text) for e in found.events if e.kind == "line"] == [
        (9, "worker-2", OOM),
        (None, "worker-1", OOM),
    ]
    assert ("host", 9, "worker-2") in [(fact.name, fact.rank, fact.value) for fact in found.facts]


@pytest.mark.parametrize(
    "sample",
    [
        ["INFO: a", "WARNING: b", "INFO: c", "INFO: d"],
        ["step1: a", "step2: b", "step3: c", "step4: d"],
        ["epoch: 1", "loss: 2", "epoch: 3", "loss: 1"],
    ],
)
def test_other_words_before_a_colon_are_no_host(sample: list[str]) -> None:
    assert Prefixes.of(sample).outer == ""


POD_LOGS = {
    "kubectl logs --prefix": "[pod/train-worker-{pod}/pytorch] {text}",
    "kubectl logs --prefix --timestamps": "[pod/train-worker-{pod}/pytorch] 2026-11-15T11:00:09.123456789Z {text}",
    "stern": "train-worker-{pod} pytorch {text}",
    "docker compose": "worker-{pod}  | {text}",
}


@pytest.mark.parametrize("shape", POD_LOGS.values(), ids=POD_LOGS.keys())
def test_a_pods_number_is_its_rank_where_nobody_says_otherwise(read: ReadLog, shape: str) -> None:
    trace = ["Traceback (most recent call last):", '  File "/srv/train.py", line 3, in f', "    g()", "ValueError: bad"]
    texts = [(pod, text) for text in ("start", "go", *trace) for pod in (0, 1)]
    found = read("\n".join(shape.format(pod=pod, text=text) for pod, text in texts))
    assert [(e.rank, e.text, len(e.fields["frames"])) for e in found.events if e.kind == "traceback"] == [
        (0, "ValueError: bad", 1),
        (1, "ValueError: bad", 1),
    ]


@pytest.mark.parametrize("shape", POD_LOGS.values(), ids=POD_LOGS.keys())
def test_in_a_pod_with_many_ranks_torch_says_which(read: ReadLog, shape: str) -> None:
    texts = [
        (0, "start"),
        (1, "[default0]:[rank8]: x"),
        (0, "[default0]:[rank0]: x"),
        (1, f"[default3]:{OOM}"),
        (1, OOM),
    ]
    found = read("\n".join(shape.format(pod=pod, text=text) for pod, text in texts))
    assert ranks(found) == [11, None]


def test_local_ranks_of_numbered_pods_become_global_ones(read: ReadLog) -> None:
    texts = [(pod, f"[default{local}]:hello") for pod in (0, 1) for local in range(4)]
    lines = [f"[pod/train-node-0-{pod}-x7k2p/node] {text}" for pod, text in [*texts, (1, f"[default2]:{OOM}")]]
    assert ranks(read("\n".join(lines))) == [6]


def test_beside_a_master_the_first_worker_is_rank_one() -> None:
    assert pod_ranks(["job-master-0", "job-worker-0", "job-worker-1"]) == {
        "job-master-0": 0,
        "job-worker-0": 1,
        "job-worker-1": 2,
    }
    assert pod_ranks(["job-launcher-0", "job-worker-0"]) == {"job-worker-0": 0}
    assert pod_ranks(["train-3-x7k2p", "train-0-ab1cd"]) == {"train-3-x7k2p": 3, "train-0-ab1cd": 0}
    assert pod_ranks(["a-worker-0", "b-worker-0"]) == {}, "two jobs"
    files = [place_of(f"job-{name}.log") for name in ("master-0", "worker-0", "worker-1")]
    assert ranks_of_places(files) == [0, 1, 2]


def test_pod_files_beside_a_master_are_numbered_after_it(tmp_path: Path, prefilter: Prefilter) -> None:
    for name in ("master-0", "worker-0", "worker-1"):
        (tmp_path / f"job-{name}.log").write_text(f"{OOM}\n" if name == "worker-0" else "step 1 loss 2\n")
    run = collect([str(tmp_path)], prefilter)
    assert [event.rank for event in run.events if event.kind == "line"] == [1]
    assert run.world_size == 3


def test_slurms_numbers_are_ranks_when_the_files_count_from_zero(tmp_path: Path, prefilter: Prefilter) -> None:
    """`--output=slurm-%j_%t.out`; elements of a job array look the same, but seldom begin with 0 and have no gap."""
    for task in range(3):
        (tmp_path / f"slurm-4711_{task}.out").write_text(f"{OOM}\n" if task == 2 else "step 1 loss 2\n")
    assert [e.rank for e in collect([str(tmp_path)], prefilter).events if e.kind == "line"] == [2]
    (tmp_path / "slurm-4711_1.out").unlink()
    assert collect([str(tmp_path)], prefilter).ranks_seen == ()
    assert collect([str(tmp_path / "slurm-4711_2.out")], prefilter).ranks_seen == ()


def test_a_file_named_after_a_host_gives_its_events_the_host(tmp_path: Path, prefilter: Prefilter) -> None:
    (tmp_path / "slurm-4711_node07.out").write_text(f"{OOM}\n")
    (tmp_path / "gpu-12.log").write_text(f"{OOM}\n")
    assert {e.host for e in collect([str(tmp_path)], prefilter).events} == {"node07", "gpu-12"}


def test_dockers_json_lines_are_unwrapped(read: ReadLog) -> None:
    texts = [
        "start",
        "[rank3]: Traceback (most recent call last):",
        '[rank3]:   File "/a.py", line 1, in f',
        "[rank3]: ValueError: \u2717",
    ]
    wrapped = [
        json.dumps({"log": f"{t}\n", "stream": "stderr", "time": "2026-11-15T11:00:09.5Z"}, separators=(",", ":"))
        for t in texts
    ]
    (event,) = [e for e in read("\n".join(wrapped)).events if e.kind == "traceback"]
    assert (event.rank, event.text, len(event.fields["frames"])) == (3, "ValueError: \u2717", 1)
    oom = json.dumps(
        {"log": f"10%\r\x1b[31m{OOM}\x1b[0m\n", "stream": "stderr", "time": "2026-11-15T11:00:09.5Z"},
        separators=(",", ":"),
    )
    (event,) = [e for e in read(oom).events if e.kind == "line"]
    assert (event.text, event.time) == (OOM, "2026-11-15T11:00:09.500+00:00")


def test_json_that_is_cut_off_is_left_as_it_is(read: ReadLog) -> None:
    assert len(read(f'{{"log":"{OOM}').events) == 2


# -- Ray and NCCL name processes ---------------------------------------------------------------------------------------

RAY_TRACE = [
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 28, in loop',
    "    step()",
    "ValueError: bad",
]


def ray_console(*lines: str, started: str = "Started training worker group of size 2:") -> str:
    return "\n".join(
        [
            f"(TrainController pid=20) {started}",
            "(TrainController pid=20) - (ip=10.0.0.1, pid=324) world_rank=0, local_rank=0, node_rank=0",
            "(TrainController pid=20) - (ip=10.0.0.2, pid=324) world_rank=1, local_rank=0, node_rank=1",
            *lines,
        ]
    )


def test_rays_workers_are_the_ranks_that_its_controller_lists(read: ReadLog) -> None:
    lines = [f"\x1b[36m(RayTrainWorker pid=324, ip=10.0.0.2)\x1b[0m {line}" for line in RAY_TRACE]
    found = read(ray_console(*lines))
    (event,) = [e for e in found.events if e.kind == "traceback"]
    assert (event.rank, event.host, event.text, len(event.fields["frames"])) == (1, "10.0.0.2", "ValueError: bad", 1)
    said = {(fact.name, fact.rank, fact.value) for fact in found.facts}
    assert said >= {("host", 0, "10.0.0.1"), ("host", 1, "10.0.0.2"), ("pid", 0, 324), ("world_size", None, 2)}


def test_a_process_number_that_two_hosts_have_needs_its_address(read: ReadLog) -> None:
    assert ranks(read(ray_console(f"(RayTrainWorker pid=324) {OOM}"))) == [None]


def test_the_older_trainers_list_is_read_too(read: ReadLog) -> None:
    lines = [
        "(TorchTrainer pid=11) Started distributed worker processes: ",
        "(TorchTrainer pid=11) - (node_id=9a4f, ip=10.0.0.1, pid=31) world_rank=0, local_rank=0, node_rank=0",
        "(TorchTrainer pid=11) - (node_id=9a4f, ip=10.0.0.1, pid=32) world_rank=1, local_rank=1, node_rank=0",
        f"(RayTrainWorker pid=32) {OOM}",
    ]
    assert ranks(read("\n".join(lines))) == [1]


def test_a_worker_that_says_its_rank_is_known_without_the_list(read: ReadLog) -> None:
    lines = [
        "(RayTrainWorker pid=7) Setting up process group for: env:// [rank=0, world_size=2]",
        f"(RayTrainWorker pid=7) {OOM}",
    ]
    assert ranks(read("\n".join(lines))) == [0]


def test_two_ray_workers_tracebacks_are_told_apart(read: ReadLog) -> None:
    pairs = [f"(RayTrainWorker pid=324, ip=10.0.0.{host}) {line}" for line in RAY_TRACE for host in (1, 2)]
    assert ranks(read(ray_console(*pairs)), "traceback") == [0, 1]


def test_what_ray_held_back_as_repeated_is_no_event_of_its_own(read: ReadLog) -> None:
    late = [f"(TrainController pid=20) {line} [repeated 3x across cluster]" for line in RAY_TRACE]
    assert ranks(read(ray_console(*late)), "traceback") == []


def test_rays_error_snippet_names_all_ranks_that_failed_alike(read: ReadLog) -> None:
    snippet = [
        "ray.train.WorkerGroupError: Training failed due to worker errors:",
        "[Rank 0,1 Error Snippet]:",
        *RAY_TRACE,
    ]
    assert ranks(
        read(ray_console("Traceback (most recent call last):", '  File "x", line 1, in fit', *snippet)), "traceback"
    )[-2:] == [0, 1]


def test_a_line_under_one_ranks_snippet_is_that_ranks(read: ReadLog) -> None:
    lines = ["[Rank 1 Error Snippet]:", "A worker health check failed.", OOM, "[FailurePolicy] RAISE", OOM]
    found = read(ray_console(*(f"(TrainController pid=20) {line}" for line in lines)))
    assert [e.rank for e in found.events if e.text == OOM and e.kind == "line"] == [1, None]


def test_a_helper_actors_logged_exception_is_not_the_trainings(read: ReadLog) -> None:
    lines = [
        f"({actor}) {line}" for actor in ("PlacementGroupCleaner pid=9", "TrainController pid=20") for line in RAY_TRACE
    ]
    assert ranks(read(ray_console(*lines)), "traceback") == []


def test_nccl_lines_are_the_rank_that_their_process_joined_as(read: ReadLog) -> None:
    lines = [
        "node01:100:150 [0] NCCL INFO comm 0x55 rank 0 nranks 16 cudaDev 0 nvmlDev 0 busId 1b000 - Init COMPLETE",
        "node02:100:151 [3] NCCL INFO ncclCommInitRank comm 0x7f rank 11 nranks 16 cudaDev 3 - Init START",
        "node02:100:151 [3] NCCL INFO ncclCommInitRank comm 0x80 rank 1 nranks 2 cudaDev 3 - Init START",
        "node02:100:900 [3] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.1 with status=12 vendor err 129",
        "[2026-11-15 11:00:09] node01:100:900 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2 with status=12 vendor err 129",
    ]
    found = read("\n".join(lines))
    assert {(e.rank, e.host) for e in found.events if " NCCL WARN " in e.text and e.kind == "line"} == {
        (11, "node02"),
        (0, "node01"),
    }
    assert ("pid", 11, 100) in {(fact.name, fact.rank, fact.value) for fact in found.facts}


# -- what a program says within its line -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-15 08:47:31,877] [INFO] [logging.py:96:log_dist] [Rank 3] " + OOM,
        "[rank: 3] " + OOM,
        "[rank 3] " + OOM,
        "2026-11-15 08:47:31,877 [rank3] ERROR " + OOM,
        "ERROR: [process=3] " + OOM,
    ],
)
def test_a_programs_own_tag_names_the_rank_but_stays_in_the_text(read: ReadLog, line: str) -> None:
    (event,) = [e for e in read(line).events if e.kind == "line"]
    assert (event.rank, event.text) == (3, line)


OLD_WATCHDOG = "[E ProcessGroupNCCL.cpp:458] [Rank {r}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800123 milliseconds before timing out.\n"


def test_the_watchdogs_rank_is_the_jobs_where_each_is_named_once(read: ReadLog) -> None:
    found = read("".join(OLD_WATCHDOG.format(r=rank, seq=9) for rank in (0, 3, 3)))
    assert [e.rank for e in found.events if e.kind == "line"] == [0, 3, 3]


def test_the_rank_within_one_of_several_process_groups_is_another_number(read: ReadLog) -> None:
    twice = read("".join(OLD_WATCHDOG.format(r=3, seq=seq) for seq in (9, 11)))
    parallel = read("> initializing tensor model parallel with size 2\n" + OLD_WATCHDOG.format(r=3, seq=9))
    assert {e.rank for found in (twice, parallel) for e in found.events if e.kind == "line"} == {None}


def test_two_messages_on_one_line_are_two(read: ReadLog) -> None:
    found = read(f"[rank0]: {OOM}[rank1]: {OOM}\n")
    assert [(e.rank, e.text) for e in found.events if e.kind == "line"] == [(0, OOM), (1, OOM)]
    assert glued("[rank1]: no") == -1


def test_each_program_says_who_it_is_in_a_file_of_its_own(tmp_path: Path, prefilter: Prefilter) -> None:
    for name, rank in (("a", 1), ("b", 0)):
        text = f"INFO MultiWorkerMirroredStrategy with cluster_spec = {{'worker': ['h:1', 'h:2']}}, task_type = 'worker', task_id = {rank}, num_workers = 2\n"
        (tmp_path / f"{name}.log").write_text(text + (f"{OOM}\n" if rank else ""))
    run = collect([str(tmp_path)], prefilter)
    assert [event.rank for event in run.events if event.kind == "line"] == [1]
    assert run.world_size == 2
    assert collect([str(tmp_path / "a.log")], prefilter).events[0].rank is None, "one file alone may be everybody's"


def test_a_message_that_richs_handler_has_wrapped_is_one_line_again(read: ReadLog) -> None:
    """ColossalAI's logger: a column for the time, one for the level, the rest broken at the terminal's width."""
    lines = [
        "[11/15/26 05:55:33] INFO     colossalai - colossalai - INFO:                    ",
        "                             /opt/venv/lib/python3.11/site-packages/colossalai/i",
        "                             nitialize.py:60 launch                             ",
        "                    ERROR    colossalai - colossalai - ERROR: CUDA out of memory. ",
        "                             Tried to allocate 2.00 GiB                          ",
        "                    INFO     colossalai - colossalai - INFO: next               ",
    ]
    wanted = "ERROR    colossalai - colossalai - ERROR: CUDA out of memory. Tried to allocate 2.00 GiB"
    found = [event for event in read("\n".join(lines)).events if event.kind == "line"]
    assert found
    assert {event.text for event in found} == {wanted}


def test_megatrons_wide_counter_shows_progress() -> None:
    from paramedic.collect.activity import shows_progress

    assert shows_progress(
        " [2026-11-15 02:25:07] iteration        1/    1000 | consumed samples:           16 | loss scale: 1.0 |"
    )


def test_hosts_in_brackets_before_every_line_are_peeled() -> None:
    sample = ["NCCL version 2.19", *(f"[gn{n}] trainer: waiting" for n in (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1))]
    prefixes = Prefixes.of(sample)
    peeled = prefixes.peel("[gn2] [rank5]:[E x")
    assert (peeled.rank, peeled.stream, peeled.text) == (5, "gn2", "[E x")
    assert prefixes.hosts == {5: "gn2"}
    assert prefixes.whose(prefixes.peel("[gn-7] still in setup").who, None) is None


@pytest.mark.parametrize("label", ["rank{}", "r{}", "worker-{}", "GPU{}", "epoch {}", "proc{}", "dp{}", "same1"])
def test_other_labels_in_brackets_are_no_hosts(label: str) -> None:
    assert Prefixes.of([f"[{label.format(n % 3)}] loss 1.{n}" for n in range(12)]).outer == ""


def test_a_program_may_say_of_how_many_it_is_one() -> None:
    prefixes = Prefixes.of([])
    prefixes.peel("(WorkerDict pid=3702, ip=10.44.1.13) [rank 6/8] worker up")
    assert prefixes.hosts == {6: "10.44.1.13"}
    assert prefixes.rank_of_process("3702@10.44.1.13") == 6


@pytest.mark.parametrize(
    "told",
    [
        "JobID|State|ExitCode\n4711_0|COMPLETED|0:0\n4711_1|FAILED|1:0\n",
        "  JOBID PARTITION NAME USER ST TIME\n  4711_[2-9%2] gpu ft me PD 0:00\n",
        "JobId=4713 ArrayJobId=4711 ArrayTaskId=2 JobName=ft\n",
    ],
)
def test_tasks_of_a_job_array_are_no_ranks(tmp_path: Path, prefilter: Prefilter, told: str) -> None:
    for task in range(3):
        (tmp_path / f"ft-4711_{task}.out").write_text("world size: 3\nstep 1 loss 2\n")
    assert collect([str(tmp_path)], prefilter).ranks_seen == (0, 1, 2)
    (tmp_path / "accounting.txt").write_text(told)
    assert collect([str(tmp_path)], prefilter).ranks_seen == ()
    (tmp_path / "accounting.txt").write_text(told.replace("4711", "4800"))
    assert collect([str(tmp_path)], prefilter).ranks_seen == (0, 1, 2)


def test_a_task_that_names_its_array_is_no_rank(tmp_path: Path, prefilter: Prefilter) -> None:
    for task in range(3):
        (tmp_path / f"ft-4711_{task}.out").write_text(f"SLURM_ARRAY_TASK_ID={task}\nstep 1 loss 2\n")
    assert collect([str(tmp_path)], prefilter).ranks_seen == ()
