"""What accelerate saves and brings back: only what it was given, and only what it had by then."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from paramedic.detect.every import every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import at, backwards, goes_with, hit, of_accelerator, schedules, steps, torch_clips
from paramedic.detect.program import Function, Module, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op

_BOTH = {"state_dict", "load_state_dict"}


@every_program("load_state")
def loaded_before_prepared(flow: Flow) -> Iterator[Hit]:
    """`load_state` before `prepare` has neither a model nor an optimizer to bring back."""
    prepared = [op for op in of_accelerator(flow, "prepare") if op.args or op.starred]
    for op in of_accelerator(flow, "load_state"):
        if prepared and op.index < min(one.index for one in prepared):
            yield hit(op, prepared[0])


@every_file("save_state")
def state_not_registered(flow: Flow, module: Module) -> Iterator[Hit]:
    """An average of the weights, or the like, with a state of its own that changes in every step, and that neither
    `prepare` nor `register_for_checkpointing` was given."""
    if not (of_accelerator(flow, "save_state") and of_accelerator(flow, "load_state")) or flow.has(
        "register_save_state_pre_hook", "register_load_state_pre_hook"
    ):
        return
    kept = {
        cls.name
        for cls in module.classes.values()
        if {one.name for one in cls.body if isinstance(one, Function)} >= _BOTH
    }
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and text_of(node.value.func) in kept:
            name = text_of(node.targets[0])
            if _changes(module, name) and not _is_given(module, name):
                yield at(module, node, what=name)


def _changes(module: Module, name: str) -> bool:
    """A method of it is called in a loop."""
    return any(
        isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and text_of(call.func.value) == name
        for loop in ast.walk(module.tree)
        if isinstance(loop, ast.For | ast.While)
        for call in ast.walk(loop)
    )


def _is_given(module: Module, name: str) -> bool:
    """To accelerate; or its state is taken by hand."""
    for call in ast.walk(module.tree):
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
            continue
        if call.func.attr in ("prepare", "register_for_checkpointing"):
            if any(text_of(part) == name for one in call.args for part in ast.walk(one) if isinstance(part, ast.expr)):
                return True
        elif call.func.attr in _BOTH and text_of(call.func.value) == name:
            return True
    return False


@every_program("backward")
def divided_twice(flow: Flow) -> Iterator[Hit]:
    """`accelerator.backward` divides by the steps that the accelerator was told to accumulate; the program did so
    before."""
    asked = [op for op in flow.calls("Accelerator") if "gradient_accumulation_steps" in op.keywords]
    counts = {text_of(key.value) for op in asked for key in _keywords(op) if key.arg == "gradient_accumulation_steps"}
    if len(counts) != 1 or counts <= {"1", "None"}:
        return
    (count,) = counts
    divisors = {count, f"{_called(flow)}.gradient_accumulation_steps"}
    for op in of_accelerator(flow, "backward"):
        given = op.written(0)
        divided: list[ast.AST] = [given] if given is not None else []
        if isinstance(given, ast.Name):
            divided += _assigned(op, given.id)
        if any(_divides(one, divisors) for one in divided):
            yield hit(op, asked[0], what=count)


def _keywords(op: Op) -> list[ast.keyword]:
    return op.node.keywords if isinstance(op.node, ast.Call) else []


def _called(flow: Flow) -> str:
    """What the program calls its accelerator."""
    calls = (op.node for op in of_accelerator(flow, "backward"))
    named = (
        text_of(call.func.value)
        for call in calls
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)
    )
    return next(named, "accelerator")


def _assigned(op: Op, name: str) -> list[ast.AST]:
    """Where the loss got its value, in the lines of the same loop before."""
    body = op.loops[-1].node if op.loops else op.module.tree
    return [
        node if isinstance(node, ast.AugAssign) else node.value
        for node in ast.walk(body)
        if (isinstance(node, ast.Assign) and [text_of(one) for one in node.targets] == [name])
        or (isinstance(node, ast.AugAssign) and text_of(node.target) == name)
        if node.lineno < op.line
    ]


def _divides(node: ast.AST, divisors: set[str]) -> bool:
    if isinstance(node, ast.AugAssign):
        return isinstance(node.op, ast.Div) and text_of(node.value) in divisors
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and text_of(node.right) in divisors


@every_program("clip_grad_norm_", "clip_grad_value_")
def scaled_gradients_clipped(flow: Flow) -> Iterator[Hit]:
    """Under fp16 the gradients are scaled until the prepared optimizer steps; only the accelerator's own clipping
    divides them before."""
    made = [op for op in flow.calls("Accelerator") if _is(op, "mixed_precision", "fp16")]
    if not made or flow.mentions(r"unscale_gradients"):
        return
    for op in torch_clips(flow):
        if op.loops and of_accelerator(flow, "backward"):
            yield hit(op, made[0])


def _is(op: Op, name: str, value: object) -> bool:
    given = op.keywords.get(name)
    return given is not None and given.const == value


@every_program("Accelerator")
def accumulation_never_entered(flow: Flow) -> Iterator[Hit]:
    """Each loss is divided by the steps to accumulate, and the optimizer steps after every one of them."""
    made = [op for op in flow.calls("Accelerator") if _accumulates(op)]
    if not made or flow.has("accumulate", "no_sync") or flow.mentions(r"sync_gradients|gradient_state|GradientState"):
        return
    for op in steps(flow):
        near = [one for one in of_accelerator(flow, "backward") if one.loops and one.loops == op.loops]
        if near and goes_with(op, near[0]):
            yield hit(op, made[0])
            return


def _accumulates(op: Op) -> bool:
    given = op.keywords.get("gradient_accumulation_steps")
    return given is not None and isinstance(given.const, int) and given.const > 1


@every_program("accumulate")
def optimizer_not_prepared(flow: Flow) -> Iterator[Hit]:
    """Within `accumulate` gradients are averaged in the last of several batches; an optimizer that accelerate does not
    know steps in every one, on each rank's own."""
    made = [op for op in flow.calls("Accelerator") if "gradient_accumulation_steps" in op.keywords]
    prepared = [op for op in of_accelerator(flow, "prepare") if any(one.kind == "model" for one in op.args)]
    if not made or not prepared or any(op.starred for op in of_accelerator(flow, "prepare")):
        return
    for op in steps(flow):
        bare = op.of is not None and op.of.kind == "optimizer" and not op.of.has("prepared")
        if bare and op.inside("accumulate") and not op.guards:
            yield hit(op, prepared[0])
            return


