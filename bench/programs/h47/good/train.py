"""Image tagger whose backbone and head have their own optimizers (manual optimization)."""
import argparse
import os

import lightning as L
import torch
import torch.nn.functional as F
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader
from torchvision import datasets, models, transforms


class Tagger(L.LightningModule):
    def __init__(self, classes, backbone_lr, head_lr, epochs):
        super().__init__()
        self.save_hyperparameters()
        self.automatic_optimization = False
        net = models.resnet50(weights=None)
        features = net.fc.in_features
        net.fc = nn.Identity()
        self.backbone = net
        self.head = nn.Sequential(nn.Linear(features, 1024), nn.ReLU(), nn.Dropout(0.3),
                                  nn.Linear(1024, classes))

    def forward(self, x):
        return self.head(self.backbone(x))

    def training_step(self, batch, batch_idx):
        backbone_opt, head_opt = self.optimizers()
        images, labels = batch
        loss = F.cross_entropy(self(images), labels, label_smoothing=0.1)

        backbone_opt.zero_grad()
        head_opt.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(backbone_opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        self.clip_gradients(head_opt, gradient_clip_val=1.0, gradient_clip_algorithm="norm")
        backbone_opt.step()
        head_opt.step()

        self.log("train_loss", loss, prog_bar=True)

    def on_train_epoch_end(self):
        for scheduler in self.lr_schedulers():
            scheduler.step()

    def validation_step(self, batch, batch_idx):
        images, labels = batch
        logits = self(images)
        acc = (logits.argmax(-1) == labels).float().mean()
        self.log_dict({"val_loss": F.cross_entropy(logits, labels), "val_acc": acc},
                      sync_dist=True, batch_size=labels.size(0))

    def configure_optimizers(self):
        hp = self.hparams
        backbone_opt = torch.optim.SGD(self.backbone.parameters(), lr=hp.backbone_lr, momentum=0.9,
                                       weight_decay=1e-4)
        head_opt = torch.optim.AdamW(self.head.parameters(), lr=hp.head_lr)
        schedulers = [torch.optim.lr_scheduler.CosineAnnealingLR(o, hp.epochs)
                      for o in (backbone_opt, head_opt)]
        return [backbone_opt, head_opt], schedulers


def loaders(root, batch_size):
    norm = transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
    train_tf = transforms.Compose([transforms.RandomResizedCrop(224), transforms.RandomHorizontalFlip(),
                                   transforms.ToTensor(), norm])
    val_tf = transforms.Compose([transforms.Resize(256), transforms.CenterCrop(224),
                                 transforms.ToTensor(), norm])
    train = datasets.ImageFolder(os.path.join(root, "train"), train_tf)
    val = datasets.ImageFolder(os.path.join(root, "val"), val_tf)
    common = dict(batch_size=batch_size, num_workers=8, pin_memory=True, persistent_workers=True)
    return (DataLoader(train, shuffle=True, drop_last=True, **common), DataLoader(val, **common),
            len(train.classes))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", default="/data/tags")
    p.add_argument("--out", default="runs/tagger")
    p.add_argument("--devices", type=int, default=4)
    p.add_argument("--nodes", type=int, default=1)
    p.add_argument("--batch-size", type=int, default=128)
    p.add_argument("--epochs", type=int, default=60)
    p.add_argument("--backbone-lr", type=float, default=0.2)
    p.add_argument("--head-lr", type=float, default=1e-3)
    args = p.parse_args()

    L.seed_everything(2024, workers=True)
    train_loader, val_loader, classes = loaders(args.data, args.batch_size)
    model = Tagger(classes, args.backbone_lr, args.head_lr, args.epochs)
    trainer = L.Trainer(
        accelerator="gpu", devices=args.devices, num_nodes=args.nodes, strategy="ddp",
        precision="bf16-mixed", max_epochs=args.epochs, sync_batchnorm=True, default_root_dir=args.out,
        callbacks=[ModelCheckpoint(monitor="val_acc", mode="max", save_last=True)])
    trainer.fit(model, train_loader, val_loader)


if __name__ == "__main__":
    main()
