import torch
from composer.core import Callback, State
from composer.loggers import Logger


class PerExampleLossTracker(Callback):
    """Keeps the token losses of the hardest examples for the weekly data report."""

    def __init__(self, top_k: int = 64, flush_every: str = "5000ba"):
        self.top_k = top_k
        self.flush_every = int(flush_every.rstrip("ba"))
        self.history = []

    def after_loss(self, state: State, logger: Logger) -> None:
        logits = state.outputs.logits
        targets = state.batch["labels"]
        per_tok = torch.nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten(), reduction="none"
        ).view(targets.shape[0], -1)
        self.history.append((state.timestamp.batch.value, per_tok.mean(dim=1), per_tok))

    def batch_end(self, state: State, logger: Logger) -> None:
        if int(state.timestamp.batch) % self.flush_every == 0:
            self._write(sorted(self.history, key=lambda h: h[1].max().item())[-self.top_k:])
            self.history = []

    def _write(self, rows):
        torch.save([(b, m.detach().cpu()) for b, m, _ in rows], "/tmp/hard.pt")
