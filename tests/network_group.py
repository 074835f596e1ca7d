"""One rank of a gloo group that trains a small model for a few steps: started by the lab on each of its hosts."""

from __future__ import annotations

import datetime
import os
import sys
import time
from typing import Any


def main() -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    start = time.monotonic()
    limit = datetime.timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT", "15")))
    dist.init_process_group("gloo", timeout=limit)
    large = torch.ones(int(sys.argv[1]))
    dist.all_reduce(large)
    assert bool((large == dist.get_world_size()).all())
    model: Any = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    print(f"trained in {time.monotonic() - start:.1f} s", flush=True)
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
        os._exit(1)
