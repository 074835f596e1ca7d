import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module


def build_mesh(tensor_size):
    return init_device_mesh("cpu", (dist.get_world_size() // tensor_size, tensor_size), mesh_dim_names=("data", "tensor"))


def split_layers(model, mesh):
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], plan)
    return model


def average_over_data(model, mesh):
    """Gradients of the replicas of each shard."""
    group = mesh["data"].get_group()
    for p in model.parameters():
        grad = p.grad.to_local() if hasattr(p.grad, "to_local") else p.grad
        dist.all_reduce(grad, group=group)
        grad /= mesh["data"].size()
