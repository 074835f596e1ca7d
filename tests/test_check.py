"""`paramedic check`: what is read, what is found where, what is set aside, and what bad input gives."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from paramedic.collect.formats import Broken, launch
from paramedic.collect.formats import json as json_format
from paramedic.collect.formats import toml as toml_format
from paramedic.collect.formats import yaml as yaml_format
from paramedic.collect.project import read_project
from paramedic.commands import main
from paramedic.detect.checks import CHECKS
from paramedic.knowledge import Knowledge
from paramedic.pipeline import Options, check

HERE = Path(__file__).parent
SCHEMA = json.loads(resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8"))
BOTH = '{\n  "train_micro_batch_size_per_gpu": 4,\n  "fp16": {"enabled": true},\n  "bf16": {"enabled": true}\n}\n'
Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")


def project(folder: Path, **files: str) -> str:
    for name, text in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
    return str(folder)


def found(folder: str) -> list[tuple[str, str, int | None]]:
    report = check(read_project(folder))
    return [(f.rule, f.evidence[0].event.source, f.evidence[0].event.line) for f in report.findings]


# -- rules ---------------------------------------------------------------------------------------------------------


def before_launch(knowledge: Knowledge) -> list[str]:
    return [rule.id for rule in knowledge.rules.values() if rule.before]


def test_there_are_as_many_rules_as_promised(knowledge: Knowledge) -> None:
    rules = before_launch(knowledge)
    assert sum(rule.startswith("CFG") for rule in rules) >= 120
    assert sum(rule.startswith("CODE") for rule in rules) >= 25


def test_every_detector_that_a_rule_may_name_has_a_rule(knowledge: Knowledge) -> None:
    assert {rule.detector for rule in knowledge.rules.values()} >= set(CHECKS)


# -- reading -------------------------------------------------------------------------------------------------------


def test_json_values_have_their_lines_and_spans() -> None:
    parsed = json_format.parse(BOTH)
    entry = next(e for e in parsed.entries if e.key == "bf16.enabled")
    assert (entry.line, BOTH[entry.start : entry.end]) == (4, "true")


@pytest.mark.parametrize(
    ("text", "line"),
    [('{"a": 1\n "b" 2}', 2), ('{"a": [1, 2}', 1), ('{"a": \n}', 2), ("", 1), ("[" * 200, 1), ('{"a": 1}}', 1)],
)
def test_broken_json_says_where(text: str, line: int) -> None:
    with pytest.raises(Broken) as error:
        json_format.parse(text)
    assert error.value.line == line


def test_deep_yaml_and_many_anchors_are_refused() -> None:
    with pytest.raises(Broken):
        yaml_format.parse("[" * 200 + "]" * 200)
    with pytest.raises(Broken):
        yaml_format.parse("\n".join(f"a{n}: &x{n} 1" for n in range(60)))


def test_yaml_that_contains_itself_ends() -> None:
    with pytest.raises(Broken):
        yaml_format.parse("a: &x\n  b: *x\n")


def test_toml_lines() -> None:
    parsed = toml_format.parse("# c\n[parallelism]\ndegree = 2 # two\n")
    entry = next(e for e in parsed.entries if e.key == "parallelism.degree")
    assert (entry.value, entry.line) == (2, 3)


SCRIPT = """#!/bin/bash
#SBATCH --nodes=4
GPUS=8
ARGS=(
  --num-layers 24   # deep
  --hidden-size 1024
)
MORE="--num-attention-heads 16 \\
  --micro-batch-size 4"
