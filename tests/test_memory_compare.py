"""`paramedic memory compare`: a snapshot's highest moment, by where memory was taken, beside an estimate."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paramedic.errors import ParamedicError
from paramedic.memory import compare
from paramedic.memory.events import Moment
from paramedic.memory.places import (
    BACKWARD,
    BEFORE,
    BUILT,
    COMMUNICATION,
    ELSEWHERE,
    OPTIMIZER,
    Forward,
    Lines,
    at_peak,
)
from paramedic.memory.snapshot import peak_of

SITE = "/opt/env/lib/python3.12/site-packages/"
MODELING = "transformers/models/llama/modeling_llama.py"
FORWARDS = [
    Forward("", "LlamaForCausalLM", MODELING, 400, 460),
    Forward("model.layers.0", "LlamaDecoderLayer", MODELING, 300, 330),
    Forward("model.layers.0.mlp", "LlamaMLP", MODELING, 150, 160),
    Forward("model.layers.1.mlp", "LlamaMLP", MODELING, 150, 160),
    Forward("model.layers.0.mlp.up_proj", "Linear", "torch/nn/modules/linear.py", 120, 130),
]


def frame(file: str, line: int, name: str = "forward") -> dict[str, Any]:
    return {"filename": file if file.startswith("/") or file == "??" else SITE + file, "line": line, "name": name}


LINEAR = frame("torch/nn/modules/linear.py", 125)
MLP = [LINEAR, frame("torch/nn/modules/module.py", 1780, "_call_impl"), frame(MODELING, 155), frame(MODELING, 320)]
TRAIN = frame("/home/me/train.py", 7, "main")
ADAM = [frame("torch/optim/adamw.py", 90, "_init_group"), frame("torch/optim/optimizer.py", 480, "wrapper"), TRAIN]


def snapshot() -> dict[str, Any]:
    """As torch.cuda.memory._snapshot() makes it: weights before the recording, an MLP's output given back again."""
    blocks = [
        {"address": 4096, "size": 1024, "requested_size": 1000, "state": "active_allocated", "frames": []},
        {"address": 5120, "size": 2048, "requested_size": 2048, "state": "active_allocated", "frames": ADAM},
        {"address": 7168, "size": 1 << 20, "requested_size": 0, "state": "inactive", "frames": []},
    ]
    segment = {"device": 0, "address": 4096, "total_size": 2 << 20, "allocated_size": 3072, "active_size": 3072,
               "stream": 0, "segment_type": "large", "blocks": blocks}  # fmt: skip
    history = [
        {"action": "free_requested", "addr": 1 << 30, "size": 600, "stream": 0, "frames": [TRAIN]},
        {"action": "free_completed", "addr": 1 << 30, "size": 600, "stream": 0, "frames": [TRAIN]},
        {"action": "segment_alloc", "addr": 4096, "size": 2 << 20, "stream": 0, "frames": []},
        {"action": "alloc", "addr": 9000, "size": 8000, "stream": 0, "frames": [*MLP, TRAIN]},
        {"action": "alloc", "addr": 99000, "size": 512, "stream": 0, "frames": []},
        {"action": "free_requested", "addr": 9000, "size": 8000, "stream": 0, "frames": []},
        {"action": "free_completed", "addr": 9000, "size": 8000, "stream": 0, "frames": []},
        {"action": "free_requested", "addr": 99000, "size": 512, "stream": 0, "frames": []},
        {"action": "alloc", "addr": 5120, "size": 2048, "stream": 0, "frames": ADAM},
        {"action": "snapshot", "addr": 0, "size": 0, "stream": 0, "frames": []},
    ]
    return {"segments": [segment], "device_traces": [history], "allocator_settings": {}}


def test_the_history_is_played_to_its_highest_moment() -> None:
    peak = peak_of(snapshot())
    assert peak.recorded
    assert sorted(one.size for one in peak.blocks) == [512, 1024, 8192]
    assert (peak.allocated, peak.reserved) == (512 + 1024 + 8192, 2 << 20)


