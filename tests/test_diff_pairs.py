"""Pairs of runs by strangers: the change that explains the failure is among the first three that `paramedic diff` lists."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

import pytest

from paramedic.knowledge import Knowledge, load
from paramedic.pipeline import compile_prefilter
from paramedic.prefilter import Prefilter

BENCH = Path(__file__).parents[1] / "bench"
sys.path.insert(0, str(BENCH))

import diffs  # noqa: E402

ELSEWHERE = {
    "di05": "one block of a file for another: its other keys come first",
    "di10": "hosts by their list: told as hosts",
    "di23": "the whole command: told as its launcher",
}


@cache
def _known() -> tuple[Knowledge, Prefilter]:
    knowledge = load()
    return knowledge, compile_prefilter(knowledge)


@pytest.mark.parametrize("folder", diffs.pairs([diffs.PAIRS]), ids=lambda folder: folder.name)
def test_what_explains_a_strangers_failure_stands_at_the_top(folder: Path) -> None:
    found = diffs.judged(folder, *_known())
    if found.changed:
        assert ((found.place or 99) <= 3) == (found.name not in ELSEWHERE), found
    else:
        assert not found.said
