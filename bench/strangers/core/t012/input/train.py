import os, torch, torch.distributed as dist, torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from data import SpectraDataset
from model import SpecNet

def checksum(m):
    return sum(p.detach().double().sum().item() for p in m.parameters())

def main():
    dist.init_process_group("nccl")
    r, lr = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(lr)
    torch.manual_seed(7)
    ds = SpectraDataset("/data/spectra/train")
    sampler = DistributedSampler(ds)
    dl = DataLoader(ds, batch_size=128, sampler=sampler, num_workers=6, drop_last=True)
    model = DDP(SpecNet(width=512, depth=18).cuda(), device_ids=[lr])
    opt = torch.optim.AdamW(model.parameters(), lr=3e-4)
    for epoch in range(12):
        sampler.set_epoch(epoch)
        for i, (x, y) in enumerate(dl):
            x, y = x.cuda(non_blocking=True), y.cuda(non_blocking=True)
            logits, aux = model.module.forward_with_aux(x)
            loss = F.cross_entropy(logits, y) + 0.1 * aux
            opt.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            opt.step()
            if i % 50 == 0:
                print(f"[rank {r}] e{epoch} i{i} loss {loss.item():.4f} wsum {checksum(model):.6f}", flush=True)
        evaluate(model.module, epoch, r)

if __name__ == "__main__":
    main()
