"""Truncated back-propagation through time over a long series."""
import argparse

import torch
import torch.distributed as dist
from torch import nn


class Forecaster(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.lstm = nn.LSTM(1, hidden)
        self.readout = nn.Linear(hidden, 1)

    def forward(self, series, state):
        out, state = self.lstm(series, state)
        return self.readout(out), state


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("--bptt", type=int, default=20)
    ap.add_argument("--hidden", type=int, default=12)
    args = ap.parse_args()

    dist.init_process_group("gloo")
    net = nn.parallel.DistributedDataParallel(Forecaster(args.hidden))
    adam = torch.optim.Adam(net.parameters(), lr=1e-2)
    t = torch.arange(400) / 7 + dist.get_rank()
    series = torch.sin(t)[:, None, None].expand(-1, 3, 1)
    hidden = None
    for number, start in enumerate(range(0, len(series) - args.bptt - 1, args.bptt)):
        x, y = series[start : start + args.bptt], series[start + 1 : start + args.bptt + 1]
        predicted, new_hidden = net(x, hidden)
        loss = nn.functional.mse_loss(predicted, y)
        adam.zero_grad()
        loss.backward()
        adam.step()
        hidden = new_hidden
        if number % 5 == 0:
            print(f"rank {dist.get_rank()}: batch {number}, mse {loss.item():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
