"""The HTML report: self-contained, small, and hostile text is only ever text."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from dataclasses import replace
from html.parser import HTMLParser
from importlib import resources
from pathlib import Path

import pytest
import reports

from paramedic.model import Event, Evidence, Report, Run
from paramedic.report import ShownReport, render
from paramedic.report.escape import printable
from paramedic.report.html import prose
from paramedic.report.issue import markdown
from paramedic.report.timeline import MOST_LANES, MOST_MARKS, Timeline, timeline

TAGS = {
    *("html", "head", "meta", "title", "style", "script", "body", "header", "nav", "main", "section", "footer"),
    *("a", "p", "span", "h1", "h2", "h3", "b", "strong", "br", "ol", "ul", "li", "div", "pre", "code", "textarea"),
    *("figure", "figcaption", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"),
    *("svg", "g", "rect", "path", "circle", "text", "tspan"),
}
LOADS = {
    "src",
    "srcset",
    "srcdoc",
    "action",
    "formaction",
    "data",
    "poster",
    "background",
    "style",
    "xlink:href",
}


class Page(HTMLParser):
    """Collects what a browser would act on, and the text it would show."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.inside:
            while self.inside.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        self.texts.setdefault(self.inside[-1] if self.inside else "", []).append(data)

    @property
    def text(self) -> str:
        return "\n".join(text for tag, texts in self.texts.items() if tag not in ("script", "style") for text in texts)


@pytest.mark.parametrize("name", reports.ALL)
def test_nothing_in_the_page_acts_or_loads(name: str) -> None:
    page = Page(render(reports.ALL[name](), "html"))
    assert {tag for tag, _ in page.tags} <= TAGS
    for tag, attributes in page.tags:
        assert not [name for name in attributes if name.startswith("on") or name in LOADS], tag
        assert (attributes.get("href") or "#").startswith("#")
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert [tag for tag, _ in page.tags].count("style") == 1
    refreshes = [a for tag, a in page.tags if tag == "meta" and a.get("http-equiv") == "refresh"]
    assert not refreshes


def test_policy_allows_our_style_and_script_by_hash_and_nothing_else() -> None:
    text = render(reports.hostile(), "html")
    page = Page(text)
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert set(rules) == {"default-src", "style-src", "script-src", "base-uri", "form-action"}
    assert {rules[name] for name in ("default-src", "base-uri", "form-action")} == {"'none'"}
    for tag in ("style", "script"):
        content = "".join(page.texts[tag])
        found = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[f"{tag}-src"] == f"'sha256-{found}'"
    assert text.index("Content-Security-Policy") < text.index("<title>")


def test_hostile_text_is_shown_as_text() -> None:
    page = Page(render(reports.hostile(), "html"))
    for needle in (
        "<script>document.title=",
        "onerror=",
        "{{7*7}}",
        r"\x1b]8;;",
        r"\u202eesrever",
        "[red]markup",
    ):
        assert needle in page.text
    assert "49" not in re.findall(r"\d+", " ".join(t for t in page.texts["td"] if "raw" in t))
    source = render(reports.hostile(), "html")
    assert all(character.isprintable() or character in "\n" for character in source)
    source.encode("utf-8")


@pytest.mark.parametrize("name", ["typical", "silent_rank", "undecided", "empty", "many_ranks"])
def test_page_is_small(name: str) -> None:
    report = reports.ALL[name]()
    found = (report.verdict, *report.findings)
    quoted = sum(len(e.event.text) + sum(map(len, e.before + e.after)) for f in found if f for e in f.evidence)
    assert len(render(report, "html").encode()) - quoted < 300_000


def test_long_quotes_are_bounded() -> None:
    event = reports.event(0, 1, "x" * 5_000_000)
    verdict = replace(reports.mismatch(), evidence=(Evidence(event, ("y" * 10**6,), ()),) * 100)
    page = render(replace(reports.typical(), verdict=verdict, findings=(verdict,) * 100), "html")
    assert len(page) < 600_000
    assert "(4,996,000 more characters)" in page


def test_content() -> None:
    page = Page(render(reports.typical(), "html"))
    text = " ".join(page.text.split())
    for words in (
        "Rank 3 skipped all_reduce",
        "93 %",
        "collective order divergence",
        "After progress has begun",
        "Make every rank issue the same collectives",
        "export TORCH_DISTRIBUTED_DEBUG=DETAIL",
        "Run 200 steps",
        "step 1352 forward done",
        "torch/distributed/distributed_c10d.py:2501 in all_reduce",
        "61 messages on ranks 0-2",
        "logs/rank3.err",
        "PERF002",
        "0198c4f2-run-7d1e",
        "report schema 1",
        "paramedic explain COL003",
    ):
        assert words in text, words
    numbers = [a for tag, a in page.tags if a.get("class") == "hit"]
    assert len(numbers) >= 3


