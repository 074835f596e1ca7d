"""Numbers in rows and lists, as if each stood behind its name: tables, and what a line lists of all ranks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from paramedic.collect.guarded import Words
from paramedic.regex import regex

_COLUMN = regex(r"[A-Za-z|][\w/.()@%+| -]{0,60}")
_CELL = regex(r"[-+]?\d{1,45}(?:[.,]\d{0,20})?(?:e[-+]?\d{1,3})?%?|[-+]?(?:nan|inf)|[\w.:/ -]{0,40}", re.I)
RANK = ("rank", "global_rank")
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
    *RANK,
)
_MAX_COLUMNS = 64
_DRAWN = regex(r"[|│┃](.{3,500})[|│┃]")
_LINE_BETWEEN = regex(r"[|│┃]")
_GAP = regex(r"\s{2,}|\t")
_ULTRALYTICS = regex(r"\s{0,12}Epoch((?:\s{1,12}[A-Za-z]\w{1,20}){3,12})\s{0,4}$")
_OF_ULTRALYTICS = regex(r"\s{0,12}(\d{1,6})/\d{1,6}((?:\s{1,12}[\d.]{1,12}G?){3,12}):?\s")
_A_NUMBER = r"-?\d{1,12}(?:\.\d{1,12})?(?:e[-+]?\d{1,3})?"
_PER_RANK = regex(
    r"\b([a-z][\w /-]{2,40}?) ?(?:per|by|of all|across|on all|for each) ranks?(?: ?\((ms|s|[kmgt]i?b)\))?\W{0,4}[\[(]"
    rf"({_A_NUMBER}(?:(?:, ?| {{1,3}}){_A_NUMBER}){{1,255}})[\])]",
    re.I,
)
_BY_RANK = regex(
    r"\b([a-z][\w /.+|-]{2,60}?)(?: (ms|s|[kmgt]i?b))?(?:(?: (?:by|per|of each) |/)(?:tp |dp |pp )?"
    r"(?:rank|worker|stage|process|gpu)\b| ?\(all ranks\))\W{1,8}"
    rf"({_A_NUMBER}(?:[, ]{{1,3}}{_A_NUMBER}){{1,255}})(?=\s{{2}}|\s*$|\s*[|;)]|\s[a-z])",
    re.I,
)
_BY_TP = regex(
    rf"([a-z|][\w |.]{{2,60}}?)\s+(?:tp|dp|rank ?|r|gpu ?)0\.\.(?:tp|dp|rank ?|r|gpu ?)?\d{{1,4}}:? "
    rf"({_A_NUMBER}(?: {_A_NUMBER}){{1,63}})(?=\s*$|\s*[|;])",
    re.I,
)
_HEXES = regex(r"\w{0,30}['\"]?[:=] ?\[(?:['\"][0-9a-f]{6,64}['\"](?:, ?)?){2,256}")
_HEX = regex(r"['\"]([0-9a-f]{6,64})['\"]")
_BARE_HEXES = regex(
    r"(?:hash(?:es)?|crc(?:32)?|checksums?|md5|sha\d{0,3}|digests?|fingerprints?)\b[ :=]{1,3}"
    r"((?:(?=[0-9]{0,63}[a-f]|[a-f]{1,63})[0-9a-f]{6,64}[ ,]{1,3}){3,255}[0-9a-f]{6,64})(?=\s|$)"
)
_COUNTED_UP = regex(
    rf"([a-z][\w /.+()-]{{1,40}}?)[ :=]{{1,4}}((?:\d{{1,4}}:{_A_NUMBER}(?:[ ,]{{1,4}}|$)){{4,256}})", re.I
)
_PAIR_OF = regex(rf"(\d{{1,4}}):({_A_NUMBER})")
_SPACED = regex(
    r"(?<![\w|])(\|?[a-z]\w{0,20}\|?)(?: \(?(ms|s|[kmgt]i?b)\)?:?)?"
    rf"((?: {_A_NUMBER}){{3,64}}(?=\s{{2}}|\s*$|\s*[|;])|(?: {{1,8}}{_A_NUMBER}){{4,64}}(?=\s*$))",
    re.I,
)
_ROW_OF_NUMBERS = regex(r"\d {1,8}-?\d[-+.e\d]{0,30} {1,8}-?\d")
"""Stands in whatever `_SPACED` finds, and is found sooner."""
_LISTED = regex(rf"\b([a-z]\w{{2,30}})['\"]?[=:] ?\[({_A_NUMBER}(?:, ?{_A_NUMBER}){{1,255}})\]", re.I)
_MLLOG = regex(r':::MLLOG .{0,200}?"key": "(\w{1,60})", "value": (.{1,400}?), "metadata": (.{0,200})')
_BY_NUMBER = regex(r"\b([a-z]\w{2,40})['\"]?[:=] ?\{((?:'?\d{1,5}'?: ?-?\d{1,12}(?:\.\d{1,12})?(?:, )?){2,256})\}")
_NUMBERED = regex(r"(\d{1,5})'?: ?(-?\d{1,12}(?:\.\d{1,12})?)")
_BY_NAME = regex(
    r"\b(?:rank ?|r|tp)(\d{1,6})(?:[=:] ?|(?<=tp\d) )(-?\d{1,12}(?:\.\d{1,12})? ?(?:ms|s|[MG](?:i?B)?)?)"
    r"(?=[\s,;|)\]]|$)"
)
_PAIRED = regex(rf"\b(?:rank ?|r)(\d{{1,6}}):? ({_A_NUMBER})/({_A_NUMBER})(?=[\s,;|)\]]|$)")
_FIRST_NAME = regex(r"\b(?:rank ?|r|tp)\d")
_OF_REPLICA = regex(r"\s{0,3}dp\d{1,4}:?\s{0,3}$")
_LENGTH = regex(r"\|\.?\|_?\d?")
_ON_NODE = regex(r"\s{0,8}node[ _-]?(\d{1,5})\b")
_GPUS = regex(r"\b([a-z]\w{1,30})((?: \d{1,9}(?:\.\d{1,6})?){4,16})(?=\s|$)")
_SEVERAL, _MANY = 2, 4
_WORD = regex(r"\S{1,40}")
_NUMBER = regex(rf"{_A_NUMBER}%?|nan|inf", re.I)


@dataclass(slots=True)
class Table:
    """The table under way: of a CSV file, the names in its first line."""

    columns: list[str] = field(default_factory=list)
    heading: str = ""
    """The line of their names, where it is not plain which words are one name."""
    of_bars: bool = False
    """Its rows are bars: others between them are of other tables, one of each class."""

    def row(self, text: str) -> str:
        """A row, as if each value stood behind its name, the rank first; empty for other lines."""
        if (found := _ULTRALYTICS.match(text)) is not None:
            self.columns, self.of_bars = ["epoch", *found[1].split()], True
            return ""
        if self.columns and (found := _OF_ULTRALYTICS.match(text)) is not None:
            cells = found[2].split()
            return f"epoch={found[1]}, " + ", ".join(
                f"{name}={cell}" for name, cell in zip(self.columns[1:], cells, strict=False)
            )
        for cells in _cut(text.removeprefix("\ufeff").strip()):
            if 2 <= len(cells) <= _MAX_COLUMNS and all(_COLUMN.fullmatch(cell) for cell in cells):
                if any(name.lower() in _COUNTED for name in cells):
                    self.columns, self.heading, self.of_bars = cells, "", False
                    return ""
                if "  " in text and any(word in _COUNTED for word in text.lower().split()):
                    self.columns, self.heading, self.of_bars = cells, text, False
                    return ""
            elif not self.of_bars and len(cells) == len(self.columns) and all(_CELL.fullmatch(cell) for cell in cells):
                return self._named(cells)
        return self._below(text) if self.heading else ""

    def _below(self, text: str) -> str:
        """A row under names that stand one space apart: each number ends where its name does."""
        cells = list(_WORD.finditer(text))
        ends = [cell.end() for cell in cells]
        right = all(
            self.heading[end - 1 : end + 1].strip() == self.heading[end - 1 : end].strip() != "" for end in ends
        )
        if not right or len(cells) < _SEVERAL or not all(_NUMBER.fullmatch(cell[0]) for cell in cells):
            return ""
        self.columns = [self.heading[start:end].strip() for start, end in pairwise((0, *ends))]
        return self._named([cell[0] for cell in cells])

    def _named(self, cells: list[str]) -> str:
        pairs = [(name, cell) for name, cell in zip(self.columns, cells, strict=True) if cell]
        if not any(name.lower() in _COUNTED and cell[0].isdigit() for name, cell in pairs):
            return ""
        pairs.sort(key=lambda pair: pair[0].lower() not in RANK)
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
    """From a line that lists one quantity of all ranks, what each rank would have said: the surest way that fits."""
    present = _WORDS.present(text)
    for way in [way for way, words in _WAYS.items() if not present.isdisjoint(words)]:
        told = list(way(text))
        if told:
            yield from told
            return
    if not at_a_step:
        return
    for found in _LISTED.finditer(text) if "[" in text else ():
        if len(found[2].split(",")) >= _MANY:
            yield from _each(found[1], None, found[2])
    for found in _SPACED.finditer(text) if _ROW_OF_NUMBERS.search(text) else ():
        yield from _each(found[1], found[2], found[3])


def _in_brackets(text: str) -> Iterator[tuple[int, str]]:
    if ("[" in text or "(" in text) and (found := _PER_RANK.search(text)) is not None:
        yield from _each(found[1], found[2], found[3])


def _by_tensor_rank(text: str) -> Iterator[tuple[int, str]]:
    if "0.." in text and (found := _BY_TP.search(text)) is not None:
        name = _LENGTH.sub("", found[1]).replace("|w|", "").strip()
        yield from _each(f"norm of {name}" if "|" in text else name, None, found[2])


def _hashes(text: str) -> Iterator[tuple[int, str]]:
    for listed in _HEXES.finditer(text):
        yield from ((rank, f"weights checksum: {value}") for rank, value in enumerate(_HEX.findall(listed[0])))
    for listed in _BARE_HEXES.finditer(text):
        values = listed[1].replace(",", " ").split()
        yield from ((rank, f"weights checksum: {value}") for rank, value in enumerate(values))


def _counted_up(text: str) -> Iterator[tuple[int, str]]:
    """`mem GiB  0:65.4  1:6.7  2:6.1  3:7.0`."""
    if (found := _COUNTED_UP.search(text)) is not None:
        named = _UNIT_BEHIND.match(found[1].strip())
        name, unit = named.groups() if named else (found[1].strip(), "")
        pairs = _from_nought(_PAIR_OF.findall(found[2]))
        yield from ((rank, f"{name} {value} {unit}".strip()) for rank, value in pairs)


def _from_nought(pairs: Sequence[tuple[str, str]]) -> list[tuple[int, str]]:
    """Numbers of ranks with their values; nothing where they do not count up from 0."""
    counted = [(int(rank), value) for rank, value in pairs]
    return counted if [rank for rank, _ in counted] == list(range(len(counted))) else []


_UNIT_BEHIND = regex(r"(.{1,40}?) \(?(ms|s|[KMGT]i?B)\)?$", re.I)


def _behind_its_name(text: str) -> Iterator[tuple[int, str]]:
    for found in _BY_RANK.finditer(text):
        yield from _each(found[1], found[2], found[3])


def _by_number(text: str) -> Iterator[tuple[int, str]]:
    if (found := _BY_NUMBER.search(text)) is not None:
        yield from ((rank, f"{found[1]}: {value}") for rank, value in _from_nought(_NUMBERED.findall(found[2])))


def _each_named(text: str) -> Iterator[tuple[int, str]]:
    pairs = _BY_NAME.findall(text)
    if len(pairs) >= _SEVERAL and (first := _FIRST_NAME.search(text)) is not None:
        name = _OF_REPLICA.sub("", text[: first.start()].rsplit("|", 1)[-1].strip(" :=([-,"))
        yield from ((int(rank), f"{name} {value}") for rank, value in pairs)


def _two_named(text: str) -> Iterator[tuple[int, str]]:
    """`mem GiB alloc/peak: r0 19.9/29.1  r1 19.8/29.6`."""
    found = list(_PAIRED.finditer(text))
    if len(found) >= _SEVERAL:
        before, _, names = text[: found[0].start()].strip(" :=([-,").rpartition(" ")
        for one in found:
            for name, value in zip(names.split("/"), one.groups()[1:], strict=False):
                yield int(one[1]), f"{before} {name} {value}"


def _on_a_node(text: str) -> Iterator[tuple[int, str]]:
    if (node := _ON_NODE.match(text)) is not None:
        for found in _GPUS.finditer(text):
            values = found[2].split()
            yield from ((int(node[1]) * len(values) + n, f"{found[1]}: {value}") for n, value in enumerate(values))


_WAYS: dict[Callable[[str], Iterator[tuple[int, str]]], tuple[str, ...]] = {
    _in_brackets: ("rank",),
    _by_tensor_rank: ("tp..", "dp..", "rank..", "rank ..", "r..", "gpu..", "gpu .."),
    _hashes: ("hash", "crc", "checksum"),
    _behind_its_name: ("by ", "per ", "all ranks", "/rank", "/gpu", "/worker", "/stage", "/process"),
    _by_number: ("{",),
    _counted_up: (": :", ":. :", ":  :", ":.  :", ":, :", ":., :"),
    _each_named: ("rank=", "rank:", "rank =", "rank :", "r=", "r:", "tp=", "tp:", "tp "),
    _two_named: ("r ./", "r /", "rank ./", "rank /", "r: ./", "r: /"),
    _on_a_node: ("node",),
}
"""In the order in which they are tried; each with words, but for digits, of which one stands in whatever it reads."""
_WORDS = Words(word for words in _WAYS.values() for word in words)


def _each(name: str, unit: str | None, values: str) -> Iterator[tuple[int, str]]:
    shown = f" ({unit})" if unit else ""
    name = _LENGTH.sub("norm", name)
    yield from ((rank, f"{name}{shown}: {value}") for rank, value in enumerate(values.replace(",", " ").split()))
