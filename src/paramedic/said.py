"""What somebody says of his job, beside its logs: of all remarks the one that explains it becomes the answer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from paramedic.detect.description import DESCRIBED_BY, LEAST, SUREST, nothing_wrong, sounds_like, symptoms_of
from paramedic.detect.interrupted import TIME_LIMIT
from paramedic.knowledge import Knowledge
from paramedic.model import VERDICT_AT, Event, Evidence, Finding, Run
from paramedic.survived import SILENT

_FAMILIES = (
    ("non-convergence", "numerical-instability", "replica-divergence", "silent-wrong-result"),
    ("low-throughput", "straggler-or-imbalance", "unexpected-parallel-placement", "unexpected-transport"),
    ("device-out-of-memory", "host-out-of-memory", "memory-growth", "memory-savings-not-realised"),
    ("checkpoint-resume-failure", "checkpoint-save-failure", "model-weight-loading-failure"),
    ("collective-hang", "rendezvous-setup-hang", "straggler-or-imbalance"),
)
"""Symptoms that look alike from outside: who says that results are bad may mean any of the first."""
_ALIKE = 0.5
_OF_ENDS = ("worker-or-node-loss", "failed-recovery", "resource-allocation-failure")
_PLAIN = 0.5
"""Words that fit a symptom so well say what is wrong."""

Answer = tuple[list[Finding], list[Finding], Sequence[Finding]]


def answered(run: Run, told: Sequence[Event], known: Answer, knowledge: Knowledge) -> Answer:
    """What explains the words best, else what they sound like, in the first place of what is `known`: (what failed, the
    remarks, the program's). What is too unsure for a verdict is one more remark, and takes nothing from what failed."""
    if not (shares := _shares(run, told)):
        return known
    failed, noted, foreseen = known
    notes = [*noted, *(replace(one, severity="warning") for one in failed)]
    best, sure = _explaining(notes, foreseen, shares)
    if best is not None and sure >= VERDICT_AT:
        rest = [one for one in notes if one is not best]
        return [_promoted(best, told, sure)], rest, [one for one in foreseen if one is not best]
    rule = next(rule for rule in knowledge.rules.values() if rule.detector == DESCRIBED_BY)
    beside = "Nothing in the files explains it. " if best is None else ""
    words = list(sounds_like(told, rule, shares, beside))
    if words and words[0].confidence >= VERDICT_AT:
        return words, notes, foreseen
    return failed, [*noted, *words], foreseen


def _explaining(
    notes: Sequence[Finding], foreseen: Sequence[Finding], shares: dict[str, float]
) -> tuple[Finding | None, float]:
    """The remark that the words mean, and how sure that is."""
    fits = [(_fit(one, shares), one) for one in (*notes, *foreseen)]
    likely = [(fit * one.confidence, fit, one) for fit, one in fits if fit >= LEAST]
    if likely:
        _, fit, best = max(likely, key=lambda item: item[0])
        return best, 1 - (1 - fit) * (1 - best.confidence)
    if max(shares.values()) < _PLAIN and (seen := [one for one in notes if _tells(one)]):
        best = max(seen, key=lambda one: one.confidence)
        return best, best.confidence
    return None, 0.0


def only_ended(first: Finding, told: Sequence[Event]) -> bool:
    """The log tells of nothing but that a scheduler's time was over, and the words are about something else."""
    shares = _by_words(told)
    return first.rule == TIME_LIMIT and sum(shares.get(symptom, 0.0) for symptom in _OF_ENDS) < LEAST


def _by_words(told: Sequence[Event]) -> dict[str, float]:
    return dict(symptoms_of("\n".join(event.text for event in told)))


def _shares(run: Run, told: Sequence[Event]) -> dict[str, float]:
    """What the words mean, given that something is wrong, and that the job trains: then it is hardly what keeps a job
    from training. Nothing where they are mere talk, or say that all is well."""
    shares = _by_words(told)
    if nothing_wrong(told) or sum(shares.values()) < _TALK:
        return {}
    if run.stepping or run.of_kind("bars"):
        shares = {id: share * (1.0 if id in _WHILE_TRAINING else _SELDOM) for id, share in shares.items()}
    total = sum(shares.values()) or 1.0
    return {id: share / total for id, share in shares.items()}


_WHILE_TRAINING = SILENT | {"checkpoint-save-failure", "failed-recovery", "model-weight-loading-failure"}
_SELDOM, _TALK = 0.2, 0.35


def _tells(one: Finding) -> bool:
    """What looks wrong by itself, and only might be meant: where the words fit nothing, they may mean this."""
    return one.severity == "warning" and one.symptom in SILENT


def _promoted(one: Finding, told: Sequence[Event], confidence: float) -> Finding:
    evidence = (*one.evidence, Evidence(told[0]))
    return replace(one, severity="error", confidence=round(min(SUREST, confidence), 3), evidence=evidence)


def _fit(one: Finding, shares: dict[str, float]) -> float:
    """How likely the words mean this symptom, or one that looks like it from outside."""
    alike = {other for family in _FAMILIES if one.symptom in family for other in family} - {str(one.symptom)}
    return shares.get(one.symptom, 0.0) + _ALIKE * sum(shares.get(other, 0.0) for other in alike)
