"""A framework's commonest failures, what cured them, and the first step against the likeliest cause."""

from __future__ import annotations

import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from paramedic.fix import general
from paramedic.knowledge.cures import load_cures
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.dirichlet import shares
from paramedic.study.faults import Seen

TOP = 10


@dataclass(frozen=True, slots=True)
class Cured:
    symptom: str
    stage: str
    definition: str
    faults: int
    share: float
    fix: str
    fix_share: float
    fix_low: float
    fix_high: float
    cause: str
    step: str
    days: float | None


def frameworks(faults: Sequence[Seen], least: int = 3) -> list[str]:
    counts = Counter(one.framework for one in faults if one.framework)
    return [name for name, n in sorted(counts.items(), key=lambda item: (-item[1], item[0])) if n >= least]


def top(faults: Sequence[Seen], framework: str = "") -> list[Cured]:
    mine = [one for one in faults if not framework or one.framework == framework]
    by_symptom: dict[str, list[Seen]] = defaultdict(list)
    for one in mine:
        by_symptom[one.symptom].append(one)
    order = sorted(by_symptom, key=lambda name: (-len(by_symptom[name]), id))[:TOP]
    return [_cured(by_symptom[id], len(mine)) for id in order]


def _cured(faults: Sequence[Seen], all: int) -> Cured:
    taxonomy, symptom = load_taxonomy(), faults[0].symptom
    fixes = Counter(fix for one in faults for fix in one.fixes)
    found = shares(fixes, taxonomy.fix_patterns)
    fix = max(found, key=lambda name: (found[name].mean, name)) if fixes else taxonomy.symptoms[symptom].fixes[0]
    causes: dict[str, float] = defaultdict(float)
    for one in faults:
        for cause, share in one.causes.items():
            causes[cause] += share
    fitting = [id for id in causes if fix in taxonomy.causes[id].fixes] or list(causes)
    cause = max(fitting, key=lambda name: (causes[name], name))
    days = [one.days for one in faults if one.days is not None]
    return Cured(
        symptom, faults[0].stage, taxonomy.symptoms[symptom].definition, len(faults), len(faults) / all, fix,
        found[fix].mean, found[fix].low, found[fix].high, cause, _step(cause),
        statistics.median(days) if days else None,
    )  # fmt: skip


def _step(cause: str) -> str:
    """In general: what a diagnosis would fill in is left out."""
    return re.sub(r"[:,]? ?\{\w+\}", "", general(load_cures()[cause].title))
