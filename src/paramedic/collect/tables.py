"""Numbers in rows and lists, as if each stood behind its name: tables, and what a line lists of all ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

_COLUMN = re.compile(r"[A-Za-z|][\w/.()@%+| -]{0,60}")
_CELL = re.compile(r"[-+]?\d{1,45}(?:[.,]\d{0,20})?(?:e[-+]?\d{1,3})?%?|[-+]?(?:nan|inf)|[\w.:/ -]{0,40}", re.I)
_COUNTED = (
    "step",
    "epoch",
    "ep",
    "iter",
    "it",
    "iteration",
    "global_step",
    "update",
    "batch",
    "tick",
    "rank",
    "global_rank",
)
_MAX_COLUMNS = 64
_DRAWN = re.compile(r"[|│┃](.{3,500})[|│┃]")
_LINE_BETWEEN = re.compile(r"[|│┃]")
_GAP = re.compile(r"\s{2,}|\t")
_ULTRALYTICS = re.compile(r"\s{0,12}Epoch((?:\s{1,12}[A-Za-z]\w{1,20}){3,12})\s{0,4}$")
_OF_ULTRALYTICS = re.compile(r"\s{0,12}(\d{1,6})/\d{1,6}((?:\s{1,12}[\d.]{1,12}G?){3,12}):?\s")
_A_NUMBER = r"-?\d{1,12}(?:\.\d{1,12})?(?:e[-+]?\d{1,3})?"
_PER_RANK = re.compile(
    r"\b([a-z][\w /-]{2,40}?) ?(?:per|by|of all|across|on all|for each) ranks?(?: ?\((ms|s|[kmgt]i?b)\))?\W{0,4}[\[(]"
    rf"({_A_NUMBER}(?:(?:, ?| {{1,3}}){_A_NUMBER}){{1,255}})[\])]",
    re.I,
)
_BY_RANK = re.compile(
    r"\b([a-z][\w /.+|-]{2,60}?)(?: (ms|s|[kmgt]i?b))? (?:by|per|of each) (?:tp |dp |pp )?"
    r"(?:rank|worker|stage|process)\b\W{1,8}"
    rf"({_A_NUMBER}(?:[, ]{{1,3}}{_A_NUMBER}){{1,255}})(?=\s{{2}}|\s*$|\s*[|;)])",
    re.I,
)
_LISTED = re.compile(rf"\b([a-z]\w{{2,30}})['\"]?[=:] ?\[({_A_NUMBER}(?:, ?{_A_NUMBER}){{1,255}})\]", re.I)
_MLLOG = re.compile(r':::MLLOG .{0,200}?"key": "(\w{1,60})", "value": (.{1,400}?), "metadata": (.{0,200})')
_BY_NUMBER = re.compile(r"\b([a-z]\w{2,40})['\"]?[:=] ?\{((?:'?\d{1,5}'?: ?-?\d{1,12}(?:\.\d{1,12})?(?:, )?){2,256})\}")
_NUMBERED = re.compile(r"(\d{1,5})'?: ?(-?\d{1,12}(?:\.\d{1,12})?)")
_BY_NAME = re.compile(
    r"\b(?:rank ?|r|tp)(\d{1,6})(?:[=:] ?|(?<=tp\d) )(-?\d{1,12}(?:\.\d{1,12})? ?(?:ms|s|[MG](?:i?B)?)?)"
    r"(?=[\s,;|)\]]|$)"
)
_FIRST_NAME = re.compile(r"\b(?:rank ?|r|tp)\d")
_OF_REPLICA = re.compile(r"\s{0,3}dp\d{1,4}:?\s{0,3}$")
_LENGTH = re.compile(r"\|\.?\|_?\d?")
_ON_NODE = re.compile(r"\s{0,8}node[ _-]?(\d{1,5})\b")
_GPUS = re.compile(r"\b([a-z]\w{1,30})((?: \d{1,9}(?:\.\d{1,6})?){4,16})(?=\s|$)")
_SEVERAL, _MANY = 2, 4


@dataclass(slots=True)
class Table:
    """The table under way: of a CSV file, the names in its first line."""

    columns: list[str] = field(default_factory=list)

    def row(self, text: str) -> str:
        """A row, as if each value stood behind its name, the rank first; empty for other lines."""
        if (found := _ULTRALYTICS.match(text)) is not None:
            self.columns = ["epoch", *found[1].split()]
            return ""
        if self.columns and (found := _OF_ULTRALYTICS.match(text)) is not None:
            cells = found[2].split()
            return f"epoch={found[1]}, " + ", ".join(
                f"{name}={cell}" for name, cell in zip(self.columns[1:], cells, strict=False)
            )
        for cells in _cut(text.strip()):
            if 2 <= len(cells) <= _MAX_COLUMNS and all(_COLUMN.fullmatch(cell) for cell in cells):
                if any(name.lower() in _COUNTED for name in cells):
                    self.columns = cells
                    return ""
            elif len(cells) == len(self.columns) and all(_CELL.fullmatch(cell) for cell in cells):
                return self._named(cells)
        return ""

    def _named(self, cells: list[str]) -> str:
        pairs = [(name, cell) for name, cell in zip(self.columns, cells, strict=True) if cell]
        if not any(name.lower() in _COUNTED and cell[0].isdigit() for name, cell in pairs):
            return ""
        pairs.sort(key=lambda pair: pair[0].lower() not in ("rank", "global_rank"))
        return ", ".join(f"{name}={cell}" for name, cell in pairs)


def unpacked(text: str) -> str:
    """A line of MLPerf's logging, as if the value stood behind its name."""
    found = _MLLOG.match(text) if text.startswith(":::MLLOG") else None
    return f"{found[1]}: {found[2]}, {found[3]}" if found else text


