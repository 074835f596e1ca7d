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
    folders = {
        int(found[1]): os.path.join(place, name) for name in os.listdir(place) if (found := _RANK.fullmatch(name))
    }
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


def suspected(recording: Recording) -> int:
    """The rank on which something first stopped being finite by its own doing; else the first rank."""
    first: list[tuple[int, int]] = []
    for rank, one in recording.scores.items():
        for line in one.lines:
            if (line.get("k") in ("c", "b") and line.get("nf")) or (
                line.get("k") == "l" and isinstance(line.get("v"), str)
            ):
                first.append((int(line.get("s", 0)), rank))
                break
            if line.get("k") == "d" and line.get("nf"):
                break  # it came from a peer
    return min(first)[1] if first else recording.ranks[0]


def summary(recording: Recording) -> list[str]:
    """For people: what was recorded, what of it can be replayed, what is missing."""
    scores = recording.scores.values()
    steps = max(one.last_step for one in scores)
    calls = sum(one.total for one in scores)
    size = sum(_disk(folder) for folder in recording.folders.values())
    what = f"{len(recording.ranks)} ranks, {steps} steps, {calls:,} calls"
    lines = [f"recorded {what} in {recording.path} ({size / 1e6:,.1f} MB)"]
    starts = [one.start() for one in scores]
    if all(start is not None for start in starts):
        first = max(start for start in starts if start is not None)
        command = " ".join(recording.heads[recording.ranks[0]]["environment"].get("program") or ["python", "train.py"])
        lines.append(
            f"steps from {first + 1} on can be replayed: paramedic replay {recording.path} --rank R -- {command}"
        )
    return lines + [f"not whole: {text}" for text in faults(recording)]


def faults(recording: Recording) -> list[str]:
    """Why a recording is not all that it could be."""
    found: list[str] = []
    if recording.missing:
        found.append(f"ranks {', '.join(map(str, recording.missing[:8]))} are missing: the others can be replayed")
    for rank, one in recording.scores.items():
        for line in one.lines:
            if line.get("k") == "gap":
                counts = f"made {line.get('made')} calls, {line.get('seen')} were seen"
                found.append(f"rank {rank}: the backend of group {line.get('g')} {counts}")
            elif line.get("k") == "off":
                found.append(f"rank {rank}: recording ended early: {line.get('why')}")
            elif line.get("k") == "full":
                found.append(f"rank {rank}: payloads ended at --max-disk")
        if one.damage:
            found.append(f"rank {rank}: {one.damage}; what stands before it is used")
    return found


def _disk(folder: str) -> int:
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)
