"""Train a model with a large table, accumulating the gradients of several small batches before each update."""

import time
from statistics import median

import torch
import torch.nn.functional as F
from ddp_job import finish, log, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

ACCUMULATE, UPDATES, ENTRIES = 8, 4, 60_000


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    model = DDP(nn.Sequential(nn.EmbeddingBag(ENTRIES, 32), nn.Linear(32, 4)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    reductions = 0

    def counted(state: object, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:
        nonlocal reductions
        reductions += 1
        work = torch.distributed.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda done: done.value()[0] / torch.distributed.get_world_size())

    model.register_comm_hook(None, counted)
    generator = torch.Generator().manual_seed(rank)
    times = []
    for update in range(UPDATES):
        began, before = time.perf_counter(), reductions
        for _ in range(ACCUMULATE):
            words = torch.randint(ENTRIES, (16, 10), generator=generator)
            loss = F.cross_entropy(model(words), words[:, 0] % 4) / ACCUMULATE
            loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        times.append(time.perf_counter() - began)
        log.info("rank %d update %d loss %.4f time %.0f ms reductions %d",
                 rank, update, loss.item() * ACCUMULATE, times[-1] * 1e3, reductions - before)  # fmt: skip
    log.info("rank %d %.1f small batches a second", rank, ACCUMULATE / median(times))
    finish(reductions_per_update=reductions / UPDATES, update_ms=median(times) * 1e3)


main()
