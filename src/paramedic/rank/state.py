"""A rank's own state: parameters, buffers, optimizer and random states, as plain bytes under stable names."""

from __future__ import annotations

import random
import struct
import sys
import weakref
from collections.abc import Iterator
from typing import Any

_PLAIN = (int, float, bool, str, type(None))


class State:
    """Knows every module, optimizer, scheduler and scaler that the program has made and still holds."""

    def __init__(self) -> None:
        self._modules: list[weakref.ref[Any]] = []
        self._optimizers: list[weakref.ref[Any]] = []
        self._schedulers: list[weakref.ref[Any]] = []
        self._scalers: list[weakref.ref[Any]] = []

    def module(self, one: Any) -> None:
        self._modules.append(weakref.ref(one))

    def scheduler(self, one: Any) -> None:
        self._schedulers.append(weakref.ref(one))

    def scaler(self, one: Any) -> None:
        self._scalers.append(weakref.ref(one))

    def optimizer(self, one: Any) -> None:
        if not any(known() is one for known in self._optimizers):
            self._optimizers.append(weakref.ref(one))

    def roots(self) -> list[Any]:
        """Modules that are no part of another one, in the order in which they were made."""
        self._modules = [one for one in self._modules if one() is not None]
        modules = [module for one in self._modules if (module := one()) is not None and "_modules" in vars(module)]
        parts = {id(part) for module in modules for part in module._modules.values()}
        return [module for module in modules if id(module) not in parts and _has_state(module)]

    def tensors(self, of_optimizers: bool = True) -> Iterator[tuple[str, Any]]:
        """Every tensor of this rank; of a distributed one, the part that it holds."""
        for number, root in enumerate(self.roots()):
            for name, one in root.named_parameters():
                yield from _held(f"model {number} {name}", one)
            for name, one in root.named_buffers():
                yield from _held(f"buffer {number} {name}", one)
        for number, optimizer in enumerate(_alive(self._optimizers)):
            place = 0
            for group in optimizer.param_groups:
                for one in group["params"]:
                    yield from _held(f"optimizer {number} of {place}", one)
                    for name, value in _leaves(optimizer.state.get(one, {})) if of_optimizers else ():
                        if hasattr(value, "untyped_storage"):
                            yield from _held(f"optimizer {number} {place} {name}", value)
                    place += 1
        for number, scaler in enumerate(_alive(self._scalers)):
            for name in ("_scale", "_growth_tracker"):
                if getattr(scaler, name, None) is not None:
                    yield f"scaler {number} {name}", getattr(scaler, name)

    def gradients(self) -> Iterator[tuple[str, Any]]:
        names = self.names()
        seen: set[int] = set()
        for number, optimizer in enumerate(_alive(self._optimizers)):
            place = 0
            for group in optimizer.param_groups:
                for one in group["params"]:
                    if one.grad is not None and id(one) not in seen:
                        seen.add(id(one))
                        yield from _held(names.get(id(one), f"optimizer {number} of {place}"), one.grad)
                    place += 1

    def names(self) -> dict[int, str]:
        return {id(one): name for root in self.roots() for name, one in root.named_parameters()}

    def replicas(self) -> dict[str, dict[str, str]]:
        """What must be equal on all ranks of a group: what it is → its name in this state."""
        groups: dict[int, tuple[list[str], str]] = {}
        found: dict[str, dict[str, str]] = {}
        for number, root in enumerate(self.roots()):
            copies = _of_ddp(root)
            for name, one in root.named_parameters():
                mine = groups[id(one)] = [*copies.get(id(one), ()), *_replicating(one)], name
                for group in mine[0]:
                    found.setdefault(group, {})[f"model {number} {name}"] = f"model {number} {name}"
                for group in copies.get(id(one), ()):  # a distributed tensor's may still wait to be summed
                    found[group][f"gradient of {name}"] = name
        for number, optimizer in enumerate(_alive(self._optimizers)):
            parameters = (one for group in optimizer.param_groups for one in group["params"])
            for place, one in enumerate(parameters):
                for kind, value in _leaves(optimizer.state.get(one, {})) if id(one) in groups else ():
                    if hasattr(value, "untyped_storage"):
                        for group in groups[id(one)][0]:
                            found[group][f"{kind} of {groups[id(one)][1]}"] = f"optimizer {number} {place} {kind}"
        return found

    def shards(self) -> dict[str, list[list[int]]]:
        """Which part of a distributed parameter this rank holds: where it begins, and its shape."""
        every = ((name, one) for root in self.roots() for name, one in root.named_parameters())
        return {name: part for name, one in every if (part := _part(one)) is not None}

    def of_optimizers(self) -> dict[str, str]:
        """Which parameter has which place in which optimizer."""
        names, found = self.names(), {}
        for number, optimizer in enumerate(_alive(self._optimizers)):
            parameters = (one for group in optimizer.param_groups for one in group["params"])
            for place, one in enumerate(parameters):
                if id(one) in names:
                    found[f"{number} {place}"] = names[id(one)]
        return found

    def transient(self) -> list[str]:
        """Buffers that modules keep out of their checkpoints."""
        return [
            f"buffer {number} {f'{path}.' if path else ''}{name}"
            for number, root in enumerate(self.roots())
            for path, module in root.named_modules()
            for name in sorted(module._non_persistent_buffers_set)
        ]

    def values(self) -> dict[str, Any]:
        """The plain values: hyperparameters and counters."""
        found: dict[str, Any] = {}
        for number, optimizer in enumerate(_alive(self._optimizers)):
            for place, group in enumerate(optimizer.param_groups):
                for name, value in group.items():
                    if name != "params" and _is_plain(value):
                        found[f"optimizer {number} group {place} {name}"] = value
        for number, scheduler in enumerate(_alive(self._schedulers)):
            for name, value in vars(scheduler).items():
                if _is_plain(value):
                    found[f"scheduler {number} {name}"] = value
        return found

    def restore_values(self, found: dict[str, Any]) -> None:
        for number, optimizer in enumerate(_alive(self._optimizers)):
            for place, group in enumerate(optimizer.param_groups):
                for name, value in group.items():
                    key = f"optimizer {number} group {place} {name}"
                    if name != "params" and _is_plain(value) and key in found:
                        group[name] = tuple(found[key]) if isinstance(value, tuple) else found[key]
        for number, scheduler in enumerate(_alive(self._schedulers)):
            for name, value in list(vars(scheduler).items()):
                key = f"scheduler {number} {name}"
                if _is_plain(value) and key in found:
                    setattr(scheduler, name, tuple(found[key]) if isinstance(value, tuple) else found[key])


