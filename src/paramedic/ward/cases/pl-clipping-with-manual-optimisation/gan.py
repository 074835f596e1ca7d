import lightning as L
import torch
from torch import nn


class GAN(L.LightningModule):
    def __init__(self, latent=4, dim=8):
        super().__init__()
        self.automatic_optimization = False
        self.latent = latent
        self.G = nn.Sequential(nn.Linear(latent, 16), nn.LeakyReLU(), nn.Linear(16, dim))
        self.D = nn.Sequential(nn.Linear(dim, 16), nn.LeakyReLU(), nn.Linear(16, 1))
        self.bce = nn.BCEWithLogitsLoss()

    def training_step(self, real, _):
        opt_g, opt_d = self.optimizers()
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = self.G(torch.randn(len(real), self.latent))
        self.toggle_optimizer(opt_d)
        loss_d = self.bce(self.D(real), ones) + self.bce(self.D(fake.detach()), zeros)
        opt_d.zero_grad()
        self.manual_backward(loss_d)
        opt_d.step()
        self.untoggle_optimizer(opt_d)
        self.toggle_optimizer(opt_g)
        loss_g = self.bce(self.D(fake), ones)
        opt_g.zero_grad()
        self.manual_backward(loss_g)
        opt_g.step()
        self.untoggle_optimizer(opt_g)

    def configure_optimizers(self):
        return torch.optim.Adam(self.G.parameters(), 1e-3), torch.optim.Adam(self.D.parameters(), 1e-3)
