"""Horovod: gradients that nobody reduces, starts that differ, and what is done past its optimizer."""

from __future__ import annotations

import re
from collections.abc import Iterator

from paramedic.detect.every import every_program
from paramedic.detect.flow import Flow
from paramedic.detect.loops import backwards, behind_modulo, hit, steps, uses_horovod
from paramedic.detect.program import text_of
from paramedic.detect.setup import Hit
from paramedic.detect.values import Op


@every_program("init")
def horovod_optimizer_missing(flow: Flow) -> Iterator[Hit]:
    if not uses_horovod(flow) or flow.mentions(
        r"DistributedOptimizer|DistributedGradientTape|hvd\.allreduce|grouped_allreduce|allreduce_async|run_elastic|DistributedTrainer|distributed_optimizer"
    ):
        return
    trained = [op for op in steps(flow) if op.loops] or list(flow.calls("apply_gradients", "fit"))
    if trained:
        yield hit(trained[0])


@every_program("init")
def horovod_start_unlike(flow: Flow) -> Iterator[Hit]:
    if not uses_horovod(flow) or flow.mentions(r"(?i)broadcast|load_state_dict|load_weights|elastic|State\("):
        return
    wraps = list(flow.calls("DistributedOptimizer", "DistributedGradientTape"))
    alike = bool(flow.seeds) and not any(v.has("rank") for op in flow.seeds for v in op.args)
    if wraps and not alike:
        yield hit(wraps[0])


@every_program("synchronize")
def reduced_twice(flow: Flow) -> Iterator[Hit]:
    """Gradients that the program has waited for, to clip them, are reduced again by `step`."""
    if not uses_horovod(flow) or flow.mentions(r"skip_synchronize"):
        return
    for op in flow.calls("synchronize"):
        if op.loops and op.of is not None and op.of.wrap == "horovod":
            later = [one for one in steps(flow) if one.loops == op.loops and one.index > op.index]
            yield from (hit(one, op) for one in later[:1])


@every_program("clip_grad_norm_", "clip_grad_value_")
def clipped_before_reduced(flow: Flow) -> Iterator[Hit]:
    """Horovod's gradients come in while the backward pass runs, and are whole after `synchronize` or in `step`."""
    if not uses_horovod(flow) or flow.has("synchronize"):
        return
    for op in flow.calls("clip_grad_norm_", "clip_grad_value_"):
        later = [one for one in steps(flow) if one.of is not None and one.of.wrap == "horovod"]
        later = [one for one in later if one.loops == op.loops != () and one.index > op.index]
        yield from (hit(op, one) for one in later[:1])


@every_program("DistributedOptimizer")
def passes_not_told(flow: Flow) -> Iterator[Hit]:
    """Several backward passes before each step, of which the optimizer was not told."""
    for op in flow.calls("DistributedOptimizer"):
        if "horovod" not in op.name or {"backward_passes_per_step", "**"} & op.keywords.keys():
            continue
        for step in steps(flow):
            counted = step.loops and any(one.op.loops == step.loops for one in backwards(flow)) and behind_modulo(step)
            pieces = any(one.op.loops[:-1] == step.loops != () for one in backwards(flow))
            if counted or pieces:
                yield hit(op, step)
                break


@every_program("fit")
def watched_value_of_one_rank(flow: Flow) -> Iterator[Hit]:
    """Callbacks act on a value that each rank has of its own rows: rates part, or ranks stop at unlike epochs."""
    if not uses_horovod(flow):
        return
    averages = min((op.index for op in flow.calls("MetricAverageCallback")), default=None)
    for op in flow.calls("ReduceLROnPlateau", "EarlyStopping"):
        if ("keras" in op.name or "callbacks" in op.name) and (averages is None or averages > op.index):
            yield hit(op, name=op.last)


@every_program("init")
def saved_by_all(flow: Flow) -> Iterator[Hit]:
    """Every rank writes the same file."""
    if not uses_horovod(flow) or flow.mentions(r"horovod\.(?:spark|ray|runner)|\bpyspark\b"):
        return
    for op in flow.calls("ModelCheckpoint", "save_weights", "save"):
        known = (
            op.name == "torch.save"
            or (op.last == "ModelCheckpoint" and "keras" in op.name)
            or (op.of is not None and op.of.kind == "model")
        )
        if known and not op.label and not _names_rank(op):
            yield hit(op, name=op.last)


def _names_rank(op: Op) -> bool:
    """A file of each rank's own, or a condition that cannot be followed."""
    given = [*op.args, *op.keywords.values()]
    return any(value.has("rank", "parameter") for value in given) or bool(re.search(r"rank|tmp|temp", text_of(op.node)))


@every_program("broadcast_parameters", "broadcast_variables")
def loaded_after_broadcast(flow: Flow) -> Iterator[Hit]:
    """The first rank alone takes up a checkpoint, when its weights have been sent to the others before."""
    if not uses_horovod(flow):
        return
    sent = list(flow.calls("broadcast_parameters", "broadcast_variables"))
    for op in flow.calls("load_state_dict", "load_weights"):
        loads = op.of is not None and op.of.kind == "model"
        if loads and op.label == "first" and op.index > max(one.index for one in sent):
            yield hit(op, sent[-1])


@every_program("broadcast_parameters")
def optimizer_not_broadcast(flow: Flow) -> Iterator[Hit]:
    """The first rank takes up the optimizer's state, and only the weights are sent to the others."""
    if not uses_horovod(flow) or flow.mentions(r"broadcast_optimizer_state|elastic"):
        return
    if any(value.kind == "state" for op in flow.calls("broadcast_object") for value in op.args):
        return
    for op in flow.calls("load_state_dict"):
        if op.of is not None and op.of.kind == "optimizer" and op.label == "first":
            yield hit(op, *list(flow.calls("broadcast_parameters"))[:1])