if [ "$1" = small ]; then LAYERS=2; fi
torchrun --nproc_per_node $GPUS --nnodes $SLURM_NNODES pretrain.py "${ARGS[@]}" $MORE --depth $LAYERS > log 2>&1
"""


def test_shell_variables_are_followed_only_where_they_are_certain() -> None:
    sections = {section.kind: section for section in launch.sections(SCRIPT)}
    started = {e.key: (e.value, e.line) for e in sections["launch"].entries}
    assert started["nproc_per_node"] == (8, 11)
    assert started["nnodes"] == (None, 11)
    arguments = {e.key: (e.value, e.line) for e in sections["megatron"].entries}
    assert arguments["num_layers"] == (24, 5)
    assert arguments["micro_batch_size"] == (4, 9)
    assert arguments["depth"] == (None, 11)


def test_what_stands_in_a_here_document_is_no_command() -> None:
    text = "cat > x <<EOF\ntorchrun --nproc_per_node 8 a.py\nEOF\ntorchrun --nproc_per_node 2 b.py\n"
    assert [s.entries[1].value for s in launch.sections(text) if s.kind == "launch"] == [2]


# -- findings ------------------------------------------------------------------------------------------------------


def test_a_finding_names_file_and_line(tmp_path: Path) -> None:
    assert ("CFG105", "conf/ds.json", 3) in found(project(tmp_path, conf__ds_dot_json=BOTH))


def test_the_launch_command_is_read_and_not_started(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "empty").mkdir()
    code = main(
        ["check", str(tmp_path / "empty"), "--", "torchrun", "--nnodes", "2", "--node-rank", "2", "/no/such.py"]
    )
    assert code == 1
    assert "CFG223" in capsys.readouterr().out


def test_a_program_is_never_executed(tmp_path: Path) -> None:
    mark = tmp_path / "executed"
    text = f"import torch\nopen({str(mark)!r}, 'w')\nraise SystemExit(torch.save(1, 2))\n"
    read_project(project(tmp_path / "p", train_dot_py=text))
    assert not mark.exists()


def test_findings_are_json_that_the_schema_knows_and_have_no_verdict(tmp_path: Path, capsys: Captured) -> None:
    assert main(["check", project(tmp_path, ds_dot_json=BOTH), "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["verdict"] is None
    assert document["findings"][0]["evidence"][0]["source"] == "ds.json"


def test_exit_codes(tmp_path: Path, capsys: Captured) -> None:
    good = BOTH.replace('"fp16": {"enabled": true}', '"fp16": {"enabled": false}')
    assert main(["check", project(tmp_path / "good", ds_dot_json=good)]) == 0
    assert main(["check", project(tmp_path / "bad", ds_dot_json=BOTH)]) == 1
    assert main(["check", project(tmp_path / "bad"), "--fail-on", "never"]) == 0
    assert main(["check", project(tmp_path / "none", notes_dot_txt="hello"), "--files-only"]) == 3
    capsys.readouterr()
    assert main(["check", str(tmp_path / "missing")]) == 2
    captured = capsys.readouterr()
    assert "no such file or folder" in captured.err and not captured.out


def test_select_and_ignore(tmp_path: Path) -> None:
    run = read_project(project(tmp_path, ds_dot_json=BOTH))
    assert not check(run, Options(ignore=("CFG105",))).findings
    assert [f.rule for f in check(run, Options(select=("CFG105",))).findings] == ["CFG105"]


# -- set aside -----------------------------------------------------------------------------------------------------

DEBUG = "#!/bin/bash\nexport CUDA_LAUNCH_BLOCKING=1{}\ntorchrun --nproc_per_node 2 train.py\n"


def test_a_comment_with_a_reason_sets_a_finding_aside(tmp_path: Path) -> None:
    text = DEBUG.format("  # paramedic: allow CFG234 hunting a race this week")
    report = check(read_project(project(tmp_path, run_dot_sh=text)))
    assert not report.findings
    assert "hunting a race this week" in report.suppressed[0].why


def test_a_comment_without_a_reason_sets_nothing_aside(tmp_path: Path) -> None:
    text = DEBUG.format("  # paramedic: allow CFG234")
    rules = [rule for rule, _, _ in found(project(tmp_path, run_dot_sh=text))]
    assert rules == ["CFG103", "CFG234"]


def test_settings_allow_a_rule_for_some_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path, a__run_dot_sh=DEBUG.format(""), b__run_dot_sh=DEBUG.format(""))
    project(tmp_path, paramedic_dot_toml='allow = ["CFG234 a/*: on purpose"]\n')
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--fail-on", "warning"]) == 1
    (tmp_path / "paramedic.toml").write_text('allow = ["CFG234: on purpose"]\n')
    assert main(["check", "--fail-on", "warning"]) == 0
    (tmp_path / "paramedic.toml").write_text('allow = ["CFG234"]\n')
    assert main(["check"]) == 2


def test_a_baseline_keeps_known_findings_out_and_new_ones_in(tmp_path: Path, capsys: Captured) -> None:
    folder = project(tmp_path / "p", ds_dot_json=BOTH)
    baseline = str(tmp_path / "known.json")
    assert main(["check", folder, "--write-baseline", baseline]) == 0
    assert main(["check", folder, "--baseline", baseline]) == 0
    project(tmp_path / "p", ds_dot_json="\n\n" + BOTH)
    assert main(["check", folder, "--baseline", baseline]) == 0
    project(tmp_path / "p", other_dot_json=BOTH)
    assert main(["check", folder, "--baseline", baseline]) == 1
    (tmp_path / "known.json").write_text("{}")
    assert main(["check", folder, "--baseline", baseline]) == 2


def test_the_sentences_of_a_check_are_filled_in(tmp_path: Path, knowledge: Knowledge) -> None:
    """`{rank}` is a rank of a run; a check has none."""
    rules = [rule for rule in knowledge.rules.values() if rule.before]
    assert [rule.id for rule in rules if "{rank}" in rule.summary] == []
    folder = project(
        tmp_path, a_dot_yaml="distributed_type: MULTI_GPU\nmachine_rank: 2\nnum_machines: 2\nnum_processes: 2\n"
    )
    assert "machine_rank 2 of 2 machines" in check(read_project(folder)).findings[0].summary


def test_an_option_may_stand_before_the_launch_command(tmp_path: Path, capsys: Captured) -> None:
    folder = project(tmp_path, ds_dot_json=BOTH.replace("true", "false", 1))
    command = ["torchrun", "--nnodes", "2", "--standalone", "train.py"]
    assert main(["check", folder, "--files-only", "--fail-on", "never", "--", *command]) == 0
    assert "command line:1" in capsys.readouterr().out


# -- bad input -----------------------------------------------------------------------------------------------------


def test_bad_files_are_findings_or_skipped(tmp_path: Path) -> None:
    folder = tmp_path / "p"
    project(
        folder,
        ds_dot_json='{"zero_optimization": {"stage": 2\n',
        template_dot_json='{"zero_optimization": {{ stage }}}',
    )
    project(folder, old_dot_py="import torch\nprint 'python 2', torch.save(x)\n")
    (folder / "binary.json").write_bytes(b"\0\1\2zero_optimization")
    (folder / "latin.yaml").write_bytes("distributed_type: MULTI_GPU # Größe\n".encode("latin-1"))
    (folder / "huge.json").write_text('{"zero_optimization": "' + "x" * (3 << 20) + '"}')
    (folder / "out.json").symlink_to("/etc/hostname")
    (folder / "loop").symlink_to(folder)
    (folder / "gone.yaml").symlink_to("nowhere.yaml")
    os.mkfifo(folder / "Dockerfile")
    report = check(read_project(str(folder)))
    assert [(f.rule, f.evidence[0].event.line) for f in report.findings] == [("CFG100", 1)]
    why = {skipped.what: skipped.why for skipped in report.skipped}
    assert why["out.json"] == "a symbolic link out of the folder"
    assert "template" in why["template.json"]
    assert "UTF-8" in why["latin.yaml"]
    assert "larger" in why["huge.json"]
    assert "old.py" in why
    assert why["binary.json"] == "binary"
    assert why["Dockerfile"] == "no plain file"
    assert why["gone.yaml"] == "a symbolic link to nothing"
    assert "loop" not in why


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("ds.json", '{"zero_optimization": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested deeper than 64"),
        ("flow.yaml", "distributed_type: " + "[" * 100_000, "nested deeper than 64"),
        ("block.yaml", "distributed_type: x\na: " + "- " * 100_000, "line 2"),
        ("anchors.yaml", "distributed_type: &a [*a]\n", "contains itself"),
    ],
)
def test_deep_and_endless_files_are_findings(name: str, text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, "utf-8")
    report = check(read_project(str(tmp_path)))
    assert [one.rule for one in report.findings] == ["CFG100"]
    assert why in report.findings[0].summary.replace("Line", "line")


def test_a_name_with_escape_codes_does_not_reach_the_terminal(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "ds\x1b[31m\x07\n.json").write_text(BOTH, "utf-8")
    assert main(["check", str(tmp_path), "--files-only"]) == 1
    shown = capsys.readouterr().out
    assert "CFG105" in shown and not {"\x1b", "\x07"} & set(shown)


def test_a_folder_that_cannot_be_opened_is_skipped(tmp_path: Path) -> None:
    project(tmp_path, ds_dot_json=BOTH, locked__ds_dot_json=BOTH)
    (tmp_path / "locked").chmod(0)
    try:
        report = check(read_project(str(tmp_path)))
    finally:
        (tmp_path / "locked").chmod(0o700)
    if os.geteuid():
        assert any("locked" in skipped.what for skipped in report.skipped)


@pytest.mark.parametrize("text", ["x" * 100_000, "((((" * 5_000, "'", '"$(', "a=(", "<<EOF\n", "\\", "$((", "`" * 999])
def test_strange_scripts_come_to_an_end(text: str) -> None:
    list(launch.sections(text))


def test_secrets_in_configurations_do_not_reach_the_report(tmp_path: Path) -> None:
    text = "#!/bin/bash\nexport HF_TOKEN=hf_abcdefghijklmnopqrstuvwxyz0123456789\ntorchrun --nproc_per_node 2 a.py\n"
    run = read_project(project(tmp_path, run_dot_sh=text))
    assert "hf_abcdefgh" not in repr(run.facts)


def test_many_files_are_read_by_several_processes_alike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(12):
        project(tmp_path, **{f"d{number}__ds_dot_json": BOTH})
    alone = found(str(tmp_path))
    monkeypatch.setattr("paramedic.collect.project._PARALLEL", 2)
    assert found(str(tmp_path)) == alone
    assert len(alone) == 12


def facts(folder: str) -> dict[str, Any]:
    return {fact.name: fact.value for fact in read_project(folder).facts}


def test_settings_in_code_are_settings(tmp_path: Path) -> None:
    text = "from transformers import TrainingArguments as TA\nx = TA('out', fp16=True)\n"
    text += "import lightning.pytorch as pl\nt = pl.Trainer(devices=8, **more)\n"
    read = facts(project(tmp_path, a_dot_py="from transformers import TrainingArguments\n" + text.split("\n", 1)[1]))
    assert read["config lightning 0 devices"] == 8
    assert "config lightning 0 ?" in read


# -- where people work ---------------------------------------------------------------------------------------------


def test_github_annotations_have_file_and_line(tmp_path: Path, capsys: Captured) -> None:
    main(["check", project(tmp_path, ds_dot_json=BOTH), "--format", "github"])
    assert "::error file=ds.json,line=3,title=CFG105" in capsys.readouterr().out


def test_sarif_keeps_the_official_schema(tmp_path: Path, capsys: Captured) -> None:
    schema = json.loads((HERE / "sarif/sarif-schema-2.1.0.json").read_text("utf-8"))
    folder = project(tmp_path, ds_dot_json=BOTH, run_dot_sh=DEBUG.format(""), bad_dot_yaml="distributed_type: [\n")
    assert main(["check", folder, "--format", "sarif"]) == 1
    document = json.loads(capsys.readouterr().out)
    validator = jsonschema.Draft4Validator(schema)
    validator.validate(document)
    assert {result["ruleId"] for result in document["runs"][0]["results"]} >= {"CFG105", "CFG234", "CFG100"}
    document["runs"][0]["results"][0]["level"] = "fatal"
    assert not validator.is_valid(document)


def test_pre_commit_runs_it_in_another_repository(tmp_path: Path) -> None:
    """As the docs say: with the `paramedic` that is installed."""
    steps = re.search(r"```yaml\n(repos:\n.*?)```", (HERE.parent / "docs/check.md").read_text("utf-8"), re.S)
    assert steps
    project(tmp_path, ds_dot_json=BOTH)
    (tmp_path / ".pre-commit-config.yaml").write_text(steps[1], "utf-8")
    done = _pre_commit(tmp_path, "run", "--all-files")
    assert done.returncode == 1 and "ds.json:3 error CFG105" in done.stdout, done.stdout + done.stderr
    (tmp_path / "ds.json").write_text(BOTH.replace("true", "false", 1), "utf-8")
    done = _pre_commit(tmp_path, "run", "--all-files")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_pre_commit_installs_our_hooks_in_an_environment_of_their_own(tmp_path: Path) -> None:
    project(tmp_path, ds_dot_json=BOTH)
    done = _pre_commit(tmp_path, "try-repo", str(HERE.parent), "paramedic-check", "--all-files")
    assert done.returncode == 1 and "ds.json:3 error CFG105" in done.stdout, done.stdout + done.stderr


def _pre_commit(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    for command in (["git", "init", "-q"], ["git", "add", "."]):
        subprocess.run(command, cwd=folder, check=True)
    installed = Path(sys.executable).parent
    own = {"PATH": f"{installed}{os.pathsep}{os.environ['PATH']}", "PRE_COMMIT_HOME": str(folder.parent / "pre-commit")}
    run = [str(installed / "pre-commit"), *words]
    return subprocess.run(run, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
