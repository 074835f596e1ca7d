"""Programs that bring gradients, rates and counts together themselves, and do it wrongly."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_file, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    at,
    averages,
    backwards,
    conditional,
    event_of,
    forwards,
    gradient_reductions,
    hit,
    model_parallel,
    optimizers,
    steps,
    training_loops,
    wrapped,
    zeros,
)
from paramedic.detect.program import Function, Module, dotted, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value


@every_distributed_program("step")
def averaged_after_step(flow: Flow) -> Iterator[Hit]:
    """The weights have moved by each rank's own gradient when the gradients are brought together."""
    reduced = gradient_reductions(flow)
    if not reduced or averages(flow) or model_parallel(flow):
        return
    for loop in training_loops(flow):
        back = [one.op for one in backwards(flow) if one.op.loops and one.op.loops[-1] is loop]
        stepped = [op for op in steps(flow) if op.loops and op.loops[-1] is loop]
        cleared = [op for op in zeros(flow) if op.within(loop)]
        inside = [op for op in reduced if op.within(loop)]
        if len(back) != 1 or not stepped or not inside or not cleared or len(inside) != len(reduced):
            continue
        if any(conditional(op, loop) for op in (*back, *stepped, *cleared)):
            continue
        if back[0].index < stepped[0].index and min(op.index for op in inside) > stepped[-1].index:
            yield hit(inside[0], stepped[-1])


@every_distributed_program("register_comm_hook")
def hook_sums(flow: Flow) -> Iterator[Hit]:
    """A communication hook takes the place of DDP's reduction and of its division."""
    if any(one.loss.has("/world") for one in backwards(flow)):
        return
    for op in flow.calls("register_comm_hook"):
        hook = op.argument("hook", 1)
        node = hook.node if hook is not None else None
        if hook is None or hook.module is None or not isinstance(node, Function | ast.Lambda):
            continue
        place = _sums(node)
        if place is not None:
            yield Hit((*at(hook.module, place).quoted, event_of(op)))


_SHRINKS = re.compile(
    r"\bdiv_?\b|\bmul_?\b|true_divide|divide|\bAVG\b|PREMUL|\bmean\b|average|hook\w{0,80}\(|predivide"
    r"|compress\w{0,80}\("
)


def _sums(node: ast.AST) -> ast.AST | None:
    """The all-reduce of a function that neither divides nor hands on to another hook."""
    reduces = None
    name = getattr(node, "name", "")
    for part in ast.walk(node):
        if isinstance(part, ast.BinOp | ast.AugAssign) and isinstance(part.op, ast.Div | ast.Mult | ast.FloorDiv):
            return None
        if isinstance(part, ast.Call):
            called = dotted(part.func).rsplit(".", 1)[-1]
            if called in ("all_reduce", "reduce_scatter_tensor", "all_reduce_coalesced"):
                reduces = reduces or part
            elif called != name and _SHRINKS.search(f"{called}("):
                return None
        if isinstance(part, ast.Attribute) and part.attr in ("AVG", "PREMUL_SUM"):
            return None
    return reduces


@every_distributed_program("new_group", "new_subgroups", "new_subgroups_by_enumeration")
def node_group_only(flow: Flow) -> Iterator[Hit]:
    """DDP in the group of one node, and nothing that brings the nodes together."""
    if model_parallel(flow) or gradient_reductions(flow) or flow.has("register_comm_hook"):
        return
    if flow.mentions(
        r"(?i)tensor_?(?:model_?)?parallel|pipeline|expert|\btp_|\bpp_|model_?parallel|averager|local_?sgd|context_?parallel"
    ):
        return
    for op in wrapped(flow, "ddp"):
        group = op.argument("process_group")
        made = group.made if group is not None and group.kind == "group" else None
        if made is not None and made.last == "new_subgroups":
            yield hit(op, made)
            continue
        ranks = made.argument("ranks", 0) if made is not None else None
        if made is None or ranks is None or not isinstance(made.node, ast.Call):
            continue
        text = text_of(made.node) + text_of(made.loops[-1].node if made.loops else None)
        if re.search(r"(?i)per_node|local|node|gpus_per|per_host", text) and not _strided(made.node):
            yield hit(op, made)


