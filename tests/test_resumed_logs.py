"""A run that is told in several logs: what goes on in the next one, what does not, and what need not."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from paramedic.pipeline import diagnose

RESUMED = "Resuming from checkpoint /ckpt/step_1000\n"


def rule(tmp_path: Path, **logs: str) -> str | None:
    for name, text in logs.items():
        (tmp_path / f"{name}.log").write_text(text, "utf-8")
    verdict = diagnose([str(tmp_path)]).verdict
    return None if verdict is None else verdict.rule


def part(
    first: int, count: int, level: float, *, every: int = 10, back: float = 0.0, lr: str = "2.00e-04", seed: int = 0
) -> str:
    """Lines of training: a loss with noise around a level, which a leap leaves slowly."""
    rng = random.Random(seed + first)
    losses = [level + back * 0.95**n + rng.uniform(-0.03, 0.03) for n in range(count)]
    return "".join(f"step {first + n * every} loss {loss:.4f} lr {lr}\n" for n, loss in enumerate(losses))


def rates(first: int, values: list[float], every: int = 10) -> str:
    return "".join(f"step {first + n * every} loss 2.4{n % 7} lr {value:.3e}\n" for n, value in enumerate(values))


BEFORE = part(810, 20, 2.4)


@pytest.mark.parametrize("names", [("before", "resume"), ("slurm-17", "slurm-18"), ("attempt1", "attempt2")])
def test_a_loss_that_leaps_between_two_logs_is_a_failed_resume(tmp_path: Path, names: tuple[str, str]) -> None:
    logs = {names[0]: BEFORE, names[1]: RESUMED + part(1010, 30, 2.4, back=1.0)}
    assert rule(tmp_path, **logs) == "CKPT016"


def test_steps_that_go_on_are_a_resume_without_a_word(tmp_path: Path) -> None:
    assert rule(tmp_path, one=BEFORE, two=part(1010, 30, 2.4, back=1.0)) == "CKPT016"


def test_what_was_done_behind_the_checkpoint_is_done_again(tmp_path: Path) -> None:
    longer = part(810, 29, 2.4)
    assert rule(tmp_path, one=longer, two=RESUMED + part(1010, 30, 2.4, back=1.0)) == "CKPT016"
    assert rule(tmp_path, one=longer, two=RESUMED + part(1010, 30, 2.4)) is None


def test_places_in_epochs_go_on_as_well(tmp_path: Path) -> None:
    def epochs(first: int, back: float) -> str:
        rng = random.Random(first)
        return "".join(
            f"Epoch: [{epoch}][ {batch}/500] loss {2.6 - 0.1 * epoch + back + rng.uniform(-0.03, 0.03):.4f}\n"
            for epoch in range(first, first + 3)
            for batch in range(0, 500, 100)
        )

    resumed = "=> loaded checkpoint 'last.pth.tar' (epoch 3)\n"
    assert rule(tmp_path, one=epochs(0, 0.0), two=resumed + epochs(3, 2.0)) == "CKPT016"
    assert rule(tmp_path, one=epochs(0, 0.0), two=resumed + epochs(3, 0.01)) is None


def test_a_second_warm_up_and_a_schedule_from_its_top(tmp_path: Path) -> None:
    falling = rates(810, [2e-4 - n * 2e-6 for n in range(20)])
    assert rule(tmp_path, one=falling, two=RESUMED + rates(1010, [1e-6 * n for n in range(1, 20)])) == "CKPT016"
    assert rule(tmp_path, one=falling, two=RESUMED + rates(1010, [3e-4 - n * 2e-6 for n in range(20)])) == "CKPT016"
    assert rule(tmp_path, one=falling, two=RESUMED + rates(1010, [1.6e-4 - n * 2e-6 for n in range(20)])) is None


def test_samples_and_tokens_that_are_counted_anew(tmp_path: Path) -> None:
    for what in ("consumed samples", "consumed tokens"):
        one, two, well = (
            "".join(f"step {s} | {what} {64 * (s - less)} | loss 2.4{s % 7}\n" for s in range(first, first + 200, 10))
            for first, less in ((810, 0), (1010, 1000), (1010, 0))
        )
        assert rule(tmp_path, one=one, two=RESUMED + two) == "CKPT016"
        assert rule(tmp_path, one=one, two=RESUMED + well) is None


def test_a_resumed_run_that_counts_from_nought(tmp_path: Path) -> None:
    def at(hour: int, text: str) -> str:
        return "".join(
            f"2024-05-01 {hour:02}:{n // 60:02}:{n % 60:02} {line}\n" for n, line in enumerate(text.split("\n")[:-1])
        )

    before = at(8, part(0, 100, 2.4))
    assert rule(tmp_path, one=before, two=at(12, "resuming from /ckpt/last.pt\n" + part(0, 20, 2.4))) == "CKPT016"
    assert rule(tmp_path, one=before, two=at(12, "loaded checkpoint /ckpt/last.pt\n" + part(0, 20, 1.2))) is None


LOOK_ALIKES = {
    "within noise": RESUMED + part(1010, 30, 2.42),
    "a spike": RESUMED + part(1010, 1, 5.0) + part(1020, 30, 2.4),
    "another rate": RESUMED + part(1010, 30, 2.4, back=1.0, lr="8.00e-04"),
    "fine-tuning": "loaded checkpoint /ckpt/step_1000\n" + part(0, 30, 4.1),
    "another configuration": "training samples: 9000\n" + RESUMED + part(1010, 30, 2.4, back=1.0),
    "longer sequences": "sequence length: 4096\n" + RESUMED + part(1010, 30, 2.4, back=1.0),
    "another job, cut out": part(915, 30, 3.9, every=7),
    "an evaluation": "loaded checkpoint /ckpt/step_1000\n"
    + "".join(f"eval step {n} eval loss 3.{n:02}\n" for n in range(20)),
}


@pytest.mark.parametrize("name", sorted(LOOK_ALIKES))
def test_other_logs_beside_are_no_failed_resume(tmp_path: Path, name: str) -> None:
    plan = "training samples: 5000\nsequence length: 2048\n"
    assert rule(tmp_path, one=plan + BEFORE, two=LOOK_ALIKES[name]) is None


def test_a_warm_restart_begins_at_the_end_of_its_cycle(tmp_path: Path) -> None:
    cycle = [2e-4 * (1 - n / 20) + 1e-6 for n in range(20)]
    one, two = rates(810, cycle), RESUMED + rates(1010, cycle).replace("loss 2.4", "loss 3.1")
    assert rule(tmp_path, one=one, two=two) is None


def test_the_logs_of_ranks_are_no_parts_of_one(tmp_path: Path) -> None:
    assert rule(tmp_path, rank0=part(10, 30, 2.4), rank1=part(20, 30, 3.9)) is None


def test_a_leap_behind_a_resume_in_the_same_log(tmp_path: Path) -> None:
    resumed = "resumed at step 1000\n"
    assert rule(tmp_path, one=BEFORE + resumed + part(1010, 30, 2.4, back=1.0)) == "CKPT016"
    assert rule(tmp_path, one=part(810, 29, 2.4) + resumed + part(1010, 30, 2.4, back=1.0)) == "CKPT016"
    assert rule(tmp_path, one=part(810, 29, 2.4) + resumed + part(1010, 30, 2.4)) is None


# -- shards that DeepSpeed does not find ---------------------------------------------------------------------------


def shards(numbers: list[int], *, old: bool = False, part: int = 0) -> str:
    paths = [f"/c/global_step40/bf16_zero_pp_rank_{n}_mp_rank_{part:02}_optim_states.pt" for n in numbers]
    before, behind = (
        ("Client provided zero checkpoint load paths:", " does not exist")
        if old
        else ("The following zero checkpoints paths are missing:", "")
    )
    return f"[2024-04-16 20:12:09,852] [WARNING] [engine.py:2815:_get_all_zero_checkpoint_names] {before} {paths}{behind}\n"


def ranks(tmp_path: Path, text: str) -> tuple[str, tuple[int, ...]] | None:
    (tmp_path / "resume.log").write_text(text + part(41, 10, 2.4, every=1), "utf-8")
    verdict = diagnose([str(tmp_path)]).verdict
    return None if verdict is None else (verdict.rule, verdict.ranks)


@pytest.mark.parametrize("old", [False, True])
def test_the_ranks_whose_shards_are_missing_are_named(tmp_path: Path, old: bool) -> None:
    world = "[INFO] [config.py:964:print]   world_size ................... 16\n"
    second = list(range(8, 16))
    assert ranks(tmp_path, world + shards(second, old=old)) == ("CKPT070", tuple(second))
    assert ranks(tmp_path, shards(second, old=old)) == ("CKPT070", tuple(second))
    assert ranks(tmp_path, world + shards(list(range(8)), old=old)) == ("CKPT070", tuple(range(8)))


def test_a_checkpoint_without_any_shard_was_given_so(tmp_path: Path) -> None:
    world = "[INFO] [config.py:964:print]   world_size ................... 16\n"
    assert ranks(tmp_path, world + shards(list(range(16)))) is None
    both = shards(list(range(8))) + shards(list(range(8)), part=1)
    assert ranks(tmp_path, world + both) is None
    many = "[INFO] [config.py:964:print]   world_size ................... 512\n" + shards(list(range(512)))
    assert ranks(tmp_path, many) is None


# -- jobs that are stopped and begin anew --------------------------------------------------------------------------


def attempt(count: int, first: int = 0, said: str = "", loss: float = 0.9) -> str:
    return said + "".join(f"step {first + n * 100} loss {loss - n * 0.02:.4f}\n" for n in range(count))


PREEMPTED = "slurmstepd: error: *** JOB 88 ON n114 CANCELLED AT 2024-05-01T22:07:11 DUE TO PREEMPTION ***\n"
STEP = "slurmstepd: error: *** STEP 88.0 ON n114 CANCELLED AT 2024-05-01T22:07:11 DUE TO PREEMPTION ***\n"


def test_a_job_that_is_stopped_before_it_saves_never_gets_on(tmp_path: Path) -> None:
    none = "no checkpoint found in /ck\n"
    three = attempt(18, said=none) + PREEMPTED + attempt(12, said=none) + PREEMPTED + attempt(20, said=none)
    assert rule(tmp_path, one=three) == "JOB063"
    assert rule(tmp_path, one=three + PREEMPTED) == "JOB063"
    assert rule(tmp_path, one=three.replace(none, "").replace(PREEMPTED, STEP + PREEMPTED)) == "JOB063"


def test_a_job_that_counts_its_starts(tmp_path: Path) -> None:
    starts = [f"job 88 restart_count={n}\nstarting at step 0\n" for n in range(4)]
    assert rule(tmp_path, one="".join(attempt(9 + n, said=said) for n, said in enumerate(starts))) == "JOB063"


def test_each_attempt_in_a_log_of_its_own(tmp_path: Path) -> None:
    logs = {f"try{n}": f"job 88 restart_count={n}\n" + attempt(9 + n) + PREEMPTED for n in range(4)}
    assert rule(tmp_path, **logs) == "JOB063"


STARTED_AGAIN = {
    "resumed": attempt(18) + PREEMPTED + attempt(9, 1500, "resuming at step 1500\n", 0.6) + PREEMPTED
    + attempt(9, 2000, "resuming at step 2000\n", 0.5),
    "back to its checkpoint": attempt(18) + PREEMPTED + attempt(9, 1500, loss=0.6) + PREEMPTED
    + attempt(9, 2000, loss=0.5),
    "steps counted in each epoch": attempt(9) + attempt(9, loss=0.7) + PREEMPTED + attempt(9, loss=0.5)
    + attempt(9, loss=0.4) + PREEMPTED + attempt(9, loss=0.3),
    "an epoch for each attempt": attempt(9) + PREEMPTED + attempt(9, loss=0.7) + PREEMPTED + attempt(9, loss=0.5),
    "done in the end": attempt(9) + PREEMPTED + attempt(9) + PREEMPTED + attempt(40) + "training finished\n",
    "experiments one after the other": attempt(9) + attempt(9) + attempt(9),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(STARTED_AGAIN))
def test_jobs_that_get_on(tmp_path: Path, name: str) -> None:
    assert rule(tmp_path, one=STARTED_AGAIN[name]) != "JOB063"


def bars(first: int, epochs: int = 2, size: int = 400) -> str:
    return "".join(
        f"Epoch {n}: {at * 25:>3}%|{'█' * at:4}| {at * size // 4}/{size} [00:10<00:30,  4.01it/s, v_num=7, "
        f"train_loss={1 / (n + 1) - at / 100:.3f}]\n"
        for n in range(first, first + epochs)
        for at in range(5)
    )


@pytest.mark.parametrize(
    ("said", "goes_on", "expected"),
    [
        ("Restored all states from the checkpoint at ckpt/epoch=11-step=18768.ckpt", bars(0), "CKPT016"),
        ("Restored all states from the checkpoint file at /ckpt/epoch=11-step=18768.ckpt", bars(0), "CKPT016"),
        ("Resuming from checkpoint: out/epoch_12.pth", bars(0), "CKPT016"),
        ("Restored all states from the checkpoint at ckpt/epoch=11-step=18768.ckpt", bars(12), None),
        ("Restored all states from the checkpoint at ckpt/epoch=11-step=18768.ckpt", bars(11), None),
        ("Restored all states from the checkpoint at ckpt/epoch=0-step=1564.ckpt", bars(0), None),
        ("Restored all states from the checkpoint at ckpt/last.ckpt", bars(0), None),
        ("Loaded model weights from the checkpoint at ckpt/epoch=11-step=18768.ckpt", bars(0), None),
        ("Resuming from checkpoint-1500", rates(0, [0.01] * 8, every=1), "CKPT016"),
        ("Resuming from checkpoint-1500", rates(1500, [0.01] * 8, every=1), None),
        ("Resuming from checkpoint-1500", "".join(bars(12).replace("Epoch 12: ", "")), None),
    ],
)
def test_the_name_of_the_restored_file_says_where_to_go_on(
    tmp_path: Path, said: str, goes_on: str, expected: str | None
) -> None:
    assert rule(tmp_path, train=f"{said}\n{goes_on}") == expected


def _judged(name: str, first: int, begin: float) -> str:
    """A loss that has come down and stays there, and beside it what comes down slowly."""
    return "".join(
        f"step {first + 10 * n} loss 0.3{n % 7}1 | val 0.4{n % 5}2 | {name} {begin - 0.1 * n:.3f}\n" for n in range(12)
    )


@pytest.mark.parametrize(
    ("name", "begins", "verdict"),
    [
        ("ema val", 1.8, "CKPT016"),  # as on the first day
        ("ema val", 0.6, None),  # where it was left
        ("eval elapsed", 1.8, None),  # each start counts that for itself
    ],
)
def test_what_alone_falls_back_to_its_beginning_was_not_saved(
    tmp_path: Path, name: str, begins: float, verdict: str | None
) -> None:
    console = _judged(name, 10, 1.8) + "resumed from ck.pt at step 120\n" + _judged(name, 130, begins)
    assert rule(tmp_path, console=console) == verdict
