"""A rank runs again alone, bit for bit; where it does not, the first difference is named; and two recordings compared."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paramedic.commands import main
from paramedic.rank.tape import VERSION, Tape
from paramedic.replay import reading
from paramedic.replay.compare import compare
from paramedic.ward import environments
from test_record import PROGRAM, recording
from test_run import PARAMEDIC, Job, environment, said, start, torchrun  # noqa: F401

Start = Callable[..., Job]
SCHEMA = json.loads(resources.files("paramedic.replay").joinpath("replay.schema.json").read_text("utf-8"))
EXAMPLE = Path(__file__).parents[1] / "examples" / "nan-at-step-37"


def again(folder: Path, *flags: str, program: Path = PROGRAM, python: str = sys.executable) -> list[str]:
    return [*PARAMEDIC, "replay", str(folder), *flags, "--format", "json", "--", python, str(program)]


def replayed(job: Job) -> tuple[int, dict[str, Any], str]:
    code, out, err = job.ended()
    found = json.loads(out) if out else {}
    if found:
        jsonschema.validate(found, SCHEMA)
    return code, found, err


# -- a tape of its own ---------------------------------------------------------------------------------------------


def head(rank: int, size: int) -> dict[str, Any]:
    return {
        "rank": rank, "world_size": size, "payload": "ring",
        "environment": {"threads": 1, "program": ["python", "train.py"], "variables": {"LD_PRELOAD": "x", "RANK": "0"}},
    }  # fmt: skip


def written(folder: Path, ranks: Mapping[int, list[dict[str, Any]]], size: int = 4) -> Path:
    for rank, lines in ranks.items():
        tape = Tape(str(folder / f"recording/rank-{rank:05d}"), 1 << 20)
        tape.head(head(rank, size))
        for line in lines:
            tape.line(line)
    return folder


def steps(values: str, out: str = "sum", loss: float = 1.0) -> list[dict[str, Any]]:
    """A step a letter: a batch, an all-reduce of that letter, the state after it."""
    lines: list[dict[str, Any]] = []
    for number, letter in enumerate(values):
        call = {"in": [["float32", [4]]], "out": [["float32", [4]]], "reduce": "SUM"}
        lines += [
            {"k": "b", "s": number, "h": f"batch {number}", "t": []},
            {"k": "l", "s": number, "h": f"{loss}", "v": loss},
            {"k": "c", "s": number, "i": number, "g": "0", "q": number + 1, "op": "allreduce", "h": letter, **call},
            {"k": "d", "s": number, "i": number, "h": out if out != "sum" else f"sum {number}"},
            {"k": "s", "s": number + 1, "i": number + 1},
        ]
    return lines


def test_the_rank_whose_input_differs_is_the_origin_and_the_others_got_it(tmp_path: Path) -> None:
    good = written(tmp_path / "a", {rank: steps("abcd") for rank in range(4)})
    bad = {rank: steps("abcd") for rank in range(4)}
    bad[2] = steps("abXd")
    for lines in bad.values():
        lines[13]["h"] = "another sum"
    found = compare(reading.read(str(good)), reading.read(str(written(tmp_path / "b", bad))))
    assert found.origins == (2,)
    assert {rank: one.kind for rank, one in found.first.items()} == {0: "output", 1: "output", 2: "input", 3: "output"}
    assert (found.first[2].step, found.first[2].call) == (2, 2)


def test_a_result_that_only_one_rank_got_is_told_from_what_a_rank_did(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = {rank: steps("abcd") for rank in range(3)}
    written(tmp_path / "a", ranks, 3)
    other = {rank: steps("abcd") for rank in range(3)}
    other[1][8]["h"] = "damaged on the way"
    written(tmp_path / "b", other, 3)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert (
        "Rank 1 got another result from equal inputs: output of call 1 (allreduce, group 0), step 2"
        in capsys.readouterr().out
    )
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "a"), "--format", "json"]) == 0
    jsonschema.validate(json.loads(capsys.readouterr().out), SCHEMA)


def test_other_calls_and_other_losses_are_differences(tmp_path: Path) -> None:
    a = reading.read(str(written(tmp_path / "a", {0: steps("abc")}, 1)))
    other = steps("abc")
    other[2]["reduce"] = "MAX"
    found = compare(a, reading.read(str(written(tmp_path / "b", {0: other}, 1))))
    assert (found.first[0].kind, found.first[0].detail) == ("call", "reduce MAX instead of SUM")
    found = compare(a, reading.read(str(written(tmp_path / "c", {0: steps("abc", loss=2.0)}, 1))))
    assert (found.first[0].kind, found.first[0].detail) == ("loss", "1.0 and 2.0")


def test_the_first_operation_that_differs_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, value in (("a", "same"), ("b", "other")):
        written(tmp_path / name, {0: steps("ab" if name == "a" else "aX")}, 1)
        ops = [
            {"n": 0, "s": 1, "op": "aten.mm", "m": "first (Linear)", "w": "forward", "h": "same"},
            {"n": 1, "s": 1, "op": "aten.add", "m": "blocks.1 (Block)", "w": "forward", "h": value},
        ]
        (tmp_path / name / "recording/rank-00000/ops.seg").write_text("".join(json.dumps(one) + "\n" for one in ops))
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert "first operation that differs: aten.add in blocks.1 (Block) (forward), step 2" in capsys.readouterr().out


def test_nothing_in_common_is_no_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a", {0: steps("a")}, 1)
    written(tmp_path / "b", {1: steps("a")}, 2)
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 3
    assert "Nothing to compare" in capsys.readouterr().out


# -- bad input -----------------------------------------------------------------------------------------------------


def _other_version(folder: Path) -> None:
    file = folder / "recording/rank-00000/head.json"
    file.write_text(file.read_text().replace(f'"paramedic_recording": {VERSION}', '"paramedic_recording": 7'))


def _no_head(folder: Path) -> None:
    (folder / "recording/rank-00000/head.json").write_text("{")


def _strange_lines(folder: Path) -> None:
    shutil.rmtree(folder)
    written(folder, {0: [{"k": "c", "i": 3}]}, 1)


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_other_version, "recording format version 7; this Paramedic reads version 2"),
        (_no_head, "damaged"),
        (_strange_lines, "damaged recording"),
        (shutil.rmtree, "cannot be read"),
        (lambda folder: shutil.rmtree(folder / "recording"), "no recording"),
    ],
)
def test_what_is_no_recording_is_said_in_one_line(
    spoil: Callable[[Path], None], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", {0: steps("ab")}, 1)
    spoil(tmp_path / "a")
    assert main(["replay", str(tmp_path / "a"), "--rank", "0", "--", "true"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert why in captured.err
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--rank", "0"], "it was recorded as: python train.py"),
        (["--rank", "9", "--", "true"], "has no rank 9; it has 0"),
        (["--rank", "0", "--all", "--", "true"], "choose one"),
        (["--ops", "--", "true"], "needs -o DIR"),
        (["--warm-up", "0", "--", "true"], "at least one step"),
        (["--until", "0", "--", "true"], "the first step is step 1"),
        (["--procs", "--pdb", "--", "true"], "--pdb is for one that runs alone"),
        (["--procs", "--", "true"], "ended with exit code 0 and no rank recorded anything"),
        (["--rank", "0", "--", "/no/such/program"], "cannot be started"),
    ],
)
def test_what_is_asked_wrongly_is_refused(
    arguments: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", {0: steps("ab")}, 1)
    assert main(["replay", str(tmp_path / "a"), *arguments]) == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize("what", ["a receive from any source", "remote procedure calls"])
def test_what_cannot_be_replayed_is_refused_with_the_reason(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path / "a", {0: [*steps("ab"), {"k": "refused", "s": 1, "why": what}]}, 1)
    assert main(["replay", str(tmp_path / "a"), "--", "true"]) == 2
    assert what in capsys.readouterr().err


def test_a_recording_sets_no_variable_but_those_of_ranks_and_threads(tmp_path: Path) -> None:
    """A stranger's recording must not choose what is loaded."""
    from paramedic.replay.alone import environment

    found = environment(head(0, 4), {})
    assert "LD_PRELOAD" not in found or found["LD_PRELOAD"] != "x"
    assert (found["RANK"], found["WORLD_SIZE"], found["OMP_NUM_THREADS"]) == ("0", "4", "1")


