"""Programs that resume, but not where they left off."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import pairwise

from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, function_around, hit, optimizers, torch_saves
from paramedic.detect.program import Function, text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Loop, Op, Value

_STATEFUL = {"optimizer": "optimizer", "scheduler": "scheduler", "scaler": "scaler"}


def _resumes(flow: Flow) -> list[Op]:
    """A saved state of the model is read back, and training goes on."""
    trained = backwards(flow)
    if not trained:
        return []
    return [op for op in flow.calls("load") if op.name == "torch.load" and op.index < trained[0].op.index]


def _restored(flow: Flow) -> list[Op]:
    return list(flow.calls("load_state_dict"))


@every_program("load")
def state_not_restored(flow: Flow) -> Iterator[Hit]:
    loads = _resumes(flow)
    restored = _restored(flow)
    if not loads or not any(op.of is not None and op.of.kind == "model" for op in restored):
        return
    if any(op.of is not None and op.of.kind in ("", "instance") for op in restored) or flow.mentions(
        r"load_state\(|set_optimizer_state_dict|set_state_dict"
    ):
        return
    back = {op.of.kind for op in restored if op.of is not None}
    for op, saved in torch_saves(flow):
        kinds = [one.attrs["of"].kind for one in saved.values() if one.kind == "state" and "of" in one.attrs]
        lost = [kind for kind in kinds if kind in _STATEFUL and kind not in back]
        lost += [f"network under {key!r}" for key in _networks(saved) if not _is_read(flow, key)]
        if lost and "model" in kinds:
            yield hit(loads[0], op, what=" and ".join(dict.fromkeys(lost)))


def _networks(saved: dict[str, Value]) -> list[str]:
    """Keys of the states of networks, where there are several: a student and its teacher, say."""
    of = {key: one.attrs["of"] for key, one in saved.items() if key and one.kind == "state" and "of" in one.attrs}
    models = {key: one.base for key, one in of.items() if one.kind == "model"}
    return list(models) if len({id(one) for one in models.values()}) > 1 else []


def _is_read(flow: Flow, key: str) -> bool:
    """Its name stands anywhere but where it is saved; or keys are gone through without their names."""
    named = re.compile(rf"['\"]{re.escape(key)}['\"]|\b{re.escape(key)}\s*=(?!=)\s*[\w.]*state_dict")
    times = sum(len(named.findall(module.text)) for module in flow.nodes)
    return times > 1 or flow.mentions(
        r"\b(?:for|in)\b[^\n]*(?:ckpt|checkpoint|ck|state|saved|snapshot)\w*(?:\.items\(|:)"
    )


@every_program("load")
def state_not_saved(flow: Flow) -> Iterator[Hit]:
    """Resumes from weights alone: moments and schedule start anew."""
    loads = _resumes(flow)
    saves = list(torch_saves(flow))
    if (
        not loads
        or not saves
        or flow.mentions(
            r"optim\w*\.state_dict|opt\.state_dict|get_state_dict|\.save_state\(|finetun|pretrain|\.save_checkpoint"
        )
    ):
        return
    steps_back = _same_file(saves[0][0], loads) or any(
        re.search(r"(?i)resum|restart|start_epoch|begin|first_epoch|last_epoch", op.module.text) for op in loads
    )
    model_kept = any(
        one.kind == "state" and one.attrs.get("of", Value()).kind == "model"
        for _, saved in saves
        for one in saved.values()
    )
    made = [op for op in optimizers(flow) if _has_memory(op)]
    if (
        model_kept
        and made
        and steps_back
        and any(op.of is not None and op.of.kind == "model" for op in _restored(flow))
    ):
        yield hit(saves[0][0], loads[0], what=made[0].last)


def _same_file(save: Op, loads: list[Op]) -> bool:
    path = save.args[1] if len(save.args) > 1 else Value()
    return any(op.args and (op.args[0] is path or (path.known and op.args[0].const == path.const)) for op in loads)


def _has_memory(op: Op) -> bool:
    momentum = op.keywords.get("momentum")
    return op.last != "SGD" or (momentum is not None and momentum.const not in (0, 0.0, None))


@every_distributed_program("save")
def saved_by_every_rank(flow: Flow) -> Iterator[Hit]:
    """No rank writes to a place of its own, and none is left out. Where a helper that saves is called for one rank, its
    author knows, and the call without a condition is meant for a single process."""
    saves = [op for op in flow.calls("save") if op.name == "torch.save"] if backwards(flow) else []
    guarded = {op.node for op in saves if op.label or any(guard.value.has("rank") for guard in op.guards)}
    for op in saves:
        path = op.argument("f", 1)
        if op.node in guarded or path is None or path.has("rank"):
            continue
        node = op.node.args[1] if isinstance(op.node, ast.Call) and len(op.node.args) > 1 else op.node
        around = function_around(op)
        where = around.name if isinstance(around, Function) else ""
        if not re.search(r"(?i)rank|local|shard|dcp", text_of(node) + where):
            yield hit(op, path=text_of(node)[:120])


@every_distributed_program("save")
def part_saved_as_whole(flow: Flow) -> Iterator[Hit]:
    """Of tensors that are spread over the ranks, the first rank writes what it holds itself, and nobody the rest."""
    for op in flow.calls("save", "save_file"):
        given = op.args[0] if op.args else None
        if given is None or op.label != "first" or not op.name.startswith(("torch.", "safetensors")):
            continue
        if given.has("local part") or any(one.has("local part") for one in given.attrs.values()):
            yield hit(op)
            continue
        states = [one for one in (given, *given.attrs.values()) if one.kind == "state"]
        of = [one.attrs["of"] for one in states if "of" in one.attrs]
        if any(one.wrap == "fsdp2" for one in of) and not flow.mentions(r"full_tensor|full_state_dict"):
            yield hit(op)
            continue
        models = [one for one in of if not one.wrap]
        trained = [one.loss.root for one in backwards(flow)]
        cut = [one for one in flow.calls("Parameter") if one.args and _cut_by_rank(one.args[0])]
        if (
            cut
            and any(one.kind == "model" and one.base in trained for one in models)
            and not _brought_together(flow, op)
        ):
            yield hit(op, cut[0])


def _cut_by_rank(value: Value, depth: int = 0) -> bool:
    """`full[rank * rows : (rank + 1) * rows].clone()`, or one of several chunks."""
    by, made = value.attrs.get("by"), value.made
    if by is not None and by.has("rank") and not value.attrs["sliced"].has("rank"):
        return True
    if made is None or depth > 4:
        return False
    if made.last == "narrow" and any(one.has("rank") for one in made.args):
        return True
    same = made.last in ("clone", "contiguous", "detach", "to", "float", "t", "copy")
    return same and made.of is not None and _cut_by_rank(made.of, depth + 1)


def _brought_together(flow: Flow, save: Op) -> bool:
    """The function that saves gathers before, or every rank writes what it has."""
    gathers = [
        one for one in flow.calls(*_GATHERS) if one.index < save.index and one.stack == save.stack[: len(one.stack)]
    ]
    near = [one for one in gathers if one.stack == save.stack and (not save.stack or one.loops[:1] == save.loops[:1])]
    written = [one for one in flow.calls("save", "save_file") if one.name.startswith(("torch.", "safetensors"))]
    others = [one for one in written if one is not save and not one.label]
    named = flow.mentions(r"(?i)(?:gather|full|merge|consolidate|unshard)\w*state|state\w*(?:gather|full|merge)")
    return bool(near or others or named)


_GATHERS = ("all_gather", "gather", "all_gather_into_tensor", "all_gather_object", "gather_object", "send", "recv")


@every_distributed_program("named_parameters", "state_dict")
def averaged_under_other_names(flow: Flow) -> Iterator[Hit]:
    """A copy keeps weights under the bare model's names and is updated under the wrapped one's: no name matches."""
    if flow.mentions(r"module\.['\"]|removeprefix|consume_prefix|partition\(['\"]module|\.replace\(['\"]_?module"):
        return
    for made in flow.ops:
        cls, keeper = made.of, made.result
        if made.kind != "call" or keeper.kind != "instance" or cls is None or cls.kind != "class":
            continue
        model = next((value for value in made.args if value.kind == "model"), None)
        if model is None or not _KEEPS_NAMES.search(text_of(keeper.node)):
            continue
        for op in flow.ops[made.index :]:
            method, given = op.of, op.args[0] if op.args else None
            if method is None or method.kind != "method" or method.element is not keeper or given is None:
                continue
            other = given.kind == "model" and given.base is model.base and _prefixed(given) != _prefixed(model)
            if other and _PASSES_OVER.search(text_of(method.node)):
                yield hit(op, made, name=text_of(op.node)[:60])
                break


_KEEPS_NAMES = re.compile(
    r"self\.\w+ = \{(\w+): .{0,60} for \1, ?\w+ in \w+\.(?:named_parameters|state_dict\(\)\.items)\("
)
_PASSES_OVER = re.compile(
    r"for (\w+), ?\w+ in \w+\.(?:named_parameters|state_dict\(\)\.items)\([^\n]*\n(?:[^\n]*\n)?\s+"
    r"(?:if[^\n]*\b\1 (?:not )?in self\.|\w+ = self\.\w+\.get\(\1)"
)


@every_program("load_state_dict")
def names_passed_over(flow: Flow) -> Iterator[Hit]:
    """The wrapped model's names into the bare one, or the other way round, with strict=False."""
    for op in _restored(flow):
        strict = op.argument("strict", 1)
        of = op.of
        if strict is None or strict.const is not False or of is None or of.kind != "model":
            continue
        if flow.mentions(r"module\.['\"]|removeprefix|consume_prefix|partition\(['\"]module|\.replace\(['\"]module"):
            continue
        for save, saved in torch_saves(flow):
            for one in saved.values():
                model = one.attrs.get("of", Value())
                if one.kind != "state" or model.kind != "model" or model.base is not of.base:
                    continue
                if _prefixed(model) != _prefixed(of):
                    yield hit(
                        op,
                        save,
                        saved="wrapped" if _prefixed(model) else "bare",
                        loaded="wrapped" if _prefixed(of) else "bare",
                    )


