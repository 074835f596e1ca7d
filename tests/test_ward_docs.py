"""Tables in the docs that are made from the rules, cases and recordings. UPDATE_DOCS=1 writes them anew instead of comparing."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from paramedic.detect import FACT_DETECTORS, NODE_DETECTORS
from paramedic.knowledge import coverage, load
from paramedic.knowledge.advisories import load_advisories
from paramedic.ward.case import load_all
from paramedic.ward.corpus import recordings
from paramedic.ward.matrix import markdown
from paramedic.ward.systems import SYSTEMS

ROOT = Path(__file__).parents[1]
CASES = load_all()


def counts() -> str:
    found = recordings(CASES)
    real = [case for case in CASES if case.launch]
    failed = [one for one in found if one.truth and not one.case.synthetic]
    layouts = Counter(str(one.made["layout"]) for one in failed)
    lines = [
        f"{len(CASES)} cases: {len(real)} that run ({sum('gpu' in case.needs for case in real)} of them need a GPU) and "
        f"{len(CASES) - len(real)} synthetic. {sum(case.held_back for case in CASES)} are held back, "
        f"{sum(case.in_sight for case in CASES)} were in sight before the split. "
        f"{len(failed)} recordings of failures ({', '.join(f'{n} {layout}' for layout, n in layouts.most_common())}) and "
        f"{sum(not one.truth for one in found)} of cured runs.",
        "",
        "| system | cases | failed | cured | synthetic | versions |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for system, title in SYSTEMS.items():
        mine = [one for one in found if one.case.system == system]
        versions = sorted({str(one.made["versions"]) for one in mine if one.made["versions"] != "-"})
        lines.append(
            f"| {title} | {len({one.case.id for one in mine})} | {sum(bool(one.truth) and not one.case.synthetic for one in mine)} | "
            f"{sum(not one.truth for one in mine)} | {sum(one.case.synthetic for one in mine)} | {'; '.join(versions) or '–'} |"
        )
    written = [case for case in CASES if case.synthetic]
    lines += ["", "Synthetic, and after what:", "", *(f"- `{case.id}`: {case.source}" for case in written)]
    return "\n".join(lines)


BLOCKS: dict[str, tuple[Path, Callable[[], str]]] = {
    "matrix": (ROOT / "docs/ward.md", lambda: markdown(CASES)),
    "counts": (ROOT / "corpus/README.md", counts),
    "signatures": (ROOT / "docs/signatures.md", lambda: coverage.markdown(load()).rstrip("\n")),
    "checks": (ROOT / "docs/checks.md", lambda: coverage.checks(load()).rstrip("\n")),
    "node checks": (ROOT / "docs/checks-node.md", lambda: coverage.node_checks(load()).rstrip("\n")),
    "advisories": (ROOT / "docs/checks-node.md", lambda: coverage.advisories(load_advisories()).rstrip("\n")),
}


@pytest.mark.parametrize("name", BLOCKS)
def test_a_made_table_in_the_docs_is_up_to_date(name: str) -> None:
    file, make = BLOCKS[name]
    text = file.read_text("utf-8")
    found = re.search(rf"(<!-- {name}: begin -->\n)(.*)(<!-- {name}: end -->)", text, re.DOTALL)
    assert found
    wanted = f"{make()}\n"
    if os.environ.get("UPDATE_DOCS"):
        file.write_text(text[: found.start(2)] + wanted + text[found.end(2) :], "utf-8")
    else:
        assert found[2] == wanted, "run: UPDATE_DOCS=1 pytest tests/test_ward_docs.py"


def test_every_rule_that_check_judges_has_a_row() -> None:
    pages = "".join((ROOT / "docs" / name).read_text("utf-8") for name in ("checks.md", "checks-node.md"))
    judged = [r.id for r in load().rules.values() if r.before or r.detector in FACT_DETECTORS | NODE_DETECTORS]
    assert [id for id in (*judged, *(one.rule.id for one in load_advisories())) if f"[{id}](" not in pages] == []


@pytest.mark.parametrize("page", ["checks.md", "checks-node.md"])
def test_a_rule_s_row_leads_to_its_file(page: str) -> None:
    links = re.findall(r"\]\((\.\./[^)]+)\)", (ROOT / "docs" / page).read_text("utf-8"))
    assert len(links) > 100 and [link for link in links if not (ROOT / "docs" / link).is_file()] == []
