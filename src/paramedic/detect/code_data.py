"""Programs whose ranks read the wrong part of the data, judged by what their values depend on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_distributed_program, every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import (
    averages,
    backwards,
    event_of,
    forwards,
    hit,
    model_parallel,
    training_loops,
    uses_horovod,
)
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_RANKS = re.compile(r"rank|world|shard|num_processes|process_index|get_worker_info|split_dataset")


def _training_loaders(flow: Flow) -> Iterator[Value]:
    """Loaders whose batches go into a backward pass."""
    seen: list[Value] = []
    loops = [loop for backward in backwards(flow) for loop in backward.op.loops]
    overs = [loop.through for loop in loops]
    for op in flow.calls("next"):
        if op.args and any(op.within(loop) for loop in training_loops(flow)):
            overs.append(op.args[0])
    for over in overs:
        if over.kind == "loader" and over not in seen:
            seen.append(over)
            yield over


def _shared(flow: Flow) -> bool:
    """Gradients are averaged over ranks that each ought to read their own part."""
    return (averages(flow) or uses_horovod(flow)) and not model_parallel(flow)


@every_distributed_program("DistributedSampler")
def fixed_sampler(flow: Flow) -> Iterator[Hit]:
    for op in flow.calls("DistributedSampler"):
        replicas, rank = op.argument("num_replicas", 1), op.argument("rank", 2)
        if rank is not None and rank.number() is not None and not rank.has("rank"):
            yield hit(op, what=f"rank {rank.const}")
        elif replicas is not None and replicas.number() == 1 and not replicas.has("world"):
            yield hit(op, what="one replica")


@every_distributed_program("DataLoader")
def loader_without_sampler(flow: Flow) -> Iterator[Hit]:
    if not _shared(flow) or flow.has("Accelerator", "Fabric", "prepare_data_loader", "split_dataset_by_node"):
        return
    own_seed = any(value.has("rank") for op in flow.seeds for value in op.args)
    for loader in _training_loaders(flow):
        made = loader.made
        if made is None or made.last != "DataLoader" or "**" in made.keywords or loader.has("shard", "rank"):
            continue
        dataset, sampler = loader.attrs.get("dataset", Value()), loader.attrs.get("sampler")
        shuffled = made.keywords.get("shuffle")
        if "batch_sampler" in made.keywords or (
            sampler is not None and sampler.kind != "sampler" and not sampler.known
        ):
            continue
        drawn = shuffled is not None and shuffled.const is not False
        if "IterableDataset" in dataset.bases or dataset.has("unseeded") or (own_seed and drawn):
            continue
        if _RANKS.search(text_of(made.node)) or (dataset.node is not None and _RANKS.search(text_of(dataset.node))):
            continue
        if (
            dataset.kind == ""
            and dataset.made is not None
            and re.search(r"(?i)iter|stream|web|shard", dataset.made.name)
        ):
            continue
        yield hit(made)


@every_distributed_program("backward")
def stream_not_split_among_ranks(flow: Flow) -> Iterator[Hit]:
    if not _shared(flow) or flow.has("Accelerator", "Fabric"):
        return
    for loader in _training_loaders(flow):
        dataset = loader.attrs.get("dataset", Value())
        if "IterableDataset" not in dataset.bases or loader.has("rank", "shard", "unseeded") or loader.made is None:
            continue
        if not re.search(r"rank|world|shard|process|random|uuid", _class_text(dataset)):
            yield hit(loader.made, name=dataset.name)


@every_program("DataLoader")
def stream_not_split_among_workers(flow: Flow) -> Iterator[Hit]:
    for op in flow.calls("DataLoader"):
        dataset = op.argument("dataset", 0) or Value()
        workers = op.argument("num_workers", 5)
        number = workers.number() if workers is not None else None
        if "IterableDataset" not in dataset.bases or number is None or number < 2 or "worker_init_fn" in op.keywords:
            continue
        if not re.search(r"worker|random|uuid|split_dataset", _class_text(dataset)):
            yield hit(op, name=dataset.name, workers=int(number))


def _class_text(dataset: Value) -> str:
    """The class, and the functions that it calls."""
    if dataset.node is None or dataset.module is None:
        return ""
    text = text_of(dataset.node)
    for name, node in dataset.module.functions.items():
        if re.search(rf"\b{re.escape(name)}\(", text):
            text += text_of(node)
    return text


@every_distributed_program("forward")
def same_draw_on_every_rank(flow: Flow) -> Iterator[Hit]:
    if not _shared(flow):
        return
    loops = training_loops(flow)
    for op in forwards(flow):
        inside = [loop for loop in loops if op.within(loop)]
        if not inside or op.no_grad or not op.args or op.label:
            continue
        tags = frozenset(tag for value in op.args for tag in value.tags)
        if "random" not in tags or tags & {"rank", "unseeded", "data", "shard", "epoch"}:
            continue
        draws = [one for one in _draws(flow) if any(one.within(loop) for loop in inside) and not one.label]
        chosen = any(one.args[0].has("random") and not one.args[0].has("rank") for one in flow.of_kind("slice"))
        if draws:
            found = hit(draws[0], op)
            yield found if chosen else Hit(found.quoted, found.fields, "info")


def _draws(flow: Flow) -> Iterator[Op]:
    for op in flow.ops:
        if (
            op.kind == "call"
            and op.result.has("random")
            and op.last
            in (
                "randn",
                "rand",
                "randint",
                "randperm",
                "permutation",
                "choice",
                "integers",
                "normal",
                "sample",
                "standard_normal",
            )
        ):
            yield op


@every_distributed_program()
def overlapping_parts(flow: Flow) -> Iterator[Hit]:
    """An order that differs between ranks, of which each takes its share."""
    if not _shared(flow):
        return
    for op in flow.of_kind("slice"):
        if op.of is None or not _taken_by_rank(op.args[0]):
            continue
        order = op.of
        if not order.has("random") or order.has("data", "graph", "output"):
            continue
        if order.has("unseeded"):
            yield hit(op, how="without a seed")
        elif (
            order.has("rank")
            and order.made is not None
            and order.made.last in ("randperm", "permutation", "shuffle", "sample")
            and _seeded_by_rank(order.made)
        ):
            yield hit(op, how="with a seed of its own")


def _taken_by_rank(key: Value, depth: int = 0) -> bool:
    """The rank itself is in it, and not only the length of what this rank has."""
    if not key.has("rank") or depth > 8:
        return key.has("rank")
    parts = [part for part in (key.attrs.get("left"), key.attrs.get("right"), *(key.items or ())) if part is not None]
    if "below" in key.attrs:
        parts = [key.attrs["start"], key.attrs["step"]]
    if parts:
        return any(_taken_by_rank(part, depth + 1) for part in parts)
    return not key.has("len")


def _seeded_by_rank(op: Op) -> bool:
    """What it draws differs between ranks by its seed; an order of a part that is this rank's already is its own."""
    if any(value.has("rank", "shard") for value in op.args):
        return False
    of = op.of
    generator = op.keywords.get("generator") or (of if of is not None and of.kind == "generator" else None)
    return generator is None or generator.has("rank")