def _prefixed(model: Value) -> bool:
    return model.wrap in ("ddp", "ray", "accelerate", "deepspeed")


@every_program("load")
def begins_anew(flow: Flow) -> Iterator[Hit]:
    """The epoch or step is saved and the weights are restored, but the loop begins at nought."""
    loads = _resumes(flow)
    if not loads or not any(op.of is not None and op.of.kind == "model" for op in _restored(flow)):
        return
    counted = [
        (op, key)
        for op, saved in torch_saves(flow)
        for key in saved
        if re.fullmatch(r"(?i)(?:\w*_)?(?:epoch|step|iteration|iter)s?", key)
    ]
    loops = [loop for one in backwards(flow) for loop in one.op.loops]
    ranges = [loop for loop in loops if loop.over.kind == "range"]
    if not counted or not ranges:
        return
    key = re.escape(counted[0][1])
    used = flow.mentions(
        rf"\[['\"]{key}['\"]\](?!\s*=[^=])|\.get\(['\"]{key}['\"]|\.pop\(['\"]{key}|\*\*\w*(?:state|ckpt|checkpoint)"
    )
    outer = ranges[0]
    start = outer.over.attrs.get("start", Value())
    if start.number() == 0 and not outer.over.has("loaded") and outer.over.made is not None:
        if not used:
            yield hit(outer.over.made, counted[0][0], key=counted[0][1])


