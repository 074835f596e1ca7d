"""Adding a signature is one file: the page that says so is carried out word for word."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paramedic import ParamedicError, diagnose
from paramedic.commands import main

PAGE = Path(__file__).parent.parent / "docs" / "adding-a-signature.md"


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    """A folder with the file that the documentation shows, under the name it gives."""
    page = PAGE.read_text("utf-8")
    shown = re.search(r"^````markdown\n(.*?)^````$", page, re.M | re.S)
    name = re.search(r"`(HOST900-[a-z-]+\.md)`", page)
    assert shown and name
    folder = tmp_path / "our-rules"
    folder.mkdir()
    (folder / name[1]).write_text(shown[1], "utf-8")
    return folder


@pytest.fixture
def log(tmp_path: Path) -> Path:
    file = tmp_path / "job.log"
    file.write_text("[rank3]: OSError: licence server lic01.example.org did not answer within 30 s\n", "utf-8")
    return file


def test_the_documented_rule_fires_from_a_rules_folder(rules: Path, log: Path) -> None:
    assert diagnose(log).verdict is None
    verdict = diagnose(log, rules=[rules]).verdict
    assert verdict is not None
    assert (verdict.rule, verdict.symptom, verdict.ranks) == ("HOST900", "data-pipeline-failure", (3,))
    assert verdict.summary == "Rank 3 could not reach the licence server lic01.example.org within 30 s."
    assert verdict.fixes[0].action["run"] == "curl -sS https://lic01.example.org/health"


def test_the_command_line_takes_the_folder_too(rules: Path, log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diagnose", str(log), "--rules", str(rules), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["rule"] == "HOST900"
    assert main(["explain", "host900", "--rules", str(rules)]) == 0
    assert "licence" in capsys.readouterr().out
    assert main(["rules", "--rules", str(rules), "--format", "json"]) == 0
    assert "HOST900" in {row["id"] for row in json.loads(capsys.readouterr().out)}


def test_the_project_file_takes_the_folder_too(
    rules: Path, log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (rules.parent / "pyproject.toml").write_text('[tool.paramedic]\nrules = ["our-rules"]\n')
    (rules.parent / "below").mkdir()
    monkeypatch.chdir(rules.parent / "below")
    assert main(["diagnose", str(log), "--format", "json"]) == 1
    assert json.loads(capsys.readouterr().out)["verdict"]["rule"] == "HOST900"


def test_an_own_rule_replaces_the_built_in_one_of_the_same_id(rules: Path, log: Path) -> None:
    file = next(rules.iterdir())
    text = file.read_text("utf-8").replace("HOST900", "COL001")
    (rules / "COL001-licence-server-unreachable.md").write_text(text, "utf-8")
    file.unlink()
    verdict = diagnose(log, rules=[rules]).verdict
    assert verdict is not None and verdict.rule == "COL001"


@pytest.mark.parametrize("breakage", ["missing folder", "empty folder", "broken rule", "same id twice"])
def test_a_bad_rules_folder_is_one_clear_error(rules: Path, log: Path, breakage: str) -> None:
    file = next(rules.iterdir())
    if breakage == "missing folder":
        rules = rules / "nowhere"
    elif breakage == "empty folder":
        file.unlink()
    elif breakage == "broken rule":
        file.write_text(file.read_text("utf-8").replace("data-pipeline-failure", "sadness"), "utf-8")
    else:
        (rules / (file.stem + "-copy.md")).write_text(file.read_text("utf-8"), "utf-8")
    with pytest.raises(ParamedicError):
        diagnose(log, rules=[rules])


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_a_rule_says_cannot_steer_the_terminal(
    rules: Path, format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = next(rules.iterdir())
    evil = "\\u001b]0;evil\\u0007 \\u202e"
    text = re.sub(
        r'^title = ".*"$',
        lambda _: f'title = "The licence {evil} server"',
        file.read_text("utf-8"),
        count=1,
        flags=re.M,
    )
    file.write_text(text.replace("## Fix\n", "## Fix\n\n\x1b[2J\x9b\n", 1), "utf-8")
    for command in (["rules"], ["explain", "HOST900"]):
        assert main([*command, "--rules", str(rules), "--format", format]) == 0
        shown = capsys.readouterr().out
        assert "evil" in shown
        assert not set("\x1b\x07\u202e\x9b") & set(shown)
        if format == "json":
            document = json.loads(shown)
            entry = next(row for row in document if row["id"] == "HOST900") if isinstance(document, list) else document
            assert "\x1b]0;evil\x07 \u202e" in entry["title"], "it reads back as what it was"
