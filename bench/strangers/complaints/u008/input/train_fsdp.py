import os, torch, torch.distributed as dist
from functools import partial
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP, ShardingStrategy, BackwardPrefetch
from transformers import AutoModelForCausalLM
from data import loader

dist.init_process_group("nccl")
rank = dist.get_rank()
dev = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(dev)

model = AutoModelForCausalLM.from_pretrained("/models/phi-2", torch_dtype=torch.float32)
model.gradient_checkpointing_enable()
model = FSDP(
    model,
    sharding_strategy=ShardingStrategy.FULL_SHARD,
    backward_prefetch=BackwardPrefetch.BACKWARD_PRE,
    device_id=dev,
    limit_all_gathers=True,
)
if rank == 0:
    print(model)
    print("number of FSDP units:", len(FSDP.fsdp_modules(model)))
opt = torch.optim.AdamW(model.parameters(), lr=1e-5)

for step, batch in enumerate(loader(rank, dist.get_world_size(), seq=1024, bs=4)):
    batch = {k: v.to(dev) for k, v in batch.items()}
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(**batch).loss
    loss.backward()
    model.clip_grad_norm_(1.0)
    opt.step(); opt.zero_grad(set_to_none=True)
    if step % 10 == 0:
        mem = [None] * dist.get_world_size()
        dist.all_gather_object(mem, torch.cuda.max_memory_allocated() / 2**30)
        if rank == 0:
            print(f"step {step} loss {loss.item():.3f}", *[f"r{i} peak {m:.1f}G" for i, m in enumerate(mem)])
