"""Lines of progress of many frameworks become the same few quantities, bounded in number and with their lines."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic import diagnose, run_folder
from paramedic.collect.files import collect
from paramedic.collect.glue import apart
from paramedic.collect.metrics import MAX_SERIES, POINTS
from paramedic.collect.readings import said_in
from paramedic.collect.rows import rows_of
from paramedic.collect.tables import Table
from paramedic.detect.series import every
from paramedic.knowledge import load
from paramedic.model import Event, Run
from paramedic.pipeline import Options, compile_prefilter, examine

PREFILTER = compile_prefilter(load())


def read(tmp_path: Path, text: str, name: str = "console.log") -> Run:
    (tmp_path / name).write_text(text, "utf-8")
    return collect([str(tmp_path / name)], PREFILTER)


def metrics(run: Run, name: str) -> list[Event]:
    return [e for e in run.events if e.kind == "metric" and e.fields["name"] == name]


def steps(event: Event) -> list[str]:
    return str(event.fields["steps"]).split("\n")


def shown(event: Event) -> list[int]:
    return [int(line.split("\t")[0]) for line in str(event.fields["shown"]).split("\n")]


@pytest.mark.parametrize(
    ("line", "label", "values"),
    [
        (
            "INFO train: rank 0 step 8 loss 1.1466 parameter norm 6.776154 running mean 0.453496",
            "step 8",
            {"loss": 1.1466, "state parameter norm": 6.776154},
        ),
        (
            " [2026-11-15 06:00:00] iteration      101/    1000 | consumed samples:          808 | elapsed time per "
            "iteration (ms): 812.5 | learning rate: 1.5E-04 | global batch size:     8 | lm loss: 6.7E+00 | loss "
            "scale: 65536.0 | grad norm: 1.234 | number of skipped iterations:   2 | number of nan iterations:   0 |",
            "step 101",
            {"step_time": 0.8125, "lr": 1.5e-4, "loss": 6.7, "loss_scale": 65536, "grad_norm": 1.234, "skipped_now": 2},
        ),
        (
            "[INFO] [logging.py:96:log_dist] [Rank 0] step=10, skipped=1, lr=[0.001]",
            "step 10",
            {"skipped": 1, "lr": 1e-3},
        ),
        (
            "{'loss': '1.386', 'grad_norm': 0.2641, 'learning_rate': '4.5e-05', 'epoch': '0.125'}",
            "epoch 0.125",
            {"loss": 1.386, "grad_norm": 0.2641, "lr": 4.5e-5},
        ),
        (
            "Epoch 0:  12%|█▏        | 12/100 [00:03<00:20,  4.3it/s, loss=0.3, v_num=1]",
            "epoch 0 step 12",
            {"throughput": 4.3, "loss": 0.3},
        ),
        (
            "10/10 ━━━━━━━━━━━━━━━━━━━━ 1s 20ms/step - loss: 0.5012 - accuracy: 0.81",
            "step 10",
            {"step_time": 0.02, "loss": 0.5012, "score accuracy": 0.81},
        ),
        ("iter 100: loss 2.3456, time 512.0ms, mfu 12.3%", "step 100", {"loss": 2.3456, "step_time": 0.512}),
        (
            "step: 10  loss:  8.1234  grad_norm: 1.4567  memory:  2.00GiB(1.02%)  tps: 3,456  mfu: 0.04%",
            "step 10",
            {"loss": 8.1234, "grad_norm": 1.4567, "memory memory": 2 << 30, "throughput": 3456},
        ),
        (
            "step 4 loss 0.6978 compute 1.5 s all-reduce 0.25 s",
            "step 4",
            {"loss": 0.6978, "compute_time compute": 1.5, "wait_time": 0.25},
        ),
        (
            "Epoch: [3][ 120/5005]\tTime  0.424 ( 0.431)\tData  0.024 ( 0.031)\tLoss 6.0087e+00 (6.5211e+00)\t"
            "Acc@1  10.00 (  4.20)\tAcc@5  20.00 ( 12.20)",
            "epoch 3 step 120",
            {"step_time": 0.424, "data_time": 0.024, "loss": 6.0087, "score acc": 10.0},
        ),
        (
            "Epoch: [0]  [ 10/625]  eta: 0:03:12  lr: 0.000001  loss: 6.9001 (6.9123)  time: 0.3011  data: 0.0020  "
            "max mem: 5432",
            "epoch 0 step 10",
            {"step_time": 0.3011, "data_time": 0.002, "loss": 6.9001, "lr": 1e-6},
        ),
        (
            "step 7 step_time 1.2s data 0.1s backward 0.5s optimizer step time 0.1s ckpt_time 0.02s",
            "step 7",
            {"step_time": 1.2, "data_time": 0.1, "optimizer_time": 0.1, "checkpoint_time": 0.02},
        ),
        ("step 3 loss nan grad_norm inf", "step 3", {"loss": None, "grad_norm": None}),
        (
            "rank 1 step 0 words 160 forward 4 ms step 120 ms",
            "step 0",
            {"work words": 160, "compute_time forward": 0.004},
        ),
        ("step 10 max_memory_allocated=12.5 GB rss 3 MB", "step 10", {"memory rss": 3e6}),
        ("train_loss_step=0.22, epoch 3, global_step 200", "epoch 3 step 200", {"loss": 0.22}),
        ("step 12 param hash 3fa9c2bd loss 0.2", "step 12", {"state param hash": float(0x3FA9C2BD)}),
        (
            "2024/05/01 12:00:00 - mmengine - INFO - Epoch(train)  [2][ 40/100]  lr: 1.0000e-03  eta: 0:10:00  time: 0.3120  "
            "data_time: 0.0080  memory: 2113  grad_norm: 1.52  loss: 0.4711",
            "epoch 2 step 40",
            {"step_time": 0.312, "data_time": 0.008, "memory memory": 2113 * 2**20, "loss": 0.4711, "lr": 1e-3},
        ),
        (
            "Train: 3 [  50/1000 (  5%)]  Loss: 6.93 (6.94)  Time: 0.345s,  370.12/s  (0.350s,  365.12/s)  LR: 1.000e-03  "
            "Data: 0.010 (0.012)",
            "epoch 3 step 50",
            {"loss": 6.93, "step_time": 0.345, "data_time": 0.01, "lr": 1e-3},
        ),
        (
            "Epoch: [0][  11/400]\tTime  0.200 ( 0.210)\tData  0.008 ( 0.009)\tLoss 6.9e+00 (6.8e+00)\tAcc@1   1.25 (  1.10)",
            "epoch 0 step 11",
            {"step_time": 0.2, "data_time": 0.008, "loss": 6.9, "score acc": 1.25},
        ),
        (
            "| INFO | train_inner | epoch 001:    100 / 1000 loss=2.3, ppl=4.9, num_updates=1100, lr=0.0005, gb_free=11.2",
            "epoch 001 step 1100",
            {"loss": 2.3, "lr": 5e-4, "free_memory": 11.2e9},
        ),
        (
            "[Rank 0] time (ms) | fwd_microstep: 9.50 | bwd_inner_microstep: 21.00 | bwd_allreduce_microstep: 300.00",
            "",
            {"compute_time fwd": 0.0095, "compute_time bwd inner": 0.021, "wait_time": 0.3},
        ),
        (
            '{"rank": 1, "step": 4, "fwd_ms": 29.5, "compute_s": 0.5, "gpu_mem_gb": 2.5, "train/loss": 1.5}',
            "step 4",
            {"compute_time fwd": 0.0295, "compute_time compute": 0.5, "memory gpu mem": 2.5e9, "loss": 1.5},
        ),
        ("Epoch 4: 100%|##| 16/16 [00:00<00:00, 4.00it/s, train_loss=nan.0]", "epoch 4 step 16", {"loss": None}),
        ("step 7: loss 31098528374829374823.0000", "step 7", {"loss": 31098528374829374823.0}),
        ("Test set: Average loss: 0.3, Accuracy: 9210/10000 (92%)", "", {"eval_loss": 0.3, "score accuracy": 0.921}),
        ("rank 0 step 2 local_loss 2.5 loss_global 2.25", "step 2", {"own loss": 2.5, "joint loss": 2.25}),
        ("step 3 dataloader wait 240 ms sync 5 ms", "step 3", {"data_time": 0.24, "wait_time": 0.005}),
        ("weight checksum at step 40: 8123.25", "step 40", {"state weight checksum": 8123.25}),
        ("grad norm @ iter 12 = 0.5", "step 12", {"grad_norm": 0.5}),
        ("train loss at step 9: 2.25", "step 9", {"loss": 2.25}),
        ("restored ckpt step_800 (32 shards) of the model", "", {}),
        (
            "rank 5 data 0.001 fwd+bwd 0.39 sync 0.02 opt 0.01",
            "",
            {"data_time": 0.001, "compute_time fwd+bwd": 0.39, "wait_time": 0.02, "optimizer_time": 0.01},
        ),
        ("+ torchrun --nnodes=2 --nproc-per-node=4 train.py", "", {"launched": 8}),
        ("process 0 of 4, DistributedType.MULTI_CPU", "", {"world": 4}),
        ("Initializing distributed: GLOBAL_RANK: 0, MEMBER: 1/2", "", {"world": 2}),
        ("plan {'ranks': 4, 'rows_per_rank': 16}", "", {"planned": 4}),
        ("holds 250 of 1000 bytes of parameters", "", {"held": 0.25}),
    ],
)
def test_a_line_of_progress_is_understood(line: str, label: str, values: dict[str, float | None]) -> None:
    said = said_in(line)
    found = {one.name: one.value for one in said.values}
    assert said.label == label
    for name, value in values.items():
        assert found[name] == (pytest.approx(value) if value is not None else None), name


@pytest.mark.parametrize(
    "line",
    [
        "torch 2.13.0 on 10.20.0.2:29500",
        "aux loss 0.1, kl loss 0.2",
        "total memory 12 GB",
        "total tokens 4096",
        "sync 0.5 opt 0.25 data 0.125",
    ],
)
def test_other_numbers_are_left_alone(line: str) -> None:
    assert not said_in(line).values


def test_ranks_come_from_prefixes_from_words_and_from_the_file(tmp_path: Path) -> None:
    prefixed = read(tmp_path, "[rank0]: step 1 loss 2.0\n[rank1]: step 1 loss 3.0\n")
    assert {e.rank: e.fields["values"] for e in metrics(prefixed, "loss")} == {0: "2.0", 1: "3.0"}
    worded = read(tmp_path, "train: rank 0 step 1 loss 2.0\ntrain: rank 1 step 1 loss 3.0, behind rank 0\n")
    assert [(e.rank, e.fields["rank"]) for e in metrics(worded, "loss")] == [(None, 0), (None, 1)]
    assert not worded.ranks_seen  # words alone do not prove that there is such a rank
    filed = read(tmp_path, "step 1 loss 2.0\n", "rank-3.log")
    assert [e.rank for e in metrics(filed, "loss")] == [3]


def test_a_series_keeps_its_first_largest_and_last_line(tmp_path: Path) -> None:
    lines = [f"step {n} loss {9.5 if n == 300 else 1 + n / 1000:.4f}" for n in range(700)]
    (event,) = metrics(read(tmp_path, "\n".join(lines) + "\n"), "loss")
    assert len(event.fields["values"].split()) == len(steps(event)) <= POINTS + 1
    assert event.fields["count"] == 700
    assert steps(event)[0] == "step 0"
    assert steps(event)[-1] == "step 699"
    assert shown(event) == [1, 301, 700]
    assert event.line == 700


def test_of_a_big_log_only_samples_are_read_but_always_its_end(tmp_path: Path) -> None:
    lines = [f"2026-11-15 06:00:00,000 INFO train: step {n} loss {n % 7}.5 " + "x" * 60 for n in range(100_000)]
    (event,) = metrics(read(tmp_path, "\n".join(lines) + "\n"), "loss")
    assert event.fields["count"] < 2_000
    assert shown(event)[-1] == 100_000
    numbers = [int(step.split()[1]) for step in steps(event)]
    assert numbers == sorted(numbers)
    assert any(30_000 < number < 90_000 for number in numbers)


def test_a_log_of_middle_size_is_read_whole(tmp_path: Path) -> None:
    lines = [f"step {n} loss {n % 7}.5 " + "x" * 60 for n in range(900)]
    (event,) = metrics(read(tmp_path, "\n".join(lines) + "\n"), "loss")
    assert event.fields["count"] == 900


def test_a_bar_that_is_drawn_over_and_over_is_a_series(tmp_path: Path) -> None:
    bars = "".join(f"\r {n}/50 [00:0{n // 10}<00:20, 4.3it/s, loss={1 / (n + 1):.3f}]" for n in range(50))
    (event,) = metrics(read(tmp_path, bars + "\n"), "loss")
    assert event.fields["count"] == 50


def test_the_number_of_series_is_bounded(tmp_path: Path) -> None:
    text = "".join(f"rank {n} step 1 loss 1.5\n" for n in range(3 * MAX_SERIES))
    assert sum(e.kind == "metric" for e in read(tmp_path, text).events) <= MAX_SERIES


def test_a_table_is_read_by_its_first_line(tmp_path: Path) -> None:
    rows = "".join(f"{1700000000 + n},{n % 2},{n // 2},{2 - n / 10:.2f}\n" for n in range(8))
    run = read(tmp_path, "time,rank,step,loss\n" + rows, "metrics.csv")
    assert {e.fields["rank"]: steps(e) for e in metrics(run, "loss")} == {
        0: ["step 0", "step 1", "step 2", "step 3"],
        1: ["step 0", "step 1", "step 2", "step 3"],
    }
    drawn = read(tmp_path, "| step | loss |\n|------|------|\n| 1 | 2.5 |\n| 2 | 2.4 |\n")
    assert [e.fields["values"] for e in metrics(drawn, "loss")] == ["2.5 2.4"]


def table(ranks: int, steps: int, slow: int) -> str:
    rows = (
        f"2026-03-01T10:{step:02}:00Z,1,{step},{rank},n{rank // 8},{140 if rank == slow else 100}.{rank % 7},{rank % 5}.25\n"
        for step in range(steps)
        for rank in range(ranks)
    )
    return "time,epoch,step,rank,host,forward_ms,rss_gib\n" + "".join(rows)


def test_a_long_table_of_ranks_is_read_whole(tmp_path: Path) -> None:
    run = read(tmp_path, table(ranks=512, steps=12, slow=437), "times.csv")
    assert {one.rank for one in every(run, "compute_time")} == {*range(512)}
    assert {one.count for one in every(run, "compute_time", "memory")} == {12}
    verdict = examine(run, load(), PREFILTER, Options()).verdict
    assert verdict is not None and (verdict.symptom, verdict.ranks) == ("straggler-or-imbalance", (437,))


@pytest.mark.parametrize(
    ("names", "row"),
    [
        ("time,epoch,step,rank,host,forward_ms,rss_gib", "2026-03-01T10:00:00Z,1,17,3,n0,141.5,22.25"),
        ("rank,host,fwd_bwd_s,bubble_s", "1357,hgx-q169,3.66,0.41"),
        ("step,rank,loss,grad_norm,lr", "400,7,nan,12.5,0.0003"),
        ("iteration,global_rank,tokens_per_s,mem_alloc_gb", "5,0,1200,61.4"),
    ],
)
def test_a_row_of_a_long_table_says_what_it_says_in_a_short_one(names: str, row: str) -> None:
    short = Table()
    assert not short.row(names)
    said = said_in(short.row(row))
    rows = rows_of(names.split(","))
    read = rows.row(row) if rows else None
    assert read is not None
    rank, label, values = read
    assert (rank, label) == (int(dict(zip(names.split(","), row.split(","), strict=True)).get("rank", 0)), said.label)
    named = {one.name: one for one in (*said.values, *said.others)}
    told = list(values)
    assert told and all(one == named[one.name] for one in told)


def test_what_names_no_step_belongs_to_the_last_one(tmp_path: Path) -> None:
    text = "rss 100 MB\n" + "".join(f"step {n}\nrss {200 + n} MB\nstep {n} loss 1.5\n" for n in range(3))
    (event,) = metrics(read(tmp_path, text), "memory rss")
    assert steps(event) == ["#1", "step 0", "step 1", "step 2"]


def test_the_bars_of_keras_are_told_apart_by_the_epoch_before_them(tmp_path: Path) -> None:
    text = "".join(f"Epoch {n}/3\n24/24 - 1s - 5ms/step - accuracy: 0.2500 - loss: 1.5\n" for n in (1, 2, 3))
    (event,) = metrics(read(tmp_path, text), "score accuracy")
    assert steps(event) == ["epoch 1 step 24", "epoch 2 step 24", "epoch 3 step 24"]


def test_lines_that_list_all_ranks_are_of_each_rank(tmp_path: Path) -> None:
    timers = "times across ranks (ms):\n  forward-compute:\n     rank  0: 29.56\n     rank  1: 96.25\n"
    lists = (
        f" iteration 5/ 10 | lm loss: 8.0 |\n{timers}",
        "step 5: compute time per rank (ms): [29.56, 96.25]\n",
        "step 5 compute_ms: {0: 29.56, 1: 96.25}\n",
        "step 5 compute rank0=29.56ms rank1=96.25ms\n",
    )
    for text in lists:
        found = [e for e in read(tmp_path, text).events if e.kind == "metric" and "compute_time" in e.fields["name"]]
        times = {e.fields.get("rank"): float(e.fields["values"]) for e in found if steps(e) == ["step 5"]}
        assert times[0] == pytest.approx(0.02956), text
        assert times[1] == pytest.approx(0.09625), text


def test_secrets_do_not_stand_in_the_quoted_lines(tmp_path: Path) -> None:
    secret = "hf_" + "a1B2c3D4" * 4
    events = metrics(read(tmp_path, f"step 1 loss 1.5 token={secret}\n"), "loss")
    assert events
    assert secret not in str([(e.text, dict(e.fields)) for e in events])


def test_events_can_be_recorded(tmp_path: Path) -> None:
    run = read(tmp_path, "step 1 loss nan\nstep 2 loss 1.5\n")
    run_folder.write(run, tmp_path / "run")
    again = run_folder.read(str(tmp_path / "run"))
    assert not again.skipped
    assert [e.fields for e in metrics(again, "loss")] == [e.fields for e in metrics(run, "loss")]


def test_steps_of_a_strangers_recording_may_be_anything() -> None:
    said = {"name": "world", "steps": "#1", "values": "1"}
    odd = {
        "name": "loss",
        "steps": "\n".join(["x", "step", "step 1e", "", "step 3", "#4", f"epoch {'9' * 5_000} step x"] * 2),
    }
    odd["values"] = " ".join(["1.0"] * 14)
    events = [Event("a", n, "metric", "loss", 1, fields=fields) for n, fields in enumerate((said, odd), 1)]
    knowledge = load()
    report = examine(Run("x", events=tuple(events)), knowledge, compile_prefilter(knowledge), Options())
    assert report.verdict is None


def test_a_loss_beyond_all_measure_is_compared_with_no_guess(tmp_path: Path) -> None:
    lines = "".join(f"step {n} loss {9000 + n % 3} accuracy {0.1 + n % 3 / 100}\n" for n in range(40))
    (tmp_path / "job.log").write_text(lines, "utf-8")
    assert diagnose(tmp_path / "job.log").verdict is None


def test_a_loss_that_is_no_number_is_shown_where_it_began(tmp_path: Path) -> None:
    good = "".join(f"[{r}] step {step} loss {2 / step:.3f}\n" for step in (1, 2, 3) for r in (0, 1))
    bad = "".join(f"[{r}] step {step} loss nan\n" for step in (4, 5, 6, 7, 8) for r in (0, 1))
    (tmp_path / "job.log").write_text(good + bad + "done\n", "utf-8")
    verdict = diagnose(tmp_path / "job.log").verdict
    assert verdict is not None and verdict.symptom == "numerical-instability"
    assert "loss = nan (since step 4)" in verdict.summary and "4 loss" not in verdict.fields["what"]
    assert verdict.evidence[0].event.line == 7


def test_what_a_ranks_file_lists_of_all_ranks_is_each_ones(tmp_path: Path) -> None:
    timers = "times across ranks (ms):\n  forward-compute:\n" + "".join(
        f"     rank {r:2}: {100 + r}.00\n" for r in range(4)
    )
    text = "".join(f" iteration {n}/ 100 | lm loss: 1.{n}\n{timers}" for n in range(1, 4))
    run = read(tmp_path, text, "megatron_rank3.out")
    told = {one.rank: [round(value, 6) for value in one.said] for one in every(run, "compute_time")}
    assert told == {rank: [(100 + rank) / 1e3] * 3 for rank in range(4)}


def test_since_when_a_value_is_no_number_is_kept_exactly(tmp_path: Path) -> None:
    text = "".join(f"step {n} loss {'nan' if n in (40, *range(301, 400)) else 1.5}\n" for n in range(400))
    (one,) = every(read(tmp_path, text), "loss")
    assert one.lost is not None
    assert (one.lost.since, one.lost.last, one.lost.before, one.lost.event.line) == ("step 301", "step 300", 1.5, 302)
    (one,) = every(read(tmp_path, "".join(f"step {n} loss 1.{n}\n" for n in range(5))), "loss")
    assert one.lost is None


@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("[r4] params cfcd208495d5 opt de66f829", {"hash params", "hash opt"}),
        ("model=0x7f10a2c4b2d0 weights 12345678", set()),
        ("params 7241732096 facade", set()),
    ],
)
def test_hashes_need_no_word_for_it(line: str, names: set[str]) -> None:
    assert {value.name for value in said_in(line).values if value.name.startswith(("hash", "state"))} == names


def test_the_name_of_a_number_keeps_no_secret(tmp_path: Path) -> None:
    token = "cvopyppwvcefeojbzmmytsdgjwecumnr"
    lines = "".join(
        f"[rank{rank}]: step {n} authorization bearer {token} retries {n}\n" for n in range(9) for rank in (0, 1)
    )
    (tmp_path / "job.log").write_text(lines, "utf-8")
    told = [event.fields for event in diagnose(tmp_path).run.events if event.kind == "metric"]
    assert told and token not in str(told)


def test_tokens_seen_so_far_are_no_work_of_a_step() -> None:
    assert [value.name for value in said_in("consumed tokens 4096").values] == ["tokens_seen"]


@pytest.mark.parametrize(
    "line",
    [
        "rank{r} step={s} loss=1.{r}{s}25",
        "2026/11/18 16:52:{s:02d} rank={r} step={s} loss=1.{r}{s}25",
        "[rank {r}] it {s} loss 1.{r}{s}25",
    ],
)
def test_lines_of_ranks_that_were_written_at_once_are_read_apart(tmp_path: Path, line: str) -> None:
    together = "".join(
        line.format(r=0, s=s) + ("" if s % 2 else "\n") + line.format(r=1, s=s) + ("\n\n" if s % 2 else "\n")
        for s in range(8)
    )

    losses = {one.rank: [*one.said] for one in every(read(tmp_path, together), "loss")}

    assert losses == {rank: [float(f"1.{rank}{s}25") for s in range(8)] for rank in (0, 1)}


def test_a_line_that_says_the_same_twice_is_one_where_no_newline_is_left_over() -> None:
    line = b"step 3 loss 1.25 best: step 2 loss 1.5"

    assert [*apart([line, b"step 4", b"", b"a row of", b""])] == [
        (0, line), (1, b"step 4"), (2, b""), (3, b"a row of"), (4, b"")
    ]  # fmt: skip


def test_more_pieces_than_processes_spoke_are_left_together() -> None:
    assert [*apart([b"rank 0 loss 1 rank 1 loss 2 rank 2 loss 3", b""])] == [
        (0, b"rank 0 loss 1 rank 1 loss 2 rank 2 loss 3"),
        (1, b""),
    ]


def test_numbers_under_names_that_stand_close_belong_to_the_name_above_them(tmp_path: Path) -> None:
    table = " step rank      loss    s/it   rss MiB\n" + "".join(
        f"{s:5d}{r:5d}{1.5 - s / 100 + r / 10:10.5f}{0.047:8.3f}{340.5 + s:10.1f}\n" for s in range(8) for r in (0, 1)
    )

    run = read(tmp_path, table)

    assert {one.rank: one.values[0] for one in every(run, "loss")} == {0: 1.5, 1: 1.6}
    assert {one.values[-1] for one in every(run, "memory rss")} == {347.5 * 2**20}


def test_processes_that_name_themselves_as_such_are_ranks(tmp_path: Path) -> None:
    lines = "".join(f"16:59:5{s} | proc {r} | epoch {s} loss 1.{r}{s}\n" for s in range(5) for r in range(4))

    assert {one.rank for one in every(read(tmp_path, lines), "loss")} == {0, 1, 2, 3}
