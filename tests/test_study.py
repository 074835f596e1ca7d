"""Study 1 recomputed: its workbooks, tables, raters and base rates. The labels here are made up; the real ones too, if present."""

from __future__ import annotations

import io
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import openpyxl
import pytest

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study import priors, tables
from paramedic.study.agreement import agreement, by_round, kappa, unpaired
from paramedic.study.crosswalk import count_fixes
from paramedic.study.dirichlet import beta_quantile, shares
from paramedic.study.labels import fixes, read_labels

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).parents[1]
Rows = list[list[Any]]
REAL = Path(os.environ.get("STUDY1_LABELS") or "none")

FAULTS: Rows = [
    ["Type", "Link", "distributed-specific", "stage", "inner-category", "leaf category", "fix pattern"],
    ["GitHub-horovod", "https://github.com/some/tracker/issues/1", 1, "Communication setup", None, "Hang and Timeout", "fix network setting & fix dependency version"],
    [None, None, 1, "package build & import", None, "import  error", "Fix dependency versions"],
    ["GitHub-horovod", "https://github.com/some/tracker/issues/3", 0, "training & evaluation", "program failure", "tensor mismatch", "fix tensor dtype / fix distributed API usage"],
    ["SO-pytorch", "https://stackoverflow.com/questions/11", 1, "training & evaluation", "unexpected performance", "hang", "fix batch size"],
]  # fmt: skip
QUESTIONS: Rows = [
    ["Type", "Link", "how-to topic", "sub-topic"],
    ["GitHub-horovod", "https://github.com/some/tracker/issues/2", "communication", "communitive operator"],
    ["SO-keras", "https://stackoverflow.com/questions/12", "API usage", None],
]
HEAD = [
    "Link",
    "Issue Type ",
    "How-to topic",
    "How-to sub-topic",
    "Distributed-specified",
    "Stage",
    "Type",
    "Leaf Category",
    "Fix Pattern",
    "Memo",
]
ONE: Rows = [
    HEAD,
    ["a", "fault", None, None, 1, "communication setup", None, "hang and timeout", "fix network setting", None],
    [None, "fault", None, None, 1, "training & evaluation", "program failure", "path error", "fix command line", None],
    ["b", "how-to question", "communication", "backend", None, None, None, None, None, None],
    ["c", "fault", None, None, 1, "package build & import", None, "import error", "fix dependency path", None],
]
TWO: Rows = [
    HEAD,
    ["a", "fault", None, None, 1, "communication setup", None, "Hang & Timeout", "fix dependency version", None],
    ["b", "how-to question", "communication", "backend", None, None, None, None, None, None],
    ["c", "fault", None, None, 1, "package build & import", "import error", "fix dependency path", None, None],
]


def workbook(**sheets: Rows) -> bytes:
    book = openpyxl.Workbook()
    book.remove(book.active)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name.replace("_", " ").replace("how to", "how-to"))
        for row in rows:
            sheet.append(row)
    out = io.BytesIO()
    book.save(out)
    return out.getvalue()


def package_zip(faults: Rows = FAULTS) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as packed:
        folder = "some-repository-0ab3c07/data/Results"
        packed.writestr(
            f"{folder}/final results/final categories.xlsx", workbook(how_to_questions=QUESTIONS, faults=faults)
        )
        packed.writestr(
            f"{folder}/manual labelling/reliability_analysis_round1.xlsx", workbook(label1=ONE, label2=TWO, Final=ONE)
        )
        packed.writestr("some-repository-0ab3c07/README.md", "not read")
    return out.getvalue()


@pytest.fixture
def package(tmp_path: Path) -> Path:
    file = tmp_path / "package.zip"
    file.write_bytes(package_zip())
    return file


# -- reading -------------------------------------------------------------------------------------------------------


def test_spellings_are_united_and_empty_cells_mean_the_row_above(package: Path) -> None:
    study = read_labels(package)
    assert [fault.link[-8:] for fault in study.faults][:2] == ["issues/1", "issues/1"]
    assert study.faults[1].origin == "GitHub-horovod"
    assert study.faults[0].symptom == "hang & timeout"
    assert study.faults[1].symptom == "import error"
    assert study.faults[2].fixes == ("fix data type", "fix distributed api usage")
    assert study.faults[3].fixes == ("fix batch size/data partition",)


def test_several_fixes_in_one_cell_are_told_apart() -> None:
    assert fixes("fix dependency version & framework version") == ("fix dependency version", "fix framework version")
    assert fixes("fix build/install configuration") == ("fix build/install configuration",)
    assert fixes("") == ()


def test_folder_archive_workbook_and_csv_give_the_same_faults(package: Path, tmp_path: Path) -> None:
    from paramedic.study.labels import faults_csv

    study = read_labels(package)
    with zipfile.ZipFile(package) as packed:
        packed.extractall(tmp_path / "folder")
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv/faults.csv").write_bytes(faults_csv(study.faults))
    assert read_labels(tmp_path / "folder").faults == study.faults
    again = read_labels(tmp_path / "csv")
    assert again.faults == study.faults
    assert again.faults_sha256 == study.faults_sha256


