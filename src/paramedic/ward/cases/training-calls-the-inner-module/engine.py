"""The training engine: loop, logging, validation."""

import json

import torch
import torch.distributed as dist


def unwrap(model):
    return getattr(model, "module", model)


class Engine:
    def __init__(self, model, optimizer, train_loader, val_batch, cfg):
        self.model, self.optimizer, self.cfg = model, optimizer, cfg
        self.train_loader, self.val_batch = train_loader, val_batch
        self.rank = dist.get_rank()
        self.best = float("inf")

    def log(self, **fields):
        if self.rank == 0:
            print(json.dumps(fields), flush=True)

    def step(self, batch):
        loss = unwrap(self.model).compute_loss(*batch)
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), self.cfg["clip"])
        self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def validate(self):
        tokens, tags = self.val_batch
        scores = unwrap(self.model).scores(tokens)
        return torch.nn.functional.cross_entropy(scores.flatten(0, 1), tags.flatten()).item()

    def run(self):
        for epoch in range(self.cfg["epochs"]):
            self.train_loader.sampler.set_epoch(epoch)
            for i, batch in enumerate(self.train_loader):
                loss = self.step(batch)
                if i % 5 == 0:
                    self.log(epoch=epoch, batch=i, loss=round(loss, 4))
            val = self.validate()
            self.best = min(self.best, val)
            self.log(epoch=epoch, val_loss=round(val, 4))
        return self.best
