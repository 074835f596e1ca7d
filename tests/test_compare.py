"""Rank against rank in one recording, a checkpoint against what ranks had, and recordings that want to do harm."""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as save_distributed

from paramedic.commands import main
from paramedic.rank import prints
from paramedic.rank.score import Score
from paramedic.rank.tape import Tape
from paramedic.replay import checkpoint, reading
from paramedic.replay.replicas import agreement
from paramedic.replay.reproduces import reproduces
from test_record import recording
from test_replay import SCHEMA, again, head, replayed, steps, written
from test_run import Job, start  # noqa: F401

Start = Callable[..., Job]


def told(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, Any]]:
    code = main([*arguments, "--format", "json"])
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    return code, found


# -- a recording of real tensors -----------------------------------------------------------------------------------


def model(seed: int = 0) -> torch.nn.Module:
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))


def kept(
    folder: Path,
    ranks: dict[int, dict[int, dict[str, torch.Tensor]]],
    gradients: dict[int, dict[int, dict[str, torch.Tensor]]] | None = None,
    **names: Any,
) -> Path:
    """rank → step → name → tensor."""
    said = {"groups": {}, "shards": {}, "places": {}, "transient": []} | names
    for rank, states in ranks.items():
        tape = Tape(str(folder / f"recording/rank-{rank:05d}"), 1 << 24)
        tape.head(head(rank, len(ranks)))
        mine = {
            key: value[rank] if isinstance(value, list) and key == "shards" else value for key, value in said.items()
        }
        tape.line({"k": "names", "s": 0, **mine})
        for step, tensors in states.items():
            _tell(tape, "gr", step - 1, (gradients or {}).get(rank, {}).get(step, {}))
            _tell(tape, "pa", step, tensors)
            tape.line({"k": "s", "s": step, "i": 0})
    return folder


def _tell(tape: Tape, kind: str, step: int, tensors: dict[str, torch.Tensor]) -> None:
    data = json.dumps({name: prints.of([one]) for name, one in tensors.items()}).encode()
    tape.put("setup", prints.of_bytes(data), [data])
    tape.line({"k": kind, "s": step, "h": prints.of_bytes(data), "p": 1})


def state(value: float, step: int = 0) -> dict[str, torch.Tensor]:
    return {
        "model 0 module.0.weight": torch.full((4, 3), value + step),
        "model 0 module.0.bias": torch.full((4,), 2.0 + step),
        "optimizer 0 0 exp_avg": torch.full((4, 3), 3.0 + step),
    }


GROUPS = {
    "0": {
        "model 0 module.0.weight": "model 0 module.0.weight",
        "model 0 module.0.bias": "model 0 module.0.bias",
        "gradient of module.0.weight": "module.0.weight",
        "exp_avg of module.0.weight": "optimizer 0 0 exp_avg",
    }
}


# -- rank against rank ---------------------------------------------------------------------------------------------


