"""The log of scorings on held-back cases: the first look at a case is the honest one, every later one has seen it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paramedic import __version__
from paramedic.errors import ParamedicError
from paramedic.ward.score import Score

LOG = "held-back.jsonl"


def entries(corpus: Path) -> list[dict[str, Any]]:
    file = corpus / LOG
    try:
        return [json.loads(line) for line in file.read_text("utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        return []
    except ValueError as error:
        raise ParamedicError(f"{file}: {error}") from None


def append(score: Score, corpus: Path) -> dict[str, Any]:
    """Log this look at the held-back cases; which of them somebody has looked at before is part of it."""
    before = {case for entry in entries(corpus) for case in entry["cases"]}
    cases = sorted({one.recording.case.id for one in score.rows})
    entry = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "version": __version__,
        "commit": _commit(),
        "given": score.given,
        "seen": [case for case in cases if case in before],
        "cases": cases,
        "canonical": asdict(score.canonical),
        "every": asdict(score.every),
        "ece": score.ece,
    }
    try:
        with open(corpus / LOG, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")
    except OSError as error:
        raise ParamedicError(
            f"{corpus / LOG}: {error.strerror}: a scoring of held-back cases must be logged; "
            "copy the corpus to where you can write and name it with --corpus"
        ) from None
    return entry


def _commit() -> str:
    """Of the checkout this package runs from, with a plus when it was changed since; a dash outside one."""
    here = Path(__file__).parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, check=False)
        return done.stdout.strip() if done.returncode == 0 else ""

    try:
        commit = git("rev-parse", "--short=12", "HEAD")
        changed = git("status", "--porcelain", "--", str(here.parent))
    except OSError:
        return "-"
    return commit + ("+" if changed and commit else "") or "-"
