import os, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed._composable.fsdp import fully_shard
from torch.utils.data import DataLoader
from data import BinDataset
from model import Transformer, CFG_3B

def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1337)
    mesh = init_device_mesh("cuda", (world // 8, 8), mesh_dim_names=("dp_replicate", "dp_shard"))
    with torch.device("meta"):
        model = Transformer(CFG_3B)
    for blk in model.layers:
        fully_shard(blk, mesh=mesh)
    fully_shard(model, mesh=mesh)
    model.to_empty(device="cuda"); model.init_weights()
    ds = BinDataset("/mnt/tok/fineweb-3b", 4096)
    g = torch.Generator(); g.manual_seed(1337)
    dl = DataLoader(ds, batch_size=4, shuffle=True, generator=g, num_workers=4, drop_last=True, pin_memory=True)
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
    ...
