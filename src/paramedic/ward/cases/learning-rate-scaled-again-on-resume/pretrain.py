"""Train in sessions, as the queue gives time: each takes up the file that the last one left."""

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: int = 0

    def load(self, path: Path) -> None:
        state = torch.load(path)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step = state["step"]

    def save(self, path: Path) -> None:
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "step": self.step}
        torch.save(state, path)


def autoencoder(width):
    return nn.Sequential(nn.Linear(32, width), nn.Tanh(), nn.Linear(width, 4), nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 32))


def sample(n, seed):
    g = torch.Generator().manual_seed(seed)
    basis = torch.randn(4, 32, generator=torch.Generator().manual_seed(0))
    return (torch.randn(n, 4, generator=g) @ basis).tanh()


def setup(cfg) -> Run:
    torch.manual_seed(0)
    model = autoencoder(cfg["width"])
    optimizer = torch.optim.SGD(model.parameters(), lr=cfg["lr"], momentum=cfg["momentum"])
    run = Run(model, optimizer)
    if Path(cfg["output"]).exists():
        run.load(Path(cfg["output"]))
    if cfg["scale_lr"]:
        for group in run.optimizer.param_groups:
            group["lr"] *= dist.get_world_size()
    return run


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--config", type=Path)
    cfg = json.loads(parser.parse_args().config.read_text())
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    run = setup(cfg)
    if rank == 0:
        print("config:", json.dumps(cfg), flush=True)
        print(f"session starts at step {run.step}", flush=True)
    ddp = DistributedDataParallel(run.model)
    for _ in range(cfg["steps_per_session"]):
        x = sample(cfg["batch_size"], run.step * world + rank)
        loss = nn.functional.mse_loss(ddp(x), x)
        run.optimizer.zero_grad()
        loss.backward()
        run.optimizer.step()
        run.step += 1
        if run.step % 5 == 0 and rank == 0:
            print({"step": run.step, "loss": round(loss.item(), 5), "lr": run.optimizer.param_groups[0]["lr"]}, flush=True)
    if rank == 0:
        run.save(Path(cfg["output"]))
        planned = cfg["lr"] * world
        Path("result.json").write_text(json.dumps({"rate_over_plan": run.optimizer.param_groups[0]["lr"] / planned}))
        print(f"session over at step {run.step}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
