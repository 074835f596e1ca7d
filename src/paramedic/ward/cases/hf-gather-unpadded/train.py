"""Train a small tagger with accelerate; sentences are padded to the longest of their batch."""

import logging

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

WORDS = 64


def sentences(count):
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(1, WORDS, (int(n),), generator=generator) for n in torch.arange(count) % 23 + 4]


def collate(batch):
    return pad_sequence(batch, batch_first=True)


def main():
    accelerator = Accelerator()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {accelerator.process_index}] %(message)s")
    log = logging.getLogger("tagger")
    set_seed(3)
    model = nn.Sequential(nn.Embedding(WORDS, 32, padding_idx=0), nn.Linear(32, 5))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    data = DataLoader(sentences(96), batch_size=8, collate_fn=collate)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for epoch in range(3):
        right, words = 0, 0
        for tokens in data:
            logits = model(tokens)
            loss = cross_entropy(logits.flatten(0, 1), (tokens % 5).flatten())
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
            predicted = logits.argmax(-1)
            everywhere = accelerator.gather(predicted)
            words += everywhere.numel()
            right += int((everywhere == 0).sum())
        log.info("epoch %d loss %.4f share of tag 0 %.3f", epoch, loss.item(), right / words)
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
