"""`study report`: the page, its plots and their captions, the tables beside it; nothing is asked of the network."""

from __future__ import annotations

import csv
import re
from datetime import datetime
from pathlib import Path

import pytest

from paramedic.commands import main
from paramedic.errors import ParamedicError
from paramedic.study import cures, flows
from paramedic.study.faults import Seen, collect, together
from paramedic.study.labels import read_labels
from paramedic.study.page import render
from paramedic.study.plots import by_stage, co_occurrence, plots
from paramedic.study.store import Given, Post, opened
from test_study import package_zip

Captured = pytest.CaptureFixture[str]
V, D = "version-and-dependency-management", "distributed-feature-api-and-communication-tuning"


def seen(
    post: str, symptom: str, *fixes: str, framework: str = "pytorch", day: int = 1, days: int = 3, **more: str
) -> Seen:
    created, resolved = datetime(2024, 1, day), datetime(2024, 1, day + days)
    return Seen(post, "rater", framework, symptom, fixes, created=created, resolved=resolved, **more)  # type: ignore[arg-type]


FAULTS = [
    *(seen(f"a{n}", "collective-hang", D, day=n + 1, release="v1" if n < 3 else "v2") for n in range(6)),
    *(seen(f"b{n}", "build-or-install-failure", V, framework="horovod", day=n + 1, days=1) for n in range(4)),
    seen("a0", "low-throughput", V, cause="uneven-work-across-ranks"),
]


@pytest.fixture(scope="module")
def page() -> str:
    return render(FAULTS, [])


def test_every_plot_has_a_caption_that_says_what_to_learn(page: str) -> None:
    found = plots(FAULTS)
    assert len(found) == 7
    for one in found:
        assert one.svg.startswith("<svg"), one.title
        assert len(one.caption) > 40
        assert one.caption.replace("'", "&#39;") in page
    captions = {one.title: one.caption for one in found}
    assert (
        "100 % of 11 faults fall to five symptoms, collective-hang the commonest (55 %)"
        in captions["What fails, and at which stage"]
    )
    assert "Causes of 10 of them have no label" in captions["From symptom over cause to cure"]
    assert "v2 drew the most" in captions["By release"] or "v1 drew the most" in captions["By release"]
    assert "median 3 days" in captions["Time to resolution"]
    assert "collective-hang and low-throughput" in captions["What comes together"]


def test_without_data_a_plot_says_what_to_fetch() -> None:
    bare = [Seen("a", "study 1", "horovod", "collective-hang", ())]
    found = {one.title: one for one in plots(bare)}
    assert found["Over time"].svg == ""
    assert "study fetch linked" in found["Over time"].caption
    assert "study fetch github" in found["By release"].caption


def test_the_page_asks_nothing_of_anybody(page: str) -> None:
    assert "default-src 'none'" in page
    assert "<script" not in page
    assert "<img" not in page
    assert "<image" not in page, "a picture inside an SVG is a request, too"
    links = re.findall(r'(?:href|src|url)\s*[=(]\s*["\']?([^"\')\s>]+)', page)
    assert [link for link in links if not link.startswith("#")] == []


def test_ids_are_unique_in_the_page(page: str) -> None:
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))
    assert all(found in ids for found in re.findall(r'href="#([^"]+)"', page))


def test_the_same_faults_give_the_same_bytes(page: str) -> None:
    assert by_stage(FAULTS).svg in page
    assert co_occurrence(FAULTS).svg in page


def test_names_from_strangers_are_escaped() -> None:
    hostile = [
        seen(f"p{n}", "collective-hang", D, framework="<script>alert(1)</script>$x_1$", release="<b>&")
        for n in range(3)
    ]
    page = render(hostile, [])
    assert "<script>" not in page
    assert "<b>&" not in page


def test_top_failures_name_cure_interval_and_first_step() -> None:
    first = cures.top(FAULTS, "pytorch")[0]
    assert (first.symptom, first.faults, first.fix) == ("collective-hang", 6, D)
    assert first.fix_low < first.fix_share < first.fix_high
    assert first.days == 3
    assert first.step
    assert "{" not in " ".join(one.step for one in cures.top(FAULTS))
    assert cures.frameworks(FAULTS) == ["pytorch", "horovod"]


def test_bands_are_as_wide_as_their_faults_and_fill_their_boxes() -> None:
    boxes, bands = flows.layout(*flows.weights(FAULTS))
    assert sum(band.weight for band in bands if band.column == 0) == pytest.approx(len(FAULTS))
    for column in (0, 1, 2):
        assert sum(box.weight for box in boxes if box.column == column) == pytest.approx(len(FAULTS))
    for box in boxes:
        out = sum(band.left[1] - band.left[0] for band in bands if (band.column, band.source) == (box.column, box.name))
        if box.column < 2:
            assert out == pytest.approx(box.high - box.low)
    assert flows.layout({}, {}) == ([], [])


def test_what_comes_together_is_counted_by_post() -> None:
    assert together(FAULTS) == {("collective-hang", "low-throughput"): 1}


# -- where faults come from ----------------------------------------------------------------------------------------


def test_study_raters_and_classifier_are_told_apart_and_none_counts_twice(tmp_path: Path) -> None:
    package = tmp_path / "package.zip"
    package.write_bytes(package_zip())
    study = read_labels(package)
    with opened(tmp_path / "s.duckdb", create=True) as store:
        link = "https://github.com/some/tracker/issues/3"
        store.put_posts(
            [
                Post(link, "github:some/tracker", "tracker", "t", "", created="2024-01-05", resolved="2024-01-09"),
                Post("x", "github:some/tracker", "tracker", "t", "", created="2024-02-01"),
                Post("y", "github:some/tracker", "tracker", "t", "", state="duplicate"),
            ]
        )
        store.put_releases("some/tracker", [("v1", "2024-01-01"), ("v2", "2024-01-20")])
        store.put_labels(
            [
                Given(link, "study 1", "tensor-shape-or-dtype-mismatch"),
                Given("x", "ann", "collective-hang", fix=D),
                Given("y", "ann", "native-crash"),
            ]
        )
        found = collect(study, store)
    assert [one.by for one in found] == ["rater", *["study 1"] * 4]
    dated = next(one for one in found if one.post == link)
    assert (dated.days, dated.release) == (4, "v1")
    assert found[0].release == "v2"


def test_the_command_writes_the_page_and_the_tables(tmp_path: Path, capsys: Captured) -> None:
    package = tmp_path / "package.zip"
    package.write_bytes(package_zip())
    out, data = tmp_path / "study.html", tmp_path / "data"
    arguments = [
        "study",
        "report",
        "--labels",
        str(package),
        "--db",
        str(tmp_path / "none.duckdb"),
        "--output",
        str(out),
    ]
    assert main([*arguments, "--data", str(data)]) == 0
    assert "What breaks most" in out.read_text("utf-8")
    assert not (tmp_path / "none.duckdb").exists()
    with (data / "faults.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["symptom"] for row in rows].count("collective-hang") == 1
    import duckdb

    counted = duckdb.connect().execute(f"SELECT count(*) FROM '{data / 'faults.parquet'}'")
    assert counted.fetchall() == [(4,)]
    assert main([*arguments, "--framework", "caffe"]) == 2
    assert "horovod" in capsys.readouterr().err


def test_nothing_known_is_said(tmp_path: Path, capsys: Captured) -> None:
    assert main(["study", "report", "--db", str(tmp_path / "no.duckdb")]) == 2
    assert "no fault is known here" in capsys.readouterr().err
    with pytest.raises(ParamedicError):
        render([], [])
