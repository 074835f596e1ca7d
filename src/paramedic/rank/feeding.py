"""What the program is fed: its loaders, their epochs and samplers, the first rows of each, evaluations on the way."""

from __future__ import annotations

import functools
import sys
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any

from .agent import Agent
from .hooks import own_place

_LOADERS, _EPOCHS, _BATCHES = 6, 4, 4
_ROWS, _COLUMNS = 256, 48
_EVALUATIONS, _MASKS = 4, 64
_SEVERAL, _WIDE = 4, 32  # rows and columns
_DEPTH = 4


class Feeding:
    """One row for each loader, in `said`."""

    def __init__(self, agent: Agent, said: dict[str, Any], is_on: Callable[[], bool]) -> None:
        self.agent, self.said, self.is_on = agent, said, is_on
        self.of_loader: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
        self.of_pass: weakref.WeakKeyDictionary[Any, _Pass] = weakref.WeakKeyDictionary()
        self.open: list[_Pass] = []
        """Since whose first batch nothing went backward: evaluations, if it stays so."""
        self.last: _Pass | None = None

    def watch(self, module: Any) -> None:
        begin, following = module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__

        @functools.wraps(begin)
        def __iter__(loader: Any) -> Any:  # noqa: N807
            batches = begin(loader)
            if self.is_on():
                self.agent.guarded("conduct: data", self._epoch, loader, batches)
            return batches

        @functools.wraps(following)
        def __next__(batches: Any) -> Any:  # noqa: N807
            batch = following(batches)
            one = self.of_pass.get(batches) if self.is_on() else None
            if one is not None:
                self.agent.guarded("conduct: data", self._batch, one, batch)
            return batch

        module.DataLoader.__iter__, module._BaseDataLoaderIter.__next__ = __iter__, __next__

    def _epoch(self, loader: Any, batches: Any) -> None:
        known = self.of_loader.get(loader)
        if known is None:
            if len(self.said["loaders"]) >= _LOADERS:
                return
            known = self.of_loader[loader] = self._loader(loader)
            self.said["loaders"].append(known)
        known["begun"] += 1
        row = {"step": self.agent.steps, "batches": 0, "from": self.said["called"]}
        one = self.of_pass[batches] = _Pass(known, row)
        if len(known["evaluations"]) < _EVALUATIONS:
            known["evaluations"].append(one.row)
            self.open.append(one)
        if len(known["epochs"]) < _EPOCHS:
            one.is_counted = True
            epoch = getattr(getattr(loader, "sampler", None), "epoch", None)
            known["epochs"].append(epoch if isinstance(epoch, int) else None)
            known["steps"].append(self.agent.steps)
            known["prints"].append([])
            known["counts"].append(0)
            known["passed"].append(0)

    def _loader(self, loader: Any) -> dict[str, Any]:
        sampler = getattr(loader, "sampler", None)
        known: dict[str, Any] = {"place": own_place(sys._getframe(4)), "sampler": type(sampler).__name__}
        known |= {"epochs": [], "steps": []}
        known |= {"prints": [], "counts": [], "batch_size": loader.batch_size, "workers": loader.num_workers}
        known |= {"begun": 0, "rows": [], "passed": [], "evaluations": [], "mask": [0, 0]}
        known["persistent"] = bool(getattr(loader, "persistent_workers", False))
        for name, attribute in (("replicas", "num_replicas"), ("rank", "rank"), ("shuffle", "shuffle")):
            value = getattr(sampler, attribute, None)
            if isinstance(value, int):
                known[name] = value
        return known

    def _batch(self, one: _Pass, batch: Any) -> None:
        self.last, said = one, one.loader
        one.row["batches"] += 1
        if not one.is_counted:
            return
        said["counts"][-1] += 1
        if len(said["prints"][-1]) < _BATCHES:
            said["prints"][-1].append(printed(batch))
        if sum(said["counts"]) <= _MASKS:
            filled, total = _read(batch)
            said["mask"] = [said["mask"][0] + filled, said["mask"][1] + total]
        held = max((t for t in _held(batch, 0) if t.dim()), key=lambda tensor: tensor.numel(), default=None)
        if held is not None:
            said["passed"][-1] += int(held.shape[0])
            if len(said["epochs"]) == 1 and len(said["rows"]) < _ROWS:
                said["rows"].extend(_rows(held, _ROWS - len(said["rows"])))

    def backward(self) -> None:
        """The batch that came last is trained on; what was gone through before it was an evaluation."""
        if not self.open:
            return
        for one in self.open:
            if one is self.last:
                one.loader["evaluations"] = [row for row in one.loader["evaluations"] if row is not one.row]
            else:
                one.row["to"] = self.said["called"]
        self.open = []


class _Pass:
    """Once through a loader."""

    __slots__ = ("__weakref__", "is_counted", "loader", "row")

    def __init__(self, loader: dict[str, Any], row: dict[str, Any]) -> None:
        self.loader, self.row, self.is_counted = loader, row, False


def _read(batch: Any) -> tuple[int, int]:
    """Of how many positions the model is to read, and of how many there are: by the mask; without one, all but the
    last columns that hold one number in every row."""
    mask: Any = batch.get("attention_mask") if hasattr(batch, "get") else None
    if hasattr(mask, "untyped_storage"):
        return (int((mask != 0).sum()), mask.numel()) if mask.device.type == "cpu" else (0, 0)
    tokens = next((one for one in _held(batch, 0) if one.dim() == 2 and not one.dtype.is_floating_point), None)
    if tokens is None or tokens.shape[0] < _SEVERAL or tokens.shape[1] < _WIDE or tokens.dtype.is_complex:
        return 0, 0
    same = (tokens == tokens[0, -1]).all(0).tolist()
    width = next((at + 1 for at in range(len(same) - 1, -1, -1) if not same[at]), 0)
    return width * tokens.shape[0], tokens.numel()


def printed(value: Any) -> int | None:
    """Of the first tensors that a batch holds; of those on a GPU nothing, which would wait for it."""
    said = [
        (tuple(one.shape), one.reshape(-1)[:32].tolist(), one.reshape(-1)[-32:].tolist()) for one in _held(value, 0)
    ]
    return zlib.crc32(repr(said[:4]).encode()) if said else None


def _rows(tensor: Any, at_most: int) -> list[int]:
    """A digest of each row, of some of its columns."""
    flat = tensor[:at_most].reshape(min(at_most, tensor.shape[0]), -1)
    flat = flat[:, :: max(1, flat.shape[1] // _COLUMNS)][:, : 2 * _COLUMNS]
    return [zlib.crc32(repr(row).encode()) for row in flat.tolist()]


def _held(value: Any, depth: int) -> Iterator[Any]:
    if hasattr(value, "untyped_storage"):
        if value.device.type == "cpu" and value.numel() and not hasattr(value, "_local_tensor"):
            yield value.detach()
    elif depth < _DEPTH:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
        for one in list(inner)[:8]:
            yield from _held(one, depth + 1)
