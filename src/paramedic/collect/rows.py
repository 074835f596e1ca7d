"""Long tables with a row for each rank: what a column means is asked once, so that each row costs little."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paramedic.collect.quantities import Value, parsed
from paramedic.collect.readings import said_in
from paramedic.collect.tables import RANK

_ASKED = (1.5, 2)
"""What a column's name is asked with; some are counted, and have no fractions."""


@dataclass(frozen=True, slots=True)
class _Column:
    place: int
    name: str
    unit: str
    factor: float


@dataclass(frozen=True, slots=True)
class Rows:
    """A table's columns: whose row it is, at which step, and what each of the others tells."""

    size: int
    rank: int
    counts: tuple[int, ...]
    label: str
    columns: tuple[_Column, ...]

    def row(self, line: str) -> tuple[int, str, Iterator[Value]] | None:
        """The rank, the step and the values; None where it is no row of this table."""
        cells = line.split(",")
        if len(cells) != self.size or not (rank := cells[self.rank].strip()).isdecimal() or len(rank) > 6:
            return None
        label = self.label.format(*(cells[place].strip()[:20] for place in self.counts))
        return int(rank), label, self._values(cells)

    def _values(self, cells: Sequence[str]) -> Iterator[Value]:
        for one in self.columns:
            if cell := cells[one.place].strip()[:40]:
                number = parsed(cell)
                yield Value(one.name, None if number is None else number * one.factor, one.unit)


def rows_of(columns: Sequence[str]) -> Rows | None:
    """None for a table without ranks."""
    rank = next((place for place, name in enumerate(columns) if name.lower() in RANK), None)
    if rank is None:
        return None
    counts = tuple(place for place, name in enumerate(columns) if place != rank and said_in(f"{name}=7").label)
    label = said_in(", ".join(f"{columns[place]}={7000 + n}" for n, place in enumerate(counts))).label
    for n in range(len(counts)):
        label = label.replace(str(7000 + n), f"{{{n}}}")
    others = (place for place in range(len(columns)) if place != rank and place not in counts)
    told = (_asked(place, columns[place]) for place in others)
    return Rows(len(columns), rank, counts, label, tuple(one for one in told if one is not None))


def _asked(place: int, name: str) -> _Column | None:
    for number in _ASKED:
        said = said_in(f"rank=0, {name}={number}")
        for one in (*said.values, *said.others):
            if one.value:
                return _Column(place, one.name, one.unit, one.value / number)
    return None
