"""The study's tables for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from paramedic.report.escape import crop, one_line
from paramedic.study.agreement import Agreement
from paramedic.study.priors import Change
from paramedic.study.quality import Interval, Quality

Counts = Mapping[str, Any]


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """The first column is text, numbers stand to the right; nothing of it is markup."""
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False, header_style="dim")
    for position, column in enumerate(columns):
        made.add_column(column, justify="left" if position == 0 or column.endswith(" ") else "right")
    for row in rows:
        made.add_row(*(Text(crop(one_line(str(cell)), 200)) for cell in row))
    return made


def share(part: float, of: float) -> str:
    return f"{100 * part / of:.1f} %" if of else "–"


def tables(counts: Counts, beside: Iterable[Mapping[str, Any]], second: Iterable[Mapping[str, Any]]) -> Iterator[Table]:
    totals, all = counts["totals"], counts["totals"]["faults"]
    yield table(
        "Study 1: ours beside the paper",
        ["figure", "ours", "stated", " where ", "why "],
        [
            [one["name"], f"{one['ours']:,}", f"{one['stated']:,}",
             ("equal; " if one["equal"] else "DIFFERS; ") + one["where"], one["why"]]
            for one in beside
        ],
    )  # fmt: skip
    yield table("Totals", ["what", "n"], [[name, f"{n:,}"] for name, n in totals.items()])
    yield table(
        "Stages",
        ["stage", "faults", "share", "distributed-specific", "share of stage"],
        [
            [stage, n["faults"], share(n["faults"], all), n["distributed-specific"],
             share(n["distributed-specific"], n["faults"])]
            for stage, n in counts["stages"].items()
        ],
    )  # fmt: skip
    yield table(
        "The thirty symptoms", ["symptom", "faults", "share"],
        [[name, n, share(n, all)] for name, n in counts["symptoms"].items()],
    )  # fmt: skip
    yield table(
        "Fixes by symptom, the three commonest",
        ["stage › symptom", "faults", "distributed-specific", "our symptom ", "fixes "],
        [
            [" › ".join(filter(None, (one["stage"], one["group"], one["symptom"]))), one["faults"],
             one["distributed-specific"], one["ours"], _commonest(one["fixes"])]
            for one in counts["labels"]
        ],
    )  # fmt: skip
    yield table(
        "How-to questions", ["topic", "questions", "sub-topics "],
        [[name, one["questions"], _commonest(one["sub-topics"], 9)] for name, one in counts["how_to"].items()],
    )  # fmt: skip
    yield kappa(counts["kappa"])
    yield from _crosswalk(counts["crosswalk"], all)
    yield table(
        "Study 2's abstract beside our labelling",
        ["figure", "stated", "our labels", "study 1's labels", "why they differ "],
        [[one["name"], _stated(one), *(_with_unit(one[who], one["unit"]) for who in ("ours", "study 1")), one["why"]]
         for one in second],
    )  # fmt: skip


def _commonest(counts: Mapping[str, int], most: int = 3) -> str:
    rest = f", {len(counts) - most} more" if len(counts) > most else ""
    return ", ".join(f"{name} {n}" for name, n in list(counts.items())[:most]) + rest


def _stated(one: Mapping[str, Any]) -> str:
    return ("over " if one["over"] else "") + _with_unit(one["stated"], one["unit"])


def _with_unit(value: float | None, unit: str) -> str:
    return "–" if value is None else f"{value:,} %" if unit == "%" else f"{value:,}"


def _crosswalk(found: Mapping[str, Any], all: int) -> Iterator[Table]:
    yield table(
        "In our vocabulary: symptoms", ["symptom", "faults", "share", "distributed-specific"],
        [*([id, n, share(n, all), found["distributed-specific"][id]] for id, n in found["symptoms"].items()),
         *([id, 0, "not seen", ""] for id in found["not seen"])],
    )  # fmt: skip
    first = found["cured by the first two"]
    yield table(
        "In our vocabulary: fix patterns (a fault may have several)", ["pattern", "faults", "share"],
        [*([id, n, share(n, all)] for id, n in found["fix patterns"].items()),
         ["either of the first two", first, share(first, all)]],
    )  # fmt: skip


def kappa(found: Mapping[str, Any]) -> Table:
    rows = [[f"round {number}", *(_kappa(one) for one in row)] for number, row in found["rounds"].items()]
    columns = ["Cohen's kappa", "issue type", "distributed", "stage", "symptom", "fix"]
    return table(
        f"Two raters ({found['unpaired rows']} rows of one rater alone left out; 95 % by bootstrap)", columns, rows
    )


def _kappa(one: Mapping[str, Any]) -> str:
    return "–" if one["kappa"] is None else f"{one['kappa']:.2f} ({one['low']:.2f}–{one['high']:.2f}, n {one['pairs']})"


def agreements(found: Iterable[tuple[str, str, Sequence[Agreement]]]) -> Table:
    rows = [
        [
            f"{one} and {two}",
            *(f"{a.kappa:.2f} of {a.pairs}" if a.kappa is not None else f"– of {a.pairs}" for a in parts),
        ]
        for one, two, parts in found
    ]
    return table("Cohen's kappa", ["raters", "stage", "symptom", "cause", "fix", "distributed"], rows)


def qualities(found: Sequence[Quality]) -> Table:
    rows = [
        [f"{one.split}: {one.classifier}", one.posts, _interval(one.stage_f1), _interval(one.stage_accuracy),
         _interval(one.symptom_f1), _interval(one.symptom_accuracy), _interval(one.ahead) if one.ahead else ""]
        for one in found
    ]  # fmt: skip
    columns = [
        "split: classifier",
        "posts",
        "stage macro-F1",
        "stage accuracy",
        "symptom macro-F1",
        "symptom accuracy",
        "shipped is ahead by",
    ]
    return table("On posts not learnt from (95 % by bootstrap)", columns, rows)


def _interval(one: Interval) -> str:
    return f"{one.value:.3f} ({one.low:.3f} to {one.high:.3f})"


def changed(found: Sequence[Change], most: int = 30) -> Table:
    rows = [
        [one.symptom, one.what, f"{one.before:.3f}", f"{one.after:.3f}", "more than chance" if one.beyond else ""]
        for one in found[:most]
    ]
    left = f"; {len(found) - most} smaller ones not shown" if len(found) > most else ""
    return table(f"{len(found)} shares changed{left}", ["symptom", "fix or cause ", "before", "after", "note "], rows)
