"""`paramedic fix`: what it changes and leaves, what it refuses, and that undo restores every byte."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paramedic import patch
from paramedic.collect.formats import json as json_format
from paramedic.commands import main
from paramedic.edits import CannotEdit, edited

Captured = pytest.CaptureFixture[str]
pytestmark = pytest.mark.usefixtures("rules_loaded_once")

OLD = """{
    "train_micro_batch_size_per_gpu": 4,   // mine
    "zero_optimization": {
        "stage": 2, "overlap_com": true,
        "reduce_bucket_size": "5e8"
    }
}
"""


def action(edit: str, key: str, **more: Any) -> dict[str, Any]:
    return {"kind": "config", "edit": edit, "key": key, **more}


# -- single changes ------------------------------------------------------------------------------------------------


def test_json_keeps_comments_order_and_spaces() -> None:
    new = edited("ds.json", OLD, action("rename", "zero_optimization.overlap_com", value="overlap_comm"))
    new = edited("ds.json", new, action("set", "zero_optimization.reduce_bucket_size", value=500000000))
    assert new == OLD.replace("overlap_com", "overlap_comm").replace('"5e8"', "500000000")


@pytest.mark.parametrize(
    "key", ["zero_optimization.stage", "zero_optimization.reduce_bucket_size", "zero_optimization"]
)
def test_json_members_are_taken_out_with_their_commas(key: str) -> None:
    text = OLD.replace("   // mine", "")
    new = edited("ds.json", text, action("remove", key))
    json.loads(new)
    assert key.rsplit(".", 1)[-1] not in new


YAML = """# team file
distributed_type: FSDP   # sharded
fsdp_config:
  fsdp_sync_module_states: false # slow

  # loading
  fsdp_cpu_ram_efficient_loading: true
num_processes: 8
"""


def test_yaml_keeps_comments_and_blank_lines() -> None:
    new = edited("a.yaml", YAML, action("set", "fsdp_config.fsdp_sync_module_states", value=True))
    assert new == YAML.replace("false # slow", "true # slow")
    new = edited("a.yaml", YAML, action("add", "fsdp_config.fsdp_offload_params", value=False))
    assert new == YAML.replace("loading: true\n", "loading: true\n  fsdp_offload_params: false\n")
    new = edited("a.yaml", YAML, action("remove", "fsdp_config.fsdp_sync_module_states"))
    assert new == YAML.replace("  fsdp_sync_module_states: false # slow\n", "")


def test_yaml_in_one_line_is_left_to_people() -> None:
    text = "distributed_type: FSDP\nfsdp_config: {fsdp_sync_module_states: false, fsdp_offload_params: true}\n"
    with pytest.raises(CannotEdit):
        edited("a.yaml", text, action("remove", "fsdp_config.fsdp_sync_module_states"))


TOML = "[training]\nsteps = 10 # few\n\n[parallelism]\n# how\ntensor_parallel_degree = 0 # off\n"


def test_toml_keeps_comments() -> None:
    new = edited("t.toml", TOML, action("set", "parallelism.tensor_parallel_degree", value=1))
    assert new == TOML.replace("= 0 # off", "= 1 # off")
    new = edited("t.toml", TOML, action("add", "training.seq_len", value=2048))
    assert new == TOML.replace("# few\n", "# few\nseq_len = 2048\n")


SHELL = """#!/bin/bash
#SBATCH --nodes=2
export NCCL_DEBUG=TRACE   # noisy
export CUDA_LAUNCH_BLOCKING=1
torchrun \\
    --nproc_per_node 8 \\
    --standalone \\
    train.py
