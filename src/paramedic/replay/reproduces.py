"""Does a checkpoint hold the state that each rank had? By the fingerprints of a recording, tensor for tensor.

torch.distributed.checkpoint keeps one copy of what it takes for equal on all ranks: buffers that differ by rank, and
replicas that have parted, come back as somebody else's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from paramedic.errors import ParamedicError
from paramedic.rank import prints
from paramedic.rank.score import Score
from paramedic.replay.checkpoint import Checkpoint, Odd, Piece, region
from paramedic.replay.reading import Recording

_WRAPPERS = re.compile(
    r"(?:^|(?<=\.))(?:module|_fsdp_wrapped_module|_orig_mod|_checkpoint_wrapped_module|_forward_module)\."
)
_BROKEN = (OSError, ValueError, RuntimeError, KeyError, StopIteration, Odd)


@dataclass(frozen=True, slots=True)
class OfRank:
    """One rank's tensors beside the checkpoint's."""

    rank: int
    same: int
    total: int
    differ: tuple[tuple[str, tuple[int, ...]], ...]
    """Names, and the ranks whose values the checkpoint has instead."""
    absent: tuple[str, ...]

    @property
    def is_whole(self) -> bool:
        return self.same == self.total > 0


@dataclass(frozen=True, slots=True)
class Reproduction:
    step: int | None
    """The step after which the recorded state is nearest to the checkpoint; None where no step has any of it."""
    ranks: tuple[OfRank, ...]
    steps: tuple[int, int]
    """The first and the last step whose state is known."""
    skipped: tuple[str, ...] = ()

    @property
    def is_whole(self) -> bool:
        return bool(self.ranks) and all(one.is_whole for one in self.ranks)


def reproduces(recording: Recording, checkpoint: Checkpoint) -> Reproduction:
    _need_torch()
    if all(one.head.get("payload") == "hash" for one in recording.scores.values()):
        raise ParamedicError(
            f"{recording.path}: was recorded with --payload hash: no tensor has a fingerprint of its own"
        )
    known = {rank: _known(one) for rank, one in recording.scores.items()}
    steps = sorted({step for states in known.values() for step in states})
    if not steps:
        raise ParamedicError(f"{recording.path}: no step is kept whose tensors each have a fingerprint")
    contents = cache(lambda: _contents(checkpoint))
    held = {rank: _Held(checkpoint, one, contents) for rank, one in recording.scores.items()}
    best = max(steps, key=lambda step: (sum(_same(held[r], states.get(step, {})) for r, states in known.items()), step))
    ranks = tuple(_of_rank(rank, held, known, best) for rank in sorted(known) if best in known[rank])
    skipped = [f"{one.what}: {one.why}" for one in checkpoint.skipped]
    skipped += [f"rank {rank}: of step {best} nothing is kept" for rank in known if best not in known[rank]]
    found = any(one.same for one in ranks)
    return Reproduction(best if found else None, ranks, (steps[0], steps[-1]), tuple(skipped))


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError:
        raise ParamedicError("a checkpoint can be compared with torch only: pip install 'paramedic[torch]'") from None


def _known(score: Score) -> dict[int, dict[str, str]]:
    """The fingerprint of every tensor after each step that is kept, without what is in no checkpoint."""
    found = {}
    for kind, step in score.marks:
        each = score.each("pa", step) | score.each("op", step) if kind == "pa" else {}
        kept = {name: key for name, key in each.items() if _counts(name, score)}
        if kept:
            found[step] = kept
    return found


def _counts(name: str, score: Score) -> bool:
    """An optimizer's own view of a parameter is that parameter; a buffer may be one that is never saved."""
    words = name.split(" ", 3)
    seen_already = words[0] == "optimizer" and words[2:3] == ["of"] and f"{words[1]} {words[3]}" in score.parameters
    return not seen_already and name not in score.transient


def _same(held: _Held, each: Mapping[str, str]) -> int:
    return sum(key in held.prints(name, key) for name, key in each.items())


