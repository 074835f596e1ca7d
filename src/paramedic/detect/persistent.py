"""Parameters that ZeRO stage 3 never divides."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_KEPT = re.compile(r"Parameter Offload: Total persistent parameters: (\d{1,15}) in (\d{1,9}) params")
_ALL = re.compile(r"\bnum_params = (\d{1,9}), num_elems = (\d{1,6}(?:\.\d{1,4})?)B")
_MUCH = 0.3


def never_divided(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DeepSpeed says how many elements it keeps whole on every rank, and how many there are."""
    kept = _first(run, "persistent parameters", _KEPT)
    whole = _first(run, "num_elems = ", _ALL)
    if kept is None or whole is None or float(whole[1][2]) <= 0:
        return
    share = int(kept[1][1]) / (float(whole[1][2]) * 1e9)
    if share >= _MUCH:
        fields = {"share": f"{min(share, 1):.0%}", "params": kept[1][2]}
        yield on_events(rule, [kept[0], whole[0]], (), fields)


def _first(run: Run, words: str, pattern: re.Pattern[str]) -> tuple[Event, re.Match[str]] | None:
    told = ((event, pattern.search(event.text)) for event in run.saying(words, "line"))
    return next(((event, hit) for event, hit in told if hit is not None), None)
