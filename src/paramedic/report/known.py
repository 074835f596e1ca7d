"""What the knowledge says about the ids in a report; an id it does not have has no definition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paramedic.knowledge import Knowledge, Rule, Taxonomy


@dataclass(frozen=True, slots=True)
class Known:
    taxonomy: Taxonomy
    rules: Mapping[str, Rule]

    @classmethod
    def of(cls, knowledge: Knowledge | None) -> Known:
        """The knowledge given, or else the package's own."""
        return cls(knowledge.taxonomy, knowledge.rules) if knowledge else _own()

    def stage(self, id: str) -> str:
        entry = self.taxonomy.stages.get(id)
        return entry.definition if entry else ""

    def symptom(self, id: str) -> str:
        entry = self.taxonomy.symptoms.get(id)
        return entry.definition if entry else ""

    def boundary(self, id: str) -> str:
        entry = self.taxonomy.symptoms.get(id)
        return entry.boundary if entry else ""

    def cause(self, id: str) -> str:
        entry = self.taxonomy.causes.get(id)
        return entry.definition if entry else ""

    def pattern(self, id: str) -> str:
        entry = self.taxonomy.fix_patterns.get(id)
        return entry.definition if entry else ""


@cache
def _own() -> Known:
    from paramedic import knowledge

    loaded = knowledge.load()
    return Known(loaded.taxonomy, loaded.rules)
