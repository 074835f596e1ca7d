"""Loops of one's own around Megatron-core: its gradients lie in buffers, and are brought together when told to."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.every import every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import hit, optimizers
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op

_LAYERS = (
    "GPTModel",
    "BertModel",
    "T5Model",
    "MambaModel",
    "VocabParallelEmbedding",
    "ColumnParallelLinear",
    "RowParallelLinear",
)
_BRINGS = r"finalize_model_grads(?:\(|_func)|finish_grad_sync|start_grad_sync|allreduce_gradients"

_ALL = re.compile(r"(?:[\w.]+\.)?get_world_size\(\)|(?:\w+\.)?world_size")


def _wraps(flow: Flow) -> list[Op]:
    return [
        op
        for op in flow.calls("DistributedDataParallel")
        if op.name.startswith("megatron.core.") or "ddp_config" in op.keywords
    ]


def _runs(flow: Flow) -> list[Op]:
    """Where a loop of the program's own runs Megatron's schedule, forward and backward."""
    schedules = [op for op in flow.ops if op.kind == "call" and op.loops and "forward_step_func" in op.keywords]
    return [op for op in schedules if "forward_only" not in op.keywords or op.keywords["forward_only"].const is False]


@every_program("DistributedDataParallel")
def gradients_not_finalized(flow: Flow) -> Iterator[Hit]:
    """Without `finalize_model_grads` no rank's gradients meet the others'."""
    wraps, runs = _wraps(flow), _runs(flow)
    if wraps and runs and flow.has("step") and not flow.mentions(_BRINGS):
        yield hit(runs[0], wraps[0])


@every_program("DistributedDataParallel")
def buffers_not_cleared(flow: Flow) -> Iterator[Hit]:
    """`optimizer.zero_grad` leaves the buffers as they are: every step adds to all before it."""
    wraps, runs = _wraps(flow), _runs(flow)
    if wraps and runs and flow.has("step") and not flow.mentions(r"zero_grad_buffer"):
        yield hit(runs[0], wraps[0])


@every_program("DistributedDataParallel")
def plain_optimizer(flow: Flow) -> Iterator[Hit]:
    """Gradients go into `main_grad`, and `grad` stays None: an optimizer of torch has nothing to do."""
    wraps = _wraps(flow)
    if not wraps or flow.has("get_megatron_optimizer", "DistributedOptimizer", "FP32Optimizer"):
        return
    for op in optimizers(flow):
        over = op.result.root
        if op.name.startswith(("torch.optim.", "optim.", "apex.")) and over is wraps[0].result.base and _runs(flow):
            yield hit(op, wraps[0])


@every_program("initialize_model_parallel")
def seed_not_given(flow: Flow) -> Iterator[Hit]:
    """Tensor-parallel layers draw their weights from a generator that has to be made first."""
    if flow.mentions(
        r"model_parallel_cuda_manual_seed|initialize_megatron|initialize_rng_tracker|use_cpu_initialization"
    ):
        return
    started = list(flow.calls("initialize_model_parallel"))
    for op in flow.calls(*_LAYERS):
        if "megatron" in started[0].name and "megatron" in op.name and op.index > started[0].index:
            yield hit(op, started[0])
            return


@every_program("DistributedSampler")
def divided_among_all_ranks(flow: Flow) -> Iterator[Hit]:
    """With tensor or pipeline parallelism, ranks of one replica must be given the same rows."""
    parallel = [op for op in flow.calls("initialize_model_parallel") if _splits(op)]
    for op in flow.calls("DistributedSampler") if parallel else ():
        named = op.written("num_replicas")
        if op.argument("num_replicas", 1) is None or (named is not None and _ALL.fullmatch(text_of(named))):
            yield hit(op, parallel[0])


@every_program("initialize_model_parallel")
def averaged_among_all_ranks(flow: Flow) -> Iterator[Hit]:
    """torch's DDP over all ranks averages shards that are not alike."""
    parallel = [op for op in flow.calls("initialize_model_parallel") if _splits(op)]
    if flow.mentions(r"get_data_parallel_group"):
        return
    for op in flow.calls("DistributedDataParallel") if parallel else ():
        if op.name.startswith("torch.") and not {"process_group", "device_mesh", "**"} & op.keywords.keys():
            yield hit(op, parallel[0])


def _splits(op: Op) -> bool:
    """A replica is more than one rank."""
    sizes = [one for key, one in op.keywords.items() if re.search(r"(?:tensor|pipeline)_model_parallel_size$", key)]
    return any(one.number() not in (0, 1) for one in (*sizes, *op.args[:2]) if one.const is not None)