def test_timeline_has_a_lane_for_every_rank_and_marks_the_first_failure() -> None:
    made = timeline(reports.typical())
    assert made is not None
    assert [lane.label for lane in made.lanes] == ["job", "rank 0", "rank 1", "rank 2", "rank 3"]
    firsts = [lane.label for lane in made.lanes for mark in lane.marks if mark.kind == "first"]
    assert firsts == ["rank 3"]
    assert [lane.label for lane in made.lanes if lane.is_first] == ["rank 3"]
    assert all("followed" in {mark.kind for mark in lane.marks} for lane in made.lanes[1:4])
    assert "exit" in {mark.kind for mark in made.lanes[4].marks}
    assert "UTC" in made.caption
    assert made.bend is not None
    assert made.rows[0].what == "first failure"


def test_timeline_without_clocks_says_so_and_names_the_silent_rank() -> None:
    made = timeline(reports.silent_rank())
    assert made is not None
    assert made.caption.startswith("each lane from its first line to its last")
    assert made.first_x is None and made.ticks == ()  # no common axis, no rule across the lanes
    assert made.lanes[2].note == "no output: named as the first failure"
    assert timeline(reports.empty()) is None


def test_timeline_marks_the_last_sign_of_life_of_a_named_rank_that_did_not_complain() -> None:
    report = reports.typical()
    assert report.verdict is not None
    verdict = replace(report.verdict, evidence=report.verdict.evidence[1:])
    made = timeline(replace(report, verdict=verdict))
    assert made is not None
    firsts = [mark.title for lane in made.lanes if lane.is_first for mark in lane.marks if mark.kind == "first"]
    assert len(firsts) == 1
    assert "barrier" in firsts[0]


def test_timeline_shows_the_end_of_every_rank_that_one_line_tells_of() -> None:
    ends = [Event("slurm.out", 9, "exit", f"rank {n} ended with exit code -15", 9, rank=n) for n in range(8)]
    said = [Event("slurm.out", n, "progress", f"step {n}", n, rank=n % 8) for n in range(8)]
    made = timeline(Report(Run("r", events=(*said, *ends)), None))
    assert made is not None
    assert sum(mark.kind == "exit" for lane in made.lanes for mark in lane.marks) == 8


def test_timeline_is_bounded_at_1024_ranks() -> None:
    made = timeline(reports.many_ranks())
    assert made is not None
    assert len(made.lanes) <= MOST_LANES
    assert sum(len(lane.marks) for lane in made.lanes) <= MOST_MARKS
    assert [lane.label for lane in made.lanes[-2:]] == ["+ 984 more with errors", "+ 24 quiet ranks"]
    assert "rank 517" in [lane.label for lane in made.lanes]


def test_unknown_kinds_and_strange_numbers_do_no_harm() -> None:
    events = [
        reports.event(0, 1, "", 0.0, "from-the-future", frames="none"),
        replace(reports.event(1, -5, "x", 1.0), line=None, utc_ns=-(10**30)),
        replace(reports.event(2, 10**15, "x"), line=10**18),
    ]
    report = replace(reports.typical(), run=Run("r", events=tuple(events), world_size=3))
    assert "from-the-future" not in render(report, "html")
    assert render(replace(report, verdict=None, findings=()), "html")


def test_issue_is_markdown_that_quotes_safely() -> None:
    text = markdown(reports.typical())
    assert text.startswith("### Collective hang on rank 3 on node-01\n")
    assert "```text\nstep 1351 loss 2.3120" in text
    spoilt = markdown(reports.hostile())
    assert "\n````text\n" in spoilt
    outside = re.sub(r"^(`{3,})\w*\n.*?\n\1$", "", spoilt, flags=re.S | re.M)
    outside = re.sub(r"(?<!`)(`+)(?!`) ?[^\n]*? ?\1(?!`)", "", outside)
    assert "@everyone" not in outside
    assert not re.search(r"(?<!\\)<\w", outside)
    assert not re.search(r"(?<!\\)\[", outside)


def test_saved_file_and_notebook_frame_hold_the_whole_report(tmp_path: Path) -> None:
    shown = ShownReport.of(reports.hostile())
    page = shown.save_html(tmp_path / "r.html").read_text("utf-8")
    frame = Page(shown._repr_html_())
    assert [tag for tag, _ in frame.tags] == ["iframe"]
    assert frame.tags[0][1]["sandbox"] == ""
    assert frame.tags[0][1]["srcdoc"] == page
    assert not frame.texts


