class CtcAux(L.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.enc = ConformerEncoder(cfg.enc)
        self.ctc_head = nn.Linear(cfg.enc.dim, cfg.vocab)
        self.aux_head = nn.Sequential(nn.Linear(cfg.enc.dim, 256), nn.ReLU(), nn.Linear(256, cfg.phones))
        self.aux_start = cfg.aux_start          # 5000

    def training_step(self, batch, _):
        h, hl = self.enc(batch.x, batch.xl)
        loss = F.ctc_loss(self.ctc_head(h).log_softmax(-1).transpose(0, 1), batch.y, hl, batch.yl)
        if self.global_step >= self.aux_start:
            loss = loss + 0.3 * F.cross_entropy(self.aux_head(h).flatten(0, 1), batch.ph.flatten(), ignore_index=-1)
        self.log("train/loss", loss, prog_bar=True)
        return loss
