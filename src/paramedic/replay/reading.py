"""A recording on disk, as whoever replays or compares it sees it. It may be a stranger's, cut off, or not whole."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.rank.score import Score
from paramedic.rank.tape import FOLDER, VERSION

_ATTEMPT = re.compile(rf"{FOLDER}(?:-([0-9]{{1,4}}))?")
_RANK = re.compile(r"rank-([0-9]{1,8})")
_MOST_HEAD = 1 << 20
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Recording:
    path: str
    folders: Mapping[int, str]
    """Of each rank."""
    heads: Mapping[int, Mapping[str, Any]]
    attempt: int = 0

    @property
    def ranks(self) -> list[int]:
        return sorted(self.folders)

    @property
    def size(self) -> int:
        return max(int(head["world_size"]) for head in self.heads.values())

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.folders]

    @cached_property
    def scores(self) -> dict[int, Score]:
        return {rank: score(self, rank) for rank in self.ranks}


def read(path: str) -> Recording:
    """The last attempt of the job. Raises ParamedicError where there is nothing that can be used."""
    attempts = sorted(_attempts(path), reverse=True)
    if not attempts:
        raise ParamedicError(f"{path}: no recording; `paramedic record -o DIR -- COMMAND` makes one")
    attempt, place = attempts[0]
    folders = {int(found[1]): os.path.join(place, name) for name in os.listdir(place) if (found := _RANK.fullmatch(name))}
    heads = {rank: _head(folder) for rank, folder in sorted(folders.items())}
    if not heads:
        raise ParamedicError(f"{place}: no rank's recording is in it")
    return Recording(path, folders, heads, attempt)


def _attempts(path: str) -> list[tuple[int, str]]:
    try:
        names = os.listdir(path)
    except OSError as error:
        raise ParamedicError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = [(match, os.path.join(path, name)) for name in names if (match := _ATTEMPT.fullmatch(name))]
    return [(int(match[1] or 0), place) for match, place in found if os.path.isdir(place)]


def _head(folder: str) -> dict[str, Any]:
    file = os.path.join(folder, "head.json")
    try:
        with open(file, "rb") as raw:
            head = json.loads(raw.read(_MOST_HEAD))
        version = head["paramedic_recording"]
        right = isinstance(head["world_size"], int) and isinstance(head["environment"], dict)
    except _BROKEN as error:
        raise ParamedicError(f"{file}: damaged: {error}") from None
    if version != VERSION:
        raise ParamedicError(f"{file}: recording format version {version!r}; this Paramedic reads version {VERSION}")
    if not right or not 0 < head["world_size"] <= 1 << 20:
        raise ParamedicError(f"{file}: damaged: world_size or environment is missing")
    return dict(head)


def score(recording: Recording, rank: int) -> Score:
    if rank not in recording.folders:
        have = ", ".join(map(str, recording.ranks[:8])) + (" …" if len(recording.ranks) > 8 else "")
        raise ParamedicError(f"{recording.path}: has no rank {rank}; it has {have}")
    try:
        return Score(recording.folders[rank])
    except _BROKEN as error:
        said = f"{type(error).__name__}: {error}"
        raise ParamedicError(f"{recording.folders[rank]}: damaged recording: {said}") from None
