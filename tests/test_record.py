"""A recording on disk: what is written, that nothing of it is lost, and that training is the same with and without."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from paramedic.collect.recording import read_recording
from paramedic.model import Source
from paramedic.pipeline import diagnose
from paramedic.rank import prints
from paramedic.rank.calls import Call
from paramedic.rank.pretend import pretend
from paramedic.rank.recorder import Recorder
from paramedic.rank.score import Score
from paramedic.rank.state import State, random_states, set_random_states
from paramedic.rank.tape import Segments, Tape, packed, read_log, unpacked
from test_run import PARAMEDIC, Job, said, start, torchrun, until  # noqa: F401

PROGRAM = Path(__file__).parent / "recorded" / "train.py"
Start = Callable[..., Job]


def recording(folder: Path, *flags: str, ranks: int = 2) -> list[str]:
    return [*PARAMEDIC, "record", "-o", str(folder), *flags, "--", *torchrun(PROGRAM, ranks)]


# -- fingerprints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8])
@pytest.mark.parametrize("count", [1, 7, 5_000, 40_007])
def test_a_fingerprint_changes_with_every_bit_and_with_order(dtype: torch.dtype, count: int) -> None:
    tensor = (torch.randn(count, generator=torch.Generator().manual_seed(count)) * 50).to(dtype)
    before = prints.of([tensor])
    assert prints.of([tensor.clone()]) == before
    chance = random.Random(count)
    data = prints.bytes_of(tensor)
    for _ in range(40):
        place, bit = chance.randrange(data.numel()), 1 << chance.randrange(8)
        data[place] ^= bit
        assert prints.of([tensor]) != before
        data[place] ^= bit
    assert prints.of([tensor]) == before
    if count > 7:
        assert prints.of([tensor.flip(0)]) != before
        assert prints.of([tensor.roll(count // 2)]) != before
    if dtype.is_floating_point:
        assert prints.of([-tensor]) != before


def test_a_fingerprint_is_of_the_values_not_of_the_layout() -> None:
    tensor = torch.randn(300, 200)
    assert prints.of([tensor.t().contiguous().t()]) == prints.of([tensor])
    assert prints.of([torch.randn(3, 40_001)[:, 1:][0].clone()]) != prints.of([tensor])
    base = torch.arange(80_001, dtype=torch.uint8)
    assert prints.of([base[1:]]) == prints.of([base[1:].clone()])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.complex64])
def test_a_fingerprint_is_the_same_in_one_block_and_in_many(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    tensor = torch.randn(700_003, generator=torch.Generator().manual_seed(1)).mul(9).to(dtype)
    here = prints.look([tensor])
    monkeypatch.setattr(prints, "_BLOCK", 1 << 20)
    assert prints.look([tensor]) == here == (prints.of([tensor]), True)
    if dtype.is_floating_point or dtype.is_complex:
        for place in (0, 350_000, 700_002):
            spoilt = tensor.clone()
            spoilt[place] = float("nan")
            for block in (1 << 20, 128):
                monkeypatch.setattr(prints, "_BLOCK", block)
                assert prints.look([spoilt])[1] is False


def test_taking_a_fingerprint_leaves_storage_resizable() -> None:
    tensor = torch.randn(10_000)
    prints.of([tensor])
    tensor.untyped_storage().resize_(0)
    assert tensor.untyped_storage().size() == 0


@pytest.mark.parametrize(("value", "finite"), [(1.0, True), (float("nan"), False), (float("inf"), False)])
def test_values_that_are_not_finite_are_seen(value: float, finite: bool) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor = torch.full((70_000,), 60_000.0 if dtype is torch.float16 else 1e38).to(dtype)
        tensor[12_345] = value
        assert prints.is_finite(tensor) is finite


# -- the tape ------------------------------------------------------------------------------------------------------


def test_a_log_cut_at_any_byte_is_readable_up_to_there(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path / "t"), 1 << 20)
    for number in range(6):
        tape.line({"k": "s", "s": number})
    whole = (tmp_path / "t/log.tape").read_bytes()
    for cut in range(len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:cut])
        lines, damage = read_log(str(tmp_path / "cut"))
        assert [line["s"] for line in lines] == list(range(whole[:cut].count(b"\n")))
        assert damage == ""


def test_a_log_that_was_changed_is_believed_up_to_the_change(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path / "t"), 1 << 20)
    for number in range(6):
        tape.line({"k": "s", "s": number})
    log = tmp_path / "t/log.tape"
    log.write_bytes(log.read_bytes().replace(b'"s":3', b'"s":9'))
    lines, damage = read_log(str(log))
    assert ([line["s"] for line in lines], damage) == ([0, 1, 2], "line 4 was changed after it was written")


def test_payloads_are_kept_once_dropped_by_step_and_bounded(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path / "t"), 5_000)
    key, other = prints.of_bytes(b"a"), prints.of_bytes(b"b")
    assert tape.put("step-00000001", key, [b"a" * 1000])
    assert tape.put("step-00000001", key, [b"a" * 1000])
    assert tape.stored < 1_100
    assert tape.put("step-00000002", other, [b"b" * 500, b"c" * 500])
    assert Segments(str(tmp_path / "t")).read(other) == b"b" * 500 + b"c" * 500
    tape.drop(["step-00000001"])
    assert key not in Segments(str(tmp_path / "t"))
    assert not tape.put("step-00000003", key, [b"a" * 5_000])
    assert tape.is_full


def test_where_the_disk_is_full_the_oldest_steps_make_room(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path / "t"), 3_000)
    for step in (1, 2, 3):
        tape.put(f"step-{step:08d}", prints.of_bytes(bytes([step])), [b"x" * 900])
    newest = prints.of_bytes(b"newest")
    assert not tape.put("step-00000004", newest, [b"y" * 900])
    assert tape.make_room(3)
    assert tape.put("step-00000004", newest, [b"y" * 900])
    assert sorted(file.name for file in (tmp_path / "t/segments").iterdir()) == [
        "step-00000003.seg",
        "step-00000004.seg",
    ]
    assert not tape.make_room(3)


def test_a_payload_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    tape = Tape(str(tmp_path / "t"), 1 << 20)
    keys = [prints.of_bytes(bytes([number])) for number in range(3)]
    for key in keys:
        tape.put("setup", key, [b"x" * 100])
    file = tmp_path / "t/segments/setup.seg"
    file.write_bytes(file.read_bytes()[:-1])
    found = Segments(str(tmp_path / "t"))
    assert [key in found for key in keys] == [True, True, False]


def test_a_dropped_step_is_written_over_and_nothing_of_it_is_read(tmp_path: Path) -> None:
    """Old headers and the new ones' places agree, as in a job whose steps are all alike; killed at any write."""
    place = tmp_path / "t"
    tape = Tape(str(place), 1 << 20)
    old = [prints.of_bytes(bytes([number])) for number in range(4)]
    new = [prints.of_bytes(bytes([number])) for number in range(10, 14)]
    for key in old:
        tape.put("step-00000001", key, [b"o" * 300])
    tape.drop(["step-00000001"], reuse=True)
    assert not Segments(str(place))._at
    for count, key in enumerate(new[:3], 1):
        tape.put("step-00000002", key, [b"n" * 300])
        found = Segments(str(place))
        assert list(found._at) == new[:count]
        assert found.read(key) == b"n" * 300
    assert not list((place / "segments").glob("*.spare"))
    tape.close("step-00000002")
    assert (place / "segments/step-00000002.seg").stat().st_size == 3 * 328
    tape.drop(["step-00000002"], reuse=True)
    tape.end()
    assert not list((place / "segments").iterdir())