@every_program("prepare")
def sampler_divided_again(flow: Flow) -> Iterator[Hit]:
    """`prepare` divides a loader's batches between the ranks, and a DistributedSampler has left out the others' rows
    before."""
    for op in of_accelerator(flow, "prepare"):
        for loader in (*op.args, *op.keywords.values()):
            sampler = loader.attrs.get("sampler") if loader.kind == "loader" else None
            if sampler is not None and sampler.made is not None and sampler.made.last == "DistributedSampler":
                yield hit(sampler.made, op)


@every_program("Accelerator")
def schedule_of_all_batches(flow: Flow) -> Iterator[Hit]:
    """The schedule's length is that of the loader before it was divided between the ranks, and accelerate, which would
    step it once for each of them, does not know of it."""
    prepared = of_accelerator(flow, "prepare")
    given = [one for op in prepared for one in op.args]
    if not given or any(op.starred for op in prepared) or flow.has("prepare_scheduler"):
        return
    for op in schedules(flow):
        tags = frozenset(tag for value in (*op.args, *op.keywords.values()) for tag in value.tags)
        stepped = [one for one in flow.calls("step") if one.of is not None and one.of.made is op and one.loops]
        divided = {"len:prepared", "world", "/world"} & tags
        if "len" in tags and not divided and stepped and op.result not in given and _over_prepared(stepped[0]):
            yield hit(op, stepped[0])


def _over_prepared(op: Op) -> bool:
    """It steps in a loop over a loader that was divided."""
    return any(loop.through.has("prepared") for loop in op.loops)


@every_program("save_state")
def state_saved_by_one(flow: Flow) -> Iterator[Hit]:
    """`save_state` is for all ranks: each writes its random numbers, and under FSDP or DeepSpeed its shards."""
    for op in of_accelerator(flow, "save_state"):
        if op.label == "first":
            yield hit(op)


@every_program("load_state")
def begins_anew(flow: Flow) -> Iterator[Hit]:
    """`load_state` brings states back, and the loop begins at its first epoch, with its first rows."""
    if flow.mentions(
        r"skip_first_batches|start\w*_epoch|epoch_start|first_epoch|resume_(?:step|epoch)|completed_steps|last_epoch"
    ):
        return
    if flow.mentions(r"register_for_checkpointing|StatefulDataLoader|use_stateful_dataloader|global_step\s*=|initial_"):
        return
    for op in of_accelerator(flow, "load_state"):
        loops = [one.op.loops[0] for one in backwards(flow) if len(one.op.loops) > 1 and one.op.index > op.index]
        start = loops[0].over.attrs.get("start") if loops and loops[0].over.kind == "range" else None
        if start is not None and start.const == 0 and not op.loops:
            yield hit(op)


_MEETS = ("gather", "gather_for_metrics", "reduce", "pad_across_processes", "wait_for_everyone", "get_state_dict")


@every_program(*_MEETS)
def met_by_one(flow: Flow) -> Iterator[Hit]:
    """All processes have to call it, and here the main one does alone."""
    made = of_accelerator(flow, *_MEETS)
    sharded = flow.mentions(r"(?i)fsdp|deepspeed|zero")
    for op in made:
        pure = any(guard.label == "first" and guard.pure for guard in op.guards)
        if op.label == "first" and pure and (op.last != "get_state_dict" or sharded):
            yield hit(op, name=op.last)
