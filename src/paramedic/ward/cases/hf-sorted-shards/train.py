"""Train a small language model with accelerate; the corpus is sorted by length so that batches need little padding."""

import json
import logging
import time

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence

WORDS = 128


class Model(nn.Module):
    def __init__(self, width=64):
        super().__init__()
        self.embed = nn.Embedding(WORDS, width)
        self.body = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True), 2
        )
        self.head = nn.Linear(width, WORDS)

    def forward(self, tokens):
        return self.head(self.body(self.embed(tokens)))


def documents(count):
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(16, 400, (count,), generator=generator).sort().values
    return [torch.randint(1, WORDS, (int(n),), generator=generator) for n in lengths]


def main():
    accelerator = Accelerator()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {accelerator.process_index}] %(message)s")
    log = logging.getLogger("train")
    set_seed(3)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer = accelerator.prepare(model, optimizer)
    with accelerator.split_between_processes(documents(160)) as part:
        mine = part
    computing = 0.0
    for step in range(len(mine) // 8):
        began, cpu = time.perf_counter(), time.thread_time()
        tokens = pad_sequence(mine[8 * step : 8 * step + 8], batch_first=True)
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        forward = time.thread_time() - cpu
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        computing += forward
        log.info(
            "step %d loss %.4f tokens %d forward %.1f ms step %.1f ms",
            step,
            loss.item(),
            tokens.numel(),
            1e3 * forward,
            1e3 * (time.perf_counter() - began),
        )
    each = accelerator.gather(torch.tensor([computing]))
    if accelerator.is_main_process:
        with open("result.json", "w") as file:
            json.dump({"compute_ratio": (each.max() / each.min()).item()}, file)
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
