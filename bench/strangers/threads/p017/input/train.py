import functools, os, time, torch, torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, MixedPrecision, ShardingStrategy
from torch.nn.parallel import DistributedDataParallel as DDP
from models import GPTConfig, GPT
from data import token_loader

def wrap(model, mode, local_rank):
    if mode == "ddp":
        return DDP(model.cuda(), device_ids=[local_rank])
    bf16 = MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, buffer_dtype=torch.bfloat16)
    return FSDP(
        model,
        sharding_strategy=ShardingStrategy.FULL_SHARD,
        mixed_precision=bf16,
        device_id=local_rank,
        use_orig_params=True,
    )

def main():
    dist.init_process_group("nccl")
    lr_ = int(os.environ["LOCAL_RANK"]); torch.cuda.set_device(lr_)
    torch.manual_seed(17)
    mode = os.environ.get("MODE", "fsdp")
    model = wrap(GPT(GPTConfig(n_layer=32, n_embd=2560, n_head=32, block_size=2048)), mode, lr_)
    if dist.get_rank() == 0:
        print(model)
    opt = torch.optim.AdamW(model.parameters(), lr=2e-4, fused=True)
    for step, (x, y) in enumerate(token_loader(bs=1, seed=dist.get_rank())):
        with torch.autocast("cuda", torch.bfloat16, enabled=(mode == "ddp")):
            loss = model(x.cuda(), y.cuda())
        loss.backward(); opt.step(); opt.zero_grad(set_to_none=True)
        if step % 10 == 0:
            print(f"[{dist.get_rank()}] {mode} step {step} loss {loss.item():.4f} "
                  f"alloc {torch.cuda.memory_allocated()/2**30:.2f} peak {torch.cuda.max_memory_allocated()/2**30:.2f} "
                  f"reserved {torch.cuda.memory_reserved()/2**30:.2f} GiB", flush=True)
            torch.cuda.reset_peak_memory_stats()

main()
