"""What was read of the package's own TOML, kept in the user's cache between starts, each of which would wait for it.

By the hash of the text it was read of, so that nothing in it can be out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

_MOST = 4 << 10
_LARGEST = 16 << 20


def cache_folder() -> Path:
    base = os.environ.get("PARAMEDIC_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "paramedic"
    )
    return Path(base)


class Kept:
    def __init__(self) -> None:
        self._path = cache_folder() / "rules.json"
        self._known = _read(self._path)
        self._used: dict[str, dict[str, Any]] = {}
        self._new = False

    def loads(self, text: str) -> dict[str, Any]:
        """As `tomllib.loads`."""
        key = hashlib.sha256(text.encode()).hexdigest()[:32]
        found = self._known.get(key)
        if found is None:
            found = tomllib.loads(text)
            self._new = True
        self._used[key] = found
        return found

    def keep(self) -> None:
        """For the next start; where that cannot be, it will read the TOML again."""
        if not self._new:
            return
        everything = self._known | self._used
        text = json.dumps(everything if len(everything) <= _MOST else self._used)
        with contextlib.suppress(OSError):
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self._path.parent, delete=False, encoding="utf-8") as file:
                file.write(f"{_sum(text)}\n{text}")
            os.replace(file.name, self._path)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    """Nothing where it is damaged."""
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        checksum, _, text = path.read_text("utf-8").partition("\n")
        known: dict[str, dict[str, Any]] = json.loads(text) if checksum == _sum(text) else {}
    except (OSError, ValueError, RecursionError):
        return {}
    return known


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