def _strided(node: ast.Call) -> bool:
    """`range(i, world, per_node)`: one rank of every node."""
    return any(
        isinstance(part, ast.Call) and dotted(part.func) == "range" and len(part.args) == 3 for part in ast.walk(node)
    )


@every_distributed_program("fully_shard")
def root_not_sharded(flow: Flow) -> Iterator[Hit]:
    """fully_shard for the blocks alone: what lies outside of them is neither sharded nor reduced."""
    if gradient_reductions(flow) or wrapped(flow, "ddp", "fsdp", "deepspeed", "accelerate", "fabric", "ray", "booster"):
        return
    calls = list(flow.calls("fully_shard"))
    if not calls or not backwards(flow) or flow.has("replicate", "PipelineStage", "distribute_module"):
        return
    if all(_of_a_list(op) for op in calls) and len({text_of(op.loops[-1].node.iter) for op in calls}) == 1:  # type: ignore[attr-defined]
        yield hit(calls[0])


def _of_a_list(op: Op) -> bool:
    """Its argument is what a loop over `model.blocks` gives."""
    node, loop = op.node, op.loops[-1].node if op.loops else None
    if not isinstance(node, ast.Call) or not node.args or not isinstance(loop, ast.For):
        return False
    names = {part.id for part in ast.walk(loop.target) if isinstance(part, ast.Name)}
    given = node.args[0]
    if not isinstance(given, ast.Name) or given.id not in names:
        return False
    over = loop.iter
    while isinstance(over, ast.Call):
        last = dotted(over.func).rsplit(".", 1)[-1]
        if last in ("values", "items") and isinstance(over.func, ast.Attribute):
            over = over.func.value
        elif last in ("enumerate", "reversed", "list", "tuple") and over.args:
            over = over.args[0]
        else:
            return False
    return isinstance(over, ast.Attribute)


_RATE = re.compile(r"(?im)^[^#\n]*\b\w*(?:lr|rate)\w*\b[^#\n]*(?:batch|bsz|\bbs\b)|sqrt|linear_scaling")
_SHARED_BATCH = re.compile(
    r"(?i)\b\w*(?:global|total|effective)?_?batch\w*['\"\])]*\s*//\s*(?:\w+\.)*\w*(?:world|num_proc|n_?ranks|get_world_size|num_replicas)"
)


@every_distributed_program()
def rate_raised_for_shared_batch(flow: Flow) -> Iterator[Hit]:
    """The rate grows with the ranks, though all of them together take the batch of one."""
    for op in optimizers(flow):
        rate = op.argument("lr", 1)
        mark = rate.attrs.get("op") if rate is not None else None
        if rate is not None and mark is not None and mark.name == "Mult":
            pair = rate.attrs["left"], rate.attrs["right"]
            if any(one.has("world") and "op" not in one.attrs for one in pair) and _of_shared_batch(flow):
                yield hit(op)


def _of_shared_batch(flow: Flow) -> bool:
    return flow.mentions(_SHARED_BATCH.pattern) and not flow.mentions(_RATE.pattern)


@every_distributed_program("randn_like", "randn")
def own_noise_alike(flow: Flow) -> Iterator[Hit]:
    """Noise of the global generator, which every rank has seeded with the same number."""
    if model_parallel(flow) or not wrapped(flow) or flow.has("Accelerator", "Fabric"):
        return
    seeds = [op for op in flow.seeds if op.last == "manual_seed" and not op.name.startswith("torch.cuda")]
    trained = backwards(flow)
    if not seeds or not trained or any(op.loops for op in seeds):
        return
    before = [op for op in seeds if op.index < trained[0].op.index]
    if not before or any(value.has("rank", "unseeded") for value in (*before[-1].args,)) or not before[-1].args:
        return
    if flow.mentions(r"set_rng_state|fork_rng|initial_seed|seed\w*\s*\+\s*\w*rank|rank\w*\s*\+\s*\w*seed"):
        return
    for op in flow.calls("randn_like", "randn"):
        loops = [one for one in training_loops(flow) if op.within(one)]
        if not loops or op.no_grad or "generator" in op.keywords or not op.name.startswith("torch"):
            continue
        if not _of_data(op):
            continue
        if any(one.within(loops[0]) and one.index > op.index and not one.no_grad for one in forwards(flow)):
            yield hit(op, before[-1])
            break


