"""Steps are counted alike on every rank, however many optimizers there are, and however they come and go."""

from __future__ import annotations

import gc

import pytest

torch = pytest.importorskip("torch")

from paramedic.rank.counting import Known, Steps  # noqa: E402


def optimizer(*parameters: object) -> object:
    return torch.optim.SGD(parameters or [torch.zeros(1, requires_grad=True)], lr=0.1)


def count(steps: Steps, made: int, *taken: object) -> int:
    for one in taken:
        made += steps.is_new(one, made)
    return made


def test_two_optimizers_step_once_for_both() -> None:
    one, other = optimizer(), optimizer()
    assert count(Steps(), 0, one, other, one, other) == 2


def test_a_critic_that_steps_more_often_is_what_counts() -> None:
    generator, critic = optimizer(), optimizer()
    assert count(Steps(), 0, critic, critic, critic, generator, critic) == 4


def test_a_new_optimizer_of_the_same_parameters_counts_on() -> None:
    weight, steps = torch.zeros(1, requires_grad=True), Steps()
    made = count(steps, 0, *[optimizer(weight)] * 3)
    assert count(steps, made, *[optimizer(weight)] * 3) == 6


def test_an_optimizer_that_comes_late_counts_on() -> None:
    steps = Steps()
    made = count(steps, 0, *[optimizer()] * 40)
    assert count(steps, made, *[optimizer()] * 2) == 42


def test_an_address_that_is_used_again_is_another_optimizer() -> None:
    known, numbers = Known(), []
    for _ in range(20):
        numbers.append(known.number(optimizer()))
        gc.collect()
    assert numbers == list(range(20))
