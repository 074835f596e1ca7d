import os, torch, psutil, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch_geometric.loader import NeighborLoader
from model import SAGE
from data import load_citeweb

def rss(): return psutil.Process().memory_info().rss / 2**30

class Tracker:
    """keeps what the dashboard needs"""
    def __init__(self): self.rows = []
    def add(self, epoch, emb, y):
        self.rows.append(dict(epoch=epoch, emb=emb, y=y, mean=emb.mean().item()))
    def last(self): return self.rows[-1]

@torch.no_grad()
def evaluate(model, loader, dev):
    model.eval(); out, ys = [], []
    for b in loader:
        out.append(model(b.x.to(dev), b.edge_index.to(dev))[:b.batch_size].cpu()); ys.append(b.y[:b.batch_size])
    return torch.cat(out), torch.cat(ys)

def main():
    dist.init_process_group("nccl"); r = dist.get_rank(); dev = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(dev)
    data, train_idx, val_idx = load_citeweb()
    idx = train_idx.split(train_idx.numel() // dist.get_world_size())[r]
    tl = NeighborLoader(data, num_neighbors=[15, 10, 5], input_nodes=idx, batch_size=1024, shuffle=True, num_workers=4, persistent_workers=True)
    vl = NeighborLoader(data, num_neighbors=[15, 10, 5], input_nodes=val_idx, batch_size=2048, num_workers=2) if r == 0 else None
    model = DDP(SAGE(data.num_features, 384, 172).to(dev)); opt = torch.optim.Adam(model.parameters(), lr=3e-3)
    tracker = Tracker()
    for epoch in range(1, 201):
        model.train(); tot = 0.
        for b in tl:
            opt.zero_grad(); loss = model.module.loss(model(b.x.to(dev), b.edge_index.to(dev))[:b.batch_size], b.y[:b.batch_size].to(dev))
            loss.backward(); opt.step(); tot += loss.item()
        if r == 0:
            emb, y = evaluate(model.module, vl, dev); tracker.add(epoch, emb, y)
        dist.barrier()
        print(f"[{r}] ep {epoch:03d} loss {tot/len(tl):.4f} rss {rss():.2f}G cuda {torch.cuda.memory_allocated()/2**30:.2f}/{torch.cuda.max_memory_reserved()/2**30:.2f}G", flush=True)
main()
