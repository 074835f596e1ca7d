"""Product category from photo and title, on one host with four GPUs, DeepSpeed ZeRO-2."""
import argparse
import json
import os

import deepspeed
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler
from torchvision import models, transforms


class Products(Dataset):
    """index.jsonl: {"image": relative path, "ids": [token ids], "category": int}"""

    def __init__(self, root, max_len=64):
        self.root, self.max_len = root, max_len
        with open(os.path.join(root, "index.jsonl")) as f:
            self.rows = [json.loads(line) for line in f]
        self.tf = transforms.Compose([
            transforms.RandomResizedCrop(224, scale=(0.8, 1.0)), transforms.ToTensor(),
            transforms.Normalize([0.481, 0.458, 0.408], [0.269, 0.261, 0.276])])

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        row = self.rows[i]
        with Image.open(os.path.join(self.root, row["image"])) as im:
            image = self.tf(im.convert("RGB"))
        ids = row["ids"][:self.max_len]
        return image, torch.tensor(ids + [0] * (self.max_len - len(ids))), row["category"]


class TwoTower(nn.Module):
    def __init__(self, vocab=32000, dim=512, classes=1200):
        super().__init__()
        self.visual = models.vit_b_16(weights=None, num_classes=dim)
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        layer = nn.TransformerEncoderLayer(dim, 8, 4 * dim, batch_first=True, norm_first=True)
        self.text = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(2 * dim), nn.Linear(2 * dim, classes))

    def forward(self, images, ids, labels):
        pad = ids.eq(0)
        h = self.text(self.embed(ids), src_key_padding_mask=pad)
        keep = (~pad).unsqueeze(-1).to(h.dtype)
        title = (h * keep).sum(1) / keep.sum(1).clamp(min=1)
        logits = self.head(torch.cat([self.visual(images), title], dim=-1))
        return F.cross_entropy(logits.float(), labels)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--local_rank", type=int, default=-1)
    parser.add_argument("--ds-config", default="ds_config.json")
    parser.add_argument("--data", default="/data/catalog")
    parser.add_argument("--out", default="/checkpoints/catalog-classifier")
    parser.add_argument("--epochs", type=int, default=20)
    args = parser.parse_args()

    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    deepspeed.init_distributed()
    torch.manual_seed(0)

    model = TwoTower()
    engine, _, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(),
                                           config=args.ds_config)
    data = Products(args.data)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=engine.train_micro_batch_size_per_gpu(), sampler=sampler,
                        drop_last=True, num_workers=6, pin_memory=True)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        engine.train()
        total = torch.zeros((), device=engine.device)
        for images, ids, labels in loader:
            images = images.to(engine.device, dtype=torch.bfloat16, non_blocking=True)
            ids = ids.to(engine.device, non_blocking=True)
            labels = labels.to(engine.device, non_blocking=True)
            loss = engine(images, ids, labels)
            engine.backward(loss)
            engine.step()
            total += loss.detach()
        total /= len(loader)
        dist.all_reduce(total, op=dist.ReduceOp.AVG)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: loss {total.item():.4f}", flush=True)
        engine.save_checkpoint(args.out, tag=f"epoch{epoch}", client_state={"epoch": epoch})


if __name__ == "__main__":
    main()
