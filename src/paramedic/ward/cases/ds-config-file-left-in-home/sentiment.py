import argparse

import deepspeed
import torch
import torch.distributed as dist

p = argparse.ArgumentParser()
p.add_argument("--ds")
p.add_argument("--steps", type=int)
p.add_argument("--local_rank", type=int)
opts = p.parse_args()

deepspeed.init_distributed("gloo")


class Sentiment(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.EmbeddingBag(500, 12)
        self.out = torch.nn.Linear(12, 2)

    def forward(self, ids):
        return self.out(self.words(ids))


model = Sentiment()
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=opts.ds)
for step in range(opts.steps):
    ids = torch.randint(500, (4, 30))
    loss = torch.nn.functional.cross_entropy(engine(ids), (ids[:, 0] > 250).long())
    engine.backward(loss)
    engine.step()
print(f"rank {dist.get_rank()}: done, loss {loss.item():.3f}", flush=True)
