"""Why it failed: ranked causes, and the sentence that says what happened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.clues import OUTRIGHT
from paramedic.knowledge.priors import Setting
from paramedic.model import Cause, Finding, Run
from paramedic.regex import regex

UNKNOWN = 0.1
"""The share of every cause distribution that is kept for causes nobody listed."""
_UNLISTED = 0.05
_UNHEARD_OF = 0.02
"""The base rate of a cause that the taxonomy does not list for a symptom."""
_TEMPER = 0.5
"""Whoever weighed a rule's causes knew the base rate already, so it counts by its square root beside them."""
_LOCAL = frozenset(
    [
        "data-or-input-defect",
        "uneven-work-across-ranks",
        "cross-node-environment-skew",
        "hardware-fault",
        "host-resource-exhaustion",
        "network-fabric-fault",
        "device-assignment-error",
        "storage-or-external-service-fault",
        "collective-order-divergence",
    ]
)
"""Causes that strike some ranks and spare others; code, model and versions are the same everywhere."""
_OF_SOME_RANKS = 4.0


@dataclass(frozen=True, slots=True)
class Place:
    """What is asked of the run for every finding, worked out once."""

    hosts: Mapping[int | None, str]
    """Which rank was where, as the launcher's table says."""
    inferred: Mapping[int | None, str]
    """And as whatever else says that names one host."""
    blamed: int | None
    ranks_seen: int

    @classmethod
    def of(cls, run: Run, inferred: Mapping[int | None, str]) -> Place:
        return cls(_hosts(run), inferred, _blamed_by_torchrun(run), len(run.ranks_seen))


def explained(place: Place, one: Finding, knowledge: Knowledge, setting: Setting) -> Finding:
    rule = knowledge.rules[one.rule]
    prior = knowledge.priors.cause(one.symptom, setting)
    weights = rule.causes if one.symptom == rule.symptom else {}
    if rule.before:  # what the program has says its cause itself
        prior = {**dict.fromkeys(weights, _UNHEARD_OF), **prior}
    if rule.of_conduct:  # and so does what it was seen doing, whatever is usual
        prior = {**prior, **dict.fromkeys(weights, max(prior.values(), default=1.0))}
    some_only = bool(one.ranks) and place.ranks_seen > len(one.ranks)
    return replace(
        one,
        hosts=tuple(sorted({*one.hosts, *_of(one.ranks, place.hosts)} or _of(one.ranks, place.inferred))),
        causes=_causes(prior, weights, one.weights, some_only, setting),
        summary=summary(rule, one) + _misled(place, one),
    )


def _of(ranks: Sequence[int], hosts: Mapping[int | None, str]) -> set[str]:
    return {hosts[rank] for rank in ranks if rank in hosts}


def _hosts(run: Run) -> dict[int | None, str]:
    return {e.rank: str(e.fields["host"]) for e in run.of_kind("exit") if e.fields.get("host")}


def _blamed_by_torchrun(run: Run) -> int | None:
    named = {e.rank for e in run.of_kind("exit") if e.fields.get("first_observed")}
    return named.pop() if len(named) == 1 else None


def _misled(place: Place, one: Finding) -> str:
    """torchrun names the rank whose end its agent saw first, which is often a mere victim."""
    if place.blamed is None or not one.ranks or place.blamed in one.ranks or one.severity != "error":
        return ""
    return f" (torchrun's table blames rank {place.blamed}, whose end it merely saw first.)"


def _causes(
    prior: Mapping[str, float],
    weights: Mapping[str, float],
    evidence: Mapping[str, float],
    some_only: bool,
    setting: Setting,
) -> tuple[Cause, ...]:
    """Base rate × what this message says × how many ranks have it, normalised to leave a share for the unknown.
    What the message names outright counts though the symptom's list does not have it."""
    prior = {**{cause: _UNHEARD_OF for cause, factor in evidence.items() if factor >= OUTRIGHT}, **prior}
    if len(weights) == 1 and max(weights.values()) >= _SAYS_ITSELF:
        prior = {cause: rate for cause, rate in prior.items() if cause in weights or evidence.get(cause, 1.0) > 1.0}
    likelihood = {
        cause: (prior[cause] ** _TEMPER * weights.get(cause, _UNLISTED) if weights else prior[cause])
        * (_OF_SOME_RANKS if cause in _LOCAL and some_only else 1.0)
        * evidence.get(cause, 1.0)
        for cause in prior
    }
    total = sum(likelihood.values())
    causes = [
        Cause(
            cause,
            round((1 - UNKNOWN) * value / total, 3),
            f"{_why(cause, weights, evidence, some_only)}base rate {prior[cause]:.0%} {_WHERE[setting]}",
        )
        for cause, value in sorted(likelihood.items(), key=lambda item: -item[1])
    ]
    return tuple(c for c in causes if c.probability >= _SHOWN)


