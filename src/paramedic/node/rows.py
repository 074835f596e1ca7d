"""What was seen, and what could not be."""

from __future__ import annotations

import os
from typing import Any


class Rows:
    def __init__(self) -> None:
        self.facts: list[tuple[str, Any, str]] = []
        self.skipped: list[tuple[str, str]] = []

    def add(self, name: str, value: Any, source: str) -> None:
        if value is not None:
            self.facts.append((name, value, source))

    def skip(self, what: str, why: str) -> None:
        self.skipped.append((what, why))

    def get(self, name: str) -> Any:
        return next((value for known, value, _ in self.facts if known == name), None)


def text_of(path: str, most: int = 1 << 16) -> str:
    """The beginning of a small file; empty where it cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.read(most).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""


def folder(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))
    except (OSError, ValueError):
        return []