def test_replicas_that_agree_are_said_to_agree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "a", {rank: {step: state(1.0, step) for step in (1, 2)} for rank in range(3)}, groups=GROUPS)
    assert main(["compare", str(tmp_path / "a")]) == 0
    assert "The ranks agree: 6 results of collectives, gradients and states that 3 ranks" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "kind"), [("model 0 module.0.bias", "parameters"), ("optimizer 0 0 exp_avg", "optimizer")]
)
def test_the_rank_that_parts_from_the_majority_is_named_with_step_and_tensor(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {rank: {step: state(1.0, step) for step in (1, 2, 3)} for rank in range(4)}
    for step in (2, 3):
        ranks[2][step][name] = ranks[2][step][name] + 1
    kept(tmp_path / "a", ranks, groups=GROUPS)
    code, found = told(["compare", str(tmp_path / "a")], capsys)
    first = found["first"]
    assert (code, first["kind"], first["step"], first["odd"], found["steps"]) == (1, kind, 2, [2], 1)
    assert len(first["names"]) == 1
    assert main(["compare", str(tmp_path / "a")]) == 1
    assert "Rank 2 parts first from ranks 0, 1, 3, group 0: " in capsys.readouterr().out


def test_gradients_of_replicas_are_seen_before_the_state_that_they_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {rank: {1: state(float(rank == 1))} for rank in range(3)}
    gradients = {rank: {1: {"module.0.weight": torch.full((4, 3), float(rank == 1))}} for rank in range(3)}
    kept(tmp_path / "a", ranks, gradients, groups=GROUPS)
    code, found = told(["compare", str(tmp_path / "a")], capsys)
    assert (code, found["first"]["kind"], found["first"]["odd"]) == (1, "gradients", [1])


def test_two_replicas_have_no_majority(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept(tmp_path / "a", {rank: {1: state(float(rank))} for rank in range(2)}, groups=GROUPS)
    assert main(["compare", str(tmp_path / "a")]) == 1
    out = capsys.readouterr().out
    assert "Ranks 0, 1 part first" in out
    assert "there is no majority" in out


def test_parts_of_a_sharded_optimizer_are_not_compared(tmp_path: Path) -> None:
    """Each rank has the state of other parameters, under the same place."""
    ranks = {rank: {1: state(1.0) | {"optimizer 0 0 exp_avg": torch.full((2,), float(rank))}} for rank in range(2)}
    folder = kept(tmp_path / "a", ranks)
    for rank, name in ((0, "module.0.weight"), (1, "module.0.bias")):
        tape = folder / f"recording/rank-{rank:05d}/log.tape"
        lines = [json.loads(line) for line in tape.read_text().splitlines()]
        lines[0]["groups"] = {"0": {f"exp_avg of {name}": "optimizer 0 0 exp_avg"}}
        rewritten = Tape(str(folder / f"recording/rank-{rank:05d}"), 1 << 20)
        for line in lines:
            line.pop("c")
            rewritten.line(line)
    assert agreement(reading.read(str(folder))).first is None


def test_a_result_that_one_rank_got_otherwise_is_found_without_another_recording(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {rank: steps("abcd") for rank in range(3)}
    ranks[1][13]["h"] = "damaged on the way"
    written(tmp_path / "a", ranks, 3)
    code, found = told(["compare", str(tmp_path / "a")], capsys)
    first = found["first"]
    assert (code, first["kind"], first["op"], first["step"], first["odd"]) == (1, "result", "allreduce", 3, [1])


def test_where_no_two_ranks_share_anything_there_is_nothing_to_compare(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", {0: steps("ab")}, 1)
    assert main(["compare", str(tmp_path / "a")]) == 3
    assert "Nothing to compare" in capsys.readouterr().out


# -- checkpoints ---------------------------------------------------------------------------------------------------


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    one = model()
    optimizer = torch.optim.AdamW(one.parameters())
    one(torch.randn(8, 3)).sum().backward()
    optimizer.step()
    return one, optimizer


def held(one: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    found = {f"model 0 module.{name}": p.detach() for name, p in one.named_parameters()}
    found |= {f"buffer 0 module.{name}": b for name, b in one.named_buffers()}
    for place, parameter in enumerate(one.parameters()):
        found[f"optimizer 0 of {place}"] = parameter.detach()
        found |= {f"optimizer 0 {place} {kind}": value for kind, value in optimizer.state[parameter].items()}
    return found


PLACES = {f"0 {place}": f"module.{name}" for place, (name, _) in enumerate(model().named_parameters())}


def saved_by_dcp(place: Path, one: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        weights, moments = get_state_dict(one, optimizer)
        save_distributed({"model": weights, "optim": moments}, checkpoint_id=str(place))


def saved_by_torch(place: Path, one: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.save({"state_dict": one.state_dict(), "optimizer": optimizer.state_dict(), "epoch": 3}, place)


def saved_as_safetensors(place: Path, one: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """As the format is described; with the moments under the names of their parameters."""
    tensors = dict(one.state_dict())
    for name, parameter in one.named_parameters():
        tensors |= {f"optim.{name}.{kind}": value for kind, value in optimizer.state[parameter].items()}
    header, data, kinds = {}, b"", {torch.float32: "F32", torch.int64: "I64"}
    for name, tensor in tensors.items():
        raw = bytes(prints.view(prints.bytes_of(tensor)))
        header[name] = {
            "dtype": kinds[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    place.write_bytes(struct.pack("<Q", len(text)) + text + data)


WAYS = [(saved_by_dcp, "c"), (saved_by_torch, "c.pt"), (saved_as_safetensors, "c.safetensors")]


@pytest.mark.parametrize(("save", "name"), WAYS)
def test_a_checkpoint_of_each_kind_is_found_to_be_the_state_of_its_step(
    save: Callable[..., None], name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, optimizer = trained()
    now = held(one, optimizer)
    before = {key: value + 1 for key, value in now.items()}
    save(tmp_path / name, one, optimizer)
    kept(tmp_path / "a", {rank: {3: before, 4: now, 5: before} for rank in range(2)}, places=PLACES)
    code, found = told(["compare", str(tmp_path / "a"), str(tmp_path / name)], capsys)
    assert (code, found["reproduced"], found["step"]) == (0, True, 4), found
    assert [one["same"] for one in found["ranks"]] == [4 + 3 + 4 * 3] * 2
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / name)]) == 0
    assert "is the state after step 4 of 2 ranks: 38 tensors, bit for bit." in capsys.readouterr().out


def test_a_buffer_that_differs_by_rank_comes_back_as_somebody_else_s(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, optimizer = trained()
    mine = held(one, optimizer)
    saved_by_dcp(tmp_path / "c", one, optimizer)
    other = mine | {"buffer 0 module.1.running_mean": mine["buffer 0 module.1.running_mean"] + 1}
    kept(tmp_path / "a", {0: {4: mine}, 1: {4: other}}, places=PLACES)
    code, found = told(["compare", str(tmp_path / "a"), str(tmp_path / "c")], capsys)
    assert (code, found["reproduced"]) == (1, False)
    assert found["ranks"][0]["differ"] == []
    assert found["ranks"][1]["differ"] == [{"name": "buffer 0 module.1.running_mean", "holds_ranks": [0]}]
    main(["compare", str(tmp_path / "a"), str(tmp_path / "c")])
    assert "differs: buffer 1.running_mean: the checkpoint holds rank 0's" in capsys.readouterr().out


def test_a_rank_s_part_is_cut_out_of_the_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, optimizer = trained()
    whole = held(one, optimizer)
    names = ["model 0 module.0.weight", "optimizer 0 0 exp_avg", "optimizer 0 0 step"]
    saved_by_torch(tmp_path / "c.pt", one, optimizer)
    parts = {
        rank: {
            4: {name: (whole[name][2 * rank : 2 * rank + 2] if whole[name].dim() else whole[name]) for name in names}
        }
        for rank in range(2)
    }
    shards = [{"module.0.weight": [[2 * rank, 0], [2, 3]]} for rank in range(2)]
    kept(tmp_path / "a", parts, places=PLACES, shards=shards)
    assert told(["compare", str(tmp_path / "a"), str(tmp_path / "c.pt")], capsys)[0] == 0
    parts[1][4][names[0]] = parts[1][4][names[0]] + 1
    kept(tmp_path / "b", parts, places=PLACES, shards=shards)
    code, found = told(["compare", str(tmp_path / "b"), str(tmp_path / "c.pt")], capsys)
    assert (code, [one["same"] for one in found["ranks"]]) == (1, [3, 2])


def test_a_part_is_put_together_from_others() -> None:
    whole = torch.arange(60.0).reshape(10, 6)

    def piece(row: int, rows: int, column: int) -> checkpoint.Piece:
        return checkpoint.Piece((row, column), (rows, 3), lambda: whole[row : row + rows, column : column + 3])

    pieces = [piece(row, rows, column) for row, rows in ((0, 4), (4, 6)) for column in (0, 3)]
    assert torch.equal(checkpoint.region(pieces, [3, 2], [4, 4]), whole[3:7, 2:6])
    assert checkpoint.region(pieces[:2], [3, 2], [4, 4]) is None


def test_buffers_that_are_never_saved_are_not_missed(tmp_path: Path) -> None:
    one, optimizer = trained()
    saved_by_torch(tmp_path / "c.pt", one, optimizer)
    tensors = held(one, optimizer) | {"buffer 0 module.angles": torch.ones(3)}
    read = checkpoint.read(str(tmp_path / "c.pt"))
    kept(tmp_path / "a", {0: {4: tensors}}, places=PLACES)
    found = reproduces(reading.read(str(tmp_path / "a")), read)
    assert found.ranks[0].absent == ("buffer 0 module.angles",)
    kept(tmp_path / "b", {0: {4: tensors}}, places=PLACES, transient=["buffer 0 module.angles"])
    assert reproduces(reading.read(str(tmp_path / "b")), read).is_whole


def test_a_checkpoint_of_something_else_has_nothing_of_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch.save({"x": torch.rand(7)}, tmp_path / "c.pt")
    kept(tmp_path / "a", {0: {4: state(1.0)}}, places=PLACES)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c.pt")]) == 3
    assert "has nothing of what the ranks had" in capsys.readouterr().out


class _Harm:
    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/paramedic-was-here",)


def _pickled(place: Path) -> None:
    torch.save({"weights": _Harm()}, place)


def _cut(place: Path) -> None:
    torch.save({"weights": torch.ones(400)}, place)
    place.write_bytes(place.read_bytes()[:700])


def _bomb(place: Path) -> None:
    """A tensor that claims to be larger than what is there."""
    torch.save({"weights": torch.ones(1).expand(1 << 40)}, place)


def _packed(place: Path) -> None:
    torch.save({"weights": torch.zeros(1 << 20)}, place)
    entries = zipfile.ZipFile(io.BytesIO(place.read_bytes()))
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in entries.namelist():
            archive.writestr(name, entries.read(name))


@pytest.mark.parametrize(
    "make", [_pickled, _cut, _bomb, _packed, lambda p: p.write_text("x"), lambda p: p.write_bytes(b"")]
)
def test_a_hostile_checkpoint_runs_nothing_and_is_said_in_one_line(
    make: Callable[[Path], Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept(tmp_path / "a", {0: {4: state(1.0)}}, places=PLACES)
    make(tmp_path / "c.pt")
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c.pt")]) in (2, 3)
    assert "internal error" not in capsys.readouterr().err
    assert not os.path.exists("/tmp/paramedic-was-here")


def test_an_index_that_leads_out_of_its_folder_is_not_followed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, optimizer = trained()
    saved_by_dcp(tmp_path / "c", one, optimizer)
    index = tmp_path / "c/.metadata"
    value = pickle.loads(index.read_bytes())
    for place in value.storage_data.values():
        place.relative_path = "../c/" + place.relative_path
    index.write_bytes(pickle.dumps(value))
    kept(tmp_path / "a", {0: {4: held(one, optimizer)}}, places=PLACES)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c")]) == 2
    assert "neither a recording nor a checkpoint" in capsys.readouterr().err


def test_only_fingerprints_of_calls_cannot_answer_for_a_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"x": torch.rand(7)}, tmp_path / "c.pt")
    written(tmp_path / "a", {0: steps("ab")}, 1)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "c.pt")]) == 2
    assert "no step is kept" in capsys.readouterr().err


# -- recordings that want to do harm -------------------------------------------------------------------------------


def _pipe(folder: Path) -> None:
    (folder / "log.tape").unlink()
    os.mkfifo(folder / "log.tape")


def _device(folder: Path) -> None:
    (folder / "log.tape").unlink()
    (folder / "log.tape").symlink_to("/dev/zero")


def _outside(folder: Path) -> None:
    shutil.move(folder, folder.parent.parent / "elsewhere")
    folder.symlink_to(folder.parent.parent / "elsewhere")


def _of_another_rank(folder: Path) -> None:
    file = folder / "head.json"
    file.write_text(file.read_text().replace('"rank": 1', '"rank": 3'))


def _lost(folder: Path) -> None:
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_pipe, "no plain file"),
        (_device, "damaged recording"),
        (_outside, "is a link"),
        (_of_another_rank, "but its folder says rank 1"),
        (_lost, "rank 1 is missing: the others can be replayed"),
    ],
)
def test_one_spoilt_rank_leaves_the_others(
    spoil: Callable[[Path], None], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", {rank: steps("abcd") for rank in range(3)}, 3)
    spoil(tmp_path / "a/recording/rank-00001")
    assert main(["compare", str(tmp_path / "a")]) == 0
    assert why in capsys.readouterr().out
    assert main(["replay", str(tmp_path / "a"), "--rank", "1", "--", "true"]) == 2
    assert capsys.readouterr().out == ""
    code = main(["replay", str(tmp_path / "a"), "--all", "--format", "json", "--", "true"])
    found = json.loads(capsys.readouterr().out)
    assert (code, [one["rank"] for one in found["ranks"]]) == (3, [0, 2])
    assert any(why in text for text in found["recording"]["faults"])


HOSTILE = [
    {"k": "c", "s": 0, "i": 9, "g": "0", "q": 1, "op": "allreduce", "in": [], "out": [], "h": ["x"]},
    {"k": "c", "s": 0, "i": 9, "g": {}, "q": 1, "op": "allreduce", "in": [], "out": []},
    {"k": "state", "s": 1, "i": 2},
    {"k": "l", "s": 0, "h": "x"},
    {"k": "names", "s": 0, "groups": [], "shards": {}, "places": {}, "transient": []},
    {"k": 7, "s": 0},
    {"k": "s", "s": "many", "i": 0},
    {"k": "s", "s": -4, "i": 0},
]


@pytest.mark.parametrize("line", HOSTILE)
@pytest.mark.parametrize("verb", ["replay", "compare"])
def test_lines_that_no_recorder_writes_are_refused(
    verb: str, line: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", {0: [*steps("ab"), line]}, 1)
    assert main([verb, str(tmp_path / "a"), *(["--", "true"] if verb == "replay" else [])]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert "of its log is of no use" in captured.err


def test_names_cannot_steer_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "model 0 \x1b[2Jmodule"
    ranks = {rank: {1: {evil: torch.full((2,), float(rank == 0))}} for rank in range(3)}
    kept(tmp_path / "a", ranks, groups={"0": {evil: evil}})
    assert main(["compare", str(tmp_path / "a")]) == 1
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\\x1b[2Jmodule" in out


# -- real jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("kind", "odd"), [("ddp", [2]), ("hsdp", [])])
def test_replicas_that_part_are_found_from_their_own_recording(
    kind: str,
    odd: list[int],
    tmp_path: Path,
    start: Start,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of a hybrid shard there are two copies only, and so no majority; a clean run agrees."""
    assert start(recording(tmp_path / "rec", ranks=4), KIND=kind, FAULT="weight:2:3:20", STEPS=6).ended()[0] == 0
    code, found = told(["compare", str(tmp_path / "rec")], capsys)
    first = found["first"]
    assert (code, first["kind"], first["step"], first["odd"]) == (1, "parameters", 4, odd)
    assert 2 in first["ranks"]
    assert start(recording(tmp_path / "good", ranks=4), KIND=kind, STEPS=4).ended()[0] == 0
    code, found = told(["compare", str(tmp_path / "good")], capsys)
    assert (code, found["ranks"]) == (0, [0, 1, 2, 3])
    assert found["compared"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "fsdp2_tp"])
def test_a_checkpoint_that_the_job_itself_wrote_is_held_against_every_rank(
    kind: str,
    tmp_path: Path,
    start: Start,  # noqa: F811
    capsys: pytest.CaptureFixture[str],
) -> None:
    """DDP's BatchNorm statistics are each rank's own, and a checkpoint keeps one copy, whose is torch's choice."""
    more = {"KIND": kind, "STEPS": 5, "SAVE_AT": 3, "SAVE_TO": tmp_path / "ckpt"}
    assert start(recording(tmp_path / "rec", ranks=4), **more).ended()[0] == 0
    code, found = told(["compare", str(tmp_path / "rec"), str(tmp_path / "ckpt")], capsys)
    assert found["step"] == 4
    assert [one["absent"] for one in found["ranks"]] == [[]] * 4
    if kind == "ddp":
        assert code == 1
        for name in ("buffer 0 module.norm.running_mean", "buffer 0 module.norm.running_var"):
            kept_of = {
                one["rank"]: other["holds_ranks"]
                for one in found["ranks"]
                for other in one["differ"]
                if other["name"] == name
            }
            assert len(kept_of) == 3
            assert set(range(4)) - kept_of.keys() == set(kept_of.popitem()[1])
        assert sum(len(one["differ"]) for one in found["ranks"]) == 2 * 3
    else:
        assert (code, found["reproduced"]) == (0, True)


@pytest.mark.slow
def test_a_tampered_payload_and_a_missing_one_end_the_replay_there(tmp_path: Path, start: Start) -> None:  # noqa: F811
    assert start(recording(tmp_path / "rec", "--payload", "always"), STEPS=4).ended()[0] == 0
    shutil.copytree(tmp_path / "rec", tmp_path / "without")
    score = Score(str(tmp_path / "rec/recording/rank-00001"))
    call = next(one for one in score.calls["0"] if one["s"] == 2 and one["op"] == "allreduce")
    payload, at, _ = score.segments._at[call["done"]["h"]]
    with open(payload, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))
    code, found, _ = replayed(start(again(tmp_path / "rec", "--rank", "1"), STEPS=4))
    assert (code, found["ranks"][0]["status"]) == (1, "damaged")
    assert f"call {call['i']} is not what it was" in found["ranks"][0]["why"]
    (tmp_path / "without/recording/rank-00001/segments/step-00000002.seg").unlink()
    code, found, _ = replayed(start(again(tmp_path / "without", "--rank", "1"), STEPS=4))
    assert (code, found["ranks"][0]["status"]) == (3, "incomplete")
    assert found["ranks"][0]["last_step"] == 2
    assert found["ranks"][0]["checked"]["parameters"] == [2, 2]
