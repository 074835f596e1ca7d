import logging
import sys

import torch
import torch.distributed as dist
from torch import nn

log = logging.getLogger("gru")


class Net(nn.Module):
    def __init__(self, d=16):
        super().__init__()
        self.a, self.b = nn.Linear(d, d), nn.Linear(d, 1)

    def forward(self, x):
        return self.b(torch.sigmoid(self.a(x)) * x).squeeze(-1)


def run():
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="%(levelname)s:%(name)s:%(message)s")
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(Net())
    step_fn = torch.compile(model)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    for i in range(5):
        x = torch.randn(8, 16)
        loss = nn.functional.mse_loss(step_fn(x), x.mean(-1))
        opt.zero_grad()
        loss.backward()
        opt.step()
        log.info("compiled step %d on rank %d: %.5f", i, dist.get_rank(), loss.item())
    dist.destroy_process_group()


run()