def _of_rank(
    rank: int, held: Mapping[int, _Held], known: Mapping[int, Mapping[int, Mapping[str, str]]], step: int
) -> OfRank:
    mine = known[rank][step]
    differ, absent, same = [], [], 0
    for name, key in mine.items():
        there = held[rank].prints(name, key)
        if key in there:
            same += 1
        elif there:
            whose = tuple(r for r, states in known.items() if states.get(step, {}).get(name) in there)
            differ.append((name, whose))
        else:
            absent.append(name)
    return OfRank(rank, same, len(mine), tuple(differ), tuple(absent))


class _Held:
    """What a checkpoint has for the tensors of one rank, by name; where no name fits, by content."""

    def __init__(self, checkpoint: Checkpoint, score: Score, contents: Callable[[], frozenset[str]]) -> None:
        self._checkpoint, self._score, self._contents = checkpoint, score, contents
        self._by_name: dict[str, frozenset[str]] = {}
        self._endings = _endings(checkpoint)

    def prints(self, name: str, key: str) -> frozenset[str]:
        if name not in self._by_name:
            self._by_name[name] = self._named(name)
        found = self._by_name[name]
        return found or (frozenset({key}) if key in self._contents() else frozenset())

    def _named(self, name: str) -> frozenset[str]:
        part = self._part(name)
        found: set[str] = set()
        for wanted in self._wanted(name):
            for key in self._endings.get(wanted, ())[:4]:
                found |= _prints(self._checkpoint.pieces[key], part)
            if found:
                break
        return frozenset(found)

    def _wanted(self, name: str) -> list[str]:
        words = name.split(" ", 3)
        if words[0] in ("model", "buffer"):
            return [plain(name.split(" ", 2)[2])]
        parameter = self._score.parameters.get(" ".join(words[1:3]), "")
        kind = words[3] if len(words) > 3 else ""
        return [f"{plain(parameter)}.{kind}", f"state.{words[2]}.{kind}"] if parameter and kind else []

    def _part(self, name: str) -> tuple[list[int], list[int]] | None:
        words = name.split(" ", 3)
        of = self._score.parameters.get(" ".join(words[1:3])) if words[0] == "optimizer" else None
        said = self._score.shards.get(of or name.split(" ", 2)[-1])
        try:
            begins, shape = said  # type: ignore[misc]
            right = all(isinstance(n, int) and 0 <= n < 1 << 62 for n in (*begins, *shape))
        except (TypeError, ValueError):
            return None
        return (begins, shape) if right and len(begins) == len(shape) else None


def plain(name: str) -> str:
    """Without what wrappers put before it."""
    return _WRAPPERS.sub("", name)


def _endings(checkpoint: Checkpoint) -> dict[str, list[str]]:
    """Every end of a name at a dot → the names that end so, the shortest first."""
    found: dict[str, list[str]] = {}
    for key in sorted(checkpoint.pieces, key=len):
        words = plain(key).split(".")
        for start in range(len(words)):
            found.setdefault(".".join(words[start:]), []).append(key)
    return found


def _prints(pieces: Sequence[Piece], part: tuple[list[int], list[int]] | None) -> set[str]:
    """Of that part of the whole; without one, of the whole, or of each copy where nothing says what is a part."""
    try:
        dimensions = len(pieces[0].shape)
        if part is not None and dimensions == len(part[0]):
            found = [region(pieces, *part)]
            if all(piece.begins is None for piece in pieces):
                found += [piece.load() for piece in pieces]
        elif any(piece.begins is None for piece in pieces):
            found = [piece.load() for piece in pieces]
        else:
            ends = [[a + n for a, n in zip(p.begins or (), p.shape, strict=True)] for p in pieces]
            found = [region(pieces, [0] * dimensions, [max(end) for end in zip(*ends, strict=True)])]
    except _BROKEN:
        return set()
    return {prints.of([one]) for one in found if one is not None}


def _contents(checkpoint: Checkpoint) -> frozenset[str]:
    """The fingerprints of all that is in it."""
    found: set[str] = set()
    for piece in (piece for pieces in checkpoint.pieces.values() for piece in pieces):
        try:
            found.add(prints.of([piece.load()]))
        except _BROKEN:
            continue
    return frozenset(found)


def shown(name: str) -> str:
    """`model 0 module.first.weight` as people call it."""
    words = name.split(" ", 2)
    return f"{words[0]} {plain(words[2])}" if words[0] in ("model", "buffer") and len(words) > 2 else name
