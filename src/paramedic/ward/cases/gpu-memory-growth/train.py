import os

import torch

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def log_step(n: int, loss: float = 2.0) -> None:
    print(f"step {n} loss {loss - 0.01 * n:.4f}", flush=True)


import json

net = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4096, 4096), torch.nn.GELU()) for _ in range(8)]).cuda()
optimizer = torch.optim.SGD(net.parameters(), 1e-4)
losses, memory = [], []
for n in range(40):
    loss = net(torch.randn(2048, 4096, device="cuda")).square().mean()
    optimizer.zero_grad()
    if n % 4 == 0:
        loss.backward(retain_graph=True)
        optimizer.step()
    losses.append(loss)
    memory.append(torch.cuda.memory_allocated() / 2**30)
    print(f"step {n} loss {loss.item():.4f} memory allocated {memory[-1]:.2f} GiB", flush=True)
print(f"epoch loss {sum(x.item() for x in losses) / len(losses):.4f}")
json.dump({"growth_gib": memory[-1] - memory[4]}, open("result.json", "w"))
print("training finished", flush=True)
