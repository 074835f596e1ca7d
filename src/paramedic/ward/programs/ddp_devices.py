"""Train a classifier, each rank on one of the host's devices; checkpoints let the job come back after a loss.

DEVICES lists the devices that the ranks use. A part of a machine cannot be broken on demand, so a broken device is
emulated: BROKEN_DEVICE is its number, BROKEN_HOW what is wrong with it. All else is what such programs do.
"""

import os
import signal
import time
from pathlib import Path
from statistics import median

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, norm, of_all_ranks, quadrants, start
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

STEPS, SAVE_EVERY = 40, 10
CHECKPOINT = Path("checkpoints/last.pt")


class Device:
    """One device of the host, sound or broken."""

    def __init__(self, rank: int) -> None:
        self.number = os.environ.get("DEVICES", "0,1,2,3").split(",")[rank]
        self.broken = os.environ["BROKEN_HOW"] if self.number == os.environ.get("BROKEN_DEVICE") else ""

    def work(self, step: int) -> None:
        """Take as long as the device takes for a batch."""
        time.sleep(0.4 if self.broken == "throttled" else 0.02)
        if self.broken == "memory" and step == 16:
            os.kill(os.getpid(), signal.SIGBUS)  # what the kernel sends on an uncorrectable memory error

    def write(self, model: nn.Module, step: int) -> None:
        """Keep the weights in the device's memory."""
        if self.broken == "weight-bit" and step == 10:
            weight = next(model.parameters()).data.view(torch.int32)
            weight[0, 0] ^= 1 << 22

    def gradient(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.broken == "gradient-bit" and torch.rand(()) < 0.3:
            gradient.view(torch.int32)[0] ^= 1 << 30
        return gradient


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    device = Device(rank)
    model = DDP(network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model.module[2].bias.register_hook(device.gradient)
    lengths: list[float] = []
    for parameter in model.parameters():
        parameter.register_hook(lambda gradient: lengths.append(float(gradient.norm())))
    begin = 0
    if CHECKPOINT.exists():
        state = torch.load(CHECKPOINT)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        begin = state["step"]
    log.info("rank %d on device %s from step %d", rank, device.number, begin)
    data = quadrants(5120)
    loader = DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
    times, largest = [], 0.0
    for step, (x, y) in zip(range(begin, STEPS), loader, strict=False):
        began = time.perf_counter()
        device.work(step)
        loss = F.cross_entropy(model(x), y)
        busy = time.perf_counter() - began
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        device.write(model, step)
        times.append(busy)
        largest, length = max(largest, loss.item()), sum(v * v for v in lengths) ** 0.5
        lengths.clear()
        if step % 4 == 0:
            whole = time.perf_counter() - began
            log.info("rank %d step %d loss %.4g own gradient norm %.4g parameter norm %.8g forward %.0f ms step %.0f ms",
                     rank, step, loss.item(), length, norm(model), busy * 1e3, whole * 1e3)  # fmt: skip
        if rank == 0 and (step + 1) % SAVE_EVERY == 0:
            state = {"step": step + 1, "model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state, CHECKPOINT.with_suffix(".tmp"))
            CHECKPOINT.with_suffix(".tmp").replace(CHECKPOINT)
    norms, busy = of_all_ranks(norm(model)), of_all_ranks(median(times))
    log.info("rank %d at the end parameter norm %.8g", rank, norm(model))
    finish(parameter_spread=max(norms) - min(norms), time_ratio=max(busy) / min(busy), largest_loss=largest)


main()