@every_distributed_program("save")
def read_before_written(flow: Flow) -> Iterator[Hit]:
    """One rank writes, all read at once, and nothing makes them wait."""
    for save in flow.calls("save"):
        if save.name != "torch.save" or save.label != "first" or len(save.args) < 2:
            continue
        for op in flow.ops[save.index + 1 : save.index + 40]:
            if op.last in (
                "barrier",
                "wait_for_everyone",
                "monitored_barrier",
                "broadcast",
                "all_reduce",
                "all_gather",
                "broadcast_object_list",
            ):
                break
            if op.last == "load" and op.name == "torch.load" and op.args and not op.label:
                same = op.args[0] is save.args[1] or (op.args[0].known and op.args[0].const == save.args[1].const)
                if same and op.loops == save.loops:
                    yield hit(op, save)


_ALLOCATE = ("get_state_dict", "get_optimizer_state_dict", "_init_optim_state", "optim_state_dict", "init_optim_state")


@every_program("load", "load_state_dict")
def loaded_into_nothing(flow: Flow) -> Iterator[Hit]:
    """What the dictionary does not name is not read, and an optimizer has no moments before its first step."""
    if flow.has(*_ALLOCATE):
        return
    for op in flow.calls("load", "load_state_dict"):
        given = op.argument("state_dict", 0)
        if given is None or not op.name.startswith("torch.distributed.checkpoint."):
            continue
        for state in (given, *(given.attrs.values() if given.kind == "dict" else ())):
            optimizer = state.attrs.get("of", Value()) if state.kind == "state" else state
            made = optimizer.made
            if optimizer.kind == "optimizer" and made is not None and not _has_state(flow, optimizer, op):
                if not optimizer.wrap and _has_memory(made):
                    yield hit(op, made, what=made.last)


