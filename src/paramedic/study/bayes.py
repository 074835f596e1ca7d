"""A classifier that learns while one waits: how much more often a symptom's own texts use each word than all others.

Naive Bayes against its complement, over the features of `detect/words.py`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from paramedic.detect.words import features
from paramedic.knowledge import load
from paramedic.knowledge.wordings import of_people, of_taxonomy

SHARPNESS = 2.2
"""Of the scores, so that a probability is the share that is right."""
_SMOOTH = 0.1


@dataclass(frozen=True, slots=True)
class Model:
    """How much each symptom's texts, and all texts together, use a feature; each text is a vector of length 1."""

    idf: Mapping[str, float]
    unseen: float
    used: Mapping[str, Mapping[str, float]]
    sizes: Mapping[str, float]
    total: Mapping[str, float]

    def shares(self, text: str) -> dict[str, float]:
        return shares(self.scores(features(text)))

    def scores(self, said: Mapping[str, int], left_out: str = "") -> dict[str, float]:
        """For each symptom. A text that was learnt is judged as if it were not, where its symptom is `left_out`."""
        vector = self.vector(said)
        known = {feature: weight for feature, weight in vector.items() if feature in self.total}
        size, kinds = sum(self.sizes.values()), _SMOOTH * len(self.total)
        gone = sum(known.values()) if left_out else 0.0
        found: dict[str, float] = {}
        for symptom, used in self.used.items():
            own = gone if symptom == left_out else 0.0
            ours, others = self.sizes[symptom] - own, size - gone - self.sizes[symptom] + own
            score = 0.0
            for feature, weight in known.items():
                here = used.get(feature, 0.0)
                there = self.total[feature] - here
                if left_out == symptom:
                    here -= weight
                elif left_out:
                    there -= weight
                score += weight * math.log((here + _SMOOTH) / (there + _SMOOTH))
            found[symptom] = score + sum(known.values()) * math.log((others + kinds) / (ours + kinds))
        return found

    def gain(self, feature: str, here: float) -> float:
        """What a feature adds to the score of a symptom that uses it so much, over one that never does."""
        total = self.total[feature]
        return math.log((here + _SMOOTH) / (total - here + _SMOOTH)) - math.log(_SMOOTH / (total + _SMOOTH))

    def size_term(self, symptom: str) -> float:
        """The same for how much is known of the symptom at all; times the weight of the known features."""
        size, kinds = sum(self.sizes.values()), _SMOOTH * len(self.total)
        return math.log((size - self.sizes[symptom] + kinds) / (self.sizes[symptom] + kinds))

    def vector(self, said: Mapping[str, int]) -> dict[str, float]:
        """Words that nobody has used yet count in its length: they make every answer less sure."""
        raw = {feature: math.log1p(count) * self.idf.get(feature, self.unseen) for feature, count in said.items()}
        length = math.sqrt(sum(weight * weight for weight in raw.values())) or 1.0
        return {feature: weight / length for feature, weight in raw.items()}


def shares(scores: Mapping[str, float], sharpness: float = SHARPNESS) -> dict[str, float]:
    top = max(scores.values())
    powers = {symptom: math.exp(sharpness * (score - top)) for symptom, score in scores.items()}
    total = sum(powers.values())
    return {symptom: power / total for symptom, power in powers.items()}


def train(texts: Iterable[tuple[str, Mapping[str, int]]]) -> Model:
    texts = list(texts)
    seen = Counter(feature for _, said in texts for feature in said)
    idf = {feature: math.log((1 + len(texts)) / (1 + count)) + 1 for feature, count in seen.items()}
    empty = Model(idf, math.log(1 + len(texts)) + 1, {}, {}, {})
    used: dict[str, dict[str, float]] = {symptom: {} for symptom, _ in texts}
    total: dict[str, float] = defaultdict(float)
    for symptom, said in texts:
        ours = used[symptom]
        for feature, weight in empty.vector(said).items():
            ours[feature] = ours.get(feature, 0.0) + weight
            total[feature] += weight
    return replace(empty, used=used, sizes={id: sum(ours.values()) for id, ours in used.items()}, total=dict(total))


def learnt() -> list[tuple[str, dict[str, int]]]:
    """(symptom, features of a text) for all that the knowledge base has."""
    known = [(symptom, features(text, whole=False)) for symptom, text in (*of_taxonomy(), *of_rules())]
    return [*((symptom, features(text)) for symptom, text in of_people()), *known]


def of_rules() -> Iterator[tuple[str, str]]:
    """The rules' own words. What a rule is not (`Not this`) speaks of other symptoms: left out. So are rules of files
    and nodes before the launch: they speak of settings, not of what people then see."""
    for rule in load().rules.values():
        of_failures = {case.kind for case in rule.cases()} <= {"log", "folder"}
        if of_failures and not rule.detector.startswith(("exceptions.", "description.")):  # these stand for any symptom
            yield str(rule.symptom), " ".join((rule.title, *rule.keywords, rule.section("What it means")))
