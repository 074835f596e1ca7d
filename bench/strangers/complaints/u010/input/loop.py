import torch
from tqdm import tqdm
from losses import silog
from metrics import depth_metrics


def train_epoch(ddp, loader, opt, sched, scaler, log, ep, every=30):
    ddp.train()
    preds, gts = [], []
    for it, batch in enumerate(loader):
        img = batch["image"].cuda(non_blocking=True)
        gt = batch["depth"].cuda(non_blocking=True)
        with torch.autocast("cuda"):
            out = ddp(img)
            loss = silog(out, gt)
        opt.zero_grad(set_to_none=True)
        scaler.scale(loss).backward()
        scaler.step(opt)
        scaler.update()
        sched.step()
        preds.append(out)
        gts.append(gt)
        if it % 100 == 0:
            torch.cuda.empty_cache()
        if it % every == 0:
            log(ep, it, len(loader), loss.item(), opt)
    m = depth_metrics(torch.cat(preds).float().detach(), torch.cat(gts))
    log.done(ep, m)
