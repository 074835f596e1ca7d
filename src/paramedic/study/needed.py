"""Packages of the `study` extra, imported when they are used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from paramedic.errors import ParamedicError


def needed(module: str, extra: str = "study") -> Any:
    try:
        return import_module(module)
    except ImportError as error:
        package = module.split(".", maxsplit=1)[0]
        why = "is not installed" if isinstance(error, ModuleNotFoundError) else f"cannot be imported ({error})"
        raise ParamedicError(f"{package} {why}: pip install 'paramedic[{extra}]'") from None
