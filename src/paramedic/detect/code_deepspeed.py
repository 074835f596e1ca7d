"""DeepSpeed's engine: what it does in its own calls, and what a program does beside them once more, or past them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, goes_with, hit, model_parallel, own_loaders, torch_clips
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op

_ACCUMULATES = r"[\"']gradient_accumulation_steps[\"']\s*:\s*(?:[2-9]|[1-9]\d)"
_TOGETHER = ("save_checkpoint", "load_checkpoint", "save_16bit_model", "save_fp16_model")
_COUNTS = re.compile(r"accum|\bgas\b", re.I)


def _of_engine(flow: Flow, *names: str) -> list[Op]:
    return [
        op for op in flow.calls(*names) if op.of is not None and op.of.kind == "model" and op.of.wrap == "deepspeed"
    ]


@every_program("initialize")
def optimizer_stepped_past_engine(flow: Flow) -> Iterator[Hit]:
    """`engine.backward`, and then the optimizer steps by itself: accumulation, clipping and the schedule are the
    engine's, and it never steps."""
    through = _of_engine(flow, "backward")
    if not through or _of_engine(flow, "step"):
        return
    for op in flow.calls("step"):
        of = op.of
        if of is not None and of.kind == "optimizer" and op.loops and goes_with(op, through[0]):
            yield hit(op, through[0])
            return


@every_program("initialize")
def divided_twice(flow: Flow) -> Iterator[Hit]:
    """The engine divides each loss by the steps that it accumulates; the program did so before."""
    for op in _of_engine(flow, "backward") if _accumulates(flow) else ():
        given = op.written(0)
        if isinstance(given, ast.BinOp) and isinstance(given.op, ast.Div) and _is_count(flow, given.right):
            yield hit(op)


def _accumulates(flow: Flow) -> bool:
    """By a configuration in the program, or by one that it asks the engine for."""
    return flow.mentions(_ACCUMULATES) or flow.mentions(r"\.gradient_accumulation_steps\(\)")


def _is_count(flow: Flow, divisor: ast.expr) -> bool:
    if isinstance(divisor, ast.Constant):
        return bool(flow.mentions(rf"[\"']gradient_accumulation_steps[\"']\s*:\s*{text_of(divisor)}\b"))
    return _COUNTS.search(text_of(divisor)) is not None


@every_program("initialize")
def stepped_in_every_so_many(flow: Flow) -> Iterator[Hit]:
    """`engine.step` counts the batches itself; called in the last of several alone it accumulates that many times as
    many."""
    through = _of_engine(flow, "backward")
    stepped = _of_engine(flow, "step")
    for op in stepped if through and _accumulates(flow) and len({one.loops for one in stepped}) == len(stepped) else ():
        for guard in op.guards:
            if guard not in through[0].guards and re.search(r"%.*==", text_of(guard.node)):
                yield hit(op, through[0])


@every_program("initialize")
def saved_by_one(flow: Flow) -> Iterator[Hit]:
    """Each rank writes its shard, and they meet before and after: called by one alone it waits for ever."""
    for op in _of_engine(flow, *_TOGETHER):
        if op.label == "first":
            yield hit(op, what=op.last)


@every_program("initialize")
def schedule_stepped_twice(flow: Flow) -> Iterator[Hit]:
    """A schedule that the engine was given is stepped by `engine.step`, and by the program once more."""
    given = [op for op in flow.calls("initialize") if "lr_scheduler" in op.keywords and op.name.startswith("deepspeed")]
    through = _of_engine(flow, "step")
    started = [op for op in flow.calls("initialize") if op.name.startswith("deepspeed")]
    for op in flow.calls("step") if through else ():
        if op.of is None or op.of.kind != "scheduler" or not op.loops or not goes_with(op, through[0]):
            continue
        if known := given or [one for one in started if op.of.made is one]:
            yield hit(op, known[0])
            return


@every_program("clip_grad_norm_", "clip_grad_value_")
def clipped_past_engine(flow: Flow) -> Iterator[Hit]:
    """Under ZeRO the gradients are the optimizer's, and in parts: torch's own clipping finds none, or a part."""
    through = _of_engine(flow, "backward")
    if not through or flow.mentions(r"safe_get_full_grad|safe_set_full_grad"):
        return
    for op in torch_clips(flow):
        if goes_with(op, through[0]) and op.index > through[0].index:
            yield hit(op, through[0])


@every_program("initialize")
def rows_not_divided(flow: Flow) -> Iterator[Hit]:
    """The loop goes over a loader that neither a sampler nor the engine divides between the ranks."""
    if flow.mentions(r"training_data\s*=|deepspeed_io|process_index") or flow.has("DistributedSampler"):
        return
    if model_parallel(flow) or flow.mentions(r"\bshard|get_(?:data_parallel_)?rank\(\)[^\n]*(?:::|%)|num_replicas"):
        return
    for one in backwards(flow):
        if one.op not in _of_engine(flow, "backward"):
            continue
        for over, made in own_loaders(one):
            if "sampler" not in over.attrs and not over.has("shard", "rank", "parameter"):
                yield hit(made, one.op)


@every_program("load_checkpoint")
def answer_not_asked(flow: Flow) -> Iterator[Hit]:
    """`load_checkpoint` answers what it has loaded, None where it found nothing, and the program does not look."""
    for op in _of_engine(flow, "load_checkpoint"):
        if op.dropped and any(one.op.index > op.index for one in backwards(flow)):
            yield hit(op)
