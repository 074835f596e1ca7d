"""What programs print beside the loss: tables, lists of all ranks, references, counts; and what a resume has lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.collect.readings import said_in
from paramedic.collect.tables import Table, of_ranks
from paramedic.model import Finding

Judged = Callable[[str], Finding | None]


@pytest.fixture
def judged(tmp_path: Path) -> Judged:
    def verdict(text: str) -> Finding | None:
        (tmp_path / "console.log").write_text(text, "utf-8")
        return diagnose(tmp_path / "console.log").verdict

    return verdict


def said(line: str) -> dict[str, float | None]:
    return {one.name: one.value for one in said_in(line).values}


@pytest.mark.parametrize(
    ("header", "row", "read"),
    [
        ("  rank   fwd+bwd ms   wait ms", "     3        431.5     12.5", "rank=3, fwd+bwd ms=431.5, wait ms=12.5"),
        ("step | reward | kl", "  12 | 0.2211 | 0.0120", "step=12, reward=0.2211, kl=0.0120"),
        ("epoch,loss,acc", "4,0.31,0.902", "epoch=4, loss=0.31, acc=0.902"),
    ],
)
def test_a_row_is_read_as_if_each_value_stood_behind_its_name(header: str, row: str, read: str) -> None:
    table = Table()
    assert table.row(header) == ""
    assert table.row(row) == read


def test_a_table_of_something_else_has_no_rows_for_us() -> None:
    table = Table()
    assert table.row("Name       | Type       | Params") == ""
    assert table.row("item_table | Embedding  | 1.9 B ") == ""


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("optimizer state GiB by rank: 14.16 0.07 0.06", ["14.16", "0.07", "0.06"]),
        ("step=75 loss=8.1 expert_ms=[26.4, 18.2, 23.9, 37.0]", ["26.4", "18.2", "23.9", "37.0"]),
        ("memory per rank (GB): [10.0, 11.0]", ["10.0", "11.0"]),
        ("ep 0 step 5 loss(all ranks) = 2.0751 2.0752 2.0753", ["2.0751", "2.0752", "2.0753"]),
        ("step 10 |theta| 31.7041 31.1806 32.1681", ["31.7041", "31.1806", "32.1681"]),
        ("dp0 |w| layers.0.input_norm.weight    tp0..2: 66.29 66.31 66.30", ["66.29", "66.31", "66.30"]),
        ("hash by_rank: ['4c44ae98', '4c44ae98', '1b6b395c']", ["4c44ae98", "4c44ae98", "1b6b395c"]),
        ("fwd ms   r0:210 r1:109 r2:107", ["210", "109", "107"]),
        ("node0 bwd_ms 86 89 88 88", ["86", "89", "88", "88"]),
    ],
)
def test_a_list_gives_each_rank_its_value(line: str, values: list[str]) -> None:
    told = list(of_ranks(line, at_a_step="step" in line))
    assert [rank for rank, _ in told] == list(range(len(values)))
    assert [text.rsplit(" ", 1)[1] for _, text in told] == values


def test_a_list_outside_of_training_is_no_list_of_ranks() -> None:
    assert list(of_ranks("milestones=[30, 60, 80, 90]", at_a_step=False)) == []


@pytest.mark.parametrize(
    ("line", "name", "value"),
    [
        ("grad norm 3.0, on a single device 1.5", "by reference", 2.0),
        ("validation 0.50, once more 0.25", "measured again", 2.0),
        ("clip norm: 2.0, limit: 1.0", "clipped", 2.0),
        ("optimizer sharded over 4 ranks", "shards", 4.0),
        ("weights held 6 MiB of 4 MiB", "kept", 1.5),
        ("parameter spread 0.25", "apart", 0.25),
        ("step 4 |w| 51.5", "state w", 51.5),
        ("train_step_timing in s 18.09 | tp_allreduce 15.25", "wait_time", 15.25),
    ],
)
def test_what_ought_to_agree_is_read_as_a_ratio(line: str, name: str, value: float) -> None:
    assert said(line)[name] == pytest.approx(value)


@pytest.mark.parametrize(
    "line",
    [
        "step 5 took 3.20 s, expected 1.60",
        "best loss 0.5120, again 0.6000 epochs later",
        "lr 0.100 reference 0.050",
    ],
)
def test_other_pairs_of_numbers_are_no_reference(line: str) -> None:
    assert not said(line).keys() & {"by reference", "by expectation", "measured again"}


def test_a_time_of_day_is_no_duration() -> None:
    assert said('"time_ms": 1717400000010, "step_s": 1.25')["step_time"] == pytest.approx(1.25)


def resumed(after: Callable[[int], str]) -> str:
    before = "".join(
        f"it {n} mse {0.2 - n / 1e5:.4f} lr 1.000e-04 adam.t {n} batch_crc {n * 7919 + 10:08x}\n"
        for n in range(1000, 2000, 100)
    )
    return before + "resume from it2000.pt\n" + "".join(after(n) + "\n" for n in range(2000, 3000, 100))


def test_a_resume_that_goes_on_as_before_is_right(judged: Judged) -> None:
    assert judged(resumed(lambda n: f"it {n} mse 0.1800 lr 1.000e-04 adam.t {n} batch_crc {n * 7919 + 10:08x}")) is None


@pytest.mark.parametrize(
    "after",
    [
        lambda n: f"it {n} mse 0.1800 lr {(n - 1990) * 1e-8:.3e} adam.t {n}",
        lambda n: f"it {n} mse 0.1800 lr 1.000e-04 adam.t {n - 1990}",
        lambda n: f"it {n} mse 0.1800 lr 1.000e-04 adam.t {n} batch_crc {(n - 1000) * 7919 + 10:08x}",
        lambda n: f"it {n} mse {2.1 - n / 1e4:.4f} lr 1.000e-04 adam.t {n}",
    ],
    ids=["learning rate", "counter", "batches", "loss"],
)
def test_what_begins_anew_after_a_resume_was_not_restored(judged: Judged, after: Callable[[int], str]) -> None:
    verdict = judged(resumed(after))
    assert verdict is not None
    assert (verdict.rule, verdict.symptom) == ("CKPT016", "checkpoint-resume-failure")


def ranks(value: Callable[[int, int], str], count: int = 6) -> str:
    return "".join(
        f"[rank {rank}] step {20 * n} loss {1 / (n + 1):.4f} {value(rank, n)}\n"
        for n in range(8)
        for rank in range(count)
    )


def test_the_one_rank_that_says_something_else_is_named(judged: Judged) -> None:
    verdict = judged(ranks(lambda rank, n: f"momentum {0.9 + n * 0.00123 - (0.01 if rank == 4 and n > 3 else 0):.6f}"))
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("NUM037", (4,))


@pytest.mark.parametrize(
    "value",
    [
        lambda rank, n: f"momentum {0.9 + n * 0.00123 + rank * 0.01:.6f}",
        lambda rank, n: f"momentum {0.9 - (0.1 if rank == 4 else 0):.1f}",
        lambda rank, n: f"samples {5000 + n - (40 if rank == 5 else 0)}",
    ],
    ids=["each its own", "a constant", "the last rank has fewer samples"],
)
def test_what_ranks_have_of_their_own_is_not_compared(judged: Judged, value: Callable[[int, int], str]) -> None:
    assert judged(ranks(value)) is None


def test_among_equals_a_rank_stands_out_by_less(judged: Judged) -> None:
    table = "  rank   fwd+bwd ms   wait in allreduce ms\n"
    text = "".join(
        f"iter {500 * n}  loss {30 - n:.2f}  0.705 s/iter\n{table}"
        + "".join(
            f"    {rank}        {664.0 if rank == 5 else 431.5 + rank}        {1.5 if rank == 5 else 250.0}\n"
            for rank in range(8)
        )
        for n in range(1, 7)
    )
    verdict = judged(text)
    assert verdict is not None
    assert (verdict.rule, verdict.ranks) == ("PERF003", (5,))


def test_one_process_that_evaluates_alone_is_a_reference(judged: Judged) -> None:
    trained = "".join(f"epoch {n} loss {2 / (n + 1):.4f} val accuracy {0.03 + n / 400:.4f}\n" for n in range(8))
    verdict = judged(trained + "standalone check, 1 GPU, last.pt: accuracy 0.7518\n")
    assert verdict is not None
    assert verdict.rule == "NUM027"
    assert judged(trained + "standalone check, 1 GPU, last.pt: accuracy 0.0475\n") is None


def test_fewer_samples_behind_a_resume_than_before_it_were_not_restored(judged: Judged) -> None:
    before = "".join(f"step {n} loss {3 - n / 2000:.4f} samples_seen {n * 256}\n" for n in range(500, 4000, 500))
    after = "".join(f"step {n} loss 1.2 samples_seen {(n - 3500) * 256}\n" for n in range(4000, 6000, 500))
    verdict = judged(before + "restored step_3500\n" + after)
    assert verdict is not None
    assert verdict.rule == "CKPT016"


@pytest.mark.parametrize(
    "lines",
    [
        [f"step {n} loss {2 - n / 100:.4f} lr 0.0" for n in range(0, 200, 20)],
        [f"step 0 loss {2 - n / 100:.4f} lr {1e-3 - n * 1e-4:.4f}" for n in range(9)],
        ["step 1 loss 0.00000000000000001e-300, expected 9.5e8"] * 4 + ["step 2 loss 0.1e-300, expected 9.5e300"] * 4,
        [f"step {n} grad_norm 0.0 loss_scale 65536 loss 0.0" for n in range(9)],
    ],
    ids=["no learning rate", "no step", "next to nothing", "nothing at all"],
)
def test_zeros_and_what_is_next_to_them_are_survived(tmp_path: Path, lines: list[str]) -> None:
    (tmp_path / "console.log").write_text("\n".join(["world size 2", *lines, ""]), "utf-8")
    assert diagnose(tmp_path / "console.log").run.world_size == 2


@pytest.mark.parametrize("plan", ["total batch size = 1e308", "num examples = 9\nnum epochs = 2\ntotal steps = 4"])
def test_a_batch_of_next_to_nothing_is_survived(judged: Judged, plan: str) -> None:
    batch = "batch size per gpu = 1e-308\ngradient accumulation steps = 1e-308\n"
    assert judged(f"{plan}\n{batch}step 1 loss 0.5\n") is None
