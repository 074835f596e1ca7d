"""Which causes are worth another attempt, read from retries.toml: an entry for each of the 28."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy

Action = Literal["retry", "replan"]


@dataclass(frozen=True, slots=True)
class Retry:
    why: str
    times: int
    action: Action = "retry"
    exclude: bool = False
    repeats: int = 0
    wait: float = 0.0


@cache
def load_retries() -> Mapping[str, Retry]:
    text = resources.files(__package__).joinpath("retries.toml").read_text("utf-8")
    found = {cause: Retry(**entry) for cause, entry in tomllib.loads(text).items()}
    causes = load_taxonomy().causes
    if found.keys() != causes.keys():
        raise ParamedicError(f"retries.toml: not the taxonomy's causes: {sorted(found.keys() ^ causes.keys())}")
    return found
