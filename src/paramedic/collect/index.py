"""The package index: releases of a project, and the requirements inside a wheel or source archive without its bulk."""

from __future__ import annotations

import io
import json
import os
import tarfile
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from typing import Any

from paramedic.errors import ParamedicError

DEFAULT = "https://pypi.org/simple"
_SECONDS = 20.0
_MOST_JSON = 64 << 20
_MOST_METADATA = 4 << 20
_MOST_SOURCE = 60 << 20
_TAIL = 64 << 10
_FIRST = "Requires-Dist:"


class Unreachable(Exception):  # noqa: N818
    """No index, or it does not answer like one; the text continues a sentence."""


def address() -> str:
    """As pip is told by its variable; its configuration files are pip's own business."""
    return os.environ.get("PIP_INDEX_URL", DEFAULT).rstrip("/")


def project(name: str) -> dict[str, Any]:
    """The index's JSON about a project: `info` of its newest release, and the files of every one."""
    base = address().removesuffix("/simple")
    try:
        said = json.loads(_get(f"{base}/pypi/{name}/json", _MOST_JSON))
    except ValueError:
        raise Unreachable(f"answers no JSON about {name}") from None
    if not isinstance(said, dict) or not isinstance(said.get("releases"), dict):
        raise Unreachable(f"says nothing about the releases of {name}")
    for file in (file for files in said["releases"].values() for file in files):
        file["url"] = urllib.parse.urljoin(f"{base}/pypi/{name}/json", str(file.get("url", "")))
    return said


def requirements(files: Iterable[dict[str, Any]]) -> list[str] | None:
    """Of one release, by its first wheel's metadata, else by its source archive's; None where neither says."""
    listed = sorted(files, key=lambda file: (file.get("packagetype") != "bdist_wheel", int(file.get("size") or 0)))
    for file in listed[:2]:
        url, name = str(file.get("url", "")), str(file.get("filename", ""))
        try:
            text = _of_wheel(url) if name.endswith(".whl") else _of_source(url) if name.endswith(".tar.gz") else ""
        except (Unreachable, OSError, ValueError, EOFError, zipfile.BadZipFile, tarfile.TarError, zlib.error):
            continue
        if text:
            return [line[len(_FIRST) :].strip() for line in _head(text) if line.startswith(_FIRST)]
    return None


def _head(text: str) -> Iterator[str]:
    for line in text.split("\n"):
        if line in ("", "\r"):
            return
        yield line


def _of_wheel(url: str) -> str:
    with zipfile.ZipFile(_Ranged(url)) as archive:
        for entry in archive.infolist():
            if entry.filename.endswith(".dist-info/METADATA") and entry.file_size < _MOST_METADATA:
                return archive.read(entry).decode("utf-8", "replace")
    return ""


def _of_source(url: str) -> str:
    """PKG-INFO or setuptools' requires.txt, whichever the back end wrote; nothing is built."""
    data = io.BytesIO(_get(url, _MOST_SOURCE))
    with tarfile.open(fileobj=data, mode="r:gz") as archive:
        texts = {
            entry.name: file.read(_MOST_METADATA).decode("utf-8", "replace")
            for entry in archive
            if entry.isfile() and entry.name.endswith(("/PKG-INFO", ".egg-info/requires.txt"))
            if (file := archive.extractfile(entry))
        }
    info = next((text for name, text in texts.items() if name.count("/") == 1 and _FIRST in text), "")
    listed = next((text for name, text in texts.items() if name.endswith("/requires.txt")), "")
    return info or "\n".join(f"{_FIRST} {line}" for line in listed.split("\n[", 1)[0].split("\n") if line.strip())


def _get(url: str, most: int, headers: dict[str, str] | None = None) -> bytes:
    if not url.startswith(("https://", "http://")):
        raise Unreachable(f"{url[:80]}: no web address")
    try:
        asked = urllib.request.Request(url, headers={"User-Agent": "paramedic", **(headers or {})})
        with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
            data: bytes = answer.read(most + 1)
    except (OSError, ValueError) as error:
        raise Unreachable(f"{url.split('?', maxsplit=1)[0][:120]}: {getattr(error, 'reason', None) or error}") from None
    if len(data) > most:
        raise Unreachable(f"{url[:120]}: larger than {most >> 20} MB")
    return data


class _Ranged(io.RawIOBase):
    """A file on the web of which only the parts that are read are fetched."""

    def __init__(self, url: str) -> None:
        self.url, self.at = url, 0
        asked = urllib.request.Request(url, method="HEAD", headers={"User-Agent": "paramedic"})
        try:
            with urllib.request.urlopen(asked, timeout=_SECONDS) as answer:
                self.size = int(answer.headers.get("Content-Length") or 0)
        except OSError as error:
            raise Unreachable(str(error)) from None
        self.parts: list[tuple[int, bytes]] = []

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.at

    def seek(self, offset: int, whence: int = 0) -> int:
        self.at = offset + (0, self.at, self.size)[whence]
        return self.at

    def read(self, size: int = -1) -> bytes:
        size = self.size - self.at if size < 0 else min(size, self.size - self.at)
        if size <= 0:
            return b""
        for start, data in self.parts:
            if start <= self.at and self.at + size <= start + len(data):
                break
        else:
            start = min(self.at, max(self.size - _TAIL, 0)) if self.at + size > self.size - _TAIL else self.at
            length = max(size + self.at - start, min(_TAIL, self.size - start))
            data = _get(self.url, length + 1, {"Range": f"bytes={start}-{start + length - 1}"})
            self.parts.append((start, data))
        piece = data[self.at - start : self.at - start + size]
        self.at += len(piece)
        return piece


def reachable() -> bool:
    try:
        _get(f"{address()}/pip/", _MOST_JSON)
    except Unreachable:
        return False
    return True


def checked(name: str) -> dict[str, Any]:
    try:
        return project(name)
    except Unreachable as error:
        raise ParamedicError(f"the package index {error}") from None
