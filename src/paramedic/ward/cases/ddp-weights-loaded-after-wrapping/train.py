"""Fine-tune a classifier whose weights the first rank reads from a file."""

import torch
import torch.nn.functional as F
from ddp_job import finish, log, network, norm, of_all_ranks, quadrants, start
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler


def main() -> None:
    rank, _ = start()
    torch.manual_seed(0)
    base = network()
    model = DDP(base)
    if rank == 0:
        base.load_state_dict(torch.load("pretrained.pt"))
        log.info("rank 0 loaded pretrained.pt")
    data = quadrants(1024)
    loader = DataLoader(data, batch_size=16, sampler=DistributedSampler(data))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    for step, (x, y) in enumerate(loader):
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            log.info("rank %d step %d loss %.4f parameter norm %.6f", rank, step, loss.item(), norm(model))
    norms = of_all_ranks(norm(model))
    log.info("rank %d at the end parameter norm %.6f", rank, norm(model))
    finish(parameter_spread=max(norms) - min(norms))


main()