def changed(row: int, column: int, value: object) -> Rows:
    rows = [list(one) for one in FAULTS]
    rows[row][column] = value
    return rows


@pytest.mark.parametrize(
    ("faults", "said"),
    [
        (changed(0, 3, "phase"), "no column 'stage'; its columns are"),
        (changed(1, 2, "perhaps"), "line 2: distributed-specific is 'perhaps'"),
        (changed(2, 3, None), "line 3: a fault without stage"),
        (changed(1, 1, None), "the first fault has no link"),
    ],
)
def test_a_changed_layout_is_said_in_one_sentence(tmp_path: Path, faults: Rows, said: str, capsys: Captured) -> None:
    file = tmp_path / "package.zip"
    file.write_bytes(package_zip(faults))
    assert main(["study", "tables", "--labels", str(file), "--db", str(tmp_path / "no.duckdb")]) == 2
    out = capsys.readouterr()
    assert out.out == ""
    assert said in out.err


def test_labels_that_the_crosswalk_does_not_know_are_named(tmp_path: Path) -> None:
    file = tmp_path / "package.zip"
    file.write_bytes(package_zip(changed(4, 5, "gremlins")))
    with pytest.raises(ParamedicError, match="gremlins"):
        tables.derive(read_labels(file))


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 not a zip", b"hello"])
def test_what_is_no_package_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "x.zip"
    file.write_bytes(content)
    with pytest.raises(ParamedicError):
        read_labels(file)
    book = tmp_path / "final categories.xlsx"
    book.write_bytes(content)
    with pytest.raises(ParamedicError, match="cannot be read as a workbook"):
        read_labels(book)
    with pytest.raises(ParamedicError):
        read_labels(tmp_path / "absent")


# -- raters --------------------------------------------------------------------------------------------------------


def test_kappa_is_cohens() -> None:
    pairs = [("a", "a")] * 20 + [("a", "b")] * 5 + [("b", "a")] * 10 + [("b", "b")] * 15
    assert kappa(pairs) == pytest.approx(0.4)  # the textbook's example
    assert kappa([("a", "a")] * 3) is None
    found = agreement("x", pairs)
    assert found.low is not None
    assert found.high is not None
    assert found.low < 0.4 < found.high


def test_raters_are_paired_post_by_post_and_a_slipped_row_is_put_right(package: Path) -> None:
    study = read_labels(package)
    found = {one.what: one for one in by_round(study.ratings)[1]}
    assert (found["symptom"].pairs, found["symptom"].agreed) == (2, 2)
    assert (found["fix"].pairs, found["fix"].agreed) == (2, 1)
    assert found["issue type"].pairs == 3
    assert unpaired(study.ratings) == 1


# -- tables --------------------------------------------------------------------------------------------------------


def test_tables_count_what_is_there(package: Path) -> None:
    counts = tables.derive(read_labels(package))
    assert counts["totals"] == {
        "issues": 6, "faults": 4, "how-to questions": 2, "posts with a fault": 3, "distributed-specific faults": 3,
        "symptom categories": 3, "faults with several fixes": 2,
    }  # fmt: skip
    assert counts["symptoms"] == {"hang": 2, "import error": 1, "tensor mismatch": 1}
    assert counts["how_to"]["communication"]["sub-topics"] == {"collective operator": 1}
    assert counts["crosswalk"]["cured by the first two"] == 3


def test_the_counts_shipped_are_those_of_the_paper() -> None:
    counts = tables.shipped()
    assert counts["totals"]["faults"] + counts["totals"]["how-to questions"] == 637 + 494 == 1131
    assert [stage["faults"] for stage in counts["stages"].values()] == [82, 133, 57, 365]
    assert counts["totals"]["distributed-specific faults"] == 569
    assert len(counts["symptoms"]) == 30
    assert sum(counts["symptoms"].values()) == sum(one["faults"] for one in counts["labels"]) == 637
    assert counts["crosswalk"]["cured by the first two"] == 399
    assert round(100 * 399 / 637, 1) == 62.6
    assert all(one["equal"] for one in tables.beside_paper(counts))
    assert [len(found) for found in counts["kappa"]["rounds"].values()] == [5] * 5
    assert set(counts["crosswalk"]["symptoms"]) | set(counts["crosswalk"]["not seen"]) == set(load_taxonomy().symptoms)


def test_the_tables_are_shown_without_any_labels(tmp_path: Path, capsys: Captured) -> None:
    assert main(["study", "tables", "--check", "--db", str(tmp_path / "no.duckdb")]) == 0
    out = capsys.readouterr()
    assert "1,131   1,131  equal" in out.out
    assert "399  62.6 %" in out.out
    assert "no labels here" in out.err


