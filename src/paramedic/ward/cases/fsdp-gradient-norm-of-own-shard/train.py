"""Trains a small language model with FSDP and clipped gradients."""

import functools
import json

import torch
import torch.distributed as dist
from tiny_lm import Block, TinyLM, log, loss_of, start, text
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy

LIMIT = 1.0


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(TinyLM(), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    for step in range(8):
        batch = text(8, 32, seed=step * world + rank)
        loss = 8 * loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), LIMIT)
        clipped = sum(p.grad.square().sum() for p in model.parameters() if p.grad is not None)
        dist.all_reduce(clipped)
        optimizer.step()
        log.info("step %d loss %.4f grad norm %.4f, %.4f after clipping to %g", step, loss.item(), norm, clipped.sqrt(), LIMIT)

    norms = [torch.zeros(()) for _ in range(world)]
    dist.all_gather(norms, norm.float())
    if rank == 0:
        spread = (max(norms) - min(norms)).item() / max(norms).item()
        with open("result.json", "w") as file:
            json.dump({"norm_after_clipping": clipped.sqrt().item(), "spread_of_norms": spread}, file)
    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()
