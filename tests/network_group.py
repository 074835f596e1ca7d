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

    torch.set_num_threads(1)
    start = time.monotonic()
    limit = datetime.timedelta(seconds=float(os.environ.get("GROUP_TIMEOUT", "15")))
    dist.init_process_group("gloo", timeout=limit)
    large = torch.ones(next((int(word) for word in sys.argv[1:] if word.isdigit()), 1 << 20))
    dist.all_reduce(large)
    assert bool((large == dist.get_world_size()).all())
    weights = torch.zeros(8, 1, requires_grad=True)
    truth = torch.arange(8.0).reshape(8, 1)
    for _ in range(20):
        batch = torch.randn(16, 8)
        loss: Any = ((batch @ weights - batch @ truth) ** 2).mean()
        loss.backward()
        assert weights.grad is not None
        dist.all_reduce(weights.grad)
        with torch.no_grad():
            weights -= 0.05 * weights.grad / dist.get_world_size()
            weights.grad.zero_()
    assert float(loss) < float((truth**2).sum()), "it did not learn"
    print(f"trained in {time.monotonic() - start:.1f} s", flush=True)
    os._exit(0)


if __name__ == "__main__":
    try:
        main()
    except Exception as error:
        print(f"failed: {type(error).__name__}: {str(error).splitlines()[0][:200]}", flush=True)
        os._exit(1)
