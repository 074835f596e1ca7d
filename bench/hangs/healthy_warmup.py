"""The first step compiles the model, the validation's other shape compiles it again."""

import os
import tempfile

import torch
import torch.distributed as dist
from common import build_model, log, make_batch, setup, train_step
from torch.nn.parallel import DistributedDataParallel


def main():
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = os.path.abspath(tempfile.mkdtemp(dir="."))  # compiled anew in every run
    setup()
    depth = 4 if float(os.environ.get("LONG", "60")) < 20 else 24
    model = torch.compile(DistributedDataParallel(build_model(width=256, depth=depth)), dynamic=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(60):
        size = 64 if step < 40 else 96
        log(step, train_step(model, optimizer, make_batch(step, size)))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
