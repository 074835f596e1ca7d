from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def make_mesh(world):
    return init_device_mesh("cpu", (world,), mesh_dim_names=("dp",))


def apply_fsdp(model, mesh):
    last = len(model.blocks) - 1
    for i, block in enumerate(model.blocks):
        fully_shard(block, mesh=mesh, reshard_after_forward=i < last)
    return model
