"""Signatures: which rule says what about which event."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from paramedic.detect.places import Places
from paramedic.detect.where import places
from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.clues import named_causes
from paramedic.model import Event, Evidence, Finding, Run, is_own, names_processes
from paramedic.prefilter import Prefilter
from paramedic.regex import regex

_RANKS = regex(r"(?<!\d)\d{1,7}(?!\d)")
_TASKS = regex(r"/task:(\d{1,7})(?!\d)")
"""How TensorFlow and JAX name a rank: `/job:worker/replica:0/task:3`."""
MAX_MESSAGE = 1_200
"""So much of a message is read for what it says about the cause."""
SPOKEN = ("line", "traceback")
"""Kinds of events that signatures are about."""
_PID = regex(r"\d{1,10}")
_ASCEND = regex(r"\(PID:\d{1,10}, Device:-?\d{1,4}, RankID:(\d{1,6})\)")
_PROCESS = regex(
    r"\b(?:pid[=: ]{1,2}'?|[Kk]ill(?:ed)? process )(\d{1,10})\b"
    r"|^(?:\[[^\]\n]{1,60}\] ?|\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}Z? )?[\w.-]{1,120}:(\d{1,10}):\d{1,10} \[-?\d{1,3}\] "
)


Firing = tuple[tuple[Rule, dict[str, str]], ...]
"""The rules that fire, each with the fields that it captures."""


class Signatures:
    """Which rules fire on which text. It does not depend on who said it, so that it can be asked of lines as they are
    read, while the Run is not whole yet; and ranks repeat each other, and themselves: each text is asked about once."""

    def __init__(self, knowledge: Knowledge, prefilter: Prefilter) -> None:
        self._prefilter = prefilter
        self._by_keyword = knowledge.by_keyword
        self._candidates: dict[tuple[str, ...], tuple[Rule, ...]] = {}
        self._known: dict[str, Firing] = {}

    def hear(self, events: Iterable[Event]) -> None:
        known = self._known
        new = {e.text: e for e in events if e.kind in SPOKEN and e.text not in known and (not e.fields or _bare(e))}
        for event, literals in zip(new.values(), self._prefilter.literals_in_each(list(new)), strict=True):
            self._known[event.text] = self._asked(event, literals)

    def on(self, event: Event) -> Firing:
        """For one that was heard."""
        if event.fields and not _bare(event):
            return self._asked(event, next(self._prefilter.literals_in_each([event.text])))
        return self._known[event.text]

    def _asked(self, event: Event, literals: tuple[str, ...]) -> Firing:
        if literals not in self._candidates:
            self._candidates[literals] = _with_one_of(literals, self._by_keyword)
        asked = [(rule, fires(rule, event)) for rule in self._candidates[literals]]
        return tuple([(rule, fields) for rule, fields in asked if fields is not None])


def _bare(event: Event) -> bool:
    """Its text is all that there is of it."""
    return not (event.fields.get("frames") or event.fields.get("code"))


def match(run: Run, signatures: Signatures) -> list[Finding]:
    """Every rule that fires on an event; `most_specific` later keeps one of them for each event."""
    events = run.of_kind(*SPOKEN)
    signatures.hear(events)
    known = places(run)
    launched = names_processes(run.of_kind("exit"))
    begun = _training_begun(run)
    found = []
    for event in events:
        for rule, fields in signatures.on(event):
            if not (rule.setup_only and event.seq > begun.get((event.source, event.attempt), event.seq)):
                said = dict(fields)
                if launched and "srun: error: " in event.text:  # its tasks are the launchers, one on each node
                    said.pop("accused", None)
                found.append(finding(rule, event, said, known))
    return found


def _with_one_of(keywords: Iterable[str], by_keyword: Mapping[str, Sequence[Rule]]) -> tuple[Rule, ...]:
    """Most lines have the same few keywords as others."""
    return tuple({rule.id: rule for keyword in keywords for rule in by_keyword.get(keyword, ())}.values())


def _training_begun(run: Run) -> dict[tuple[str, int], int]:
    """The first line of each source and attempt that shows training going on, as far as its end is known."""
    begun: dict[tuple[str, int], int] = {}
    for event in run.of_kind("progress"):
        at = None if event.fields.get("stepless") else event.fields.get("at")
        if at:
            key = event.source, event.attempt
            begun[key] = min(begun.get(key, at[0]), at[0])
    return begun


def fires(rule: Rule, event: Event) -> dict[str, str] | None:
    """The captured fields when the rule fires on this event, else None."""
    for pattern in rule.patterns:
        if (hit := pattern.search(event.text)) is not None:
            break
    else:
        return None
    frames = "\n".join(event.fields.get("frames", ()))
    code = "\n".join(event.fields.get("code", ())[-1:])
    if rule.stack_pattern and not (rule.stack_pattern.search(frames) or rule.stack_pattern.search(code)):
        return None
    if any(p.search(event.text) or p.search(frames) or p.search(code) for p in rule.unless_patterns):
        return None
    return {name: value for name, value in hit.groupdict().items() if value is not None}


def finding(rule: Rule, event: Event, fields: Mapping[str, str], known: Places) -> Finding:
    """A finding on one event. The message itself may name the rank, its process, or the ranks that are missing."""
    ranks: tuple[int, ...] = () if event.rank is None else (event.rank,)
    if "accused" in fields:
        tasks = _TASKS.findall(fields["accused"])
        ranks = tuple(sorted({int(r) for r in (tasks or _RANKS.findall(fields["accused"]))[:4096]}))
        fields = {**fields, "accused": ", ".join(map(str, ranks))} if tasks else fields
    elif _RANKS.fullmatch(fields.get("rank", "")):
        ranks = (int(fields["rank"]),)
    elif not ranks and (own := _ASCEND.search(event.text)) is not None:
        ranks = (int(own[1]),)
    elif not ranks:
        ranks = _of_processes(event, fields, known)
    return on_events(rule, (event,), ranks, fields, named_causes(event.text[:MAX_MESSAGE]))


def _of_processes(event: Event, fields: Mapping[str, str], known: Places) -> tuple[int, ...]:
    """The rank whose process a line of the kernel or a launcher speaks of, by the rule's field or the usual words."""
    said = [fields["pid"]] if _PID.fullmatch(fields.get("pid", "")) else []
    if event.kind == "line":
        said = said or [own or other for other, own in _PROCESS.findall(event.text)[:8]]
    ranks = {known.rank_of(int(pid), event.host) for pid in said}
    return tuple(rank for rank in ranks if rank is not None) if len(ranks) == 1 else ()


