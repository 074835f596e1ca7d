import torch
import torch.distributed as dist
from attention import Block
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLAN = {
    "attn.wq": ColwiseParallel(),
    "attn.wk": ColwiseParallel(),
    "attn.wv": ColwiseParallel(),
    "attn.wo": RowwiseParallel(),
    "up": ColwiseParallel(),
    "down": RowwiseParallel(),
}


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    torch.manual_seed(0)
    block = Block()
    parallelize_module(block, mesh, PLAN)
    opt = torch.optim.SGD(block.parameters(), lr=0.1, foreach=False)
    for step in range(6):
        x = torch.randn(2, 10, 32)
        loss = (block(x) - x).square().mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
        print(f"tp rank {dist.get_rank()} step {step} loss {loss.item():.5f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
