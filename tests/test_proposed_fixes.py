"""What a report proposes: filled in from the evidence, and never with a hole in it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.commands import build_parser
from paramedic.detect import footprint
from paramedic.fix import fixes_for
from paramedic.knowledge import Knowledge, load
from paramedic.knowledge.cures import load_cures
from paramedic.model import Cause, Event, Evidence, Finding, Fix, Report, Run
from paramedic.report import FORMATS, render
from paramedic.report.action import copyable

pytestmark = pytest.mark.usefixtures("rules_loaded_once")

SHAPES = """[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/me/train.py", line 6, in <module>
[rank1]:     y = net(x)
[rank1]:   File "/opt/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py", line 134, in forward
[rank1]:     return F.linear(input, self.weight, self.bias)
[rank1]: RuntimeError: mat1 and mat2 shapes cannot be multiplied (4x9 and 8x2)
[rank0]: Traceback (most recent call last):
[rank0]:   File "/home/me/train.py", line 9, in <module>
[rank0]:     loss.backward()
[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:20911
"""


@pytest.fixture
def shapes(knowledge: Knowledge) -> Finding:
    """A finding that says nothing beyond its rule."""
    rule = knowledge.rules["CODE001"]
    cause = Cause("data-or-input-defect", 0.5)
    return Finding(rule.id, rule.symptom, "error", "rank", (1,), (), 0.9, "", (), causes=(cause,))


def with_rule(knowledge: Knowledge, *fixes: Fix) -> Knowledge:
    rule = replace(knowledge.rules["CODE001"], fixes=fixes)
    return replace(knowledge, rules={**knowledge.rules, rule.id: rule})


def made(run: str, verify: str = "", title: str = "Do it") -> Fix:
    return Fix("version-and-dependency-management", title, "manual", {"kind": "command", "run": run}, verify)


def test_a_cure_quotes_the_error_and_the_users_own_frame(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text(SHAPES, "utf-8")
    report = diagnose(tmp_path / "job.log")
    assert report.verdict is not None
    hint = "/home/me/train.py:6 in <module>\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (4x9 and 8x2)"
    assert copyable(report.verdict.fixes[0].action) == hint
    assert not [format for format in FORMATS if "{where}" in render(report, format)]


def test_what_cannot_be_filled_is_left_out_in_every_format(shapes: Finding, knowledge: Knowledge) -> None:
    fixes = fixes_for(shapes, knowledge)
    assert fixes[0].action == {"kind": "code"}
    quoted = Evidence(Event("job.log", 3, "line", "RuntimeError: no", line=4, rank=1))
    verdict = replace(shapes, fixes=fixes[:1], evidence=(quoted,))
    report = Report(Run("r"), verdict, (verdict,))
    for format in FORMATS:
        text = render(report, format)
        assert "{where}" not in text and "{exception}" not in text
    assert "code:" not in render(report, "text")


def test_half_a_command_is_none_and_half_a_title_no_fix(shapes: Finding, knowledge: Knowledge) -> None:
    known = with_rule(knowledge, made("rm {left}; ls {nowhere}", "see {nowhere}"), made("ls", title="Mend {nowhere}"))
    (fix,) = fixes_for(replace(shapes, fields={"left": "a"}), known)
    assert fix.action == {"kind": "command"} and fix.verify == ""


def test_braces_of_a_shell_and_of_python_are_no_holes(shapes: Finding, knowledge: Knowledge) -> None:
    runs = "ls ${HOME}; find . -exec ls {} +", "torch.save(state, f'{folder}/optimizer-{rank}.pt')"
    fixes = fixes_for(shapes, with_rule(knowledge, *map(made, runs)))
    assert tuple(copyable(fix.action) for fix in fixes) == runs


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("transformerz", "pip install transformerz "),
        ("yaml.nodes", "pip install PyYAML "),
        ("x; reboot", "pip install <package of the module> "),
    ],
)
def test_names_that_the_message_gives_stand_in_the_command(
    module: str, command: str, shapes: Finding, knowledge: Knowledge
) -> None:
    first = fixes_for(replace(shapes, rule="ENV001", causes=(), fields={"module": module}), knowledge)[0]
    assert command in copyable(first.action)
    assert ("<module>" in first.verify) == (";" in module)


def test_a_missing_file_stands_in_the_command(shapes: Finding, knowledge: Knowledge) -> None:
    missing = replace(shapes, rule="ENV003", causes=(), fields={"path": "/data/a.bin"})
    assert any("test -e /data/a.bin ||" in copyable(fix.action) for fix in fixes_for(missing, knowledge))


_PLACEHOLDERS = {"NODES": "4", "BATCH": "8", "TOKENS": "2048", "GPU": "h100", "R": "0"}


def _commands() -> list[tuple[str, str]]:
    """Of all rules and cures, what is to be run with our own command line."""
    fixes = [(rule.id, fix) for rule in load().rules.values() for fix in rule.fixes] + [*load_cures().items()]
    runs = [(name, str(fix.action.get("run", ""))) for name, fix in fixes]
    plans = [footprint.plan_command(None, card, 8) for card in (None, 16 << 30, 80 << 30, 141 << 30)]
    return [(name, run) for name, run in (*runs, *(("plan", plan) for plan in plans)) if run.startswith("paramedic ")]


@pytest.mark.parametrize(("rule", "command"), _commands())
def test_what_is_to_be_run_is_understood_by_our_own_command_line(rule: str, command: str) -> None:
    words = [_PLACEHOLDERS.get(word, word) for word in shlex.split(command)[1:]]
    words = words[: words.index("--")] if "--" in words else words
    assert build_parser().parse_args(words).verb == words[0], rule


def test_a_pods_memory_limit_is_raised_in_kubernetes_and_a_steps_in_slurm(tmp_path: Path) -> None:
    for name, said, first in (
        ("pods.txt", "train-worker-1   0/1   OOMKilled   0   12m\n", "resources.limits.memory"),
        ("slurm.out", "slurmstepd: error: Detected 1 oom_kill event in StepId=1054.0. Some of the step\n", "--mem=0"),
    ):
        (tmp_path / name).write_text(said, "utf-8")
        verdict = diagnose(tmp_path / name).verdict
        assert verdict is not None
        assert first in str(verdict.fixes[0].action["argument"])
        assert [fix.action["kind"] for fix in verdict.fixes] == ["launch", "code"]
    assert "train-worker-1" in str(getattr(diagnose(tmp_path / "pods.txt").verdict, "summary", ""))
