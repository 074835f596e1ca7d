"""Parameters that ZeRO never divides, by what DeepSpeed prints of itself."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_KEPT = regex(r"Parameter Offload: Total persistent parameters: (\d{1,15}) in (\d{1,9}) params")
_ALL = regex(r"\bnum_params = (\d{1,9}), num_elems = (\d{1,6}(?:\.\d{1,4})?)B")
_MUCH = 0.3
_OFF = regex(r"\bzero_enabled \.{2,60} False\s*$")
_BLOCK = regex(r'^\s{0,60}"zero_optimization": \{\s{0,4}$')
_STAGE = regex(r'^\s{0,60}"stage": ([123])\b')
_WITHIN = 40
"""Lines: as long as a block of settings gets."""


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


def asked_in_vain(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DeepSpeed says that ZeRO is off, and prints below it the settings that it was given, in which a stage is asked
    for: not where it is read. Each engine of a job says both of itself. Beside a failure it is a
    remark."""
    said: dict[str, Event] = {}
    blocks: dict[str, Event] = {}
    for event in run.saying_one_of(("zero_enabled", '"zero_optimization"', '"stage"'), "line"):
        source, text = event.source, event.text
        if "zero_enabled" in text:
            said[source] = event
            blocks.pop(source, None)
        elif '"zero_optimization"' in text and _BLOCK.search(text):
            blocks[source] = event
        elif '"stage"' in text and source in blocks and (asked := _STAGE.search(text)) is not None:
            block, off = blocks.pop(source), said.get(source)
            if off is not None and _OFF.search(off.text) and event.seq - block.seq <= _WITHIN:
                one = on_events(rule, [off, block, event], (), {"stage": asked[1]})
                failed = any(other.severity == "error" for other in found)
                yield replace(one, severity="warning") if failed else one
                return


def _first(run: Run, words: str, pattern: re.Pattern[str]) -> tuple[Event, re.Match[str]] | None:
    told = ((event, pattern.search(event.text)) for event in run.saying(words, "line"))
    return next(((event, hit) for event, hit in told if hit is not None), None)
