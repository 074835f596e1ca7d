"""How good the classifiers are on posts they did not learn from, with intervals, beside two that anybody can have.

Two splits: by repository (each in turn is unknown) and by a hash of the post's address (five parts). All answers of a
split are scored together. An interval is the middle 95 % of 1,000 resamples of the posts.
"""

from __future__ import annotations

import hashlib
import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from paramedic.collect.posts import parts
from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.knowledge.wordings import NONE
from paramedic.study.label import Recipe, label_some
from paramedic.study.store import Post
from paramedic.study.words import Said

LEAST_POSTS = 20
OURS = ("shipped", "words")
BASELINES = ("majority", "tfidf")
_FOLDS = 5
_RESAMPLED = 1_000
Labelled = tuple[Post, str]
Pairs = list[tuple[str, str]]
"""(truth, answer) of each post, in one order for all classifiers."""


@dataclass(frozen=True, slots=True)
class Interval:
    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Quality:
    split: str
    classifier: str
    posts: int
    stage_f1: Interval
    stage_accuracy: Interval
    symptom_f1: Interval
    symptom_accuracy: Interval
    ahead: Interval | None
    """Symptom macro-F1 of the classifier that is shipped less this one's, on the same resamples."""


def score(labelled: Sequence[Labelled]) -> list[Quality]:
    if len(labelled) < LEAST_POSTS:
        raise ParamedicError(
            f"{len(labelled)} labelled posts with their text: too few to score ({LEAST_POSTS}); fetch `study1` and "
            "`linked`, or label some with --ask"
        )
    found: list[Quality] = []
    for split, fold in _SPLITS.items():
        if len({fold(post) for post, _ in labelled}) < 2:
            continue
        answers = {name: _answers(labelled, fold, name) for name in (*OURS, *BASELINES)}
        found += [_quality(split, name, answers) for name in answers]
    return found


def choice(found: Sequence[Quality]) -> str:
    """The simplest that no other beats for stages and symptoms in every split; the first is the simplest."""
    rows = {(one.split, one.classifier): one for one in found}
    splits = {one.split for one in found}

    def beats(one: str, other: str) -> bool:
        return all(
            rows[split, one].symptom_f1.value > rows[split, other].symptom_f1.value
            and rows[split, one].stage_f1.value > rows[split, other].stage_f1.value
            for split in splits
        )

    used = "majority"
    for name in ("tfidf", *OURS):
        used = name if beats(name, used) else used
    return used


def _by_hash(post: Post) -> str:
    return str(hashlib.sha256(post.id.encode()).digest()[0] % _FOLDS)


_SPLITS: dict[str, Callable[[Post], str]] = {"by repository": lambda post: post.origin, "by hash": _by_hash}


def _answers(labelled: Sequence[Labelled], fold: Callable[[Post], str], name: str) -> Pairs:
    folds: dict[str, list[int]] = defaultdict(list)
    for number, (post, _) in enumerate(labelled):
        folds[fold(post)].append(number)
    answered: dict[int, str] = {}
    for mine in folds.values():
        rest = [labelled[number] for number in range(len(labelled)) if number not in set(mine)]
        recipe = _recipe(name, tuple(said(post, symptom) for post, symptom in rest))
        for number, one in zip(mine, label_some([labelled[n][0] for n in mine], recipe), strict=True):
            answered[number] = one.symptom
    return [(labelled[n][1] or NONE, answered[n]) for n in range(len(labelled))]


def said(post: Post, symptom: str) -> Said:
    return symptom or NONE, parts(post.title, post.body).spoken


def _recipe(name: str, learnt: tuple[Said, ...]) -> Recipe:
    if name in BASELINES:
        return Recipe(name, learnt, logs=False, floor=False)
    return Recipe(name, learnt if name == "words" else ())


def _quality(split: str, name: str, answers: Mapping[str, Pairs]) -> Quality:
    pairs = answers[name]
    draws = [random.Random(seed).choices(range(len(pairs)), k=len(pairs)) for seed in range(_RESAMPLED)]
    staged = [(_stage(truth), _stage(answer)) for truth, answer in pairs]
    return Quality(
        split,
        name,
        len(pairs),
        _interval(macro_f1, staged, draws),
        _interval(_accuracy, staged, draws),
        _interval(macro_f1, pairs, draws),
        _interval(_accuracy, pairs, draws),
        None if name == OURS[0] else _ahead(answers[OURS[0]], pairs, draws),
    )


def _stage(symptom: str) -> str:
    return NONE if symptom == NONE else load_taxonomy().symptom(symptom).stage


def _interval(measure: Callable[[Pairs], float], pairs: Pairs, draws: Sequence[Sequence[int]]) -> Interval:
    return _middle(measure(pairs), [measure([pairs[n] for n in draw]) for draw in draws])


def _ahead(ours: Pairs, theirs: Pairs, draws: Sequence[Sequence[int]]) -> Interval:
    gaps = [macro_f1([ours[n] for n in draw]) - macro_f1([theirs[n] for n in draw]) for draw in draws]
    return _middle(macro_f1(ours) - macro_f1(theirs), gaps)


def _middle(value: float, drawn: list[float]) -> Interval:
    drawn.sort()
    low, high = drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn)) - 1]
    return Interval(round(value, 4), round(low, 4), round(high, 4))


def _accuracy(pairs: Pairs) -> float:
    return sum(truth == answer for truth, answer in pairs) / len(pairs)


def macro_f1(pairs: Pairs) -> float:
    """The mean over the labels that are true somewhere: a rare one counts as much as a common one."""
    right: dict[str, int] = defaultdict(int)
    true: dict[str, int] = defaultdict(int)
    given: dict[str, int] = defaultdict(int)
    for truth, answer in pairs:
        true[truth] += 1
        given[answer] += 1
        right[truth] += truth == answer
    return sum(2 * right[label] / (true[label] + given[label]) for label in true) / len(true)
