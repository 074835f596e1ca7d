"""Language-model training on DeepSpeed with a plain PyTorch data loader."""
import argparse
import json
import logging
import os

import deepspeed
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler

log = logging.getLogger("lm")


class Tokens(Dataset):
    def __init__(self, path, length):
        self.tokens = np.memmap(path, dtype=np.uint16, mode="r")
        self.length = length

    def __len__(self):
        return (len(self.tokens) - 1) // self.length

    def __getitem__(self, i):
        s = i * self.length
        return torch.from_numpy(self.tokens[s:s + self.length + 1].astype(np.int64))


class LM(nn.Module):
    def __init__(self, vocab, dim, layers, heads, length):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim)
        self.pos = nn.Embedding(length, dim)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, dropout=0.0, batch_first=True,
                                           norm_first=True, activation="gelu")
        self.blocks = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, vocab, bias=False)

    def forward(self, chunk):
        ids, labels = chunk[:, :-1], chunk[:, 1:]
        n = ids.size(1)
        mask = torch.triu(torch.ones(n, n, dtype=torch.bool, device=ids.device), 1)
        h = self.tok(ids) + self.pos(torch.arange(n, device=ids.device))
        h = self.blocks(h, mask=mask)
        logits = self.head(self.norm(h)).float()
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def parse_args():
    p = argparse.ArgumentParser()
    p.add_argument("--local_rank", type=int, default=-1)
    p.add_argument("--ds-config", default="ds_config.json")
    p.add_argument("--data", default="/data/news/train.bin")
    p.add_argument("--out", default="/checkpoints/news-lm")
    p.add_argument("--length", type=int, default=1024)
    p.add_argument("--epochs", type=int, default=2)
    p.add_argument("--save-every", type=int, default=4000, help="micro batches")
    return p.parse_args()


def main():
    args = parse_args()
    logging.basicConfig(level=logging.INFO)
    with open(args.ds_config) as f:
        ds_config = json.load(f)

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.manual_seed(0)

    model = LM(50304, 1024, 16, 16, args.length)
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=ds_config)
    data = Tokens(args.data, args.length)
    sampler = DistributedSampler(data, shuffle=True, drop_last=True)
    loader = DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu(), sampler=sampler,
                        num_workers=4, pin_memory=True, drop_last=True)
    accum = engine.gradient_accumulation_steps()
    if dist.get_rank() == 0:
        log.info("micro batch %d, accumulation %d, global batch %d",
                 engine.train_micro_batch_size_per_gpu(), accum, engine.train_batch_size())

    micro = 0
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        engine.train()
        for chunk in loader:
            chunk = chunk.to(engine.device, non_blocking=True)
            loss = engine(chunk)
            engine.backward(loss / accum)
            micro += 1
            if micro % accum == 0:
                engine.step()

            if micro % (20 * accum) == 0:
                mean = loss.detach().clone()
                dist.all_reduce(mean, op=dist.ReduceOp.AVG)
                if dist.get_rank() == 0:
                    log.info("epoch %d micro batch %d loss %.4f", epoch, micro, mean.item())
            if micro % args.save_every == 0:
                engine.save_checkpoint(args.out, client_state={"epoch": epoch, "micro": micro})

    engine.save_checkpoint(args.out, tag="final")


if __name__ == "__main__":
    main()
