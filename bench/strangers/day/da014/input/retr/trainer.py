import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from retr.model import DualEncoder, info_nce
from retr.data import pairs_loader
from retr.log import log0, gpu_stats

class Trainer:
    def __init__(self, cfg):
        self.cfg = cfg
        self.dev = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        self.model = DDP(DualEncoder(cfg).to(self.dev), device_ids=[self.dev.index])
        self.opt = torch.optim.AdamW(self.model.parameters(), lr=cfg.lr, fused=True)
        self.bank = []          # negatives from earlier batches

    def gather(self, x):
        out = [torch.empty_like(x) for _ in range(dist.get_world_size())]
        dist.all_gather(out, x.contiguous())
        out[dist.get_rank()] = x
        return torch.cat(out)

    def step(self, batch):
        q, d = self.model(batch["q"].to(self.dev), batch["d"].to(self.dev))
        q, d = self.gather(q), self.gather(d)
        neg = torch.cat(self.bank[-self.cfg.bank_batches:]) if self.bank else None
        loss = info_nce(q, d, neg, tau=self.cfg.tau)
        loss.backward()
        self.opt.step(); self.opt.zero_grad(set_to_none=True)
        self.bank.append(d.detach())
        return loss.item()

    def fit(self):
        for it, batch in enumerate(pairs_loader(self.cfg)):
            loss = self.step(batch)
            if it % 200 == 0:
                log0(it, loss); gpu_stats(it)
