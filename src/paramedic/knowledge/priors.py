"""Base rates: how often a fix cured a symptom (counted), and how likely a cause is given a symptom (judgement)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

Setting = Literal["lab", "cluster"]


@dataclass(frozen=True, slots=True)
class Priors:
    source: str
    source_sha256: str
    cluster_source: str
    faults: Mapping[str, int]
    """How many faults of the study had each symptom; those of the other study's systems are not among them."""
    fixes: Mapping[str, Mapping[str, int]]
    causes: Mapping[str, Mapping[str, Mapping[str, float]]]

    def cause(self, symptom: str, setting: Setting) -> Mapping[str, float]:
        """P(cause | symptom) before any evidence; sums to 1 over the taxonomy's causes of that symptom."""
        return self.causes[setting][symptom]


@cache
def load_priors() -> Priors:
    data = json.loads(resources.files(__package__).joinpath("priors.json").read_text("utf-8"))
    return Priors(**{name: data[name] for name in Priors.__slots__})
