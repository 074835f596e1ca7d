"""What tools of the operating system print about a host in tables: vmstat, and ps or top again and again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from paramedic.clocks import find_stamp
from paramedic.model import Fact, Source
from paramedic.regex import regex

_PAGING = frozenset(("swpd", "si", "so", "free"))
_RESIDENT, _VIRTUAL = ("RSS", "RES"), ("VSZ", "VIRT")
_SIZE = regex(r"(\d{1,12}(?:\.\d{1,3})?)([kmgt]?)")
_KIB = {"": 1.0, "k": 1.0, "m": 1024.0, "g": 1024.0**2, "t": 1024.0**3}
_OF_A_JOB = regex(r"python|pt_main_thread|pt_data_worker|ray::|train", re.I)
_MOST_ROWS, _MOST_PROCESSES, _MOST_TABLES, _LINE = 4_096, 512, 64, 400


@dataclass(slots=True)
class _Table:
    """A heading, and where in it the columns stand that are read."""

    names: list[str]
    told_ns: int | None
    """When it was printed, where the line above says so."""
    rows: list[tuple[int, list[str]]] = field(default_factory=list)

    def place(self, *names: str) -> int:
        return next((self.names.index(name) for name in names if name in self.names), -1)

    def takes(self, words: Sequence[str], line: int) -> bool:
        """A row of it; a command, which is the last column, may have several words."""
        pid = self.place("PID")
        enough = len(words) >= len(self.names) if pid >= 0 else len(words) == len(self.names)
        if not enough or not words[max(pid, 0)].isdecimal() or len(self.rows) >= _MOST_ROWS:
            return False
        self.rows.append((line, list(words)))
        return True


def looked(lines: Sequence[str], source: Source) -> Iterator[Fact]:
    """`paging` of a host, as `samples in out`: how often vmstat looked, and what was usual, in KiB a second; and
    `resident` of a process that was listed several times, as `pid seconds sizes sizes`: from the first time to the
    last, and what was resident and virtual each time, in KiB."""
    if not any("PID" in line or "swpd" in line for line in lines):
        return
    tables = list(_tables(lines))
    yield from _paging([table for table in tables if "si" in table.names], source)
    yield from _resident([table for table in tables if "PID" in table.names][:_MOST_TABLES], source)


def _tables(lines: Sequence[str]) -> Iterator[_Table]:
    table: _Table | None = None
    for number, line in enumerate(lines, 1):
        words = line[:_LINE].split()
        if _is_heading(words):
            if table is not None:
                yield table
            table = _Table(words, _time_of(lines[number - 2]) if number > 1 else None)
        elif table is not None and not table.takes(words, number):
            yield table
            table = None
    if table is not None:
        yield table


def _time_of(line: str) -> int | None:
    stamp = find_stamp(line[:_LINE])
    return stamp.utc_ns if stamp else None


def _is_heading(words: Sequence[str]) -> bool:
    known = {*words}
    return known >= _PAGING or ("PID" in known and not known.isdisjoint(_RESIDENT))


def _paging(tables: Sequence[_Table], source: Source) -> Iterator[Fact]:
    """The first row is of the time since the host was started. vmstat prints its heading again on every page."""
    rows = [row for table in tables for row in table.rows][1:]
    at = [(table.place("si"), table.place("so")) for table in tables]
    if not rows or len({*at}) != 1:
        return
    pairs = [(words[at[0][0]], words[at[0][1]]) for _, words in rows]
    told = [(int(came), int(went)) for came, went in pairs if _is_count(came) and _is_count(went)]
    if told:
        came, went = (sorted(values)[len(told) // 4] for values in zip(*told, strict=True))
        yield Fact("paging", f"{len(told)} {came} {went}", source.id, rows[-1][0])


def _is_count(word: str) -> bool:
    return word.isdecimal() and len(word) <= 12


def _resident(tables: Sequence[_Table], source: Source) -> Iterator[Fact]:
    found: dict[str, list[tuple[int, float, float]]] = {}
    told = [table.told_ns for table in tables if table.told_ns is not None]
    seconds = (max(told) - min(told)) // 1_000_000_000 if len(told) == len(tables) > 1 else 0
    for table in tables if len(tables) > 1 else ():
        pid, held, mapped = table.place("PID"), table.place(*_RESIDENT), table.place(*_VIRTUAL)
        for line, words in table.rows:
            sizes = _kib(words[held]), _kib(words[mapped]) if mapped >= 0 else None
            command = " ".join(words[len(table.names) - 1 :])
            if sizes[0] is None or sizes[1] is None or len(words[pid]) > 10 or not _OF_A_JOB.search(command):
                continue
            if words[pid] in found or len(found) < _MOST_PROCESSES:
                found.setdefault(words[pid], []).append((line, sizes[0], sizes[1]))
    for process, looks in found.items():
        if len(looks) > 1:
            held_by, mapped_by = (",".join(f"{look[n]:.0f}" for look in looks) for n in (1, 2))
            yield Fact("resident", f"{process} {seconds} {held_by} {mapped_by}", source.id, looks[-1][0])


def _kib(word: str) -> float | None:
    size = _SIZE.fullmatch(word)
    return float(size[1]) * _KIB[size[2]] if size else None
