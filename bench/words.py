"""What words speak for, learnt anew: writes src/paramedic/knowledge/words.tsv and says how good it is.

    pip install scikit-learn
    python bench/words.py                # learns from all wordings, after trying each fifth on what the others teach
    python bench/words.py --only-try

A linear classifier (logistic regression) over words and pairs of words. Features that stand in one wording only and weights that
hardly matter are left out.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from sklearn.feature_extraction import DictVectorizer  # type: ignore[import-untyped]
from sklearn.linear_model import LogisticRegression  # type: ignore[import-untyped]

from paramedic.detect.words import Feature, Learnt, features, written
from paramedic.knowledge.wordings import NONE, fingerprint, of_people, of_taxonomy
from paramedic.model import VERDICT_AT

FILE = Path(__file__).parent.parent / "src" / "paramedic" / "knowledge" / "words.tsv"
TOO_RARE, TOO_LITTLE, REGULAR, FOLDS = 2, 0.55, 30.0, 5

Said = tuple[str, Mapping[str, int]]


def learnt(texts: Sequence[Said], sharpness: float = 1.0) -> Learnt:
    seen = Counter(feature for _, said in texts for feature in said)
    idf = {name: math.log((1 + len(texts)) / (1 + count)) + 1 for name, count in seen.items() if count >= TOO_RARE}
    unseen = math.log(1 + len(texts)) + 1
    columns = DictVectorizer()
    rows = columns.fit_transform([_vector(said, idf, unseen) for _, said in texts])
    model = LogisticRegression(C=REGULAR, max_iter=1_000, class_weight="balanced").fit(
        rows, [symptom for symptom, _ in texts]
    )
    weights = np.round(model.coef_, 1)
    found = {}
    for name, column in columns.vocabulary_.items():
        speaks = tuple(
            (int(at), float(weights[at, column])) for at in np.flatnonzero(abs(weights[:, column]) > TOO_LITTLE)
        )
        if speaks:
            found[name] = Feature(round(idf[name], 2), speaks)
    base = tuple(round(float(one), 2) for one in model.intercept_)
    return Learnt(fingerprint(), tuple(map(str, model.classes_)), sharpness, base, round(unseen, 2), found)


def _vector(said: Mapping[str, int], idf: Mapping[str, float], unseen: float) -> dict[str, float]:
    raw = {name: math.log1p(count) * idf.get(name, unseen) for name, count in said.items()}
    length = math.sqrt(sum(weight * weight for weight in raw.values())) or 1.0
    return {name: weight / length for name, weight in raw.items() if name in idf}


def tried(people: Sequence[Said], rest: Sequence[Said]) -> list[tuple[str, tuple[str, ...], np.ndarray]]:
    """For each wording the scores by what all but its fifth teach."""
    found = []
    for fold in range(FOLDS):
        model = learnt([*(one for n, one in enumerate(people) if n % FOLDS != fold), *rest])
        found += [(symptom, model.symptoms, np.array(model.scores(said))) for symptom, said in people[fold::FOLDS]]
    return found


def share_of(scores: np.ndarray, sharpness: float) -> np.ndarray:
    powers = np.exp(sharpness * (scores - scores.max()))
    found: np.ndarray = powers / powers.sum()
    return found


def surprise(scored: Iterable[tuple[str, tuple[str, ...], np.ndarray]], sharpness: float) -> float:
    return float(
        np.mean([-math.log(share_of(scores, sharpness)[names.index(truth)]) for truth, names, scores in scored])
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only-try", action="store_true")
    only_try = parser.parse_args().only_try
    people = [(symptom, features(text)) for symptom, text in of_people()]
    rest = [(symptom, features(text, whole=False)) for symptom, text in of_taxonomy()]
    scored = tried(people, rest)
    sharpness = min((step / 10 for step in range(5, 40)), key=lambda one: surprise(scored, one))
    ranked = [
        (truth, [names[at] for at in np.argsort(-scores)], share_of(scores, sharpness))
        for truth, names, scores in scored
    ]
    failing = [one for one in ranked if one[0] != NONE]
    first = np.mean([names[0] == truth for truth, names, _ in failing])
    three = np.mean([truth in names[:3] for truth, names, _ in failing])
    sure = [names[0] == truth for truth, names, shares in ranked if shares.max() >= VERDICT_AT and names[0] != NONE]
    talk = np.mean([names[0] == NONE or shares.max() < VERDICT_AT for truth, names, shares in ranked if truth == NONE])
    print(
        f"{len(people)} wordings, each fifth by the others: first {first:.1%}, among three {three:.1%}; "
        f"{len(sure)} sure of a failure, {np.mean(sure):.1%} of them right; talk left alone {talk:.1%}; sharpness {sharpness}"
    )
    if not only_try:
        model = learnt([*people, *rest], sharpness)
        FILE.write_text(written(model), "utf-8")
        print(f"{FILE.name}: {len(model.features)} features, {FILE.stat().st_size >> 10} kB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
