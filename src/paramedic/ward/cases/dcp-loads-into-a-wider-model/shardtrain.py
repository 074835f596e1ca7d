import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

ROOT = Path("checkpoints/sharded")


def parse():
    ap = argparse.ArgumentParser()
    ap.add_argument("--steps", type=int, required=True)
    ap.add_argument("--width", type=int, default=32)
    ap.add_argument("--resume", action="store_true")
    return ap.parse_args()


def build(width):
    net = torch.nn.Sequential(torch.nn.Linear(16, width), torch.nn.SiLU(), torch.nn.Linear(width, 16))
    for layer in net:
        if list(layer.parameters()):
            fully_shard(layer)
    fully_shard(net)
    return net, torch.optim.AdamW(net.parameters(), lr=3e-3)


def load(net, opt):
    model_sd, optim_sd = get_state_dict(net, opt)
    state = {"model": model_sd, "optim": optim_sd, "step": 0}
    dcp.load(state, checkpoint_id=ROOT)
    set_state_dict(net, opt, model_state_dict=state["model"], optim_state_dict=state["optim"])
    return state["step"]


def main(a):
    dist.init_process_group("gloo")
    net, opt = build(a.width)
    step = 0
    if a.resume:
        step = load(net, opt)
        print(f"{dist.get_rank()}> resume from step {step}", flush=True)
    while step < a.steps:
        x = torch.randn(8, 16)
        loss = (net(x) - x.flip(-1)).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        step += 1
        print(f"{dist.get_rank()}> step {step} loss {loss.item():.4f}", flush=True)
    model_sd, optim_sd = get_state_dict(net, opt)
    dcp.save({"model": model_sd, "optim": optim_sd, "step": step}, checkpoint_id=ROOT)
    dist.destroy_process_group()


main(parse())
