"""One hundred logs of real healthy runs, full of scary but harmless lines: no verdict, exit 0."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from paramedic.commands import main

LOGS = sorted((Path(__file__).parent / "healthy" / "logs").glob("*.log"))


def test_there_are_a_hundred_different_healthy_logs() -> None:
    assert len(LOGS) >= 100
    assert len({log.read_bytes() for log in LOGS}) == len(LOGS)


def test_they_are_scary() -> None:
    words = re.compile(r"error|fail|traceback|warn|timeout|\bnan\b|out of memory|\b[WE]\d{4} \d\d:\d\d", re.I)
    calm = [log.name for log in LOGS if not words.search(log.read_text("utf-8", "replace"))]
    assert len(LOGS) - len(calm) >= 100


@pytest.mark.parametrize("log", LOGS, ids=lambda p: p.stem)
def test_a_healthy_run_gets_no_verdict(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["diagnose", str(log), "--format", "json"])
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] is None
    assert code == 0, [finding["rule"] for finding in report["findings"]]
