"""Which classes the targets of the program's loss are: whether ranks, or batches, have classes of their own. The loss
knows them until its backward pass; nothing is put in the place of any function."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from .sentinels import Sentinels, local

_BATCHES = 64
_CLASSES, _TARGETS = 64, 4
"""At most so many classes, and at least so many targets in a batch."""
_NEARLY_ALL = 0.95
_NODES = 32
_ENTROPY = "NllLossBackward0"
_BINARY = ("BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0")


class Classes:
    """Counts them in the first batches, in `said`."""

    def __init__(self, sentinels: Sentinels, said: dict[str, Any], is_recomputed: Callable[[Any], bool]) -> None:
        self.sentinels, self.said, self.is_recomputed = sentinels, said, is_recomputed
        self.batches = 0

    def backward(self, loss: Any) -> None:
        """What is recomputed must not be asked for before its time."""
        if self.batches < _BATCHES:
            self.batches += 1
            found = next(_entropies(getattr(loss, "grad_fn", None)), None)
            if found is not None and not self.is_recomputed(found):
                target, scores = local(found._saved_target), found._saved_self
                if found.name() == _ENTROPY and scores.dim() == 2:
                    self._count(target, int(scores.shape[1]))
                elif found.name() in _BINARY and target is not None and target.dim() and len(target) == target.numel():
                    self._count(target.reshape(-1).round().long(), 2)
                    self.said.get("classes", {})["binary"] = True

    def _count(self, target: Any, classes: int) -> None:
        if target is None or target.numel() < _TARGETS or not 1 < classes <= _CLASSES:
            return
        known = self.said.setdefault("classes", {"of": classes, "batches": 0, "single": 0, "changes": 0, "last": -1})
        if known["of"] != classes:
            return  # another task of the same program
        torch = sys.modules["torch"]
        with torch.no_grad():  # without waiting for a GPU, as `bincount` would
            counts = torch.zeros(classes, dtype=torch.int64, device=target.device)
            counts.scatter_add_(0, target.clamp(0, classes - 1), (target >= 0).long())
        self.sentinels.fetch(f"classes {self.batches}", counts, functools.partial(_counted, known))


def _entropies(node: Any) -> Iterator[Any]:
    """The nearest first, as far as it stands near the loss."""
    waiting = [node]
    for _ in range(_NODES):
        if not waiting:
            return
        one = waiting.pop(0)
        if one is not None:
            if one.name() in (_ENTROPY, *_BINARY):
                yield one
            waiting.extend(following for following, _ in one.next_functions)


def _counted(known: dict[str, Any], _: str, __: int, counts: Any) -> None:
    values = counts.tolist()
    first = max(range(len(values)), key=values.__getitem__)
    known["batches"] += 1
    known["counts"] = [one + more for one, more in zip(known.get("counts", [0] * len(values)), values, strict=True)]
    known["single"] += values[first] >= _NEARLY_ALL * sum(values)
    known["changes"] += known["last"] not in (-1, first)
    known["last"] = first
