"""Study 1's labels in our vocabulary: 34 symptoms and 6 fix patterns."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.study.labels import Fault


@cache
def crosswalk() -> Mapping[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("crosswalk.toml").read_text("utf-8"))


@cache
def _symptoms() -> dict[tuple[str, str, str], str]:
    return {(x["stage"], x.get("group", ""), x["label"]): x["symptom"] for x in crosswalk()["symptom"]}


def symptom_of(fault: Fault) -> str:
    try:
        return _symptoms()[fault.stage, fault.group, fault.symptom]
    except KeyError:
        what = " / ".join(filter(None, (fault.stage, fault.group, fault.symptom)))
        raise ParamedicError(f"{fault.link}: the crosswalk does not know the symptom {what!r}") from None


def patterns_of(fault: Fault) -> frozenset[str]:
    """A fault with two fixes of one pattern counts once for it."""
    try:
        return frozenset(crosswalk()["fix_pattern"][fix] for fix in fault.fixes)
    except KeyError as missing:
        raise ParamedicError(f"{fault.link}: the crosswalk does not know the fix {missing}") from None


def count_fixes(faults: Iterable[Fault]) -> dict[str, Counter[str]]:
    """Symptom → fix pattern → how many faults."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in faults:
        counts[symptom_of(fault)].update(patterns_of(fault))
    return counts
