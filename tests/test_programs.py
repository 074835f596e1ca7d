"""Programs around frameworks by authors who knew no rule: what is found in them stays found, and nothing in their twins."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))
import programs

PAIRS = programs.pairs([programs.PAIRS])
UNFOUND = {
    "h01": "a batch that its author calls global, handed to each worker",
    "h04": "only weights are saved: a remark, since many mean it",
    "h05": "workers that ask for no GPU in a file of settings",
    "h17": "a schedule that counts the rows of all ranks",
    "h24": "a sampler that is given the local rank, in a job of two nodes",
    "h48": "heads of which each step uses one",
}


def test_there_are_pairs_and_none_is_left_out_that_is_not_there() -> None:
    assert len(PAIRS) >= 54 and {pair.name for pair in PAIRS} >= UNFOUND.keys()


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair.name)
def test_the_mistake_is_found_and_its_twin_is_clean(pair: Path) -> None:
    found = programs.judged(pair)
    assert bool(found.told) is (pair.name not in UNFOUND), found
    assert not found.alarms, found
