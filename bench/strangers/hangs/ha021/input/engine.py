import torch
from torch.nn.parallel import DistributedDataParallel as DDP


class Engine:
    def __init__(self, net, rank, lr):
        self.ddp = DDP(net.to(rank), device_ids=[rank])
        self.net = self.ddp.module          # for .encode() and checkpoints
        self.opt = torch.optim.SGD(self.net.parameters(), lr, momentum=0.9, weight_decay=1e-4)
        self.ce = torch.nn.CrossEntropyLoss(label_smoothing=0.1)

    def step(self, x, y):
        z = self.net.encode(x)
        loss = self.ce(self.net.head(z), y)
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.detach()

    @torch.no_grad()
    def checksum(self):
        return sum(p.double().abs().sum() for p in self.net.parameters()).item()
