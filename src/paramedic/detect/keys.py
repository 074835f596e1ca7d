"""Names and shapes in a saved state that are not those of the model: what they have in common tells why."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramedic.detect.match import finding, on_event
from paramedic.detect.where import places
from paramedic.knowledge import Rule
from paramedic.model import Finding, Run
from paramedic.regex import regex

_TARGET = regex(r"Error\(s\) in loading state_dict for (\w{1,80})")
_MISSING = regex(r"Missing key\(s\) in state_dict: ([^\n]{1,16000})")
_UNEXPECTED = regex(r"Unexpected key\(s\) in state_dict: ([^\n]{1,16000})")
_KEY = regex(r'"([^"\n]{1,200})"')
_SHOWN = 3
_SIZES = regex(r"The size of tensor a \((\d{1,18})\) must match the size of tensor b \((\d{1,18})\)")
_IN_OPTIMIZER = regex(r"torch/optim/\w{1,40}\.py:\d{1,6} in (?:_single_tensor|_multi_tensor|_fused)_\w{1,40}$")


def prefixed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The same names on both sides, but for a prefix that a wrapper puts before them."""
    for one, missing, unexpected in _unfit(found):
        for side, prefix in _prefixes(missing, unexpected):
            yield _told(run, rule, one, {"prefix": prefix, "side": side})


def only_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The model has what the file has not, and the file has nothing to spare."""
    for one, missing, unexpected in _unfit(found):
        if not unexpected:
            more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
            yield _told(run, rule, one, {"keys": ", ".join(missing[:_SHOWN]) + more})


def nothing_loaded(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What `load_state_dict(strict=False)` returned, printed: every name misses its own, but for a prefix."""
    for event in run.saying("IncompatibleKeys(missing_keys=[", "line"):
        if (both := _INCOMPATIBLE.search(event.text)) is None:
            continue
        missing, unexpected = (_QUOTED.findall(part)[:_MANY] for part in both.groups(default=""))
        for side, prefix in _prefixes(missing, unexpected, _SEVERAL):
            yield on_event(rule, event, {"prefix": prefix, "side": side})
            return


_INCOMPATIBLE = regex(
    r"IncompatibleKeys\(missing_keys=\[([^\]\n]{1,16000})\][^\[\n]{0,40}\bunexpected_keys=\[([^\]\n]{0,16000})"
)
_QUOTED = regex(r"'([^'\n]{1,200})'")
_SEVERAL, _MANY = 3, 400


_COUNTS = regex(
    r"\bmissing(?:[_ ]keys)?\W{1,4}(\d{1,7})\W{1,6}(?:and )?unexpected(?:[_ ]keys)?\W{1,4}(\d{1,7})\b", re.I
)
_ALL_OF_THEM = 8


def as_many_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A program counts what it could not load: as many names are missing as are unexpected, and these are many. Each
    is there under another name."""
    for event in run.saying("nexpected", "line"):
        if (both := _COUNTS.search(event.text)) is not None and int(both[1]) == int(both[2]) >= _ALL_OF_THEM:
            yield on_event(rule, event, {"keys": both[1]})
            return


def state_of_another_shape(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Within an optimizer's own step its state is of another size than the gradient: it was made for other shards."""
    for event in run.of_kind("traceback"):
        frames = event.fields.get("frames", ())
        if (sizes := _SIZES.search(event.text)) and frames and _IN_OPTIMIZER.search(frames[-1]):
            yield on_event(rule, event, {"state": sizes[1], "gradient": sizes[2]})


def _unfit(found: Sequence[Finding]) -> list[tuple[Finding, list[str], list[str]]]:
    """Of what other rules found, the refusals that list missing names, with both lists."""
    texts = {(e.source, e.seq): one for one in found for e in [one.evidence[0].event] if _is_resume(one)}
    return [(one, keys, _keys(_UNEXPECTED, one)) for one in texts.values() if (keys := _keys(_MISSING, one))]


def _is_resume(one: Finding) -> bool:
    return one.symptom == "checkpoint-resume-failure" and _TARGET.search(one.evidence[0].event.text) is not None


def _keys(pattern: re.Pattern[str], one: Finding) -> list[str]:
    listed = pattern.search(one.evidence[0].event.text)
    return _KEY.findall(listed[1]) if listed else []


def _prefixes(missing: Sequence[str], unexpected: Sequence[str], least: int = 1) -> Iterator[tuple[str, str]]:
    """Whose names are the others' behind a prefix, and which, where these are so many at least."""
    for side, short, long in (("the file", missing, unexpected), ("the model", unexpected, missing)):
        if len(short) >= least and (prefix := _prefix(short, long)):
            yield side, prefix


def _prefix(short: Sequence[str], long: Sequence[str]) -> str:
    """What stands before the first of the short names, if it makes most of the long ones short."""
    names = set(short)
    before = next((key.removesuffix(short[0]) for key in long if short and key.endswith("." + short[0])), "")
    matched = sum(key.startswith(before) and key.removeprefix(before) in names for key in long)
    return before if before and 2 * matched > len(long) else ""


def _told(run: Run, rule: Rule, one: Finding, fields: dict[str, str]) -> Finding:
    event = one.evidence[0].event
    target = _TARGET.search(event.text)
    return finding(rule, event, {"target": target[1] if target else "the model", **fields}, places(run))
