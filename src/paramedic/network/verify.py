"""One rank of a real group with the planned settings: started by `net verify` on each node, watched from outside.

The only file of this room that imports torch. It writes what it measured into the file that it is given.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

SMALL, LARGE, EACH = 1 << 10, 16 << 20, 4 << 20
"""Bytes: of the first all_reduce, of the second, and sent between each pair."""


def main(file: str, seconds: float) -> None:
    said: dict[str, Any] = {"stage": "import", "ok": False}
    out = Path(file)

    def tell(**more: Any) -> None:
        said.update(more)
        new = out.with_suffix(".new")
        new.write_text(json.dumps(said), "utf-8")
        new.replace(out)

    tell()
    try:
        _measured(seconds, tell)
        tell(ok=True, stage="done")
    except Exception as error:
        tell(error=f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:400])
    os._exit(0)  # gloo's threads may wait for ever


def _measured(seconds: float, tell: Any) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    gpu = torch.cuda.is_available()
    backend, device = ("nccl", torch.device("cuda", 0)) if gpu else ("gloo", torch.device("cpu"))
    tell(stage="init", backend=backend)
    start = time.monotonic()
    dist.init_process_group(backend, timeout=datetime.timedelta(seconds=seconds))
    tell(stage="small all_reduce", init_s=round(time.monotonic() - start, 3))
    rank, size = dist.get_rank(), dist.get_world_size()
    for name, count in (("small", SMALL), ("large", LARGE)):
        tell(stage=f"{name} all_reduce")
        values = torch.full((count // 4,), float(rank + 1), device=device)
        start = time.monotonic()
        dist.all_reduce(values)
        right = bool((values == size * (size + 1) / 2).all())
        tell(**{f"{name}_s": round(time.monotonic() - start, 4), f"{name}_right": right})
        if not right:
            raise ValueError(f"the {name} all_reduce gave a wrong sum")
    tell(stage="pairs")
    tell(pairs=_pairs(rank, size, torch.zeros(EACH // 4, device=device)))
    dist.barrier()


def _pairs(rank: int, size: int, values: Any) -> dict[str, float]:
    """Mbit/s from this rank to each other one: in every round each rank has one partner."""
    import torch.distributed as dist

    rates = {}
    for step in range(1, min(size, 17)):
        to, source = (rank + step) % size, (rank - step) % size
        received = values.clone()
        start = time.monotonic()
        work = [dist.isend(values, to), dist.irecv(received, source)]
        for one in work:
            if one is not None:
                one.wait()
        rates[str(to)] = round(values.numel() * 4 * 8 / max(time.monotonic() - start, 1e-6) / 1e6, 1)
    return rates


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
