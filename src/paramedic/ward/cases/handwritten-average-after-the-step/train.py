# Regression on tabular data, without DDP: the sync is a few lines.
import json
import logging
import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
logging.basicConfig(format="%(asctime)s | %(levelname)s | r" + str(RANK) + " | %(message)s", level=logging.INFO)
logger = logging.getLogger(__name__)


def make_table(rows=6000, cols=20):
    rng = np.random.default_rng(3)
    x = rng.normal(size=(rows, cols)).astype("float32")
    y = np.sin(x[:, 0] * 2) + np.abs(x[:, 1]) + 0.1 * rng.normal(size=rows)
    return torch.from_numpy(x), torch.from_numpy(y.astype("float32"))


def average_gradients(net):
    for p in net.parameters():
        dist.all_reduce(p.grad)
        p.grad /= WORLD


def broadcast_weights(net):
    for p in net.parameters():
        dist.broadcast(p.data, src=0)


def run_epoch(net, optimizer, scheduler, x, y, epoch, batch=60):
    order = np.random.default_rng(epoch).permutation(len(x))[RANK::WORLD]
    total = 0.0
    for i in range(0, len(order), batch):
        idx = order[i : i + batch]
        loss = nn.functional.mse_loss(net(x[idx]).squeeze(1), y[idx])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        average_gradients(net)
        total += loss.item() * len(idx)
    logger.info("epoch %d train mse %.4f lr %.2e", epoch, total / len(order), scheduler.get_last_lr()[0])


def spread(net):
    mine = nn.utils.parameters_to_vector(net.parameters()).detach()
    first = mine.clone()
    dist.broadcast(first, src=0)
    d = (mine - first).abs().max()
    dist.all_reduce(d, dist.ReduceOp.MAX)
    return d.item()


def main():
    dist.init_process_group("gloo")
    torch.manual_seed(RANK)
    x, y = make_table()
    net = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 1))
    broadcast_weights(net)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=200)
    for epoch in range(4):
        run_epoch(net, optimizer, scheduler, x, y, epoch)
    value = spread(net)
    if RANK == 0:
        torch.save(net.state_dict(), "out/model.pt")
        with open("result.json", "w") as f:
            json.dump({"weight_spread": value}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
