"""Ray Train: what all workers have to do together, what each is given, and what comes back after a failure."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from paramedic.detect.every import every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, hit
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op, Value

_READS = ("iter_torch_batches", "iter_batches", "iter_rows", "to_tf", "to_torch")
_LIGHTNING = ("RayLightningEnvironment", "RayDDPStrategy", "RayFSDPStrategy", "RayDeepSpeedStrategy", "prepare_trainer")


def _of_ray(flow: Flow, *names: str) -> list[Op]:
    return [op for op in flow.calls(*names) if op.name.startswith(("ray.", "train.", "session.", "tune."))]


def _alone(flow: Flow) -> bool:
    """One worker, as the program says itself."""
    counts = [op.argument("num_workers", 1) for op in flow.calls("ScalingConfig")]
    return any(count is not None and count.const == 1 for count in counts)


@every_program("TorchTrainer", "report")
def reported_by_one(flow: Flow) -> Iterator[Hit]:
    """`report` waits for all workers; here only the first one calls it."""
    reports = _of_ray(flow, "report")
    if not flow.has("TorchTrainer", "TensorflowTrainer", "DataParallelTrainer") or _alone(flow):
        return
    if all(op.label == "first" for op in reports):
        yield from (hit(op) for op in reports[:1])


@every_program("FailureConfig")
def begins_anew(flow: Flow) -> Iterator[Hit]:
    """Failures are to be survived and checkpoints are kept, and no worker asks for the last of them."""
    if flow.mentions(r"get_checkpoint|resume_from_checkpoint|ckpt_path|\.restore\("):
        return
    kept = [op for op in _of_ray(flow, "report") if _checkpoint(op) is not None]
    for op in flow.calls("FailureConfig"):
        most = op.argument("max_failures", 0)
        if most is not None and kept and (most.number() or _by_default(op)):
            yield hit(op, kept[0])


def _by_default(op: Op) -> int:
    """Where it comes from the command line: what it is unless something else is said there."""
    given = op.written("max_failures")
    named = re.match(r"args\.(\w{1,40})", text_of(given)) if given is not None else None
    if named is None:
        return 0
    option = named[1].replace("_", "[-_]")
    found = re.search(rf"--{option}[\"'][^\n]{{0,80}}default=(\d{{1,6}})", op.module.text)
    return int(found[1]) if found else 0


def _checkpoint(op: Op) -> Value | None:
    """What it hands over to be kept."""
    given = op.argument("checkpoint", 1)
    return None if given is None or given.const is None else given


@every_program(*_READS)
def all_rows_for_all(flow: Flow) -> Iterator[Hit]:
    """A worker goes over the whole Dataset and not over its shard."""
    if not flow.has("TorchTrainer", "TensorflowTrainer") or _alone(flow) or flow.has("streaming_split"):
        return
    for op in flow.calls(*_READS):
        made = _source(op)
        if made is None or not made.name.startswith("ray.data.") or not _in_worker(flow, op):
            continue
        if any(_goes_over(one.op, op) for one in backwards(flow)):
            yield hit(op, made)


def _source(op: Op) -> Op | None:
    """What the Dataset was made by, before it was mapped or shuffled."""
    made = op.of.made if op.of is not None else None
    while made is not None and made.name.startswith(".") and made.of is not None and made.of.made is not made:
        made = made.of.made
    return made


def _goes_over(op: Op, read: Op) -> bool:
    """It stands in a loop over what is read there."""
    return any(
        loop.over.made is read or read.node in ast.walk(loop.node.iter)
        for loop in op.loops
        if isinstance(loop.node, ast.For)
    )


def _in_worker(flow: Flow, op: Op) -> bool:
    """It stands in what the workers run."""
    given = [one.argument("train_loop_per_worker", 0) for one in flow.calls("TorchTrainer", "TensorflowTrainer")]
    return any(function is not None and function.name in op.stack for function in given)


@every_program("DataConfig")
def training_rows_not_split(flow: Flow) -> Iterator[Hit]:
    """`datasets_to_split` leaves out the dataset that is trained on: every worker is given all of it."""
    if _alone(flow):
        return
    trained: set[str] = {
        op.args[0].const
        for op in flow.calls("get_dataset_shard")
        if op.args and isinstance(op.args[0].const, str) and "train" in op.args[0].const
    }
    for trainer in flow.calls("TorchTrainer", "TensorflowTrainer"):
        given, config = trainer.keywords.get("datasets"), trainer.keywords.get("dataset_config")
        made = config.made if config is not None else None
        split = made.argument("datasets_to_split", 0) if made is not None and made.last == "DataConfig" else None
        if made is None or split is None or split.items is None or given is None:
            continue
        whole = (trained & given.attrs.keys()) - {one.const for one in split.items}
        if whole:
            yield hit(made, what=min(whole))


@every_program("prepare_data_loader")
def epochs_in_one_order(flow: Flow) -> Iterator[Hit]:
    """The loader that Ray divides is shuffled alike in every epoch: its sampler is never told which one it is."""
    if flow.mentions(r"set_epoch") or _alone(flow):
        return
    for op in _of_ray(flow, "prepare_data_loader"):
        loader = op.argument("data_loader", 0)
        shuffled = loader.made.keywords.get("shuffle") if loader is not None and loader.made is not None else None
        own = "add_dist_sampler" in op.keywords
        if (
            shuffled is not None
            and shuffled.const is True
            and not own
            and any(_over(one.op, op) for one in backwards(flow))
        ):
            yield hit(op)


def _over(op: Op, made: Op) -> bool:
    """It stands in a loop over that loader, within another."""
    return any(number > 0 and loop.through.made is made for number, loop in enumerate(op.loops))


@every_program("from_directory")
def reported_when_gone(flow: Flow) -> Iterator[Hit]:
    """A checkpoint only names its folder: reported behind the `with` of a temporary one, there is nothing to copy."""
    for op in _of_ray(flow, "report"):
        kept = _checkpoint(op)
        made = kept.made if kept is not None else None
        if made is not None and made.last == "from_directory" and made.inside("TemporaryDirectory"):
            inside = [one.value for one in made.contexts if one.name == "TemporaryDirectory"]
            if not any(one.value in inside for one in op.contexts):
                yield hit(op, made)


@every_program("ScalingConfig")
def gpu_not_asked_for(flow: Flow) -> Iterator[Hit]:
    """The workers' function goes to a GPU, and the trainer asks for none: Ray hides them."""
    for op in flow.calls("ScalingConfig"):
        if "**" in op.keywords or op.starred or "resources_per_worker" in op.keywords:
            continue
        asked = op.argument("use_gpu", 2)
        if asked is None or asked.const is False:
            for moved in flow.calls("cuda", "to", "device", "set_device"):
                if _to_gpu(moved) and not moved.guards:
                    yield hit(op, moved)
                    break


