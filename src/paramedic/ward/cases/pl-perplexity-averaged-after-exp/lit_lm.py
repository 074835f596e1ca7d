"""Language model over two kinds of text: regular tables and free prose."""

import json

import lightning as L
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCAB, LENGTH = 50, 20


def corpus(n, seed):
    g = torch.Generator().manual_seed(seed)
    start = torch.randint(VOCAB, (n // 2, 1), generator=g)
    tables = (start + 7 * torch.arange(LENGTH + 1)) % VOCAB
    prose = torch.randint(VOCAB, (n - n // 2, LENGTH + 1), generator=g)
    return TensorDataset(torch.cat([tables, prose]))


class LanguageModel(L.LightningModule):
    def __init__(self, dim=64, lr=3e-3):
        super().__init__()
        self.save_hyperparameters()
        self.embed = nn.Embedding(VOCAB, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.head = nn.Linear(dim, VOCAB)
        self.val_ppl = float("nan")

    def loss(self, batch):
        (ids,) = batch
        logits = self.head(self.rnn(self.embed(ids[:, :-1]))[0])
        return F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])

    def training_step(self, batch, _):
        loss = self.loss(batch)
        self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
        return loss

    def validation_step(self, batch, _):
        loss = self.loss(batch)
        self.log("val_ppl", loss.exp(), prog_bar=True, sync_dist=True)

    def on_validation_epoch_end(self):
        self.val_ppl = self.trainer.callback_metrics["val_ppl"].item()

    def on_train_epoch_end(self):
        if self.trainer.is_global_zero:
            loss = self.trainer.callback_metrics["train_loss"].item()
            print(f"epoch {self.current_epoch} train_loss {loss:.4f} val_ppl {self.val_ppl:.2f}", flush=True)

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)


if __name__ == "__main__":
    L.seed_everything(0, verbose=False)
    model = LanguageModel()
    val = corpus(512, seed=2)
    trainer = L.Trainer(
        max_epochs=4, accelerator="cpu", devices=2, strategy="ddp", num_sanity_val_steps=0, logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )
    trainer.fit(
        model,
        DataLoader(corpus(2048, seed=1), batch_size=32, shuffle=True),
        DataLoader(val, batch_size=32),
    )
    if trainer.is_global_zero:
        print(f"finished, perplexity {model.val_ppl:.2f}", flush=True)
        model.eval()
        with torch.no_grad():
            true = model.loss(val.tensors).exp().item()
        with open("result.json", "w") as f:
            json.dump({"perplexity_ratio": model.val_ppl / true}, f)
