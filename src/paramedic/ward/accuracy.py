"""The score as the Markdown page docs/accuracy.md: figures beside the aims, and every miss by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from paramedic.knowledge.priors import load_priors
from paramedic.ward.score import Figures, Score, Scored
from paramedic.ward.systems import SYSTEMS
from paramedic.ward.tables import COLUMNS, cells, left_out, pairs

_AIMS = (
    ("symptom", 0.92, False),
    ("cause_1", 0.75, False),
    ("cause_3", 0.92, False),
    ("ranks", 0.95, False),
    ("false_blame", 0.02, True),
)
_WORDS = {
    "symptom": "symptom right",
    "cause_1": "root cause right",
    "cause_3": "root cause among the first three",
    "ranks": "first ranks right",
    "false_blame": "an innocent rank named",
}
_TITLES = {"development": "Development cases", "held-back": "Held-back cases", "all": "All cases"}


def markdown(scores: Sequence[Score], log: Sequence[dict[str, Any]]) -> str:
    parts = [_HEAD, _looks(log), *(part for score in scores for part in _split(score))]
    return "\n\n".join(part for part in parts if part) + "\n"


_HEAD = """# How accurate the diagnosis is

Made by `paramedic ward score --split all --output docs/accuracy.md`; nothing here is written by hand. Each recording
in `corpus/` is a real failure (synthetic ones are marked in its data card) with its truth. Rules were written while
looking at the development cases only; held-back cases were chosen by a hash of their names, and each look at them is
logged. A case whose log names no failure counts as missed when there is no verdict."""


def _looks(log: Sequence[dict[str, Any]]) -> str:
    if not log:
        return ""
    rows = [
        (entry["date"][:16], entry["commit"], str(len(entry["cases"])), str(len(entry["seen"])),
         _given(entry), *cells(Figures(**entry["canonical"])))
        for entry in log
    ]  # fmt: skip
    head = ("date", "commit", "cases", "seen before", "from", *COLUMNS)
    return "## Looks at the held-back cases (percent)\n\n" + _table(head, rows)


def _given(entry: dict[str, Any]) -> str:
    """Older entries only say whether the program was read."""
    return _FROM[entry.get("given") or ("program" if entry.get("program") else "log")]


def _split(score: Score) -> Iterable[str]:
    yield f"## {_TITLES[score.split]}{_GIVEN[score.given][0]}"
    yield _GIVEN[score.given][1]
    yield _table(("aim", "at least / at most", "measured", "kept"), _aims(score))
    if score.given == "log":
        yield _figures("who", [("paramedic", score.canonical), *score.baselines.items()])
    yield "### By system"
    yield _figures("system", [(SYSTEMS[name], one) for name, one in score.by_system.items()])
    yield "### By stage"
    yield _figures("stage", score.by_stage.items())
    yield "### By how the job ended"
    yield _figures("the job", score.by_end.items())
    yield _weighted(score.weighted)
    if score.given == "log":
        yield from _in_depth(score)
    yield "### Misses"
    yield _misses([one for one in score.rows if one.recording.canonical])


_FROM = {"log": "log", "program": "log and program", "watched": "watched"}
_GIVEN = {
    "log": ("", ""),
    "program": (
        ", with the job's program and command beside the log",
        """The same recordings; `paramedic diagnose` was also given the folder from which the job was started
(its program and configurations, read and never run) and the command, as whoever asks why a job went wrong has them.""",
    ),
    "watched": (
        ", as `paramedic run` saw them",
        """The same jobs, started once more as `paramedic run -- COMMAND`: beside output, program and command there is
what the agents in the ranks saw. Of what cannot run where the recordings are made (GPUs, several machines, documented
forms) the log and the program are all there is, as above.""",
    ),
}


def _weighted(shares: Mapping[str, float]) -> str:
    if not shares:
        return ""
    said = ", ".join(f"{_WORDS[name]} {share:.2f}" for name, share in shares.items())
    return f"With each symptom as frequent as among the {sum(load_priors().faults.values())} faults of study 1: {said}."


def _in_depth(score: Score) -> Iterable[str]:
    yield "### By layout, all recordings"
    yield _figures("layout", [("all", score.every), *score.by_layout.items()])
    if score.altered:
        yield "### Altered recordings"
        yield _figures("alteration", pairs(score))
    if score.without_own_rules:
        yield "### One system left out"
        yield "A system's own rules are taken out of the knowledge; what others need too stays."
        yield _figures("system", left_out(score))
    if score.calibration:
        yield "### Calibration"
        rows = [(f"{b.low:.1f}", str(b.n), f"{b.said:.2f}", f"{b.right:.2f}") for b in score.calibration]
        yield _table(("confidence from", "verdicts", "said", "right"), rows)


def _aims(score: Score) -> list[tuple[str, ...]]:
    one = score.canonical
    rows = [_aim(_WORDS[name], getattr(one, name), one.n, aim, most) for name, aim, most in _AIMS]
    alone = [after for _, after in score.without_own_rules.values()]
    right, of = sum(a.symptom for a in alone), sum(a.n for a in alone)
    rows.append(_aim("symptom right, its system's own rules left out", right, of, 0.80, False))
    for how, done in score.altered.items():
        rows.append(_aim(f"first ranks right, {how}", done.ranks, done.n, 0.95, False))
    if score.ece is not None:
        rows.append(("expected calibration error", "0.08", f"{score.ece:.3f}", _yes(score.ece <= 0.08)))
    alarms, healthy = score.false_alarms
    rows.append(("verdicts on healthy (cured) runs", "0", f"{alarms} of {healthy}", _yes(alarms == 0)))
    return rows


def _aim(what: str, count: int | None, of: int, aim: float, most: bool) -> tuple[str, ...]:
    if not of or count is None:
        return what, f"{aim:.2f}", "–", "–"
    share = count / of
    return what, f"{aim:.2f}", f"{share:.2f} ({count} of {of})", _yes(share <= aim if most else share >= aim)


def _yes(kept: bool) -> str:
    return "yes" if kept else "no"


def _misses(scored: Sequence[Scored]) -> str:
    rows = []
    for one in scored:
        wrong = [
            name
            for name, right in (("symptom", one.symptom), ("ranks", one.ranks), ("cause", one.cause(1)))
            if not right
        ]
        truth, said = one.recording.truth, one.answer
        if wrong and truth:
            verdict = f"{said.rule} {said.symptom} {list(said.ranks or ())}" if said.symptom else "no verdict"
            meant = f"{truth.symptom} {list(truth.ranks)}, {truth.cause}"
            rows.append((one.recording.case.id, ", ".join(wrong), meant, verdict))
    right = len(scored) - len(rows)
    return f"{right} of {len(scored)} cases are wholly right. Of the others:\n\n" + _table(
        ("case", "wrong", "truth", "said"), rows
    )


def _figures(first: str, rows: Iterable[tuple[str, Figures]]) -> str:
    return _table((first, "n", *COLUMNS), [(name, str(one.n), *cells(one)) for name, one in rows])


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    lines += ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in rows]
    return "\n".join(lines)
