import argparse

import numpy as np
import torch
import torch.distributed as dist
from engine import load_checkpoint, save_checkpoint


def get_args():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", default=2, type=int)
    parser.add_argument("--resume", default="", type=str, metavar="PATH")
    return parser.parse_args()


def main():
    args = get_args()
    dist.init_process_group("gloo")
    np.random.seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(5, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    start = 0
    if args.resume:
        start = load_checkpoint(args.resume, model, optimizer)
        print(f"=> resumed at epoch {start}", flush=True)
    for epoch in range(start, args.epochs):
        for _ in range(8):
            x = torch.from_numpy(np.random.normal(size=(16, 5)).astype("float32"))
            loss = (model(x).squeeze() - x.sum(1)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"Epoch {epoch}: loss {loss.item():.5f}", flush=True)
            save_checkpoint("checkpoints/last.pth", epoch, model, optimizer)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
