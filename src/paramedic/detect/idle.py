"""GPUs that stand still because of how a job is divided, by the numbers that it prints when it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from paramedic.detect.match import on_events
from paramedic.detect.series import every
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_ARGUMENT = re.compile(
    r"^\s{0,8}(pipeline_model_parallel_size|data_parallel_size|micro_batch_size|global_batch_size"
    r"|num_layers|num_layers_per_virtual_pipeline_stage|num_virtual_stages_per_pipeline_rank) \.{2,60} (\d{1,7})\s*$"
)
_SIZES = re.compile(r"\bdata-parallel size: (\d{1,6})\b")
_LARGE = 1 / 3
"""Of a step: from so much on, other numbers would pay."""
_MAP = re.compile(r"\bhf_device_map\W{1,4}\{([^}\n]{10,3900})")
_ON = re.compile(r"'?: (?:'cuda:)?(\d{1,2})\b")
_STEPS = 3


def bubble(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Megatron's arguments: with p stages and m micro-batches each stage waits p - 1 of m + p - 1 times."""
    said: dict[str, tuple[int, Event]] = {}
    for event in run.of_kind("line"):
        if (argument := _ARGUMENT.match(event.text)) is not None:
            said.setdefault(argument[1], (int(argument[2]), event))
        elif "data-parallel size: " in event.text and (size := _SIZES.search(event.text)) is not None:
            said.setdefault("data_parallel_size", (int(size[1]), event))
    wanted = ("pipeline_model_parallel_size", "micro_batch_size", "global_batch_size", "data_parallel_size")
    if any(name not in said or said[name][0] < 1 for name in wanted):
        return
    stages, micro, whole, replicas = (said[name][0] for name in wanted)
    batches = whole // (micro * replicas) * _chunks({name: value for name, (value, _) in said.items()}, stages)
    idle = (stages - 1) / (batches + stages - 1) if batches else 0.0
    if idle >= _LARGE:
        fields = {"stages": str(stages), "batches": str(whole // (micro * replicas)), "idle": f"{idle:.0%}"}
        yield on_events(rule, [said[name][1] for name in wanted], (), fields)


def _chunks(said: dict[str, int], stages: int) -> int:
    """Into how many parts each stage's layers are divided, which it works through in turn."""
    if each := said.get("num_layers_per_virtual_pipeline_stage"):
        return max(said.get("num_layers", 0) // stages // each, 1)
    return max(said.get("num_virtual_stages_per_pipeline_rank", 1), 1)


def one_gpu_at_a_time(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """One process trains a model whose layers lie on several GPUs, one behind the other."""
    trains = any(len(one.finite) >= _STEPS or len(one.said) >= _STEPS for one in every(run, "loss"))
    for event in run.saying("hf_device_map", "line") if trains and (run.world_size or 1) == 1 else ():
        if (mapped := _MAP.search(event.text)) is not None and len(on := set(_ON.findall(mapped[1]))) > 1:
            yield on_events(rule, [event], (), {"gpus": str(len(on))})
            return