def _has_state(flow: Flow, optimizer: Value, load: Op) -> bool:
    """It has stepped, or its state was filled by hand."""
    for op in flow.ops[: load.index]:
        if op.last == "step" and op.of is not None and op.of.made is optimizer.made:
            return True
        if op.kind == "setitem" and re.search(r"\.state\[", op.target):
            return True
    return optimizer.name == "parameter"


_CHANCE = frozenset(("get_rng_state", "getstate", "get_state", "get_rng_state_all", "bit_generator"))
_CHANCE_BACK = ("set_rng_state", "setstate", "set_state", "set_rng_state_all")


@every_distributed_program(*_CHANCE_BACK)
def chance_of_first_rank(flow: Flow) -> Iterator[Hit]:
    """The first rank's state of chance is saved and set on all: from then on they draw alike."""
    saves = [op for op, saved in torch_saves(flow) if op.label == "first" and any(map(_is_chance, saved.values()))]
    if not saves or not _draw_apart(flow):
        return
    for op in flow.calls(*_CHANCE_BACK):
        given = op.args[0] if op.args else None
        if given is None or op.label or not given.has("loaded") or given.has("rank"):
            continue
        if not any(seed.index > op.index and _by_rank(seed) for seed in flow.seeds):
            yield hit(op, saves[0])
            return


def _is_chance(value: Value, depth: int = 0) -> bool:
    if value.made is not None and value.made.last in _CHANCE:
        return True
    inner = [*(value.items or ()), *(value.attrs.values() if value.kind == "dict" else ())]
    return depth < 3 and any(_is_chance(one, depth + 1) for one in inner)


def _by_rank(seed: Op) -> bool:
    return any(one.has("rank") for one in (*seed.args, *seed.keywords.values()))


def _draw_apart(flow: Flow) -> bool:
    """Seeds differ between ranks; with one seed for all, or none that is seen, nothing is lost."""
    return any(map(_by_rank, flow.seeds))


_GOES_ON = re.compile(r"=\s*[\w.]+(?:\[|\.get\()['\"](?:\w+_)?(?:steps?|epochs?|iter\w*|updates?)['\"]")
_BY_ITSELF = frozenset(("ExponentialLR", "MultiplicativeLR", "ConstantLR", "ReduceLROnPlateau"))
"""Schedules that go on from the rate that the optimizer holds, or by the loss."""
_BROUGHT_FORWARD = (
    r"last_epoch|_step_count|sched\w*\.(?:load_)?state_dict|warm_?restart|load_state\(|\.load_checkpoint\("
)


