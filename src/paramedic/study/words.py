"""Which symptom a text sounds like: the classifiers that `label` can use, all with one question, `shares(text)`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from paramedic.detect import words
from paramedic.detect.words import features
from paramedic.errors import ParamedicError
from paramedic.knowledge.wordings import NONE, of_people, of_taxonomy
from paramedic.study import bayes
from paramedic.study.needed import needed
from paramedic.ward.case import load_all

Said = tuple[str, str]
"""(symptom or `none`, text)."""
KINDS = ("shipped", "words", "tfidf", "majority")
"""`shipped` learns from nobody's labels, `words` from those given as well."""


class Classifier(Protocol):
    def shares(self, text: str) -> dict[str, float]: ...


def trained(kind: str, said: Sequence[Said]) -> Classifier:
    """`said` are labelled texts."""
    if kind == "shipped":
        return Shipped()
    if kind == "words":
        return _words(said)
    if kind == "tfidf":
        return TfIdf.trained(said)
    if kind == "majority":
        return Majority.trained(said)
    raise ParamedicError(f"{kind}: no such classifier; there are {', '.join(KINDS)}")


def of_the_ward() -> list[Said]:
    """How the fault lab's own cases are called, and how they are cured. Those held back for scoring are not read."""
    return [(case.truth.symptom, case.title) for case in load_all() if not case.held_back]


def _words(said: Sequence[Said]) -> Words:
    own = [(symptom, features(text)) for symptom, text in [*of_the_ward(), *said]]
    return Words.of(bayes.train([*bayes.learnt(), *own]))


class Shipped:
    """What `diagnose` hears plain words with."""

    def shares(self, text: str) -> dict[str, float]:
        return words.shares(text)


@dataclass(frozen=True, slots=True)
class Words:
    """What `bayes.Model` computes, with the logarithms worked out once: for many posts, several times as fast."""

    model: bayes.Model
    gains: Mapping[str, tuple[tuple[str, float], ...]]
    """For each feature, how much it speaks for the symptoms that use it, over those that do not."""
    sizes: Mapping[str, float]

    @classmethod
    def of(cls, model: bayes.Model) -> Words:
        gains: dict[str, list[tuple[str, float]]] = {feature: [] for feature in model.total}
        for symptom, used in model.used.items():
            for feature, here in used.items():
                gains[feature].append((symptom, model.gain(feature, here)))
        sizes = {symptom: model.size_term(symptom) for symptom in model.used}
        return cls(model, {feature: tuple(found) for feature, found in gains.items()}, sizes)

    def shares(self, text: str) -> dict[str, float]:
        known = {f: w for f, w in self.model.vector(features(text)).items() if f in self.gains}
        whole = sum(known.values())
        scores = {symptom: whole * size for symptom, size in self.sizes.items()}
        for feature, weight in known.items():
            for symptom, gain in self.gains[feature]:
                scores[symptom] += weight * gain
        return bayes.shares(scores)


@dataclass(frozen=True, slots=True)
class Majority:
    found: Mapping[str, float]

    @classmethod
    def trained(cls, said: Sequence[Said]) -> Majority:
        counts = Counter(symptom for symptom, _ in said)
        total = sum(counts.values()) or 1
        return cls({symptom: n / total for symptom, n in sorted(counts.items())} or {NONE: 1.0})

    def shares(self, text: str) -> dict[str, float]:
        return dict(self.found)


@dataclass(frozen=True, slots=True)
class TfIdf:
    """TF-IDF of words and pairs, and logistic regression (scikit-learn), on the very texts that `words` learns from."""

    pipeline: Any

    @classmethod
    def trained(cls, said: Sequence[Said]) -> TfIdf:
        texts = [*of_people(), *of_taxonomy(), *bayes.of_rules(), *of_the_ward(), *said]
        text = needed("sklearn.feature_extraction.text")
        linear, chain = needed("sklearn.linear_model"), needed("sklearn.pipeline")
        pipeline = chain.make_pipeline(
            text.TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=1, max_features=50_000),
            linear.LogisticRegression(C=10.0, class_weight="balanced", max_iter=1_000),
        )
        pipeline.fit([one for _, one in texts], [symptom for symptom, _ in texts])
        return cls(pipeline)

    def shares(self, text: str) -> dict[str, float]:
        probabilities = self.pipeline.predict_proba([text])[0]
        return {str(name): float(p) for name, p in zip(self.pipeline.classes_, probabilities, strict=True)}
