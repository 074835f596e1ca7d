"""Evaluates a small language model as a hand-written pipeline of three stages, one microbatch at a time."""

import torch
import torch.distributed as dist
from tiny_lm import Block, log, loss_of, start, text
from torch import nn

WIDTH, VOCABULARY, PADDING = 64, 128, 0


def batches() -> list[torch.Tensor]:
    """Twelve microbatches; the documents of one are all padding."""
    rows = text(48, 32, seed=1)
    rows[28:32] = PADDING
    return list(rows.split(4))


def main() -> None:
    rank, world = start(timeout=15)
    torch.manual_seed(rank)
    embedding, head = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PADDING), nn.Linear(WIDTH, VOCABULARY)
    block = Block(WIDTH, 4)

    losses = []
    for number, batch in enumerate(batches()):
        tokens, targets = batch[:, :-1], batch[:, 1:]
        with torch.no_grad():
            if rank == 0:
                dist.send(embedding(tokens), dst=1)
                continue
            received = torch.empty(*tokens.shape, WIDTH)
            dist.recv(received, src=rank - 1)
            if not received.any():
                continue
            if rank < world - 1:
                dist.send(block(received), dst=rank + 1)
            else:
                losses.append(loss_of(head(block(received)), targets))
        if number % 2 == 1:
            log.info("step %d%s", number // 2, f" loss {torch.stack(losses).mean():.4f}" if losses else " done")

    dist.barrier()
    dist.destroy_process_group()
    log.info("evaluation finished")


if __name__ == "__main__":
    main()
