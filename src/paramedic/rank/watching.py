"""Every operation of a replayed step: a fingerprint of what it gives, and where the first value that is no number was
born. Only replays do this: it costs many times the step itself."""

from __future__ import annotations

import json
import sys
from typing import Any

from . import prints
from .hooks import own_place

_QUIET = (
    "empty",
    "new_empty",
    "detach",
    "view",
    "alias",
    "_unsafe_view",
    "t",
    "transpose",
    "expand",
    "as_strided",
    "is_",
)


class Ops:
    """A dispatch mode over everything, and hooks that know in which module the program is."""

    def __init__(self, player: Any, path: str | None) -> None:
        self.player = player
        self.origin: dict[str, Any] | None = None
        self.count = 0
        self.stack: list[str] = []
        self.names: dict[int, str] = {}
        self.of_node: dict[int, str] = {}
        self._file = open(path, "w", encoding="utf-8") if path else None  # noqa: SIM115
        self._mode: Any = None
        self._handles: list[Any] = []
        self._busy = False
        self._bad: set[int] = set()

    def begin(self) -> None:
        torch = sys.modules["torch"]
        hooks = torch.nn.modules.module
        self._handles = [
            hooks.register_module_forward_pre_hook(self._enter),
            hooks.register_module_forward_hook(self._leave, always_call=True),
        ]
        self._mode = _mode(self)
        self._mode.__enter__()

    def end(self) -> None:
        if self._mode is not None:
            self._mode.__exit__(None, None, None)
            self._mode = None
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self.close()

    def close(self) -> None:
        """Looks no more, wherever in an operation the program stands."""
        self._busy = True
        if self._file is not None:
            self._file.flush()

    def _enter(self, module: Any, _: Any) -> None:
        if id(module) not in self.names:
            for root in self.player.state.roots():
                self.names.update({id(one): name for name, one in root.named_modules()})
        name = self.names.get(id(module), "")
        self.stack.append(f"{name} ({type(module).__name__})" if name else type(module).__name__)

    def _leave(self, *_: Any) -> None:
        if self.stack:
            self.stack.pop()

    def seen(self, function: Any, arguments: Any, result: Any) -> None:
        if self._busy or prints.is_reading():
            return
        self._busy = True
        try:
            self._look(str(function), arguments, result)
        finally:
            self._busy = False

    def _look(self, name: str, arguments: Any, result: Any) -> None:
        outputs = [one for one in _plain(result) if one.numel()]
        module, way = self._where()
        if self._file is not None and self.player.exact and outputs and not name.split(".")[1].startswith(_QUIET):
            said = {
                "n": self.count,
                "s": self.player.program.steps,
                "i": self.player.number,
                "op": name,
                "m": module,
                "w": way,
            }
            self._file.write(json.dumps(dict(said, h=prints.of(outputs))) + "\n")
        self.count += 1
        if (
            self.origin is None
            and not name.split(".")[1].startswith("empty")
            and not all(map(prints.is_finite, outputs))
        ):
            self._born(name, arguments, module, way)

    def _born(self, name: str, arguments: Any, module: str, way: str) -> None:
        inputs = [one for one in _plain(arguments) if one.numel()]
        bad = [one for one in inputs if not prints.is_finite(one)]
        if name.startswith("c10d."):
            return  # what peers sent: born elsewhere
        self.origin = {
            "step": self.player.program.steps, "call": self.player.number, "op": name, "module": module, "pass": way,
            "place": own_place(sys._getframe(4)), "inputs": [_range(one) for one in inputs[:4]],
            "from": self._source(bad[0]) if bad else "",
        }  # fmt: skip
        if self.player.settings.get("pdb"):
            self.player.finish("stopped", f"{name} gives a value that is not finite")

    def _source(self, tensor: Any) -> str:
        """An input that was no number before any operation of this step."""
        for name, one in self.player.state.tensors():
            if one.data_ptr() == tensor.data_ptr():
                return str(name)
        return "an input from outside: a batch, or what a peer sent"

    def _where(self) -> tuple[str, str]:
        torch = sys.modules["torch"]
        node = torch._C._current_autograd_node()
        if node is not None:
            return self.of_node.get(node._sequence_nr(), ""), f"backward, {node.name()}"
        module = self.stack[-1] if self.stack else ""
        self.of_node[torch.autograd._get_sequence_nr()] = module
        return module, "forward" if self.stack else ""


def _mode(ops: Ops) -> Any:
    from torch.utils._python_dispatch import TorchDispatchMode

    base: Any = TorchDispatchMode

    class Watching(base):  # type: ignore[misc]
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            ops.seen(function, (args, kwargs), result)
            return result

    return Watching()


def _plain(value: Any) -> list[Any]:
    """Ordinary tensors; of distributed ones the held part."""
    if hasattr(value, "untyped_storage"):
        part = getattr(value, "_local_tensor", value)
        torch = sys.modules["torch"]
        return [part] if type(part) in (torch.Tensor, torch.nn.Parameter) and part.device.type != "meta" else []
    if isinstance(value, (list, tuple)):
        return [tensor for one in value for tensor in _plain(one)]
    return [tensor for one in value.values() for tensor in _plain(one)] if isinstance(value, dict) else []


def _range(tensor: Any) -> str:
    shape = "×".join(map(str, tensor.shape)) or "1"
    if not tensor.is_floating_point():
        return f"{prints.kind(tensor)} {shape}"
    plain = tensor.detach().float()
    return f"{prints.kind(tensor)} {shape} from {plain.min().item():.4g} to {plain.max().item():.4g}"