def is_of_optimizer(name: str) -> bool:
    """A state that it keeps, not a parameter as it holds it."""
    words = name.split(" ", 3)
    return words[0] == "optimizer" and words[2:3] != ["of"]


def _alive(references: list[weakref.ref[Any]]) -> list[Any]:
    return [one for reference in references if (one := reference()) is not None]


def _has_state(module: Any) -> bool:
    return next(module.parameters(), None) is not None or next(module.buffers(), None) is not None


def _of_ddp(root: Any) -> dict[int, list[str]]:
    """The parameters that DDP keeps equal, and its group."""
    found: dict[int, list[str]] = {}
    for module in root.modules():
        if type(module).__name__ == "DistributedDataParallel":
            for one in module.parameters():
                found.setdefault(id(one), []).append(str(module.process_group.group_name))
    return found


def _replicating(tensor: Any) -> list[str]:
    """Groups along the dimensions of its mesh in which a distributed tensor is the same everywhere."""
    mesh = getattr(tensor, "device_mesh", None)
    if mesh is None:
        return []
    dimensions = [at for at, one in enumerate(tensor.placements) if one.is_replicate() and mesh.size(at) > 1]
    return [str(mesh.get_group(at).group_name) for at in dimensions]


def _part(tensor: Any) -> list[list[int]] | None:
    if getattr(tensor, "device_mesh", None) is None:
        return None
    try:
        from torch.distributed.tensor._utils import compute_local_shape_and_global_offset as place
    except ImportError:
        return None
    shape, offset = place(tensor.shape, tensor.device_mesh, tensor.placements)
    return [list(offset), list(shape)]


def _held(name: str, tensor: Any) -> Iterator[tuple[str, Any]]:
    """ZeRO stage 3 keeps a rank's part of a parameter beside it."""
    part = getattr(tensor, "_local_tensor", tensor)
    shard = getattr(tensor, "ds_tensor", None)
    if shard is not None:
        yield name + " shard", shard
    torch = sys.modules["torch"]
    if part.layout is torch.strided and part.device.type != "meta" and part.numel() and _is_backed(part):
        yield name, part


def _is_backed(tensor: Any) -> bool:
    """FSDP frees what it has gathered and leaves a tensor with nothing behind it."""
    return bool(tensor.untyped_storage().size() >= tensor.numel() * tensor.element_size())


def _leaves(state: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in sorted(state.items(), key=lambda item: str(item[0])) if isinstance(state, dict) else ():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(one, _PLAIN) for one in value)
    return isinstance(value, _PLAIN)


# -- random numbers ------------------------------------------------------------------------------------------------


def random_states() -> dict[str, bytes]:
    from .prints import view

    torch = sys.modules["torch"]
    parts = {"torch": bytes(view(torch.get_rng_state()))}
    version, words, gauss = random.getstate()
    parts["python"] = struct.pack("<625Id?", *words, gauss or 0.0, gauss is not None) if version == 3 else b""
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(numpy, "random"):
        name, keys, place, has_gauss, cached = numpy.random.get_state()
        if name == "MT19937":
            parts["numpy"] = keys.astype("<u4").tobytes() + struct.pack("<iid", place, has_gauss, cached)
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        for device in range(torch.cuda.device_count()):
            parts[f"cuda {device}"] = bytes(view(torch.cuda.get_rng_state(device)))
    return parts


def set_random_states(parts: dict[str, bytes]) -> None:
    torch = sys.modules["torch"]
    for name, data in parts.items():
        if name == "torch":
            torch.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        elif name == "python" and data:
            *words, gauss, has_gauss = struct.unpack("<625Id?", data)
            random.setstate((3, tuple(words), gauss if has_gauss else None))
        elif name == "numpy" and sys.modules.get("numpy") is not None:
            numpy = sys.modules["numpy"]
            keys = numpy.frombuffer(data[:2496], dtype="<u4")
            numpy.random.set_state(("MT19937", keys, *struct.unpack("<iid", data[2496:])))
        elif name.startswith("cuda ") and torch.cuda.is_available():
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(data), dtype=torch.uint8), int(name[5:]))
