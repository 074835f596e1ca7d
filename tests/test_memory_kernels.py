"""What a real card allocates beside results, and which attention kernel it chooses; sizes as an H200 showed them."""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from paramedic.memory import reduction
from paramedic.memory.allocator import FREED, Allocator, OutOfMemory, Replay
from paramedic.memory.cards import MIB, card_of
from paramedic.memory.estimate import estimate
from paramedic.memory.request import Request

torch: Any = pytest.importorskip("torch")
BENCH = Path(__file__).parents[1] / "bench" / "memory"
H200 = card_of("h200")


@pytest.mark.parametrize(
    ("rows", "columns", "parts", "counters"),
    [
        (4096, 4096, 128 * MIB, 128),  # OPT's fc1.bias at 4 × 1024 tokens
        (4096, 1024, 32 * MIB, 32),
        (12608, 4096, 132 * MIB, 128),  # ViT's at 64 × 197 patches: more rows than blocks to share them
        (2048, 1024, 16 * MIB, 32),  # Llama's norm weights
    ],
)
def test_the_sum_over_rows_takes_what_it_took_on_the_card(rows: int, columns: int, parts: int, counters: int) -> None:
    assert reduction.sizes((rows, columns), [0], 4, 132) == [parts, counters]


def test_a_short_sum_takes_nothing() -> None:
    assert reduction.sizes((64, 4096), [0], 4, 132) == []
    assert reduction.sizes((0, 8), [0], 4, 132) == []


def meta(*shape: int, dtype: Any = None) -> Any:
    return torch.empty(shape, dtype=dtype or torch.bfloat16, device="meta")


def test_a_convolution_turns_everything_in_its_workspace_and_a_product_nothing() -> None:
    from paramedic.memory.kernels import convolution

    def forward(source: Any, weight: Any, result: Any) -> list[int]:
        return convolution([source, weight, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1], result, H200)

    wide = forward(meta(128, 64, 56, 56), meta(64, 64, 3, 3), meta(128, 64, 56, 56))
    assert wide[0] / MIB == pytest.approx(98.07, abs=0.01)
    first = forward(meta(128, 3, 224, 224), meta(64, 3, 7, 7), meta(128, 64, 112, 112))
    assert first[0] / MIB == pytest.approx(294.05, abs=0.01)  # three channels are filled up to eight
    assert forward(meta(128, 256, 56, 56), meta(64, 256, 1, 1), meta(128, 64, 56, 56)) == []


def test_an_operation_without_its_workspace_goes_on_and_one_without_its_result_does_not() -> None:
    events = [(1, 10 * MIB, 0, 0), (2, 60 * MIB, 0, 0), (2, FREED, 0, 0), (1, FREED, 0, 0)]
    Replay(Allocator(32 * MIB), optional={2}).run(events)
    with pytest.raises(OutOfMemory):
        Replay(Allocator(32 * MIB)).run(events)


def test_attention_goes_the_way_that_the_card_goes() -> None:
    from paramedic.memory.attention import Call, choose

    query, key = meta(2, 8, 128, 64), meta(2, 8, 128, 64)
    few = meta(2, 1, 128, 64)
    permuted = meta(128, 128, 8).permute(2, 0, 1).unsqueeze(0)  # T5's bias
    assert choose(Call(query, key, key), H200) == "cudnn"
    assert choose(Call(query, few, few), H200) == "math"  # Falcon: one head is spread out over all
    assert choose(Call(query, few, few, gqa=True), H200) == "cudnn"
    assert choose(Call(query, key, key, mask=permuted), H200) == "math"
    assert choose(Call(query, key, key, mask=permuted.contiguous()), H200) == "cudnn"
    trained = permuted.contiguous().requires_grad_()  # transformers 5.20 and later
    assert choose(Call(query, key, key, mask=trained), H200) == "efficient"


def truth() -> tuple[dict[str, Any], Any]:
    sys.path.insert(0, str(BENCH))
    try:
        import cases
    finally:
        sys.path.remove(str(BENCH))
    return json.loads((BENCH / "truth.json").read_text()), cases


TRUTH, BENCHMARK = truth()
SHORT = ("resnet-bf16",)
"""Of the development half: convolutions, and attention that is spelled out."""


def test_what_the_card_showed_is_that_of_the_model_code_in_use() -> None:
    def seen(case: str, transformers: str) -> tuple[int, list[bool]]:
        found = BENCHMARK.shown(TRUTH, transformers)[case]
        limited = BENCHMARK.limited(TRUTH, case, found)
        assert all(one["limit_bytes"] < 1.1 * found["peak_reserved_bytes"] for one in limited)
        return found["peak_allocated_bytes"] // MIB, [one["ran"] for one in limited]

    # T5's bias was permuted and went by plain mathematics; since 5.20 it is contiguous
    assert seen("t5-autocast", "5.19.0") == (20347, [True, False, False])
    assert seen("t5-autocast", "5.20.0") == (13057, [False, False, True])
    # Gemma 2 left its capping out to run SDPA; since 5.21 it caps, by plain mathematics
    assert seen("gemma2-autocast", "5.20.2") == (7641, [])
    assert seen("gemma2-autocast", "5.21.0.dev0") == seen("gemma2-autocast", "6.0") == (8731, [])
    assert seen("gpt2-fp32", "5.17.0") == seen("gpt2-fp32", "5.22.2")


@pytest.mark.parametrize(
    "case", [pytest.param(one, marks=() if one.id in SHORT else pytest.mark.slow, id=one.id) for one in BENCHMARK.CASES]
)
def test_the_estimate_is_what_the_card_showed(case: Any, tmp_path: Path) -> None:
    here = version("transformers")
    seen = BENCHMARK.shown(TRUTH, here)[case.id]
    config = tmp_path / "config.json"
    config.write_text(json.dumps(case.config))
    made = estimate(Request(model=str(config), gpu="h200", **case.flags), print)
    with_what = f"traced with transformers {here}, measured with {seen['versions']['transformers']}"
    assert made.allocated.mid == pytest.approx(seen["peak_allocated_bytes"], rel=0.05), with_what
    assert made.reserved.mid == pytest.approx(seen["peak_reserved_bytes"], rel=0.10), with_what
