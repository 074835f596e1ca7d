"""Gradients travel in half the bytes."""

import torch
import torch.distributed as dist


def compressed(state, bucket):
    group = state or dist.group.WORLD
    flat = bucket.buffer().to(torch.bfloat16)
    future = dist.all_reduce(flat, group=group, async_op=True).get_future()

    def decompress(fut):
        out = bucket.buffer()
        out.copy_(fut.value()[0])
        return out

    return future.then(decompress)
