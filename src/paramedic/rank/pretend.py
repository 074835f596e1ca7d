"""What a group would give if every peer were a copy of this rank: enough for the steps before the recorded ones."""

from __future__ import annotations

import sys

from .calls import Call


def pretend(call: Call, size: int) -> None:
    torch = sys.modules["torch"]
    with torch.no_grad():
        if call.op in (
            "allreduce",
            "allreduce_coalesced",
            "reduce",
            "broadcast",
            "send",
            "barrier",
            "monitored_barrier",
        ):
            if call.fields.get("reduce") == "SUM":
                for tensor in call.inputs:
                    tensor.detach().mul_(size)
        elif call.op in ("recv", "recv_anysource") or not call.inputs:
            for tensor in call.outputs:
                tensor.detach().zero_()
        else:
            _copies(call, size)


def _copies(call: Call, size: int) -> None:
    """Gathers repeat the own part; scatters give back as much of the own input as fits, summed where it is asked."""
    factor = size if call.fields.get("reduce") == "SUM" else 1
    sources = [tensor.detach().clone().reshape(-1) for tensor in call.inputs]
    for number, tensor in enumerate(call.outputs):
        source = sources[min(number, len(sources) - 1)]
        target = tensor.detach().view(-1)
        if not source.numel() or not target.numel():
            continue
        times = -(-target.numel() // source.numel())
        target.copy_(
            source.repeat(times)[: target.numel()] * factor if factor > 1 else source.repeat(times)[: target.numel()]
        )
