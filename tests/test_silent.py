"""Failures that print no error: numbers that are wrong raise a verdict, numbers that are merely noisy raise none."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from paramedic.pipeline import diagnose
from paramedic.report import ShownReport
from paramedic.report.action import copyable


def say(tmp_path: Path, text: str) -> ShownReport:
    (tmp_path / "console.log").write_text(text, "utf-8")
    return diagnose([str(tmp_path / "console.log")])


def verdict(tmp_path: Path, text: str) -> str | None:
    report = say(tmp_path, text)
    return None if report.verdict is None else report.verdict.rule


def lanes(steps: int, ranks: int, line: Callable[[int, int], str]) -> str:
    said = (f"[rank{rank}]: {line(rank, step)}\n" for step in range(steps) for rank in range(ranks))
    return "".join(said) + "".join(f"[rank{rank}]: training finished\n" for rank in range(ranks))


def healthy(seed: int) -> str:
    """A run as they are: warm-up, noise, a falling loss, one slow step, one spike, a cosine learning rate."""
    rng = random.Random(seed)
    steps, ranks = rng.choice([8, 20, 60, 200]), rng.choice([2, 4, 8])
    spike, pause = rng.randrange(steps), rng.randrange(steps)
    base = rng.uniform(300, 40_000)
    norms = [10 + 0.01 * n + rng.random() / 100 for n in range(steps)]
    gradient = [rng.lognormvariate(0, 0.5) for _ in range(steps)]

    def line(rank: int, step: int) -> str:
        loss = 0.3 + 2 * math.exp(-4 * step / steps) * rng.uniform(0.8, 1.2) + (5 if step == spike else 0)
        times = 9 if step == pause else 1 if step else 30
        memory = base * (1 - 0.4 * math.exp(-step)) * rng.uniform(0.98, 1.02)
        rate = 3e-4 * 0.5 * (1 + math.cos(math.pi * step / (steps - 1)))
        return (
            f"step {step} loss {loss:.4f} grad_norm {gradient[step]:.3f} parameter norm {norms[step]:.6f} lr {rate:.3e} "
            f"tokens {rng.randint(900, 1100)} forward {times * rng.lognormvariate(3, 0.25):.1f} ms "
            f"all-reduce {times * rng.lognormvariate(2, 0.8):.1f} ms memory {memory:.0f} MB"
        )

    return f"world size: {ranks}\n" + lanes(steps, ranks, line)


@pytest.mark.parametrize("seed", range(40))
def test_noise_is_no_failure(tmp_path: Path, seed: int) -> None:
    report = say(tmp_path, healthy(seed))
    assert report.verdict is None
    assert [finding.rule for finding in report.findings] == []


def test_the_slow_rank_is_named_and_not_those_that_wait(tmp_path: Path) -> None:
    text = lanes(
        12,
        4,
        lambda r, s: f"step {s} loss 1.{s} compute {0.4 if r == 2 else 0.1} s all-reduce {0.01 if r == 2 else 0.31} s",
    )
    found = say(tmp_path, text).verdict
    assert found is not None
    assert (found.rule, found.ranks, found.causes[0].id) == ("PERF003", (2,), "hardware-fault")


@pytest.mark.parametrize("named", ["fwd_bwd", "forward-backward", "forward"])
def test_what_takes_longer_is_called_as_the_log_calls_it(tmp_path: Path, named: str) -> None:
    report = say(tmp_path, lanes(24, 4, lambda rank, step: f"step {step} {named}={0.9 if rank == 2 else 0.3:.3f}s"))
    assert report.verdict is not None
    assert f"as its peers for {named}, step after step" in report.verdict.summary
    assert any("clocks" in copyable(fix.action) for fix in report.verdict.fixes)


def test_whoever_is_waited_for_is_slow(tmp_path: Path) -> None:
    text = lanes(12, 4, lambda r, s: f"step {s} loss 1.{s} wait {2 if r == 1 else 300} ms step 400 ms")
    found = say(tmp_path, text).verdict
    assert found is not None
    assert found.ranks == (1,)


def test_more_work_explains_a_slow_rank(tmp_path: Path) -> None:
    text = lanes(8, 4, lambda r, s: f"step {s} tokens {4096 if r == 3 else 1024} forward {400 if r == 3 else 100} ms")
    found = say(tmp_path, text).verdict
    assert found is not None
    assert (found.rule, found.ranks, found.causes[0].id) == ("PERF002", (3,), "uneven-work-across-ranks")


@pytest.mark.parametrize(("later", "expected"), [(2.4, "PERF020"), (0.33, None)])
def test_of_parts_alone_the_sum_tells_since_when_steps_are_slower(
    tmp_path: Path, later: float, expected: str | None
) -> None:
    rng = random.Random(5)
    parts = [(0.9 + rng.random() / 50, (0.3 if n < 40 else later) + rng.random() / 30) for n in range(80)]
    lines = (
        f"step {n} loss {2 - n / 100:.3f} compute {c:.3f}s rs+ag exposed {w:.3f}s\n" for n, (c, w) in enumerate(parts)
    )
    report = say(tmp_path, "".join(lines))
    assert (report.verdict.rule if report.verdict else None) == expected
    if report.verdict is not None:
        assert report.verdict.causes[0].id == "network-fabric-fault"
        assert "communicating" in report.verdict.summary


def test_where_each_rank_has_more_than_the_one_before_only_the_last_is_waited_for(tmp_path: Path) -> None:
    """Data sorted by length, a block for each rank."""

    def line(rank: int, step: int) -> str:
        tokens = 300 + 40 * rank * (rank + 2) + 3 * (step % 4)
        return f"step {step} loss {2 - step / 100:.3f} tokens {tokens} forward {tokens / 4:.1f} ms"

    report = say(tmp_path, lanes(24, 12, line))
    assert report.verdict is not None
    assert (report.verdict.rule, report.verdict.ranks) == ("PERF002", (11,))


@pytest.mark.parametrize(
    ("slow", "tensor", "accused"), [((20, 21, 22, 23), 4, ()), ((21,), 1, (21,)), (range(32), 1, None)]
)
def test_few_tables_of_many_ranks_tell_who_is_slow_or_which_tensor_parallel_group(
    tmp_path: Path, slow: Sequence[int], tensor: int, accused: tuple[int, ...] | None
) -> None:
    text = f"using world size: 32, data-parallel size: {32 // tensor}, tensor-model-parallel size: {tensor}\n"
    for step in (10, 20, 30):
        text += f" iteration {step}/ 100 | elapsed time per iteration (ms): 2200.1 | lm loss: 2.1 |\n"
        times = [1093 if rank in slow and step > 10 else 640 + rank % 5 for rank in range(32)]
        table = "".join(f"     rank {rank:2d}: {time:.2f}\n" for rank, time in enumerate(times))
        text += "times across ranks (ms):\n  forward-compute:\n" + table
    found = say(tmp_path, text).verdict
    assert (found and found.ranks) == accused
    assert found is None or found.symptom == "straggler-or-imbalance"


def test_a_rank_that_is_slow_now_and_then_is_no_straggler(tmp_path: Path) -> None:
    text = lanes(30, 4, lambda r, s: f"step {s} loss 1.5 forward {400 if s % 4 == r else 100} ms")
    assert verdict(tmp_path, text) is None


def test_two_equal_halves_accuse_nobody(tmp_path: Path) -> None:
    text = lanes(30, 4, lambda r, s: f"step {s} loss 1.5 forward {400 if r > 0 else 100} ms")
    assert verdict(tmp_path, text) is None


@pytest.mark.parametrize(
    "what", ["parameter norm", "weights checksum", "param_norm =", "model hash", "norm of the tied matrix"]
)
def test_copies_that_drift_apart_are_seen(tmp_path: Path, what: str) -> None:
    text = lanes(6, 2, lambda r, s: f"step {s} loss 2.{s} {what} {50 + s + 0.01 * r * s:.6f}")
    assert verdict(tmp_path, text) == "NUM011"


def test_a_difference_of_the_last_digit_is_rounding(tmp_path: Path) -> None:
    text = lanes(6, 2, lambda r, s: f"step {s} loss 2.{s} parameter norm {50 + s + 1e-6 * r:.6f}")
    assert verdict(tmp_path, text) is None


def test_own_quantities_may_differ(tmp_path: Path) -> None:
    text = lanes(8, 2, lambda r, s: f"step {s} loss {2 + r}.{s} local grad norm {1 + r}.5 own shard norm {3 + r}.1")
    assert verdict(tmp_path, text) is None


def test_memory_that_levels_off_is_no_leak(tmp_path: Path) -> None:
    text = lanes(60, 2, lambda r, s: f"step {s} loss 1.5 memory {4000 * (1 - math.exp(-s / 12)):.0f} MB")
    assert verdict(tmp_path, text) is None
    text = lanes(60, 2, lambda r, s: f"step {s} loss 1.5 memory {4000 + 30 * s} MB")
    assert verdict(tmp_path, text) == "MEM008"


def test_a_loss_that_becomes_nan_is_seen_behind_a_last_word(tmp_path: Path) -> None:
    text = "".join(f"step {n} loss {'nan' if n > 3 else 2.5}\n" for n in range(12)) + "training finished\n"
    assert verdict(tmp_path, text) == "NUM005"


@pytest.mark.parametrize("name", ["grad_norm", "loss"])
def test_what_rose_before_the_loss_was_no_number_is_said_and_weighs(tmp_path: Path, name: str) -> None:
    def line(step: int, rises: bool) -> str:
        if step >= 60:
            return f"step {step} loss nan grad_norm nan scale 0.0\n"
        climb = 1.6 ** max(step - 49, 0) if rises else 1.0
        norm = f" grad_norm {1.1 * climb + step % 3 / 10:.3f}" if name == "grad_norm" else ""
        loss = 2.4 - step / 100 + (climb - 1 if name == "loss" else 0)
        return f"step {step} loss {loss:.4f}{norm} scale 65536\n"

    calm, climbed = (say(tmp_path, "".join(line(n, rises) for n in range(90))).verdict for rises in (False, True))
    assert calm is not None and climbed is not None
    assert calm.summary.startswith("The job prints loss = nan (since step 60; the loss scale fell from 65536 to 0):")
    assert f"{'gradient norm' if name == 'grad_norm' else 'loss'} rose from step 5" in climbed.summary
    assert calm.causes[0].id == "precision-or-numerics-misconfiguration"
    assert climbed.causes[0].id == "hyperparameter-scaling-error"


def test_each_task_of_srun_on_its_own(tmp_path: Path) -> None:
    text = "".join(f"{r}: world size 1\n" for r in range(4))
    text += "".join(f"{r}: step {s} loss 1.{s}{r}\n" for s in range(6) for r in range(4))
    assert verdict(tmp_path, text) == "JOB020"


def test_a_real_error_comes_before_any_number(tmp_path: Path) -> None:
    text = lanes(12, 4, lambda r, s: f"step {s} loss 1.{s} forward {400 if r == 2 else 100} ms").replace(
        "training finished", ""
    )
    text += (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/srv/train.py", line 3, in <module>\n'
        "[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
        "79.15 GiB of which 1.10 GiB is free.\n"
    )
    assert verdict(tmp_path, text) == "MEM001"


def test_the_evidence_is_quoted_with_its_rank_and_line(tmp_path: Path) -> None:
    text = lanes(6, 2, lambda r, s: f"step {s} loss 2.{s} parameter norm {50 + s + 0.01 * r * s:.6f}")
    found = say(tmp_path, text).verdict
    assert found is not None
    assert [(e.event.rank, e.event.line) for e in found.evidence] == [(0, 11), (1, 12)]
    assert "parameter norm" in found.evidence[0].event.text


def test_the_rank_that_waits_for_its_data_is_slow_and_not_the_other(tmp_path: Path) -> None:
    text = lanes(12, 2, lambda r, s: f"step {s} dataloader wait {9 if r else 240} ms allreduce {240 if r else 6} ms")
    found = say(tmp_path, text).verdict
    assert found is not None
    assert (found.symptom, found.ranks) == ("straggler-or-imbalance", (0,))


def test_buffers_differ_between_two_broadcasts(tmp_path: Path) -> None:
    text = lanes(
        8, 2, lambda r, s: f"step {s} loss 2.{s} bn buffer sum {3 + s / 7 + r / 50:.5f} running_mean norm 1.{r}{s}"
    )
    assert verdict(tmp_path, text) is None


def test_the_learning_rate_is_the_same_everywhere(tmp_path: Path) -> None:
    text = lanes(8, 2, lambda r, s: f"step {s} loss 2.{s}{r} lr {0.1 * 0.5 ** (s if r else 0):.3e}")
    assert verdict(tmp_path, text) == "NUM011"


def test_a_score_of_guessing_is_told_from_a_plateau(tmp_path: Path) -> None:
    rng = random.Random(1)
    noisy = [rng.gauss(0, 0.03) for _ in range(60)]
    guess = "".join(f"step {n} loss {2.303 + e:.4f} accuracy {0.1 + e / 3:.4f}\n" for n, e in enumerate(noisy))
    assert verdict(tmp_path, guess) == "NUM010"
    learnt = "".join(f"step {n} loss {2.303 + e:.4f} accuracy {0.45 + e / 3:.4f}\n" for n, e in enumerate(noisy))
    assert verdict(tmp_path, learnt) is None


def test_a_printed_zero_may_be_rounded(tmp_path: Path) -> None:
    rng = random.Random(1)
    losses = [2 + rng.gauss(0, 0.05) for _ in range(60)]
    assert verdict(tmp_path, "".join(f"step {n} loss {v:.4f} lr 0.0\n" for n, v in enumerate(losses))) == "NUM010"
    assert verdict(tmp_path, "".join(f"step {n} loss {v:.4f} lr 0.0000\n" for n, v in enumerate(losses))) is None


def test_steps_that_are_skipped_all_the_time(tmp_path: Path) -> None:
    text = "".join(f"[Rank 0] step={10 * n}, skipped={8 * n}, lr=[0.001]\n" for n in range(1, 20))
    assert verdict(tmp_path, text) == "NUM007"
    text = "".join(f"[Rank 0] step={10 * n}, skipped={min(8, n)}, lr=[0.001]\n" for n in range(1, 20))
    assert verdict(tmp_path, text) is None


def test_memory_may_grow_on_one_rank_or_be_told_by_what_is_free(tmp_path: Path) -> None:
    text = lanes(60, 4, lambda r, s: f"step {s} loss 1.5 memory {4000 + (30 * s if r == 2 else s % 3)} MB")
    found = say(tmp_path, text).verdict
    assert found is not None
    assert (found.rule, found.ranks) == ("MEM008", (2,))
    text = "".join(f"num_updates={n} loss=1.5, gb_free={30 - 0.2 * n:.1f}\n" for n in range(60))
    assert verdict(tmp_path, text) == "MEM008"


def test_longer_sequences_take_longer(tmp_path: Path) -> None:
    grown = "".join(f"step {n} loss 1.{n} seq_len {512 + 64 * n} step_time={0.2 + 0.03 * n:.3f}s\n" for n in range(60))
    assert verdict(tmp_path, grown) is None
    stays = "".join(f"step {n} loss 1.{n} seq_len 512 step_time={0.2 + 0.03 * n:.3f}s\n" for n in range(60))
    assert verdict(tmp_path, stays) == "PERF006"


def test_a_mean_over_steps_is_not_one_over_ranks(tmp_path: Path) -> None:
    text = lanes(8, 4, lambda r, s: f"epoch {s} average training loss {2 - s / 9 + r / 31:.4f}")
    assert verdict(tmp_path, text) is None
    text = "".join(
        f"rank {r} step {s} {'mean ' * (r == 0)}loss {2 - s / 9 + r / 31:.4f}\n" for s in range(8) for r in (0, 1)
    )
    assert verdict(tmp_path, text) is None


def test_a_table_in_a_folder_is_read_as_a_log(tmp_path: Path) -> None:
    rows = "".join(f"{n},{n},{2.0**n:.4f}\n" for n in range(20))
    (tmp_path / "version_0").mkdir()
    (tmp_path / "version_0" / "metrics.csv").write_text("epoch,step,train_loss\n" + rows)
    (tmp_path / "labels.csv").write_text("file,class\na.png,3\n")
    report = diagnose([str(tmp_path)])
    assert report.verdict is not None
    assert report.verdict.symptom == "numerical-instability"
    assert any("labels.csv" in left.what or "csv" in left.why for left in report.run.skipped)


def test_the_one_replica_that_left_the_others_is_named(tmp_path: Path) -> None:
    def line(rank: int, step: int) -> str:
        return (
            f"step {step} loss 1.{step} parameter norm {3.6 + step / 7 + (0.01 if rank == 2 and step > 2 else 0):.6f}"
        )

    found = say(tmp_path, lanes(12, 4, line)).verdict
    assert found is not None
    assert (found.rule, found.ranks, found.causes[0].id) == ("NUM011", (2,), "hardware-fault")
    found = say(tmp_path, lanes(12, 2, lambda r, s: line(2 * r, s))).verdict
    assert found is not None
    assert (found.rule, found.ranks) == ("NUM011", ())


def test_evaluations_of_unlike_parts_may_differ(tmp_path: Path) -> None:
    text = lanes(6, 2, lambda r, s: f"step {s} loss {1.4 - s / 9 + r / 31:.4f}")
    text += "".join(f"[rank{r}]: validation loss {loss} over {rows} rows\n" for r, loss, rows in RAGGED)
    assert verdict(tmp_path, text) is None

    assert verdict(tmp_path, text + "[rank0]: validation loss of all ranks 0.6976\n") is None
    assert verdict(tmp_path, text + "[rank0]: validation loss of all ranks 1.9350\n") == "NUM017"


RAGGED = ((0, 0.59, 960), (1, 3.28, 40))


def test_an_evaluation_of_one_ranks_part(tmp_path: Path) -> None:
    text = lanes(6, 2, lambda r, s: f"rank {r} of 2 step {s} loss {1.4 - s / 9 + r / 31:.4f}")
    assert verdict(tmp_path, text + "validation accuracy 0.7539 on 512 of 1024 rows\n") == "NUM017"
    assert verdict(tmp_path, text + "validation accuracy 0.7539 on 1024 of 1024 rows\n") is None


def test_a_resumed_run_that_has_forgotten_what_it_knew(tmp_path: Path) -> None:
    head = "[rank0]: resumed checkpoints/last.pt at step 80, it left off at loss 0.1962\n"
    steps = "".join(f"[rank0]: step {80 + n} loss {{:.4f}}\n" for n in range(3))
    assert verdict(tmp_path, head + steps.format(1.35, 1.21, 1.1)) == "CKPT016"
    assert verdict(tmp_path, head + steps.format(0.21, 0.19, 0.2)) is None


def test_weights_that_did_not_move(tmp_path: Path) -> None:
    text = lanes(6, 2, lambda r, s: f"step {s} loss {5 + r / 9 + s % 2 / 50:.4f} grad norm 1.{s}")
    said = "[rank0]: largest change of a weight since the start: {}\n"
    assert verdict(tmp_path, text + said.format("0")) == "CODE011"
    assert verdict(tmp_path, text + said.format("0.0366")) is None


def test_more_was_read_than_there_is(tmp_path: Path) -> None:
    text = lanes(6, 2, lambda r, s: f"step {s} loss {1.4 - s / 9 + r / 31:.4f}")
    assert verdict(tmp_path, text + "epoch 0 rows read 1536, different ones 512\n") == "NUM012"
    assert verdict(tmp_path, text + "epoch 0: 640 samples used, 640 different ones\n") is None


def test_a_rank_that_was_slow_on_average_by_what_each_said_at_the_end(tmp_path: Path) -> None:
    head = lanes(6, 4, lambda r, s: f"step {s} loss {1.4 - s / 9 + r / 31:.4f}")
    usual = "".join(f"[rank{r}]: average forward time {310 if r == 3 else 95 + r} ms\n" for r in range(4))
    found = say(tmp_path, head + usual).verdict
    assert found is not None
    assert (found.symptom, found.ranks) == ("straggler-or-imbalance", (3,))
    usual = "".join(f"[rank{r}]: average forward time {95 + r} ms\n" for r in range(4))
    assert verdict(tmp_path, head + usual) is None


def test_the_rank_whose_loss_was_no_number_first(tmp_path: Path) -> None:
    def spoiled(first: int, last: float) -> str:
        def line(rank: int, step: int) -> str:
            lost = step > 7 or (step == 7 and rank == first)
            return f"step {step} loss {'nan' if lost else f'{last if step > 4 else 1.4 - step / 90 + rank / 310:.4f}'}"

        return lanes(12, 4, line)

    for first in (0, 2):
        found = say(tmp_path, spoiled(first, 1.3)).verdict
        assert found is not None
        assert (found.rule, found.ranks, found.causes[0].id) == ("NUM005", (first,), "data-or-input-defect")
    found = say(tmp_path, spoiled(2, 900.0)).verdict  # it exploded everywhere
    assert found is not None and found.ranks == ()


def loader(
    world: int, total: int, *, samples: str = "train: 39936 images", batch: str = "bs/gpu 32", more: str = ""
) -> str:
    """The head of a log and a few places in its first epoch."""
    head = [f"[rank {rank}/{world}] device cuda:{rank}" for rank in range(world)]
    head += [f"dataset /data/plants {samples}, val: 5000 images", f"model convnext {batch} amp bf16", more]
    places = [f"ep 0 [{n * 10:5}/{total}] loss {9 - n / 10:.4f} 0.25 s/it" for n in range(8)]
    return "".join(f"{line}\n" for line in (*filter(None, head), *places))


UNDIVIDED = {
    "by its place": loader(8, 1248),
    "by its loader": loader(8, 1248, more="train loader: 1248 batches, val loader: 157 batches"),
    "by a whole batch": loader(8, 1248, batch="global batch size 256"),
    "the last batch smaller": loader(8, 1248, samples="train: 39930 images"),
    "the last batch dropped": loader(8, 1247, samples="train: 39930 images"),
    "steps an epoch": loader(4, 1248, samples="39,936 training images", more="1248 steps per epoch"),
    "bars": "world size: 4\ntrain set: 39936 samples\nbatch size per gpu: 32\n"
    + "".join(
        f"Epoch 0:   {n}%|▏    | {n * 12}/1248 [00:0{n}<01:12,  5.1it/s, loss={7 - n / 10:.2f}]\n" for n in range(8)
    ),
    "torchvision": "world size: 4\nlen(train_dataset) = 39936 training images\nbatch size per gpu: 32\n"
    + "".join(f"Epoch: [0]  [ {n * 10}/1248]  eta: 0:01:12  loss: {7 - n / 10:.2f}\n" for n in range(8)),
    "all epochs": "world_size: 4\n  Num examples = 39936\n  Num epochs = 3\n  Instantaneous batch size per device = 32\n"
    "  Total optimization steps = 3744\n" + "".join(f"step {n} loss {7 - n / 10:.2f}\n" for n in range(8)),
}


@pytest.mark.parametrize("name", sorted(UNDIVIDED))
def test_each_rank_goes_through_all_samples_by_the_arithmetic_of_its_loader(tmp_path: Path, name: str) -> None:
    assert verdict(tmp_path, UNDIVIDED[name]) == "NUM015"


DIVIDED = {
    "divided": loader(8, 156),
    "one rank": loader(1, 1248),
    "a batch of all ranks": loader(8, 1248, batch="batch size 32"),
    "a node's batch": loader(8, 156, batch="batch size per node 256"),
    "accumulated": loader(8, 1248, more="gradient accumulation steps: 8"),
    "parts of one model": loader(8, 1248, more="tensor_model_parallel_size: 8"),
    "its own part": loader(8, 156, samples="rank 0 train: 4992 images"),
    "two data sets": loader(8, 1248, more="train: 88000 images"),
    "the validation's loader": loader(8, 156, more="val loader: 1248 batches"),
    "samples for places": "world size: 8\nbatch size per gpu: 1\ntraining samples: 1248\n"
    + "".join(f"Train Epoch: 0 [{n * 80}/1248 ({n}%)]\tLoss: {2 - n / 10:.6f}\n" for n in range(8)),
    "a stream": loader(8, 1248, samples="train: streaming"),
}


@pytest.mark.parametrize("name", sorted(DIVIDED))
def test_loaders_that_are_divided_or_need_not_be(tmp_path: Path, name: str) -> None:
    assert verdict(tmp_path, DIVIDED[name]) is None


def rated(world: int, total: int, rate: float, more: str = "") -> str:
    places = [f"ep 0 [{n * 10:5}/{total}] loss {9 - n / 10:.4f} 0.25 s/it  img/s {rate + n % 3}" for n in range(8)]
    return "".join(f"{line}\n" for line in (f"world size: {world}", *filter(None, [more]), *places))


def test_a_rate_tells_how_many_samples_an_epoch_takes(tmp_path: Path) -> None:
    size = "train: 39936 images"
    assert verdict(tmp_path, rated(8, 1248, 1024, size)) == "NUM015"
    assert verdict(tmp_path, rated(8, 156, 1024, size)) is None
    assert verdict(tmp_path, rated(8, 1248, 128, size)) is None


def test_an_epoch_has_as_many_steps_as_with_one_rank(tmp_path: Path) -> None:
    def beside(one: str, several: str) -> str | None:
        (tmp_path / "run_1gpu.log").write_text(one, "utf-8")
        (tmp_path / "run_8gpu.log").write_text(several, "utf-8")
        report = diagnose([str(tmp_path / "run_1gpu.log"), str(tmp_path / "run_8gpu.log")])
        return None if report.verdict is None else report.verdict.rule

    each, steps = "bs/gpu 32", "train loader: 1248 batches"
    assert beside(rated(1, 1248, 128, f"{each}\n{steps}"), rated(8, 1248, 128, f"{each}\n{steps}")) == "NUM015"
    assert beside(rated(1, 1248, 128, steps), rated(8, 1248, 1024, steps)) == "NUM015"
    assert beside(rated(1, 1248, 1024, steps), rated(8, 1248, 1024, steps)) is None  # the same batch of all
    assert beside(rated(1, 1248, 128, steps), rated(8, 156, 1024, "train loader: 156 batches")) is None
    fixed = "1000 steps per epoch"
    assert beside(rated(1, 1000, 128, fixed), rated(8, 1000, 1024, fixed)) is None
    other = f"{steps}\ntrain: 319488 images"
    assert beside(rated(1, 1248, 128, f"{steps}\ntrain: 39936 images"), rated(8, 1248, 1024, other)) is None


def timed(part: str, slow: int = 30, ramp: int = 0, steps: int = 60, seed: int = 1) -> str:
    """A step of five parts, of which one takes longer from a step on."""
    rng = random.Random(seed)
    usual = {"data": 0.03, "forward": 0.11, "backward": 0.21, "allreduce": 0.05, "optimizer": 0.02}
    lines = []
    for step in range(steps):
        share = 0.0 if step < slow else min(1.0, (step - slow + 1) / (ramp + 1))
        parts = {
            name: (s + (0.6 * share if name == part else 0)) * rng.uniform(0.99, 1.01) for name, s in usual.items()
        }
        said = " ".join(f"{name}_time={value:.4f}" for name, value in parts.items())
        lines.append(f"step={step} loss={3 - step / 50:.3f} step_time={sum(parts.values()):.4f} {said}\n")
    return "".join(lines)


@pytest.mark.parametrize("ramp", [0, 9])
@pytest.mark.parametrize(
    ("part", "cause", "said"),
    [
        ("data", "storage-or-external-service-fault", "waiting for data"),
        ("allreduce", "network-fabric-fault", "communicating"),
        ("forward", "hardware-fault", "forward"),
        ("optimizer", "host-resource-exhaustion", "the optimizer"),
    ],
)
def test_the_part_of_a_step_that_takes_longer_decides_the_cause(
    tmp_path: Path, part: str, cause: str, said: str, ramp: int
) -> None:
    report = say(tmp_path, timed(part, ramp=ramp))
    assert report.verdict is not None
    assert (report.verdict.symptom, report.verdict.causes[0].id) == ("low-throughput", cause)
    assert f"nearly all of the difference is {said}: " in report.verdict.summary


def test_a_step_without_parts_that_is_slower_from_one_on_blames_no_part(tmp_path: Path) -> None:
    lines = (f"step={n} loss={3 - n / 50:.3f} step_time={0.42 + (0.3 if n > 29 else 0):.3f}s\n" for n in range(60))
    report = say(tmp_path, "".join(lines))
    assert report.verdict is not None
    assert report.verdict.rule == "PERF020"
    assert "difference" not in report.verdict.summary


@pytest.mark.parametrize("seed", range(6))
def test_data_that_comes_unevenly_is_no_slowdown(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    lines = []
    for n in range(120):
        data = rng.choice([0.001, 0.001, 0.002, rng.lognormvariate(0, 0.7)])
        took = 0.31 + data
        lines.append(
            f"Epoch: [{n // 60}][{n % 60 * 10:>4}/ 600]\tTime {took:6.3f} ({took:6.3f})\tData {data:6.3f} ({data:6.3f})"
            f"\tLoss {6.9 - n / 50:.4e} ({6.9 - n / 90:.4e})\tAcc@1 {n / 6:6.2f} ({n / 12:6.2f})\n"
        )
    assert verdict(tmp_path, "".join(lines)) is None


def test_a_checksum_that_is_told_behind_its_step_is_compared(tmp_path: Path) -> None:
    for rank in range(4):
        lines = [
            f"[r{rank}] weight checksum step {n}: {900 + n + (1.37 * rank if n else 0)}\n" for n in range(0, 800, 100)
        ]
        (tmp_path / f"rank{rank}.log").write_text("".join(lines), "utf-8")
    verdict = diagnose([str(tmp_path)]).verdict
    assert verdict is not None
    assert verdict.symptom == "replica-divergence"


@pytest.mark.parametrize("printing", [(0,), (0, 1, 2, 3)])
def test_a_loss_that_one_rank_prints_for_all_is_nobodys_own(tmp_path: Path, printing: tuple[int, ...]) -> None:
    for rank in printing:
        losses = [*(f"{5 - n / 10:.2f}" for n in range(10)), *["nan" if rank == 0 else "4.0"] * 10]
        text = "".join(f"step {n} loss {loss}\n" for n, loss in enumerate(losses))
        (tmp_path / f"rank{rank}.log").write_text(f"world_size: 4\n{text}", "utf-8")
    verdict = diagnose([str(tmp_path)]).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.ranks) == ("numerical-instability", () if len(printing) == 1 else (0,))


@pytest.mark.parametrize(
    ("before", "cause"),
    [
        ([2.3, 2.2, 2.2, 2.1, 2.1, 2.2] + [2.0 * 9.0**n for n in range(1, 10)], "hyperparameter-scaling-error"),
        ([2.3 - n / 100 for n in range(15)], "precision-or-numerics-misconfiguration"),
    ],
)
def test_a_loss_that_rose_step_by_step_before_it_was_no_number_had_too_large_steps(
    tmp_path: Path, before: list[float], cause: str
) -> None:
    steps = "".join(f"step {n} loss {loss:.4f}\n" for n, loss in enumerate(before, 1))
    found = say(tmp_path, f"{steps}step 16 loss nan\nBatch 16: Invalid loss, terminating training\n").verdict
    assert found is not None and (found.rule, found.causes[0].id) == ("NUM003", cause)


def test_files_that_reach_ends_of_their_own_are_no_replicas(tmp_path: Path) -> None:
    def trained(rate: float, steps: int) -> str:
        rows = (
            f"{{'loss': 1.{n}, 'learning_rate': {rate / n:.6f}, 'epoch': {n / steps:.2f}}}\n" for n in range(1, steps)
        )
        return "".join(rows)

    end = "{'train_runtime': 2412.0, 'train_loss': 1.3, 'epoch': 1.0}\n"
    for number, (rate, steps) in enumerate([(0.1, 20), (0.2, 20), (0.4, 20)]):
        (tmp_path / f"ft-4711_{number}.out").write_text(trained(rate, steps) + end)
    found = diagnose([str(tmp_path)]).verdict
    assert found is not None and found.rule == "NUM011"
    (tmp_path / "ft-4711_1.out").write_text(trained(0.2, 40) + end)
    assert diagnose([str(tmp_path)]).verdict is None
