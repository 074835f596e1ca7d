"""A recording on disk, as whoever replays or compares it sees it. It may be a stranger's, cut off, or not whole."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.rank.score import Score, is_bad
from paramedic.rank.tape import FOLDER, VERSION, opened

_ATTEMPT = re.compile(rf"{FOLDER}(?:-([0-9]{{1,4}}))?")
_RANK = re.compile(r"rank-([0-9]{1,8})")
_MOST_HEAD = 1 << 20
_BROKEN = (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True)
class Recording:
    path: str
    folders: Mapping[int, str]
    """Of each rank that can be read."""
    heads: Mapping[int, Mapping[str, Any]]
    scores: Mapping[int, Score]
    broken: Mapping[int, str] = field(default_factory=dict)
    """Ranks that are there and cannot be read, and why."""
    attempt: int = 0

    @property
    def ranks(self) -> list[int]:
        return sorted(self.folders)

    @property
    def size(self) -> int:
        return max(int(head["world_size"]) for head in self.heads.values())

    @property
    def missing(self) -> list[int]:
        return [rank for rank in range(self.size) if rank not in self.folders and rank not in self.broken]

    @property
    def program(self) -> list[str]:
        """As one rank ran it."""
        words = self.heads[self.ranks[0]]["environment"].get("program")
        plain = isinstance(words, list) and words and all(isinstance(word, str) for word in words)
        return words if plain else ["python", "train.py"]


def read(path: str) -> Recording:
    """The last attempt of the job. Raises ParamedicError where there is nothing that can be used."""
    attempts = sorted(_attempts(path), reverse=True)
    if not attempts:
        raise ParamedicError(f"{path}: no recording; `paramedic record -o DIR -- COMMAND` makes one")
    attempt, place = attempts[0]
    scores: dict[int, Score] = {}
    broken: dict[int, str] = {}
    folders = {int(found[1]): name for name in os.listdir(place) if (found := _RANK.fullmatch(name))}
    for rank, name in sorted(folders.items()):
        try:
            scores[rank] = _score(os.path.join(place, name), rank)
        except ParamedicError as error:
            broken[rank] = str(error)
    if not scores:
        raise ParamedicError(next(iter(broken.values()), f"{place}: no rank's recording is in it"))
    heads = {rank: one.head for rank, one in scores.items()}
    return Recording(path, {r: os.path.join(place, folders[r]) for r in scores}, heads, scores, broken, attempt)


def is_recording(path: str) -> bool:
    return os.path.isdir(path) and bool(_attempts(path))


def _attempts(path: str) -> list[tuple[int, str]]:
    try:
        names = os.listdir(path)
    except OSError as error:
        raise ParamedicError(f"{path}: cannot be read: {error.strerror or error}") from None
    found = [(match, os.path.join(path, name)) for name in names if (match := _ATTEMPT.fullmatch(name))]
    return [(int(match[1] or 0), place) for match, place in found if os.path.isdir(place) and not os.path.islink(place)]


def _score(folder: str, rank: int) -> Score:
    _check_head(folder, rank)
    try:
        return Score(folder)
    except _BROKEN as error:
        said = error.strerror if isinstance(error, OSError) and error.strerror else f"{error}"
        raise ParamedicError(f"{folder}: damaged recording: {said}") from None


def _check_head(folder: str, rank: int) -> None:
    file = os.path.join(folder, "head.json")
    if os.path.islink(folder):
        raise ParamedicError(f"{folder}: is a link, which no recording has")
    try:
        with opened(file) as raw:
            head = json.loads(raw.read(_MOST_HEAD))
        version = head["paramedic_recording"]
        size, of = head["world_size"], head["rank"]
        right = isinstance(size, int) and isinstance(head["environment"], dict) and 0 < size <= 1 << 20
    except _BROKEN as error:
        said = f"{error.strerror}" if isinstance(error, OSError) and error.strerror else f"{error}"
        raise ParamedicError(f"{file}: damaged: {said}") from None
    if version != VERSION:
        raise ParamedicError(f"{file}: recording format version {version!r}; this Paramedic reads version {VERSION}")
    if not right:
        raise ParamedicError(f"{file}: damaged: world_size or environment is missing")
    if of != rank:
        raise ParamedicError(f"{file}: is rank {of!r}'s, but its folder says rank {rank}")


def score(recording: Recording, rank: int) -> Score:
    if rank in recording.broken:
        raise ParamedicError(recording.broken[rank])
    if rank not in recording.folders:
        have = ", ".join(map(str, recording.ranks[:8])) + (" …" if len(recording.ranks) > 8 else "")
        raise ParamedicError(f"{recording.path}: has no rank {rank}; it has {have}")
    return recording.scores[rank]


def suspected(recording: Recording) -> int:
    """The rank on which something first stopped being finite by its own doing; else the first rank."""
    first: list[tuple[int, int]] = []
    for rank, one in recording.scores.items():
        bad = next((line for line in one.lines if is_bad(line)), None)
        if bad is not None and bad["k"] != "d":  # a result came from a peer
            first.append((bad.get("s", 0), rank))
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
        command = shlex.join(recording.program)
        lines.append(
            f"steps from {first + 1} on can be replayed: paramedic replay {recording.path} --rank R -- {command}"
        )
    return lines + [f"not whole: {text}" for text in faults(recording)]


def faults(recording: Recording) -> list[str]:
    """Why a recording is not all that it could be."""
    found: list[str] = []
    if recording.missing:
        names = ", ".join(map(str, recording.missing[:8]))
        many = len(recording.missing) > 1
        found.append(f"rank{'s' * many} {names} {'are' if many else 'is'} missing: the others can be replayed")
    found += [f"rank {rank}: {why}" for rank, why in recording.broken.items()]
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