def test_assets_name_no_other_place() -> None:
    for name in ("report.css", "report.js", "report.html.j2", "finding.html.j2", "timeline.html.j2"):
        text = resources.files("paramedic.report").joinpath("assets", name).read_text("utf-8")
        assert not re.search(r"https?:|//\w|url\(|@import|innerHTML|\|\s*safe\b", text), name


def test_prose_keeps_code_apart() -> None:
    assert prose("Use `a`\nnow.\n\nThen.") == [
        [(False, "Use "), (True, "a"), (False, " now.")],
        [(False, "Then.")],
    ]


def test_what_is_escaped_reads_back() -> None:
    report: Report = reports.hostile()
    assert report.verdict is not None
    assert html.escape(printable(report.verdict.summary)[:300]) in render(report, "html").replace(
        "&#39;", "&#x27;"
    ).replace("&#34;", "&quot;")


def test_a_rank_that_no_line_names_is_not_said_to_be_silent() -> None:
    said = replace(reports.event(0, 3, "RuntimeError: no", None, "traceback"), source="logs/launcher.log")
    report = Report(Run("r", (reports.source(None, 31),), (said,), world_size=2), None)
    made = timeline(report)
    assert made is not None
    assert made.lanes[1].note == "no line that names it"
    assert "1 of 2 ranks told apart" in render(report, "html")


def lines_of(marks: Timeline) -> dict[str, list[float]]:
    """Where each kind of mark stands."""
    found: dict[str, list[float]] = {}
    for lane in marks.lanes:
        for mark in lane.marks:
            found.setdefault(mark.kind, []).append(mark.x)
    return found


def ended(rank: int, line: int, at: float | None = None) -> Event:
    text = f"rank {rank} ended with exit code 1"
    return replace(reports.event(None, line, text, at, "exit", exitcode=1), rank=rank)


def test_in_one_file_the_ends_stand_right_of_the_first_failure() -> None:
    report = reports.silent_rank()
    assert report.verdict is not None
    said = [replace(reports.event(None, 40 + rank, "RuntimeError: no"), rank=rank) for rank in (1, 0)]
    seen = reports.event(1, 1, "rank 1: failed", 3.0, "watch")
    run = replace(report.run, events=(*said, seen, ended(0, 50), ended(1, 51)), world_size=2)
    verdict = replace(report.verdict, ranks=(0,), evidence=(Evidence(said[1]),))
    made = timeline(Report(run, verdict, (verdict,)))
    assert made is not None and made.first_x is not None
    assert made.caption.startswith("line number") and "not drawn: 1 event" in made.caption
    assert min(lines_of(made)["exit"]) > made.first_x


def test_files_without_clocks_have_no_common_axis_and_ends_stand_last() -> None:
    report = reports.silent_rank()
    run = replace(report.run, events=(*report.run.events, *(ended(rank, 2 + rank) for rank in range(4))))
    made = timeline(replace(report, run=run))
    assert made is not None and made.first_x is None
    assert min(lines_of(made)["exit"]) > max(lines_of(made)["followed"])
    assert "first failure</text>" not in render(replace(report, run=run), "html")


def test_time_is_the_axis_where_every_file_of_a_rank_has_a_clock_or_its_rank_has_one() -> None:
    first = reports.event(1, 5, "ValueError: no", 20.5, "traceback")
    late = replace(reports.event(0, 9, "RuntimeError: closed", None, "traceback"), source="logs/rank0.err")
    said = [reports.event(0, 4, "rank 0 failed", 23.1), reports.event(None, 3, "closing signal", 24.4)]
    table = [ended(rank, 30 + rank, 24.0) for rank in (0, 1)]  # in whole seconds
    report = reports.silent_rank()
    assert report.verdict is not None
    verdict = replace(report.verdict, ranks=(1,), evidence=(Evidence(first),))
    run = replace(report.run, events=(first, late, *said, *table), world_size=2)
    made = timeline(Report(run, verdict, (verdict,)))
    assert made is not None and made.first_x is not None
    assert "UTC" in made.caption
    assert made.first_x < lines_of(made)["error"][0] < min(lines_of(made)["exit"])


def test_clocks_that_may_be_in_different_zones_make_no_axis() -> None:
    report = reports.typical()
    apart = tuple(
        replace(e, uncertainty_ns=14 * 3600 * reports.SECOND, utc_ns=e.utc_ns + 7200 * reports.SECOND)
        if e.rank == 2 and e.utc_ns is not None
        else e
        for e in report.run.events
    )
    made = timeline(replace(report, run=replace(report.run, events=apart)))
    assert made is not None and made.first_x is None
