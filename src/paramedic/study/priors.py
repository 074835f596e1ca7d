"""The base rates in knowledge/priors.json, derived from study 1's public labels and from raters' labels of one's own.

The labels are not shipped; the figures name their source and its SHA-256. Study 1 has no cause column, so cause
priors are the taxonomy's lists weighted by fix shares through each cause's usual fixes: judgement, and labelled so.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paramedic.knowledge.taxonomy import Taxonomy, load_taxonomy
from paramedic.study.crosswalk import count_fixes, symptom_of
from paramedic.study.dirichlet import SMOOTHING, shares
from paramedic.study.labels import Study1

SOURCE = "study 1: gudiandian/TOSEM23-DistributedTraining, labels of 637 faults (arXiv 2112.06222)"

# What interrupted 54 days of Llama 3 405B pre-training (arXiv 2407.21783, table 5): 419 unexpected interruptions.
CLUSTER_SOURCE = "Llama 3 405B, 419 unexpected interruptions in 54 days (arXiv 2407.21783, table 5)"
CLUSTER_COUNTS = {
    "hardware-fault": 268 + 14,  # GPU parts; then disks, power, chassis, expansion board, CPU, memory
    "network-fabric-fault": 35 + 7,  # switches and cables; network cards
    "preemption-or-scheduler-action": 32,  # host maintenance
    "framework-implementation-defect": 54,  # software bugs
    "dependency-version-conflict": 2,
}

Fixes = Mapping[str, Counter[str]]
"""Symptom → fix pattern → how many faults it cured."""


def derive(study: Study1, added: Fixes | None = None, taxonomy: Taxonomy | None = None) -> dict[str, Any]:
    """`added` are faults that raters of one's own have labelled with symptom and fix."""
    taxonomy = taxonomy or load_taxonomy()
    fixes, faults = count_fixes(study.faults), Counter(map(symptom_of, study.faults))
    for symptom, counts in (added or {}).items():
        fixes.setdefault(symptom, Counter()).update(counts)
        faults[symptom] += sum(counts.values())
    lab = {s: _cause_prior(s, fixes.get(s, Counter()), taxonomy) for s in taxonomy.symptoms}
    more = sum(sum(counts.values()) for counts in (added or {}).values())
    return {
        "version": 1,
        "source": SOURCE + (f"; and {more} labels of raters" if more else ""),
        "source_sha256": study.faults_sha256,
        "cluster_source": CLUSTER_SOURCE,
        "note": "fixes are counted; causes are judgement (see paramedic/study/priors.py)",
        "faults": {s: faults[s] for s in taxonomy.symptoms if s in fixes},
        "fixes": {s: dict(fixes[s].most_common()) for s in taxonomy.symptoms if s in fixes},
        "fix_shares": {s: _shares(fixes[s], taxonomy) for s in taxonomy.symptoms if s in fixes},
        "causes": {"lab": lab, "cluster": _cluster(lab)},
    }


def _shares(fixes: Mapping[str, int], taxonomy: Taxonomy) -> dict[str, list[float]]:
    """[mean, low, high] of each pattern's share of the cures: Dirichlet, the middle 95 %."""
    found = shares(fixes, taxonomy.fix_patterns)
    return {pattern: [one.mean, one.low, one.high] for pattern, one in found.items()}


def _cause_prior(symptom: str, fixes: Mapping[str, int], taxonomy: Taxonomy) -> dict[str, float]:
    """Position in the taxonomy's list (1, 1/2, 1/3, …) × the mean share of the cause's usual fixes."""
    total = sum(fixes.values()) + SMOOTHING * len(taxonomy.fix_patterns)
    share = {pattern: (fixes.get(pattern, 0) + SMOOTHING) / total for pattern in taxonomy.fix_patterns}
    weight = {}
    for position, cause in enumerate(taxonomy.symptoms[symptom].causes, 1):
        usual = taxonomy.causes[cause].fixes
        weight[cause] = sum(share[pattern] for pattern in usual) / len(usual) / position
    return _normalised(weight)


def _cluster(lab: Mapping[str, Mapping[str, float]]) -> dict[str, dict[str, float]]:
    """The geometric mean of the lab's prior and one re-weighted by how much commoner a cause is in production."""
    total = sum(CLUSTER_COUNTS.values())
    lab_share = Counter[str]()
    for prior in lab.values():
        lab_share.update(prior)
    factor = {c: (CLUSTER_COUNTS.get(c, 1) / total) / (n / len(lab)) for c, n in lab_share.items()}
    return {s: _normalised({c: p * factor[c] ** 0.5 for c, p in prior.items()}) for s, prior in lab.items()}


def _normalised(weight: Mapping[str, float]) -> dict[str, float]:
    total = sum(weight.values())
    return {c: round(w / total, 4) for c, w in sorted(weight.items(), key=lambda item: -item[1])}


def dumps(priors: Mapping[str, Any]) -> str:
    return json.dumps(priors, indent=1) + "\n"


@dataclass(frozen=True, slots=True)
class Change:
    symptom: str
    what: str
    before: float
    after: float
    beyond: bool
    """Outside the middle 95 % of what it was before: more than chance."""


def changes(before: Mapping[str, Any], after: Mapping[str, Any], least: float = 0.005) -> list[Change]:
    """Shares of fixes and of causes (lab) that differ, the largest first."""
    found: list[Change] = []
    for symptom in after["causes"]["lab"]:
        old, new = before.get("fix_shares", {}).get(symptom, {}), after["fix_shares"].get(symptom, {})
        for pattern in sorted(set(old) | set(new)):
            mean, low, high = old.get(pattern, (0.0, 0.0, 1.0))
            then = new.get(pattern, (0.0, 0.0, 1.0))[0]
            found.append(Change(symptom, pattern, mean, then, not low <= then <= high))
        causes, causes_then = before["causes"]["lab"].get(symptom, {}), after["causes"]["lab"][symptom]
        for cause in sorted(set(causes) | set(causes_then)):
            found.append(Change(symptom, cause, causes.get(cause, 0.0), causes_then.get(cause, 0.0), False))
    moved = [one for one in found if abs(one.after - one.before) >= least]
    return sorted(moved, key=lambda one: (-abs(one.after - one.before), one.symptom, one.what))
