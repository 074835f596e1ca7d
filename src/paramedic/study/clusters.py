"""Posts that fit no symptom, grouped by their words: a failure that the taxonomy lacks, or no failure at all."""

from __future__ import annotations

from dataclasses import dataclass

from paramedic.collect.posts import parts
from paramedic.knowledge.wordings import NONE
from paramedic.study.needed import needed
from paramedic.study.store import Store

UNSURE = 0.3
_MOST = 20_000
_DIMENSIONS = 50


@dataclass(frozen=True, slots=True)
class Cluster:
    size: int
    words: tuple[str, ...]
    titles: tuple[str, ...]
    """Nearest to its middle."""


def outside(store: Store) -> list[tuple[str, str]]:
    """(title, text) of posts without a symptom, or with one that is hardly likely."""
    sql = (
        "SELECT o.title, o.body FROM posts o JOIN predictions p ON p.post = o.id "
        f"WHERE p.symptom = '{NONE}' OR p.probability < {UNSURE} ORDER BY o.id LIMIT {_MOST}"
    )
    return [(title, parts(title, body).spoken) for title, body in store.query(sql)]


def clusters(texts: list[tuple[str, str]], least: int = 5) -> list[Cluster]:
    """Dense groups only (HDBSCAN over TF-IDF); most posts belong to none, and are not forced into one."""
    if len(texts) < 2 * least:
        return []
    vectorise = needed("sklearn.feature_extraction.text").TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, min_df=2, max_df=0.8, stop_words="english", max_features=20_000
    )
    try:
        matrix = vectorise.fit_transform([text for _, text in texts])
    except ValueError:  # no word is used twice
        return []
    names = vectorise.get_feature_names_out()
    if matrix.shape[1] > _DIMENSIONS + 1:
        reduce = needed("sklearn.decomposition").TruncatedSVD(min(_DIMENSIONS, len(texts) - 1), random_state=0)
        points = needed("sklearn.preprocessing").normalize(reduce.fit_transform(matrix))
    else:
        points = matrix.toarray()
    group = needed("sklearn.cluster").HDBSCAN(min_cluster_size=least, copy=True).fit(points).labels_
    found = []
    for label in sorted(set(group) - {-1}):
        rows = [n for n, one in enumerate(group) if one == label]
        middle = matrix[rows].mean(axis=0).A1
        words = tuple(str(names[n]) for n in middle.argsort()[::-1][:6])
        close = sorted(rows, key=lambda n: (-float((matrix[n] @ middle)[0]), n))
        found.append(Cluster(len(rows), words, tuple(texts[n][0] for n in close[:3])))
    return sorted(found, key=lambda one: (-one.size, one.words))
