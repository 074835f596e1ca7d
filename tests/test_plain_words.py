"""Plain words: a description instead of a log, what it sounds like, and that a log is never taken for one."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from paramedic import diagnose
from paramedic.collect.files import collect
from paramedic.collect.prose import facts, failing_ranks, is_prose
from paramedic.commands import main
from paramedic.detect import description, words
from paramedic.detect.description import symptoms_of as heard_in
from paramedic.knowledge import load_taxonomy
from paramedic.knowledge.wordings import NONE, descriptions, fingerprint
from paramedic.model import VERDICT_AT
from paramedic.prefilter import Prefilter

HERE = Path(__file__).parent
SENTENCES = [
    (symptom.strip(), text.strip())
    for line in (HERE / "plain_words.txt").read_text("utf-8").splitlines()
    if not line.startswith("#")
    for symptom, text in [line.split("|", 1)]
]
FAILURES = [(symptom, text) for symptom, text in SENTENCES if symptom != NONE]
TALK = [text for symptom, text in SENTENCES if symptom == NONE]

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def diagnosed(text: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    main(["diagnose", "-", "--format", "json"])
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


# -- how good it is ------------------------------------------------------------------------------------------------


def test_the_sentences_are_others_than_those_learnt_and_name_every_symptom() -> None:
    learnt = {line.strip().lower() for entry in descriptions().values() for line in entry["said"].split("\n")}
    assert not [text for _, text in SENTENCES if text.lower() in learnt]
    assert {symptom for symptom, _ in FAILURES} == set(load_taxonomy().symptoms)
    assert len(FAILURES) >= 120
    assert len(TALK) >= 20


def test_recognised_share() -> None:
    """docs/diagnose.md has these figures: run with -s to see them."""
    ranked = [(symptom, heard_in(text)) for symptom, text in FAILURES]
    first = sum(found[0][0] == symptom for symptom, found in ranked) / len(ranked)
    among_three = sum(symptom in [id for id, _ in found[:3]] for symptom, found in ranked) / len(ranked)
    named = [found[0][0] == symptom for symptom, found in ranked if found[0][1] >= VERDICT_AT]
    print(f"{len(ranked)} sentences: first {first:.1%}, among three {among_three:.1%}; verdicts {len(named)}, ", end="")
    print(f"right {sum(named) / len(named):.1%}")
    assert first >= 0.82
    assert among_three >= 0.95
    assert sum(named) / len(named) >= 0.9


def test_no_verdict_where_nothing_failed() -> None:
    shares = {text: heard_in(text)[0] for text in TALK if not description.asks(text)}
    assert not [text for text, (_, share) in shares.items() if share >= VERDICT_AT]
    quiet = [text for text, (_, share) in shares.items() if share < description.LEAST]
    print(f"{len(TALK)} sentences without a failure: {len(quiet)} give no finding")
    assert len(quiet) >= 0.75 * len(TALK)


def test_the_confidence_is_that_of_being_right_on_texts_that_were_not_learnt() -> None:
    sure = [(found[0][0] == symptom, found[0][1]) for symptom, text in _of_strangers() if (found := heard_in(text))]
    for low, high in ((0.3, 0.6), (0.6, 0.9)):
        part = [(hit, share) for hit, share in sure if low <= share < high]
        assert sum(hit for hit, _ in part) / len(part) >= sum(share for _, share in part) / len(part) - 0.1


def test_what_was_learnt_is_of_the_wordings_as_they_are() -> None:
    """If not: python bench/words.py"""
    assert words.learnt().made_of == fingerprint()
    assert set(words.learnt().symptoms) == {*load_taxonomy().symptoms, NONE}


def test_what_is_written_is_read_again() -> None:
    model = words.learnt()
    assert words.parsed(words.written(model)) == model


def test_a_text_of_nothing_but_unknown_words_gets_no_sure_answer() -> None:
    assert heard_in("quokka wombat kookaburra bandicoot")[0][1] < VERDICT_AT


# -- what is a description -----------------------------------------------------------------------------------------


def test_the_sentence_of_the_manual(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "my training hangs after the first epoch when I use 2 nodes, NCCL timeout\n"
    document = diagnosed(text, capsys, monkeypatch)
    verdict = document["verdict"]
    assert (verdict["symptom"], verdict["rule"], verdict["scope"]) == ("collective-hang", "JOB017", "job")
    assert verdict["confidence"] <= description.SUREST
    assert verdict["causes"]
    assert "collect" in verdict["summary"]
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE" in verdict["fixes"][0]["action"]["run"]
    assert "{" not in json.dumps(verdict["fixes"]).replace("{", "", json.dumps(verdict["fixes"]).count('{"'))
    assert document["run"]["frameworks"] == ["nccl"]


def test_a_file_in_words_and_what_it_says_of_the_job(tmp_path: Path, prefilter: Prefilter) -> None:
    file = tmp_path / "issue.md"
    file.write_text(
        "# Crash with DeepSpeed\n\nWe train with DeepSpeed and torch 2.1.0 on 2 nodes with 8 GPUs each.\n"
        "After an hour rank 3 dies with a segmentation fault and nothing else is printed.\n"
    )
    run = collect([str(file)], prefilter)
    assert run.world_size == 16
    assert set(run.frameworks) >= {"deepspeed", "pytorch"}
    assert {(fact.name, fact.value) for fact in run.facts} >= {("version torch", "2.1.0"), ("nodes", 2)}
    assert [event.kind for event in run.events if event.kind == "description"] == ["description"]
    assert run.sources[0].kind == "description"


def test_a_rank_that_is_said_to_fail_is_named_and_one_that_waits_is_not(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    crash = diagnosed("rank 3 crashes with a segmentation fault, core dumped", capsys, monkeypatch)
    assert (crash["verdict"]["symptom"], crash["verdict"]["ranks"]) == ("native-crash", [3])
    wait = diagnosed("rank 3 hangs in allreduce until the NCCL watchdog timeout", capsys, monkeypatch)
    assert (wait["verdict"]["symptom"], wait["verdict"]["ranks"]) == ("collective-hang", [])


@pytest.mark.parametrize(
    ("text", "symptom", "ranks"),
    [
        ("it OOMs on rank 3 only", "device-out-of-memory", [3]),
        ("rank 3 is out of memory, the others are fine", "device-out-of-memory", [3]),
        ("rank 3 died with CUDA error: device-side assert triggered", "accelerator-fault", [3]),
        ("ranks 3 and 5 go out of GPU memory in the backward pass", "device-out-of-memory", [3, 5]),
    ],
)
def test_a_rank_that_is_named_in_words_is_the_verdicts(
    text: str, symptom: str, ranks: list[int], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    verdict = diagnosed(text, capsys, monkeypatch)["verdict"]
    assert (verdict["symptom"], verdict["ranks"], verdict["scope"]) == (symptom, ranks, "rank")


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        ("ranks 8-11 die when the node reboots", (8, 9, 10, 11)),
        ("the loss is nan on rank 2", (2,)),
        ("rank 3 (node-2) segfaults", (3,)),
        ("rank 4 got OOM-killed", (4,)),
        ("rank 0 says that rank 3 died", ()),
        ("it fails waiting on rank 3", ()),
        ("error: connection closed by rank 3", ()),
        ("rank 3 never fails", ()),
        ("lora rank 16 fails, rank 8 does not", ()),
        ("lora rank 16 crashes", ()),
    ],
)
def test_who_waits_or_is_named_beside_others_is_not_said_to_fail(text: str, ranks: tuple[int, ...]) -> None:
    assert failing_ranks(text) == ranks


def test_a_quoted_log_line_that_a_signature_knows_decides(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "Hi, my job is so slow and then it stops. I get this:\n\n```\n[rank1]: torch.OutOfMemoryError: CUDA out of memory. "
        "Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.15 GiB of which 1.00 GiB is free.\n```\nWhat can I do?\n"
    )
    document = diagnosed(text, capsys, monkeypatch)
    assert document["verdict"]["symptom"] == "device-out-of-memory"
    assert document["verdict"]["rule"].startswith("MEM")
    assert "JOB017" not in {finding["rule"] for finding in document["findings"]}


@pytest.mark.parametrize(
    "text", ["how do I enable FSDP?", "thanks, works now", "hello world", "I like turtles", "ok fine"]
)
def test_talk_gives_no_finding(text: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    document = diagnosed(text, capsys, monkeypatch)
    assert (document["verdict"], document["findings"]) == (None, [])


@pytest.mark.parametrize(
    "text",
    [
        "our finetune hangs in epoch 2, node 3's workers vanish and the others say NCCL timeout",
        "it dies somewhere in epoch 2. sometimes 3 hours in, sometimes 8, and no rank has a traceback",
        "training hangs at epoch 1 step 200",
        "We see it in step 1200, rank 5 is then\nalone and the others wait for it.\nAt batch 7 of 9 it is over.",
    ],
)
def test_who_names_an_epoch_or_a_step_in_a_sentence_still_describes(text: str) -> None:
    assert is_prose(text)


def test_a_candidate_is_named_with_what_to_collect_and_fails_no_build(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "at night a node vanishes or everything just waits, I cannot tell which\n"
    document = diagnosed(text, capsys, monkeypatch)
    (one,) = document["findings"]
    assert document["verdict"] is None
    assert (one["rule"], one["severity"]) == ("JOB017", "warning")
    assert one["confidence"] < VERDICT_AT
    first, second = (symptom.replace("-", " ") for symptom, _ in heard_in(text)[:2])
    assert f"sounds like {first}, or {second} (" in one["summary"]
    assert "collect " in one["summary"]
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    assert main(["diagnose", "-", "--quiet"]) == 0


@pytest.mark.parametrize(
    "text",
    [
        "epoch 2, loss 3.1, lr 0.001\n",
        "Epoch 2 step 300 loss is 2.5 lr 3e-4\n",
        "step 1 loss 0.3\nstep 2 loss 0.2\n",
        "[rank0]: starting\n[rank0]: done\n",
        "2026-01-01 10:00:00 INFO starting the training on 8 gpus\n2026-01-01 10:00:01 INFO the model is built\n",
        "Loading dataset\nBuilding model\nEpoch 1 done\nEpoch 2 done\n",
        "/srv/train.py:3: UserWarning: the loss is not finite in this step and will be skipped\n  warnings.warn(",
        "0: hello there\n1: hello there\n0: it is fine\n1: it is fine\n",
    ],
)
def test_a_log_is_no_description(text: str) -> None:
    assert not is_prose(text)


def test_recordings_are_not_taken_for_descriptions() -> None:
    """But for what a launcher itself writes in sentences: those signatures know, and they come first."""
    logs = [*(HERE / "healthy" / "logs").glob("*.log"), *(HERE.parent / "corpus").glob("*/*/input/**/console.log")]
    short = [file for file in logs if file.stat().st_size < 32 << 10]
    taken = [file for file in short if is_prose(file.read_text("utf-8", "replace"))]
    assert len(taken) <= 0.01 * len(short)


def test_a_description_beside_logs_is_left_alone(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "notes.txt").write_text("my training hangs after the first epoch, nccl timeout\n")
    (tmp_path / "job.log").write_text("step 1 loss 0.3\n")
    assert main(["diagnose", str(tmp_path), "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("training on 16 GPUs fails", 16),
        ("2 nodes x 4 gpus", 8),
        ("two machines, 8 GPUs each", 16),
        ("works on 1 gpu, fails on 8 gpus", None),
        ("on 4 nodes it hangs", None),
        ("scaling from 8 to 64 gpus is bad", None),
        ("nothing said", None),
    ],
)
def test_world_size_in_words(text: str, found: int | None) -> None:
    assert next((fact.value for fact in facts(text, "-") if fact.name == "world_size"), None) == found


def test_hostile_text_is_shown_safely(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "my training hangs, nccl timeout \x1b[31m {logs} {0.__class__} HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\n"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    main(["diagnose", "-"])
    page = capsys.readouterr().out
    assert "\x1b" not in page
    assert "hf_abc" not in page
    assert heard_in("x" * 1_000_000)
    assert heard_in("")


def _of_strangers() -> list[tuple[str, str]]:
    """By an author who knew nothing of what is learnt."""
    lines = (HERE / "plain_words_of_strangers.txt").read_text("utf-8").splitlines()
    return [(s.strip(), t.strip()) for line in lines if not line.startswith("#") for s, t in [line.split("|", 1)]]


def test_recognised_share_of_what_strangers_write() -> None:
    """docs/diagnose.md has these figures."""
    said = _of_strangers()
    failures = [(symptom, heard_in(text)) for symptom, text in said if symptom != NONE]
    first = sum(found[0][0] == symptom for symptom, found in failures) / len(failures)
    among_three = sum(symptom in [id for id, _ in found[:3]] for symptom, found in failures) / len(failures)
    talk = [heard_in(text)[0][1] for symptom, text in said if symptom == NONE]
    quiet = sum(share < VERDICT_AT for share in talk) / len(talk)
    print(
        f"{len(failures)} of strangers: first {first:.1%}, three {among_three:.1%}; talk without a verdict {quiet:.1%}"
    )
    assert first >= 0.9
    assert among_three >= 0.96
    assert quiet >= 0.95


def test_figures_that_a_message_quotes_are_read_as_those_of_a_log(tmp_path: Path) -> None:
    rows = "".join(f"step {n} loss 2.5 alloc {6 + n / 200:.2f} GiB\n" for n in range(0, 6000, 250))
    words = "Hi, the memory of my job goes up a little with every step and I have to restart it. What can I do?\n"
    (tmp_path / "mail.txt").write_text(f"{words}\n```\n{rows}```\nIs it the buckets of DDP?\n", "utf-8")
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None
    assert (verdict.symptom, verdict.evidence[0].event.kind) == ("memory-growth", "metric")
