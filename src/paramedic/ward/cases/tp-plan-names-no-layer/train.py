import json
import warnings

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

warnings.filterwarnings("ignore")

CONFIG = {"dim": 128, "ffn": 1024, "depth": 4, "classes": 8, "batch": 48, "steps": 60, "lr": 1e-3}


class FeedForward(nn.Module):
    def __init__(self, dim, ffn):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.fc_in = nn.Linear(dim, ffn)
        self.fc_out = nn.Linear(ffn, dim)

    def forward(self, x):
        return x + self.fc_out(nn.functional.gelu(self.fc_in(self.norm(x))))


class Network(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.blocks = nn.ModuleList(FeedForward(cfg["dim"], cfg["ffn"]) for _ in range(cfg["depth"]))
        self.classify = nn.Linear(cfg["dim"], cfg["classes"])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.classify(x)


def tensor_parallel(model, mesh):
    plan = {
        "blocks.*.w1": ColwiseParallel(),
        "blocks.*.w2": RowwiseParallel(),
    }
    return parallelize_module(model, mesh, plan)


def sample(cfg, step):
    g = torch.Generator().manual_seed(step)
    centres = torch.randn(cfg["classes"], cfg["dim"], generator=torch.Generator().manual_seed(99))
    y = torch.randint(cfg["classes"], (cfg["batch"],), generator=g)
    return centres[y] + 2.5 * torch.randn(cfg["batch"], cfg["dim"], generator=g), y


def local_elements(model):
    return sum((p.to_local() if isinstance(p, DTensor) else p).numel() for p in model.parameters())


def main():
    cfg = CONFIG
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,), mesh_dim_names=("tp",))
    torch.manual_seed(0)
    model = tensor_parallel(Network(cfg), mesh["tp"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=cfg["lr"])
    total = sum(p.numel() for p in model.parameters())
    if rank == 0:
        print(f"mesh {mesh}, {total:,} parameters", flush=True)
    for step in range(cfg["steps"]):
        x, y = sample(cfg, step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if rank == 0 and step % 5 == 0:
            print(f"step {step:3d}  loss {loss.item():.4f}", flush=True)
    if rank == 0:
        print("finished training", flush=True)
        json.dump({"local_share": local_elements(model) / total}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
