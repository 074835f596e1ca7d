"""Numbers that stand in different files and must agree: ranks, parallel degrees, batch sizes, GPUs of a node."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from paramedic.detect.setup import Hit, Part, Setup
from paramedic.model import Fact


def world_size(launch: Part) -> tuple[int, tuple[Fact, ...]] | None:
    """As the launch command alone implies it; None where it leaves a part of it to the environment."""
    name = launch.get("launcher")
    if name == "torchrun":
        ranks, nodes = launch.number_of("nproc_per_node"), launch.number_of("nnodes")
        nodes = 1 if nodes is None and launch.lacks("nnodes") else nodes
        if ranks is None and launch.lacks("nproc_per_node"):
            ranks = 1
        if ranks and nodes:
            return ranks * nodes, launch.quoted("nproc_per_node", "nnodes") or launch.quoted("launcher")
    if name == "deepspeed" and launch.lacks("hostfile") and launch.lacks("include"):
        ranks, nodes = launch.number_of("num_gpus"), launch.number_of("num_nodes")
        if ranks and (nodes or launch.lacks("num_nodes")):
            return ranks * (nodes or 1), launch.quoted("num_gpus", "num_nodes")
    if name == "accelerate" and (count := launch.number_of("num_processes")):
        return count, launch.quoted("num_processes")
    if name == "horovodrun" and (count := launch.number_of("num_proc")):
        return count, launch.quoted("num_proc")
    return None


def started(setup: Setup, *kinds: str) -> Iterator[tuple[Part, Part]]:
    """A launch command with the arguments of its own program."""
    by_place = {(part.source, part.number): part for part in setup.of("launch")}
    for part in setup.of(*kinds):
        launch = by_place.get((part.source, part.number - 1))
        if launch is not None:
            yield launch, part


def megatron_world(setup: Setup) -> Iterator[Hit]:
    for launch, part in started(setup, "megatron"):
        size = world_size(launch)
        keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        degrees = [part.number_of(key) if part.has(key) else 1 for key in keys]
        if size is None or None in degrees or "?" in part.facts:
            continue
        product = 1
        for degree in degrees:
            product *= degree or 1
        if product > 1 and size[0] % product:
            yield Hit((*part.quoted(*keys), *size[1]), {"world": size[0], "product": product})


def megatron_global_batch(setup: Setup) -> Iterator[Hit]:
    for launch, part in started(setup, "megatron"):
        size = world_size(launch)
        total, micro = part.number_of("global_batch_size"), part.number_of("micro_batch_size")
        keys = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
        degrees = [part.number_of(key) if part.has(key) else 1 for key in keys]
        if (
            size is None
            or None in degrees
            or not total
            or not micro
            or "?" in part.facts
            or part.has("rampup_batch_size")
        ):
            continue
        product = 1
        for degree in degrees:
            product *= degree or 1
        if product and size[0] % product == 0:
            replicas = size[0] // product
            if total % (micro * replicas):
                quoted = (*part.quoted("global_batch_size", "micro_batch_size"), *size[1])
                yield Hit(quoted, {"total": total, "micro": micro, "replicas": replicas})


def deepspeed_of(setup: Setup, launch: Part, part: Part) -> Part | None:
    """The DeepSpeed configuration that the command names, where it lies in this folder."""
    for key in ("deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config", "ds-config"):
        named = part.get(key)
        if isinstance(named, str):
            return file_named(setup, launch.source, named, "deepspeed")
    return None


def file_named(setup: Setup, source: str, named: str, kind: str) -> Part | None:
    beside = posixpath.normpath(posixpath.join(posixpath.dirname(source), named))
    for part in setup.of(kind):
        if part.source in (posixpath.normpath(named), beside):
            return part
    return None


def deepspeed_world(setup: Setup) -> Iterator[Hit]:
    """All three sizes and the number of ranks are known: they agree, or nothing starts."""
    for launch, part in started(setup, "transformers", "arguments"):
        size, config = world_size(launch), deepspeed_of(setup, launch, part)
        if size is None or config is None:
            continue
        keys = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
        total, micro, steps = (config.number_of(key) for key in keys)
        if total and micro and steps and total != micro * steps * size[0] and total % (micro * steps) == 0:
            fields = {
                "total": total,
                "micro": micro,
                "steps": steps,
                "world": size[0],
                "right": micro * steps * size[0],
            }
            yield Hit((*config.quoted(*keys), *size[1]), {**fields, "section": config.number})


_SAME = {
    "train_micro_batch_size_per_gpu": "per_device_train_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "max_grad_norm",
    "optimizer.params.lr": "learning_rate",
    "fp16.enabled": "fp16",
    "bf16.enabled": "bf16",
}


def trainer_and_deepspeed(setup: Setup) -> Iterator[Hit]:
    """The Trainer refuses to start where its arguments and DeepSpeed's file differ; "auto" cannot differ."""
    for launch, part in started(setup, "transformers"):
        config = deepspeed_of(setup, launch, part)
        if config is None or not isinstance(part.get("deepspeed"), str):  # `--deepspeed FILE` is the Trainer's
            continue
        for key, argument in _SAME.items():
            ours, theirs = config.get(key), part.get(argument)
            if ours is None or theirs is None or ours == "auto" or isinstance(ours, str) or isinstance(theirs, str):
                continue
            if float(ours) != float(theirs):
                quoted = (*config.quoted(key), *part.quoted(argument))
                fields = {"key": key, "ours": ours, "argument": argument, "theirs": theirs}
                yield Hit(quoted, {**fields, "section": config.number})


