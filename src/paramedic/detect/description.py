"""Plain words: which symptom a description sounds like, when there is no log line that a signature knows.

What a text sounds like `words.py` says; here it becomes a finding, a candidate, or nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.detect.words import MOST, shares
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.knowledge.wordings import NONE, descriptions
from paramedic.model import VERDICT_AT, Event, Finding, Run
from paramedic.regex import regex

DESCRIBED_BY = "description.described"
"""The name under which rules ask for it."""
LEAST = 0.15
"""Below it nothing is said at all: the words fit no symptom."""
SUREST = 0.9
"""Words are no evidence of what the machine did."""

_OF_ALL = frozenset(
    [
        "collective-hang",
        "collective-desync",
        "communication-runtime-error",
        "rendezvous-setup-hang",
        "replica-divergence",
    ]
)
"""Who reports these is seldom who is to blame."""


def symptoms_of(text: str) -> list[tuple[str, float]]:
    """(symptom, probability), the likeliest first; the rest of 1 is that nothing failed, or nothing that is known."""
    return _ranked(shares(text))


def heard(told: Sequence[Event]) -> list[tuple[str, float]]:
    """The same of a post: its title says the most, and then all that somebody says, and what he quotes with it."""
    text = "\n".join(event.text for event in told)
    title, quoted = (
        "\n".join(str(event.fields.get(name, "")) for event in told).strip() for name in ("title", "pasted")
    )
    if not title:
        return symptoms_of(text)
    all_of_it = shares(title, text, f"{text}\n{quoted}", weights=_WEIGHTS)
    something = 1 - all_of_it[NONE]
    failed = max(something, 1 - shares(title)[NONE])
    sure = 1.0 if failed >= _TALK else failed
    return _ranked({id: sure * share / (something or 1.0) for id, share in all_of_it.items() if id != NONE})


_TALK = 0.5
"""Who writes a post mostly wants something mended, and his questions are no sign that nothing has failed: so likely it
has, by the title or by all of it, and it is said what."""
_WEIGHTS = (0.8, 0.8, 0.4)
"""Of the title, of all that is said, and of all there is: found on 63 posts of strangers, tried on others."""


def said_plainly(run: Run) -> bool:
    """Somebody's own words are enough for a verdict, or he quotes nothing that could be one."""
    told = run.of_kind("description")
    return bool(told) and (not run.of_kind("complaint") or max(share for _, share in heard(told)) >= VERDICT_AT)


