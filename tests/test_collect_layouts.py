"""Whose line is it: paths, prefixes in layers, and what an outer prefix really counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import ReadLog
from paramedic.collect import collect
from paramedic.collect.layouts import Place, Prefixes, place_of, plain
from paramedic.prefilter import Prefilter

OOM = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB"
PREFIXES = Prefixes()


@pytest.mark.parametrize(
    ("path", "rank", "attempt"),
    [
        ("logs/none_abc/attempt_0/3/stderr.log", 3, 0),
        ("logs/none_abc/attempt_2/11/stdout.log", 11, 2),
        ("attempt_1/0/error.json", 0, 1),
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
    assert place_of(path) == Place()


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
    assert Prefixes().peel(f"{outer}[rank3]: ValueError: x") == (3, "torch", "ValueError: x")


def test_a_rank_spoken_of_far_into_a_line_is_no_prefix() -> None:
    line = "x" * 200 + " [rank3]: ValueError"
    assert Prefixes().peel(line).rank is None