def test_a_program_that_never_trains_is_not_called_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written(tmp_path / "a", {0: steps("ab")}, 1)
    assert main(["replay", str(tmp_path / "a"), "--quiet", "--output", str(tmp_path / "o"), "--", "true"]) == 3
    assert "not replayed" in (tmp_path / "o").read_text()


# -- real jobs -----------------------------------------------------------------------------------------------------


def test_a_rank_of_ddp_runs_again_alone_bit_for_bit(tmp_path: Path, start: Start) -> None:  # noqa: F811
    """With its data gone: the loader gives other batches here, and the recorded ones are put in their place."""
    assert start(recording(tmp_path / "rec", "--last", "2"), STEPS=5).ended()[0] == 0
    shutil.move(tmp_path / "rec", tmp_path / "elsewhere")
    code, found, err = replayed(start(again(tmp_path / "elsewhere", "--rank", "1"), STEPS=5, OTHER_DATA=1))
    assert (code, found["bitwise"]) == (0, True), err
    one = found["ranks"][0]
    assert (one["first_step"], one["last_step"]) == (2, 5)
    assert one["checked"]["gradients"][0] >= 3
    assert any("the loader gives others here" in note for note in one["notes"])


KINDS = ["ddp", "ddp-accumulate", "ddp-mixed", "fsdp1", "fsdp2", "fsdp2_tp", "hsdp", "pipeline", "zero1"]
COMPILED = ["ddp-compiled", "ddp-inside", "ddp-functional", "fsdp2-compiled"]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_runs_again_alone_bit_for_bit(kind: str, tmp_path: Path, start: Start) -> None:  # noqa: F811
    assert start(recording(tmp_path / "rec", "--last", "2", ranks=4), KIND=kind, STEPS=7).ended()[0] == 0
    code, found, err = replayed(start(again(tmp_path / "rec", "--all"), KIND=kind, STEPS=7))
    assert [one["bitwise"] for one in found["ranks"]] == [True] * 4, err
    assert code == 0
    assert found["recording"]["faults"] == []
    assert all(one["checked"]["parameters"][1] >= 3 for one in found["ranks"])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("kind", COMPILED)
