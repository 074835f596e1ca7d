import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from detr import build_detector


def build(cfg):
    dist.init_process_group("nccl")
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local)
    model = build_detector(cfg)
    weights = torch.load(cfg.weights)
    model.load_state_dict(weights["model"], strict=False)
    model.to(device)
    model = DDP(model, device_ids=[local], find_unused_parameters=False)
    return model, weights.get("meta"), device
