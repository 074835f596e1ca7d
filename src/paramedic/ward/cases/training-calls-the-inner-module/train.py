import json

import torch
import torch.distributed as dist
from engine import Engine
from net import Tagger, sentences
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

CFG = {"lr": 1e-2, "clip": 1.0, "epochs": 3, "batch": 32}


def drift(model):
    vector = torch.nn.utils.parameters_to_vector(model.parameters()).detach()
    low, high = vector.clone(), vector.clone()
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    return (high - low).max().item()


def main():
    dist.init_process_group(backend="gloo")
    torch.manual_seed(17)
    model = DistributedDataParallel(Tagger())
    train = TensorDataset(*sentences(2560))
    loader = DataLoader(train, CFG["batch"], sampler=DistributedSampler(train))
    optimizer = torch.optim.Adam(model.parameters(), lr=CFG["lr"])
    best = Engine(model, optimizer, loader, sentences(256, seed=5), CFG).run()
    value = drift(model)
    if dist.get_rank() == 0:
        print(f"best val_loss {best:.4f}", flush=True)
        with open("result.json", "w") as f:
            json.dump({"best": best, "spread": value}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
