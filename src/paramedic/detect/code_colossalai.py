"""Colossal-AI's Booster: what has to go through it, and what a program does past it."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramedic.detect.every import every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, hit, steps, torch_clips, torch_saves
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op

_SHARDED = ("GeminiPlugin", "LowLevelZeroPlugin", "HybridParallelPlugin", "MoeHybridParallelPlugin")
_TOGETHER = ("save_model", "save_optimizer", "load_model", "load_optimizer")


def _plugins(flow: Flow, *names: str) -> list[Op]:
    return [op for op in flow.calls(*(names or _SHARDED)) if "colossalai" in op.name]


def _pipelines(flow: Flow) -> list[Op]:
    """Plugins that are told to split the model into stages."""
    return [op for op in _plugins(flow, *_SHARDED[2:]) if (_number(op, "pp_size", 1) or 0) > 1]


def _number(op: Op, name: str, place: int | None = None) -> float | None:
    given = op.argument(name, place)
    return given.number() if given is not None else None


@every_program("boost")
def backward_past_booster(flow: Flow) -> Iterator[Hit]:
    """`loss.backward()`: the plugin scales the loss and brings the gradients together in `booster.backward`."""
    plugins = _plugins(flow)
    amp = [op for op in flow.calls("Booster") if "mixed_precision" in op.keywords]
    if not plugins and not amp:
        return
    stepped = [op.loops for op in steps(flow)]
    for one in backwards(flow):
        past = one.op.name.startswith(".") and one.op.of is one.loss and one.loss.has("graph")
        if past and one.op.loops in stepped and not flow.mentions(r"execute_pipeline|booster\.backward"):
            yield hit(one.op, (plugins or amp)[0])


@every_program("boost")
def boosted_and_not_taken(flow: Flow) -> Iterator[Hit]:
    """`boost` gives back what is to be trained with; what was handed to it stays as it was."""
    for op in flow.calls("boost"):
        if op.dropped and any(one.kind == "model" for one in (*op.args, *op.keywords.values())):
            yield hit(op)


@every_program("boost")
def five_come_back(flow: Flow) -> Iterator[Hit]:
    """`boost` always gives five values, in the order of its arguments."""
    for op in flow.calls("boost"):
        targets = _targets(op)
        if targets and len(targets) != 5 and not any(isinstance(one, ast.Starred) for one in targets):
            yield hit(op, count=len(targets))


def _targets(op: Op) -> list[ast.expr]:
    """The names that the call's values are unpacked into."""
    for node in op.module.statements:
        if isinstance(node, ast.Assign) and node.value is op.node and isinstance(node.targets[0], ast.Tuple | ast.List):
            return node.targets[0].elts
    return []


@every_program(*_TOGETHER)
def saved_by_one(flow: Flow) -> Iterator[Hit]:
    """The booster gathers shards from all ranks and lets the first one write by itself."""
    if not _plugins(flow):
        return
    for op in flow.calls(*_TOGETHER):
        if op.label == "first" and op.name.startswith(".") and "booster" in ast.unparse(op.node):
            yield hit(op, what=op.last)


@every_program("save")
def shards_saved_by_hand(flow: Flow) -> Iterator[Hit]:
    """`state_dict()` of a model that a plugin has split holds this rank's part, or is gathered by all ranks."""
    hybrid = _plugins(flow, *_SHARDED[2:])
    plugins = _plugins(flow, "GeminiPlugin") + [
        op for op in hybrid if _may_split(op, "tp_size", 0) or _may_split(op, "pp_size", 1)
    ]
    boosted = {id(one.base) for op in flow.calls("boost") for one in op.result.items or () if one.kind == "model"}
    for op, saved in torch_saves(flow) if plugins else ():
        states = [one.attrs["of"] for one in saved.values() if one.kind == "state" and "of" in one.attrs]
        if any(id(one.base) in boosted for one in states):
            yield hit(op, plugins[0])


def _may_split(op: Op, name: str, place: int) -> bool:
    """It is told a number that is not 1, or one that the program does not show."""
    given = op.argument(name, place)
    return given is not None and given.number() not in (0, 1)


@every_program("clip_grad_norm_", "clip_grad_value_")
def clipped_past_plugin(flow: Flow) -> Iterator[Hit]:
    """A sharding plugin keeps the gradients itself: torch's own clipping finds none, or a part of them."""
    plugins = _plugins(flow)
    through = [one.op.loops for one in backwards(flow) if one.op.of is not one.loss]
    for op in torch_clips(flow) if plugins else ():
        if op.loops in through:
            yield hit(op, plugins[0])


@every_program(*_SHARDED[2:])
def stages_called_as_one(flow: Flow) -> Iterator[Hit]:
    """With stages a rank has a part of the layers: only `execute_pipeline` runs them."""
    pipelines = _pipelines(flow)
    if not pipelines or flow.has("execute_pipeline"):
        return
    for op in flow.calls("forward"):
        if op.loops and op.of is not None and op.of.wrap == "booster":
            yield hit(op, pipelines[0])
            return


@every_program(*_SHARDED[2:])
def pipeline_refused(flow: Flow) -> Iterator[Hit]:
    """Stages without micro-batches, or with ZeRO-2, are refused when the plugin is made."""
    for op in _pipelines(flow):
        if "**" in op.keywords or op.starred:
            continue
        if not {"num_microbatches", "microbatch_size"} & op.keywords.keys():
            yield hit(op, what="neither num_microbatches nor microbatch_size is given")
        elif (_number(op, "zero_stage") or 0) > 1:
            yield hit(op, what="zero_stage is 2")


@every_program("no_sync")
def accumulated_where_refused(flow: Flow) -> Iterator[Hit]:
    """`booster.no_sync` with ZeRO-2 or Gemini, which bring gradients together at once, is refused."""
    plugins = _plugins(flow, "GeminiPlugin")
    plugins += [op for op in _plugins(flow, "LowLevelZeroPlugin") if _number(op, "stage", 0) == 2]
    plugins += [op for op in _plugins(flow, *_SHARDED[2:]) if _number(op, "zero_stage") == 2]
    if len(plugins) != 1 or len(_plugins(flow, *_SHARDED, "TorchDDPPlugin")) > 1:
        return
    for op in flow.calls("no_sync"):
        if op.loops and op.of is not None and op.of.made is not None and op.of.made.last == "Booster":
            yield hit(op, plugins[0])


@every_program("Booster")
def never_launched(flow: Flow) -> Iterator[Hit]:
    """Plugins ask for the process group when they are made."""
    if flow.has("init_process_group") or flow.mentions(r"\blaunch(?:_from_\w+)?\("):
        return
    made = _plugins(flow, *_SHARDED, "TorchDDPPlugin", "TorchFSDPPlugin")
    for op in made[:1] if flow.has("boost") else ():
        yield hit(op)
