"""Dumps of the flight recorder are read, whatever version wrote them, and nothing in them is ever run."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paramedic import run_folder
from paramedic.collect.columns import columns
from paramedic.collect.plain_pickle import NotPlain, load
from paramedic.detect.calls import groups
from recordings import job, judged, run_of, written


def _trace(folder: Path, name: str, dump: Any, protocol: int = 2) -> Path:
    file = folder / name
    file.write_bytes(pickle.dumps(dump, protocol))
    return file


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path: Path, protocol: int) -> None:
    folder = written(job(3), tmp_path / "traces")
    mark = tmp_path / "run"
    _trace(folder, "nccl_trace_rank_1", {"version": "2.10", "pg_config": _Evil(mark), "entries": []}, protocol)
    run = run_of(folder)
    assert not mark.exists()
    assert [
        one for one in run.skipped if "nccl_trace_rank_1" in one.what and "refused" in one.why and "rank 1" in one.why
    ]


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n(S'true'\ntR.",
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02P1\n.",
        b"\x80\x04\x82\x01.",
        b"\x80\x02Nr\xff\xff\xff\x7f.",
        b"\x80\x05\x96\xff\xff\xff\xff\xff\xff\xff\x7f.",
        b"\x80\x02}",
        b"\x80\x02h\x05.",
        b"\x80\x02" + b"(" * 100 + b".",
    ],
)
def test_what_is_not_plain_is_refused(data: bytes) -> None:
    with pytest.raises(NotPlain):
        load(data)


def test_lists_that_share_themselves_are_not_gone_through(tmp_path: Path) -> None:
    bomb: Any = 1
    for _ in range(80):
        bomb = (bomb, bomb)
    for key, value in [("input_sizes", [[bomb]]), ("input_sizes", bomb), ("input_dtypes", bomb), ("profiling_name", bomb),
                       ("process_group", bomb), ("collective_seq_id", bomb), ("state", bomb), ("frames", [bomb])]:  # fmt: skip
        dump = job(1)[0].call("all_reduce").dump()
        dump["entries"][0][key] = value
        _trace(tmp_path, "nccl_trace_rank_0", dump)
        run_of(tmp_path)
    huge = [1] * 200_000
    dump = {"entries": [{**job(1)[0].call("all_reduce").entries[0], "input_sizes": [huge]} for _ in range(2000)]}
    assert run_of(_trace(tmp_path, "nccl_trace_rank_0", dump)).skipped


@pytest.mark.parametrize("keep", [1, 2, 10, 100, 400, -1])
def test_a_dump_that_is_cut_off_is_named_with_its_rank_and_not_used(tmp_path: Path, keep: int) -> None:
    ranks = job(2)
    for one in ranks:
        one.call("all_reduce").call("all_reduce")
    folder = written(ranks, tmp_path / "t")
    file = folder / "nccl_trace_rank_1"
    file.write_bytes(file.read_bytes()[:keep])
    run = run_of(folder)
    assert {event.rank for event in run.events if event.kind == "trace"} == {0}
    assert any("nccl_trace_rank_1" in one.what for one in run.skipped)


@pytest.mark.parametrize(
    ("name", "rank"),
    [("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12", 12), ("job_dump_7", 7), ("rank_2", 2), ("fr_5", 5),
     ("trace-4.pkl", 4), ("nccl_trace_rank_6.pickle", 6), ("fr_r9", 9), ("dump12", 12)],
)  # fmt: skip
def test_the_rank_comes_from_the_name(tmp_path: Path, name: str, rank: int) -> None:
    _trace(tmp_path, name, job(1)[0].call("all_reduce").dump())
    assert {event.rank for event in run_of(tmp_path).events if event.kind == "trace"} == {rank}


def test_files_beside_dumps_are_left_alone(tmp_path: Path) -> None:
    _trace(tmp_path, "rank_0", job(1)[0].call("all_reduce").dump())
    _trace(tmp_path, "vocabulary.pkl", {"a": 1})
    (tmp_path / "config.json").write_text('{"entries": 3}')
    run = run_of(tmp_path)
    assert [source.kind for source in run.sources] == ["trace"]
    assert "1 × .json, 1 × .pkl" in run.skipped[-1].why


def test_json_and_old_versions_and_archives(tmp_path: Path) -> None:
    dump = job(2)[0].call("all_reduce").call("broadcast", done=False).dump()
    (tmp_path / "rank_0.json").write_text(json.dumps(dump))
    old = [
        {k: v for k, v in entry.items() if k not in ("process_group", "collective_seq_id", "p2p_seq_id", "is_p2p")}
        | {"seq_id": entry["collective_seq_id"], "pg_name": "0"}
        for entry in dump["entries"]
    ]
    _trace(tmp_path, "rank_1", {"version": "2.0", "nccl_version": "2.18", "entries": old})
    names = [*(tmp_path.iterdir())]
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed, tarfile.open(tmp_path / "all.tar.gz", "w:gz") as tar:
        for file in names:
            packed.write(file, file.name)
            tar.add(file, file.name)
        tar.addfile(tarfile.TarInfo("weights.pkl"))
    (tmp_path / "rank_1.gz").write_bytes(gzip.compress((tmp_path / "rank_1").read_bytes()))
    for path in (tmp_path / "rank_0.json", tmp_path / "rank_1", tmp_path / "rank_1.gz"):
        (group,) = [one for one in groups(run_of(path)) if one.name == "0"]
        (part,) = group.parts.values()
        assert [call.op for seq in (1, 2) if (call := part.call(seq))] == ["all_reduce", "broadcast"]
        assert part.open == (2,)
    for archive in ("all.zip", "all.tar.gz"):
        assert {e.rank for e in run_of(tmp_path / archive).events if e.kind == "trace"} == {0, 1}


def test_coalesced_calls_stand_together_and_sends_do_not_count() -> None:
    rank = job(2)[0].call("all_reduce").call("send 0->1").call("coalesced").call("all_gather").call("all_gather")
    for entry, seq in zip(rank.entries, (1, 1, 1, 2, 2), strict=True):
        entry["collective_seq_id"] = seq
    (group,) = columns(rank.entries).groups()
    assert (group.seqs, group.calls, group.table) == ("1+2", "0 1", ((0,), (3, 4)))


def test_a_recorded_run_keeps_the_trace(tmp_path: Path) -> None:
    ranks = job(3)
    for one in ranks:
        for number in range(700):
            one.call("all_reduce", (number % 50 + 1,))
        if one.rank != 1:
            one.call("all_reduce", done=False)
    run = run_of(written(ranks, tmp_path / "t"))
    run_folder.write(run, tmp_path / "run")
    assert judged(tmp_path / "run").verdict.ranks == (1,)  # type: ignore[union-attr]
    assert run_of(tmp_path / "run").events == run.events


def test_secrets_in_a_dump_are_taken_out(tmp_path: Path) -> None:
    rank = job(1)[0].call("all_reduce")
    secret = "ghp_" + "a1B2" * 9
    rank.entries[0]["process_group"] = (secret, f"token={secret}")
    rank.entries[0]["frames"][1]["filename"] = f"/job/{secret}/train.py"
    assert secret not in repr(run_of(written([rank], tmp_path)).events)


# -- a real one ----------------------------------------------------------------------------------------------------

REAL = Path(__file__).parent / "flight" / "nccl_trace_rank_0"
"""Written by the watchdog of torch 2.11 with NCCL 2.28 on an H200, made by bench/watching/watchdog.py."""


def test_a_real_dump_of_the_nccl_watchdog_is_read() -> None:
    by_group = {event.fields["group"]: event for event in run_of(REAL).events if event.kind == "trace"}
    assert set(by_group) == {"0", "1"}
    assert "number 6, broadcast of 1024 Float at /home/user/bench/watching/watchdog.py:21 in step" in by_group["0"].text
    assert by_group["0"].text.endswith("not finished")
    assert by_group["1"].text.endswith(", finished")


@pytest.mark.parametrize("culprit", [0, 2, 3])
@pytest.mark.parametrize("left_out", [None, 1])
def test_four_ranks_of_the_real_shape_name_the_one_that_never_came(
    culprit: int, left_out: int | None, tmp_path: Path
) -> None:
    for rank in {0, 1, 2, 3} - {left_out}:
        dump: Any = load(REAL.read_bytes())
        for group in dump["pg_config"].values():
            group["ranks"] = "[0, 1, 2, 3]"
        if rank == culprit:
            dump["entries"] = dump["entries"][:-1]
            dump["pg_status"]["0"]["last_enqueued_collective"] = 5
        _trace(tmp_path, f"nccl_trace_rank_{rank}", dump)
    verdict = judged(tmp_path).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("COL031", (culprit,))


def test_numbers_in_a_strangers_recording_may_be_anything(tmp_path: Path) -> None:
    run = run_of(written(job(3), tmp_path / "traces"))
    for field in ("seqs", "calls", "members", "open", "peers_open", "peers_done", "table"):
        for odd in (
            "9" * 5000,
            "x",
            "²",
            "-1",
            "1+" + "9" * 30,
            "3@" + "9" * 5000,
            "a|" + "x".join(["9" * 15] * 999) + "|",
        ):
            events = [replace(e, fields={**e.fields, field: odd}) if e.kind == "trace" else e for e in run.events]
            for group in groups(replace(run, events=tuple(events))):
                assert group.parts
