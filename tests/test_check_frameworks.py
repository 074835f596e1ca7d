"""Real frameworks prove the rules: with the bad case of a rule they fail as it says, with the good one they start."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from paramedic.collect.project import read_project
from paramedic.knowledge import Case, Knowledge, Rule
from paramedic.ward import environments

STARTS = Path(__file__).parent / "starts"
DEEPSPEED = {
    "CFG101": "[Dd]uplicate",
    "CFG105": "cannot be simultaneously enabled",
    "CFG106": "Check batch related parameters",
    "CFG107": "has to be greater than 0",
    "CFG109": "Extra inputs are not permitted",
    "CFG111": "has been removed",
    "CFG112": "valid integer",
    "CFG113": "validation error",
    "CFG118": "deprecated parameter",
    "CFG120": "Partial offloading",
    "CFG123": "not a supported DeepSpeed Optimizer|has no attribute",
    "CFG124": "untested ZeRO",
    "CFG125": "does not recognize LR scheduler",
    "CFG126": "total_num_steps",
    "CFG130": "Invalid communication_data_type",
    "CFG131": "greater than 0",
    "CFG133": "loss_scale must be >= 0",
    "CFG137": "tag_validation",
    "CFG275": "contains multiple entries",
    "CFG276": "bad entry",
}
ACCELERATE = {
    "CFG150": "unknown keys",
    "CFG151": "distributed_type",
    "CFG152": "not a valid DistributedType",
    "CFG158": "fsdp_sync_module_states",
    "CFG229": "You can only use one of",
    "CFG230": "at least 2 processes",
}
TRANSFORMERS = {
    "CFG170": "At most one of fp16 and bf16",
    "CFG171": "requires the save and eval strategy to match",
    "CFG172": "round multiple",
    "CFG173": "requires an eval strategy",
    "CFG174": "dataloader_prefetch_factor",
    "CFG175": "non-zero --logging_steps",
    "CFG179": "no_cuda",
}
LIGHTNING = {
    "CFG185": "unexpected keyword argument",
    "CFG186": "invalid strategy name",
    "CFG187": "[Pp]recision",
    "CFG188": "devices",
    "CFG190": "gradient_clip_algorithm",
}
COLOSSALAI = {"CFG195": "only supports stage 1/2", "CFG196": "only supports"}
MEGATRON = {
    "CFG201": "multiple of tensor_model_parallel_size",
    "CFG202": "num_query_groups",
    "CFG206": "num_moe_experts must be non None",
    "CFG213": "recompute_method",
}


def settings(case: Case, folder: Path, kind: str) -> dict[str, Any]:
    """What the case sets, as the framework's own arguments."""
    lay_out(case, folder)
    facts = [fact for fact in read_project(str(folder)).facts if fact.name.startswith(f"config {kind} ")]
    assert facts, f"no {kind} in {case.text!r}"
    return {fact.name.split(" ", 3)[3]: fact.value for fact in facts}


def lay_out(case: Case, folder: Path) -> Path:
    folder.mkdir(parents=True)
    path = folder / case.options["file"]
    path.write_text(case.text, "utf-8")
    return path


def given(case: Case, folder: Path, kind: str) -> Any:
    if kind == "file":
        path = lay_out(case, folder)
        command = re.search(r"^accelerate .*$", case.text, re.M)
        return command[0] if command else str(path)
    values = settings(case, folder, kind)
    if kind != "colossalai":
        values.pop("class", None)
    return {key: value for key, value in values.items() if key not in ("output_dir", "per_device_train_batch_size")}


def good_case(rule: Rule) -> Case:
    cases = list(rule.cases())
    return next((c for c in cases if c.expect == "fixed"), None) or next(c for c in cases if c.expect == "good")


def _asked(place: Path, program: Path, pairs: list[tuple[str, Any]]) -> Mapping[str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PARAMEDIC_DEBUG")}
    done = subprocess.run(
        [str(place / "bin/python"), str(program)],
        input=json.dumps(pairs),
        capture_output=True,
        text=True,
        timeout=1800,
        env=environment | {"CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"},
        check=False,
    )
    found = dict(json.loads(line[7:]) for line in done.stdout.splitlines() if line.startswith("answer "))
    assert len(found) == len(pairs), done.stderr[-2000:]
    return found


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(
    ("environment", "program", "kind", "rules"),
    [
        ("deepspeed", "deepspeed", "file", DEEPSPEED),
        ("hf", "accelerate", "file", ACCELERATE),
        ("hf", "transformers", "transformers", TRANSFORMERS),
        ("lightning", "lightning", "lightning", LIGHTNING),
        ("colossalai", "colossalai", "colossalai", COLOSSALAI),
        ("megatron", "megatron", "megatron", MEGATRON),
    ],
)
def test_the_framework_fails_as_the_rule_says_and_starts_once_it_is_fixed(
    environment: str, program: str, kind: str, rules: Mapping[str, str], knowledge: Knowledge, tmp_path: Path
) -> None:
    place = environments.build(environment)  # gigabytes and minutes on the first run, then kept in the user's cache
    pairs = []
    for id in rules:
        rule = knowledge.rules[id]
        bad = next(case for case in rule.cases() if case.expect == "bad")
        word = "hostfile " if "hostfile" in bad.options["file"] else ""
        pairs.append((f"{word}{id} bad", given(bad, tmp_path / id / "bad", kind)))
        pairs.append((f"{word}{id} good", given(good_case(rule), tmp_path / id / "good", kind)))
    said = {
        name.removeprefix("hostfile "): text
        for name, text in _asked(place, STARTS / f"with_{program}.py", pairs).items()
    }
    wrong = {id: said[f"{id} bad"] for id, words in rules.items() if not re.search(words, said[f"{id} bad"])}
    wrong |= {f"{id} fixed": said[f"{id} good"] for id in rules if said[f"{id} good"] != "started"}
    assert not wrong
