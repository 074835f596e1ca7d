"""GPUs that stand still because of how a job is divided, by the numbers that it prints when it starts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import median

from paramedic.detect.match import on_events
from paramedic.detect.once import once
from paramedic.detect.series import FIRST, LAST, every
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_ARGUMENT = regex(
    r"^\s{0,8}(pipeline_model_parallel_size|data_parallel_size|micro_batch_size|global_batch_size"
    r"|num_layers|num_layers_per_virtual_pipeline_stage|num_virtual_stages_per_pipeline_rank"
    r"|tensor_model_parallel_size|world_size|hidden_size|seq_length) \.{2,60} (\d{1,7})\s*$"
)
_DATA_PARALLEL = "data-parallel size: "
_SIZES = regex(rf"\b{_DATA_PARALLEL}(\d{{1,6}})\b")
_WANTED = ("pipeline_model_parallel_size", "micro_batch_size", "global_batch_size", "data_parallel_size")
_MODEL = ("world_size", "hidden_size", "num_layers", "seq_length")
_LARGE = 1 / 3
"""Of a step: from so much on, other numbers would pay."""
_MAP = regex(r"\bhf_device_map\W{1,4}\{([^}\n]{10,3900})")
_ON = regex(r"'?: (?:'cuda:)?(\d{1,2})\b")
_STEPS = 3


def bubble(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Megatron's arguments: with p stages and m micro-batches each stage waits p - 1 of m + p - 1 times."""
    for said in _arguments(run).values():
        idle = _idle(said)
        if idle is not None and idle >= _LARGE:
            stages, micro, whole, replicas = (said[name][0] for name in _WANTED)
            fields = {"stages": str(stages), "batches": str(whole // (micro * replicas)), "idle": f"{idle:.0%}"}
            yield on_events(rule, [said[name][1] for name in _WANTED], (), fields)
            return


_Said = Mapping[str, tuple[int, Event]]


@once
def _arguments(run: Run) -> dict[str, dict[str, tuple[int, Event]]]:
    """What Megatron says of itself when it starts, by log."""
    by_log: dict[str, dict[str, tuple[int, Event]]] = {}
    for event in run.saying_one_of((".. ", _DATA_PARALLEL), "line"):
        if (argument := _ARGUMENT.match(event.text)) is not None:
            by_log.setdefault(event.source, {}).setdefault(argument[1], (int(argument[2]), event))
        elif _DATA_PARALLEL in event.text and (size := _SIZES.search(event.text)) is not None:
            by_log.setdefault(event.source, {}).setdefault("data_parallel_size", (int(size[1]), event))
    return by_log


def _idle(said: _Said) -> float | None:
    """The share of a step that each stage waits; None where the arguments do not say."""
    if any(name not in said or said[name][0] < 1 for name in _WANTED):
        return None
    stages, micro, whole, replicas = (said[name][0] for name in _WANTED)
    batches = whole // (micro * replicas) * _chunks({name: value for name, (value, _) in said.items()}, stages)
    return (stages - 1) / (batches + stages - 1) if batches else 0.0


def behind_another_layout(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Two runs of one model on equally many GPUs, of which one is far slower, and how it is divided explains that: as
    much longer as its pipeline waits, or tensors that are divided over more GPUs than a node has. Of a log that does
    not show its model, what each GPU computes in a second is compared. Beside a failure it is a remark."""
    logs = {source: said for source, said in _arguments(run).items() if _TENSOR in said}
    speed_of = _samples_a_second if all(said.keys() >= {*_MODEL} for said in logs.values()) else _work_a_second
    speeds = {source: speed for source in logs if (speed := speed_of(run, source)) is not None}
    unlike = any(len({said[name][0] for said in logs.values() if name in said}) > 1 for name in _MODEL)
    if len(logs) != 2 or len(speeds) != 2 or unlike:
        return
    slow, fast = sorted(speeds, key=lambda source: speeds[source])
    times = speeds[fast] / speeds[slow]
    why = _explained(logs[slow], logs[fast], times) if times >= _SLOWER else None
    if why is not None:
        fields = {"slow": slow.rsplit("/", 1)[-1], "times": f"{times:.1f}", "why": why[0]}
        events = [logs[source][name][1] for source in (slow, fast) for name in why[1]]
        failed = any(one.severity == "error" for one in found)
        yield replace(on_events(rule, events, (), fields), severity="warning" if failed else rule.severity)


_TENSOR = "tensor_model_parallel_size"
_SLOWER, _NEAR, _GPUS_OF_A_NODE, _POINTS = 1.5, 0.25, 8, 6


def _explained(slow: _Said, fast: _Said, times: float) -> tuple[str, tuple[str, ...]] | None:
    """In words, and the arguments that show it."""
    idle, other = _idle(slow), _idle(fast)
    if idle is not None and other is not None and idle >= _LARGE and abs((1 - other) / (1 - idle) / times - 1) < _NEAR:
        return f"its pipeline waits {idle:.0%} of every step, the other's {other:.0%}", _WANTED
    if slow[_TENSOR][0] > _GPUS_OF_A_NODE >= fast[_TENSOR][0]:
        return f"its tensors are divided over {slow[_TENSOR][0]} GPUs, more than a node has", (_TENSOR,)
    return None


def _samples_a_second(run: Run, source: str) -> float | None:
    """Where the batch is of one size all the time."""
    batches = {value for one in every(run, "whole_batch") if one.event.source == source for value in one.finite}
    times = [one.finite for one in every(run, "step_time") if one.event.source == source]
    usual = median(times[0]) if len(times) == 1 and len(times[0]) >= _POINTS else 0.0
    return min(batches) / usual if len(batches) == 1 and usual > 0 else None


_PER_GPU = regex(r"\bthroughput per GPU \(TFLOP/s/GPU\): (\d{1,5}(?:\.\d{1,3})?) ")


def _work_a_second(run: Run, source: str) -> float | None:
    """What Megatron counts of each GPU, whatever the model and the number of GPUs; as much at the end as at first."""
    lines = [e for one in every(run, "step_time") if one.event.source == source for e in one.shown(FIRST, LAST)]
    told = [float(found[1]) for event in lines if (found := _PER_GPU.search(event.text)) is not None]
    steady = len(told) > 1 and 0 < max(told) <= _ALIKE * min(told)
    return median(told) if steady else None


_ALIKE = 1.2


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