def test_a_payload_counts_only_once_all_of_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "t"
    tape = Tape(str(place), 1 << 20)
    keys = [prints.of_bytes(bytes([number])) for number in range(3)]
    tape.put("step-00000001", keys[0], [b"o" * 900])
    tape.drop(["step-00000001"], reuse=True)
    tape.put("step-00000002", keys[1], [b"n" * 100])

    def killed(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "pwrite", killed)
    with pytest.raises(KeyboardInterrupt):
        tape.put("step-00000002", keys[2], [b"n" * 100])
    assert list(Segments(str(place))._at) == [keys[1]]


def test_large_optimizer_states_are_looked_at_where_a_state_is_kept_and_every_tenth_step(tmp_path: Path) -> None:
    recorder = Recorder(str(tmp_path), {"payload": "ring", "last": 4})
    recorder.tape = Tape(str(tmp_path / "t"), 1 << 30)
    model = torch.nn.Linear(1024, 1024)
    recorder.state.module(model)
    optimizer = torch.optim.AdamW(model.parameters())
    recorder.state.optimizer(optimizer)
    for _ in range(12):
        model(torch.ones(1, 1024)).sum().backward()
        optimizer.step()
        recorder.gradients(optimizer)
        recorder.program.step()
    lines, _ = read_log(str(tmp_path / "t/log.tape"))
    steps = {kind: [line["s"] for line in lines if line["k"] == kind] for kind in ("gr", "pa", "op", "off")}
    assert steps == {"gr": list(range(12)), "pa": list(range(1, 13)), "op": [4, 8, 10, 12], "off": []}


