"""What a report proposes: filled in from the evidence, and never with a hole in it."""

from __future__ import annotations

import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from paramedic import diagnose
from paramedic.commands import build_parser
from paramedic.detect import footprint
from paramedic.fix import Seen, fixes_for
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


def test_a_cure_quotes_the_error_and_the_users_own_frame(tmp_path: Path, knowledge: Knowledge) -> None:
    (tmp_path / "job.log").write_text(SHAPES, "utf-8")
    report = diagnose(tmp_path / "job.log")
    assert report.verdict is not None
    likely = replace(report.verdict, causes=(Cause("data-or-input-defect", 0.5),))
    fix, *_ = fixes_for(likely, with_rule(knowledge, replace(made("ls"), cause="model-construction-error")))
    hint = "/home/me/train.py:6 in <module>\nRuntimeError: mat1 and mat2 shapes cannot be multiplied (4x9 and 8x2)"
    assert copyable(fix.action) == hint
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
        ("x; reboot", "pip install PACKAGE_OF_THE_MODULE "),
    ],
)
def test_names_that_the_message_gives_stand_in_the_command(
    module: str, command: str, shapes: Finding, knowledge: Knowledge
) -> None:
    first = fixes_for(replace(shapes, rule="ENV001", causes=(), fields={"module": module}), knowledge)[0]
    assert command in copyable(first.action)
    assert ("MODULE" in first.verify) == (";" in module)


@pytest.mark.parametrize(
    "path", ["/data/x'; reboot; '", "/data/$(reboot)", "/data/a\nreboot", "--help", "a`b`", "a|sh", "a>b"]
)
def test_what_a_log_says_is_never_a_command(path: str, shapes: Finding, knowledge: Knowledge) -> None:
    fix = made("rm -r '{path}'  # as the log says", title="Remove {path}")
    (shown,) = fixes_for(replace(shapes, fields={"path": path}), with_rule(knowledge, fix))
    assert "run" not in shown.action and path in shown.title
    spaced = replace(shapes, fields={"path": "/data/my runs", "where": "a.py:1 in <module>"})
    (shown,) = fixes_for(spaced, with_rule(knowledge, made("rm -r '{path}'  # {where}")))
    assert shown.action["run"] == "rm -r '/data/my runs'  # a.py:1 in <module>"


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


def test_every_command_is_one_that_a_shell_can_read(knowledge: Knowledge) -> None:
    fixes = [(rule.id, fix) for rule in knowledge.rules.values() for fix in rule.fixes] + [*load_cures().items()]
    runs = [(name, str(fix.action["run"])) for name, fix in fixes if "run" in fix.action]
    plain = [(name, _HOLE.sub(lambda hole: hole[1] or "X", run).replace("…", "x")) for name, run in runs]
    script = "\n".join(f"{{ # {name}\n:\n{run}\n}}" for name, run in plain)
    assert len(plain) > 1000
    assert not subprocess.run(["bash", "-n"], input=script, capture_output=True, check=False, text=True).stderr


_HOLE = re.compile(r"\{\w+(?:\|([^{}]*))?\}")


def test_a_pods_memory_limit_is_raised_in_kubernetes_and_a_steps_in_slurm(tmp_path: Path) -> None:
    for name, said, first in (
        ("pods.txt", "train-worker-1   0/1   OOMKilled   0   12m\n", "resources.limits.memory"),
        ("slurm.out", "slurmstepd: error: Detected 1 oom_kill event in StepId=1054.0. Some of the step\n", "--mem=0"),
    ):
        (tmp_path / name).write_text(said, "utf-8")
        verdict = diagnose(tmp_path / name).verdict
        assert verdict is not None
        assert first in str(verdict.fixes[0].action["argument"])
        assert [fix.action["kind"] for fix in verdict.fixes][:2] == ["launch", "code"]
    assert "train-worker-1" in str(getattr(diagnose(tmp_path / "pods.txt").verdict, "summary", ""))


# -- which fix, by what was seen -----------------------------------------------------------------------------------


def chosen(finding: Finding, knowledge: Knowledge, seen: Seen | None = None) -> list[str]:
    return [fix.title for fix in fixes_for(finding, knowledge, seen)]


def quoting(finding: Finding, text: str, **fields: object) -> Finding:
    return replace(finding, evidence=(Evidence(Event("job.log", 3, "exception", text, line=4, rank=1, fields=fields)),))


