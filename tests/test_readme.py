"""The README shows the true output."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paramedic.commands import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--output", str(tmp_path / "report.html")]) == 0
    printed = "\n".join(line.rstrip() for line in capsys.readouterr().out.strip().split("\n"))
    shown = re.search(
        r"<!-- demo: begin -->\n```console\n\$ paramedic demo\n(.*?)\n```\n<!-- demo: end -->", README, re.S
    )
    assert shown is not None
    assert shown[1] == printed


def test_every_link_of_the_docs_leads_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "ARCHITECTURE.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if not target.startswith("http"):
                assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_every_verb_is_in_the_docs() -> None:
    from paramedic.commands import VERBS

    text = README + "".join(page.read_text("utf-8") for page in (ROOT / "docs").glob("*.md"))
    assert [verb for verb in VERBS if f"paramedic {verb}" not in text and f"make {verb}" not in text] == []
