"""Study 1's tables, recomputed from its labels, each figure beside what the paper states."""

from __future__ import annotations

import json
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cache
from importlib import resources
from typing import Any

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.agreement import by_round, unpaired
from paramedic.study.crosswalk import patterns_of, symptom_of
from paramedic.study.labels import Fault, Study1, category, topic

FIRST_TWO = ("version-and-dependency-management", "distributed-feature-api-and-communication-tuning")
STAGES = (
    "package build & import",
    "communication setup",
    "data and model preparation",
    "training & evaluation",
)
Counts = dict[str, Any]


def derive(study: Study1) -> Counts:
    """All counts, in an order that depends on the labels alone."""
    faults = study.faults
    links = {fault.link for fault in faults}
    return {
        "version": 1,
        "source": "study 1: gudiandian/TOSEM23-DistributedTraining (Apache-2.0), arXiv 2112.06222",
        "faults_sha256": study.faults_sha256,
        "totals": {
            "issues": len(faults) + len(study.questions),
            "faults": len(faults),
            "how-to questions": len(study.questions),
            "posts with a fault": len(links),
            "distributed-specific faults": sum(fault.distributed for fault in faults),
            "symptom categories": len({category(fault.symptom) for fault in faults}),
            "faults with several fixes": sum(len(fault.fixes) > 1 for fault in faults),
        },
        "stages": _stages(faults),
        "symptoms": _ordered(Counter(category(fault.symptom) for fault in faults)),
        "labels": _labels(faults),
        "fixes": _ordered(Counter(fix for fault in faults for fix in fault.fixes)),
        "origins": _ordered(Counter(fault.origin for fault in faults)),
        "how_to": _topics(study),
        "kappa": _kappa(study),
        "crosswalk": _crosswalk(faults),
    }


def _ordered(counts: Mapping[str, int]) -> dict[str, int]:
    """The most frequent first, then by name."""
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _stages(faults: Sequence[Fault]) -> dict[str, dict[str, int]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in faults:
        found[fault.stage].update({"faults": 1, "distributed-specific": int(fault.distributed)})
    order = [*STAGES, *sorted(set(found) - set(STAGES))]
    return {stage: dict(found[stage]) for stage in order if stage in found}


def _labels(faults: Sequence[Fault]) -> list[dict[str, Any]]:
    groups: dict[tuple[str, str, str], list[Fault]] = defaultdict(list)
    for fault in faults:
        groups[fault.stage, fault.group, fault.symptom].append(fault)
    order = sorted(
        groups, key=lambda key: (list(STAGES).index(key[0]) if key[0] in STAGES else 9, -len(groups[key]), key)
    )
    return [
        {
            "stage": key[0],
            "group": key[1],
            "symptom": key[2],
            "ours": symptom_of(groups[key][0]),
            "faults": len(groups[key]),
            "distributed-specific": sum(fault.distributed for fault in groups[key]),
            "fixes": _ordered(Counter(fix for fault in groups[key] for fix in fault.fixes)),
        }
        for key in order
    ]


def _topics(study: Study1) -> dict[str, dict[str, Any]]:
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for question in study.questions:
        found[topic(question.topic)][topic(question.sub_topic) or "-"] += 1
    order = _ordered({name: sum(subs.values()) for name, subs in found.items()})
    return {name: {"questions": n, "sub-topics": _ordered(found[name])} for name, n in order.items()}


def _kappa(study: Study1) -> dict[str, Any]:
    rounds = by_round(study.ratings)
    return {
        "unpaired rows": unpaired(study.ratings),
        "rounds": {str(number): [asdict(one) for one in found] for number, found in rounds.items()},
    }


def _crosswalk(faults: Sequence[Fault]) -> dict[str, Any]:
    taxonomy = load_taxonomy()
    symptoms, distributed, patterns = Counter[str](), Counter[str](), Counter[str]()
    first_two = 0
    for fault in faults:
        symptoms[symptom_of(fault)] += 1
        distributed[symptom_of(fault)] += fault.distributed
        patterns.update(patterns_of(fault))
        first_two += bool(patterns_of(fault) & set(FIRST_TWO))
    return {
        "symptoms": {id: symptoms[id] for id in taxonomy.symptoms if symptoms[id]},
        "distributed-specific": {id: distributed[id] for id in taxonomy.symptoms if symptoms[id]},
        "not seen": [id for id in taxonomy.symptoms if not symptoms[id]],
        "fix patterns": {id: patterns[id] for id in taxonomy.fix_patterns},
        "cured by the first two": first_two,
    }


@cache
def shipped() -> Counts:
    """The counts that the package carries, so that the tables can be shown without the labels."""
    found: Counts = json.loads(resources.files(__package__).joinpath("counts.json").read_text("utf-8"))
    return found


# -- beside the papers ---------------------------------------------------------------------------------------------


@cache
def stated() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("stated.toml").read_text("utf-8"))


def beside_paper(counts: Counts) -> list[dict[str, Any]]:
    """Figures of study 1: ours, the paper's, and whether they are equal."""
    totals = counts["totals"]
    return [
        {
            "name": one["name"],
            "ours": totals[one["name"]],
            "stated": one["stated"],
            "equal": totals[one["name"]] == one["stated"],
            "where": one["where"],
            "why": one.get("why", ""),
        }
        for one in stated()["study1"]["figure"]
    ]


def beside_second(labelled: Iterable[Mapping[str, Any]], counts: Counts) -> list[dict[str, Any]]:
    """Study 2's abstract beside our labelling of issues, and beside study 1's labels in our vocabulary."""
    taxonomy = load_taxonomy()
    rows = list(labelled)
    setup = [row for row in rows if row["symptom"].startswith("rendezvous-setup")]
    ours: dict[str, float | None] = {
        "issues": len(rows) or None,
        "symptoms": len(taxonomy.symptoms),
        "root causes": len(taxonomy.causes),
        "fix patterns": len(taxonomy.fix_patterns),
        "distributed-specific symptoms": _share(taxonomy.symptoms[row["symptom"]].distributed_specific for row in rows),
        "distributed-specific in communication setup": _share(row["distributed"] >= 0.5 for row in setup),
        "cured by the first two fix patterns": _share(row["fix"] in FIRST_TWO for row in rows),
    }
    totals, stage = counts["totals"], counts["stages"].get("communication setup", {})
    first: dict[str, float] = {
        "distributed-specific symptoms": round(100 * totals["distributed-specific faults"] / totals["faults"], 1),
        "distributed-specific in communication setup": round(
            100 * stage.get("distributed-specific", 0) / max(stage.get("faults", 0), 1), 1
        ),
        "cured by the first two fix patterns": round(
            100 * counts["crosswalk"]["cured by the first two"] / totals["faults"], 1
        ),
    }
    return [
        {"name": one["name"], "stated": one["stated"], "over": one.get("over", False), "unit": one["unit"],
         "ours": ours[one["name"]], "study 1": first.get(one["name"]), "why": one.get("why", "")}
        for one in stated()["study2"]["figure"]
    ]  # fmt: skip


def _share(flags: Iterable[bool]) -> float | None:
    found = list(flags)
    return round(100 * sum(found) / len(found), 1) if found else None


def dumps(counts: Counts) -> str:
    return json.dumps(counts, indent=1, ensure_ascii=False) + "\n"
