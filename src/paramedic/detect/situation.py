"""What is known of ranks that are not where the others are, for the fixes: where their way parts from the others'."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from paramedic.detect.batches import fewer
from paramedic.detect.match import own_frames
from paramedic.model import Run
from paramedic.regex import regex

_ASIDE = regex(
    r" in \w*(?:sav(?:e|ing)|checkpoint|eval|valid|infer|generat|report|log_metric|log_dict|barrier"
    r"|broadcast_object|gather_object|finali[sz]e|destroy|teardown|shutdown|upload|export|callback)\w*$",
    re.I,
)
"""Frames of work beside the training step, which people put under `if rank == 0`."""
_KINDS = (
    ("saves", regex(r" in \w*(?:sav(?:e|ing)|checkpoint|state_dict)\w*$", re.I)),
    ("generates", regex(r" in \w*(?:generat|sample_text|rollout)\w*$", re.I)),
    ("evaluates", regex(r" in \w*(?:eval|valid|infer|perplexity|predict|metric|score|log_)\w*$", re.I)),
)
"""Work beside the training step, by the names of the functions."""
_FRAME = regex(r"(.{1,400}):(\d{1,9}) in (.{1,200})")
_SERVER = regex(r"\bserver ([\w.-]{1,100}),? (?:is )?not responding")
_WAY = 4


def ways(run: Run) -> dict[int, list[str]]:
    """The user's own frames of each rank, the innermost last: where its main thread was seen, else its traceback's."""
    found: dict[int, list[str]] = {}
    for event in (*run.of_kind("traceback"), *run.of_kind("stack")):
        own = list(event.fields.get("own") or own_frames(event))
        if event.rank is not None and own and (event.kind == "traceback" or event.fields.get("main")):
            found[event.rank] = own
    return found


def parting(odd: Sequence[str], usual: Sequence[str], first: bool) -> dict[str, str]:
    """Where the way of one rank leaves that of the others: the line of each, the rest of its way, and what it is for if
    it is the first rank's, which does such work alone by design."""
    at = next((n for n, pair in enumerate(zip(odd, usual, strict=False)) if pair[0] != pair[1]), len(usual))
    at = min(at, len(odd), len(usual))
    if not odd or not usual or at == len(odd) == len(usual):
        return {}
    at = len(odd) - 1 if at == len(odd) else at
    inside = at + 1 < len(usual) and odd[at] == usual[at]
    rest = [*odd[at:]]
    kind, call = next(
        ((kind, n) for kind, names in _KINDS for n, frame in enumerate(rest) if names.search(frame)), ("", 0)
    )
    fields = {
        "branch": _line_of(rest[max(call - 1, 0)]),
        "way": " → ".join(rest[:_WAY]),
        "usual_branch": _line_of(usual[min(at + inside, len(usual) - 1)]),
    }
    if kind or (not inside and _above(odd[at], usual[min(at, len(usual) - 1)])):
        return {**fields, kind if kind and first else "extra": fields["branch"]}
    return {**fields, "skipped" if inside else "parts": fields["usual_branch"]}


def _above(one: str, other: str) -> bool:
    """In the same function it stands before the other."""
    mine, theirs = _FRAME.fullmatch(one), _FRAME.fullmatch(other)
    if mine is None or theirs is None or (mine[1], mine[3]) != (theirs[1], theirs[3]):
        return False
    return int(mine[2]) < int(theirs[2])


def _line_of(frame: str) -> str:
    return frame.partition(" in ")[0]


def situation(run: Run, odd: Collection[int], given: Mapping[int, Sequence[str]] | None = None) -> dict[str, str]:
    """What is known of ranks that are not where the others are, for the fixes: nothing of it decides anything."""
    stood = given if given is not None else ways(run)
    others = Counter(tuple(way) for rank, way in stood.items() if rank not in odd and way).most_common(1)
    own = next((stood[rank] for rank in sorted(odd) if stood.get(rank)), None)
    first = 0 in odd
    fields = parting(own, others[0][0], first) if own and others else parting(*_of_nameless(run), first)
    fields |= {"awaited": _line_of(others[0][0][-1])} if others and not own else {}
    less = fewer(run, odd)
    server = next((hit[1] for e in run.saying("not responding", "line") if (hit := _SERVER.search(e.text))), "")
    return fields | ({"fewer": less} if less else {}) | ({"server": server} if server else {})


def is_aside(frame: str) -> bool:
    return _ASIDE.search(frame) is not None


def _of_nameless(run: Run) -> tuple[Sequence[str], Sequence[str]]:
    """Of processes whose rank nobody knows, one beside the step and one in it."""
    seen = [e for e in run.of_kind("stack") if e.rank is None and e.fields.get("main") and e.fields.get("own")]
    frames = [[*map(str, event.fields["own"])] for event in seen]
    odd = [way for way in frames if any(is_aside(frame) or _KINDS[-1][1].search(frame) for frame in way)]
    usual = [way for way in frames if way not in odd]
    return (odd[0], usual[0]) if len(odd) == 1 and usual else ((), ())
