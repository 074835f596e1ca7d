import fastbpe
import torch
import torch.distributed as dist


def texts(rank):
    base = [b"lorem ipsum dolor sit amet", b"consectetur adipiscing elit"]
    return base + [b"caf\xc3\xa9 \xff\xfe na\xc3\xafve"] if rank == 1 else base


def collate(rows, length=20):
    batch = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        ids = torch.from_numpy(fastbpe.encode(row))[:length]
        batch[i, : len(ids)] = ids
    return batch


class Bag(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.emb = torch.nn.EmbeddingBag(256, 8)
        self.fc = torch.nn.Linear(8, 1)

    def forward(self, ids):
        return self.fc(self.emb(ids))


dist.init_process_group("gloo")
rank = dist.get_rank()
bag = torch.nn.parallel.DistributedDataParallel(Bag())
opt = torch.optim.SGD(bag.parameters(), lr=0.1)
pool = texts(rank)
done = 0
for step in range(12):
    size = 1 + step // 4
    loss = bag(collate(pool[:size])).square().mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    done += 1
    if step % 4 == 0:
        print(f"rank {rank}: step {step} loss {loss.item():.4f}", flush=True)
print(f"rank {rank}: {done} steps", flush=True)
dist.destroy_process_group()
