"""What tests share: no settings from outside, internal errors shown whole, and short ways to read a log."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from consoles import Said
from paramedic import diagnose, pipeline
from paramedic.collect.logs import LITERALS, LogRead, read_log
from paramedic.knowledge import Knowledge, load
from paramedic.model import Event, Finding, Report, Source
from paramedic.pipeline import compile_prefilter
from paramedic.prefilter import Prefilter
from paramedic.report import json as report_json

ReadLog = Callable[..., LogRead]
Validator = Any  # jsonschema has no types


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PARAMEDIC_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PARAMEDIC_DEBUG", "1")
    monkeypatch.delenv("COLUMNS", raising=False)  # pytest-xdist sets it


@pytest.fixture(scope="session")
def schema() -> Validator:
    text = resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8")
    return jsonschema.Draft202012Validator(json.loads(text))


@pytest.fixture(autouse=True)
def _every_document_keeps_the_published_schema(schema: Validator, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a test is about: JSON that it makes of a report is validated."""
    render = report_json.render

    def checked(report: Report) -> str:
        text = render(report)
        schema.validate(json.loads(text))
        return text

    monkeypatch.setattr(report_json, "render", checked)


@pytest.fixture(scope="session")
def knowledge() -> Knowledge:
    return load()


@pytest.fixture(scope="session")
def prefilter(knowledge: Knowledge) -> Prefilter:
    return compile_prefilter(knowledge)


@pytest.fixture(autouse=True)
def _words_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A matcher for the words of the same rules is the same: it saves each diagnosis a sixteenth of a second."""
    monkeypatch.setattr(pipeline, "compile_prefilter", _compiled)


def _compiled(knowledge: Knowledge) -> Prefilter:
    return _compiled_for(frozenset(word for rule in knowledge.rules.values() for word in rule.keywords))


@cache
def _compiled_for(words: frozenset[str]) -> Prefilter:
    return Prefilter([*LITERALS, *words])


@pytest.fixture
def rules_loaded_once(knowledge: Knowledge, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saves a sixth of a second for each diagnosis."""

    def loaded(folders: Iterable[Path] = ()) -> Knowledge:
        return load(folders) if folders else knowledge

    monkeypatch.setattr("paramedic.pipeline.load", loaded)


@pytest.fixture(scope="session")
def read(prefilter: Prefilter) -> ReadLog:
    """Reads text or bytes as if they were a log file."""

    def read_it(text: str | bytes, name: str = "job.log", rank: int | None = None) -> LogRead:
        data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogateescape")
        return read_log(io.BytesIO(data), Source(name, "log", rank), prefilter)

    return read_it


@pytest.fixture(scope="session")
def tracebacks(read: ReadLog) -> Callable[..., list[Event]]:
    def of(text: str, **more: int) -> list[Event]:
        return [event for event in read(text, **more).events if event.kind == "traceback"]

    return of


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def said(tmp_path: Path) -> Said:
    """The verdict on a console, or on several files by their names."""

    def verdict(console: str = "", **files: str) -> Finding:
        for name, text in ({"console.log": console} if console else files).items():
            (tmp_path / name.replace("__", "-")).write_text(text, "utf-8")
        found = diagnose(tmp_path).verdict
        assert found is not None
        return found

    return verdict
