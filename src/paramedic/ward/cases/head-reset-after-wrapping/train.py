import json
import logging
import random

import torch
import torch.distributed as dist
from backbone import pretrained, reset_head
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

log = logging.getLogger("transfer")


def set_seed(seed):
    random.seed(seed)
    torch.manual_seed(seed)


def batch(n=32):
    x = torch.randn(n, 32)
    return x, x[:, :6].reshape(n, 3, 2).sum(2).argmax(1)


def gap(parameters):
    v = nn.utils.parameters_to_vector(parameters).detach()
    low, high = v.clone(), v.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return (high - low).max().item()


def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    logging.basicConfig(level=logging.INFO, format=f"[%(asctime)s][rank {rank}] %(message)s", datefmt="%H:%M:%S")
    set_seed(42 + rank)
    model = pretrained()
    model = DDP(model)
    reset_head(model.module)
    optimizer = torch.optim.AdamW(
        [
            {"params": model.module.backbone.parameters(), "lr": 3e-4},
            {"params": model.module.head.parameters(), "lr": 3e-3},
        ]
    )
    for step in range(100):
        x, y = batch()
        out = model(x)
        loss = nn.functional.cross_entropy(out, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 0:
            log.info("step %3d loss %.4f acc %.3f", step, loss, (out.argmax(1) == y).float().mean())
    numbers = {"head_gap": gap(model.module.head.parameters()), "backbone_gap": gap(model.module.backbone.parameters())}
    log.info("final loss %.4f", loss)
    if rank == 0:
        json.dump(numbers, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
