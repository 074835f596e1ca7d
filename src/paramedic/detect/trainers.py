"""Settings of accelerate, transformers and Lightning that contradict these or each other."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from paramedic.detect.known_keys import (
    ACCELERATE,
    LIGHTNING_REMOVED,
)
from paramedic.detect.setup import Hit, Part, Setup

# -- accelerate -----------------------------------------------------------------------------------------------------


def accelerate_key(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        for name, fact in part.facts.items():
            if "." in name or "[" in name or name in ACCELERATE or name == "?":
                continue
            if near := difflib.get_close_matches(name, sorted(ACCELERATE), 1, 0.82):
                yield Hit((fact,), {"key": name, "near": near[0], "section": part.number})


def accelerate_machine_rank(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        rank, machines = part.number_of("machine_rank"), part.number_of("num_machines")
        if rank is not None and machines is not None and rank >= machines > 0:
            yield Hit(part.quoted("machine_rank", "num_machines"), {"given": rank, "machines": machines})


def accelerate_processes(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        count, machines = part.number_of("num_processes"), part.number_of("num_machines")
        if count and machines and machines > 0 and count % machines:
            yield Hit(part.quoted("num_processes", "num_machines"), {"processes": count, "machines": machines})


_FROM_FILE = (
    "zero_stage", "gradient_accumulation_steps", "gradient_clipping", "offload_optimizer_device",
    "offload_param_device", "zero3_save_16bit_model",
)  # fmt: skip


def accelerate_deepspeed_file(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("accelerate"):
        beside = [key for key in _FROM_FILE if part.has(f"deepspeed_config.{key}")]
        if part.get("deepspeed_config.deepspeed_config_file") and beside:
            quoted = part.quoted(f"deepspeed_config.{beside[0]}", "deepspeed_config.deepspeed_config_file")
            yield Hit(quoted, {"keys": ", ".join(beside), "key": beside[0], "section": part.number})


# -- transformers ---------------------------------------------------------------------------------------------------


def _strategy(part: Part, *names: str) -> str | None:
    for name in names:
        if part.has(name):
            value = part.get(name)
            return value.lower() if isinstance(value, str) else "no" if value is False else None
    return None


def transformers_best_model(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        if part.get("load_best_model_at_end") is not True or "?" in part.facts:
            continue
        evaluation = _strategy(part, "eval_strategy", "evaluation_strategy")
        saving = _strategy(part, "save_strategy")
        if evaluation is None and any(part.has(name) for name in ("eval_strategy", "evaluation_strategy")):
            continue
        evaluation, saving = evaluation or "no", saving or ("steps" if not part.has("save_strategy") else None)
        if saving not in (None, "best", evaluation):
            quoted = part.quoted("load_best_model_at_end", "eval_strategy", "evaluation_strategy", "save_strategy")
            yield Hit(quoted, {"evaluation": evaluation, "saving": saving, "section": part.number})


def transformers_best_model_steps(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        evaluation, saving = part.number_of("eval_steps"), part.number_of("save_steps")
        by_steps = {
            _strategy(part, "eval_strategy", "evaluation_strategy"),
            _strategy(part, "save_strategy") or "steps",
        }
        if part.get("load_best_model_at_end") is True and by_steps == {"steps"} and evaluation and saving:
            if saving % evaluation:
                quoted = part.quoted("save_steps", "eval_steps", "load_best_model_at_end")
                better = max(evaluation, round(saving / evaluation) * evaluation)
                yield Hit(
                    quoted, {"saving": saving, "evaluation": evaluation, "better": better, "section": part.number}
                )


def transformers_plateau(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        if part.get("lr_scheduler_type") == "reduce_lr_on_plateau":
            if part.lacks("eval_strategy") and part.lacks("evaluation_strategy"):
                yield Hit(part.quoted("lr_scheduler_type"), {"section": part.number})


def transformers_prefetch(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("transformers"):
        workers = part.get("dataloader_num_workers")
        if part.number_of("dataloader_prefetch_factor") is not None and (
            workers == 0 or part.lacks("dataloader_num_workers")
        ):
            yield Hit(part.quoted("dataloader_prefetch_factor", "dataloader_num_workers"), {"section": part.number})


# -- Lightning ------------------------------------------------------------------------------------------------------


def lightning_removed(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("lightning"):
        for name, instead in LIGHTNING_REMOVED.items():
            if part.has(name) and part.has("class") | (not part.source.endswith(".py")):
                yield Hit(part.quoted(name), {"name": name, "instead": instead, "section": part.number})


def lightning_devices(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("lightning"):
        devices = part.get("devices")
        if not isinstance(devices, bool) and devices in (0, "0", []):
            yield Hit(part.quoted("devices"), {"section": part.number})
