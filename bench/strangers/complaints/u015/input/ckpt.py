import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP
from torch.distributed.fsdp import StateDictType, FullStateDictConfig

cfg = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)


def maybe_save(model, opt, step, every, root):
    if step == 0 or step % every:
        return
    if dist.get_rank() == 0:
        path = f"{root}/ckpt_{step}.pt"
        print(f"step {step}: writing {path}", flush=True)
        with FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT, cfg):
            sd = model.state_dict()
        torch.save({"model": sd, "step": step}, path)
