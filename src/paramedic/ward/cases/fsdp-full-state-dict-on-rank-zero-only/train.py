"""Trains a small language model with FSDP and keeps a full checkpoint."""

import functools

import torch
import torch.distributed as dist
from tiny_lm import Block, TinyLM, log, loss_of, start, text
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp.wrap import transformer_auto_wrap_policy


def save(model: FSDP, path: str) -> None:
    state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
    if dist.get_rank() == 0:
        torch.save(state, path)
        log.info("saved %d tensors to %s", len(state), path)


def main() -> None:
    rank, world = start(timeout=15)
    torch.manual_seed(0)
    policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={Block})
    model = FSDP(TinyLM(), auto_wrap_policy=policy, device_id=torch.device("cpu"))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    for step in range(1, 9):
        batch = text(8, 32, seed=step * world + rank)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.info("step %d loss %.4f", step, loss.item())
        if step % 4 == 0:
            if rank == 0:
                log.info("saving a checkpoint at step %d", step)
                save(model, f"checkpoints/step-{step}.pt")
            dist.barrier()

    dist.destroy_process_group()
    log.info("training finished")


if __name__ == "__main__":
    main()
