import os, hashlib, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from towers import TwoTower, ClickLog

def param_digest(model):
    h = hashlib.sha1()
    for p in model.parameters():
        h.update(p.detach().float().cpu().numpy().tobytes())
    return h.hexdigest()[:12]

def main():
    dist.init_process_group("nccl")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(1234)
    net = TwoTower(dim=256).cuda()
    model = DDP(net, device_ids=[torch.cuda.current_device()])
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    data = ClickLog("/data/clicks/2025w11", shard=rank, num_shards=world)
    for step, batch in enumerate(data.batches(4096)):
        q, d = model.module.query(batch["q"].cuda()), model.module.doc(batch["d"].cuda())
        loss = model.module.in_batch_softmax(q, d)
        opt.zero_grad(set_to_none=True)
        loss.backward()
        opt.step()
        if step % 200 == 0:
            print(f"[{rank}] step {step} loss {loss.item():.4f} digest {param_digest(net)}", flush=True)
        if step % 1000 == 0 and step:
            auc = data.holdout_auc(net)
            print(f"[{rank}] step {step} holdout auc {auc:.4f}", flush=True)

if __name__ == "__main__":
    main()
