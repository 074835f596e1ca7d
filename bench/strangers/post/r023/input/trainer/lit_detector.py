    def training_step(self, batch, batch_idx):
        feats = self.backbone(batch["pixels"])
        det_loss = self.det_head.loss(feats, batch["boxes"])
        loss = det_loss
        text_mask = batch["has_text"]
        ocr = self.ocr_head(feats)
        ocr_loss = self.ocr_criterion(ocr, batch["text"], text_mask)
        loss = loss + 0.2 * ocr_loss
        if text_mask.sum() > 40:
            self.log("train/ocr_loss", ocr_loss, sync_dist=True)
        self.log("train/det_loss", det_loss)
        return loss
