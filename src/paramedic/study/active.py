"""Which posts to label next: those the classifier is least sure of, and unlike one another."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

from paramedic.detect.words import features
from paramedic.study.store import Post, Predicted, Store

_TOO_ALIKE = 0.5
_CANDIDATES = 20
"""Times as many as are wanted."""


def entropy(one: Predicted) -> float:
    """In bits; what is not among the first few is taken as one more answer."""
    shares: list[float] = [one.probability, *json.loads(one.others or "{}").values()]
    rest = max(1 - sum(shares), 0.0)
    return -sum(share * math.log2(share) for share in (*shares, rest) if share > 0)


def most_informative(store: Store, n: int, rater: str = "", second: bool = False) -> list[tuple[Post, Predicted]]:
    """`second`: posts that somebody else has labelled, for agreement; their label is not shown."""
    others = {one.post for one in store.labels() if one.rater != rater}
    mine = {one.post for one in store.labels(rater)} if rater else others
    left = [one for one in store.predictions() if one.post not in mine and (one.post in others if second else True)]
    left.sort(key=lambda one: (-entropy(one), one.post))
    chosen: list[tuple[Post, Predicted]] = []
    vectors: list[Mapping[str, float]] = []
    passed: list[tuple[Post, Predicted]] = []
    for one in left[: n * _CANDIDATES]:
        if len(chosen) == n:
            break
        post = store.post(one.post)
        vector = _vector(f"{post.title} {post.body[:1_000]}")
        if any(_cosine(vector, other) > _TOO_ALIKE for other in vectors):
            passed.append((post, one))
        else:
            chosen.append((post, one))
            vectors.append(vector)
    return [*chosen, *passed][:n]


def _vector(text: str) -> dict[str, float]:
    said = features(text)
    length = math.sqrt(sum(count * count for count in said.values())) or 1.0
    return {word: count / length for word, count in said.items()}


def _cosine(one: Mapping[str, float], two: Mapping[str, float]) -> float:
    small, large = sorted((one, two), key=len)
    return sum(weight * large.get(word, 0.0) for word, weight in small.items())
