import argparse

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


class Progress:
    done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


class Ema:
    def __init__(self, model):
        self.mean = {k: v.clone() for k, v in model.state_dict().items()}

    def state_dict(self):
        return self.mean

    def load_state_dict(self, state):
        self.mean = state


def run(accelerator, model, optimizer, loader, progress, args):
    stop = progress.done + 6
    for x, y in loader:
        if progress.done == stop:
            break
        loss = torch.nn.functional.mse_loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        progress.done += 1
    accelerator.print(f"stopped at {progress.done}, loss {loss.item():.4f}")
    accelerator.save_state("checkpoints/state")
    accelerator.print("saved checkpoints/state")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--ema", action="store_true")
    args = parser.parse_args()
    accelerator = Accelerator()
    torch.manual_seed(0)
    x = torch.randn(160, 8)
    model = torch.nn.Linear(8, 1)
    progress, ema = Progress(), Ema(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=8))
    accelerator.register_for_checkpointing(progress)
    if args.ema:
        accelerator.register_for_checkpointing(ema)
    if args.resume:
        accelerator.load_state("checkpoints/state")
        accelerator.print(f"resumed at {progress.done}")
    run(accelerator, model, optimizer, loader, progress, args)
    accelerator.end_training()


if __name__ == "__main__":
    main()