def test_a_fix_that_the_evidence_speaks_for_comes_first(shapes: Finding, knowledge: Knowledge) -> None:
    usual = replace(made("ls", title="Halve the batch"), cause="data-or-input-defect")
    special = replace(
        made("ls", title="Bound the tokens of layer {layer}"), when={"said": r"/moe/layer(?P<layer>\d+)\.py:"}
    )
    known = with_rule(knowledge, usual, special)
    assert chosen(shapes, known) == ["Halve the batch"]
    finding = quoting(shapes, "RuntimeError: no", frames=["/srv/moe/layer7.py:220 in forward"])
    assert chosen(finding, known) == ["Bound the tokens of layer 7", "Halve the batch"]
    told = replace(special, when={**special.when, "unless": "RuntimeError"})
    assert chosen(finding, with_rule(knowledge, usual, told)) == ["Halve the batch"]


def test_a_fix_is_chosen_by_launcher_and_by_what_else_was_found(shapes: Finding, knowledge: Knowledge) -> None:
    here = replace(made("ls", title="Torchrun's way"), when={"systems": ["torchrun", "!mpi"]})
    there = replace(made("ls", title="Everybody's way"), cause="data-or-input-defect")
    beside = replace(made("ls", title="End the other job"), when={"beside": ["MEM040", "NET"]})
    known = with_rule(knowledge, here, there, beside)

    def seen(text: str, *rules: str) -> Seen:
        return Seen(Run("r", events=(Event("job.log", 1, "line", text),)), frozenset(rules))

    assert chosen(shapes, known, seen("torchrun --nnodes 2 train.py")) == ["Torchrun's way", "Everybody's way"]
    assert chosen(shapes, known, seen("mpirun -np 2 torchrun train.py")) == ["Everybody's way"]
    assert chosen(shapes, known, seen("step 1", "NET034", "CODE001"))[0] == "End the other job"
    assert chosen(shapes, known, seen("step 1", "MEM001")) == ["Everybody's way"]


def test_a_hole_says_what_may_stand_instead_and_takes_only_plain_words(shapes: Finding, knowledge: Knowledge) -> None:
    known = with_rule(knowledge, made("ssh {host|NODE} uptime", title="Look at {host|the node}"))
    (fix,) = fixes_for(shapes, known)
    assert (fix.title, fix.action["run"]) == ("Look at the node", "ssh NODE uptime")
    (fix,) = fixes_for(replace(shapes, hosts=("gpu-07",)), known)
    assert (fix.title, fix.action["run"]) == ("Look at gpu-07", "ssh gpu-07 uptime")
    (fix,) = fixes_for(replace(shapes, fields={"host": "a; rm -rf ~"}), known)
    assert fix.action["run"] == "ssh NODE uptime"


def test_a_captured_text_is_never_a_template(shapes: Finding, knowledge: Knowledge) -> None:
    known = with_rule(knowledge, made("echo {left}"))
    (fix,) = fixes_for(replace(shapes, fields={"left": "{right}", "right": "no"}), known)
    assert fix.action["run"] == "echo {right}"


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("srun: error: gpu-07: task 3: Killed", "scontrol update NodeName=gpu-07 State=DRAIN"),
        ("Warning BackOff kubelet restarting", "kubectl cordon gpu-07"),
        ("horovodrun -np 4 python train.py", "# start again without gpu-07 in -H, the hostfile"),
        ("mpirun noticed that process rank 3 exited", "# start again without gpu-07 in -H"),
        ("step 1 loss 2.5", "# Slurm\nscontrol update NodeName=gpu-07"),
    ],
)
def test_a_node_is_left_out_in_the_words_of_who_started_the_job(
    shapes: Finding, knowledge: Knowledge, said: str, first: str
) -> None:
    seen = Seen(Run("r", events=(Event("job.log", 1, "line", said),)))
    (fix,) = fixes_for(replace(shapes, hosts=("gpu-07",)), with_rule(knowledge, made("{drain}")), seen)
    assert fix.action["run"].startswith(first)


@pytest.mark.parametrize(
    ("hosts", "cordoned"),
    [
        (("gpu-07", "gpu-07.cluster.local", "gpu-08"), ["gpu-07", "gpu-08"]),
        (("llm-worker-3",), ["\"$(kubectl get pod llm-worker-3 -o jsonpath='{.spec.nodeName}')\""]),
    ],
)
def test_each_node_is_left_out_once_and_a_pod_is_none(
    shapes: Finding, knowledge: Knowledge, hosts: tuple[str, ...], cordoned: list[str]
) -> None:
    seen = Seen(Run("r", events=(Event("job.log", 1, "line", "kubectl get pods"),)))
    (fix,) = fixes_for(replace(shapes, hosts=hosts), with_rule(knowledge, made("{drain}")), seen)
    assert fix.action["run"].split("\n") == [f"kubectl cordon {node}" for node in cordoned]


