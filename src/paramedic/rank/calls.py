"""What each method of a process group takes and gives, under the names of several releases of torch."""

from __future__ import annotations

from typing import Any

_BOTH, _OUT_IN, _NONE = ((0,), (0,)), ((0,), (1,)), ((), ())
SPEC: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "allreduce": _BOTH, "allreduce_coalesced": _BOTH, "broadcast": _BOTH, "reduce": _BOTH,
    "allgather": _OUT_IN, "all_gather_single": _OUT_IN, "allgather_coalesced": _OUT_IN,
    "all_gather_single_coalesced": _OUT_IN, "reduce_scatter": _OUT_IN, "reduce_scatter_single": _OUT_IN,
    "reduce_scatter_single_coalesced": _OUT_IN, "gather": _OUT_IN, "scatter": _OUT_IN, "alltoall": _OUT_IN,
    "all_to_all_single": _OUT_IN, "send": ((), (0,)), "recv": ((0,), ()), "recv_anysource": ((0,), ()),
    "barrier": _NONE, "monitored_barrier": _NONE,
}  # fmt: skip
"""Which arguments are outputs and which are inputs."""

ALIASES = {
    "_allgather_base": "all_gather_single",
    "_reduce_scatter_base": "reduce_scatter_single",
    "alltoall_base": "all_to_all_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
}
METHODS = {name: name for name in SPEC} | ALIASES
"""Every name under which torch may call it → the one that is recorded."""

_OF_ROOT_IN = ("broadcast", "scatter")


class Call:
    """One call: its operation, its tensors, and what else has to be the same when it is made again."""

    __slots__ = ("fields", "inputs", "number", "op", "outputs", "said")

    def __init__(self, op: str, arguments: tuple[Any, ...], rank: int) -> None:
        outs, ins = SPEC[op]
        self.op = op
        self.inputs = [t for place in ins if place < len(arguments) for t in _tensors(arguments[place])]
        self.outputs = [t for place in outs if place < len(arguments) for t in _tensors(arguments[place])]
        self.fields = _fields(op, arguments)
        self.number = -1
        self.said: dict[str, Any] = {}
        root = self.fields.get("root")
        if op in _OF_ROOT_IN and root not in (None, rank):
            self.inputs = []  # whatever lies there is not sent


def _fields(op: str, arguments: tuple[Any, ...]) -> dict[str, Any]:
    options = arguments[-1] if arguments else None
    fields: dict[str, Any] = {}
    reduce = getattr(options, "reduceOp", None)
    if reduce is not None:
        fields["reduce"] = str(getattr(reduce, "op", reduce)).rsplit(".", 1)[-1]
    if op in ("broadcast", "scatter", "reduce", "gather"):
        root = getattr(options, "rootRank", options)
        fields["root"] = root if isinstance(root, int) else 0
    if op in ("send", "recv"):
        fields["peer"], fields["tag"] = int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else 0
    if op == "all_to_all_single" and len(arguments) > 3:
        fields["splits"] = [list(arguments[2] or ()), list(arguments[3] or ())]
    return fields


def _tensors(value: Any) -> list[Any]:
    if hasattr(value, "untyped_storage"):
        return [value]
    return [tensor for one in value for tensor in _tensors(one)] if isinstance(value, (list, tuple)) else []


def shapes(tensors: list[Any]) -> list[list[Any]]:
    return [[str(tensor.dtype)[6:], list(tensor.shape)] for tensor in tensors]