def on_event(rule: Rule, event: Event, fields: Mapping[str, str]) -> Finding:
    """A finding on the rank that the event happened on."""
    return on_events(rule, (event,), () if event.rank is None else (event.rank,), fields)


def on_events(
    rule: Rule,
    events: Sequence[Event],
    ranks: Iterable[int],
    fields: Mapping[str, str] | None = None,
    weights: Mapping[str, float] | None = None,
) -> Finding:
    """Its hosts are those of its ranks: what the others said is evidence, and happened elsewhere."""
    ranks = tuple(ranks)
    here = [event for event in events if not ranks or event.rank is None or event.rank in ranks]
    return Finding(
        rule=rule.id,
        symptom=rule.symptom,
        severity=rule.severity,
        scope="rank" if ranks else "job",
        ranks=ranks,
        hosts=tuple(sorted({e.host for e in here if e.host})),
        confidence=rule.confidence,
        summary=rule.title,
        evidence=tuple(map(_evidence, events)),
        consequence=rule.consequence,
        attempt=max([e.attempt for e in events], default=0),
        fields=fields or {},
        weights=weights or {},
    )


def _evidence(event: Event) -> Evidence:
    return Evidence(event, tuple(event.fields.get("before", ())), tuple(event.fields.get("after", ())))


def own_frame(event: Event) -> str:
    """The innermost frame of the user's own code."""
    return (own_frames(event) or list(event.fields.get("frames", ())) or ["?"])[-1]


def own_frames(event: Event) -> list[str]:
    """Frames of the user's own code, the innermost last."""
    return [frame for frame in event.fields.get("frames", ()) if is_own(frame)]


def most_specific(found: Sequence[Finding]) -> list[Finding]:
    """One finding for each event: the rule that is surest of its symptom."""
    best: dict[tuple[str, int, str, int | None], Finding] = {}
    for one in found:
        event = one.evidence[0].event
        key = (event.source, event.seq, event.kind, event.rank)
        if key not in best or one.confidence > best[key].confidence:
            best[key] = one
    return list(best.values())
