"""`paramedic memory plan`: what may be changed, in which order, and what is printed to be pasted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paramedic.memory import answers, edits, plan
from paramedic.memory.cards import CARDS, GIB, Range
from paramedic.memory.configs import accelerate, config_of, deepspeed
from paramedic.memory.request import STRATEGIES, Request
from paramedic.memory.speed import samples_a_second
from paramedic.memory.states import bytes_each, states
from paramedic.memory.zero import buffered

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 6,
         "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 5000, "max_position_embeddings": 512}  # fmt: skip
FOUR = Request(model="x", batch=1, seq=2048, gpu="a100-40", world_size=4)
SEVEN_B = 6_738_415_616


@pytest.mark.slow
def test_the_plan_begins_with_the_smallest_change(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    asked = Request(model=str(tmp_path), batch=8, seq=256, gpu="h200", gpu_memory="1000MiB")
    found = plan.plan(asked, 3, lambda text: None)
    assert found.answers
    efforts = [answer.candidate.effort for answer in found.answers]
    assert efforts == sorted(efforts)
    assert all(answer.estimate.fits != "no" for answer in found.answers)
    assert found.answers[0].candidate.edits
    assert [effect.title for effect in found.answers[0].effects] == [
        edit.title for edit in found.answers[0].candidate.edits
    ]
    text = answers.text(found)
    assert text.startswith("As it is (h200): does not fit")
    assert "\n1. --" in text
    json.dumps(answers.document(found))


@pytest.mark.slow
def test_the_largest_batch_is_found(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    asked = Request(model=str(tmp_path), batch=1, seq=256, gpu="h200", gpu_memory="1500MiB")
    found = plan.largest(asked, "batch", lambda text: None)
    assert found.answers[0].candidate.request.batch > 1
    assert found.answers[0].estimate.fits != "no"
    assert answers.text(found).startswith("largest --batch: ")


def test_a_plan_for_several_cards_offers_to_share() -> None:
    found = edits.candidates(FOUR)
    assert found[0].request.strategy == "ddp"
    titles = {edit.title for one in found for edit in one.edits}
    assert {"--strategy fsdp2", "--strategy zero3", "--bucket-view", "--activation-checkpointing"} <= titles
    assert any(one.title == "--strategy fsdp2 --offload parameters" for one in found)
    assert len({one.title for one in found}) == len(found)


def test_the_next_stage_of_the_same_engine_is_the_smallest_edit() -> None:
    found = edits.candidates(replace(FOUR, strategy="zero2"))
    effort = {one.title: one.effort for one in found if len(one.edits) == 1}
    assert effort["--strategy zero3"] == 1
    assert "--strategy fsdp2" not in effort


def test_nothing_is_offered_that_does_not_go_together() -> None:
    for one in edits.candidates(FOUR):
        assert not (one.request.bucket_view and one.request.strategy != "ddp")
        assert not (one.request.strategy.startswith("zero") and one.request.optimizer == "adamw-fused")


def test_states_of_seven_billion_parameters() -> None:
    """16 bytes a parameter, whole under DDP, a quarter of it on each of four ranks."""
    assert states(replace(FOUR, strategy="ddp"), SEVEN_B) == 16 * SEVEN_B
    assert states(replace(FOUR, strategy="fsdp2"), SEVEN_B) == 4 * SEVEN_B
    assert states(replace(FOUR, strategy="zero3"), SEVEN_B) == 4 * SEVEN_B
    assert bytes_each(replace(FOUR, strategy="zero2")) == (2, 0.5, 3)
    assert bytes_each(replace(FOUR, strategy="zero1")) == (2, 2, 3)
    assert bytes_each(replace(FOUR, strategy="fsdp2", offload="parameters")) == (0, 0, 0)
    assert bytes_each(Request(dtype="bf16", optimizer="adamw-8bit")) == (2, 2, 2)
    assert bytes_each(Request(dtype="fp32", optimizer="sgd-momentum")) == (4, 4, 4)


def test_zeros_buffers_have_an_end() -> None:
    three = replace(FOUR, strategy="zero3")
    assert buffered(three, 10**10) == buffered(three, 10**11)
    assert buffered(three, 10**8)["forward"] < buffered(three, 10**10)["forward"]
    assert buffered(FOUR, 10**10) == {}


def made(total: int, fits: str = "yes") -> Any:
    size = Range(total, total, total + GIB, "")
    return SimpleNamespace(
        total=size, allocated=size, fits=fits, card=CARDS["a100-40"], result={}, why_coarse="", request=FOUR
    )


def test_an_answer_says_what_is_left_why_and_what_it_costs() -> None:
    candidate = next(one for one in edits.candidates(FOUR) if one.title == "--strategy fsdp2")
    effect = plan.Effect("--strategy fsdp2", "shared", "gathered twice", 90 * GIB, 0.75, 0.9)
    found = plan.Plan(FOUR, CARDS["a100-40"], plan.Need(120 * GIB, {"parameters": 25 * GIB, "rounding": 1}))
    found.answers.append(plan.Answer(candidate, made(30 * GIB), 4.4, [effect]))
    text = answers.text(found)
    assert "does not fit, about 120.00 GiB of 39.49 GiB a card:\n     25.00 GiB parameters\n" in text
    assert "fits: 30.00 GiB of 39.49 GiB, 9.49 GiB left, 8.49 GiB in the worst case" in text
    assert "removes 90.00 GiB (75%); costs: 10% slower, gathered twice" in text
    assert "fsdp_version: 2" in text
    assert answers.document(found)["answers"][0]["edits"][0]["removes_share"] == 0.75


def test_no_answer_says_so() -> None:
    assert "none of 0 settings fits" in answers.text(plan.Plan(FOUR, CARDS["a100-40"]))
    assert "no batch fits" in answers.text(plan.Plan(FOUR, CARDS["a100-40"], largest="batch"))


def test_the_largest_batch_fits_and_a_larger_one_does_not() -> None:
    assert [plan.search(start, most.__ge__) for start, most in ((1, 13), (16, 13), (1, 0), (4, 4))] == [13, 13, 0, 4]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_can_be_pasted(strategy: str) -> None:
    asked = replace(FOUR, strategy=strategy, world_size=1 if strategy == "none" else 4, checkpointing=True)
    text = "\n".join(config_of(asked))
    assert ('"stage": 3' in text) == (strategy == "zero3")
    assert ("fsdp_version: 2" in text) == (strategy == "fsdp2")
    assert ("gradient_checkpointing_enable" in text) == (strategy != "fsdp2")
    if strategy.startswith("zero"):
        assert deepspeed(asked)["zero_optimization"]["stage"] == int(strategy[-1])


def test_more_ranks_than_a_node_has_leave_the_machines_open() -> None:
    assert "num_machines: 1" in accelerate(replace(FOUR, strategy="fsdp2"))
    assert "num_machines: 1" not in accelerate(replace(FOUR, strategy="fsdp2", world_size=16))


def test_offloading_names_the_optimizer_that_deepspeed_wants() -> None:
    lines = config_of(replace(FOUR, strategy="zero2", offload="optimizer"))
    assert any("DeepSpeedCPUAdam" in line for line in lines)


def test_more_work_or_more_moving_is_slower() -> None:
    card, base = CARDS["a100-40"], replace(FOUR, batch=4, strategy="fsdp2")
    plain, again, away = (
        samples_a_second(one, 7 * 10**9, card)
        for one in (base, replace(base, checkpointing=True), replace(base, offload="parameters"))
    )
    assert plain > again > 0
    assert plain > away
