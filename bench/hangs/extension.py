"""DDP training with an operator that is built on first use, one folder for each local rank."""

import os
import tempfile

import torch
import torch.distributed as dist
from common import HOW, RANK, build_model, due, go_on, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel
from torch.utils.file_baton import FileBaton


def build(folder):
    with open(os.path.join(folder, "fused.so"), "w") as file:
        file.write("built")


def load_operator(root):
    """As torch.utils.cpp_extension.load: who gets the lock builds, the others wait for it to go."""
    folder = os.path.join(root, f"rank{RANK}")
    os.makedirs(folder, exist_ok=True)
    baton = FileBaton(os.path.join(folder, "lock"))
    if baton.try_acquire():
        try:
            build(folder)
        finally:
            baton.release()
    else:
        baton.wait()


def leave_lock(root):
    """As a job does that is killed while it builds."""
    folder = os.path.join(root, f"rank{RANK}")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, "lock"), "w"):
        pass


def main():
    root = tempfile.mkdtemp(dir=".")
    if HOW == "start" and due(int(os.environ.get("FAULT_STEP", "20"))):
        leave_lock(root)
    if HOW == "start":
        load_operator(root)
    setup()
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while go_on(step):
        if HOW == "step" and step == int(os.environ.get("FAULT_STEP", "20")):
            if due(step):
                leave_lock(root)
            load_operator(root)
        log(step, train_step(model, optimizer, make_batch(step)))
        step += 1
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
