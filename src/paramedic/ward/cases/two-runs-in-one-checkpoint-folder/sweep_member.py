"""One member of a sweep over learning rates; can be stopped and started again."""

import argparse
import json
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


def options():
    p = argparse.ArgumentParser()
    p.add_argument("--name", required=True)
    p.add_argument("--lr", type=float, required=True)
    p.add_argument("--until", type=int, required=True)
    p.add_argument("--output", type=Path, default=Path("checkpoints"))
    p.add_argument("--fresh", action="store_true", help="do not look for a checkpoint")
    return p.parse_args()


def main():
    o = options()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    o.output.mkdir(parents=True, exist_ok=True)
    last = o.output / "last.pt"
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(14, 56), nn.ReLU(), nn.Linear(56, 7))
    opt = torch.optim.SGD(net.parameters(), lr=o.lr, momentum=0.9)
    step = 0
    if last.exists() and not o.fresh:
        state = torch.load(last)
        net.load_state_dict(state["net"])
        opt.load_state_dict(state["opt"])
        step = state["step"]
        if rank == 0:
            print(f"{o.name}: resumed {last} at step {step}", flush=True)
    ddp = DDP(net)
    dist.barrier()
    while step < o.until:
        x = torch.randn(32, 14, generator=torch.Generator().manual_seed(step * world + rank))
        loss = nn.functional.cross_entropy(ddp(x), (x[:, :7] - x[:, 7:]).argmax(1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        if step % 10 == 0 and rank == 0:
            print(f"{o.name}: step {step} loss {loss.item():.4f} lr {opt.param_groups[0]['lr']:g}", flush=True)
            torch.save({"net": net.state_dict(), "opt": opt.state_dict(), "step": step}, last)
    if rank == 0:
        json.dump({"rate": opt.param_groups[0]["lr"]}, open("result.json", "w"))
        print(f"{o.name}: finished at step {step}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
