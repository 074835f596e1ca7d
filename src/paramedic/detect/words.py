"""Which symptom words speak for: a linear classifier over words and pairs of words.

It was learnt beforehand, from `knowledge/wordings.py` by `python bench/words.py`; `knowledge/words.tsv` has for each
feature the symptoms that it speaks for or against. Nothing is fetched, nothing of a text is executed.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from importlib import resources
from itertools import pairwise
from typing import NamedTuple

from paramedic.regex import regex

MOST = 4_000
"""Characters that are read: what fails is said early."""
_WORD = regex(r"[a-z]+[a-z0-9]*|\b(?:13[4579]|143|40[134])\b")
_FIRST = regex(r"[a-z]{1,20}")
_UNSPACED = regex(r"[\u4e00-\u9fff]{2,}")
"""Chinese has no spaces between words: its pairs of signs are taken for them."""
_COMMON_WORDS = """
a an the of to in on at is are was were be been it its this that and or but i my me we our you your he they with by as
from for so just very really also have has had do does did will would there which what all any some when while if then
than too can could horovod pytorch torch tensorflow deepspeed megatron lightning accelerate colossalai bug
"""
_COMMON = frozenset(_COMMON_WORDS.split())
"""Words that say nothing of what failed, the frameworks' names among them."""
_ENDINGS = ("ations", "ation", "ingly", "ings", "ing", "edly", "ies", "ied", "ed", "es", "s", "ly", "e")


def shares(*parts: str, weights: Sequence[float] = ()) -> dict[str, float]:
    """How likely each symptom is meant, and `none`, by one text or by several of which each has its weight."""
    model = learnt()
    scores = [0.0] * len(model.symptoms)
    for part, weight in zip(parts, weights or (model.sharpness,) * len(parts), strict=True):
        for at, score in enumerate(model.scores(features(part))):
            scores[at] += weight * score
    top = max(scores)
    powers = [math.exp(score - top) for score in scores]
    total = sum(powers)
    return {symptom: power / total for symptom, power in zip(model.symptoms, powers, strict=True)}


class Feature(NamedTuple):
    weight: float
    """The rarer, the heavier."""
    speaks: tuple[tuple[int, float], ...]
    """For (and, below 0, against) the symptom of this number."""


class Learnt(NamedTuple):
    made_of: str
    symptoms: tuple[str, ...]
    sharpness: float
    """Of the scores of a short text, so that a probability is the share that is right."""
    base: tuple[float, ...]
    unseen: float
    features: Mapping[str, Feature]

    def scores(self, said: Mapping[str, int]) -> list[float]:
        """Words that nobody has used yet count in a text's length: they make every answer less sure."""
        scores, size = [0.0] * len(self.symptoms), 0.0
        for name, count in said.items():
            known = self.features.get(name)
            weight = math.log1p(count) * (known.weight if known else self.unseen)
            size += weight * weight
            for at, speaks in known.speaks if known else ():
                scores[at] += weight * speaks
        length = math.sqrt(size) or 1.0
        return [score / length + base for score, base in zip(scores, self.base, strict=True)]


@cache
def learnt() -> Learnt:
    return parsed(resources.files("paramedic.knowledge").joinpath("words.tsv").read_text("utf-8"))


def parsed(text: str) -> Learnt:
    """As `written` has it: what it was made of, the symptoms, their base, the rest, and a line for each feature."""
    made_of, symptoms, base, rest, *lines = text.rstrip("\n").split("\n")
    sharpness, unseen = map(float, rest.split("\t"))
    found = {}
    for line in lines:
        name, weight, *speaks = line.split("\t")
        pairs = [one.split(":") for one in speaks]
        found[name] = Feature(float(weight), tuple([(int(at), float(value)) for at, value in pairs]))
    return Learnt(made_of, tuple(symptoms.split("\t")), sharpness, tuple(map(float, base.split("\t"))), unseen, found)


def written(model: Learnt) -> str:
    rows = (
        "\t".join([name, f"{one.weight:.2f}", *(f"{at}:{value:.1f}" for at, value in one.speaks)])
        for name, one in sorted(model.features.items())
    )
    head = (model.made_of, "\t".join(model.symptoms), "\t".join(f"{one:.2f}" for one in model.base))
    return "\n".join([*head, f"{model.sharpness}\t{model.unseen:.2f}", *rows, ""])


def features(text: str, whole: bool = True) -> dict[str, int]:
    """Stems and pairs of them, without the commonest words; of a `whole` message its first word, too: how, what, is."""
    text = text[:MOST].lower().replace("can not", "cannot").replace("n't", " not")
    words = [word for word in map(_stem, _WORD.findall(text)) if word]
    said = Counter(words)
    said.update(f"{one} {two}" for one, two in pairwise(words))
    said.update(f"{one}{two}" for run in _UNSPACED.findall(text) for one, two in pairwise(run))
    if whole and (first := _FIRST.search(text)):
        said[f"^{first[0]}"] += 1
    return said


@lru_cache(20_000)
def _stem(word: str) -> str:
    if word in _COMMON:
        return ""
    word = next((word[: -len(end)] for end in _ENDINGS if word.endswith(end) and len(word) - len(end) >= 3), word)
    return word[:-1] if len(word) > 4 and word[-1] == word[-2] and word[-1] not in "ls" else word
