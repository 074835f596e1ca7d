"""A post → stage, symptom, cause, fix pattern and whether it takes several devices to fail so, with probabilities.

What the post quotes goes through the same engine as `paramedic diagnose`; what its writer says goes to a text
classifier. A verdict of the engine takes its confidence's share, the words share out the rest.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from paramedic import __version__
from paramedic.collect.posts import parts
from paramedic.detect.description import LEAST
from paramedic.knowledge import Knowledge, load
from paramedic.knowledge.priors import load_priors
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.knowledge.wordings import NONE
from paramedic.model import Report
from paramedic.pipeline import Options, compile_prefilter, examine, read
from paramedic.prefilter import Prefilter
from paramedic.study.dirichlet import shares as with_prior
from paramedic.study.store import Post, Predicted
from paramedic.study.tables import shipped
from paramedic.study.words import Classifier, Said, trained

_OTHERS = 4
_TELLING = ("line", "traceback", "exit")
_MEMORY = "/dev/shm"
"""A file system in memory: the engine reads files, and a disk would be the slowest part."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """All that a worker needs to label as every other does."""

    kind: str = "shipped"
    said: tuple[Said, ...] = ()
    logs: bool = True
    """Whether quoted text goes through the engine."""
    floor: bool = True
    """Whether a symptom that is hardly likely counts as none."""

    @property
    def name(self) -> str:
        told = json.dumps([__version__, self.kind, self.logs, self.floor, self.said])
        return f"{self.kind}-{hashlib.sha256(told.encode()).hexdigest()[:12]}"


@dataclass(frozen=True, slots=True)
class Labeller:
    recipe: Recipe
    knowledge: Knowledge
    prefilter: Prefilter
    classifier: Classifier

    def label(self, post: Post, folder: Path) -> Predicted:
        text = parts(post.title, post.body)
        report = self._diagnosed(text.quoted, folder) if self.recipe.logs else None
        symptoms = self._symptoms(text.spoken, report)
        best = max(symptoms, key=lambda name: (symptoms[name], name), default=NONE)
        if best == NONE or (self.recipe.floor and symptoms[best] < LEAST):
            return _none(post, symptoms, self.recipe.name)
        return _predicted(post, symptoms, best, report, self.recipe.name)

    def _diagnosed(self, text: str, folder: Path) -> Report | None:
        """None where nothing that anybody looks for stands in it: most posts quote no log."""
        data = text.encode("utf-8", "replace")
        if not self.prefilter.scan(data):
            return None
        file = folder / "post.log"
        file.write_bytes(data)
        run = read([str(file)], self.prefilter)
        if not any(event.kind in _TELLING for event in run.events):
            return None
        return examine(run, self.knowledge, self.prefilter, Options())

    def _symptoms(self, spoken: str, report: Report | None) -> dict[str, float]:
        words = self.classifier.shares(spoken)
        verdict = report.verdict if report else None
        if verdict is None:
            return words
        sure = verdict.confidence
        mixed = {id: (1 - sure) * share for id, share in words.items()}
        mixed[str(verdict.symptom)] = mixed.get(str(verdict.symptom), 0.0) + sure
        return mixed


@lru_cache(4)
def labeller(recipe: Recipe) -> Labeller:
    knowledge = load()
    return Labeller(recipe, knowledge, compile_prefilter(knowledge), trained(recipe.kind, recipe.said))


def label_some(posts: Sequence[Post], recipe: Recipe) -> list[Predicted]:
    """The unit of work, whatever engine runs it: the same posts give the same labels everywhere."""
    ours = labeller(recipe)
    with tempfile.TemporaryDirectory(prefix="paramedic-", dir=_MEMORY if os.path.isdir(_MEMORY) else None) as folder:
        return [ours.label(post, Path(folder)) for post in posts]


def _none(post: Post, symptoms: Mapping[str, float], model: str) -> Predicted:
    return Predicted(
        post.id, NONE, "", round(symptoms.get(NONE, 0.0), 4), "words", others=_others(symptoms, NONE), model=model
    )


def _predicted(post: Post, symptoms: Mapping[str, float], best: str, report: Report | None, model: str) -> Predicted:
    verdict = report.verdict if report else None
    by_log = verdict is not None and str(verdict.symptom) == best
    causes = {one.id: one.probability for one in verdict.causes} if verdict and by_log else {}
    causes = causes or dict(load_priors().cause(best, "lab"))
    cause = max(causes, key=lambda name: (causes[name], name))
    fixes = _fixes(best)
    fix = max(fixes, key=lambda name: (fixes[name], name))
    return Predicted(
        post=post.id,
        symptom=best,
        stage=load_taxonomy().symptom(best).stage,
        probability=round(symptoms[best], 4),
        evidence="log" if by_log else "words",
        cause=cause,
        cause_probability=round(causes[cause], 4),
        fix=fix,
        fix_probability=round(fixes[fix], 4),
        distributed=round(_distributed(best), 4),
        others=_others(symptoms, best),
        model=model,
    )


def _others(symptoms: Mapping[str, float], best: str) -> str:
    rest = sorted(((share, id) for id, share in symptoms.items() if id != best), reverse=True)[:_OTHERS]
    return json.dumps({id: round(share, 4) for share, id in rest})


@lru_cache(64)
def _fixes(symptom: str) -> dict[str, float]:
    """Counted cures where study 1 has this symptom; else the taxonomy's list, the first the likeliest (judgement)."""
    patterns = load_taxonomy().fix_patterns
    counted = load_priors().fixes.get(symptom)
    if counted:
        return {id: share.mean for id, share in with_prior(counted, patterns).items()}
    usual = load_taxonomy().symptoms[symptom].fixes
    weight = {id: 1 / (usual.index(id) + 1) if id in usual else 0.1 for id in patterns}
    return {id: one / sum(weight.values()) for id, one in weight.items()}


def _distributed(symptom: str) -> float:
    """The share of study 1's faults with this symptom that take several devices; else as the taxonomy has it."""
    counted = shipped()["crosswalk"]
    n = counted["symptoms"].get(symptom, 0)
    known = 0.9 if load_taxonomy().symptoms[symptom].distributed_specific else 0.3
    return float((counted["distributed-specific"].get(symptom, 0) + known) / (n + 1))
