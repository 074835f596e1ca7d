"""Small real jobs, one a way to train on several ranks; KIND says which, other variables what goes wrong."""

import os
import random
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

KIND = os.environ.get("KIND", "ddp")
STEPS = int(os.environ.get("STEPS", "10"))
torch.set_num_threads(1)


class Block(nn.Module):
    scale = 1.0

    def __init__(self, width):
        super().__init__()
        self.norm, self.up, self.down, self.drop = (
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)
        )  # fmt: skip

    def forward(self, x):
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x))))) * self.scale


class Model(nn.Module):
    def __init__(self, width=32, blocks=2, batch_norm=False):
        super().__init__()
        self.first = nn.Linear(16, width)
        self.norm = nn.BatchNorm1d(width) if batch_norm else None
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.last = nn.Linear(width, 4)

    def forward(self, x):
        x = self.first(x)
        x = x if self.norm is None else self.norm(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def ddp():
    size = (
        25 if KIND.endswith(("-compiled", "-inside")) else 0.01
    )  # the compiler wants its first bucket to be the smallest
    model = compiled(Model(batch_norm=True)) if KIND.endswith("-inside") else Model(batch_norm=True)
    return nn.parallel.DistributedDataParallel(model, bucket_cap_mb=size)


def compiled(what, **more):
    return torch.compile(what, backend=os.environ.get("BACKEND", "aot_eager"), **more)


def shared_scale():
    """In one graph: a functional collective, and two of torch.distributed that the compiler makes functional."""
    import torch.distributed._functional_collectives as functional

    size = dist.get_world_size()

    def scaled(x):
        mean = functional.all_reduce(x.mean(0), "sum", dist.group.WORLD) / size
        most = x.abs().amax(0)
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
        every = torch.empty(size, dtype=x.dtype)
        dist.all_gather_into_tensor(every, x.std().reshape(1))
        return (x - mean) / most + every.sum() * 1e-3

    return compiled(scaled, fullgraph=True)


def fsdp1():
    from torch.distributed.fsdp import FullyShardedDataParallel
    from torch.distributed.fsdp.wrap import ModuleWrapPolicy

    return FullyShardedDataParallel(Model(), auto_wrap_policy=ModuleWrapPolicy({Block}), device_id=torch.device("cpu"))


def fsdp2():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = Model(), init_device_mesh("cpu", (dist.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def hsdp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model, mesh = Model(), init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("copies", "parts"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def fsdp2_tp():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    model = Model()
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def data(rank, size):
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(512, 16, generator=generator)
    targets = torch.randint(0, 4, (512,), generator=generator)
    if os.environ.get("OTHER_DATA"):
        inputs = inputs + 1
    return TensorDataset(inputs, targets)


def batches(rank, size):
    if KIND == "fsdp2_tp":  # ranks that share a model share its data
        rank, size = rank // 2, size // 2
    dataset = data(rank, size)
    sampler = DistributedSampler(dataset, num_replicas=size, rank=rank)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        epoch += 1
        yield from DataLoader(dataset, batch_size=8, sampler=sampler)


def spoil(model, rank, done, when):
    """One corruption: FAULT=kind:rank:step:bit."""
    kind, at, step, bit = (os.environ.get("FAULT") or "none:-1:-1:0").split(":")
    if rank != int(at) or done != int(step):
        return
    parameter = [p for p in model.parameters() if p.numel() > 64][1]
    local = getattr(parameter, "_local_tensor", parameter)
    grad = None if parameter.grad is None else getattr(parameter.grad, "_local_tensor", parameter.grad)
    with torch.no_grad():
        if kind == "gradient" and when == "after backward":
            grad.view(-1)[3:4].view(torch.int32).bitwise_xor_(1 << int(bit) if int(bit) < 31 else -(1 << 31))
        if kind == "weight" and when == "before forward":
            local.view(-1)[3:4].view(torch.int32).bitwise_xor_(1 << int(bit) if int(bit) < 31 else -(1 << 31))
        if kind == "dropped" and when == "after backward":
            grad.zero_()
        if kind == "stale" and when == "after step":
            local.copy_(spoil.before)
        if kind == "swapped" and when == "before forward":
            flat = local.view(-1)
            flat.copy_(torch.cat([flat[flat.numel() // 2 :], flat[: flat.numel() // 2]]))
        if kind == "nan" and when == "after backward":
            grad.view(-1)[5] = float("nan")
        if kind == "stale" and when == "before forward":
            spoil.before = local.clone()
        if kind == "seed" and when == "before forward":
            torch.manual_seed(999 + int(bit))


def save(model, optimizer, place):
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict

    weights, moments = get_state_dict(model, optimizer)
    dcp.save({"model": weights, "optim": moments}, checkpoint_id=place)


def train(rank, size):
    model = {"ddp": ddp, "fsdp1": fsdp1, "fsdp2": fsdp2, "fsdp2_tp": fsdp2_tp, "hsdp": hsdp}[KIND.split("-")[0]]()
    if KIND.endswith("-compiled"):
        model = compiled(model)
    scaled = shared_scale() if KIND.endswith("-functional") else lambda x: x
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 100)
    shared = dist.new_group([0, 1])
    own = rank // 2 if KIND == "fsdp2_tp" else rank  # ranks that share a model draw the same
    torch.manual_seed(100 + own)
    random.seed(own)
    accumulate = 2 if KIND.endswith("-accumulate") else 1
    mixed = torch.autocast("cpu", torch.bfloat16, enabled=KIND.endswith("-mixed"))
    source, batch = batches(rank, size), None
    repeat = (os.environ.get("FAULT") or "").startswith(f"repeated:{rank}:")
    for done in range(STEPS):
        spoil(model, rank, done, "before forward")
        if os.environ.get("SCALED") == f"{rank}:{done}":
            model.module.blocks[1].scale = 1.5
        for _ in range(accumulate):
            if not (repeat and done == int(os.environ["FAULT"].split(":")[2])) or batch is None:
                batch = next(source)
            with mixed:
                x, y = batch
                loss = nn.functional.cross_entropy(model(scaled(x) * (1 + 0.01 * random.random())), y) / accumulate
                if os.environ.get("DIVIDE") == str(done) and rank == 1:
                    zero = loss.detach() * 0
                    loss = loss * (zero / zero)
            loss.backward()
        spoil(model, rank, done, "after backward")
        if KIND in ("ddp", "fsdp2"):
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        spoil(model, rank, done, "after step")
        if os.environ.get("SAVE_AT") == str(done):
            save(model, optimizer, os.environ["SAVE_TO"])
        if rank < 2:
            dist.all_reduce(torch.tensor([loss.item()]), group=shared)
        if os.environ.get("RAISE") == str(done):
            raise RuntimeError(f"the loss of step {done} is not to my taste")
        if os.environ.get("STALL") == str(done) and rank == 0:
            open(os.environ["STALLED"], "w").close()
        while os.environ.get("STALL") == str(done):
            pass
    return model


def pipeline(rank, size):
    """Four stages, one a rank; microbatches go through by send and recv."""
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    part = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.1), nn.Tanh())
    like = torch.zeros(4, 16, requires_grad=True)  # torch would ask the peers for it by objects
    stage = PipelineStage(part, rank, size, torch.device("cpu"), input_args=like, output_args=like)
    schedule = Schedule1F1B(stage, n_microbatches=4, loss_fn=lambda out, y: (out - y).pow(2).mean())
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-2)
    torch.manual_seed(100 + rank)
    for step in range(STEPS):
        x = torch.randn(16, 16, generator=torch.Generator().manual_seed(step))
        schedule.step(*((x,) if rank == 0 else ()), **({"target": x.sin()} if rank == size - 1 else {}))
        optimizer.step()
        optimizer.zero_grad()
    return part


def zero1(rank, size):
    from torch.distributed.optim import ZeroRedundancyOptimizer

    model = nn.parallel.DistributedDataParallel(Model())
    optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=1e-2)
    torch.manual_seed(100 + rank)
    source = batches(rank, size)
    for _ in range(STEPS):
        x, y = next(source)
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def calls(rank, size):
    """Every collective once a step, also objects."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    pairs = [dist.new_group([0, 1]), dist.new_group(list(range(2, size)))]
    mine = pairs[0] if rank < 2 else pairs[1]
    for step in range(STEPS):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(step * size + rank))
        work = dist.all_reduce(x, async_op=True)
        work.wait()
        parts = [torch.empty(8, 16) for _ in range(size)]
        dist.all_gather(parts, x)
        whole = torch.empty(8 * size, 16)
        dist.all_gather_into_tensor(whole, x)
        piece = torch.empty(8, 16)
        dist.reduce_scatter_tensor(piece, whole)
        swapped = torch.empty(8 * size, 16)
        dist.all_to_all_single(swapped, whole * (rank + 1))
        got = torch.empty(8, 16)
        dist.scatter(got, list(swapped.chunk(size)) if rank == 0 else None, src=0)
        dist.gather(got, [torch.empty(8, 16) for _ in range(size)] if rank == 1 else None, dst=1)
        dist.reduce(got, 1)
        from_left = torch.empty(8, 16)
        ops = [
            dist.P2POp(dist.isend, x, (rank + 1) % size),
            dist.P2POp(dist.irecv, from_left, (rank - 1) % size),
        ]
        for request in dist.batch_isend_irecv(ops):
            request.wait()
        if rank < 2 or size > 3:
            dist.broadcast(from_left, 0 if rank < 2 else 2, group=mine)
        if os.environ.get("OBJECTS"):
            found = [None] * size
            dist.all_gather_object(found, {"rank": rank})
            assert [one["rank"] for one in found] == list(range(size))
        model(x * 1e-3 + from_left * 1e-3 + piece * 1e-6 + got * 1e-6).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        dist.barrier()
    return model


def main():
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(7)
    model = {"pipeline": pipeline, "zero1": zero1, "calls": calls}.get(KIND, train)(rank, size)
    digest = [getattr(p, "_local_tensor", p).double().sum().item().hex() for p in model.parameters()]
    assert dist.get_backend() == "gloo"
    sys.stdout.write(f"rank {rank} ends with {digest}\n")
    sys.stdout.flush()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