def test_without_a_history_what_is_alive_counts() -> None:
    peak = peak_of(snapshot() | {"device_traces": [[]]})
    assert not peak.recorded
    assert peak.allocated == 1024 + 2048


def test_what_was_there_before_the_recording_is_not_forgotten() -> None:
    bare = {
        "segments": [],
        "device_traces": [[{"action": "free_requested", "addr": 1, "size": 600, "frames": [TRAIN]}]],
    }
    peak = peak_of(bare)
    assert [(one.size, one.before) for one in peak.blocks] == [(1024, True)]


@pytest.mark.parametrize(
    ("frames", "place"),
    [
        (MLP, "LlamaMLP"),
        ([frame(MODELING, 325)], "LlamaDecoderLayer"),
        ([LINEAR, TRAIN], "Linear"),
        ([], BACKWARD),
        ([frame("??", 0, "at::native::mm"), frame("??", 0, "torch::autograd::Engine::thread_main")], BACKWARD),
        ([frame("??", 0, "torch::autograd::THPVariable_linear"), *MLP], "LlamaMLP"),
        ([*MLP, frame("torch/utils/checkpoint.py", 1100, "unpack_hook")], BACKWARD),
        ([*MLP, frame("torch/utils/checkpoint.py", 500, "checkpoint")], "LlamaMLP"),
        ([frame("/me/ops.py", 3, "backward"), frame("torch/autograd/graph.py", 9, "_engine_run_backward")], BACKWARD),
        (ADAM, OPTIMIZER),
        ([frame("torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", 1, "foreach_all_gather")], COMMUNICATION),
        ([frame("torch/nn/modules/module.py", 900, "_apply"), TRAIN], BUILT),
        ([TRAIN], ELSEWHERE),
    ],
)
def test_a_stack_says_which_module_took_the_block(frames: list[dict[str, Any]], place: str) -> None:
    assert Lines(FORWARDS).place(frames) == place


def test_a_trace_is_put_into_the_same_places() -> None:
    moments = [
        Moment(0, "build", "", "parameters"),
        Moment(2, "forward", "model.layers.1.mlp.up_proj", "mm"),
        Moment(2, "backward", "model.layers.0.mlp", "mm"),
        Moment(2, "optimizer", "", "_foreach_sqrt"),
        Moment(2, "forward", "", "_log_softmax"),
    ]
    events = [(number, 512 * (number + 1), 0, number) for number in range(5)] + [(5, 512, 3, 1), (1, -1, 0, 0)]
    trace = SimpleNamespace(moments=moments, events=events)
    places = at_peak(trace, {}, 5, FORWARDS)
    assert places == {
        BUILT: 512, "LlamaMLP": 1024, BACKWARD: 1536, OPTIMIZER: 2048, "LlamaForCausalLM": 2560, COMMUNICATION: 512
    }  # fmt: skip
    assert "LlamaMLP" not in at_peak(trace, {}, 6, FORWARDS)


def test_where_both_part_comes_first(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(snapshot()))
    places = compare._places(
        compare.read(str(file)).peak or pytest.fail("no peak"),
        SimpleNamespace(result={"places": {"LlamaMLP": 2048, BACKWARD: 1536}}),  # type: ignore[arg-type]
        FORWARDS,
    )
    assert places[0] == {
        "place": "LlamaMLP", "modules": "model.layers.*.mlp", "measured_bytes": 8192, "estimated_bytes": 2048,
    }  # fmt: skip
    assert {row["place"] for row in places} == {"LlamaMLP", BACKWARD}  # weights without a stack, too
    assert BEFORE not in {row["place"] for row in places}


def test_a_snapshot_that_would_run_code_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "snapshot.pickle"
    file.write_bytes(pickle.dumps(os.getcwd))
    with pytest.raises(ParamedicError, match="refused"):
        compare.read(str(file))


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"{", b"[]", pickle.dumps({"segments": [{}]}), pickle.dumps([1]),
     pickle.dumps({"segments": [{"total_size": 1, "blocks": 3}]}),
     pickle.dumps({"segments": [], "device_traces": [[3]]})],
)  # fmt: skip
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(ParamedicError):
        compare.read(str(tmp_path / "x"))
