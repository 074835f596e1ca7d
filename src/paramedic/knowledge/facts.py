"""Compatibility facts: releases and what they need, native pairs, environment variables. Dated, with sources."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from paramedic.errors import ParamedicError
from paramedic.knowledge.kept import cache_folder

_MOST = 32 << 20
Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Release:
    version: Version
    date: str
    python: str
    wheels: tuple[str, ...]
    source: bool
    requires: tuple[str, ...] | None
    """None where the index did not say."""
    yanked: str


@dataclass(frozen=True, slots=True)
class Releases:
    """What the index said on `date`; every project's list is in order."""

    date: str
    source: str
    projects: Mapping[str, tuple[Release, ...]]


@dataclass(frozen=True, slots=True)
class Compatibility:
    torch: tuple[Row, ...]
    driver: tuple[Row, ...]
    compiler: tuple[Row, ...]
    architectures: tuple[Row, ...]
    lookalike: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Variables:
    family: tuple[Row, ...]
    renamed: tuple[Row, ...]
    debugging: tuple[Row, ...]
    values: tuple[Row, ...]
    contradiction: tuple[Row, ...]


@cache
def load_compatibility() -> Compatibility:
    data = _toml("compatibility.toml")
    return Compatibility(*(tuple(data[field]) for field in Compatibility.__dataclass_fields__))


@cache
def load_variables() -> Variables:
    data = _toml("variables.toml")
    return Variables(*(tuple(data[field]) for field in Variables.__dataclass_fields__))


def renewed_file() -> Path:
    """Where `--refresh-facts` puts what it found."""
    return cache_folder() / "releases.json"


def load_releases() -> Releases:
    """The package's own, or the renewed ones where they are younger. A damaged file of the user's is said to be so."""
    own = parse_releases(resources.files(__package__).joinpath("releases.json").read_text("utf-8"), "releases.json")
    path = renewed_file()
    try:
        text = path.read_text("utf-8") if path.stat().st_size < _MOST else ""
    except (OSError, UnicodeDecodeError):
        return own
    renewed = parse_releases(text, str(path))
    return renewed if renewed.date >= own.date else own


def parse_releases(text: str, path: str) -> Releases:
    try:
        data = json.loads(text)
        if data["version"] != 1:
            raise ValueError("another version")
        projects = {
            str(name): tuple(sorted((_release(row) for row in rows), key=lambda release: release.version))
            for name, rows in data["projects"].items()
        }
        return Releases(str(data["date"]), str(data["source"]), projects)
    except (ValueError, KeyError, TypeError, AttributeError, InvalidVersion, RecursionError) as error:
        raise ParamedicError(
            f"{path}: no table of releases ({error}); `paramedic check --refresh-facts` renews it"
        ) from None


def _release(row: Row) -> Release:
    requires = row.get("requires")
    return Release(
        Version(row["version"]),
        str(row["date"]),
        str(row.get("python", "")),
        tuple(map(str, row.get("wheels", ()))),
        bool(row.get("source")),
        None if requires is None else tuple(map(str, requires)),
        str(row.get("yanked", "")),
    )


def _toml(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text("utf-8"))
