"""Where a program trains: its backward passes, steps and reductions, by what they do and not by their names."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import TypeVar

from paramedic.detect.flow import Flow
from paramedic.detect.program import Function, Module
from paramedic.detect.setup import Hit
from paramedic.detect.values import Loop, Op, Value
from paramedic.model import Event

COLLECTIVES = frozenset(
    [
        "all_reduce",
        "all_gather",
        "all_gather_object",
        "all_gather_into_tensor",
        "reduce",
        "reduce_scatter",
        "reduce_scatter_tensor",
        "gather",
        "gather_object",
        "broadcast",
        "broadcast_object_list",
        "all_to_all",
        "all_to_all_single",
        "scatter",
        "all_reduce_coalesced",
        "allreduce",
        "allgather",
        "allreduce_",
        "gather_for_metrics",
        "reduce_dict",
        "pad_across_processes",
        "sync_between_processes",
        "synchronize_between_processes",
        "synchronize",
        "reduce_value",
        "reduce_tensor",
    ]
)
_STARTS = (
    "init_process_group", "DistributedDataParallel", "FullyShardedDataParallel", "fully_shard", "init_distributed",
    "Accelerator", "Fabric", "launch_from_torch", "TorchTrainer", "prepare_model", "DistributedSampler",
)  # fmt: skip
_MODEL_PARALLEL = re.compile(r"(?i)tp|tensor|model|pp|pipe|cp|context|sp|seq|ep|expert")
BOTH_WAYS = frozenset(("rank", "shard"))


Answer = TypeVar("Answer")


def noted(question: Callable[[Flow], Answer]) -> Callable[[Flow], Answer]:
    """Asked by many rules, answered once for each program."""

    @wraps(question)
    def asked(flow: Flow) -> Answer:
        if question.__name__ not in flow.notes:
            flow.notes[question.__name__] = question(flow)
        answer: Answer = flow.notes[question.__name__]
        return answer

    return asked


@dataclass(frozen=True, slots=True)
class Backward:
    op: Op
    loss: Value

    @property
    def loop(self) -> Loop | None:
        return self.op.loops[-1] if self.op.loops else None


def event_of(op: Op) -> Event:
    lines = op.module.lines
    text = lines[op.line - 1].strip()[:200] if op.line <= len(lines) else ""
    return Event(op.module.source, op.line, "code", text, op.line)


def hit(*ops: Op, **fields: object) -> Hit:
    return Hit(tuple(event_of(op) for op in ops), fields, asks=ops[0].asks)


def at(module: Module, node: object, **fields: object) -> Hit:
    """A place of the syntax tree."""
    line = getattr(node, "lineno", 1)
    text = module.lines[line - 1].strip()[:200] if line <= len(module.lines) else ""
    return Hit((Event(module.source, line, "code", text, line),), fields)


def methods_of(flow: Flow, module: Module, base: str, *names: str) -> Iterator[tuple[ast.ClassDef, Function]]:
    """Methods of these names in classes that are made from one of that name."""
    for cls in module.classes.values():
        if any(one.endswith(base) for one in flow.program.bases(module, cls)):
            yield from ((cls, one) for one in cls.body if isinstance(one, Function) and one.name in names)


@noted
def is_distributed(flow: Flow) -> bool:
    return flow.has(*_STARTS) or uses_horovod(flow) or any(is_deepspeed(op) for op in flow.calls("initialize"))


@noted
def done_before_ranks(flow: Flow) -> frozenset[tuple[str, int]]:
    """Places (file, line) that the parent comes to before it starts the ranks, and that none of these comes to."""
    spawned = next((op for op in flow.calls("spawn", "start_processes") if "multiprocessing" in op.name), None)
    if spawned is None:
        return frozenset()
    places = [
        {(op.module.source, op.line) for op in part} for part in (flow.ops[: spawned.index], flow.ops[spawned.index :])
    ]
    return frozenset(places[0] - places[1])


def is_deepspeed(op: Op) -> bool:
    return op.name.startswith("deepspeed") or "model_parameters" in op.keywords


@noted
def uses_horovod(flow: Flow) -> bool:
    return any(op.name.startswith(("horovod", "hvd")) for op in flow.calls("init"))


@noted
def model_parallel(flow: Flow) -> bool:
    """Ranks that hold parts of one model: splitting data or averaging gradients over all of them would be wrong."""
    if flow.has(
        "parallelize_module", "PipelineStage", "distribute_module", "initialize_model_parallel", "ColwiseParallel"
    ):
        return True
    if any(op.args and op.args[0].has("rank") for op in flow.calls("Parameter")):
        return True
    if flow.says("megatron", "parallel_state", "mpu", "rpc_sync"):
        return True
    return flow.mentions(r"PipelineModule") or (flow.says("rpc") and flow.mentions(r"\brpc\."))


@noted
def backwards(flow: Flow) -> list[Backward]:
    found = []
    for op in flow.calls("backward"):
        of = op.of
        if of is None:
            continue
        if op.name.startswith(".") and (
            of.kind in ("accelerator", "model", "optimizer") or (op.args and not of.has("graph"))
        ):
            found.append(Backward(op, op.args[0] if op.args else Value()))
        elif op.name.startswith("."):
            found.append(Backward(op, of))
        elif op.name == "torch.autograd.backward" and op.args:
            found.append(Backward(op, op.args[0]))
    return found


@noted
def steps(flow: Flow) -> list[Op]:
    """Where weights change."""
    found = []
    for op in flow.calls("step"):
        of = op.of
        if of is None or not op.name.startswith("."):
            continue
        optimizer = of.kind in ("optimizer", "scaler") or (of.kind == "model" and of.wrap == "deepspeed")
        if optimizer or (of.kind == "" and re.search(r"(?i)opt(?:im\w*)?(?:\.|\[\w*\])?$", _receiver(op))):
            found.append(op)
    return found


@noted
def optimizers(flow: Flow) -> list[Op]:
    """Calls that make one."""
    return [op for op in flow.ops if op.kind == "call" and op.result.kind == "optimizer" and op.result.made is op]


@noted
def schedules(flow: Flow) -> list[Op]:
    """Calls that make one."""
    return [op for op in flow.ops if op.kind == "call" and op.result.kind == "scheduler" and op.result.made is op]


def of_accelerator(flow: Flow, *names: str) -> list[Op]:
    """Methods of accelerate's Accelerator, or of Lightning's Fabric."""
    return [op for op in flow.calls(*names) if op.of is not None and op.of.kind == "accelerator"]


@noted
def torch_clips(flow: Flow) -> list[Op]:
    """torch's own clipping, which knows of no library that keeps gradients elsewhere."""
    clips = flow.calls("clip_grad_norm_", "clip_grad_value_")
    return [op for op in clips if op.name.startswith(("torch.", "nn.utils."))]