def test_random_states_survive_a_round_trip() -> None:
    states = {name: bytes(data) for name, data in random_states().items()}
    first = torch.rand(3), random.random()
    set_random_states(unpacked(b"".join(packed(states))))
    second = torch.rand(3), random.random()
    assert torch.equal(first[0], second[0])
    assert first[1] == second[1]


def test_the_state_knows_parameters_buffers_and_the_optimizer() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    state = State()
    for module in model.modules():
        state.module(module)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.randn(4, 2)).sum().backward()
    optimizer.step()
    state.optimizer(optimizer)
    names = [name for name, _ in state.tensors()]
    assert {"model 0 0.weight", "buffer 0 1.running_mean", "optimizer 0 0 exp_avg", "optimizer 0 0 step"} <= set(names)
    values = state.values()
    optimizer.param_groups[0]["lr"] = 7.0
    state.restore_values(values)
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.param_groups[0]["betas"] == (0.9, 0.999)


def test_among_copies_of_itself_a_sum_is_a_multiple_and_a_gather_repeats() -> None:
    class Options:
        reduceOp = "SUM"

    tensor = torch.ones(4)
    pretend(Call("allreduce", ([tensor], Options()), 0), 3)
    assert tensor.tolist() == [3.0] * 4
    whole = torch.empty(6)
    pretend(Call("all_gather_single", (whole, torch.tensor([1.0, 2.0])), 0), 3)
    assert whole.tolist() == [1.0, 2.0] * 3


def test_a_root_alone_has_an_input_to_a_broadcast() -> None:
    class Options:
        rootRank = 1

    assert Call("broadcast", ([torch.ones(1)], Options()), 0).inputs == []
    assert len(Call("broadcast", ([torch.ones(1)], Options()), 1).inputs) == 1


# -- hostile recordings --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "{", "[]", '{"k": 1}', '{"k": "head", "rank": -1}', '{"k": "head", "rank": "0"}'])
def test_a_log_that_is_none_is_skipped(text: str) -> None:
    read = read_recording(text.encode(), Source("x/log.tape", "recording"))
    assert not read.events
    assert "not the log of a rank" in read.skipped[0].why


def test_strange_values_in_a_log_do_no_harm() -> None:
    lines = [
        {"k": "head", "rank": 0, "world_size": 2, "host": 7},
        {"k": "c", "i": "x", "g": {}, "op": 3},
        {"k": "d", "i": [], "h": 1},
        {"k": "d", "i": 5},
        {"k": "g", "ranks": "all", "g": None},
        {"k": "pa", "rep": [1]},
        {"k": "r", "of": {"torch": 4}},
        {"k": "off", "why": 3},
        {"k": "s", "s": 1 << 70},
    ]
    data = "\n".join(map(json.dumps, lines)).encode()
    read = read_recording(data, Source("x/log.tape", "recording"))
    assert read.events[0].kind == "recording"


