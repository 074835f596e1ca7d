"""Jobs that somebody stopped by hand. The traceback of an interrupt is a stack: it shows where its rank stood, and what
follows it is no failure."""

from __future__ import annotations

import re
from dataclasses import replace

from paramedic.detect.once import once
from paramedic.knowledge.waits import is_own_frame, waits_in
from paramedic.model import Event, Run
from paramedic.regex import regex

TIME_LIMIT = "JOB006"
"""The rule for what a scheduler ends because its time is over."""
_TOLD = regex(r"Received (?:2|Signals\.SIGINT) death signal|\bgot signal: (?:2|Signals\.SIGINT)\b")
"""How torchrun says that it was interrupted."""
_BY_KEYBOARD = regex(
    r"\bkeyboard interruption\b(?! handler)|^\W{0,3}keyboard interrupt(?:ed)?[.!]?\s*\Z"
    r"|\b(?:detected|caught|received|got|due to(?: a)?) keyboard ?interrupt(?!\w* (?:handler|registration))",
    re.I,
)
"""How programs say that they were."""
_LOST_PEER = regex(r"Connection (?:closed|reset) by (?:remote )?peer|remote process exited")
_SLEEPS = regex(r"\bsleep\(")
_STILL_MOVED_NS = 15 * 1_000_000_000


@once
def since(run: Run) -> dict[str, int]:
    """In which sources somebody interrupted the job, and where each begins to speak of it."""
    first: dict[str, int] = {}
    for event in (*filter(_is_interrupt, run.of_kind("traceback")), *_told(run, "line", "traceback")):
        first[event.source] = min(first.get(event.source, event.seq), event.seq)
    return first


def stacks(run: Run) -> list[Event]:
    """Where each rank stood when it was interrupted; nothing where training had moved until just before."""
    found = [event for event in run.of_kind("traceback") if event.rank is not None and _is_interrupt(event)]
    return [] if not found or _just_moved(run) else [_as_stack(event) for event in found]


def _is_interrupt(event: Event) -> bool:
    types = event.fields.get("types") or [""]
    given_up = any(name.endswith("DistStoreError") for name in types)  # before somebody lost patience, too
    return bool(types[-1] == "KeyboardInterrupt") and not given_up


def _told(run: Run, *kinds: str) -> list[Event]:
    by_signal = [event for event in run.saying("signal", *kinds) if _TOLD.search(event.text)]
    return by_signal + [event for event in run.saying("eyboard", *kinds) if _BY_KEYBOARD.search(event.text)]


def _as_stack(event: Event) -> Event:
    """Without the frames of exceptions that it was raised beside. Whoever then lost a peer had waited for it."""
    frames = list(event.fields.get("frames", ()))
    frames = frames[max((at for at, frame in enumerate(frames) if frame.endswith(" in <module>")), default=0) :]
    waits = waits_in(frames)
    code = event.fields.get("code", ())
    own = bool(frames) and is_own_frame(frames[-1])
    if waits == "backward" and _LOST_PEER.search(event.text):
        waits = "collective"
    elif not waits and own and code and _SLEEPS.search(code[-1]):
        waits = "sleep"
    computes = not waits and not own
    stack = {"main": True, "waits": waits, "state": "active" if computes else "", "frames": frames}
    return replace(event, fields={**event.fields, **stack, "own": [frame for frame in frames if is_own_frame(frame)]})


def _just_moved(run: Run) -> bool:
    """By their clocks, as far as both are known: a job that still trains hangs nowhere."""
    told = [e for e in _told(run, "line") if e.utc_ns is not None]
    moved = [e for e in run.of_kind("progress") if e.utc_ns is not None]
    if not told or not moved:
        return False
    last = max(moved, key=lambda e: e.utc_ns or 0)
    return 0 <= (told[0].utc_ns or 0) - (last.utc_ns or 0) < _STILL_MOVED_NS
