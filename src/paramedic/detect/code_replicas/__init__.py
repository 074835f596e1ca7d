"""Programs whose ranks do not stay copies of one model, or misuse collectives without an error."""

from paramedic.detect.code_replicas.collectives import (
    gathered_in_loss,
    handle_never_waited,
    one_tensor_for_all,
    other_root,
    reached_by_one,
    reduced_to_one_rank,
    sequence_norms_not_reduced,
    swapped_mesh,
    tied_weights_not_reduced,
    unequal_means,
)
from paramedic.detect.code_replicas.weights import (
    buffers_not_broadcast,
    changed_after_wrapping,
    group_leaves_ranks_out,
    step_on_one_rank,
    unlike_starts,
    weights_of_one_rank,
)
from paramedic.detect.code_replicas.wrapping import (
    model_not_prepared,
    never_wrapped,
    optimizer_before_sharding,
    optimizer_of_other_weights,
    result_dropped,
    trained_past_wrapper,
)

__all__ = [
    "buffers_not_broadcast",
    "changed_after_wrapping",
    "gathered_in_loss",
    "group_leaves_ranks_out",
    "handle_never_waited",
    "model_not_prepared",
    "never_wrapped",
    "one_tensor_for_all",
    "optimizer_before_sharding",
    "optimizer_of_other_weights",
    "other_root",
    "reached_by_one",
    "reduced_to_one_rank",
    "result_dropped",
    "sequence_norms_not_reduced",
    "step_on_one_rank",
    "swapped_mesh",
    "tied_weights_not_reduced",
    "trained_past_wrapper",
    "unequal_means",
    "unlike_starts",
    "weights_of_one_rank",
]
