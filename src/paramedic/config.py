"""Settings: flags over `PARAMEDIC_*` over the nearest `paramedic.toml` or `pyproject.toml` [tool.paramedic]."""

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
LISTS = ("select", "ignore", "rules", "allow")
KEYS = (*CHOICES, *LISTS)
_PREFIX = "PARAMEDIC_"
_MAX_FILE = 1 << 20


@dataclass(frozen=True, slots=True)
class Config:
    format: str = "text"
    fail_on: str = "error"
    setting: str = "lab"
    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()


def load_config(start: Path, environment: Mapping[str, str] = os.environ) -> Config:
    """Raises ParamedicError for an unknown key (with the nearest match), a wrong type or a wrong value."""
    return Config(**configured(start, environment))


def configured(start: Path, environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Only what the environment or the file sets, so that a default can be told from a choice."""
    return _from_file(start) | _from_environment(environment, start)


def _from_file(start: Path) -> dict[str, Any]:
    found = _nearest(start)
    if found is None:
        return {}
    file, table = found
    return {key.replace("-", "_"): _checked(key, value, str(file), file.parent) for key, value in table.items()}


def _from_environment(environment: Mapping[str, str], start: Path) -> dict[str, Any]:
    """Only the keys known here are settings: other names belong to other features. A near miss is an error."""
    values: dict[str, Any] = {}
    for name, text in environment.items():
        key = name.removeprefix(_PREFIX).lower()
        if not name.startswith(_PREFIX) or not text.strip():
            continue
        if key not in KEYS:
            if near := difflib.get_close_matches(key, KEYS, n=1, cutoff=0.8):
                raise ParamedicError(f"{name}: no such setting; did you mean {_PREFIX}{near[0].upper()}?")
            continue
        parts = [part.strip() for part in text.split(",") if part.strip()]
        values[key] = _checked(key, parts if key in LISTS else text.strip(), name, start)
    return values


def _nearest(start: Path) -> tuple[Path, Mapping[str, Any]] | None:
    for folder in (start, *start.parents):
        for name in ("paramedic.toml", "pyproject.toml"):
            file = folder / name
            if not os.path.isfile(file):
                continue
            try:
                with open(file, "rb") as raw:
                    data = raw.read(_MAX_FILE + 1)
                if len(data) > _MAX_FILE:
                    if name == "pyproject.toml" and b"tool.paramedic" not in data:
                        continue
                    raise ParamedicError(f"{file}: larger than {_MAX_FILE >> 20} MB")
                table: Any = tomllib.loads(data.decode("utf-8"))
            except (OSError, ValueError, RecursionError) as error:  # ValueError: also a number of thousands of digits
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
        near = difflib.get_close_matches(name, KEYS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(KEYS)}"
        raise ParamedicError(f"{where}: unknown key {key!r}{hint}")
    if value not in CHOICES[name]:
        try:
            found = repr(value)[:100]
        except ValueError:  # a number of thousands of digits
            found = "that number"
        raise ParamedicError(f"{where}: {key} is one of {', '.join(CHOICES[name])}, not {found}")
    return value