# -- real jobs -----------------------------------------------------------------------------------------------------


def test_training_is_the_same_with_and_without_and_the_recording_is_a_run(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more = {"KIND": "ddp", "STEPS": 5}
    bare = start(torchrun(PROGRAM), **more).ended()
    code, out, err = start(recording(tmp_path / "rec", "--last", "2", "--redact-data"), **more).ended()
    assert (code, said(out)) == (0, said(bare[1]))
    assert "recorded 2 ranks, 5 steps" in err
    assert "not whole" not in err
    score = Score(str(tmp_path / "rec/recording/rank-00001"))
    assert score.start() == 2
    assert not any(line.get("p") for (kind, _), lines in score.marks.items() if kind == "b" for line in lines)
    steps = sorted(
        int(file.stem.split("-")[1]) for file in (tmp_path / "rec/recording/rank-00001/segments").glob("step-*")
    )
    assert steps[0] == 2
    report = diagnose([str(tmp_path / "rec")])
    assert [one.rule for one in report.findings] == []
    assert report.run.world_size == 2
    assert (tmp_path / "rec/run.json").exists()
    assert not any(data[:2] == b"\x80\x04" for data in _files(tmp_path / "rec/recording"))


def _files(folder: Path) -> list[bytes]:
    return [file.read_bytes()[:16] for file in folder.rglob("*") if file.is_file()]


@pytest.mark.slow
def test_a_recording_that_fails_lets_the_program_go_on(tmp_path: Path, start: Start) -> None:  # noqa: F811
    """The disk is full after the first bytes; and a folder that cannot be written to."""
    more = {"KIND": "ddp", "STEPS": 4}
    bare = start(torchrun(PROGRAM), **more).ended()
    code, out, err = start(recording(tmp_path / "rec", "--max-disk", "0.00001"), **more).ended()
    assert (code, said(out)) == (0, said(bare[1]))
    assert "payloads ended at --max-disk" in err


@pytest.mark.slow
def test_a_killed_rank_leaves_a_recording_that_can_be_replayed(tmp_path: Path, start: Start) -> None:  # noqa: F811
    """kill -9 in the middle of a step, while the others wait for it."""
    gate = tmp_path / "stalled"
    more = {"KIND": "ddp", "STEPS": 9, "STALL": 6, "STALLED": gate}
    job = start(recording(tmp_path / "rec", "--last", "2", ranks=4), **more)
    until(gate.exists)
    pids = [json.loads(file.read_text())["pid"] for file in (tmp_path / "rec/ranks").glob("rank-*.watch.json")]
    assert len(pids) == 4
    for pid in pids:
        os.kill(pid, 9)
    assert job.ended()[0] != 0
    command = [*PARAMEDIC, "replay", str(tmp_path / "rec"), "--all", "--format", "json", "--", *_program()]
    code, out, err = start(command, KIND="ddp", STEPS=9).ended()
    assert code == 0, err
    found = json.loads(out)
    assert [one["bitwise"] for one in found["ranks"]] == [True] * 4
    assert all(one["last_step"] == 7 for one in found["ranks"])


def _program() -> list[str]:
    import sys

    return [sys.executable, str(PROGRAM)]


@pytest.mark.slow
def test_what_the_program_sets_after_its_group_stands_in_the_head(start: Start, tmp_path: Path) -> None:  # noqa: F811
    (tmp_path / "late.py").write_text(
        """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
torch.use_deterministic_algorithms(True)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model(torch.ones(2, 4)).sum().backward()
optimizer.step()
dist.destroy_process_group()
"""
    )
    command = [*PARAMEDIC, "record", "-o", str(tmp_path / "rec"), "--", *torchrun(tmp_path / "late.py", 1)]
    code, _, err = start(command).ended()
    assert code == 0, err
    head = json.loads(next((tmp_path / "rec").rglob("head.json")).read_text())
    assert head["environment"]["deterministic"] is True