@every_program("ScalingConfig")
def left_on_the_processor(flow: Flow) -> Iterator[Hit]:
    """Nothing asks for a GPU, and the program speaks of them: `get_device` is then the processor, without a word."""
    if not flow.has("get_device", "prepare_model", "prepare_data_loader") or not flow.mentions(_OF_GPUS):
        return
    made = list(flow.calls("ScalingConfig"))
    for op in made if len(made) == 1 else ():
        resources = op.keywords.get("resources_per_worker")
        asked = resources is not None and (resources.kind != "dict" or "GPU" in resources.attrs)
        told = {"use_gpu", "**", "accelerator_type", "use_tpu"} & op.keywords.keys()
        if not told and not asked and not op.starred and len(op.args) < 3:
            yield hit(op)


_OF_GPUS = r"(?i)gpus?_per_node|num_gpus|n_gpus|per gpu|autocast\([\"']cuda|\bnccl\b"


def _to_gpu(op: Op) -> bool:
    if op.last in ("cuda", "set_device"):
        return op.name.startswith(".") or op.name == "torch.cuda.set_device"
    return bool(op.args) and isinstance(op.args[0].const, str) and op.args[0].const.startswith("cuda")


@every_program("Trainer")
def lightning_on_its_own(flow: Flow) -> Iterator[Hit]:
    """Lightning's Trainer inside a worker looks for ranks of its own, and starts processes of its own."""
    if not flow.has("TorchTrainer") or flow.mentions("|".join(_LIGHTNING)) or _alone(flow):
        return
    for op in flow.calls("Trainer"):
        if op.name.startswith(("lightning.", "pytorch_lightning.", "pl.", "L.")) and _in_worker(flow, op):
            yield hit(op, *list(flow.calls("TorchTrainer"))[:1])
