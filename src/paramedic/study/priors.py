"""Derives the base rates in knowledge/priors.json from study 1's public labels.

    python -m paramedic.study.priors faults.csv > src/paramedic/knowledge/priors.json

The labels are not shipped; the figures name their source and its SHA-256. Study 1 has no cause column, so cause
priors are the taxonomy's lists weighted by fix shares through each cause's usual fixes: judgement, and labelled so.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import Taxonomy, load_taxonomy

SOURCE = "study 1: gudiandian/TOSEM23-DistributedTraining, labels of 637 faults (arXiv 2112.06222)"
SMOOTHING = 0.5

# What interrupted 54 days of Llama 3 405B pre-training (arXiv 2407.21783, table 5): 419 unexpected interruptions.
CLUSTER_SOURCE = "Llama 3 405B, 419 unexpected interruptions in 54 days (arXiv 2407.21783, table 5)"
CLUSTER_COUNTS = {
    "hardware-fault": 268 + 14,  # GPU parts; then disks, power, chassis, expansion board, CPU, memory
    "network-fabric-fault": 35 + 7,  # switches and cables; network cards
    "preemption-or-scheduler-action": 32,  # host maintenance
    "framework-implementation-defect": 54,  # software bugs
    "dependency-version-conflict": 2,
}


def derive(faults: bytes, taxonomy: Taxonomy, crosswalk: Mapping[str, Any]) -> dict[str, Any]:
    fixes = count_fixes(csv.DictReader(io.StringIO(faults.decode("utf-8"))), crosswalk)
    lab = {s: _cause_prior(s, fixes.get(s, Counter()), taxonomy) for s in taxonomy.symptoms}
    return {
        "version": 1,
        "source": SOURCE,
        "source_sha256": hashlib.sha256(faults).hexdigest(),
        "cluster_source": CLUSTER_SOURCE,
        "note": "fixes are counted; causes are judgement (see paramedic/study/priors.py)",
        "faults": {s: sum(fixes[s].values()) for s in taxonomy.symptoms if s in fixes},
        "fixes": {s: dict(fixes[s].most_common()) for s in taxonomy.symptoms if s in fixes},
        "causes": {"lab": lab, "cluster": _cluster(lab)},
    }


def count_fixes(rows: Iterable[Mapping[str, str]], crosswalk: Mapping[str, Any]) -> dict[str, Counter[str]]:
    """Symptom → fix pattern → how often; a fault with two fixes of one pattern counts once for it."""
    symptom_of = {(x["stage"], x.get("group", ""), x["label"]): x["symptom"] for x in crosswalk["symptom"]}
    pattern_of = crosswalk["fix_pattern"]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for number, row in enumerate(rows, 2):
        label = (row["stage"], row["group"], row["symptom"])
        try:
            patterns = {pattern_of[fix.strip()] for fix in row["fixes"].split(";") if fix.strip()}
            counts[symptom_of[label]].update(patterns)
        except KeyError as missing:
            raise ParamedicError(f"faults line {number}: the crosswalk does not know {missing}") from None
    return counts


def _cause_prior(symptom: str, fixes: Counter[str], taxonomy: Taxonomy) -> dict[str, float]:
    """Position in the taxonomy's list (1, 1/2, 1/3, …) × the mean share of the cause's usual fixes."""
    total = sum(fixes.values()) + SMOOTHING * len(taxonomy.fix_patterns)
    share = {pattern: (fixes[pattern] + SMOOTHING) / total for pattern in taxonomy.fix_patterns}
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


def main(argv: list[str]) -> int:
    if len(argv) != 1:
        print("usage: python -m paramedic.study.priors faults.csv > priors.json", file=sys.stderr)
        return 2
    crosswalk = tomllib.loads(resources.files(__package__).joinpath("crosswalk.toml").read_text("utf-8"))
    try:
        print(json.dumps(derive(Path(argv[0]).read_bytes(), load_taxonomy(), crosswalk), indent=1))
    except (OSError, ParamedicError) as error:
        print(f"paramedic: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
