"""Settings from the nearest `paramedic.toml` or `pyproject.toml` [tool.paramedic], below `PARAMEDIC_*` and the flags."""

from __future__ import annotations

import difflib
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError

CHOICES: Mapping[str, tuple[str, ...]] = {
    "format": ("text", "json", "sarif", "github", "html"),
    "fail_on": ("error", "warning", "never"),
    "setting": ("lab", "cluster"),
}
LISTS = ("select", "ignore", "rules")


@dataclass(frozen=True, slots=True)
class Config:
    format: str = "text"
    fail_on: str = "error"
    setting: str = "lab"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()


def load_config(start: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ParamedicError for an unknown key (with the nearest match), a wrong type or a wrong value."""
    found = _nearest(start)
    values: dict[str, Any] = {}
    if found:
        file, table = found
        for key, value in table.items():
            values[key.replace("-", "_")] = _checked(key, value, str(file), file.parent)
    for name, text in environment.items():
        key = name.removeprefix("PARAMEDIC_").lower()
        if name.startswith("PARAMEDIC_") and text:
            values[key] = _checked(key, text.split(",") if key in LISTS else text, name, start)
    return Config(**values)


def _nearest(start: Path) -> tuple[Path, Mapping[str, Any]] | None:
    for folder in (start, *start.parents):
        for name in ("paramedic.toml", "pyproject.toml"):
            file = folder / name
            if not file.is_file():
                continue
            try:
                table: Any = tomllib.loads(file.read_text("utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                if name == "paramedic.toml":
                    raise ParamedicError(f"{file}: no TOML: {error}") from None
                continue  # somebody else's broken pyproject.toml is not our business
            if name == "pyproject.toml":
                tool = table.get("tool")
                table = tool.get("paramedic") if isinstance(tool, dict) else None
            if isinstance(table, dict):
                return file, table
    return None


def _checked(key: str, value: Any, where: str, folder: Path) -> Any:
    name = key.replace("-", "_")
    if name in LISTS:
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ParamedicError(f"{where}: {key} is a list of texts")
        return tuple(str(folder / item) for item in value) if name == "rules" else tuple(value)
    if name not in CHOICES:
        near = difflib.get_close_matches(name, [*CHOICES, *LISTS], n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join([*CHOICES, *LISTS])}"
        raise ParamedicError(f"{where}: unknown key {key!r}{hint}")
    if value not in CHOICES[name]:
        raise ParamedicError(f"{where}: {key} is one of {', '.join(CHOICES[name])}, not {value!r}")
    return value
