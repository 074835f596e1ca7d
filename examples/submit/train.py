"""The same function on four engines:  python train.py local | ray | slurm | kubernetes

It trains a small classifier with DDP on CPUs, saves a checkpoint every few steps, and goes on from the newest one.
"""

import os
import sys

import paramedic


@paramedic.job(
    world_size=2,
    checkpoint="checkpoints",
    tunable={"micro_batch": (1, 64), "accumulation": (1, 64)},
    retry={"device-memory-overcommit": "replan", "hardware-fault": 3},
)
def train(cfg):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    inputs, labels = torch.randn(1024, 16), torch.randint(0, 4, (1024,))
    begin, total = 0, torch.zeros(())

    if resume := os.environ.get("PARAMEDIC_RESUME"):
        saved = torch.load(resume)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]

    batch = cfg["micro_batch"] * cfg["accumulation"]
    for step in range(begin, cfg["steps"]):
        first = (step * size + rank) * batch % len(inputs)
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in range(cfg["accumulation"]):
            chosen = torch.arange(first + part * cfg["micro_batch"], first + (part + 1) * cfg["micro_batch"]) % len(inputs)
            loss = torch.nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen]) / cfg["accumulation"]
            loss.backward()
            total += loss.detach()
        optimizer.step()
        if rank == 0 and (step + 1) % cfg["save_every"] == 0:
            save(step + 1, model, optimizer)
    dist.all_reduce(total)
    if rank == 0:
        print(f"final loss {total.item() / size:.6f} after {cfg['steps']} steps", flush=True)
    dist.destroy_process_group()
    return total.item() / size


def save(step, model, optimizer):
    """Under another name first: a checkpoint is there as a whole or not at all."""
    import torch

    folder = os.environ["PARAMEDIC_CHECKPOINT"]
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"step-{step}.pt")
    torch.save({"step": step, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}, path + ".part")
    os.replace(path + ".part", path)


if __name__ == "__main__":
    engine = sys.argv[1] if len(sys.argv) > 1 else "local"
    nodes = 1 if engine == "local" else 2
    job = train.submit({"steps": 60, "micro_batch": 16, "accumulation": 2, "save_every": 20}, engine=engine, nodes=nodes)
    print(job.id, file=sys.stderr)
    print(job.result())