def test_the_node_that_a_fix_captured_is_left_out(shapes: Finding, knowledge: Knowledge) -> None:
    special = replace(made("{drain}"), when={"said": r"no GPU on (?P<host>\S+)"})
    seen = Seen(Run("r", events=(Event("job.log", 1, "line", "srun: error"),)))
    fixes = fixes_for(quoting(shapes, "no GPU on gpu-09"), with_rule(knowledge, made("ls"), special), seen)
    assert fixes[0].action["run"].startswith("scontrol update NodeName=gpu-09 ")


def test_what_followed_speaks_for_a_fix_too(tmp_path: Path) -> None:
    lost = "[rank0]: RuntimeError: [/gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.7]:20911"
    (tmp_path / "job.log").write_text(SHAPES + lost, "utf-8")
    report = diagnose(tmp_path / "job.log")
    assert report.cascades and all(cascade.rules for cascade in report.cascades)


def test_a_message_that_says_what_to_do_is_taken_at_its_word(shapes: Finding, knowledge: Knowledge) -> None:
    text = "ValueError: DDPOptimizer backend: found a higher order op. Please set `torch._dynamo.config.optimize_ddp=False`."
    known = with_rule(knowledge, made("ls", title="As the message says: {advice}"), made("ls", title="Look"))
    finding = quoting(shapes, text, types=["ValueError"])
    assert chosen(finding, known)[0] == "As the message says: Please set `torch._dynamo.config.optimize_ddp=False`."
    assert chosen(quoting(shapes, "ValueError: no", types=["ValueError"]), known) == ["Look"]


def test_what_must_be_seen_is_looked_for_within_bounds(knowledge: Knowledge) -> None:
    """From each place of a text to its end would be quadratic, and a log may be made for that."""
    endless = [
        (rule.id, pattern)
        for rule in knowledge.rules.values()
        for fix in rule.fixes
        for pattern in (str(fix.when.get(word, "")) for word in ("said", "unless", "job", "nowhere"))
        if re.search(r"(?:\[\\s\\S\]|\[\^\\n\])[*+]|(?<!\\)\.[*+](?![^\[\]]*\])", pattern)
        and not pattern.startswith(r"\A")
    ]
    assert not endless


def test_every_rule_has_advice_that_holds_in_all_cases(knowledge: Knowledge) -> None:
    lacking = [rule.id for rule in knowledge.rules.values() if all(fix.when for fix in rule.fixes)]
    assert not lacking


def test_what_the_program_shows_of_the_very_failure_is_mended_first(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import deepspeed, torch\n\nengine, *_ = deepspeed.initialize(model=model, config='ds.json')\n"
        "for step, batch in enumerate(loader):\n    loss = engine(batch)\n    engine.backward(loss)\n    engine.step()\n"
        "    if step % 100 == 0 and torch.distributed.get_rank() == 0:\n        engine.save_checkpoint('out')\n",
        "utf-8",
    )
    waits = "".join(
        f"[rank{rank}]:[E ProcessGroupNCCL.cpp:616] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL("
        "SeqNum=9, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600009 milliseconds before timing out.\n"
        for rank in (1, 2, 3)
    )
    (tmp_path / "job.log").write_text("world size: 4\nstep 1 loss 2.0\nstep 2 loss 1.9\n" + waits, "utf-8")
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None and verdict.symptom == "collective-hang"
    assert (
        verdict.fixes[0].title == "Let all ranks call save_checkpoint, outside of the branch on the rank (train.py:9)"
    )


def test_what_an_exception_says_comes_before_what_the_program_looks_like(tmp_path: Path) -> None:
    program = next(case.text for case in load().rules["CODE310"].cases() if case.expect == "bad")
    (tmp_path / "train.py").write_text(program, "utf-8")
    (tmp_path / "job.log").write_text(
        'Traceback (most recent call last):\n  File "/srv/train.py", line 7, in <module>\n'
        "    model.load_state_dict(state['model'])\n"
        "RuntimeError: Error(s) in loading state_dict for DataParallel:\n"
        "\tsize mismatch for module.weight: copying a param with shape torch.Size([2, 8]) from checkpoint, the shape in "
        "current model is torch.Size([2, 4]).\n",
        "utf-8",
    )
    verdict = diagnose(tmp_path).verdict
    assert verdict is not None and verdict.symptom == "checkpoint-resume-failure"
    first, second, *_ = verdict.fixes
    assert first.title.startswith("Build the model with the sizes")
    assert "(train.py:" in second.title


