"""Fine-tunes the feed-forward layers of a small language model with FSDP; attention is frozen."""

import functools

import torch
import torch.distributed as dist
from tiny_lm import Block, TinyLM, log, loss_of, start, text
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def main() -> None:
    rank, world = start()
    torch.manual_seed(0)
    model = TinyLM()
    for block in model.blocks:
        block.attention.requires_grad_(False)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    log.info("%d of %d parameters are trained", trained, sum(p.numel() for p in model.parameters()))
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(model, auto_wrap_policy=policy, device_id=torch.device("cpu"), use_orig_params=False)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)

    for step in range(4):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()
