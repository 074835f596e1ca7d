"""Train a small GPT-2 with accelerate and print a sample after each epoch."""

import logging

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import GPT2Config, GPT2LMHeadModel


def main():
    accelerator = Accelerator()
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s [rank {accelerator.process_index}] %(message)s")
    log = logging.getLogger("gpt")
    set_seed(3)
    model = GPT2LMHeadModel(
        GPT2Config(vocab_size=64, n_positions=64, n_embd=32, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    text = torch.arange(64 * 24).reshape(64, 24) % 17 + 1
    model, optimizer, data = accelerator.prepare(model, optimizer, DataLoader(text, batch_size=8, shuffle=True))
    for epoch in range(2):
        for tokens in data:
            loss = model(input_ids=tokens, labels=tokens).loss
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
        log.info("epoch %d loss %.4f", epoch, loss.item())
        prompt = torch.tensor([[1, 2, 3, 4]])
        sample = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, do_sample=False)
        log.info("sample %s", sample[0].tolist())
    accelerator.wait_for_everyone()
    log.info("training finished")
    accelerator.end_training()


if __name__ == "__main__":
    main()
