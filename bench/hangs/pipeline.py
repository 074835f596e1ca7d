"""A pipeline: every rank is a stage, activations go forwards and gradients come back."""

import torch
import torch.distributed as dist
from common import BATCH, HOW, RANK, WORLD, due, log, make_batch, setup
from torch import nn

FIRST, LAST = RANK == 0, RANK == WORLD - 1


def receive(source, tag):
    tensor = torch.empty(BATCH, 256)
    dist.recv(tensor, src=source, tag=tag)
    return tensor


def send_activation(step, tensor):
    if HOW == "peer" and due(step):
        dist.send(tensor, dst=RANK - 1, tag=1)
    elif HOW == "tag" and due(step):
        dist.send(tensor, dst=RANK + 1, tag=7)
    elif HOW == "direction" and due(step):
        receive(RANK + 1, 1)
    else:
        dist.send(tensor, dst=RANK + 1, tag=1)
    if HOW == "twice" and due(step):
        dist.send(tensor, dst=RANK + 1, tag=1)


def run_step(step, stage, optimizer):
    x, y = make_batch(step)
    inputs = x.repeat(1, 4) if FIRST else receive(RANK - 1, 1).requires_grad_()
    outputs = stage(inputs)
    optimizer.zero_grad()
    if LAST:
        loss = nn.functional.cross_entropy(outputs[:, :10], y)
        loss.backward()
    else:
        send_activation(step, outputs.detach())
        loss = outputs.detach().square().mean()
        outputs.backward(receive(RANK + 1, 2))
    if not FIRST:
        dist.send(inputs.grad, dst=RANK - 1, tag=2)
    optimizer.step()
    return loss


def main():
    setup()
    stage = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 256))
    optimizer = torch.optim.SGD(stage.parameters(), lr=0.01)
    for step in range(100_000):
        log(step, run_step(step, stage, optimizer))
        if step % 10 == 9:
            dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
