import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 64

    def __getitem__(self, index):
        return torch.full((8,), float(index)).cuda()


net = torch.nn.Linear(8, 1).cuda()
for n, batch in enumerate(torch.utils.data.DataLoader(Images(), batch_size=8, num_workers=2)):
    net(batch.cuda()).mean().backward()
    log_step(n)
print("training finished", flush=True)