def _ranked(found: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(((id, share) for id, share in found.items() if id != NONE), key=lambda item: -item[1])


_ASKS = regex(
    r"(?:what(?:'s| does| do| is| are)|how (?:do|does|can) (?:i|we|you)) [^.\n]{1,80} (?:mean|do|for|set|use)\?", re.I
)


def asks(text: str) -> bool:
    """Somebody wants to know what a word means, not why something failed."""
    return _ASKS.fullmatch(text.strip()) is not None


_WELL = regex(
    r"\b(?:is|are|'s|looks?|seems?|runs?|running|works?|working|goes|going|went|trains?|training|all|everything)"
    r"(?: (?:all|very|quite|pretty|just|now|really|perfectly|again|so far)){0,2}"
    r" (?:fine|good|ok|okay|well|great|normal|healthy|perfect(?:ly)?|smooth(?:ly)?|correct(?:ly)?|nice(?:ly)?|green)\b"
    r"|\bas (?:expected|intended|planned|projected|usual|hoped|it should(?: be)?)\b"
    r"|\b(?:no|without)(?: any| more)? (?:problem|issue|complaint|trouble)s?\b"
    r"|\bnothing(?: is|'s)? (?:wrong|unusual|suspicious|broken|to (?:complain|report|worry))\b(?: about)?"
    r"|\b(?:finished|ended|completed|ran|done) (?:successfully|cleanly|normally|well|fine)\b"
    r"|\b(?:happy|content|satisfied|pleased) with\b",
    re.I,
)
_NO_ERROR = regex(r"\b(?:no|without)(?: any| more)? (?:error|failure|crash|hang|warning|nan)(?:s|es)?\b", re.I)
"""Is said of what goes wrong without a word, too."""
_BUT = """
but however except although though yet until unless instead despite only not cannot never no none nothing why what how
used was were too than then still without less lower higher fewer worse more bad poor die dies died dying dead lost nan
inf oom out odd half zero flat idle gone
"""
_ILL_BEGINNINGS = """
slow hang hung stuck stall freez froze crash fail error kill lose losing miss wrong broke break diverg explod spik
differ mismatch strang weird suspicio leak grow timeout timed refus unable problem issue trouble stop plateau chance
random twice doubl garbage nonsense unexpected block wait silent quiet disappear vanish exit abort restart preempt reset
drop corrupt throttl degrad
"""
_ILL = regex(rf"\b(?:{'|'.join(_BUT.split())})\b|\b(?:{'|'.join(_ILL_BEGINNINGS.split())})|\booms|n't\b|\?", re.I)
"""Who is content may say such a word, too, and is then asked as everybody is."""
_POLITE = regex(r"(?:hi|hey|hello|dear|thanks?|thank you|thx|cheers|many thanks|great work)\b[\w ]{0,30}", re.I)
_CLAUSE = regex(r"[,.;:!\n]+(?=\s|$)|\s[-\u2013\u2014]\s")


def content(text: str) -> bool:
    """Somebody says that all is well: each part of it says so, or is mere politeness, and nothing beside complains."""
    parts = [_NO_ERROR.sub(" ", part).strip() for part in _CLAUSE.split(text[:MOST])]
    well = [part for part in parts if _WELL.search(part)]
    others = [part for part in parts if part and not _WELL.search(part)]
    complains = any(_ILL.search(_WELL.sub(" ", part)) for part in well)
    return bool(well) and not complains and all(map(_POLITE.fullmatch, others))


def nothing_wrong(told: Sequence[Event]) -> bool:
    """Nothing is to be explained: all of it are mere questions, or say that all is well."""
    return all(event.fields.get("wish") or asks(event.text) or content(event.text) for event in told)


def described(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What a text in plain words sounds like; only where nothing else was recognised in any of the input."""
    if any(one.severity == "error" for one in found):
        return
    told = run.of_kind("description")
    if told and len(told) == len(run.sources):
        yield from sounds_like(told, rule)


def sounds_like(
    told: Sequence[Event], rule: Rule, known: Mapping[str, float] | None = None, beside: str = ""
) -> Iterator[Finding]:
    """The likeliest symptom by the words, or by what is `known` of them, if there is one; `beside` is a sentence about
    what else there is. A mere candidate is a remark: it fails nobody's build."""
    if nothing_wrong(told):
        return
    ranked = known.items() if known else heard(told)
    likely = sorted((item for item in ranked if item[1] >= LEAST / 3), key=lambda item: -item[1])
    if not likely or likely[0][1] < LEAST:
        return
    (symptom, share), others = likely[0], likely[1:3]
    advice = descriptions()[symptom]
    fields = {
        "beside": beside,
        "symptom": symptom.replace("-", " "),
        "others": "".join(f", or {id.replace('-', ' ')} ({part:.0%})" for id, part in others),
        "logs": advice["logs"],
        "rerun": advice["rerun"],
        "command": advice["command"],
    }
    ranks = () if symptom in _OF_ALL else _accused(told[0])
    if ranks:
        fields["accused"] = ", ".join(map(str, ranks))
    one = on_events(rule, told[:1], ranks, fields)
    severity = one.severity if share >= VERDICT_AT else "warning"
    sure = round(min(share, SUREST), 3)
    yield replace(one, symptom=load_taxonomy().symptom(symptom), confidence=sure, severity=severity)


def _accused(event: Event) -> tuple[int, ...]:
    """The ranks that it says to fail, as they were read."""
    ranks = event.fields.get("accused", ())
    return tuple(rank for rank in ranks if isinstance(rank, int)) if isinstance(ranks, list | tuple) else ()
