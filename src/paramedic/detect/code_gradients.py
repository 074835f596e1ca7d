"""Programs whose gradients are scaled, cleared, clipped or applied at the wrong place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    Backward,
    averages,
    backwards,
    behind_modulo,
    conditional,
    gradient_reductions,
    hit,
    model_parallel,
    noted,
    optimizers,
    reduces_by_hand,
    steps,
    training_loops,
    wrapped,
    zeros,
)
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Loop, Op, Value, params_root


@every_distributed_program()
def loss_divided_by_world(flow: Flow) -> Iterator[Hit]:
    """The wrapper has averaged the gradients already."""
    if not wrapped(flow, "ddp", "fsdp", "fsdp2", "deepspeed", "ray", "accelerate") or model_parallel(flow):
        return
    if gradient_reductions(flow):
        return
    losses = [one for one in backwards(flow) if one.loss.has("/world") and not one.loss.has("*world", "world")]
    divisions = [op for op in flow.of_kind("augassign") if op.name == "Div"] + list(flow.calls("div_"))
    gradients = [
        op
        for op in sorted(divisions, key=lambda op: op.index)
        if op.of is not None and op.of.has("grad") and op.args and op.args[0].has("world")
    ]
    if (losses or gradients) and not flow.mentions(
        r"ReduceOp\.SUM|op=SUM|register_comm_hook|set_gradient_divide_factor|gradient_predivide|reduction=['\"]sum"
    ):
        yield from (hit(backward.op, what="The loss") for backward in losses)
        yield from (hit(op, what="Each gradient") for op in gradients)


@every_distributed_program("all_reduce")
def summed_not_divided(flow: Flow) -> Iterator[Hit]:
    """Gradients added up over the ranks by hand, and never divided."""
    if averages(flow) or model_parallel(flow) or flow.mentions(r"""reduction\s*=\s*["']sum["']"""):
        return
    sums = [op for op in gradient_reductions(flow) if op.last == "all_reduce" and _is_sum(op)]
    if (
        not sums
        or _divided(flow)
        or flow.mentions(r"lr\s*/\s*\(?\w*world|/ ?\w*world_?size|/ ?world|/ ?self\.world|AVG\b")
    ):
        return
    yield hit(sums[0])


def _is_sum(op: Op) -> bool:
    given = op.argument("op", 1)
    return given is None or given.name.endswith("SUM")


def _divided(flow: Flow) -> bool:
    for op in flow.ops:
        if op.kind == "augassign" and op.name in ("Div", "Mult") and op.of is not None and op.of.has("grad"):
            return True
        if (
            op.last in ("div_", "mul_", "div", "mul", "true_divide")
            and op.of is not None
            and (op.of.has("grad") or op.of.has("element"))
        ):
            return True
        if (
            op.kind in ("setattr", "setitem")
            and op.target.endswith("grad")
            and op.args
            and op.args[-1].has("/n", "/world")
        ):
            return True
        if op.last in ("copy_",) and op.args and op.args[0].has("/world", "/n"):
            return True
    return any(backward.loss.has("/world") for backward in backwards(flow))


@every_distributed_program("all_reduce", "allreduce")
def divided_elsewhere(flow: Flow) -> Iterator[Hit]:
    """Gradients are added up, and what makes a mean of the sum stands in the learning rate or in a hook."""
    if averages(flow) or model_parallel(flow) or not reduces_by_hand(flow):
        return
    for op in optimizers(flow):
        if _by_world(op.argument("lr", 1)):
            yield hit(op, what="The learning rate")
    for op in flow.of_kind("setitem"):
        if op.args[0].const == "lr" and _by_world(op.args[1]):
            yield hit(op, what="The learning rate")
    for op in flow.calls("register_hook", "register_post_accumulate_grad_hook"):
        text = "".join(text_of(value.node) for value in op.args if value.node is not None)
        if re.search(r"(?:/=?|div_?\() ?\(?(?:\w+\.)*(?:get_)?(?:world|n_?ranks)", text):
            yield hit(op, what="Each gradient")


def _by_world(value: Value | None, depth: int = 0) -> bool:
    """Somewhere in it is a division by the number of ranks."""
    if value is None or depth > 6 or "left" not in value.attrs:
        return value is not None and value.has("/world")
    left, right = value.attrs["left"], value.attrs["right"]
    divides = value.attrs["op"].name in ("Div", "FloorDiv") and right.has("world")
    return divides or _by_world(left, depth + 1) or _by_world(right, depth + 1)


@noted
def _accumulations(flow: Flow) -> list[tuple[Backward, Op]]:
    """Backward passes of which several come before one step."""
    return list(_accumulating(flow))


def _accumulating(flow: Flow) -> Iterator[tuple[Backward, Op]]:
    found = steps(flow)
    cleared = zeros(flow)
    for backward in backwards(flow):
        loop = backward.loop
        if loop is None or backward.loss.has("scaled:engine"):
            continue
        mine = [op for op in found if op.index > backward.op.index]
        inside = [op for op in mine if op.within(loop)]
        if any(op.of is not None and op.of.wrap == "deepspeed" for op in found):
            continue
        if inside and all(behind_modulo(op) and conditional(op, loop) for op in inside):
            if _clears_always(cleared, loop):
                continue
            yield backward, inside[0]
        elif not inside and len(backward.op.loops) > 1 and _is_count(loop):
            outer = backward.op.loops[-2]
            after = [op for op in mine if op.within(outer) and not conditional(op, outer)]
            if after and not any(op.within(loop) for op in cleared):
                yield backward, after[0]


def _clears_always(cleared: list[Op], loop: Loop) -> bool:
    return any(op.within(loop) and not conditional(op, loop) for op in cleared)


def _is_count(loop: Loop) -> bool:
    """Over a number of small batches, or over the pieces of one batch."""
    over = loop.through
    return isinstance(loop.node, ast.For) and over.kind != "loader"


def _divides(backward: Backward, flow: Flow) -> bool:
    if backward.loss.has("/n", "/world"):
        return True
    for op in flow.ops:
        if op.kind == "augassign" and op.name in ("Div", "Mult") and op.of is not None and op.of.has("grad"):
            return True
        if op.last in ("div_", "mul_") and op.of is not None and op.of.has("grad"):
            return True
    return bool(flow.has("Accelerator", "Fabric")) or flow.mentions(
        r"set_gradient_divide_factor|gradient_accumulation_steps\s*=|reduction=['\"]sum"
    )


@every_program("backward")
def accumulation_undivided(flow: Flow) -> Iterator[Hit]:
    for backward, step in _accumulations(flow):
        if (
            not _divides(backward, flow) and not _given_a_gradient(backward) and _one_loss(flow, backward)
        ) and backward.loss.has("graph"):
            yield hit(backward.op, step)


def _given_a_gradient(backward: Backward) -> bool:
    """What `backward` starts from is no loss then: whoever computed the gradient has divided it, or not."""
    op = backward.op
    return "gradient" in op.keywords or bool(op.args and backward.loss is op.of)


def _one_loss(flow: Flow, backward: Backward) -> bool:
    """Several losses of one batch are another matter."""
    return sum(other.loop is backward.loop for other in backwards(flow)) == 1


@every_distributed_program("backward")
def accumulation_without_no_sync(flow: Flow) -> Iterator[Hit]:
    if not wrapped(flow, "ddp", "fsdp", "fsdp2") or flow.has("Accelerator", "Fabric", "no_sync"):
        return
    found = [(backward, step) for backward, step in _accumulations(flow) if _one_loss(flow, backward)]
    if (
        found
        and not flow.says("megatron")
        and not flow.mentions(
            r"no_sync|require_backward_grad_sync|set_requires_gradient_sync|set_is_last_backward|requires_gradient_sync"
        )
    ):
        for backward, step in found:
            inside = [text_of(guard.node) for guard in step.guards if guard.node is not None and guard.depth]
            condition = inside[-1] if inside else "the loop ends"
            yield hit(step, backward.op, condition=condition)


@every_distributed_program("no_sync")
def no_sync_around_everything(flow: Flow) -> Iterator[Hit]:
    all_of = backwards(flow)
    inside = [one for one in all_of if any(c.name == "no_sync" and c.sure for c in one.op.contexts)]
    if inside and len(inside) == len(all_of) and not gradient_reductions(flow):
        if not any(one.loop is not None and conditional(one.op, one.loop) for one in inside):
            yield hit(inside[0].op)


def _order(flow: Flow, loop: Loop) -> list[tuple[str, Op]]:
    """What is done to gradients in one round of a loop, in order."""
    marks: list[tuple[str, Op]] = []
    marks += [("backward", one.op) for one in backwards(flow) if one.loop is loop]
    for word, ops in (
        ("step", steps(flow)),
        ("zero", zeros(flow)),
        ("clip", list(flow.calls("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"))),
    ):
        marks += [(word, op) for op in ops if op.loops and op.loops[-1] is loop]
    return sorted(marks, key=lambda mark: mark[1].index)


@every_program("backward")
def cleared_before_step(flow: Flow) -> Iterator[Hit]:
    """Nothing is left for the step: gradients are cleared after backward, or first computed after the step."""
    for loop in training_loops(flow):
        marks = [(word, op) for word, op in _order(flow, loop) if word in ("backward", "step", "zero")]
        words = [word for word, _ in marks]
        if words.count("backward") != 1 or "step" not in words or any(conditional(op, loop) for _, op in marks):
            continue
        if (
            len(
                {
                    id(op.of.base) if op.of is not None and op.of.kind == "optimizer" else 0
                    for word, op in marks
                    if word == "step"
                }
            )
            > 1
        ):
            continue
        at = words.index("step")
        before = [mark for mark in (marks[at + 1 :] + marks[:at]) if mark[0] in ("backward", "zero")]
        if before and before[-1][0] == "zero":
            yield hit(before[-1][1], marks[at][1])


@every_program("backward")
def never_cleared(flow: Flow) -> Iterator[Hit]:
    if flow.mentions(r"zero_grad|\.grad\s*=\s*None|grad\.zero_|zero_grad_buffer|set_to_none"):
        return
    if flow.mentions(r"\.grad\s*=[^=]|foreach_zero_") and flow.mentions(r"zero_\(|fill_\(0|\[:\]\s*=\s*0"):
        return  # gradients are windows of a buffer, which is cleared
    stepped = [
        op
        for op in steps(flow)
        if op.of is not None and op.of.kind == "optimizer" and op.of.wrap != "deepspeed" and op.of.name != "parameter"
    ]
    for backward in backwards(flow):
        after = [op for op in stepped if backward.loop is not None and op.within(backward.loop)]
        if after and backward.op.of is not None and backward.op.of.kind not in ("model", "accelerator"):
            yield hit(after[0], backward.op)


@every_program("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm")
def clipped_at_wrong_time(flow: Flow) -> Iterator[Hit]:
    for loop in training_loops(flow):
        marks = _order(flow, loop)
        words = [word for word, _ in marks]
        if words.count("backward") != 1 or words.count("step") != 1 or words.count("clip") != 1:
            continue
        if any(conditional(op, loop) for _, op in marks):
            continue
        backward, step, clip = words.index("backward"), words.index("step"), words.index("clip")
        if backward < step and not backward < clip < step:
            yield hit(marks[clip][1], marks[step][1], when="after the step" if clip > step else "before backward")


# -- number formats ------------------------------------------------------------------------------------------------


@every_program("autocast")
def half_without_scaler(flow: Flow) -> Iterator[Hit]:
    """Gradients of half precision underflow or overflow without a loss scale."""
    if flow.mentions(r"GradScaler|loss_scale|scaler|Accelerator|deepspeed|Fabric|amp\.initialize"):
        return
    for op in flow.calls("autocast"):
        dtype = op.argument("dtype", 1)
        default = dtype is None and (op.name.endswith("cuda.amp.autocast") or (op.args and op.args[0].const == "cuda"))
        half = default or (dtype is not None and dtype.name in ("torch.float16", "torch.half"))
        enabled = op.argument("enabled")
        if not half or (enabled is not None and enabled.const is not True):
            continue
        used = [
            one
            for one in flow.calls("forward")
            if any(c.value is op.result or c.value.made is op for c in one.contexts)
        ]
        trains = [one for one in used if not one.no_grad and one.result.has("graph")]
        if trains and not _divides_gradients(flow) and any(backward.loss.has("graph") for backward in backwards(flow)):
            yield hit(op)


def _divides_gradients(flow: Flow) -> bool:
    """A scale of one's own is taken back from the gradients before the step."""
    return flow.mentions(r"\.grad\.(?:div_|mul_)\(|\.grad /= |\.grad \*= |_foreach_(?:div|mul)_\(")


@every_program("scale")
def plain_step_of_scaled(flow: Flow) -> Iterator[Hit]:
    """Scaled gradients in a step that does not know of the scale."""
    stepped = steps(flow)
    by_scaler = [op for op in stepped if op.of is not None and op.of.kind == "scaler"]
    plain = [op for op in stepped if op.of is not None and op.of.kind == "optimizer"]
    scaled = [one for one in backwards(flow) if one.loss.has("scaled")]
    if scaled and plain and not by_scaler and not flow.mentions(r"unscale_|scaler\.step|inv_scale|get_scale"):
        yield hit(plain[0], scaled[0].op)


@every_program("step")
def scaled_step_of_plain(flow: Flow) -> Iterator[Hit]:
    """The scaler divides gradients that were never multiplied."""
    off = [
        op
        for op in flow.calls("GradScaler", "ShardedGradScaler")
        if (e := op.argument("enabled")) is not None and e.const is not True
    ]
    by_scaler = [op for op in steps(flow) if op.of is not None and op.of.kind == "scaler" and op.of.name != "parameter"]
    all_of = backwards(flow)
    bare = [
        one
        for one in all_of
        if not one.loss.has("scaled")
        and one.loss.has("graph")
        and one.op.of is not None
        and one.op.of.kind != "accelerator"
    ]
    if by_scaler and bare and len(bare) == len(all_of) and not off and not flow.mentions(r"\.scale\("):
        yield hit(bare[0].op, by_scaler[0])


@every_program("step")
def scaler_never_updated(flow: Flow) -> Iterator[Hit]:
    by_scaler = [op for op in steps(flow) if op.of is not None and op.of.kind == "scaler" and op.of.name != "parameter"]
    if by_scaler and not flow.mentions(r"\.update\("):
        yield hit(by_scaler[0])


@every_distributed_program("register_comm_hook")
def half_hook_with_scale(flow: Flow) -> Iterator[Hit]:
    """Gradients times a fixed scale, sent in half precision, whose largest number is 65504."""
    hooks = [op for op in flow.calls("register_comm_hook") if any("fp16_compress" in value.name for value in op.args)]
    if not hooks or flow.mentions(r"isfinite|isinf|isnan|found_inf"):
        return  # steps that overflow are passed over
    for backward in backwards(flow):
        scale = _scale_of(backward.loss)
        if scale is not None and scale >= 4096:
            yield hit(backward.op, hooks[0], scale=f"{scale:g}")


def _scale_of(loss: Value, depth: int = 0) -> float | None:
    """The constant that the loss was multiplied by."""
    left, right, op = loss.attrs.get("left"), loss.attrs.get("right"), loss.attrs.get("op")
    if left is None or right is None or op is None or op.name != "Mult" or depth > 3:
        return None
    for one, other in ((left, right), (right, left)):
        number = other.number()
        if number is not None and one.has("graph"):
            return number
    return None


# -- learning rate -------------------------------------------------------------------------------------------------


@every_program("step")
def schedule_in_batches(flow: Flow) -> Iterator[Hit]:
    """A schedule as long as there are epochs, stepped after every batch."""
    for op in flow.calls("step"):
        schedule = op.of
        made = schedule.made if schedule is not None and schedule.kind == "scheduler" else None
        if made is None or len(op.loops) < 2 or conditional(op, op.loops[-1]):
            continue
        outer, inner = op.loops[-2], op.loops[-1]
        if "epoch" not in outer.target.lower() or inner.through.kind != "loader":
            continue
        epochs = outer.over.attrs.get("stop")
        length = made.argument("T_max", 1) if made.last == "CosineAnnealingLR" else made.argument("total_iters")
        if length is None or epochs is None or made.last not in ("CosineAnnealingLR", "LinearLR", "PolynomialLR"):
            continue
        same = length is epochs or (length.known and length.const == epochs.const and epochs.known)
        if same:
            yield hit(op, made)


@every_program("step")
def schedule_of_small_batches(flow: Flow) -> Iterator[Hit]:
    """The schedule goes on with every small batch, the optimizer with every few of them."""
    for backward, step in _accumulations(flow):
        loop = backward.loop
        if loop is None or not step.within(loop) or flow.has("Accelerator"):
            continue
        for op in flow.calls("step"):
            if (
                op.of is not None
                and op.of.kind == "scheduler"
                and op.within(loop)
                and not conditional(op, loop)
                and op.loops[-1] is loop
            ):
                yield hit(op, step)


@every_distributed_program()
def rate_scaled_twice(flow: Flow) -> Iterator[Hit]:
    for op in optimizers(flow):
        rate = op.argument("lr", 1)
        if rate is not None and _times_world(rate) > 1:
            yield hit(op)


def _times_world(value: Value, depth: int = 0) -> int:
    left, right, op = value.attrs.get("left"), value.attrs.get("right"), value.attrs.get("op")
    if left is None or right is None or op is None or depth > 5:
        return 0
    below = _times_world(left, depth + 1) + _times_world(right, depth + 1)
    own = op.name == "Mult" and any(one.has("world") and "op" not in one.attrs for one in (left, right))
    return below + own


# -- clipping ------------------------------------------------------------------------------------------------------


@every_program("clip_grad_norm_")
def clip_on_sharded(flow: Flow) -> Iterator[Hit]:
    """FSDP's first version holds flat shards: a norm over them is that of one rank's part."""
    roots = {id(op.result.base) for op in flow.calls("FullyShardedDataParallel") if op.name.startswith("torch")}
    for op in flow.calls("clip_grad_norm_"):
        given = op.argument("parameters", 0)
        root = params_root(given) if given is not None else None
        if "nn.utils" in op.name and root is not None and id(root) in roots:
            model = given.attrs.get("model", Value()).name if given is not None else ""
            yield hit(op, model=_model_text(op) or model or "model")


def _model_text(op: Op) -> str:
    node = op.node
    return text_of(node.args[0]).split(".parameters")[0][:60] if isinstance(node, ast.Call) and node.args else ""


@every_program("clip_grad_norm_", "clip_grad_value_")
def clip_before_unscale(flow: Flow) -> Iterator[Hit]:
    scaled = [one for one in backwards(flow) if one.loss.has("scaled")]
    by_scaler = [op for op in steps(flow) if op.of is not None and op.of.kind == "scaler"]
    if not scaled or not by_scaler or flow.mentions(r"unscale_|unscale\("):
        return
    for op in flow.calls("clip_grad_norm_", "clip_grad_value_"):
        if (
            op.index > scaled[0].op.index
            and op.index < by_scaler[-1].index
            and set(scaled[0].op.guards) <= set(op.guards)
            and (op.loops == by_scaler[-1].loops or op.loops == scaled[0].op.loops)
        ):
            yield hit(op)
