"""What an attempt had saved, and the next one does not find where it was."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice

from paramedic.detect.match import on_events
from paramedic.detect.recovery import begins_at_nought
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_NOT_FOUND = regex(
    r"(?:could not find the metadata file|Unable to find latest file at"
    r"|\b[Nn]o (?:\w{1,12} )?checkpoints? (?:was |were )?(?:found|available) (?:in|at|under))"
    r" ['\"]?(?P<path>/[^\s'\",;]{3,300})"
)
_FEW = 16
_POINTERS = ("latest_checkpointed_iteration.txt", "latest")
_SAVED = regex(r"\b[Ss]av(?:ed|ing)\b[^\n/]{0,120}(?P<path>/[^\s'\",;]{3,300})")
_NOT_SAVED = regex(r"\b(?:fail|error|could not|unable|cannot)", re.I)
_WORDS = ("could not find the metadata file", "Unable to find latest file at", "o checkpoint", "checkpoint found")
_LOCAL = regex(r"^/(?:tmp|local\w{0,10}|scratch[_-]?local|dev/shm|raid\w{0,3}|nvme\w{0,3}|ssd\w{0,3}|var/tmp)(?:/|$)")


_EMPTY = regex(r"\b(?:resum|restor|empty|absent|missing|nothing|not found|does not exist|no checkpoint)", re.I)
_PATH = regex(r"(?<![\w.-])/[^\s'\",;:()]{3,300}")


def gone_when_begun_again(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The last attempt looks for a checkpoint in the very folder that one before had saved to, and finds none; or it
    looks in one that none of them has saved to."""
    last = max((event.attempt for event in run.of_kind("progress")), default=0)
    missed = {_folder(e.text): e for e in run.saying_one_of(_WORDS, "line") if last and e.attempt == last}
    for event in begins_at_nought(run) if last else ():
        if event.attempt == last and _EMPTY.search(event.text):
            missed |= {found.rstrip("./"): event for found in _PATH.findall(event.text) if found not in missed}
    missed.pop("", None)
    saves = [e for e in run.saying("av", "line") if e.attempt < last] if missed else []
    for folder, event in islice(missed.items(), _FEW):
        before = [e for e in saves if _is_in(e, folder)]
        if before:
            saved = max(before, key=lambda e: (e.attempt, e.seq))
            where = "there, on a path of each node's own," if _LOCAL.match(folder) else "there"
            yield on_events(rule, [event, saved], (), {"folder": folder, "where": where})
            return
    yield from _elsewhere(run, rule, missed, saves)


_ONE_SETTING = 2_000.0
"""It is about where to look, or where to save: no storage has lost anything."""


def _elsewhere(run: Run, rule: Rule, missed: Mapping[str, Event], saves: Sequence[Event]) -> Iterator[Finding]:
    """It says that it begins at nought because of it, and so does each start but the first: all look in one place, and
    each one saves in another."""
    said = [(folder, event) for folder, event in missed.items() if _NOT_FOUND.search(event.text)]
    places = {place for event in saves if (place := _saved_in(event))}
    places = places if len(places) == 1 else {place.rpartition("/")[0] for place in places}  # a folder for each step
    if len(said) != 1 or len(places) != 1:
        return
    (folder, event), (other,) = said[0], places
    apart = not f"{other}/".startswith(f"{folder}/") and not f"{folder}/".startswith(f"{other}/")
    if apart and any(e.attempt == event.attempt for e in begins_at_nought(run)):
        one = on_events(rule, [event, saves[-1]], (), {"folder": folder, "where": f"to {other}"})
        yield replace(one, weights={"launcher-or-rank-misconfiguration": _ONE_SETTING})


def _saved_in(event: Event) -> str:
    said = _SAVED.search(event.text)
    return said["path"].rstrip("./") if said and _NOT_SAVED.search(event.text) is None else ""


def _folder(text: str) -> str:
    said = _NOT_FOUND.search(text)
    path = said["path"].rstrip("./)") if said else ""
    head, _, name = path.rpartition("/")
    return head if name in _POINTERS else path


def _is_in(event: Event, folder: str) -> bool:
    said = _SAVED.search(event.text) if folder in event.text else None
    there = said is not None and f"{said['path'].rstrip('.')}/".startswith(f"{folder}/")
    return there and _NOT_SAVED.search(event.text) is None
