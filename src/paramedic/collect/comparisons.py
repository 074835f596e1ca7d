"""Numbers that a line puts side by side because they ought to agree: a value and its reference, a norm and its limit,
a part and the whole."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from paramedic.collect.quantities import BYTES, Value
from paramedic.regex import regex

_MEASURED = regex(
    r"\b(?:loss|nll|mse|mae|norm|grad\w{0,7}|updates?|score|acc\w{0,6}|auc|recall|precision|perplexity|ppl|outputs?"
    r"|logits?|error|mean|reduced|averaged|distributed|validation|valid|val|eval\w{0,6}|test|entropy|checksum|sum|metric|reward|bleu|f|delta|weights?)\b"
)
_NOT_MEASURED = regex(
    r"\b(?:time|took|eta|sec\w{0,4}|speed|rate|lr|throughput|steps?|epochs?|memory|mem|size|best|previous|last|initial"
    r"|target|goal|limit|threshold|min|max|tolerance)\b"
)
_REFERENCE = regex(
    r"\b(?:(?:in|by|on|with|from) (?:a |one |the )?(?:single|one) (?:process|device|gpu|rank|worker|card|node)"
    r"|single (?:process|device|gpu|rank|worker|card|node)|reference|golden|by hand|recomputed|computed anew"
    r"|(?:of|on|over|for) the (?:same|very same|whole|full|gathered|concatenated) "
    r"(?:samples|batch|rows|data|set|examples|inputs?|tokens)"
    r"|full batch|whole batch|unsharded|without (?:sharding|parallelism|splitting|ddp)|serial(?:ly)?)\b"
)
_OF_ANOTHER = regex(
    r"\b(?:parent|teacher|student|baseline|base|pretrained|pre trained|dense|original|previous|ancestor|old|published"
    r"|paper|leaderboard)\b"
)
"""What another model reaches on the same data."""
_EXPECTED = regex(r"\b(?:expected|should be|ought to be|theory|theoretical|predicted by hand)\b")
_AGAIN = regex(
    r"(?:^|\b(?:same [a-z]{1,12} |evaluated |measured |computed |run |and |repeated )?)"
    r"(?:once more|again|second (?:time|pass|run|look)|repeated|a second time|rerun|twice)$"
)
_RATIO = regex(r"^(?:(?:the|a|their) )?(?:ratio|factor|quotient)(?: is| of)?$")
_AFTER_CLIPPING = regex(
    r"(\d{1,9}(?:\.\d{1,9})?) after (?:being )?clip(?:ped|ping)(?: (?:to|at|by|with)(?: max(?:imum)?(?: norm)?)?)?"
    r"[ =:]{1,3}(\d{1,6}(?:\.\d{1,6})?)"
    r"|\bclip(?:ped)?[ _](?:grad(?:ient)?[ _])?norm['\"]?[ :=]{1,3}(\d{1,9}\.\d{1,9})[ ,;(]{1,3}"
    r"(?:limit|max(?:[ _]norm)?|of|to)[ :=]{1,3}(\d{1,6}(?:\.\d{1,6})?)",
    re.I,
)
_AFTER = regex(
    r"\bbefore[ :=]{1,2}\d{1,9}(?:\.\d{1,9})?[ ,;|/]{1,3}after[ :=]{1,2}(\d{1,9}(?:\.\d{1,9})?)"
    r"|\bgrad(?:ient)?[ _]norm (?:used in (?:the )?update|applied|after clip\w*)[ :=]{1,2}(\d{1,9}(?:\.\d{1,9})?)",
    re.I,
)
_LIMIT = regex(
    r"\b(?:max_grad_norm|clip_grad_norm|grad(?:ient)?_clip(?:_val|ping)?|clip(?:_norm)?|clipping)"
    r"[ =:]{1,2}(\d{1,4}(?:\.\d{1,4})?)\b",
    re.I,
)
_PARAMETERS = regex(
    r"(?<![\w.])(?P<before>\d[\d,]{0,14}(?:\.\d{1,9})?) ?(?P<unit>k|m|b|million|billion)? "
    r"(?:total |trainable |model )?param(?:eter)?s\b"
    r"|\bparam(?:eter)?s['\"]?[:= ]{1,3}(?P<after>\d[\d,]{0,14}(?:\.\d{1,9})?) ?(?P<unit_>k|m|b|million|billion)?\b",
    re.I,
)
_NOT_ALL_OF_THEM = regex(r"\b(?:on|per|local|shard\w*|rank|frozen|non-?trainable|held|lora|adapter)\b", re.I)
_TIMES = {"": 1.0, "k": 1e3, "m": 1e6, "million": 1e6, "b": 1e9, "billion": 1e9}
_SAVED = regex(
    r"\b(?:saved|wrote|written|saving)\b[^\n]{0,160}?"
    r"(?P<file>[\w./-]{1,160}\.(?:pt|pth|bin|safetensors|ckpt|npz))\b[^\n]{0,80}?"
    r"(?<![\w.])(?P<size>\d{1,6}(?:\.\d{1,4})?) ?(?P<unit>[gm]i?b)\b",
    re.I,
)
_A_PART = regex(r"rank|shard|part|-of-|optim|distcp|lora|adapter|head|ema|mp_", re.I)
_PORTION = regex(
    r"\b(?:(?P<what>gathered|held|holds|holding|kept|keeps|resident|materiali[sz]ed|unsharded|local)"
    r"(?: (?:weights|param\w*|state|shards?|memory))?)\W{1,3}"
    r"(?P<part>\d{1,12}(?:\.\d{1,6})?) ?(?P<unit>[kmgt]i?b|bytes)?"
    r" ?(?:of|/|out of) ?(?P<whole>\d{1,12}(?:\.\d{1,6})?) ?(?P<of>[kmgt]i?b|bytes)?\b",
    re.I,
)
_HOLDING = ("gathered", "held", "hold", "kept", "keeps", "resident", "materiali", "unsharded", "local")
_STATE_OR_WEIGHTS = regex(r"\b(?:weight|param|optim|state|shard|gather|unshard|model|master|moment)", re.I)
_SHARDS = regex(
    r"\b(?:shard(?:ed|s)?|partition(?:ed|s)?|split|divided|spread)(?: \w{1,12}){0,3}? "
    r"(?:over|across|between|among|on|into) (?:all )?(\d{1,5}) "
    r"(?:ranks|processes|workers|gpus|devices|shards|parts|partitions)\b",
    re.I,
)
_SPLIT = ("shard", "partition", "split", "divided", "spread")
_COORDINATE = regex(r"(?<![a-z])(dp|tp|pp|mp|cp)(?:[ _]?rank)?[ _=:]{0,2}(\d{1,5})\b", re.I)
_MOST = 32
_COPIES = regex(
    r"\b(?:param\w*|weights?|replicas?|models?|states?|validation|eval\w{0,7}|ranks?|checksum|norm)\b"
    r"(?: \w{1,12}){0,2} (?:spread|divergence|disagreement|mismatch|discrepancy)$"
    r"|\b(?:spread|divergence|disagreement|discrepancy|mismatch) (?:of|between|across|over|among)"
    r"(?: (?:the|all))? (?:param\w*|weights?|replicas?|ranks|models?)$"
)
_THINGS = r"(?:samples?|rows?|examples?|ids?|indices|documents?|docs|images?|records?|batches|keys)"
_AMISS = r"(?:missing|missed|lost|duplicates?|duplicated|repeated|unseen|twice|never seen|never read|left out)"
_ROWS = regex(rf"\b(?:{_AMISS} {_THINGS}|{_THINGS} (?:were |was )?{_AMISS})$")
_BALANCE = regex(
    r"\b(?:time|step time|work|words?|tokens?|load|compute|duration) (?:ratio|imbalance)$|^imbalance(?: factor)?$"
)
_BETWEEN_KINDS = regex(
    r"\bto (?!(?:fastest|slowest|min\w*|max\w*|mean|median|avg|average|ideal|best|worst)\b)(?:\w{1,20} )?"
    r"(?:work|load|compute|words?|tokens?|time|duration) ratio$"
)
"""`memory to communication work ratio`: of one kind of work to another, and not of one rank to its peers."""
_GROWN = regex(r"(?:^| )(?:growth|grown|leaked)(?: (?:by|is))?$")
_CHECKS = (
    (_COPIES, "apart"),
    (_ROWS, "amiss"),
    (_BALANCE, "imbalance"),
    (_GROWN, "grown"),
    (regex(r"\b(?:first|resumed) loss$"), "now"),
    (regex(r"\b(?:left off at|loss before|saved loss|loss at save)$"), "left off"),
)
_PARTS = (
    (_RATIO, "ratio"),
    (_REFERENCE, "by reference"),
    (_EXPECTED, "by expectation"),
    (_AGAIN, "measured again"),
)


class Said(NamedTuple):
    """A number of a line, and the words right before it."""

    words: str
    value: float | None
    unit: str
    exact: bool
    """Printed with a fraction, and without a unit."""


_AFTERWARDS = ("after", "used in", "applied")
_WRITTEN = ("saved", "wrote", "written")
WORDS = (*_SPLIT, *_HOLDING, *_AFTERWARDS, *_WRITTEN, "clip", "max_grad", "param", " of ", "/", "tp", "mp")


def comparisons(text: str, present: Set[str], said: Sequence[Said]) -> Iterator[Value]:
    """`present` are those of `WORDS` that stand in it."""
    yield from _references(said[:_MOST])
    yield from _checks(said[:_MOST])
    if "clip" in present and (found := _AFTER_CLIPPING.search(text)) is not None:
        norm, limit = (float(part) for part in found.groups() if part)
        if limit:
            yield Value("clipped", norm / limit)
    if ("clip" in present or "max_grad" in present) and (found := _LIMIT.search(text)) is not None and float(found[1]):
        yield Value("norm_limit", float(found[1]))
    if not present.isdisjoint(_AFTERWARDS) and (found := _AFTER.search(text)) is not None:
        yield Value("norm_after", float(found[1] or found[2]))
    if not present.isdisjoint(_SPLIT) and (found := _SHARDS.search(text)) is not None:
        yield Value("shards", float(found[1]))
    if "param" in present and (found := _PARAMETERS.search(text)) is not None and not _NOT_ALL_OF_THEM.search(text):
        unit = (found["unit"] or found["unit_"] or "").lower()
        yield Value("parameters", float((found["before"] or found["after"]).replace(",", "")) * _TIMES[unit])
    found = _SAVED.search(text) if not present.isdisjoint(_WRITTEN) else None
    if found is not None and not _A_PART.search(found["file"]):
        yield Value("saved", float(found["size"]) * BYTES[found["unit"].lower()], "bytes")
    if (" of " in present or "/" in present) and not present.isdisjoint(_HOLDING):
        yield from _portions(text)
    if "tp" in present or "mp" in present:
        yield from (Value(f"at {axis.lower()}", float(place)) for axis, place in _COORDINATE.findall(text)[:5])


@lru_cache(maxsize=8192)
def _part_of(words: str) -> str:
    """What a number of this name is in a comparison."""
    for pattern, part in _PARTS:
        if pattern.search(words):
            return "" if _OF_ANOTHER.search(words) else part
    return "measured" if _MEASURED.search(words) and not _NOT_MEASURED.search(words) else ""


@lru_cache(maxsize=8192)
def _ought_to_be(words: str) -> str:
    """What a quantity is whose name says that it ought to be nothing, or one."""
    if _BETWEEN_KINDS.search(words):
        return ""
    return next((name for pattern, name in _CHECKS if pattern.search(words)), "")


def _references(said: Sequence[Said]) -> Iterator[Value]:
    """A value as a multiple of the one that it ought to be."""
    referred = False
    for one, other in pairwise(said):
        part = _part_of(other.words)
        if part == "ratio" and referred and other.value is not None:
            yield Value("by reference", other.value)
        if not (one.exact and other.exact and one.value and other.value) or _part_of(one.words) != "measured":
            continue
        if part in ("by reference", "by expectation", "measured again"):
            referred = referred or part == "by reference"
            yield Value(part, one.value / other.value)


def _checks(said: Sequence[Said]) -> Iterator[Value]:
    last = None
    for one in said:
        what = _ought_to_be(one.words)
        if what == "left off" and last is not None and last.value and one.value:
            yield Value("resumed by", last.value / one.value)
        elif what == "grown" and one.unit in BYTES and one.value is not None:
            yield Value(what, one.value * BYTES[one.unit], "bytes")
        elif what in ("apart", "amiss", "imbalance") and one.value is not None:
            yield Value(what, abs(one.value))
        last = one if what == "now" else None


def _portions(text: str) -> Iterator[Value]:
    found = _PORTION.search(text)
    if found is None or not float(found["whole"]) or not _STATE_OR_WEIGHTS.search(text):
        return
    unit, of = (found["unit"] or "").lower(), (found["of"] or "").lower()
    if (unit or of) and (not unit or not of or unit == of):
        gathered = found["what"].lower() in ("gathered", "unsharded") or found["what"].lower().startswith("material")
        yield Value("gathered" if gathered else "kept", float(found["part"]) / float(found["whole"]))
