# excerpt of engine/step.py
class Step:
    def __init__(self, ddp, crit, opt, scaler):
        self.ddp, self.crit, self.opt, self.scaler = ddp, crit, opt, scaler
        # DDP hides the custom attributes of the net
        self.net = ddp.module if isinstance(ddp, DistributedDataParallel) else ddp

    def __call__(self, x, y):
        with torch.autocast("cuda", dtype=torch.float16):
            feats = self.net.encode(x)
            loss = self.crit(self.net.head(feats), y)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.opt.zero_grad(set_to_none=True)
        return loss.detach()
