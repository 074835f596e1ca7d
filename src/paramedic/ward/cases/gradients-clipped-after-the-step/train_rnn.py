"""Next value of a noisy series with a small recurrent network; now and then the series has an outlier."""

import json
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP


@dataclass
class Settings:
    hidden: int = 32
    length: int = 24
    batch: int = 32
    steps: int = 300
    lr: float = 0.02
    max_norm: float = 0.5
    eval_every: int = 10


class Predictor(nn.Module):
    def __init__(self, cfg):
        super().__init__()
        self.rnn = nn.GRU(1, cfg.hidden, batch_first=True)
        self.out = nn.Linear(cfg.hidden, 1)

    def forward(self, x):
        return self.out(self.rnn(x)[0])


def series(cfg, n, generator, outliers):
    t = torch.arange(cfg.length + 1.0)
    f = 0.2 + 0.6 * torch.rand(n, 1, generator=generator)
    x = torch.sin(f * t + 6.28 * torch.rand(n, 1, generator=generator))
    x = x + 0.05 * torch.randn(x.shape, generator=generator)
    if outliers:
        hit = torch.rand(x.shape, generator=generator) < 2e-4
        x = torch.where(hit, x * 5000, x)
    return x[:, :-1, None], x[:, 1:, None]


class Trainer:
    def __init__(self, cfg):
        self.cfg, self.rank = cfg, dist.get_rank()
        torch.manual_seed(0)
        self.model = DDP(Predictor(cfg))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=cfg.lr, momentum=0.9)
        self.data = torch.Generator().manual_seed(40 + self.rank)
        self.test = series(cfg, 256, torch.Generator().manual_seed(1), outliers=False)

    def step(self):
        x, y = series(self.cfg, self.cfg.batch, self.data, outliers=True)
        loss = nn.functional.mse_loss(self.model(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg.max_norm)
        return loss.item(), float(norm)

    @torch.no_grad()
    def evaluate(self):
        x, y = self.test
        return nn.functional.mse_loss(self.model.module(x), y).item()

    def fit(self):
        history = []
        for step in range(1, self.cfg.steps + 1):
            loss, norm = self.step()
            if step % self.cfg.eval_every == 0:
                history.append(self.evaluate())
                if self.rank == 0:
                    print(f"step {step} loss {loss:.4f} grad norm {norm:.2f} test loss {history[-1]:.4f}", flush=True)
        return history


if __name__ == "__main__":
    dist.init_process_group("gloo")
    trainer = Trainer(Settings())
    history = trainer.fit()
    if trainer.rank == 0:
        print(f"best test loss {min(history):.4f}", flush=True)
        rises = [b / a for a, b in zip(history, history[1:])]
        with open("result.json", "w") as f:
            json.dump({"worst_rise": max(r if r == r else 1e9 for r in rises)}, f)
    dist.destroy_process_group()
