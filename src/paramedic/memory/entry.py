"""The user's own code: a function that returns model, optimizer, batch and loss."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import torch

from paramedic.errors import ParamedicError
from paramedic.memory import torch_internals as internals
from paramedic.memory.models import Work

_WANTED = "a function that returns (model, optimizer, batch, loss), where loss(model, batch) gives one number"


def from_entry(entry: str, device: str) -> tuple[Work, Any]:
    """Called with tensors that have no data; what is made without a device is made on the card."""
    file, _, name = entry.rpartition(":")
    if not file or not name.isidentifier():
        raise ParamedicError(f"--entry {entry}: say FILE:NAME, like train.py:build")
    build = getattr(_module(file), name, None)
    if not callable(build):
        raise ParamedicError(f"--entry {entry}: {file} has no function {name}; it needs {_WANTED}")
    with torch.device(device), internals.plain_conversion():
        made = build()
    if not isinstance(made, tuple) or len(made) != 4:
        raise ParamedicError(f"--entry {entry}: returned {type(made).__name__}; it needs {_WANTED}")
    model, optimizer, batch, loss = made
    if not isinstance(model, torch.nn.Module) or not callable(loss):
        raise ParamedicError(
            f"--entry {entry}: the first of the four must be a torch module, the last callable: {_WANTED}"
        )
    if optimizer is not None and not isinstance(optimizer, torch.optim.Optimizer):
        raise ParamedicError(f"--entry {entry}: the second of the four must be a torch optimizer or None: {_WANTED}")
    return Work(model, dict, loss, optimizer), batch


def _module(file: str) -> Any:
    path = Path(file)
    if not path.is_file():
        raise ParamedicError(f"--entry {file}: no such file")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ParamedicError(f"--entry {file}: not a Python file")
    sys.path.insert(0, str(path.resolve().parent))
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except SystemExit as stop:
        raise ParamedicError(
            f"--entry {file}: the file ends the program when it is imported (exit code {stop.code}); "
            'put what it runs under `if __name__ == "__main__":`'
        ) from None
    except Exception as error:
        raise ParamedicError(f"--entry {file}: fails when it is imported: {type(error).__name__}: {error}") from None
    return module
