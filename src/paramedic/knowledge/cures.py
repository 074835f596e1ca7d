"""The first step against each root cause, for findings whose rule knows none for it; read from cures.toml."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from importlib import resources

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.model import Fix


@cache
def load_cures() -> Mapping[str, Fix]:
    data = tomllib.loads(resources.files(__package__).joinpath("cures.toml").read_text("utf-8"))
    causes = load_taxonomy().causes
    if set(data) != set(causes):
        raise ParamedicError(f"cures.toml: one cure for each cause; differs in {sorted(set(data) ^ set(causes))}")
    return {
        cause: Fix(causes[cause].fixes[0], cure["title"], "manual", cure["action"], cure.get("verify", ""), cause)
        for cause, cure in data.items()
    }
