import os
from dataclasses import dataclass

import torch.distributed as dist


@dataclass
class Topology:
    """Groups: all ranks; those of this node; those with this place on every node."""

    world: dist.ProcessGroup
    intra: dist.ProcessGroup
    inter: dist.ProcessGroup
    node: int
    place: int


def discover() -> Topology:
    per_node = int(os.environ["RANKS_PER_NODE"])
    n, rank = dist.get_world_size(), dist.get_rank()
    intra = [dist.new_group(list(range(i, i + per_node))) for i in range(0, n, per_node)]
    inter = [dist.new_group(list(range(i, n, per_node))) for i in range(per_node)]
    node, place = divmod(rank, per_node)
    return Topology(dist.group.WORLD, intra[node], inter[place], node, place)