@every_program("load_state_dict")
def schedule_begins_anew(flow: Flow) -> Iterator[Hit]:
    """Weights and counters are taken back, and the schedule of the rate is neither saved nor brought forward."""
    trained = backwards(flow)
    stepped = [op for op in flow.calls("step") if op.of is not None and op.of.kind == "scheduler"]
    if not trained or not stepped or flow.mentions(_BROUGHT_FORWARD):
        return
    back = [op for op in _restored(flow) if op.of is not None and op.args and op.index < trained[-1].op.index]
    models = [op for op in back if op.of and op.of.kind == "model" and op.args[0].has("loaded")]
    states = [op for op in back if op.of and op.of.kind == "optimizer"]
    if not models or not states or any(op.of is None or op.of.kind in ("", "scheduler", "instance") for op in back):
        return
    if any(_one_of_several(op) for op in back):
        return
    load = models[0]
    made = next((op.of.made for op in stepped if op.of is not None and op.of.made is not None), None)
    if made is None or made.last in _BY_ITSELF or not _GOES_ON.search(load.module.text):
        return
    forward = [op for op in stepped if op.args or not any(op.within(loop) for one in trained for loop in one.op.loops)]
    told = any(value.has("loaded") for value in (*made.args, *made.keywords.values()))
    saved = [op for op, held in torch_saves(flow) if any(_state_of(one, "model") for one in held.values())]
    if saved and not forward and not told:
        yield hit(load, made, what=made.last)


def _one_of_several(op: Op) -> bool:
    """`for one in (optimizer, scheduler): one.load_state_dict(...)`."""
    func = getattr(op.node, "func", None)
    name = text_of(func.value) if isinstance(func, ast.Attribute) else ""
    return any(re.search(rf"\b{re.escape(name)}\b", loop.target) for loop in op.loops if name)


def _state_of(value: Value, kind: str) -> bool:
    return value.kind == "state" and value.attrs.get("of", Value()).kind == kind


_PLACE_IN_EPOCH = re.compile(
    r"(?i)batch(?!_?size)|pos|offset|ind(?:ex|ices)|idx|consumed|seen|sampler|loader|iter|data|skip|samples"
)
_PASSES_BY = (
    r"islice|skip_first_batches|StatefulDataLoader|skip\w*batch|start_(?:batch|iter|index|idx)|resume_(?:step|iter|batch)"
    r"|consumed|fast_?forward|steps_in_epoch|set_start|batches_done|batch_offset|% len\(|// len\(|SaveState"
)


@every_distributed_program("save")
def epoch_begins_again(flow: Flow) -> Iterator[Hit]:
    """Saved in the middle of an epoch with the epoch's number alone: a resume goes through its first part again."""
    if flow.mentions(_PASSES_BY):
        return
    saves = list(torch_saves(flow))
    loads = [op for op in flow.calls("load") if op.name == "torch.load"]
    holding = [(op, saved) for op, saved in saves if any("epoch" in key.lower() for key in _keys(saved))]
    holding = [one for one in holding if len(saves) == 1 or _same_file(one[0], loads)]
    last = max((one.op.index for one in backwards(flow)), default=0)
    for backward in backwards(flow):
        for outer, inner in pairwise(backward.op.loops):
            start = outer.over.attrs.get("start", Value()) if outer.over.kind == "range" else Value()
            over = inner.through
            if not start.has("loaded") or "op" in start.attrs or over.kind != "loader" or _passes_over(inner):
                continue
            for op, saved in holding:
                midway = op.within(inner) or (_left_early(inner) and not op.loops and op.index < last)
                if midway and not _tells_place(saved):
                    yield hit(op, backward.op)
                    return


def _keys(saved: dict[str, Value], depth: int = 0) -> Iterator[str]:
    for key, value in saved.items():
        yield key
        if value.kind == "dict" and depth < 2:
            yield from _keys(value.attrs, depth + 1)


def _tells_place(saved: dict[str, Value]) -> bool:
    """Something beside the epoch says how far it was, or it is the next epoch's number."""
    counted = [value for key, value in saved.items() if "epoch" in key.lower()]
    return any(_PLACE_IN_EPOCH.search(key) for key in _keys(saved)) or any("op" in one.attrs for one in counted)


def _passes_over(loop: Loop) -> bool:
    """Rounds of the loop that do nothing: what was done before the checkpoint."""
    return any(isinstance(node, ast.Continue) for node in ast.walk(loop.node))


def _left_early(loop: Loop) -> bool:
    """After so many steps, wherever in the epoch that is."""
    for node in ast.walk(loop.node):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Compare) and "step" in text_of(node.test):
            reached = isinstance(node.test.ops[0], ast.GtE | ast.Gt | ast.Eq)
            if reached and isinstance(node.body[-1], ast.Return | ast.Break):
                return True
    return False
