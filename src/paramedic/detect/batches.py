"""Who was through with his data before the others: by what ranks say of it."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Set

from paramedic.detect.ranks import named
from paramedic.detect.series import by_rank, every
from paramedic.model import Run
from paramedic.regex import regex

_THROUGH = regex(
    r"\bepoch \d{1,6}\b.{0,20}\b(?:done|finished|completed?|ended)\b|\b(?:loop|iterator|loader|shard|data) (?:is )?"
    r"(?:done|finished)\b",
    re.I,
)
_DRY = regex(
    r"\b(?:loop|iterator|loader|shard|data) (?:is )?(?:exhausted|empty)\b|\bexhausted\b|\bout of data\b"
    r"|\bno more (?:data|batches)\b",
    re.I,
)
_ASIDE = regex(r"\b(?:evaluat|validat|(?:val|eval)\b)", re.I)
_OF_ALL = regex(r"(?<![\d/.:])(\d{1,9})/(\d{1,9})(?![\d/.:])")
ENDS_FIRST = "{} came to the end of the data first"


def fewer(run: Run, odd: Collection[int]) -> str:
    """That these had fewer batches than the others, in words; empty where nobody says so."""
    who = named(odd)
    have = "has" if len(odd) == 1 else "have"
    said = _said(run)
    planned = {rank: int(hits[-1][1]) for rank, text in said.items() if (hits := _OF_ALL.findall(text))}
    own = {planned[rank] for rank in odd if rank in planned}
    others = {count for rank, count in planned.items() if rank not in odd}
    if len(own) == len(others) == 1 and max(own) < max(others):
        return f"{who} {have} {max(own)}, the others {max(others)}"
    told = {rank: one.said[-1] for rank, one in by_rank(every(run, "samples")).items() if one.said}
    if odd and _less(told, odd):
        return f"{who} {have} {min(told[rank] for rank in odd):g}, the others {max(told.values()):g}"
    by_itself = {rank: text for rank, text in said.items() if rank or 0 not in odd}  # the first tells of all of them
    ended: set[int | None] = {rank for rank, text in by_itself.items() if _THROUGH.search(text) or _ASIDE.search(text)}
    ended |= _dry(run) | {rank for rank, text in said.items() if _DRY.search(text)}
    return ENDS_FIRST.format(who) if odd and {*odd} in (ended, finished(run)) else ""


def through(run: Run) -> set[int]:
    """Ranks that say last that their epoch, or what they read, is done."""
    return {rank for rank, text in _said(run).items() if _THROUGH.search(text)}


def finished(run: Run) -> set[int]:
    """Ranks that say of their whole work that it is done."""
    return {e.rank for e in run.of_kind("progress") if e.rank is not None and e.fields.get("finished")}


def out_of_data(run: Run, ranks: Set[int]) -> bool:
    """Each of these has said, behind its last step, that it has no more of it; nobody else has."""
    return bool(ranks) and _dry(run) == ranks


def _said(run: Run) -> dict[int, str]:
    """What each rank has said of its progress last."""
    return {e.rank: e.text for e in run.of_kind("progress") if e.rank is not None}


def _dry(run: Run) -> set[int | None]:
    return {e.rank for e in run.of_kind("last") if e.fields.get("dry")}


def _less(told: Mapping[int, float], ranks: Collection[int]) -> bool:
    """These have fewer than all others, who have as many as each other."""
    own = [told[rank] for rank in ranks if rank in told]
    others = [count for rank, count in told.items() if rank not in ranks]
    return bool(own) and len(own) == len(ranks) and len(others) > 1 and max(own) < min(others) == max(others)
