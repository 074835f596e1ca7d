import json
import os

import torch
import torch.distributed as dist
from parallel import apply_fsdp, make_mesh
from tiny_lm import TinyLM, loss_of, text
from torch.distributed.tensor import DTensor


def full(p):
    return p.full_tensor() if isinstance(p, DTensor) else p


class Job:
    def __init__(self):
        dist.init_process_group("gloo")
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        torch.manual_seed(2024)
        self.model = apply_fsdp(TinyLM(layers=3), make_mesh(self.world))
        groups = {}
        for name, p in self.model.named_parameters():
            groups.setdefault("no_decay" if p.ndim < 2 else "decay", []).append(p)
        self.opts = [torch.optim.AdamW(ps, lr=2e-3, weight_decay=0.1 * (k == "decay"), foreach=False) for k, ps in groups.items()]

    def train(self, steps):
        for it in range(steps):
            ids = text(8, 32, seed=it * self.world + self.rank)
            loss = loss_of(self.model(ids[:, :-1]), ids[:, 1:])
            for o in self.opts:
                o.zero_grad()
            loss.backward()
            for o in self.opts:
                o.step()
            if it % 5 == 0:
                print(f"[{self.rank}/{self.world}] it={it} loss={loss.item():.4f}", flush=True)

    def checkpoint(self):
        state = {k: full(v.detach()) for k, v in self.model.state_dict().items()}
        if self.rank == 0:
            torch.save(state, "checkpoints/final.pt")
            print("saved 1 checkpoint", flush=True)
        return torch.cat([v.flatten() for v in state.values()])

    def close(self, vector):
        first = vector.clone()
        dist.broadcast(first, 0)
        gap = (vector - first).abs().max()
        dist.all_reduce(gap, dist.ReduceOp.MAX)
        if self.rank == 0:
            json.dump({"apart": gap.item()}, open("result.json", "w"))
        dist.destroy_process_group()


if __name__ == "__main__":
    job = Job()
    job.train(21)
    job.close(job.checkpoint())
