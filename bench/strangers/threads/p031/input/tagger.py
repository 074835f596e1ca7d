class Tagger(nn.Module):
    def __init__(self, cfg): ...
    def forward(self, ids, mask): ...
    def crf_loss(self, ids, mask, tags):
        emis = self.forward(ids, mask)
        return -self.crf(emis, tags, mask=mask.bool(), reduction="mean")

def train(cfg):
    dist.init_process_group("nccl")
    rank, local = dist.get_rank(), int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(local)
    torch.manual_seed(cfg.seed)
    net = Tagger(cfg).cuda()
    net = DDP(net, device_ids=[local])
    opt = torch.optim.AdamW(net.parameters(), lr=cfg.lr)
    sampler = DistributedSampler(ds, shuffle=True)
    for ep in range(cfg.epochs):
        sampler.set_epoch(ep)
        for i, (ids, mask, tags) in enumerate(DataLoader(ds, batch_size=cfg.bs, sampler=sampler, num_workers=2)):
            loss = net.module.crf_loss(ids.cuda(), mask.cuda(), tags.cuda())
            if i % 200 == 0:
                report(net, loss, ep, i)       # prints sum |w| of crf.transitions and encoder.layer.0
            opt.zero_grad(); loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            opt.step()