def torch_saves(flow: Flow) -> Iterator[tuple[Op, dict[str, Value]]]:
    """What `torch.save` writes, by key."""
    for op in flow.calls("save"):
        if op.name == "torch.save" and op.args:
            yield op, op.args[0].attrs if op.args[0].kind == "dict" else {"": op.args[0]}


def own_loaders(one: Backward) -> Iterator[tuple[Value, Op]]:
    """What the innermost loop around it goes over, where the program itself makes that loader, and the call."""
    for loop in one.op.loops[-1:]:
        over = loop.through
        if over.kind == "loader" and over.made is not None and over.made.index >= 0:
            yield over, over.made


def goes_with(op: Op, other: Op) -> bool:
    """In the same loop, and called whenever the other is."""
    return op.loops == other.loops and set(op.guards) <= set(other.guards)


@noted
def zeros(flow: Flow) -> list[Op]:
    found = list(flow.calls("zero_grad", "zero_grad_buffer"))
    found += [op for op in flow.of_kind("setattr") if op.target.endswith(".grad") and _clears(op)]
    found += [op for op in flow.calls("zero_", "fill_") if op.of is not None and op.of.has("grad")]
    return sorted(found, key=lambda op: op.index)


def _clears(op: Op) -> bool:
    """None and zeros clear it; `p.grad = …` of anything else is a gradient."""
    given = ast.unparse(op.node.value) if isinstance(op.node, ast.Assign | ast.AnnAssign) and op.node.value else ""
    return given == "None" or ".zeros" in given if given else not any(value.has("grad") for value in op.args)


def _receiver(op: Op) -> str:
    func = getattr(op.node, "func", None)
    return ast.unparse(func.value) if isinstance(func, ast.Attribute) else ""


@noted
def gradient_reductions(flow: Flow) -> list[Op]:
    """Collectives on gradients, called by the program itself."""
    found = []
    for op in flow.calls(
        "all_reduce",
        "allreduce",
        "allreduce_",
        "all_reduce_coalesced",
        "reduce_scatter",
        "reduce",
        "broadcast",
        "all_gather",
    ):
        if any(value.has("grad") for value in (*op.args, *op.keywords.values())):
            found.append(op)
    return found


@noted
def reduces_by_hand(flow: Flow) -> bool:
    """Also weights that are averaged, and what cannot be followed."""
    if gradient_reductions(flow) or flow.has(
        "register_hook", "register_post_accumulate_grad_hook", "finalize_model_grads"
    ):
        return True
    return any(
        any(value.kind == "params" for value in op.args) and (op.loops or op.last == "all_reduce")
        for op in flow.calls("all_reduce", "allreduce")
    ) or flow.mentions(
        r"average_gradients|sync_grad|reduce_grad|allreduce_grad|_allreduce|grad\w*_all_?reduce|averager|LocalSGD"
    )


