"""A small real DDP job whose faults the tests of `paramedic submit` choose: cfg["fault"] is what happens, once, at
cfg["at"] steps, in cfg["rank"]; `log` gets a line for each attempt and each step of rank 0."""

import json
import os
import signal
import sys
import time

import paramedic


@paramedic.job(world_size=2)
def train(cfg):
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.manual_seed(7)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    model = DistributedDataParallel(torch.nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    data, labels = torch.randn(256, 8), torch.randint(0, 4, (256,))
    begin, total = 0, torch.zeros(())
    if resume := os.environ.get("PARAMEDIC_RESUME"):
        saved = torch.load(resume)
        model.module.load_state_dict(saved["model"])
        begin = saved["step"]
    if rank == 0:
        note(cfg, begin=begin, resume=resume, attempt=os.environ["PARAMEDIC_ATTEMPT"], host=host())
    batch = cfg.get("micro_batch", 8)
    for step in range(begin, cfg["steps"]):
        time.sleep(cfg["slow_s"] if "slow_s" in cfg and begin == 0 and step >= 9 else 0.02)
        if step == cfg.get("at", 5) and rank == cfg.get("rank", 1):
            happen(cfg)
        if cfg.get("memory") and batch > cfg["memory"]:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {batch}.00 GiB. GPU 0 has a total capacity of "
                f"{cfg['memory']}.00 GiB of which 0.50 GiB is free."
            )
        optimizer.zero_grad()
        total = torch.zeros(())
        for part in range(cfg.get("accumulation", 1)):
            first = (step * size + rank) * 32 + part * batch
            chosen = torch.arange(first, first + batch) % 256
            loss = torch.nn.functional.cross_entropy(model(data[chosen]), labels[chosen])
            (loss / cfg.get("accumulation", 1)).backward()
            total += loss.detach() / cfg.get("accumulation", 1)
        optimizer.step()
        if rank == 0:
            note(cfg, step=step)
            if (step + 1) % 4 == 0 and os.environ.get("PARAMEDIC_CHECKPOINT"):
                save(step + 1, model.module.state_dict())
    dist.all_reduce(total)
    print(f"rank {rank} is through", flush=True)
    dist.destroy_process_group()
    return round(total.item() / size, 5)


def save(step, state):
    import torch

    path = os.path.join(os.environ["PARAMEDIC_CHECKPOINT"], f"step-{step}.pt")
    os.makedirs(os.path.dirname(path), exist_ok=True)
    torch.save({"step": step, "model": state}, path + ".part")
    os.replace(path + ".part", path)


def note(cfg, **said):
    if cfg.get("log"):
        with open(cfg["log"], "a") as file:
            file.write(json.dumps(said) + "\n")


def host():
    return os.environ.get("SLURMD_NODENAME") or os.environ.get("PARAMEDIC_HOST") or os.uname().nodename


def happen(cfg):
    """Once, unless it is to happen in every attempt."""
    if not cfg.get("fault") or os.path.exists(cfg["once"]):
        return
    if not cfg.get("always"):
        with open(cfg["once"], "w"):
            pass
    match cfg["fault"]:
        case "exception":
            raise ValueError("a label is out of range: 17")
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "kill-agent":
            os.kill(os.getppid(), signal.SIGKILL)
            time.sleep(60)
        case "kill-node":
            with open(f"/proc/{os.getppid()}/stat") as file:
                os.kill(int(file.read().rpartition(")")[2].split()[1]), signal.SIGKILL)
            time.sleep(60)
        case "wait":
            while not os.path.exists(cfg["once"] + ".go"):
                time.sleep(0.05)
        case "hang":
            time.sleep(3600)
        case "exit":
            sys.exit(3)
