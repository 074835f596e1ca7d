"""A real training loop under `paramedic run`: blocks of steps with the agent at work and with it paused, in turn."""

import json
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

BLOCKS, STEPS, WARM = int(os.environ.get("BLOCKS", "40")), int(os.environ.get("STEPS", "25")), 30
device = torch.device("cuda") if os.environ.get("DEVICE") == "cuda" else torch.device("cpu")
torch.set_num_threads(1)
torch.use_deterministic_algorithms(True)
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
torch.manual_seed(0)
if device.type == "cuda":
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    layer = torch.nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, dropout=0.0)
    model = torch.nn.TransformerEncoder(layer, 8).to(device)
    x = torch.randn(16, 512, 1024, device=device)
else:
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(6)))
    x = torch.randn(128, 512)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
started = sys.modules.get("paramedic_rank.start")
agent = started.agent if started else None


def block(steps):
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(x).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return loss


block(WARM)
times = []
for number in range(BLOCKS):
    if agent:
        agent.paused = number % 2 == 1
    dist.barrier()
    begin = time.perf_counter()
    loss = block(STEPS)
    times.append((time.perf_counter() - begin) / STEPS * 1e3)
if dist.get_rank() == 0:
    told = {"times_ms": times, "loss": loss.item().hex(), "off": agent.off if agent else None}
    sys.stdout.write("RESULT " + json.dumps(told) + "\n")
    sys.stdout.flush()
dist.destroy_process_group()
