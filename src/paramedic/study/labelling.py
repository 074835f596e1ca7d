"""Labelling a whole store: which classifier, which posts, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from itertools import combinations

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.agreement import Agreement, agreement
from paramedic.study.engines import labelled
from paramedic.study.label import Recipe
from paramedic.study.quality import said
from paramedic.study.store import Given, Store

CHUNK = 200
_BEST = "classifier"


@dataclass(frozen=True, slots=True)
class Done:
    model: str
    new: int
    symptoms: dict[str, int]
    """Of all posts that are classified, the commonest first."""


def choose(store: Store, kind: str | None = None) -> str:
    """The classifier that scored best here, once that was measured; until then the words that the package knows."""
    if kind is not None:
        store.about(_BEST, kind)
    return store.about(_BEST) or "shipped"


def recipe_of(store: Store, model: str = "auto") -> Recipe:
    kind = choose(store) if model == "auto" else model
    if kind == "shipped":
        return Recipe()
    return Recipe(kind, tuple(said(post, symptom) for post, symptom in store.labelled_texts()))


def classify(
    store: Store,
    recipe: Recipe,
    progress: Callable[[int], None] = lambda n: None,
    *,
    engine: str = "local",
    workers: int = 1,
    again: bool = False,
) -> Done:
    """New posts only, unless `again`. Each chunk is stored as it comes: stopped, it goes on from there."""
    if again:
        store.query("DELETE FROM predictions")
    new = 0
    for chunk in labelled(store.posts(CHUNK, recipe.name), recipe, engine, workers):
        with store.together():
            store.put_predictions(chunk)
        new += len(chunk)
        progress(new)
    rows = store.query("SELECT symptom, count(*) FROM predictions GROUP BY symptom ORDER BY 2 DESC, 1")
    return Done(recipe.name, new, {symptom: int(n) for symptom, n in rows})


_PARTS: dict[str, Callable[[Given], Hashable]] = {
    "stage": lambda one: _stage(one.symptom),
    "symptom": lambda one: one.symptom,
    "cause": lambda one: one.cause or None,
    "fix": lambda one: one.fix or None,
    "distributed": lambda one: one.distributed,
}


def _stage(symptom: str) -> str:
    return load_taxonomy().symptom(symptom).stage if symptom else ""


def agreements(store: Store) -> list[tuple[str, str, list[Agreement]]]:
    """Every two raters, over the posts that both have labelled; what either left open is no pair."""
    by_rater: dict[str, dict[str, Given]] = {}
    for one in store.labels():
        by_rater.setdefault(one.rater, {})[one.post] = one
    found = []
    for first, second in combinations(sorted(by_rater), 2):
        both = sorted(set(by_rater[first]) & set(by_rater[second]))
        pairs = [(by_rater[first][post], by_rater[second][post]) for post in both]
        if pairs:
            found.append((first, second, [_agreed(what, get, pairs) for what, get in _PARTS.items()]))
    return found


def _agreed(what: str, get: Callable[[Given], Hashable], pairs: list[tuple[Given, Given]]) -> Agreement:
    values = [(get(one), get(two)) for one, two in pairs]
    return agreement(what, [(one, two) for one, two in values if one is not None and two is not None])