@every_distributed_program("randn_like", "randn", "normal")
def own_generator_alike(flow: Flow) -> Iterator[Hit]:
    """Noise for the samples of a batch, from a generator of its own that has the same seed on every rank."""
    if model_parallel(flow) or not (wrapped(flow) or gradient_reductions(flow)):
        return
    if flow.mentions(r"\bset_state\(|\.jump\(|fast_forward|initial_seed"):
        return
    for op in flow.calls("randn_like", "randn", "normal"):
        generator = op.keywords.get("generator")
        loops = [one for one in training_loops(flow) if op.within(one)]
        if generator is None or not loops or op.no_grad or not op.name.startswith("torch"):
            continue
        if generator.kind != "generator" or not generator.has("seeded") or generator.has("rank", "unseeded"):
            continue
        if _of_shard(op) and any(one.within(loops[0]) and one.index > op.index for one in forwards(flow)):
            yield hit(op, *([generator.made] if generator.made is not None else []))
            break


def _of_shard(op: Op) -> bool:
    """As much as there are samples in a batch of this rank's own."""
    return any(value.has("shard") for value in op.args)


def _of_data(op: Op) -> bool:
    """As much noise as there are samples in the batch."""
    return any(value.has("data", "shard") or value.kind == "batch" for value in op.args)


@every_file("all_reduce", "all_gather")
def counts_in_order_of_sight(flow: Flow, module: Module) -> Iterator[Hit]:
    """One collective for each key of a dictionary that data has filled: ranks see keys in other orders."""
    for cls in module.statements:
        if isinstance(cls, ast.ClassDef):
            yield from _by_key(module, cls)


_EMPTY = re.compile(r"^(?:collections\.)?(?:defaultdict\(|Counter\(\)|dict\(\)|\{\}$)")


def _by_key(module: Module, cls: ast.ClassDef) -> Iterator[Hit]:
    empty: set[str] = set()
    filled: set[str] = set()
    for node in ast.walk(cls):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                pairs = (
                    zip(target.elts, node.value.elts, strict=False)
                    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
                    else [(target, node.value)]
                )
                for one, value in pairs:
                    if isinstance(one, ast.Attribute) and _EMPTY.search(text_of(value)):
                        empty.add(text_of(one))
        elif (
            isinstance(node, ast.AugAssign)
            and isinstance(node.target, ast.Subscript)
            and not isinstance(node.target.slice, ast.Constant)
        ):
            filled.add(text_of(node.target.value))
    if empty.isdisjoint(filled):
        return
    for node in ast.walk(cls):
        if not isinstance(node, ast.For):
            continue
        over = re.sub(r"\.(?:items|keys|values)\(\)$", "", text_of(node.iter))
        over = re.sub(r"^list\((.*)\)$", r"\1", over)
        if over not in empty or over not in filled:
            continue
        for part in ast.walk(node):
            if isinstance(part, ast.Call) and dotted(part.func).rsplit(".", 1)[-1] in ("all_reduce", "all_gather"):
                yield at(module, part, name=over)


@every_file("all_reduce")
def bias_before_sum(flow: Flow, module: Module) -> Iterator[Hit]:
    """Every rank adds the whole bias to its partial product, and the sum has it once for each rank."""
    for cls in module.classes.values():
        yield from _biased(flow, module, cls)


