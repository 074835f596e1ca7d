import json

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict
from torch.distributed.fsdp import fully_shard

OPTIONS = StateDictOptions(full_state_dict=True)


class Residual(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.layers = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.SiLU(), nn.Linear(2 * dim, dim))

    def forward(self, x):
        return x + self.layers(x)


class Model(nn.Module):
    def __init__(self, inputs=32, dim=256, depth=4):
        super().__init__()
        self.first = nn.Linear(inputs, dim)
        self.blocks = nn.ModuleList(Residual(dim) for _ in range(depth))
        self.last = nn.Linear(dim, 2)

    def forward(self, x):
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


class Job:
    """One job of a chain: builds everything, resumes if it can, trains up to a step, saves."""

    def __init__(self, seed, folder="dcp"):
        torch.manual_seed(seed)
        self.rank, self.folder, self.step = dist.get_rank(), folder, 0
        self.model = Model()
        for block in self.model.blocks:
            fully_shard(block)
        fully_shard(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def state(self):
        model, optimizer = get_state_dict(self.model, self.optimizer, options=OPTIONS)
        return {"model": model, "optimizer": optimizer, "step": self.step}

    def save(self):
        dcp.save(self.state(), checkpoint_id=self.folder)
        self.say(f"saved step {self.step} to {self.folder}")

    def resume(self):
        state = self.state()
        dcp.load(state, checkpoint_id=self.folder)
        self.step = state["step"]
        self.say(f"resumed from {self.folder} at step {self.step}")

    def train(self, until):
        while self.step < until:
            g = torch.Generator().manual_seed(10_000 * self.rank + self.step)
            x = torch.randn(64, 32, generator=g)
            y = (x[:, :16].square().sum(1) > x[:, 16:].square().sum(1)).long()
            loss = nn.functional.cross_entropy(self.model(x), y)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            if self.step % 5 == 0:
                self.say(f"step {self.step} loss {loss.item():.4f}")
            self.step += 1

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def local_weights(self):
        return torch.cat([p.detach().to_local().flatten() for p in self.model.parameters()]).clone()


def main():
    dist.init_process_group("gloo")
    job = Job(seed=0)
    job.train(until=40)
    job.save()
    at_save = job.local_weights()
    del job

    job = Job(seed=1)
    job.resume()
    at_resume = job.local_weights()
    job.train(until=60)
    job.say(f"finished at step {job.step}")

    sums = torch.stack([(at_resume - at_save).square().sum(), at_save.square().sum()])
    dist.all_reduce(sums)
    if dist.get_rank() == 0:
        json.dump({"distance_after_resume": (sums[0] / sums[1]).sqrt().item()}, open("result.json", "w"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
