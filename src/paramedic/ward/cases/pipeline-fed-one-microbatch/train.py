import argparse
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

GLOBAL_BATCH = 64


class Device(torch.autograd.Function):
    """The time that an accelerator would take for so many rows; it leaves the host alone."""

    @staticmethod
    def forward(ctx, x):
        time.sleep(3e-3 * len(x))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(6e-3 * len(grad))
        return grad


class Mixer(nn.Sequential):
    def __init__(self, dim):
        super().__init__(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + super().forward(x)


class Stage(nn.Sequential):
    def forward(self, x):
        return Device.apply(super().forward(x))


class Timeline:
    def __init__(self, module):
        self.spans = []
        module.register_forward_pre_hook(lambda *_: self.spans.append([time.time(), 0.0]))
        module.register_forward_hook(lambda *_: self.spans[-1].__setitem__(1, time.time()))


def common(a, b):
    """The share of a's time in which b was at work, too."""
    both = sum(max(0.0, min(e, f) - max(s, t)) for s, e in a for t, f in b)
    return both / sum(e - s for s, e in a)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--micro-batch-size", type=int, default=8)
    parser.add_argument("--dim", type=int, default=32)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--iters", type=int, default=12)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(rank)
    module = Stage(*(Mixer(args.dim) for _ in range(args.layers // world)))
    timeline = Timeline(module)
    stage = PipelineStage(module, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, GLOBAL_BATCH // args.micro_batch_size, loss_fn=nn.functional.mse_loss)
    opt = torch.optim.AdamW(module.parameters(), lr=1e-3)
    if rank == 0:
        print(f"{world} stages, global batch {GLOBAL_BATCH}, micro batch {args.micro_batch_size}", flush=True)
    for it in range(args.iters):
        x = torch.randn(GLOBAL_BATCH, 16, args.dim, generator=torch.Generator().manual_seed(it))
        began, losses = time.perf_counter(), []
        if rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=x.flip(-1), losses=losses)
        opt.step()
        opt.zero_grad()
        if it % 2 == 0 and rank == world - 1:
            took = time.perf_counter() - began
            print(f"iter {it} | loss {torch.stack(losses).mean().item():.4f} | {took * 1e3:.0f} ms | {GLOBAL_BATCH / took:.0f} samples/s", flush=True)
    spans = [None] * world
    dist.all_gather_object(spans, timeline.spans[len(timeline.spans) // 4 :])
    if rank == 0:
        json.dump({"overlap": common(*spans)}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
