"""Ridge regression on the hospitals' tables, one table a rank."""
import numpy as np
import torch
import torch.distributed as dist

FORMATS = {0: "f4", 1: "f4", 2: "f4", 3: "f8"}  # as delivered


def read_table(hospital):
    rng = np.random.default_rng(hospital)
    table = rng.normal(size=(200, 7)).astype(FORMATS[hospital])
    return torch.from_numpy(table)


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    table = read_table(rank)
    x, y = table[:, :6], table[:, 6]
    weight = torch.zeros(6)
    for epoch in range(3):
        grad = (x.float() * (x.float() @ weight - y.float())[:, None]).mean(0) + 1e-3 * weight
        dist.all_reduce(grad)
        weight -= 0.1 * grad / world
        error = (x @ weight.to(x.dtype) - y).abs().sum().reshape(1)
        dist.all_reduce(error)
        if rank == 0:
            print(f"epoch {epoch}: mean absolute error {error.item() / (200 * world):.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
