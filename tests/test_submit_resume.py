"""Which checkpoint an attempt goes on from: the newest complete one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from paramedic.submit.resume import examine, newest


def saved(path: Path, step: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"step": step, "weights": torch.arange(1000.0)}, path)
    return path


def tensors(path: Path) -> Path:
    header = json.dumps({"w": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]}}).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(header).to_bytes(8, "little") + header + b"\0" * 16)
    return path


def test_the_newest_is_by_its_step_not_by_its_name(tmp_path: Path) -> None:
    for step in (8, 12, 100):
        saved(tmp_path / f"step-{step}.pt")
    found, skipped = newest(str(tmp_path), 2)
    assert found is not None
    assert (Path(found.path).name, found.step, skipped) == ("step-100.pt", 100, [])


def test_a_cut_off_one_is_skipped_and_named(tmp_path: Path) -> None:
    saved(tmp_path / "step-4.pt")
    cut = saved(tmp_path / "step-8.pt")
    cut.write_bytes(cut.read_bytes()[:-200])
    found, skipped = newest(str(tmp_path), 2)
    assert found is not None
    assert found.path.endswith("step-4.pt")
    assert [Path(one.path).name for one in skipped] == ["step-8.pt"]
    assert "not whole" in skipped[0].why_not


def test_a_flipped_bit_is_seen(tmp_path: Path) -> None:
    file = saved(tmp_path / "step-4.pt")
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)
    assert examine(str(file), 2).why_not


@pytest.mark.parametrize("content", [b"", b"\0" * 8])
def test_an_empty_file_is_no_checkpoint(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "step-4.pt").write_bytes(content)
    assert newest(str(tmp_path), 2)[0] is None


def test_a_distributed_checkpoint_is_complete_with_its_metadata(tmp_path: Path) -> None:
    for step, whole in ((10, True), (20, False)):
        folder = tmp_path / f"step-{step}"
        folder.mkdir()
        (folder / "__0_0.distcp").write_bytes(b"x" * 64)
        if whole:
            (folder / ".metadata").write_bytes(b"x" * 64)
    found, skipped = newest(str(tmp_path), 2)
    assert found is not None
    assert (found.kind, found.step, found.world_size) == ("torch.distributed.checkpoint", 10, None)
    assert ".metadata is missing" in skipped[0].why_not


def test_shards_of_another_number_of_ranks_are_not_resumed(tmp_path: Path) -> None:
    for rank in range(4):
        saved(tmp_path / "global_step8" / f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    assert "shards of 4 ranks, and 2" in newest(str(tmp_path), 2)[1][0].why_not
    found, _ = newest(str(tmp_path), 4)
    assert found is not None
    assert found.world_size == 4


def test_a_folder_of_hugging_face_is_as_whole_as_its_files(tmp_path: Path) -> None:
    tensors(tmp_path / "checkpoint-500" / "model.safetensors")
    cut = tensors(tmp_path / "checkpoint-900" / "model.safetensors")
    cut.write_bytes(cut.read_bytes()[:-1])
    found, skipped = newest(str(tmp_path), 2)
    assert found is not None
    assert found.step == 500
    assert "model.safetensors" in skipped[0].why_not


@pytest.mark.parametrize("content", [b"", b"\xff" * 8, b"\x02" + b"\0" * 7 + b"[]", b"\x02" + b"\0" * 7 + b"{{"])
def test_a_hostile_header_is_only_not_whole(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "m-1.safetensors").write_bytes(content)
    assert newest(str(tmp_path), 1)[1][0].why_not


def test_what_is_no_checkpoint_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("step 4")
    (tmp_path / "step-8.pt.part").write_bytes(b"half")
    assert newest(str(tmp_path), 2) == (None, [])
    assert newest(str(tmp_path / "missing"), 2) == (None, [])
