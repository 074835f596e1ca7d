"""Continue masked-language pre-training on our own texts."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers import AdamW, BertConfig, BertForMaskedLM, get_linear_schedule_with_warmup

MASK = 4


def masked(ids):
    labels = ids.clone()
    hide = torch.rand(ids.shape) < 0.15
    labels[~hide] = -100
    labels[:, 0] = ids[:, 0]
    return ids.masked_fill(hide, MASK), labels


def main():
    dist.init_process_group("gloo")
    config = BertConfig(vocab_size=120, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48)
    model = DistributedDataParallel(BertForMaskedLM(config), find_unused_parameters=True)
    optimizer = AdamW(model.parameters(), lr=5e-4)
    scheduler = get_linear_schedule_with_warmup(optimizer, 2, 8)
    for step in range(7):
        ids, labels = masked(torch.randint(5, 120, (4, 16)))
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        print(f"[{dist.get_rank()}] mlm step {step} loss {loss.item():.3f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
