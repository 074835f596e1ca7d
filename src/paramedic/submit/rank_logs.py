"""What the ranks of an attempt printed: a file for each rank, while it runs and afterwards."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterator, Sequence

from paramedic.submit.spec import LOGS

_LIVE = re.compile(r"/node-(\d{1,6})/[^/]+/attempt_\d+/(\d{1,6})/std(out|err)\.log$")
_RANK = re.compile(rb"\[rank(\d{1,6})\]: ?")
_SETTLED = re.compile(r"/rank-(\d{1,6})\.(out|err)$")


def files(folder: str, ranks_per_node: int) -> dict[int, list[str]]:
    """By rank; standard output first."""
    found: dict[int, list[str]] = {}
    for rank, _, path in sorted(_all(folder, ranks_per_node)):
        found.setdefault(rank, []).append(path)
    return found


def settle(folder: str, ranks_per_node: int) -> None:
    """Names that say the rank: torchrun numbers its folders by the place on the node."""
    for rank, kind, path in list(_all(folder, ranks_per_node)):
        with contextlib.suppress(OSError):
            os.replace(path, os.path.join(folder, LOGS, f"rank-{rank}.{kind}"))


def share_out(pages: Sequence[str], folder: str, world_size: int) -> None:
    """Pages on which torchrun has put each line's rank before it: what is new goes to the ranks' own files."""
    said: dict[int, list[bytes]] = {}
    for page in pages:
        with open(page, "rb") as file:
            for line in file:
                if (hit := _RANK.match(line)) and int(hit[1]) < world_size:
                    said.setdefault(int(hit[1]), []).append(line[hit.end() :])
    os.makedirs(os.path.join(folder, LOGS), exist_ok=True)
    for rank, found in said.items():
        with open(os.path.join(folder, LOGS, f"rank-{rank}.out"), "ab") as file:
            file.write(b"".join(found)[file.tell() :])  # it only grows, and may be read just now


def _all(folder: str, ranks_per_node: int) -> Iterator[tuple[int, str, str]]:
    place = os.path.join(glob.escape(folder), LOGS)
    for path in glob.glob(os.path.join(place, "node-*", "*", "attempt_*", "*", "std*.log")):
        if hit := _LIVE.search(path):
            yield int(hit[1]) * ranks_per_node + int(hit[2]), hit[3], path
    for path in glob.glob(os.path.join(place, "rank-*.*")):
        if hit := _SETTLED.search(path):
            yield int(hit[1]), hit[2], path


def last_line(folder: str, ranks_per_node: int) -> str:
    """The last words on standard error of whichever rank has any."""
    for paths in files(folder, ranks_per_node).values():
        for path in paths:
            if path.endswith(("err", "stderr.log")) and (said := tail(path)):
                return said.split("\n")[-1]
    return ""


def tail(path: str, size: int = 8192) -> str:
    """The end of a file, without empty lines after it; nothing where it cannot be read."""
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(os.path.getsize(path) - size, 0))
        return file.read().decode("utf-8", "replace").strip()
    return ""
