"""A short test of the devices themselves, for `check --deep`: the one part that imports torch, in the user's Python.

Each device multiplies the same matrices several times: all results must be equal to the last bit, and close to what the
processor gets. What cannot be tested says why.
"""

from __future__ import annotations

import time
from typing import Any

from paramedic.node.rows import Rows

_SIZE = 2048
_SMALL = 256
_TIMES = 8
_CLOSE = 1e-3


def look(rows: Rows) -> None:
    try:
        import torch
    except Exception as error:  # whatever a broken installation raises
        rows.skip("self-test", f"torch does not import: {type(error).__name__}: {error}")
        return
    devices = [f"cuda:{number}" for number in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
    for device in devices or ["cpu"]:
        try:
            rows.add(f"selftest {device}", _tested(torch, device), "self-test")
        except Exception as error:
            rows.add(f"selftest {device}", {"failed": f"{type(error).__name__}: {error}"[:300]}, "self-test")


def _tested(torch: Any, device: str) -> dict[str, Any]:
    size = _SIZE if device != "cpu" else _SMALL
    dice = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=dice) for _ in range(2))
    truth = left[:_SMALL].double() @ right.double()
    here, there = left.to(device), right.to(device)
    first = here @ there
    same, start = True, time.perf_counter()
    for _ in range(_TIMES):
        same = same and bool(torch.equal(here @ there, first))
    if device != "cpu":
        torch.cuda.synchronize(device)
    seconds = max(time.perf_counter() - start, 1e-9)
    error = float((first[:_SMALL].cpu().double() - truth).abs().max() / truth.abs().max())
    return {
        "same": same,
        "error": error,
        "right": error < _CLOSE,
        "gflops": round(2 * size**3 * _TIMES / seconds / 1e9),
    }