@every_program("randperm", "permutation")
def permuted_apart(flow: Flow) -> Iterator[Hit]:
    """Samples and labels in two orders."""
    cuts = [op for op in flow.of_kind("slice") if (made := op.args[0].made) is not None and _draws_an_order(made)]
    for number, one in enumerate(cuts):
        for other in cuts[number + 1 :]:
            if one.args[0].made is other.args[0].made or one.of is other.of:
                continue
            for later in flow.ops[other.index + 1 : other.index + 60]:
                if (
                    one.result in later.args
                    and other.result in later.args
                    and later.last in ("TensorDataset", "zip", "from_tensor_slices", "fit")
                ):
                    yield hit(other, one, later)
                    break


def _draws_an_order(op: Op) -> bool:
    """With the global generator, or one without a seed: two calls give two orders."""
    of = op.of
    seeded = of is not None and of.kind == "generator" and of.made is not None and bool(of.made.args)
    return op.last in ("randperm", "permutation") and "generator" not in op.keywords and not seeded


@every_program("parallelize_module", "PipelineStage")
def split_in_model_parallel(flow: Flow) -> Iterator[Hit]:
    for op in flow.calls("DistributedSampler"):
        rank = op.argument("rank", 2)
        if rank is None or (not (rank.has("mesh") or "mesh" in _rank_text(op)) and _is_global(rank)):
            yield hit(op, what="a DistributedSampler over all ranks")
    loops = training_loops(flow) + [loop for op in flow.calls("step") for loop in op.loops[-1:]]
    one_axis = not any(
        len(mesh.result.made.args[1].items or ()) > 1
        for mesh in flow.calls("init_device_mesh")
        if mesh.result.made and len(mesh.args) > 1
    )
    if not flow.has("parallelize_module") or not one_axis or flow.mentions(r"SequenceParallel|Shard\("):
        return
    for op in forwards(flow):
        if (
            op.args
            and any(op.within(loop) for loop in loops)
            and op.args[0].has("rank", "unseeded")
            and op.args[0].has("random")
        ) and not op.args[0].has("mesh"):
            yield hit(op, what="a batch of its own")


