import json

import torch


class Writer:
    """Appends one JSON line for each call."""

    def __init__(self, path):
        self.file = open(path, "w")

    def weights(self, step, model):
        row = {"step": step}
        for name, p in model.named_parameters():
            w = p.detach()
            row[name] = {"mean": w.mean().item(), "std": w.std().item()}
            if w.ndim == 2:
                row[name]["spectrum"] = torch.linalg.svdvals(w)[:8].tolist()
                row[name]["histogram"] = torch.histc(w, 50).tolist()
        self.file.write(json.dumps(row) + "\n")