def test_what_is_compiled_trains_the_same_and_runs_again_alone(
    kind: str,
    backend: str,
    tmp_path: Path,
    start: Start,  # noqa: F811
) -> None:
    if backend == "inductor" and not (shutil.which("g++") or shutil.which("clang++")):
        pytest.skip("inductor needs a C++ compiler")
    more = {"KIND": kind, "BACKEND": backend, "STEPS": 6}
    bare = start(torchrun(PROGRAM), **more).ended()
    code, out, err = start(recording(tmp_path / "rec", "--last", "2"), **more).ended()
    assert (code, said(out)) == (0, said(bare[1])), err
    assert "not whole" not in err
    code, found, err = replayed(start(again(tmp_path / "rec", "--all"), **more))
    assert (code, [one["bitwise"] for one in found["ranks"]]) == (0, [True] * 2), err
    assert found["recording"]["faults"] == []
    assert all(one["first_step"] > 1 and one["checked"]["calls"][1] > 3 for one in found["ranks"])


@pytest.mark.slow
def test_every_collective_is_played_and_objects_only_on_trust(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more = {"KIND": "calls", "STEPS": 3, "OBJECTS": 1}
    flags = ["--payload", "always"]
    assert start(recording(tmp_path / "rec", *flags, ranks=4), **more).ended()[0] == 0
    code, found, _ = replayed(start(again(tmp_path / "rec", "--rank", "2"), **more))
    assert (code, found["ranks"][0]["status"]) == (3, "refused")
    assert "--trust" in found["ranks"][0]["why"]
    code, found, err = replayed(start(again(tmp_path / "rec", "--all", "--trust"), **more))
    assert (code, found["bitwise"]) == (0, True), err
    assert found["recording"]["faults"] == []


@pytest.mark.slow
def test_what_the_machine_did_wrong_is_found_alone_compared_and_diagnosed(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more = {"KIND": "ddp", "STEPS": 5}
    flags = ["--payload", "always"]
    assert start(recording(tmp_path / "good", *flags), **more).ended()[0] == 0
    assert start(recording(tmp_path / "bad", *flags), FAULT="gradient:1:2:22", **more).ended()[0] == 0
    found = compare(reading.read(str(tmp_path / "good")), reading.read(str(tmp_path / "bad")))
    assert found.origins == (1,)
    assert found.first[1].kind == "gradients"
    assert found.first[1].names
    code, told, _ = replayed(start(again(tmp_path / "bad", "--rank", "1"), **more))
    assert (code, told["ranks"][0]["status"], told["ranks"][0]["differences"][0]["step"]) == (1, "diverged", 2)
    code, told, _ = replayed(start(again(tmp_path / "bad", "--rank", "1", "--tolerant"), **more))
    assert (code, told["ranks"][0]["status"]) == (1, "complete")
    assert len(told["ranks"][0]["differences"]) > 1
    code, told, _ = replayed(start(again(tmp_path / "bad", "--rank", "0"), **more))
    assert (code, told["bitwise"]) == (0, True)
    done = subprocess.run(
        [*PARAMEDIC, "diagnose", str(tmp_path / "bad"), "--format", "json"], capture_output=True, check=False
    )
    verdict = json.loads(done.stdout)["verdict"]
    assert (verdict["rule"], verdict["ranks"]) == ("NUM021", [1]) or len(
        verdict["ranks"]
    ) == 0  # two ranks have no majority


@pytest.mark.slow
def test_the_same_exception_is_reached_again_and_until_stops_before_it(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more = {"KIND": "ddp", "STEPS": 6, "RAISE": 4}
    assert start(recording(tmp_path / "rec"), **more).ended()[0] != 0
    code, found, _ = replayed(start(again(tmp_path / "rec", "--rank", "1"), **more))
    assert (code, found["ranks"][0]["status"]) == (0, "reproduced")
    code, found, _ = replayed(start(again(tmp_path / "rec", "--rank", "1", "--until", "2"), **more))
    assert (code, found["ranks"][0]["last_step"]) == (0, 2)


def _debugged(rec: Path, *flags: str, typed: str, result: Path, **more: object) -> str:
    """What the debugger and the program printed."""
    command = [*again(rec, "--pdb", "--output", str(result), *flags)]
    done = subprocess.run(
        command, input=typed, capture_output=True, text=True, check=False, env=environment(**more), timeout=240
    )
    return done.stdout + done.stderr


@pytest.mark.slow
def test_the_debugger_stops_where_it_goes_wrong_with_the_real_tensors(tmp_path: Path, start: Start) -> None:  # noqa: F811
    """At the first value that is not finite, at an exception, at a difference, and after the step that is asked for."""
    more: dict[str, object] = {"KIND": "ddp", "STEPS": 6}
    result = tmp_path / "result.json"
    assert start(recording(tmp_path / "rec"), RAISE=4, **more).ended()[0] != 0
    said = _debugged(
        tmp_path / "rec", "--rank", "1", typed="p 'at', done, loss.item()\nq\n", result=result, RAISE=4, **more
    )
    assert "('at', 4, " in said
    assert json.loads(result.read_text())["ranks"][0]["status"] == "reproduced"
    flags = ["--rank", "1", "--until", "3"]
    said = _debugged(tmp_path / "rec", *flags, typed="p 'at', done\nq\n", result=result, RAISE=4, **more)
    assert "('at', 2)" in said
    found = json.loads(result.read_text())["ranks"][0]
    assert (found["status"], found["last_step"], found["bitwise"]) == ("stopped", 3, True)
    assert start(recording(tmp_path / "bad"), FAULT="gradient:1:2:22", **more).ended()[0] == 0
    said = _debugged(tmp_path / "bad", "--rank", "1", typed="p 'at', done\nq\n", result=result, **more)
    assert "('at', 2)" in said
    assert json.loads(result.read_text())["ranks"][0]["status"] == "diverged"


@pytest.mark.slow
def test_the_debugger_stops_at_the_first_value_that_is_not_finite(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more: dict[str, object] = {"KIND": "ddp", "STEPS": 5, "DIVIDE": 3}
    result = tmp_path / "result.json"
    assert start(recording(tmp_path / "rec"), **more).ended()[0] == 0
    said = _debugged(
        tmp_path / "rec", "--rank", "1", typed="p 'at', done, zero.sum().item()\nq\n", result=result, **more
    )
    assert "('at', 3, 0.0)" in said
    found = json.loads(result.read_text())["ranks"][0]
    assert (found["status"], found["origin"]["step"], found["origin"]["op"]) == ("stopped", 3, "aten.div.Tensor")


@pytest.mark.slow
def test_all_ranks_again_as_processes_that_talk(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more = {"KIND": "fsdp2", "STEPS": 4}
    assert start(recording(tmp_path / "rec"), **more).ended()[0] == 0
    command = [*PARAMEDIC, "replay", str(tmp_path / "rec"), "--procs", "--", *torchrun(PROGRAM)]
    code, out, err = start(command, **more).ended()
    assert code == 0, out + err
    assert "No difference" in out


@pytest.mark.slow
def test_a_jump_needs_a_few_steps_only(tmp_path: Path, start: Start) -> None:  # noqa: F811
    more = {"KIND": "ddp", "STEPS": 13}
    assert start(recording(tmp_path / "rec", "--last", "2"), **more).ended()[0] == 0
    code, found, err = replayed(start(again(tmp_path / "rec", "--rank", "0", "--warm-up", "2"), **more))
    assert (code, found["bitwise"]) == (0, True), err
    assert found["ranks"][0]["first_step"] == 10


@pytest.mark.slow
def test_the_first_operation_of_two_replays_that_differs_is_named(tmp_path: Path, start: Start) -> None:  # noqa: F811
    """One rank multiplies by another number within one block: the program does it again, and both are compared."""
    more = {"KIND": "ddp", "STEPS": 3}
    for name, scaled in (("good", ""), ("bad", "1:1")):
        assert start(recording(tmp_path / name), SCALED=scaled, **more).ended()[0] == 0
        command = again(tmp_path / name, "--rank", "1", "--ops", "-o", str(tmp_path / f"{name}-again"))
        assert replayed(start(command, SCALED=scaled, **more))[0] == 0
    found = compare(reading.read(str(tmp_path / "good-again")), reading.read(str(tmp_path / "bad-again")))
    assert found.origins == (1,)
    assert found.operation is not None
    assert (found.operation.step, found.operation.op) == (1, "aten.mul.Tensor")
    assert found.operation.module == "module.blocks.1 (Block)"


def _story() -> tuple[list[str], list[str], list[str]]:
    """The commands in the docs, what the replay prints, what the diagnosis says."""
    page = (Path(__file__).parents[1] / "docs/replay.md").read_text("utf-8")
    blocks = page.split("## A story")[1].split("\n## ")[0].split("```")[1::2]
    commands, replay, diagnosis = ([line for line in block.splitlines()[1:] if line] for block in blocks)
    return commands, replay, diagnosis


@pytest.mark.slow
def test_the_story_of_step_37_goes_as_the_docs_tell_it(tmp_path: Path, start: Start) -> None:  # noqa: F811
    """Recorded, copied elsewhere, and the guilty module printed."""
    (tmp_path / "examples").symlink_to(EXAMPLE.parent)
    commands, replay, diagnosis = _story()
    python = {"paramedic": PARAMEDIC, "torchrun": torchrun()[:-3], "python": [sys.executable], "cp": ["cp"]}
    for line in commands:
        words = [word for one in line.split() for word in python.get(one, [one])]
        code, out, err = start(words, place=tmp_path).ended()
        assert code == 0, err
        if words[0] == "cp":
            shutil.rmtree(tmp_path / "rec")
    assert out.replace(f"{tmp_path}/", "").splitlines()[: len(replay)] == replay
    _, out, _ = start([*PARAMEDIC, "diagnose", str(tmp_path / "home")]).ended()
    assert all(line in out for line in diagnosis)


FRAMEWORKS = [
    ("deepspeed", "zero-1"),
    ("deepspeed", "zero-2"),
    ("deepspeed", "zero-3"),
    ("hf", "accelerate"),
    ("lightning", "lightning"),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "kind"), FRAMEWORKS)
def test_frameworks_run_again_alone_bit_for_bit(name: str, kind: str, tmp_path: Path, start: Start) -> None:  # noqa: F811
    python, program = str(environments.build(name) / "bin/python"), PROGRAM.parent / "frameworks.py"
    more = {"KIND": kind, "STEPS": 4}
    record = [*PARAMEDIC, "record", "--payload", "always", "-o", str(tmp_path / "rec"), "--"]
    code, _, err = start([*record, *torchrun(program, 4, python)], **more).ended()
    assert code == 0, err
    code, found, err = replayed(
        start(again(tmp_path / "rec", "--all", "--trust", program=program, python=python), **more)
    )
    assert [one["bitwise"] for one in found["ranks"]] == [True] * 4, err
    assert code == 0
    assert found["recording"]["faults"] == []