def test_a_script_beside_the_log_speaks_for_a_fix_and_against_another(tmp_path: Path) -> None:
    end = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-05-04T10:00:00 DUE TO PREEMPTION ***\n"
    (tmp_path / "slurm-7.out").write_text("step 1 loss 2.0\n" + end, "utf-8")
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\nsrun python train.py\n", "utf-8")
    bare = diagnose(tmp_path).verdict
    (tmp_path / "job.sbatch").write_text("#!/bin/bash\n#SBATCH --requeue\nsrun python train.py\n", "utf-8")
    requeued = diagnose(tmp_path).verdict
    assert bare is not None and requeued is not None
    assert "--requeue" in copyable(bare.fixes[0].action)
    assert bare.fixes[0].title != requeued.fixes[0].title


def test_nothing_may_say_what_a_fix_bars_anywhere(shapes: Finding, knowledge: Knowledge) -> None:
    barred = replace(made("ls", title="Halve the batch"), when={"nowhere": r"batch_size=1\b"})
    known = with_rule(knowledge, barred, made("ls", title="Shard the model"))
    one = Seen(Run("r"), beside=Run("beside", events=(Event("job.sh", 1, "told", "python train.py batch_size=1"),)))
    assert chosen(shapes, known, Seen(Run("r"))) == ["Halve the batch", "Shard the model"]
    assert chosen(shapes, known, one) == ["Shard the model"]


def test_a_line_elsewhere_in_the_job_may_speak_for_a_fix(shapes: Finding, knowledge: Knowledge) -> None:
    told = Seen(Run("r", events=(Event("job.log", 1, "line", "docker run --cpus 4"),)))
    known = with_rule(knowledge, made("ls"), replace(made("--cpus {cpus}"), when={"job": r"--cpus[= ](?P<cpus>\d+)"}))
    assert [copyable(fix.action) for fix in fixes_for(shapes, known, told)] == ["--cpus 4", "ls"]
    assert [copyable(fix.action) for fix in fixes_for(shapes, known, Seen(Run("r")))] == ["ls"]


def test_megatrons_options_are_settings_in_nemo(shapes: Finding, knowledge: Knowledge) -> None:
    action = {"kind": "launch", "argument": "--tensor-model-parallel-size 4 --sequence-parallel   # --num-layers stays"}
    known = with_rule(knowledge, replace(made("ls"), action=action))
    nemo = Seen(Run("r", events=(Event("job.log", 1, "line", "[NeMo I 2025-02-27 19:12:08 nemo_logging:393] Rank 0"),)))
    (fix,) = fixes_for(shapes, known, nemo)
    assert copyable(fix.action).startswith("tensor_model_parallel_size=4 sequence_parallel=True # NeMo: ")
    assert fixes_for(shapes, known)[0].action == action


@pytest.mark.parametrize("ranks", [(3,), (3, 5)])
def test_one_rank_alone_is_named_as_alone(shapes: Finding, knowledge: Knowledge, ranks: tuple[int, ...]) -> None:
    known = with_rule(
        knowledge, made("ls", title="Leave out the node of rank {alone}"), made("ls", title="Mend {whose}")
    )
    titles = [fix.title for fix in fixes_for(replace(shapes, ranks=ranks), known)]
    alone = ["Leave out the node of rank 3", "Mend rank 3"]
    assert titles == (alone if len(ranks) == 1 else ["Mend ranks 3 and 5"])


def test_a_network_of_strangers_is_never_let_in(knowledge: Knowledge) -> None:
    opening = [
        (rule.id, str(fix.when["said"]))
        for rule in knowledge.rules.values()
        for fix in rule.fixes
        if "{net}.0/24" in str(fix.action.get("run"))
    ]
    assert len(opening) > 4
    for rule, said in opening:
        net = re.search(r"\(\?P<net>(?:[^()]|\([^()]*\))*\)", said)
        assert net is not None, rule
        assert re.fullmatch(net[0], "10.64.3") and not re.fullmatch(net[0], "198.51.100"), rule