docker run --gpus all -it image:1 python x.py
"""


def test_shell_keeps_everything_else() -> None:
    variables, started = {"part": "environment"}, {"part": "launch", "section": 0}
    new = edited("run.sh", SHELL, action("set", "NCCL_DEBUG", value="WARN", **variables))
    assert new == SHELL.replace("TRACE", "WARN")
    new = edited("run.sh", SHELL, action("remove", "CUDA_LAUNCH_BLOCKING", **variables))
    assert new == SHELL.replace("export CUDA_LAUNCH_BLOCKING=1\n", "")
    new = edited("run.sh", SHELL, action("remove", "standalone", **started))
    assert new == SHELL.replace("    --standalone \\\n", "")
    new = edited("run.sh", SHELL, action("add", "ntasks", argument="--ntasks=2", part="slurm"))
    assert new == SHELL.replace("--nodes=2\n", "--nodes=2\n#SBATCH --ntasks=2\n")


def test_dockerfile_variables_are_set_in_place() -> None:
    text = "FROM x:1\nENV NCCL_DEBUG=TRACE \\\n    A=b\nRUN true # NCCL_DEBUG=TRACE\n"
    new = edited("Dockerfile", text, action("set", "NCCL_DEBUG", value="WARN", part="environment"))
    assert new == text.replace("TRACE \\", "WARN \\")


def test_the_mark_before_a_text_stays(tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "train.py"
    old = b"\xef\xbb\xbfargs = TrainingArguments(fp16=True, bf16=True)\nimport torch\n"
    path.write_bytes(old)
    assert main(["fix", str(tmp_path), "--unsafe", "--apply"]) == 0
    assert path.read_bytes() == old.replace(b"fp16=True, b", b"fp16=False, b")
    assert "gone" in capsys.readouterr().err
    assert edited("ds.json", f"\ufeff{OLD}", action("remove", "zero_optimization.stage")).startswith("\ufeff")


def test_windows_line_ends_stay() -> None:
    text = YAML.replace("\n", "\r\n")
    new = edited("a.yaml", text, action("add", "fsdp_config.fsdp_offload_params", value=False))
    assert new.count("\r\n") == new.count("\n") == YAML.count("\n") + 1


keys = st.sampled_from(["stage", "overlap_comm", "a b", 'q"x', "ü"])
values = st.one_of(
    st.booleans(), st.integers(-9, 9**9), st.text(max_size=6), st.floats(allow_nan=False, allow_infinity=False)
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(keys, values, min_size=1), values, st.sampled_from([None, 1, "\t"]), st.data())
def test_any_json_value_can_be_set_and_taken_out(
    inner: dict[str, Any], value: Any, indent: Any, data: st.DataObject
) -> None:
    text = json.dumps({"zero_optimization": inner, "train_batch_size": 1}, indent=indent)
    key = data.draw(st.sampled_from(sorted(inner)))
    path = f"zero_optimization.{key}"
    assert json.loads(edited("ds.json", text, action("set", path, value=value)))["zero_optimization"][key] == value
    after = json.loads(edited("ds.json", text, action("remove", path)))["zero_optimization"]
    assert after == {k: v for k, v in inner.items() if k != key}
    assert json_format.parse(text).get(path) == inner[key]


# -- the command ---------------------------------------------------------------------------------------------------


def project(folder: Path) -> bytes:
    data = OLD.encode()
    (folder / "ds.json").write_bytes(data)
    (folder / "ds.json").chmod(0o640)
    return data


def test_a_preview_is_a_diff_and_writes_nothing(tmp_path: Path, capsys: Captured) -> None:
    before = project(tmp_path)
    assert main(["fix", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert '-        "stage": 2, "overlap_com": true,\n' in shown.out
    assert '+        "stage": 2, "overlap_comm": true,\n' in shown.out
    assert "2 changes in 1 file" in shown.err
    assert (tmp_path / "ds.json").read_bytes() == before
    assert sorted(p.name for p in tmp_path.iterdir()) == ["ds.json"]


def test_the_preview_is_a_patch_that_git_applies(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    script = b"#!/bin/bash\n\texport NCCL_DEBUG=INFO # \x0c\r\n\ttorchrun --nproc_per_node 8 train.py # \xc3\xa9"
    (tmp_path / "run.sh").write_bytes(script)
    main(["fix", str(tmp_path)])
    preview = capsysbinary.readouterr().out
    subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=preview, check=True)
    assert (tmp_path / "run.sh").read_bytes() == script.replace(b"INFO", b"WARN")


def test_apply_checks_again_and_undo_restores_the_bytes(tmp_path: Path, capsys: Captured) -> None:
    before = project(tmp_path)
    assert main(["fix", str(tmp_path), "--apply"]) == 0
    assert "2 findings gone" in capsys.readouterr().err
    assert b'"overlap_comm": true' in (tmp_path / "ds.json").read_bytes()
    assert stat.S_IMODE((tmp_path / "ds.json").stat().st_mode) == 0o640
    assert main(["check", str(tmp_path), "--select", "CFG109,CFG112"]) == 0
    assert main(["fix", str(tmp_path), "--undo"]) == 0
    assert (tmp_path / "ds.json").read_bytes() == before
    assert main(["fix", str(tmp_path), "--undo"]) == 2


def test_undo_does_not_destroy_later_work(tmp_path: Path, capsys: Captured) -> None:
    project(tmp_path)
    assert main(["fix", str(tmp_path), "--apply"]) == 0
    later = (tmp_path / "ds.json").read_bytes() + b"\n"
    (tmp_path / "ds.json").write_bytes(later)
    assert main(["fix", str(tmp_path), "--undo"]) == 2
    assert "changed after the fix" in capsys.readouterr().err
    assert (tmp_path / "ds.json").read_bytes() == later


def test_a_report_can_be_fixed_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["check", "--format", "json", "--output", "report.json"]) == 1
    assert main(["fix", "report.json", "--apply"]) == 0
    assert b"500000000" in (tmp_path / "ds.json").read_bytes()


def test_unsafe_changes_wait_to_be_asked_for(tmp_path: Path) -> None:
    text = '{"train_micro_batch_size_per_gpu": 1, "fp16": {"enabled": true}, "bf16": {"enabled": true}}'
    (tmp_path / "ds.json").write_text(text)
    assert main(["fix", str(tmp_path), "--apply"]) == 0
    assert (tmp_path / "ds.json").read_text() == text
    assert main(["fix", str(tmp_path), "--apply", "--unsafe"]) == 0
    assert json.loads((tmp_path / "ds.json").read_text())["fp16"] == {"enabled": False}


@pytest.mark.parametrize("file", ["../out.json", "/etc/hostname", "link.json"])
def test_nothing_outside_of_the_folder_is_written(tmp_path: Path, file: str) -> None:
    (tmp_path / "out.json").write_text(OLD)
    (tmp_path / "p").mkdir()
    (tmp_path / "p" / "link.json").symlink_to(tmp_path / "out.json")
    wanted = patch.Wanted("CFG109", file, action("remove", "zero_optimization.stage"), "title")
    changed, refused = patch.plan(tmp_path / "p", [wanted])
    assert not changed and len(refused) == 1


def test_a_strangers_report_is_no_traceback(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "report.json").write_text('{"findings": [{"rule": 1}]}')
    assert main(["fix", "report.json"]) == 2
    assert "no report" in capsys.readouterr().err
    evil = {"kind": "config", "edit": "set", "key": "zero_optimization.stage", "value": 3, "file": "../../x"}
    fix = {"title": "t", "safety": "safe", "action": evil}
    finding = {"rule": "CFG109", "fixes": [fix], "evidence": [{"source": "ds.json"}]}
    (tmp_path / "report.json").write_text(json.dumps({"findings": [finding]}))
    assert main(["fix", "report.json", "--apply"]) == 0
    assert "outside" in capsys.readouterr().err
