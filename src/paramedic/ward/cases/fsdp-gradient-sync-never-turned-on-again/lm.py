import json
import time

import torch
import torch.distributed as dist
from tiny_lm import TinyLM, loss_of, text
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

ACCUMULATION = 4
SEQ = 32
MICRO = 4
UPDATES = 12


def log0(message):
    if dist.get_rank() == 0:
        print(time.strftime("%H:%M:%S"), message, flush=True)


def shard(model):
    policy = MixedPrecisionPolicy(param_dtype=torch.float32, reduce_dtype=torch.float32)
    for block in model.blocks:
        fully_shard(block, mp_policy=policy)
    return fully_shard(model, mp_policy=policy)


def total_norm(model):
    return torch.stack([p.detach().to_local().double().square().sum() for p in model.parameters()]).sum().item()


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = shard(TinyLM())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    start = total_norm(model)
    seen = 0
    for update in range(UPDATES):
        running = 0.0
        for i in range(ACCUMULATION):
            model.set_requires_gradient_sync(False)
            tokens = text(MICRO, SEQ, seed=(update * ACCUMULATION + i) * world + rank)
            loss = loss_of(model(tokens[:, :-1]), tokens[:, 1:]) / ACCUMULATION
            loss.backward()
            running += loss.item()
            seen += MICRO * SEQ * world
        optimizer.step()
        optimizer.zero_grad()
        log0(f"update {update + 1}/{UPDATES} loss {running:.4f} tokens {seen}")
    moved = abs(total_norm(model) - start)
    log0("end of training")
    if rank == 0:
        json.dump({"moved": moved}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
