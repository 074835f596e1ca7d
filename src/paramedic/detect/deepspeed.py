"""DeepSpeed's settings that contradict it or each other, where plain conditions on single keys do not suffice."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from paramedic.detect.known_keys import (
    DEEPSPEED,
    DEEPSPEED_OPTIMIZERS,
    DEEPSPEED_REMOVED,
    DEEPSPEED_SCHEDULERS,
    DEEPSPEED_WHOLE_NUMBERS,
    DEEPSPEED_ZERO,
    TORCH_OPTIMIZERS,
    TORCH_SCHEDULERS,
    ZERO_TESTED_OPTIMIZERS,
)
from paramedic.detect.setup import Hit, Setup

_BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")


def batch(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        total, micro, steps = (part.number_of(key) for key in _BATCH)
        if total is None or micro is None or min(total, micro, 1 if steps is None else steps) <= 0:
            continue
        each = micro * (steps or 1)
        if total % each:
            yield Hit(part.quoted(*_BATCH), {"total": total, "micro": micro, "steps": steps or 1, "each": each})


def batch_not_positive(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        for key in _BATCH:
            value = part.number_of(key)
            if value is not None and value <= 0:
                yield Hit(part.quoted(key), {"key": key, "value": value})


def without_batch(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        if part.source.endswith(".py"):
            continue  # a dictionary is often completed further down
        if part.lacks("train_batch_size") and part.lacks("train_micro_batch_size_per_gpu"):
            yield Hit((part.head,), {"section": part.number})


def zero_key(setup: Setup) -> Iterator[Hit]:
    """The model of this block refuses every key it does not know."""
    for part in setup.of("deepspeed"):
        for name, fact in part.below("zero_optimization").items():
            if "." in name or "[" in name or name in DEEPSPEED_ZERO or name in DEEPSPEED_REMOVED or name == "?":
                continue
            if near := difflib.get_close_matches(name, DEEPSPEED_ZERO, 1, 0.82):
                yield Hit((fact,), {"key": name, "near": near[0], "section": part.number})


def top_key(setup: Setup) -> Iterator[Hit]:
    """An unknown key at the top is passed over in silence, so only what looks like a slip is named."""
    for part in setup.of("deepspeed"):
        for name, fact in part.facts.items():
            if "." in name or "[" in name or name in DEEPSPEED or name in DEEPSPEED_REMOVED or name == "?":
                continue
            near = difflib.get_close_matches(name, DEEPSPEED, 1, 0.86)
            if near and near[0] not in part.facts:
                yield Hit((fact,), {"key": name, "near": near[0], "section": part.number})


def removed(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        for name, since in DEEPSPEED_REMOVED.items():
            for key in (name, f"zero_optimization.{name}"):
                fact = part.facts.get(key)
                used = part.get(f"{key}.enabled") if fact and fact.value == {} else fact.value if fact else None
                if fact is not None and (fact.line or 0) > 0:
                    yield Hit((fact,), {"key": key, "since": since, "section": part.number, "used": used})


def number_as_text(setup: Setup) -> Iterator[Hit]:
    """`"5e8"` is no whole number to the model that checks it; `5e8` without quotes is."""
    for part in setup.of("deepspeed"):
        for name in DEEPSPEED_WHOLE_NUMBERS:
            fact = part.facts.get(f"zero_optimization.{name}")
            if (
                fact is None
                or not isinstance(fact.value, str)
                or not re.fullmatch(r"\d+(?:\.\d*)?[eE]\+?\d{1,2}", fact.value)
            ):
                continue
            number = int(float(fact.value))
            yield Hit((fact,), {"key": name, "value": fact.value, "number": number, "section": part.number})


def optimizer(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        name = part.get("optimizer.type")
        if isinstance(name, str) and name.lower() not in DEEPSPEED_OPTIMIZERS and name not in TORCH_OPTIMIZERS:
            near = difflib.get_close_matches(name, sorted(TORCH_OPTIMIZERS), 1, 0.5)
            yield Hit(part.quoted("optimizer.type"), {"name": name, "near": near[0] if near else "AdamW"})


def untested_optimizer(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        name, stage = part.get("optimizer.type"), part.number_of("zero_optimization.stage")
        if not isinstance(name, str) or not stage or part.get("zero_allow_untested_optimizer"):
            continue
        if (
            name in TORCH_OPTIMIZERS
            and name.lower() not in ZERO_TESTED_OPTIMIZERS
            and part.lacks("zero_allow_untested_optimizer")
        ):
            quoted = part.quoted("optimizer.type", "zero_optimization.stage")
            yield Hit(quoted, {"name": name, "stage": stage, "section": part.number})


def scheduler(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        name = part.get("scheduler.type")
        if isinstance(name, str) and name not in DEEPSPEED_SCHEDULERS and name not in TORCH_SCHEDULERS:
            near = difflib.get_close_matches(name, sorted(DEEPSPEED_SCHEDULERS), 1, 0.5)
            yield Hit(
                part.quoted("scheduler.type"),
                {"name": name, "near": near[0] if near else "WarmupLR", "section": part.number},
            )


def schedule_without_end(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        if part.get("scheduler.type") in ("WarmupDecayLR", "WarmupCosineLR") and not part.source.endswith(".py"):
            if part.lacks("scheduler.params.total_num_steps"):
                yield Hit(part.quoted("scheduler.type"), {"name": part.get("scheduler.type"), "section": part.number})


def auto(setup: Setup) -> Iterator[Hit]:
    """Only transformers and accelerate fill "auto" in. A project that calls DeepSpeed itself has to have numbers."""
    names = set().union(*(script.names for script in setup.scripts)) if setup.scripts else set()
    direct = any(call.fields["name"] == "deepspeed.initialize" for script in setup.scripts for call in script.calls)
    filled = any("Accelerator" in script.names for script in setup.scripts) or bool(setup.by_kind.get("transformers"))
    if not direct or filled or setup.by_kind.get("accelerate") or "TrainingArguments" in names:
        return
    for part in setup.of("deepspeed"):
        autos = [fact for fact in part.facts.values() if fact.value == "auto"]
        if autos and not part.source.endswith(".py"):
            yield Hit((autos[0],), {"count": len(autos)})


def zero_inside(setup: Setup) -> Iterator[Hit]:
    """DeepSpeed reads `zero_optimization` at the top of its file, and nowhere else."""
    for part in setup.of("deepspeed"):
        stage = part.number_of("zero_optimization.stage")
        for block in _BLOCKS if not stage else ():
            asked = part.number_of(f"{block}.zero_optimization.stage")
            if asked:
                quoted = part.quoted(f"{block}.zero_optimization.stage", "zero_optimization.stage")
                yield Hit(quoted, {"block": block, "stage": asked})
                break


_BLOCKS = ("bf16", "bfloat16", "fp16", "optimizer", "optimizer.params", "scheduler", "activation_checkpointing")


def keys_of_stage_three(setup: Setup) -> Iterator[Hit]:
    for part in setup.of("deepspeed"):
        stage = part.number_of("zero_optimization.stage")
        if stage is None or stage == 3:
            continue
        for name, fact in part.below("zero_optimization").items():
            if name.startswith("stage3_") and fact.value not in (False, "auto"):
                yield Hit((fact, *part.quoted("zero_optimization.stage")), {"key": name, "stage": stage})
                break