def _rank_text(op: Op) -> str:
    node = op.node
    return " ".join(text_of(k.value) for k in node.keywords if k.arg == "rank") if isinstance(node, ast.Call) else ""


def _is_global(rank: Value) -> bool:
    return (rank.has("rank") and rank.made is None) or (rank.made is not None and rank.made.last in ("get_rank",))


@every_program("DataLoader")
def generator_copied_to_workers(flow: Flow) -> Iterator[Hit]:
    """A generator made once and drawn from in `__getitem__`: every worker has the same copy."""
    for op in flow.calls("DataLoader"):
        dataset, workers = op.argument("dataset", 0), op.argument("num_workers", 5)
        number = workers.number() if workers is not None else None
        if (
            dataset is None
            or not isinstance(dataset.node, ast.ClassDef)
            or not number
            or "worker_init_fn" in op.keywords
        ):
            continue
        made = {name for name, value in dataset.attrs.items() if value.kind == "generator"}
        for child in dataset.node.body:
            if isinstance(child, ast.FunctionDef) and child.name == "__getitem__":
                used = next((name for name in made if f"self.{name}." in text_of(child)), None)
                if used and "worker" not in text_of(dataset.node):
                    yield Hit((event_of(op),), {"name": f"self.{used}", "workers": int(number)})


@every_program("DistributedSampler")
def sampler_without_epoch(flow: Flow) -> Iterator[Hit]:
    """The loader is gone through several times, always in the same order."""
    if flow.mentions(r"set_epoch"):
        return
    for one in backwards(flow):
        for number, loop in enumerate(one.op.loops):
            over = loop.through
            sampler = over.attrs.get("sampler") if over.kind == "loader" else None
            if (
                number == 0
                or isinstance(one.op.loops[number - 1].node, ast.While)
                or sampler is None
                or sampler.name != "DistributedSampler"
                or sampler.made is None
            ):
                continue
            shuffle = sampler.made.argument("shuffle", 3)
            if (shuffle is None or shuffle.const is not False) and not over.has("prepared"):
                yield hit(sampler.made, name=_target(sampler.made) or "sampler")


def _target(op: Op) -> str:
    """The name that it is assigned to."""
    line = op.module.lines[op.line - 1] if op.line <= len(op.module.lines) else ""
    found = re.match(r"\s*([\w.]+)\s*(?::[^=]+)?=", line)
    return found[1] if found and "DistributedSampler" in line and "DataLoader(" not in line else ""
