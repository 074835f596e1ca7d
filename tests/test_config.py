"""Settings: the nearest file, below the environment, below the flags; a slip is an error that says what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from paramedic.commands import build_parser, flags
from paramedic.config import Config, load_config
from paramedic.errors import ParamedicError


def test_without_any_file_the_defaults_hold(tmp_path: Path) -> None:
    assert load_config(tmp_path, {}) == Config()


def test_the_nearest_file_wins(tmp_path: Path) -> None:
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / "paramedic.toml").write_text('format = "json"\nselect = ["MEM"]\n')
    assert load_config(inner, {}).format == "json"
    (tmp_path / "a" / "pyproject.toml").write_text('[tool.paramedic]\nformat = "html"\n')
    assert load_config(inner, {}) == Config(format="html"), "files are not merged"
    (tmp_path / "a" / "paramedic.toml").write_text('format = "sarif"\n')
    assert load_config(inner, {}).format == "sarif", "our own file comes first in a folder"


def test_a_pyproject_without_our_table_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "paramedic.toml").write_text('setting = "cluster"\n')
    for text in (
        "[tool.other]\nx = 1\n",
        "tool = 3\n",
        "[tool]\nparamedic = 3\n",
        "broken = [",
        "\x00",
        "a = " + "[" * 5000,
    ):
        (tmp_path / "a" / "pyproject.toml").write_text(text)
        assert load_config(tmp_path / "a", {}).setting == "cluster"
    (tmp_path / "a" / "pyproject.toml").write_bytes(b"\xff\xfe")
    assert load_config(tmp_path / "a", {}).setting == "cluster"


@pytest.mark.parametrize("text", ["broken = [", "\x00", "a = " + "[" * 5000])
def test_our_own_file_must_be_toml(tmp_path: Path, text: str) -> None:
    (tmp_path / "paramedic.toml").write_text(text)
    with pytest.raises(ParamedicError, match=r"paramedic\.toml: no TOML"):
        load_config(tmp_path, {})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('formt = "json"', "unknown key 'formt'; did you mean 'format'?"),
        ('fial-on = "error"', "did you mean 'fail_on'?"),
        ("zzz = 1", "unknown key 'zzz'; known: format, fail_on, setting, select, ignore, rules"),
        ('format = "xml"', "format is one of text, json, sarif, github, html, not 'xml'"),
        ("format = 3", "not 3"),
        ("format = []", "not []"),
        ('select = "MEM"', "select is a list of texts"),
        ("ignore = [1]", "ignore is a list of texts"),
        ("[rules]\na = 1", "rules is a list of texts"),
    ],
)
def test_a_slip_in_the_file_is_an_error_that_helps(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "paramedic.toml").write_text(text)
    with pytest.raises(ParamedicError) as error:
        load_config(tmp_path, {})
    assert says in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_dashes_and_underscores_are_the_same_and_rules_are_found_from_the_file(tmp_path: Path) -> None:
    (tmp_path / "paramedic.toml").write_text('fail-on = "never"\nrules = ["ours", "/theirs"]\n')
    config = load_config(tmp_path, {})
    assert config.fail_on == "never"
    assert config.rules == (str(tmp_path / "ours"), "/theirs")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "paramedic.toml").write_text('format = "json"\nselect = ["MEM"]\n')
    environment = {
        "PARAMEDIC_FORMAT": " html ",
        "PARAMEDIC_SELECT": "COL, NET003 ,",
        "PARAMEDIC_IGNORE": "",
        "PATH": "x",
    }
    assert load_config(tmp_path, environment) == Config(format="html", select=("COL", "NET003"))


def test_a_wrong_value_in_the_environment_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParamedicError, match="PARAMEDIC_FORMAT: format is one of"):
        load_config(tmp_path, {"PARAMEDIC_FORMAT": "xml"})


def test_other_names_in_the_environment_belong_to_other_features(tmp_path: Path) -> None:
    environment = {"PARAMEDIC_DEBUG": "1", "PARAMEDIC_TOKEN": "x", "PARAMEDIC_RECORD": "y", "PARAMEDIC_": "z"}
    assert load_config(tmp_path, environment) == Config()


@pytest.mark.parametrize(
    ("name", "near"), [("PARAMEDIC_FORMATS", "FORMAT"), ("PARAMEDIC_FAILON", "FAIL_ON"), ("PARAMEDIC_RULE", "RULES")]
)
def test_a_near_miss_in_the_environment_is_an_error(tmp_path: Path, name: str, near: str) -> None:
    with pytest.raises(ParamedicError, match=f"{name}: no such setting; did you mean PARAMEDIC_{near}"):
        load_config(tmp_path, {name: "x"})


def settings_of(*arguments: str) -> Config:
    return flags.settings(build_parser().parse_args(["diagnose", "x", *arguments]))


def test_flags_win_over_everything(in_tmp: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (in_tmp / "paramedic.toml").write_text('format = "json"\nselect = ["MEM"]\nrules = ["ours"]\nfail_on = "never"\n')
    monkeypatch.setenv("PARAMEDIC_SELECT", "COL")
    config = settings_of("--format", "html", "--rules", "mine", "--rules", "yours", "--ignore", " A , B,")
    assert config == Config("html", "never", "lab", ("COL",), ("A", "B"), ("mine", "yours"))
    assert settings_of("--select", "").select == (), "an empty flag takes the file's list back"


def test_a_removed_working_folder_only_means_no_config_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert settings_of() == Config()


@pytest.mark.parametrize("text", [f"x = {'9' * 5000}", f"x = 1{'0' * 5000}"])
def test_absurd_numbers_are_an_error_in_our_file_and_nothing_in_a_foreign_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert load_config(tmp_path, {}) == Config()
    (tmp_path / "paramedic.toml").write_text(text)
    with pytest.raises(ParamedicError, match="no TOML"):
        load_config(tmp_path, {})
    (tmp_path / "paramedic.toml").write_text(f"format = 0x{'f' * 5000}")
    with pytest.raises(ParamedicError, match="not that number"):
        load_config(tmp_path, {})


def test_a_file_too_large_to_be_settings_is_refused(tmp_path: Path) -> None:
    padding = "#" * (1 << 20) + "\n"
    (tmp_path / "pyproject.toml").write_text(padding)
    assert load_config(tmp_path, {}) == Config(), "somebody else's"
    (tmp_path / "pyproject.toml").write_text(f"[tool.paramedic]\n{padding}")
    with pytest.raises(ParamedicError, match="larger than 1 MB"):
        load_config(tmp_path, {})
    (tmp_path / "paramedic.toml").write_text(padding)
    with pytest.raises(ParamedicError, match=r"paramedic\.toml: larger than 1 MB"):
        load_config(tmp_path, {})
