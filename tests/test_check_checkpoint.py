"""Checkpoints looked into without being loaded: real ones of torch, and every way to damage them."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import random
import struct
import zipfile
from pathlib import Path
from typing import Any

import pytest

from paramedic.collect.checkpoints import look_into
from paramedic.collect.launch import wanted
from paramedic.collect.plain_pickle import Named, NotPlain, outline
from paramedic.collect.tensor_files import read_safetensors, read_torch
from paramedic.commands import main
from paramedic.detect import detect_facts
from paramedic.knowledge import load
from paramedic.model import Fact, Run

torch = pytest.importorskip("torch")
Captured = pytest.CaptureFixture[str]


def found(folder: Path, *more: Fact, deep: bool = False) -> dict[str, str]:
    run = Run("r", facts=(*look_into(str(folder), deep).facts, *more))
    return {one.rule: one.severity for one in detect_facts(run, load())}


def facts(folder: Path) -> dict[str, Any]:
    return {fact.name.removeprefix("checkpoint "): fact.value for fact in look_into(str(folder)).facts}


def state() -> dict[str, Any]:
    model = torch.nn.Linear(64, 64)
    return {"model": model.state_dict(), "optimizer": torch.optim.Adam(model.parameters()).state_dict(), "iteration": 7}


# -- pickles -------------------------------------------------------------------------------------------------------


class Evil:
    def __reduce__(self) -> Any:
        return (os.system, ("touch /tmp/paramedic-was-here",))


def test_an_outline_calls_nothing_and_keeps_every_name() -> None:
    value, names = outline(pickle.dumps({"a": Evil(), "b": [1, 2]}))
    assert value["b"] == [1, 2]
    assert isinstance(value["a"], Named)
    assert names == {"posix.system"}
    assert not os.path.exists("/tmp/paramedic-was-here")


@pytest.mark.parametrize(
    "hostile",
    [
        b"",
        b"\x80",
        b"(i",
        b"cos\nsystem\n(S'x'\ntR",
        b"\x80\x04\x95",
        b"I1\nI2\nR.",
        b"c__main__\nX\n)\x81}b.",
        b"\x80\x02\x82\x01.",
    ],
)
def test_hostile_pickles_end_in_one_kind_of_error(hostile: bytes) -> None:
    with contextlib.suppress(NotPlain):
        outline(hostile)


def test_damaged_pickles_end_in_one_kind_of_error() -> None:
    whole = pickle.dumps({"a": Evil(), "b": list(range(50)), "c": ("x", {"y": 1.5})})
    dice = random.Random(3)
    for _ in range(500):
        data = bytearray(whole)
        for _ in range(dice.randrange(1, 6)):
            data[dice.randrange(len(data))] = dice.randrange(256)
        with contextlib.suppress(NotPlain):
            outline(bytes(data))
    assert not os.path.exists("/tmp/paramedic-was-here")


# -- torch's own files ---------------------------------------------------------------------------------------------


def test_a_whole_file_is_whole_and_its_counters_are_read(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "model.pt")
    assert found(tmp_path, deep=True) == {}
    assert facts(tmp_path)["count model.pt"] == 7


@pytest.mark.parametrize("kept", [0, 10, 1000, -100])
def test_a_cut_file_is_damaged(kept: int, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(state(), path)
    path.write_bytes(path.read_bytes()[:kept])
    assert found(tmp_path) == {"CKPT056": "error"}


def test_a_storage_that_is_not_there_is_named(tmp_path: Path) -> None:
    torch.save(state(), tmp_path / "a.pt")
    with zipfile.ZipFile(tmp_path / "a.pt") as old, zipfile.ZipFile(tmp_path / "b.pt", "w") as new:
        for entry in old.infolist():
            if not entry.filename.endswith("/data/0"):
                new.writestr(entry.filename, old.read(entry))
    assert "names the storage 0" in read_torch(str(tmp_path / "b.pt"), False).problem


def test_a_flipped_bit_is_found_when_all_is_read(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    torch.save(state(), path)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    assert found(tmp_path, deep=True) == {"CKPT056": "error"}


def test_a_file_that_would_run_code_is_named_and_not_run(tmp_path: Path) -> None:
    torch.save({"x": Evil()}, tmp_path / "model.pt")
    assert found(tmp_path) == {"CKPT061": "warning"}
    assert not os.path.exists("/tmp/paramedic-was-here")


# -- torch.distributed.checkpoint ----------------------------------------------------------------------------------


@pytest.fixture
def dcp(tmp_path: Path) -> Path:
    import warnings

    from torch.distributed.checkpoint.state_dict_saver import save

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        save(state(), checkpoint_id=str(tmp_path / "step-7"))
    return tmp_path / "step-7"


def test_a_whole_distributed_checkpoint_is_whole_and_can_be_loaded_by_more_ranks(dcp: Path) -> None:
    assert found(dcp) == {}
    assert facts(dcp)["kind"] == "torch.distributed.checkpoint"
    assert facts(dcp)["ranks"] == 1
    assert found(dcp, Fact("wanted ranks", 8, "launch command")) == {"CKPT057": "info"}


def test_a_shard_that_is_missing_or_cut_is_named(dcp: Path) -> None:
    shard = dcp / "__0_0.distcp"
    data = shard.read_bytes()
    shard.write_bytes(data[: len(data) // 2])
    assert found(dcp) == {"CKPT056": "error"}
    shard.unlink()
    assert found(dcp) == {"CKPT055": "error"}


def test_an_index_that_is_missing_or_cut_is_named(dcp: Path) -> None:
    index = dcp / ".metadata"
    data = index.read_bytes()
    index.write_bytes(data[: len(data) // 2])
    assert "CKPT056" in found(dcp)
    index.unlink()
    assert found(dcp) == {"CKPT055": "error"}


# -- safetensors ---------------------------------------------------------------------------------------------------


def safetensors(path: Path, names: list[str], cut: int = 0) -> None:
    header = {
        name: {"dtype": "F32", "shape": [4], "data_offsets": [16 * i, 16 * i + 16]} for i, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    data = struct.pack("<Q", len(text)) + text + bytes(16 * len(names))
    path.write_bytes(data[: len(data) - cut] if cut else data)


def test_sharded_weights_are_held_against_their_index(tmp_path: Path) -> None:
    safetensors(tmp_path / "model-1.safetensors", ["a", "b"])
    safetensors(tmp_path / "model-2.safetensors", ["c"])
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-1.safetensors", "c": "model-2.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert found(tmp_path) == {}
    safetensors(tmp_path / "model-2.safetensors", ["c"], cut=4)
    assert found(tmp_path) == {"CKPT056": "error"}
    (tmp_path / "model-2.safetensors").unlink()
    assert found(tmp_path) == {"CKPT055": "error"}
    safetensors(tmp_path / "model-2.safetensors", ["other"])
    assert found(tmp_path) == {"CKPT056": "error"}


@pytest.mark.parametrize(
    "data", [b"", b"1234567", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 3) + b"{x}"]
)
def test_no_safetensors_at_all(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_bytes(data)
    assert read_safetensors(str(tmp_path / "x.safetensors")).problem


# -- layouts of frameworks -----------------------------------------------------------------------------------------


def zero(folder: Path, ranks: int, missing: int | None = None) -> None:
    """As DeepSpeed 0.19 writes it: `latest`, one model file, an optimizer shard for each rank."""
    step = folder / "global_step5"
    step.mkdir(parents=True)
    (folder / "latest").write_text("global_step5")
    torch.save({"dp_world_size": ranks, "mp_world_size": 1, "global_steps": 5}, step / "mp_rank_00_model_states.pt")
    for rank in range(ranks):
        if rank != missing:
            torch.save({"optimizer_state_dict": {}}, step / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")


def test_zero_shards_are_fixed_to_their_ranks(tmp_path: Path) -> None:
    zero(tmp_path, 4)
    assert found(tmp_path) == {}
    assert found(tmp_path, Fact("wanted ranks", 4, "c")) == {}
    assert found(tmp_path, Fact("wanted ranks", 8, "c")) == {"CKPT057": "error"}


@pytest.mark.parametrize("rank", [1, 3])
def test_a_missing_zero_shard_is_named_also_the_last(rank: int, tmp_path: Path) -> None:
    zero(tmp_path, 4, missing=rank)
    assert found(tmp_path) == {"CKPT055": "error"}
    assert any(f"zero_pp_rank_{rank}_" in name for name in facts(tmp_path))


def test_a_pointer_to_nothing_is_named(tmp_path: Path) -> None:
    zero(tmp_path, 2)
    (tmp_path / "latest").write_text("global_step9")
    assert "CKPT059" in found(tmp_path)
    (tmp_path / "latest").write_text("../../etc")
    assert "CKPT059" in found(tmp_path)


def test_megatron_degrees_are_held_against_the_launch_command(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    for tensor in range(2):
        folder = tmp_path / "iter_0000010" / f"mp_rank_{tensor:02d}"
        folder.mkdir(parents=True)
        torch.save({"iteration": 10}, folder / "model_optim_rng.pt")
    command = ["torchrun", "--nproc_per_node=4", "pretrain.py", "--tensor-model-parallel-size", "4"]
    assert found(tmp_path) == {}
    assert found(tmp_path, *wanted(command)) == {"CKPT058": "error"}
    torch.save({"iteration": 20}, tmp_path / "iter_0000010" / "mp_rank_01" / "model_optim_rng.pt")
    assert found(tmp_path) == {"CKPT063": "error"}


def test_a_megatron_save_that_was_cut_off(tmp_path: Path) -> None:
    """As Megatron-core 0.16 leaves it when its writers fail: the common part alone."""
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("10")
    (tmp_path / "iter_0000010").mkdir()
    torch.save({"iteration": 10}, tmp_path / "iter_0000010" / "common.pt")
    assert found(tmp_path) == {"CKPT055": "error"}


def test_a_universal_checkpoint_that_lacks_a_state(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        folder = tmp_path / "zero" / name
        folder.mkdir(parents=True)
        for part in ("fp32", "exp_avg", "exp_avg_sq"):
            torch.save({"param": torch.zeros(2)}, folder / f"{part}.pt")
    assert found(tmp_path, Fact("wanted ranks", 8, "c")) == {}
    (tmp_path / "zero" / "b" / "exp_avg.pt").unlink()
    assert found(tmp_path) == {"CKPT055": "error"}


def test_checksums_beside_the_files_are_compared(tmp_path: Path) -> None:
    safetensors(tmp_path / "m.safetensors", ["a"])
    (tmp_path / "SHA256SUMS").write_text("0" * 64 + "  m.safetensors\n")
    assert found(tmp_path) == {}
    assert found(tmp_path, deep=True) == {"CKPT056": "error"}


def test_links_out_of_the_folder_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.pt").write_bytes(b"PK")
    (tmp_path / "in" / "model.pt").symlink_to(tmp_path / "secret.pt")
    look = look_into(str(tmp_path / "in"))
    assert [one.why for one in look.skipped] == ["is a link that leads out of the folder"]
    assert found(tmp_path / "in") == {"CKPT060": "warning"}


@pytest.mark.parametrize(
    ("command", "ranks"),
    [
        ("torchrun --nnodes 2 --nproc-per-node=8 train.py", 16),
        ("python -m torch.distributed.run --nproc_per_node 4 train.py", 4),
        ("deepspeed --num_gpus 2 --num_nodes=3 train.py", 6),
        ("accelerate launch --num_processes 8 train.py", 8),
        ("mpirun -np 4 python train.py", 4),
        ("srun -n 32 python train.py", 32),
        ("torchrun --nproc-per-node auto train.py", None),
        ("python train.py --n 5", None),
    ],
)
def test_ranks_of_a_launch_command(command: str, ranks: int | None) -> None:
    named = {fact.name: fact.value for fact in wanted(command.split())}
    assert named.get("wanted ranks") == ranks


def test_the_command_says_it_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    zero(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    launch = ["torchrun", "--nproc-per-node", "4", "x.py"]
    assert main(["check", "--checkpoint", str(tmp_path), "--select", "CKPT", "--", *launch]) == 1
    assert "Saved by 2 ranks, to be loaded by 4 (deepspeed)." in capsys.readouterr().out


def test_old_files_of_torch_are_let_be(tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"a": torch.zeros(3)}, buffer, _use_new_zipfile_serialization=False)
    (tmp_path / "old.pt").write_bytes(buffer.getvalue())
    assert found(tmp_path) == {}
