"""The JSON document is what the published schema says, and the schema says what the taxonomy says."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from importlib import resources
from typing import Any

import jsonschema
import pytest
import reports

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.model import Cause, Event, Evidence, Report, Run
from paramedic.report import FORMATS, ShownReport, render
from paramedic.report.document import causes, document


def schema() -> dict[str, Any]:
    text = resources.files("paramedic.report").joinpath("report.schema.json").read_text("utf-8")
    loaded: dict[str, Any] = json.loads(text)
    return loaded


@pytest.mark.parametrize("name", reports.ALL)
def test_document_fits_the_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(schema())
    jsonschema.Draft202012Validator(schema()).validate(json.loads(render(reports.ALL[name](), "json")))


def test_schema_has_the_words_of_the_taxonomy() -> None:
    taxonomy, defined = load_taxonomy(), schema()["$defs"]
    assert defined["stage"]["enum"] == list(taxonomy.stages)
    assert defined["symptom"]["enum"] == list(taxonomy.symptoms)
    assert defined["cause_id"]["enum"] == list(taxonomy.causes)
    assert defined["fix_pattern"]["enum"] == list(taxonomy.fix_patterns)


def test_schema_refuses_what_it_does_not_list() -> None:
    made = document(reports.typical())
    made["verdict"]["consequence"] = "never"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, schema())


def test_document_says_what_the_report_says() -> None:
    made = document(reports.typical())
    assert made["run"] == {
        "id": "0198c4f2-run-7d1e",
        "frameworks": ["pytorch", "deepspeed"],
        "world_size": 4,
        "ranks_seen": [0, 1, 2, 3],
        "sources": 5,
    }
    assert made["verdict"]["ranks"] == [3]
    assert made["verdict"]["stage"] == "communication"
    assert [cause["probability"] for cause in made["verdict"]["causes"]] == [0.71, 0.18, 0.04]
    assert made["verdict"]["evidence"][0]["time"] == "2026-01-02T11:00:05.200+00:00"
    assert "verify" in made["verdict"]["fixes"][0]
    assert "verify" not in made["verdict"]["fixes"][1]
    assert document(reports.undecided())["verdict"] is None


@pytest.mark.parametrize("shares", [(1 / 3,) * 3, (1 / 6,) * 6, (0.0005,) * 2000, (0.7, 0.6), (0.9995, 0.0005), ()])
def test_probabilities_are_sorted_and_never_exceed_one(shares: tuple[float, ...]) -> None:
    made = causes(tuple(Cause("hardware-fault", share) for share in shares))
    listed = [cause["probability"] for cause in made]
    assert listed == sorted(listed, reverse=True)
    assert sum(round(share * 1000) for share in listed) <= 1000


def test_json_is_safe_to_print_and_keeps_the_text() -> None:
    text = render(reports.hostile(), "json")
    text.encode("utf-8")
    assert all(character.isprintable() or character == "\n" for character in text)
    quoted = json.loads(text)["verdict"]["evidence"][0]["text"]
    assert "\x1b[31mred" in quoted
    assert "\u202eesrever" in quoted
    assert r"\ud800 \xff" in quoted


def test_a_clock_beyond_any_calendar_is_no_time() -> None:
    event = Event("a.log", 1, "line", "x", line=1, utc_ns=10**22, time_text="never")
    verdict = reports.mismatch()
    report = Report(Run("r", events=(event,)), replace(verdict, evidence=(Evidence(event),)))
    assert document(report)["verdict"]["evidence"][0]["time"] == "never"
    assert all(render(report, format) for format in FORMATS)


def test_shown_report_is_the_report() -> None:
    shown = ShownReport.of(reports.typical())
    assert isinstance(shown, Report)
    assert shown.to_dict() == document(reports.typical())
    assert json.loads(shown.to_json()) == shown.to_dict()


def test_unknown_format_is_a_usage_error() -> None:
    with pytest.raises(ParamedicError, match="text, json, sarif, github, html"):
        render(reports.typical(), "yaml")


def test_importing_the_package_loads_neither_rich_nor_jinja() -> None:
    code = "import sys, paramedic.report; print([m for m in ('rich', 'jinja2') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