def _biased(flow: Flow, module: Module, cls: ast.ClassDef) -> Iterator[Hit]:
    forward = next((one for one in cls.body if isinstance(one, Function) and one.name == "forward"), None)
    init = next((one for one in cls.body if isinstance(one, Function) and one.name == "__init__"), None)
    if forward is None or init is None:
        return
    made = text_of(init)
    whole = re.search(r"self\.bias\s*=\s*(.*)", made)
    split = re.search(r"self\.weight\s*=\s*(.*)", made)
    biased: dict[str, int] = {}
    for node in ast.walk(forward):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and isinstance(node.value, ast.Call):
            if _adds_bias(node.value, made, whole, split):
                biased[node.targets[0].id] = node.lineno
            else:
                biased.pop(node.targets[0].id, None)
    for node in ast.walk(forward):
        if not isinstance(node, ast.Call) or not node.args or not _sums_over_ranks(flow, module, node):
            continue
        first = node.args[0]
        early = isinstance(first, ast.Name) and biased.get(first.id, node.lineno) < node.lineno
        if early or (isinstance(first, ast.Call) and _adds_bias(first, made, whole, split)):
            yield at(module, node)


_OF_RANK = re.compile(r"rank|chunk|\bsplit|narrow|//|None|/ ")


def _adds_bias(node: ast.Call, made: str, whole: re.Match[str] | None, split: re.Match[str] | None) -> bool:
    name = dotted(node.func)
    if name.rsplit(".", 1)[-1] == "linear" and len(node.args) > 2 and text_of(node.args[2]) == "self.bias":
        return bool(
            whole and split and not _OF_RANK.search(whole[1]) and re.search(r"rank|chunk|narrow|//|split", split[1])
        )
    if name.startswith("self.") and name.count(".") == 1:
        layer = re.search(rf"{re.escape(name)}\s*=\s*(?:torch\.)?nn\.Linear\((.*)\)", made)
        return bool(
            layer and re.match(r"[^,]*//[^,]*(?:world|size|tp|rank|parallel)", layer[1]) and "bias" not in layer[1]
        )
    return False


def _sums_over_ranks(flow: Flow, module: Module, node: ast.Call) -> bool:
    """all_reduce itself, or a function of the project that is nothing but one."""
    name = dotted(node.func)
    last = name.rsplit(".", 1)[-1]
    if last == "all_reduce":
        return "MAX" not in text_of(node) and "AVG" not in text_of(node)
    applied = re.search(rf"(?m)^.*\b{re.escape(last)}\b.*=\s*(.*\.apply.*)$", module.text)
    if name.endswith(".apply"):
        names = [name.split(".")[0]]
    elif applied and "," not in applied[0].split("=")[0]:
        names = re.findall(r"(\w+)\.apply", applied[1])
    elif applied:
        left = [one.strip() for one in applied[0].split("=")[0].split(",")]
        right = re.findall(r"(\w+)\.apply", applied[1])
        names = [right[left.index(last)]] if last in left and len(left) == len(right) else []
    else:
        names = []
    for one in names:
        cls = module.classes.get(one)
        method = next(
            (part for part in cls.body if isinstance(part, Function) and part.name == "forward"), None
        ) if cls is not None else None  # fmt: skip
        if method is not None and "all_reduce" in text_of(method):
            return True
    function = module.functions.get(last)
    return function is not None and "all_reduce" in text_of(function) and "reduce" in last


_SCHEDULES = ("ScheduleGPipe", "Schedule1F1B", "ScheduleInterleaved1F1B", "ScheduleLoopedBFS")
_MEANS = re.compile(r"(?:functional\.|F\.)(?:mse_loss|cross_entropy|l1_loss|nll_loss|smooth_l1_loss|huber_loss)$")


@every_program(*_SCHEDULES)
def pipeline_gradients_unscaled(flow: Flow) -> Iterator[Hit]:
    """Gradients of all micro-batches are added up; the mean of each loss is of one micro-batch alone."""
    for name in _SCHEDULES:
        for op in flow.calls(name):
            scale, count, loss = (
                op.argument("scale_grads"), op.argument("n_microbatches", 1), op.argument("loss_fn", 2)
            )  # fmt: skip
            if scale is None or scale.const is not False or loss is None:
                continue
            if count is not None and count.number() == 1:
                continue
            made = loss.made
            plain = loss.kind == "import" and _MEANS.search(loss.name)
            held = loss.kind == "criterion" and made is not None and "reduction" not in made.keywords
            if (plain or held) and not flow.has("mul_", "div_"):
                yield hit(op)


