import argparse
import json

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

VOCAB, DIM, SEQ = 64, 64, 24


class FirstStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCAB, DIM)
        self.pos = nn.Parameter(0.02 * torch.randn(SEQ, DIM))
        self.layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)

    def forward(self, ids):
        mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
        return self.layer(self.embed(ids) + self.pos, src_mask=mask, is_causal=True)


class LastStage(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(DIM, 4, 2 * DIM, dropout=0.0, batch_first=True, norm_first=True)
        self.norm = nn.LayerNorm(DIM)
        self.head = nn.Linear(DIM, VOCAB)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(SEQ)
        return self.head(self.norm(self.layer(x, src_mask=mask, is_causal=True)))


def token_loss(logits, target):
    return nn.functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class PipelineTrainer:
    def __init__(self, args):
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.last = self.rank == self.world - 1
        torch.manual_seed(args.seed + self.rank)
        self.module = LastStage() if self.last else FirstStage()
        stage = PipelineStage(self.module, self.rank, self.world, torch.device("cpu"))
        self.pipeline = ScheduleGPipe(stage, args.microbatches, loss_fn=token_loss)
        self.optimizer = torch.optim.AdamW(self.module.parameters(), lr=args.lr)
        warmup = args.steps // 5
        self.schedule_lr = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / warmup))
        self.step_no = 0

    def train_step(self, ids):
        losses = []
        if self.last:
            self.pipeline.step(target=ids[:, 1:].contiguous(), losses=losses)
        else:
            self.pipeline.step(ids[:, :-1].contiguous())
        nn.utils.clip_grad_value_(self.module.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.step_no += 1
        if self.last:
            self.schedule_lr.step()
            if self.step_no % 20 == 0:
                loss = torch.stack(losses).mean().item()
                lr = self.optimizer.param_groups[0]["lr"]
                print(f"step {self.step_no} loss {loss:.4f} lr {lr:.2e}", flush=True)


def sentences(generator, n=32):
    """Arithmetic walks: a start, a stride, some wrong tokens."""
    start = torch.randint(VOCAB, (n, 1), generator=generator)
    stride = torch.randint(1, 8, (n, 1), generator=generator)
    ids = (start + stride * torch.arange(SEQ + 1)) % VOCAB
    noise = torch.rand(ids.shape, generator=generator) < 0.03
    return torch.where(noise, torch.randint(VOCAB, ids.shape, generator=generator), ids)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--microbatches", type=int, default=4)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    trainer = PipelineTrainer(args)
    generator = torch.Generator().manual_seed(77)
    for _ in range(args.steps):
        trainer.train_step(sentences(generator))
    rates = [torch.zeros(1) for _ in range(trainer.world)]
    dist.all_gather(rates, torch.tensor([trainer.optimizer.param_groups[0]["lr"]]))
    if trainer.last:
        print("pipeline finished", flush=True)
        with open("result.json", "w") as f:
            json.dump({"lr_ratio": (rates[0] / rates[-1]).item()}, f)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
