"""Two-phase fine-tuning: first the head, then everything."""
import json
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel as DDP


class Core(nn.Module):
    def __init__(self, inputs=64, width=768, classes=6):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 128), nn.ReLU()
        )
        self.head = nn.Linear(128, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


class FineTuner:
    def __init__(self, lr=5e-3, batch=32, head_steps=40, full_steps=60):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.lr, self.batch, self.head_steps, self.full_steps = lr, batch, head_steps, full_steps
        torch.manual_seed(0)
        self.core = Core()
        self.centres = torch.randn(6, 64, generator=torch.Generator().manual_seed(4))
        self.done = 0

    def data(self, number):
        g = torch.Generator().manual_seed(number * self.world + self.rank)
        y = torch.randint(6, (self.batch,), generator=g)
        return self.centres[y] + 1.5 * torch.randn(self.batch, 64, generator=g), y

    def freeze_backbone(self):
        self.core.backbone.requires_grad_(False)
        self.net = DDP(self.core)
        self.net.register_comm_hook(None, default_hooks.fp16_compress_hook)
        self.optimizer = torch.optim.Adam(self.core.head.parameters(), lr=self.lr)

    def unfreeze(self):
        self.core.backbone.requires_grad_(True)
        self.net = DDP(self.core)
        self.optimizer = torch.optim.Adam(self.core.parameters(), lr=self.lr / 5)

    def step(self):
        x, y = self.data(self.done)
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.item()

    def phase(self, name, steps):
        began = time.time()
        trained = sum(p.numel() for p in self.core.parameters() if p.requires_grad)
        self.say(f"phase {name}: {trained:,} trainable parameters")
        for i in range(steps):
            loss = self.step()
            if i % 5 == 0:
                self.say(f"{name} step {i} loss {loss:.4f}")
        self.say(f"phase {name}: {(time.time() - began) / steps * 1e3:.1f} ms per step")

    def say(self, text):
        if self.rank == 0:
            print(text, flush=True)

    def run(self):
        self.freeze_backbone()
        self.phase("head", self.head_steps)
        self.unfreeze()
        self.phase("all", self.full_steps)


def main():
    dist.init_process_group("gloo")
    tuner = FineTuner()
    tuner.run()
    tuner.say("fine-tuning finished")
    grads = torch.cat([p.grad.flatten() for p in tuner.core.parameters()])
    grads = grads[grads != 0]
    if tuner.rank == 0:
        share = (grads.half().float() == grads).float().mean().item()
        json.dump({"half_share": share}, open("result.json", "w"))
        torch.save(tuner.core.state_dict(), "tuned.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