_EACH_WEIGHT = re.compile(
    r"for \w+(?:, ?\w+)? in [^\n:]{0,60}?\.(?:named_)?(?:parameters|buffers)\(|parameters_to_vector\("
    r"|state_dict\(\)\.(?:items|values)|_flatten_dense_tensors\("
)
_TO_ONE = ("isend", "irecv", "P2POp")
_ADDS = re.compile(r"\w(?:\[[^\]\n]{1,40}\])? \+= \w{2,}\n|\.add_\(")
"""What has come from a neighbour, to what is there: a ring's own sum."""
_SENDS = ("all_reduce", "reduce", "broadcast", "all_gather", "gather", "scatter", "reduce_scatter", "send", "recv")


@noted
def exchanges_weights(flow: Flow) -> bool:
    """Again and again a function goes through weights or gradients and sends: ranks meet in their own way."""
    for op in flow.calls(*_SENDS, *_TO_ONE):
        if op.loops and any(value.kind in ("params", "state") or value.has("weights") for value in op.args):
            return True
    for op in flow.calls(*_SENDS):
        around = [loop for loop in op.loops if loop.over.kind != "params"]
        text = _text_around(op) if around else ""
        if _EACH_WEIGHT.search(text) or (".grad" in text and ".backward(" not in text):
            return True
    return any(op.loops and _ADDS.search(_text_around(op)) for op in flow.calls(*_TO_ONE, "send", "recv"))


def _text_around(op: Op) -> str:
    node = function_around(op)
    return "\n".join(op.module.lines[node.lineno - 1 : node.end_lineno]) if isinstance(node, Function) else ""


def function_around(op: Op) -> ast.AST:
    """The innermost function that it stands in, else the file."""
    best: ast.AST = op.module.tree
    for node in op.module.statements:
        if isinstance(node, Function) and node.lineno <= op.line <= (node.end_lineno or 0):
            best = node
    return best


def wrapped(flow: Flow, *kinds: str) -> list[Op]:
    """Wrapping calls of these kinds."""
    found = []
    for op in _wrapping(flow):
        if (
            (
                op.kind == "call"
                and op.result.kind == "model"
                and op.result.made is op
                and op.result.wrap in (kinds or ALL_WRAPS)
            )
            or (op.kind == "call" and op.last == "fully_shard" and (not kinds or "fsdp2" in kinds))
            or (
                (
                    op.kind == "call"
                    and op.result.items
                    and (not kinds or {"deepspeed", "accelerate", "fabric", "booster"} & set(kinds))
                )
                and any(one.kind == "model" and one.wrap and one.made is op for one in op.result.items)
            )
        ):
            found.append(op)
    return found


@noted
def _wrapping(flow: Flow) -> list[Op]:
    found = []
    for op in flow.ops:
        results = [op.result, *(op.result.items or ())]
        if op.kind == "call" and (op.last == "fully_shard" or any(one.wrap and one.made is op for one in results)):
            found.append(op)
    return found


ALL_WRAPS = ("ddp", "fsdp", "fsdp2", "deepspeed", "accelerate", "ray", "fabric", "booster")


@noted
def averages(flow: Flow) -> bool:
    """A wrapper averages gradients over the ranks."""
    return bool(wrapped(flow))


def forwards(flow: Flow, root: Value | None = None) -> list[Op]:
    return [op for op in flow.calls("forward") if op.of is not None and (root is None or op.of.base is root)]


def first_backward(flow: Flow) -> int:
    """Where training begins, in the order of operations."""
    return min((one.op.index for one in backwards(flow)), default=len(flow.ops))


@noted
def training_loops(flow: Flow) -> list[Loop]:
    """The innermost loops around backward passes."""
    found: list[Loop] = []
    for backward in backwards(flow):
        if backward.loop is not None and backward.loop not in found:
            found.append(backward.loop)
    return found


def conditional(op: Op, loop: Loop) -> bool:
    """Under a condition inside that loop; the conditions outside of it do not count."""
    number = next((n for n, one in enumerate(op.loops) if one is loop), 0)
    return any(guard.depth > number for guard in op.guards)


def behind_modulo(op: Op) -> bool:
    return any(guard.value.has("mod") or (guard.node is not None and _counts(guard.node)) for guard in op.guards)


def _counts(node: object) -> bool:
    return isinstance(node, ast.AST) and any(isinstance(part, ast.Mod) for part in ast.walk(node))
