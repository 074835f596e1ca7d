"""Make harder recordings of real ones: the same lines as another flush, clock or console would have left them.

Each alteration is a pure function of the text and a seed, so that the corpus need not keep its results. The order of
lines within a rank stays, as on every real console.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

from paramedic.ward.corpus import Recording, rank_of_file, rank_of_line

_STAMP = re.compile(r"\b(\d{4}-\d\d-\d\d)([ T])(\d\d:\d\d:\d\d)([.,]\d{1,6})?")

Files = dict[str, list[str]]
"""The lines of each file, by its name."""


def without_timestamps(files: Files, recording: Recording, rng: random.Random) -> Files:
    def strip(line: str) -> str:
        return (
            re.sub(r"^((?:\[\w+\]:|\d+: )?)\s+", r"\1", _STAMP.sub("", line, count=1))
            if _STAMP.search(line[:60])
            else line
        )

    return {name: [strip(line) for line in lines] for name, lines in files.items()}


def shuffled(files: Files, recording: Recording, rng: random.Random) -> Files:
    """Labelled lines of a shared console arrive in another order between the ranks."""
    return {name: _riffled(lines, rng) for name, lines in files.items()}


def late_flush(files: Files, recording: Recording, rng: random.Random) -> Files:
    """The rank that failed first is the last whose lines reach the console."""
    culprits = set(recording.truth.ranks) if recording.truth else set()
    moved: Files = {}
    for name, lines in files.items():
        late = [line for line in lines if rank_of_line(line) in culprits]
        moved[name] = [line for line in lines if rank_of_line(line) not in culprits] + late
    return moved


def skewed_clocks(files: Files, recording: Recording, rng: random.Random) -> Files:
    """The upper half of the ranks are on a host whose clock is off by a minute or two."""
    half = int(recording.made.get("ranks", recording.case.ranks)) // 2
    shift = timedelta(seconds=rng.choice((-1, 1)) * rng.uniform(45, 150))
    moved: Files = {}
    for name, lines in files.items():
        of_file = rank_of_file(name)
        moved[name] = []
        for line in lines:
            rank = rank_of_line(line) if of_file is None else of_file
            moved[name].append(_shifted(line, shift) if rank is not None and rank >= half else line)
    return moved


ALTERATIONS: dict[str, Callable[[Files, Recording, random.Random], Files]] = {
    "no-timestamps": without_timestamps,
    "shuffled": shuffled,
    "late-flush": late_flush,
    "skewed-clocks": skewed_clocks,
}


def altered(recording: Recording, how: str, folder: Path) -> Recording | None:
    """The recording so altered, written under the folder; none where that changes nothing in it."""
    files = {
        str(file.relative_to(recording.input)): _lines(file)
        for file in sorted(recording.input.rglob("*"))
        if file.is_file()
    }
    changed = ALTERATIONS[how](files, recording, random.Random(f"{recording.name} {how}"))
    if changed == files:
        return None
    target = folder / recording.case.id / recording.variant / how
    shutil.rmtree(target, ignore_errors=True)
    for name, lines in changed.items():
        file = target / "input" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes("\n".join(lines).encode("utf-8", "surrogateescape"))
    return replace(recording, folder=target, altered=how)


def _lines(file: Path) -> list[str]:
    return file.read_bytes().decode("utf-8", "surrogateescape").split("\n")


def _riffled(lines: list[str], rng: random.Random) -> list[str]:
    """Each stretch of labelled lines is dealt out anew, every rank's own order kept."""
    done: list[str] = []
    stretch: list[str] = []
    for line in [*lines, None]:
        if line is not None and rank_of_line(line) is not None:
            stretch.append(line)
            continue
        order = [rank_of_line(one) for one in stretch]
        rng.shuffle(order)
        queues = {rank: iter([one for one in stretch if rank_of_line(one) == rank]) for rank in set(order)}
        done += [next(queues[rank]) for rank in order]
        stretch = []
        if line is not None:
            done.append(line)
    return done


def _shifted(line: str, by: timedelta) -> str:
    def move(found: re.Match[str]) -> str:
        try:
            then = datetime.fromisoformat(f"{found[1]} {found[3]}") + by
        except (ValueError, OverflowError):
            return found[0]
        return f"{then:%Y-%m-%d}{found[2]}{then:%H:%M:%S}{found[4] or ''}"

    return _STAMP.sub(move, line)
