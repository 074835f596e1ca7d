import torch


class WeightAverage:
    def __init__(self, model, decay=0.99):
        self.decay = decay
        self.values = {name: p.detach().full_tensor().clone() for name, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model):
        for name, p in model.named_parameters():
            self.values[name].lerp_(p.detach().full_tensor(), 1 - self.decay)

    def nbytes(self):
        return sum(v.nbytes for v in self.values.values())