def named_file_missing(setup: Setup) -> Iterator[Hit]:
    """Only where other files of its folder are here, so that the project is surely all there."""
    sources = {source.id for source in setup.run.sources}
    folders = {posixpath.dirname(source) for source in sources}
    for launch, part in started(setup, "transformers", "arguments", "megatron"):
        for key in ("deepspeed", "deepspeed_config"):
            named = part.get(key)
            if not isinstance(named, str) or not named.endswith(".json") or named.startswith(("/", "~", "$")):
                continue
            plain = posixpath.normpath(named)
            beside = posixpath.normpath(posixpath.join(posixpath.dirname(launch.source), named))
            near = posixpath.dirname(plain) in folders or posixpath.dirname(beside) in folders
            if near and plain not in sources and beside not in sources and not _ends_so(plain, sources):
                yield Hit(part.quoted(key), {"named": named})


def _ends_so(path: str, sources: set[str]) -> bool:
    name = posixpath.basename(path)
    return any(posixpath.basename(source) == name for source in sources)


def lightning_slurm(setup: Setup) -> Iterator[Hit]:
    """Lightning wants one Slurm task for each device."""
    trainers = [
        p for p in setup.of("lightning") if isinstance(p.get("devices"), int) and not isinstance(p.get("devices"), bool)
    ]
    batches = [p for p in setup.of("slurm") if p.number_of("ntasks_per_node")]
    if len(trainers) != 1 or len(batches) != 1:
        return
    devices, tasks = trainers[0].number_of("devices"), batches[0].number_of("ntasks_per_node")
    started = {p.get("program") for p in setup.of("run", "launch") if p.source == batches[0].source}
    ours = any(
        isinstance(name, str) and posixpath.basename(name) == posixpath.basename(trainers[0].source) for name in started
    )
    if ours and devices and devices > 0 and tasks != devices:
        quoted = (*batches[0].quoted("ntasks_per_node"), *trainers[0].quoted("devices"))
        yield Hit(quoted, {"tasks": tasks, "devices": devices, "section": batches[0].number})


def accelerate_nodes(setup: Setup) -> Iterator[Hit]:
    """`accelerate launch --config_file x.yaml` in a batch script for another number of machines."""
    for launch in setup.of("launch"):
        named = launch.get("config_file")
        config = file_named(setup, launch.source, named, "accelerate") if isinstance(named, str) else None
        batch = next((p for p in setup.of("slurm") if p.source == launch.source), None)
        if config is None or batch is None or launch.has("num_machines"):
            continue
        machines, nodes = config.number_of("num_machines"), batch.number_of("nodes")
        if machines and nodes and machines != nodes:
            quoted = (*config.quoted("num_machines"), *batch.quoted("nodes"))
            yield Hit(quoted, {"machines": machines, "nodes": nodes, "section": config.number})


def model_heads(setup: Setup) -> Iterator[Hit]:
    """Tensor parallelism of Colossal-AI over a model whose configuration lies beside it."""
    models = list(setup.of("model"))
    for part in setup.of("colossalai"):
        degree = part.number_of("tp_size")
        if len(models) == 1 and degree and degree > 1 and part.get("class") == "HybridParallelPlugin":
            heads = models[0].number_of("num_attention_heads")
            if heads and heads % degree:
                quoted = (*part.quoted("tp_size"), *models[0].quoted("num_attention_heads"))
                yield Hit(quoted, {"heads": heads, "degree": degree})
