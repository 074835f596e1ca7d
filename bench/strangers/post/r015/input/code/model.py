class AlignModel(L.LightningModule):
    def __init__(self, cfg):
        super().__init__()
        self.backbone = Wav2Vec2Model.from_pretrained(cfg.backbone)
        self.text_proj = nn.Linear(768, 1024)
        self.audio_proj = nn.Linear(1024, 1024)
        self.ctc_head = nn.Linear(1024, cfg.vocab)
        self.contrast_head = ContrastiveHead(1024)
        self.contrast_from = cfg.contrast_from_step   # 5000

    def training_step(self, batch, _):
        h = self.backbone(batch["wav"], attention_mask=batch["mask"]).last_hidden_state
        loss = self.ctc_loss(self.ctc_head(h), batch)
        if self.global_step >= self.contrast_from:
            a = self.audio_proj(h.mean(1))
            t = self.text_proj(batch["text_emb"])
            loss = loss + 0.1 * self.contrast_head(a, t)
        self.log("train_loss", loss, prog_bar=True)
        return loss
