import torch
from torch.utils.data import Sampler
import torch.distributed as dist


class LengthSampler(Sampler):
    """Groups utterances of similar duration to keep padding low."""

    def __init__(self, durations, batch_size, seed=17):
        self.durations = durations
        self.batch_size = batch_size
        self.rank = dist.get_rank()
        self.world = dist.get_world_size()
        self.epoch = 0
        self.seed = seed

    def __iter__(self):
        order = torch.argsort(torch.tensor(self.durations)).tolist()
        per = len(order) // self.world
        mine = order[self.rank * per:(self.rank + 1) * per]
        batches = [mine[i:i + self.batch_size] for i in range(0, per, self.batch_size)]
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        for i in torch.randperm(len(batches), generator=g).tolist():
            yield batches[i]

    def __len__(self):
        return len(self.durations) // self.world // self.batch_size