@every_program(*_SCHEDULES)
def pipeline_loss_divided(flow: Flow) -> Iterator[Hit]:
    """The schedule divides the gradients by the number of micro-batches itself, unless it is told not to."""
    for op in flow.calls(*_SCHEDULES):
        scale, count, loss = op.argument("scale_grads"), op.argument("n_microbatches", 1), op.argument("loss_fn", 2)
        if loss is None or count is None or (scale is not None and scale.const is not True) or "**" in op.keywords:
            continue
        if not op.name.startswith("torch.") or not isinstance(op.node, ast.Call) or count.number() == 1:
            continue
        given = [*op.node.args[1:2], *(key.value for key in op.node.keywords if key.arg == "n_microbatches")]
        if given and _divides_by(loss.node, text_of(given[0]).rsplit(".", 1)[-1], count.number()):
            yield hit(op, name=text_of(given[0]))


def _divides_by(node: ast.AST | None, name: str, number: float | None) -> bool:
    """A function, or a lambda, that gives its loss divided by that."""
    if isinstance(node, ast.Lambda):
        given: list[ast.expr | None] = [node.body]
    elif isinstance(node, Function):
        given = [part.value for part in ast.walk(node) if isinstance(part, ast.Return)]
        kept = {text_of(one) for one in given}
        given += [
            part.value for part in ast.walk(node) if isinstance(part, ast.Assign) and text_of(part.targets[0]) in kept
        ]
    else:
        return False
    for one in given:
        if isinstance(one, ast.BinOp) and isinstance(one.op, ast.Div):
            same = text_of(one.right).rsplit(".", 1)[-1] == name and not name.isdigit()
            if same or (number is not None and isinstance(one.right, ast.Constant) and one.right.value == number):
                return True
    return False


@every_distributed_program("PostLocalSGDState")
def averaged_too_late(flow: Flow) -> Iterator[Hit]:
    """From one step on gradients stay on their ranks, and weights are averaged only from a later one on."""
    for state in flow.calls("PostLocalSGDState"):
        start = state.argument("start_localSGD_iter", 2)
        for op in flow.calls("PeriodicModelAverager", "HierarchicalModelAverager"):
            later = op.argument("warmup_steps", 1)
            begins, ends = (one.number() if one is not None else None for one in (start, later))
            if begins is not None and ends is not None and begins < ends:
                yield hit(op, state, begins=int(begins), ends=int(ends))


@every_distributed_program("DistributedSampler")
def sampler_of_one_node(flow: Flow) -> Iterator[Hit]:
    """Data shared among the ranks of a node, by a program that knows of all ranks."""
    for op in flow.calls("DistributedSampler"):
        count, rank = op.argument("num_replicas", 1), op.argument("rank", 2)
        if count is None or rank is None or not count.has("local size") or not rank.has("local"):
            continue
        if flow.mentions(r"['\"](?:WORLD_SIZE|RANK)['\"]|get_world_size\(|get_rank\("):
            yield hit(op)


@every_distributed_program("ReduceLROnPlateau")
def schedule_of_own_loss(flow: Flow) -> Iterator[Hit]:
    """Each rank lowers its rate when its own share of the data says so."""
    if not wrapped(flow) or flow.has("Accelerator", "Fabric", "sync_dist"):
        return
    for op in flow.calls("step"):
        schedule = op.of
        made = schedule.made if schedule is not None and schedule.kind == "scheduler" else None
        if made is None or made.last != "ReduceLROnPlateau" or not op.args or op.label:
            continue
        value: Value = op.args[0]
        if not value.has("shard", "rank") or value.has("reduced"):
            continue
        outer = op.loops[0] if op.loops else None
        gathers = [
            one
            for one in flow.ops
            if one.kind == "call"
            and (outer is None or one.within(outer))
            and re.search(r"(?i)reduce|gather|broadcast|synchroni", one.last)
        ]
        if not gathers:
            yield hit(op, made)
