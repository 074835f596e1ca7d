import json
import resource
import time

import torch
import torch.distributed as dist
from model import Decoder, Layer, tokens
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel as DDP


def read_config(path):
    """Flat `key: value` lines."""
    cfg = {}
    with open(path) as f:
        for line in f:
            key, value = line.split(":", 1)
            value = value.strip()
            cfg[key] = [v.strip() for v in value[1:-1].split(",") if v.strip()] if value.startswith("[") else int(value)
    return cfg


def main():
    cfg = read_config("run.yaml")
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DDP(Decoder(cfg["dim"], cfg["depth"], cfg["recompute"]), static_graph=bool(cfg["recompute"]))
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if rank == 0:
        print("config", cfg, flush=True)
    for step in range(cfg["steps"]):
        began = time.perf_counter()
        ids = tokens(step * world + rank, cfg["batch"], cfg["length"])
        loss = cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        forward = time.perf_counter()
        opt.zero_grad()
        loss.backward()
        backward = time.perf_counter()
        opt.step()
        if step % 4 == 0 and rank == 0:
            whole = time.perf_counter() - began
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
            print(
                f"step {step} loss {loss.item():.4f} fwd {(forward - began) * 1e3:.0f} ms bwd {(backward - forward) * 1e3:.0f} ms "
                f"{ids[:, 1:].numel() * world / whole:.0f} tok/s peak {peak:.2f}/{cfg['memory_limit_gb']} GB",
                flush=True,
            )
    if rank == 0:
        json.dump({"passes_per_step": Layer.passes / cfg["steps"] / cfg["depth"]}, open("result.json", "w"))
    dist.destroy_process_group()


main()
