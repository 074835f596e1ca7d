"""The newest complete checkpoint: what was half written when a rank died is skipped and named. Nothing is unpickled."""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Callable
from dataclasses import dataclass

_MOST_ENTRIES = 10_000
_WHOLE = 1 << 30
"""Files up to this size are read through against their checksums; of larger ones only the directory is."""
_STEP = re.compile(r"(\d{1,12})(?!.*\d)")
_ZIPPED = (".pt", ".pth", ".ckpt", ".bin", ".distcp")
_SHARD = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_optim_states\.pt")


@dataclass(frozen=True, slots=True)
class Checkpoint:
    path: str
    kind: str
    step: int | None
    written: float
    why_not: str = ""
    """Why it cannot be used; empty when it is complete."""
    world_size: int | None = None
    """The number of ranks that it can only be read with; None where any can."""

    @property
    def age(self) -> tuple[float, float]:
        return (-1 if self.step is None else self.step, self.written)


def newest(folder: str, world_size: int) -> tuple[Checkpoint | None, list[Checkpoint]]:
    """The one to go on from, and those newer ones that had to be skipped."""
    skipped: list[Checkpoint] = []
    for one in sorted(_candidates(folder), key=lambda found: found.age, reverse=True):
        examined = examine(one.path, world_size)
        if not examined.why_not:
            return examined, skipped
        skipped.append(examined)
    return None, skipped


def _candidates(folder: str) -> list[Checkpoint]:
    """The folder's entries that look like checkpoints; the folder itself if it is one."""
    try:
        entries = [os.path.join(folder, name) for name in sorted(os.listdir(folder))[:_MOST_ENTRIES]]
    except OSError:
        return []
    if os.path.exists(os.path.join(folder, ".metadata")):
        entries = [folder]
    named = ((path, _kind(path)) for path in entries)
    return [Checkpoint(path, kind, _step(path), _written(path)) for path, kind in named if kind]


def _kind(path: str) -> str:
    if not os.path.isdir(path):
        return "file" if path.endswith((*_ZIPPED, ".safetensors")) else ""
    names = set(_names(path))
    if ".metadata" in names or any(name.endswith(".distcp") for name in names):
        return "torch.distributed.checkpoint"
    if any(name.endswith("_states.pt") for name in names):
        return "deepspeed"
    if any(name.endswith((*_ZIPPED, ".safetensors")) for name in names):
        return "folder"
    return ""


def examine(path: str, world_size: int) -> Checkpoint:
    """Complete, whole, and for this number of ranks?"""
    kind = _kind(path)
    how: dict[str, Callable[[str, int], str]] = {
        "file": lambda path, _: _broken(path),
        "folder": lambda path, _: _broken_in(path),
        "torch.distributed.checkpoint": _broken_dcp,
        "deepspeed": _broken_deepspeed,
    }
    why = how[kind](path, world_size) if kind in how else "is no checkpoint"
    fixed = world_size if kind == "deepspeed" else None
    return Checkpoint(path, kind, _step(path), _written(path), why, fixed)


def _broken_dcp(path: str, world_size: int) -> str:
    """Its `.metadata` is written last, when all ranks have written their parts. Any number of ranks can read it."""
    metadata = os.path.join(path, ".metadata")
    if not os.path.exists(metadata) or not os.path.getsize(metadata):
        return "its .metadata is missing: saving did not come to its end"
    for name in _names(path):
        if name.endswith(".distcp") and not os.path.getsize(os.path.join(path, name)):
            return f"{name} is empty"
    return ""


def _broken_deepspeed(path: str, world_size: int) -> str:
    """Each rank reads its own shard: another number of ranks needs a universal checkpoint."""
    names = _names(path)
    shards = [hit for name in names if (hit := _SHARD.fullmatch(name))]
    if shards and len(shards) != world_size:
        return f"it has the shards of {len(shards)} ranks, and {world_size} are to be started"
    return _broken_in(path)


def _broken_in(path: str) -> str:
    for name in _names(path):
        if name.endswith((*_ZIPPED, ".safetensors")) and (why := _broken(os.path.join(path, name))):
            return f"{name} {why}"
    return ""


def _broken(path: str) -> str:
    try:
        if path.endswith(".safetensors"):
            return _broken_safetensors(path)
        return _broken_zip(path)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}"


def _broken_zip(path: str) -> str:
    """`torch.save` writes a zip file, whose directory comes last; an old pickle can only be seen to be there."""
    size = os.path.getsize(path)
    if size == 0:
        return "is empty"
    with open(path, "rb") as file:
        if file.read(4) != b"PK\3\4":
            return "" if size > 16 else "is too short"
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip() if size <= _WHOLE else None
        return f"is damaged at {bad}" if bad else ""
    except (zipfile.BadZipFile, EOFError, NotImplementedError, ValueError) as error:
        return f"is not whole: {error}"


def _broken_safetensors(path: str) -> str:
    size = os.path.getsize(path)
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(size - 8, 100 << 20):
            return "is not whole: its header is cut off"
        try:
            header = json.loads(file.read(length))
            ends = [entry["data_offsets"][1] for name, entry in header.items() if name != "__metadata__"]
        except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
            return "has no readable header"
    if not all(isinstance(end, int) for end in ends) or 8 + length + max(ends, default=0) != size:
        return "is not whole: its length is not what its header says"
    return ""


def _names(path: str) -> list[str]:
    try:
        return sorted(os.listdir(path))[:_MOST_ENTRIES]
    except OSError:
        return []


def _step(path: str) -> int | None:
    """`checkpoint-500`, `global_step1200`, `step_40.pt`: the last number of the name."""
    hit = _STEP.search(os.path.basename(path))
    return int(hit[1]) if hit else None


def _written(path: str) -> float:
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0
