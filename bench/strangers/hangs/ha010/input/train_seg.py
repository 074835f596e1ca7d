import os, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from data import make_loader
from net import UNet3D, DiceCE


def main():
    dist.init_process_group("nccl")
    lr_ = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(lr_)
    net = DDP(UNet3D(4, 5, width=48).cuda(), device_ids=[lr_])
    opt = torch.optim.AdamW(net.parameters(), 2e-4)
    crit = DiceCE().cuda()
    loader, sampler = make_loader("/datasets/brats", patch=128, bs=2)
    history = {"loss": [], "dice": []}
    step = 0
    for epoch in range(200):
        sampler.set_epoch(epoch)
        for img, seg in loader:
            img, seg = img.cuda(non_blocking=True), seg.cuda(non_blocking=True)
            with torch.autocast("cuda", torch.bfloat16):
                logit = net(img)
                loss, dice = crit(logit, seg)
            opt.zero_grad(set_to_none=True)
            loss.backward()
            opt.step()
            history["loss"].append(loss.detach())
            history["dice"].append((logit.float().softmax(1), dice))
            if step % 25 == 0:
                log(step, epoch, loss, history)
            step += 1


def log(step, epoch, loss, history):
    a, m = torch.cuda.memory_allocated() / 2**30, torch.cuda.memory_reserved() / 2**30
    print(f"[rank {dist.get_rank()}] ep {epoch} step {step} loss {loss.item():.4f} alloc {a:.2f} GiB reserved {m:.2f} GiB", flush=True)


if __name__ == "__main__":
    main()
