"""`from paramedic import diagnose`: what a notebook and a script see."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

import paramedic
from paramedic import ParamedicError, diagnose


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "job.log"
    file.write_text(
        "[rank2]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. "
        "GPU 0 has a total capacity of 79.15 GiB of which 1.20 GiB is free.\n"
    )
    return file


def test_the_report_carries_the_whole_chain(log: Path) -> None:
    verdict = diagnose(log).verdict
    assert verdict is not None
    assert (verdict.stage, verdict.symptom, verdict.ranks) == ("memory", "device-out-of-memory", (2,))
    assert verdict.causes[0].id == "device-memory-overcommit"
    assert verdict.fixes[0].pattern == "resource-and-memory-tuning"
    assert verdict.evidence[0].event.line == 1


def test_the_report_shows_itself_in_a_notebook_and_in_rich(log: Path) -> None:
    report = diagnose(log)
    assert "device out of memory" in report._repr_html_().replace("-", " ").lower()
    console = Console(record=True, width=100, file=StringIO())
    console.print(report)
    assert "out of memory" in console.export_text()


def test_the_repr_is_one_short_line(log: Path, tmp_path: Path) -> None:
    report = diagnose(log)
    assert repr(report) == "<Report: device-out-of-memory on rank 2, 99 % sure>"
    assert repr(diagnose(log, ignore=["MEM"])) == "<Report: no verdict>"
    verdict = report.verdict
    assert verdict is not None
    many = replace(report, verdict=replace(verdict, ranks=tuple(range(0, 2_000, 2))))
    assert len(repr(many)) < 100
    assert "\n" not in repr(many)
    alike = replace(report, verdict=replace(verdict, ranks=()))
    assert repr(alike) == "<Report: device-out-of-memory, 99 % sure>"


def test_the_report_converts_and_saves(log: Path, tmp_path: Path) -> None:
    report = diagnose(log)
    assert json.loads(report.to_json()) == json.loads(json.dumps(report.to_dict()))
    assert report.save_html(tmp_path / "r.html").read_text("utf-8").startswith("<!doctype html>")


def test_the_setting_changes_the_causes(log: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.log"
    other.write_text("[rank0]: torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n")
    shares = []
    for setting in ("lab", "cluster"):
        verdict = diagnose(other, setting=setting).verdict
        assert verdict is not None
        shares.append({c.id: c.probability for c in verdict.causes}["hardware-fault"])
    assert shares[1] > shares[0]


def test_the_same_input_gives_the_same_answer(log: Path) -> None:
    assert diagnose(log).to_json() == diagnose(log).to_json()


def test_select_and_ignore_are_said(log: Path) -> None:
    ignored = diagnose(log, ignore=["MEM"])
    assert ignored.verdict is None
    assert ignored.suppressed[0].rule == "MEM001"
    assert diagnose(log, select=["device-out-of-memory"]).verdict is not None
    with pytest.raises(ParamedicError, match="NOPE1"):
        diagnose(log, ignore=["NOPE1"])


def test_a_missing_path_is_one_clear_error() -> None:
    with pytest.raises(ParamedicError, match="no-such-path"):
        diagnose("no-such-path")


def test_the_public_surface_is_frozen() -> None:
    assert paramedic.__all__ == [
        "Job", "JobCancelled", "ParamedicError", "RankFailed", "__version__", "diagnose", "job",
    ]  # fmt: skip


def test_importing_paramedic_imports_nothing_heavy() -> None:
    code = "import sys, paramedic; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"rich", "jinja2", "hyperscan", "zstandard", "ruamel", "torch", "numpy"} & set(loaded)


def test_a_list_of_paths_is_refused_and_says_to_unpack_it(log: Path) -> None:
    with pytest.raises(TypeError, match=r"unpack it: diagnose\(\*paths\)"):
        diagnose([log])  # type: ignore[arg-type]
