"""GitHub annotations and SARIF: one line is one command, every name a valid URI, no quote forges anything."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest
import reports

from paramedic.model import Event, Evidence, Report, Run
from paramedic.report import render


def with_source(source: str, line: int | None = 7) -> Report:
    event = Event(source, 1, "line", "boom", line=line)
    return Report(Run("r"), replace(reports.mismatch(), evidence=(Evidence(event),)))


def sarif(report: Report) -> dict[str, Any]:
    run: dict[str, Any] = json.loads(render(report, "sarif"))["runs"][0]
    return run


def test_annotations_carry_file_line_title_and_message() -> None:
    first, second = render(reports.typical(), "github").splitlines()
    assert first.startswith("::error file=logs/rank3.log,line=162,title=COL003%3A collective hang (comm")
    assert "%2C rank 3 on node-01::" in first
    assert "(93 %25 sure)%0AEvidence" in first
    assert second.startswith("::warning file=pip/node-01.txt,line=14,")


def test_hostile_text_forges_no_annotation() -> None:
    text = render(reports.hostile(), "github")
    command = re.compile(r"::(error|warning|notice) ((file|line|title)=[^,:\n]*,?)*::[^\r\n]*")
    assert all(command.fullmatch(line) for line in text.splitlines())
    assert len(text.split("\n")) == 3
    assert all(character.isprintable() or character == "\n" for character in text)


def test_without_a_verdict_there_is_a_notice() -> None:
    assert render(reports.empty(), "github").startswith("::notice title=No verdict%3A nothing could be examined::")


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("logs/a b.log", "file=logs/a b.log,line=7,"),
        ("a.tar!/x/rank0.log", "file=a.tar,title"),
        ("-", "::error title"),
        ("slurm:4711", "::error title"),
        ("a,b:c.log", "file=a%2Cb%3Ac.log,line=7,"),
    ],
)
def test_annotated_files(source: str, shown: str) -> None:
    report = with_source(source)
    verdict = replace(report.verdict, severity="error") if report.verdict else None
    assert shown in render(replace(report, verdict=verdict), "github")


@pytest.mark.parametrize(
    ("source", "uri"),
    [
        ("logs/rank3.log", "logs/rank3.log"),
        ("a.tar!/x/y z.log", "a.tar!/x/y%20z.log"),
        ("-", "-"),
        ("slurm:4711", "slurm%3A4711"),
        ("/var/log/ä.log", "file:///var/log/%C3%A4.log"),
        ("a%#?<>\x1b\udcff", "a%25%23%3F%3C%3E%1B%5Cudcff"),
    ],
)
def test_every_source_is_a_uri(source: str, uri: str) -> None:
    physical = sarif(with_source(source))["results"][0]["locations"][0]["physicalLocation"]
    assert physical == {
        "artifactLocation": {"uri": uri},
        "region": {"startLine": 7, "snippet": {"text": "boom"}},
    }
    assert "region" not in sarif(with_source(source, None))["results"][0]["locations"][0]["physicalLocation"]


def test_sarif_has_results_rules_and_what_was_skipped() -> None:
    log = json.loads(render(reports.typical(), "sarif"))
    run = log["runs"][0]
    assert log["version"] == "2.1.0"
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == ["COL003", "VER004"]
    assert [(r["ruleIndex"], r["level"], r["rank"]) for r in run["results"]] == [
        (0, "error", 93.0),
        (1, "warning", 64.0),
    ]
    assert len(run["results"][0]["relatedLocations"]) == 2
    assert len(run["invocations"][0]["toolExecutionNotifications"]) == 2
    assert run["results"][0]["properties"]["verdict"] is True


def test_sarif_help_comes_from_the_rule() -> None:
    rule = sarif(reports.silent_rank())["tool"]["driver"]["rules"][0]
    assert rule["name"] == "GlooReceiveTimeout"
    assert "## What it means" in rule["help"]["markdown"]
    assert rule["helpUri"].startswith("https://")


def test_fingerprints_outlive_line_numbers() -> None:
    prints = {json.dumps(sarif(with_source("a.log", n))["results"][0]["partialFingerprints"]) for n in (1, 99)}
    assert len(prints) == 1


def test_hostile_text_stays_text_in_sarif() -> None:
    text = render(reports.hostile(), "sarif")
    assert all(character.isprintable() or character == "\n" for character in text)
    result = json.loads(text)["runs"][0]["results"][0]
    assert "](" not in result["message"]["text"]
    assert "{{{{7*7}}}}" in result["message"]["text"]
    assert re.fullmatch(
        r"[A-Za-z0-9%/!._~+,@=-]+", result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    )