def test_tables_of_other_labels_differ_and_say_so(package: Path, tmp_path: Path, capsys: Captured) -> None:
    arguments = ["study", "tables", "--labels", str(package), "--db", str(tmp_path / "no.duckdb")]
    assert main([*arguments, "--check", "--format", "json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["equal_to_shipped"] is False
    assert document["beside"][0] | {"where": "", "why": ""} == {
        "name": "issues", "ours": 6, "stated": 1131, "equal": False, "where": "", "why": "",
    }  # fmt: skip
    assert main([*arguments, "--output", str(tmp_path / "tables.txt")]) == 0
    assert "DIFFERS" in (tmp_path / "tables.txt").read_text()


def test_study_2_stands_beside_our_labelling() -> None:
    rows = [
        {"symptom": "rendezvous-setup-hang", "fix": tables.FIRST_TWO[1], "distributed": 1.0},
        {"symptom": "build-or-install-failure", "fix": "resource-and-memory-tuning", "distributed": 0.2},
    ]
    found = {one["name"]: one for one in tables.beside_second(rows, tables.shipped())}
    assert (found["issues"]["ours"], found["issues"]["stated"]) == (2, 849)
    assert found["cured by the first two fix patterns"]["ours"] == 50.0
    assert found["distributed-specific in communication setup"]["ours"] == 100.0
    assert found["cured by the first two fix patterns"]["study 1"] == 62.6


# -- base rates ----------------------------------------------------------------------------------------------------


def test_a_share_has_the_interval_of_its_beta() -> None:
    found = shares({"a": 8, "b": 2}, ["a", "b"])
    assert found["a"].mean == pytest.approx(8.5 / 11, abs=1e-4)
    assert (found["a"].low, found["a"].high) == pytest.approx(
        (0.4979, 0.9556), abs=1e-3
    )  # R: qbeta(c(.025, .975), 8.5, 2.5)
    assert beta_quantile(1, 1, 0.3) == pytest.approx(0.3)


def test_base_rates_sum_to_one_and_more_labels_move_them(package: Path) -> None:
    study = read_labels(package)
    before = priors.derive(study)
    for prior in before["causes"]["lab"].values():
        assert sum(prior.values()) == pytest.approx(1, abs=1e-3)
    more = count_fixes(study.faults * 30)
    after = priors.derive(study, more)
    moved = priors.changes(before, after)
    assert moved
    assert moved[0].symptom in more
    assert not priors.changes(before, before)
    assert "and 150 labels" in after["source"] or "labels of raters" in after["source"]


def test_the_base_rates_shipped_are_counted_once_for_each_fault() -> None:
    shipped = json.loads((ROOT / "src/paramedic/knowledge/priors.json").read_text())
    assert shipped["source_sha256"] == tables.shipped()["faults_sha256"]
    assert shipped["faults"] == tables.shipped()["crosswalk"]["symptoms"]
    for symptom, found in shipped["fix_shares"].items():
        assert sum(mean for mean, _, _ in found.values()) == pytest.approx(1, abs=1e-3), symptom
        assert all(low <= mean <= high for mean, low, high in found.values())


def test_priors_without_labels_and_with_an_unknown_rater_are_refused(
    tmp_path: Path, package: Path, capsys: Captured
) -> None:
    db = str(tmp_path / "s.duckdb")
    assert main(["study", "priors", "--db", db]) == 2
    assert "study fetch study1" in capsys.readouterr().err
    assert main(["study", "fetch", str(package), "--db", db]) == 0
    assert main(["study", "priors", "--db", db, "--raters", "nobody"]) == 2
    assert "nobody" in capsys.readouterr().err
    assert main(["study", "priors", "--db", db, "--check"]) == 1
    assert "shares changed" in capsys.readouterr().out
    assert main(["study", "priors", "--db", db, "--output", str(tmp_path / "priors.json"), "--format", "json"]) == 0
    assert json.loads((tmp_path / "priors.json").read_text())["faults"]["collective-hang"] == 1


# -- the real labels, where they are -------------------------------------------------------------------------------

real = pytest.mark.skipif(not REAL.exists(), reason="study 1's labels are not here (STUDY1_LABELS)")


@real
def test_the_real_labels_give_the_counts_shipped() -> None:
    counts = tables.derive(read_labels(REAL))
    assert tables.dumps(counts) == (ROOT / "src/paramedic/study/counts.json").read_text("utf-8")


@real
def test_the_real_labels_give_the_base_rates_shipped_byte_for_byte(tmp_path: Path) -> None:
    out = tmp_path / "priors.json"
    arguments = ["study", "priors", "--labels", str(REAL), "--db", str(tmp_path / "no.duckdb")]
    assert main([*arguments, "--check", "--output", str(out)]) == 0
    assert out.read_bytes() == (ROOT / "src/paramedic/knowledge/priors.json").read_bytes()
