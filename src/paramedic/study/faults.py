"""All faults that are known here, of study 1, of raters and of the classifier, in one form for the report."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paramedic.knowledge.priors import load_priors
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.knowledge.wordings import NONE
from paramedic.study.crosswalk import patterns_of, symptom_of
from paramedic.study.fetch import RATER
from paramedic.study.labels import Study1
from paramedic.study.store import Store

OF_STUDY, OF_RATER, OF_CLASSIFIER = "study 1", "rater", "classifier"


@dataclass(frozen=True, slots=True)
class Seen:
    """One fault of one post."""

    post: str
    by: str
    """Who says so: study 1, a rater, or the classifier."""
    framework: str
    symptom: str
    fixes: tuple[str, ...]
    cause: str = ""
    distributed: float = 0.0
    created: datetime | None = None
    resolved: datetime | None = None
    release: str = ""

    @property
    def stage(self) -> str:
        return load_taxonomy().symptom(self.symptom).stage

    @property
    def days(self) -> float | None:
        if self.created is None or self.resolved is None or self.resolved < self.created:
            return None
        return (self.resolved - self.created).total_seconds() / 86_400

    @property
    def causes(self) -> Mapping[str, float]:
        """What was said, else the base rates (judgement)."""
        return {self.cause: 1.0} if self.cause else load_priors().cause(self.symptom, "lab")


def collect(study: Study1 | None, store: Store | None) -> list[Seen]:
    dates = _dates(store) if store else {}
    found = list(_of_study(study, dates)) if study else []
    if store:
        known = {one.post for one in found} | {one.post for one in store.labels(RATER)}
        found += [one for one in _of_store(store, dates) if one.post not in known]
    return sorted(found, key=lambda one: (one.by, one.post, one.symptom))


def _of_study(study: Study1, dates: Mapping[str, tuple[Any, ...]]) -> Iterable[Seen]:
    for fault in study.faults:
        created, resolved, release, _ = dates.get(fault.link, (None, None, "", ""))
        yield Seen(
            fault.link, OF_STUDY, _framework(fault.origin), symptom_of(fault), tuple(sorted(patterns_of(fault))), "",
            float(fault.distributed), created, resolved, release,
        )  # fmt: skip


def _framework(origin: str) -> str:
    """`GitHub-horovod`, `SO-tensorflow & SO-keras`: the first named."""
    return origin.split(" & ", maxsplit=1)[0].split("-", 1)[-1].lower()


def _dates(store: Store) -> dict[str, tuple[Any, ...]]:
    """When a post was written and resolved, of which release that was then, and what it is about."""
    releases: dict[str, list[tuple[datetime, str]]] = defaultdict(list)
    for repository, tag, published in store.query("SELECT repository, tag, published FROM releases ORDER BY published"):
        releases[f"github:{repository}"].append((published, tag))
    return {
        id: (created, resolved, _release(releases[origin], created), framework)
        for id, origin, framework, created, resolved in store.query(
            "SELECT id, origin, framework, created, resolved FROM posts WHERE state <> 'gone'"
        )
    }


def _release(releases: Sequence[tuple[datetime, str]], at: datetime | None) -> str:
    """The newest one that was out."""
    place = bisect_right(releases, (at, "\uffff")) if at else 0
    return releases[place - 1][1] if place else ""


def _of_store(store: Store, dates: Mapping[str, tuple[Any, ...]]) -> Iterable[Seen]:
    """A rater's word counts before the classifier's; the first by name, where several have said one."""
    given = {one.post: one for one in reversed(store.labels()) if one.rater != RATER}
    duplicates = {row[0] for row in store.query("SELECT id FROM posts WHERE state = 'duplicate'")}
    for post, one in sorted(given.items()):
        if one.symptom and post in dates and post not in duplicates:
            created, resolved, release, framework = dates[post]
            fixes = (one.fix,) if one.fix else ()
            yield Seen(
                post, OF_RATER, framework, one.symptom, fixes, one.cause, float(bool(one.distributed)),
                created, resolved, release,
            )  # fmt: skip
    for guess in store.predictions():
        if guess.symptom != NONE and guess.post not in given and guess.post in dates and guess.post not in duplicates:
            created, resolved, release, framework = dates[guess.post]
            yield Seen(
                guess.post, OF_CLASSIFIER, framework, guess.symptom, (guess.fix,), guess.cause, guess.distributed,
                created, resolved, release,
            )  # fmt: skip


def together(faults: Iterable[Seen]) -> Counter[tuple[str, str]]:
    """How many posts have both symptoms, for every two."""
    by_post: dict[str, set[str]] = defaultdict(set)
    for one in faults:
        by_post[one.post].add(one.symptom)
    found: Counter[tuple[str, str]] = Counter()
    for symptoms in by_post.values():
        for first in symptoms:
            for second in symptoms:
                if first < second:
                    found[first, second] += 1
    return found