def _cut(text: str) -> Iterator[list[str]]:
    """Into cells: by the lines drawn between them, by commas or tabs, by wide gaps."""
    if (drawn := _DRAWN.fullmatch(text)) is not None:
        yield [cell.strip() for cell in _LINE_BETWEEN.split(drawn[1])]
        return
    if text.count("|") >= _SEVERAL:
        yield [cell.strip() for cell in text.split(" | ")]
    yield [cell.strip() for cell in text.split("," if "," in text else "\t")]
    if "  " in text:
        yield _GAP.split(text)


def of_ranks(text: str, at_a_step: bool) -> Iterator[tuple[int, str]]:
    """From a line that lists one quantity of all ranks, what each rank would have said."""
    told = False
    if "rank" in text and (found := _PER_RANK.search(text)) is not None:
        yield from _each(found[1], found[2], found[3])
        return
    for found in _BY_RANK.finditer(text) if "by " in text or "per " in text else ():
        told = True
        yield from _each(found[1], found[2], found[3])
    if told:
        return
    if (found := _BY_NUMBER.search(text)) is not None:
        pairs = [(int(rank), value) for rank, value in _NUMBERED.findall(found[2])]
        if [rank for rank, _ in pairs] == list(range(len(pairs))):
            yield from ((rank, f"{found[1]}: {value}") for rank, value in pairs)
    elif len(pairs_ := _BY_NAME.findall(text)) >= _SEVERAL:
        name = text[: m.start() if (m := _FIRST_NAME.search(text)) else 0]
        name = _OF_REPLICA.sub("", name.rsplit("|", 1)[-1].strip(" :=([-,"))
        yield from ((int(rank), f"{name} {value}") for rank, value in pairs_)
    elif (node := _ON_NODE.match(text)) is not None:
        for found in _GPUS.finditer(text):
            values = found[2].split()
            yield from ((int(node[1]) * len(values) + n, f"{found[1]}: {value}") for n, value in enumerate(values))
    elif at_a_step:
        for found in _LISTED.finditer(text):
            if len(found[2].split(",")) >= _MANY:
                yield from _each(found[1], None, found[2])


def _each(name: str, unit: str | None, values: str) -> Iterator[tuple[int, str]]:
    shown = f" ({unit})" if unit else ""
    name = _LENGTH.sub("norm", name)
    yield from ((rank, f"{name}{shown}: {value}") for rank, value in enumerate(values.replace(",", " ").split()))