_SHOWN, _SAYS_ITSELF = 0.02, 0.98
"""A message that says its cause itself, such as a time limit, has no others."""
_WHERE: Mapping[Setting, str] = {"lab": "in labs", "cluster": "in clusters"}
_AS_MUCH, _HALF = 0.8, 0.5


def _why(cause: str, weights: Mapping[str, float], evidence: Mapping[str, float], some_only: bool) -> str:
    """What has moved it away from its base rate, the strongest first."""
    reasons = [_seen(evidence.get(cause, 1.0)), _meant(cause, weights)]
    reasons += ["only some ranks have it"] if some_only and cause in _LOCAL else []
    return "".join(f"{reason}; " for reason in reasons if reason)


def _seen(factor: float) -> str:
    if factor == 1.0:
        return ""
    return "what was seen speaks for it" if factor > 1.0 else "what was seen speaks against it"


def _meant(cause: str, weights: Mapping[str, float]) -> str:
    """How the rule weighs it beside its other causes."""
    if not weights:
        return ""
    share = weights.get(cause, 0.0) / max(weights.values())
    how = "mostly" if share >= _AS_MUCH else "often" if share >= _HALF else "seldom" if share else "rarely"
    return f"{how} meant by this message"


_ONE_WAITS = {
    "anks {waiting} wait ": "ank {waiting} waits ",
    "anks {waiting} wait{": "ank {waiting} waits{",
    "anks {waiting} have": "ank {waiting} has",
    "anks {waiting}": "ank {waiting}",
}


_NONE_OF_THEM = {
    "Every rank cannot ": "No rank can ",
    "Every rank could not ": "No rank could ",
    "Every rank did not find ": "No rank found ",
    "Every rank did not ": "No rank did ",
    "Every rank does not answer ": "No rank answers ",
    "Every rank has not ": "No rank has ",
}
_OF_MANY = {"was": "were", "is": "are", "has": "have", "does": "do"}
_MANY = regex(r"^((?:Ranks [\d, ]+(?: and \d+(?: more)?)?|Several ranks)) (\w+)\b")


def _agreeing(sentence: str) -> str:
    """Rules speak of one rank: of all and of several the verb is another."""
    for wrong, right in _NONE_OF_THEM.items():
        if sentence.startswith(wrong):
            return right + sentence.removeprefix(wrong)
    return _MANY.sub(lambda found: f"{found[1]} {_plural(found[2])}", sentence)


def _plural(verb: str) -> str:
    """Only what rules say of a rank: `multiplies`, `waits`, `was`; a past tense is the same for many."""
    if verb in _OF_MANY:
        return _OF_MANY[verb]
    if verb.endswith("ies"):
        return verb[:-3] + "y"
    return verb[:-2] if verb.endswith(("xes", "ches", "sses")) else verb.removesuffix("s")


def summary(rule: Rule, one: Finding) -> str:
    """The rule's sentence with what the message said; the plain title where the message does not say enough."""
    who = one.fields.get("who") or subject(one.ranks)
    sentence = rule.summary.replace("Rank {rank}", who).replace("rank {rank}", who[0].lower() + who[1:])
    sentence = _agreeing(sentence)
    if one.fields.get("waiting", "").isdigit():
        for many, single in _ONE_WAITS.items():
            sentence = sentence.replace(many, single)
    known = {**one.fields, "rank": listed(one.ranks) or "?"}
    if not known.get("waiting", "?"):  # stacks of processes that nobody has numbered
        del known["waiting"]
    for name, value in known.items():
        sentence = sentence.replace("{" + name + "}", value)
    return rule.title if any(f"{{{name}}}" in sentence for name in _placeholders(rule)) else sentence


def subject(ranks: Sequence[int]) -> str:
    if not ranks:
        return "A rank"
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {listed(ranks)}"


def _placeholders(rule: Rule) -> list[str]:
    return [part.split("}", 1)[0] for part in rule.summary.split("{")[1:]]


def listed(ranks: Sequence[int]) -> str:
    texts = [str(rank) for rank in ranks[:8]] + ([f"{len(ranks) - 8} more"] if len(ranks) > 8 else [])
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
