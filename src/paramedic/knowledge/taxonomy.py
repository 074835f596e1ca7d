"""The closed vocabulary: stages, symptoms, root causes, fix patterns, read from taxonomy.toml and cross-checked."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.model import Symptom


@dataclass(frozen=True, slots=True)
class Stage:
    id: str
    definition: str


@dataclass(frozen=True, slots=True)
class SymptomEntry:
    id: Symptom
    definition: str
    boundary: str
    distributed_specific: bool
    causes: tuple[str, ...]
    fixes: tuple[str, ...]
    signals: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class CauseEntry:
    id: str
    area: str
    definition: str
    fixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FixPattern:
    id: str
    definition: str


@dataclass(frozen=True, slots=True)
class Taxonomy:
    stages: Mapping[str, Stage]
    symptoms: Mapping[str, SymptomEntry]
    causes: Mapping[str, CauseEntry]
    fix_patterns: Mapping[str, FixPattern]

    def symptom(self, id: str) -> Symptom:
        return self.symptoms[id].id


@cache
def load_taxonomy() -> Taxonomy:
    text = resources.files(__package__).joinpath("taxonomy.toml").read_text("utf-8")
    taxonomy = parse_taxonomy(tomllib.loads(text))
    sizes = tuple(map(len, (taxonomy.stages, taxonomy.symptoms, taxonomy.causes, taxonomy.fix_patterns)))
    if sizes != (6, 34, 28, 6):
        raise ParamedicError(f"taxonomy.toml: the vocabulary is 6 / 34 / 28 / 6, found {sizes}")
    return taxonomy


def parse_taxonomy(data: Mapping[str, Any]) -> Taxonomy:
    if data.get("version") != 1:
        raise ParamedicError(f"taxonomy.toml: version 1 expected, found {data.get('version')!r}")
    stages = {x["id"]: Stage(x["id"], x["definition"]) for x in data["stage"]}
    patterns = {x["id"]: FixPattern(x["id"], x["definition"]) for x in data["fix_pattern"]}
    causes = {x["id"]: CauseEntry(x["id"], x["area"], x["definition"], tuple(x["fixes"])) for x in data["cause"]}
    symptoms = {
        x["id"]: SymptomEntry(
            id=Symptom(x["id"], x["stage"]),
            definition=x["definition"],
            boundary=x.get("boundary", ""),
            distributed_specific=x["distributed_specific"],
            causes=tuple(x["causes"]),
            fixes=tuple(x["fixes"]),
            signals={kind: tuple(texts) for kind, texts in x["signals"].items()},
        )
        for x in data["symptom"]
    }
    taxonomy = Taxonomy(stages, symptoms, causes, patterns)
    _cross_check(taxonomy)
    return taxonomy


def _cross_check(taxonomy: Taxonomy) -> None:
    def known(owner: str, ids: tuple[str, ...], among: Mapping[str, object], what: str) -> None:
        for id in ids:
            if id not in among:
                raise ParamedicError(f"taxonomy.toml: {owner} names the unknown {what} {id!r}")

    for entry in taxonomy.symptoms.values():
        known(entry.id, (entry.id.stage,), taxonomy.stages, "stage")
        known(entry.id, entry.causes, taxonomy.causes, "cause")
        known(entry.id, entry.fixes, taxonomy.fix_patterns, "fix pattern")
    for cause in taxonomy.causes.values():
        known(cause.id, cause.fixes, taxonomy.fix_patterns, "fix pattern")
