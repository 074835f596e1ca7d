import os

import torch
import torch.distributed as dist


def save_checkpoint(path, **parts):
    """Written under another name first, so that no half file is ever found."""
    if dist.get_rank() == 0:
        torch.save({name: part.state_dict() for name, part in parts.items()}, path + ".tmp")
        os.replace(path + ".tmp", path)
    dist.barrier()
