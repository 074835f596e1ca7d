"""The score and the cases as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table

from paramedic.ward import lab
from paramedic.ward.case import Case
from paramedic.ward.score import Figures, Score
from paramedic.ward.systems import SYSTEMS

COLUMNS = ("stage", "symptom", "cause", "cause top 3", "fix", "first ranks", "false blame", "no verdict")


def cells(one: Figures) -> list[str]:
    """Shares in percent, in the order of COLUMNS."""
    counts = (one.stage, one.symptom, one.cause_1, one.cause_3, one.fix, one.ranks, one.false_blame, one.abstained)
    return ["–" if count is None or not one.n else f"{100 * count / one.n:.0f}" for count in counts]


def figures_table(title: str, first: str, rows: Iterable[tuple[str, Figures]]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, header_style="bold", title_style="bold")
    table.add_column(first, no_wrap=True)
    table.add_column("n", justify="right")
    for column in COLUMNS:
        table.add_column(column, justify="right")
    for name, one in rows:
        table.add_row(name, str(one.n), *cells(one))
    return table


def score_tables(score: Score) -> list[Table]:
    """The headline beside the baselines first; then where it is good and where not. All shares are percent."""
    return [
        figures_table(
            f"One recording a case, {score.split} (percent)",
            "who",
            [("paramedic", score.canonical), *score.baselines.items()],
        ),
        figures_table("All layouts and sizes", "layout", [("all", score.every), *score.by_layout.items()]),
        figures_table("By system", "system", [(SYSTEMS[name], one) for name, one in score.by_system.items()]),
        figures_table("By stage", "stage", score.by_stage.items()),
        figures_table("Altered recordings, before and after", "alteration", pairs(score)),
        figures_table("One system left out: its own rules switched off", "system", left_out(score)),
    ]


def pairs(score: Score) -> Iterable[tuple[str, Figures]]:
    for how, done in score.altered.items():
        if done.n:
            yield f"{how}: before", score.unaltered_partners[how]
            yield f"{how}: after", done


def left_out(score: Score) -> Iterable[tuple[str, Figures]]:
    for system, (before, after) in score.without_own_rules.items():
        yield f"{SYSTEMS[system]}: all rules", before
        yield f"{SYSTEMS[system]}: without its own", after


def cases_table(cases: Iterable[Case]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("id", "system", "symptom", "cause", "ranks", "here"):
        table.add_column(column, no_wrap=True)
    for case in cases:
        lacking = lab.lacking(case)
        here = "synthetic" if case.synthetic else f"no: {lacking}" if lacking else "runs"
        first = f"{', '.join(map(str, case.truth.ranks)) or 'all'} of {case.ranks}"
        table.add_row(case.id, SYSTEMS[case.system], case.truth.symptom, case.truth.cause, first, here)
    return table
