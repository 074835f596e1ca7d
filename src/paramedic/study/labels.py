"""Study 1's labels, as its replication package publishes them (Excel workbooks) or as tables made from them (CSV)."""

from __future__ import annotations

import csv
import hashlib
import io
import re
import tomllib
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.study.needed import needed

REPOSITORY = "gudiandian/TOSEM23-DistributedTraining"
MAX_FILE = 64 << 20
MAX_UNPACKED = 512 << 20
_FINAL = "final categories.xlsx"
_ROUND = re.compile(r"reliability_analysis_round(\d)\.xlsx")
_SHEETS = {"label1": "rater1", "label2": "rater2", "Final": "final"}
_GROUPS = ("", "program failure", "unexpected performance")

Row = dict[str, str]


@dataclass(frozen=True, slots=True)
class Fault:
    origin: str
    link: str
    distributed: bool
    stage: str
    group: str
    symptom: str
    fixes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Question:
    origin: str
    link: str
    topic: str
    sub_topic: str


@dataclass(frozen=True, slots=True)
class Rating:
    """One row of one rater in a reliability round; a further fault of the same post is its next part."""

    round: int
    rater: str
    link: str
    part: int
    values: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Study1:
    faults: tuple[Fault, ...]
    questions: tuple[Question, ...] = ()
    ratings: tuple[Rating, ...] = ()
    sha256: Mapping[str, str] = field(default_factory=dict)

    @property
    def faults_sha256(self) -> str:
        """Of the faults as one table, however they were published: workbook and CSV give the same."""
        return hashlib.sha256(faults_csv(self.faults)).hexdigest()


def read_labels(path: Path) -> Study1:
    """From a folder, the package's archive, one workbook, or the tables as CSV."""
    return from_files(dict(label_files(path)), str(path))


def from_files(files: Mapping[str, bytes], where: str) -> Study1:
    by_name = {name.rsplit("/", 1)[-1]: data for name, data in files.items()}
    sha256 = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(by_name.items())}
    rounds = sorted((int(found[1]), name) for name in by_name if (found := _ROUND.fullmatch(name)))
    if _FINAL in by_name:
        sheets = _workbook(by_name[_FINAL], _FINAL)
        faults = _faults(_sheet(sheets, "faults", _FINAL), _FINAL)
        questions = _questions(_sheet(sheets, "how-to questions", _FINAL), _FINAL)
        ratings = tuple(one for number, name in rounds for one in _round(by_name[name], number, name))
        return Study1(faults, questions, ratings, sha256)
    if "faults.csv" not in by_name:
        raise ParamedicError(f"{where}: holds neither {_FINAL!r} nor faults.csv")
    return Study1(
        _faults(_csv(by_name["faults.csv"], "faults.csv"), "faults.csv"),
        _questions(_csv(by_name["how_to.csv"], "how_to.csv"), "how_to.csv") if "how_to.csv" in by_name else (),
        tuple(_ratings(_csv(by_name["raters.csv"], "raters.csv"), "raters.csv")) if "raters.csv" in by_name else (),
        sha256,
    )


def wanted(name: str) -> bool:
    """A file of the replication package that is read here."""
    name = name.rsplit("/", 1)[-1]
    return name in (_FINAL, "faults.csv", "how_to.csv", "raters.csv") or bool(_ROUND.fullmatch(name))


def label_files(path: Path) -> Iterator[tuple[str, bytes]]:
    try:
        if path.is_dir():
            for file in sorted(path.rglob("*")):
                if wanted(file.name) and file.is_file():
                    yield file.name, _bounded(file)
        elif wanted(path.name):
            yield path.name, _bounded(path)
        elif zipfile.is_zipfile(path):
            yield from unpacked(_bounded(path), str(path))
        else:
            raise ParamedicError(f"{path}: neither study 1's package (folder, .zip, {_FINAL!r}) nor its faults.csv")
    except OSError as error:
        raise ParamedicError(f"{path}: {error.strerror or error}") from None


def _bounded(file: Path) -> bytes:
    if file.stat().st_size > MAX_FILE:
        raise ParamedicError(f"{file}: larger than {MAX_FILE >> 20} MB: not one of study 1's files")
    return file.read_bytes()


def unpacked(archive: bytes, where: str) -> Iterator[tuple[str, bytes]]:
    """The files that are read here, out of the repository's archive; nothing is written to disk."""
    try:
        with zipfile.ZipFile(io.BytesIO(archive)) as packed:
            for entry in packed.infolist():
                if wanted(entry.filename) and entry.file_size <= MAX_FILE:
                    with packed.open(entry) as member:
                        yield entry.filename, member.read(MAX_FILE)
    except (zipfile.BadZipFile, ValueError, NotImplementedError, RuntimeError, EOFError) as error:
        raise ParamedicError(f"{where}: a broken archive: {error}") from None


# -- tables --------------------------------------------------------------------------------------------------------


def _workbook(data: bytes, name: str) -> dict[str, list[list[str]]]:
    openpyxl = needed("openpyxl")
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            if sum(entry.file_size for entry in packed.infolist()) > MAX_UNPACKED:
                raise ParamedicError(f"{name}: unpacks to more than {MAX_UNPACKED >> 20} MB")
        book = openpyxl.load_workbook(io.BytesIO(data), read_only=True, data_only=True)
        return {sheet.title: [list(map(_cell, row)) for row in sheet.iter_rows(values_only=True)] for sheet in book}
    except ParamedicError:
        raise
    except Exception as error:  # openpyxl lets through whatever its parsers raise
        raise ParamedicError(f"{name}: cannot be read as a workbook: {type(error).__name__}: {error}") from None


def _cell(value: object) -> str:
    return "" if value is None else str(value)


def _sheet(sheets: Mapping[str, list[list[str]]], name: str, where: str) -> list[Row]:
    if name not in sheets:
        raise ParamedicError(f"{where}: has no sheet {name!r}, but {', '.join(map(repr, sheets)) or 'none'}")
    rows = sheets[name]
    head = [_squeezed(cell) for cell in rows[0]] if rows else []
    return [dict(zip(head, row, strict=False)) for row in rows[1:] if any(row)]


def _csv(data: bytes, where: str) -> list[Row]:
    try:
        rows = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""), restkey="", restval="")
        return [{_squeezed(key or ""): str(cell or "") for key, cell in row.items()} for row in rows]
    except (UnicodeDecodeError, csv.Error) as error:
        raise ParamedicError(f"{where}: not a table in UTF-8: {error}") from None


def _columns(rows: Sequence[Row], names: Mapping[str, tuple[str, ...]], where: str) -> dict[str, str]:
    """Which column holds what; its name may be any of several."""
    head = list(rows[0]) if rows else []
    found = {what: next((name for name in among if name in head), "") for what, among in names.items()}
    if lacking := [names[what][0] for what, name in found.items() if not name]:
        raise ParamedicError(f"{where}: has no column {', '.join(map(repr, lacking))}; its columns are {head}")
    return found


_FAULT = {
    "origin": ("type", "source"),
    "link": ("link",),
    "distributed": ("distributed-specific", "distributed_specific"),
    "stage": ("stage",),
    "group": ("inner-category", "group"),
    "symptom": ("leaf category", "symptom"),
    "fixes": ("fix pattern", "fixes"),
}
_QUESTION = {
    "origin": ("type", "source"),
    "link": ("link",),
    "topic": ("how-to topic", "topic"),
    "sub_topic": ("sub-topic", "sub_topic"),
}
_RATING = {
    "link": ("link",),
    "issue type": ("issue type", "issue_type"),
    "topic": ("how-to topic", "how-to topic final", "how_to_topic"),
    "sub-topic": ("how-to sub-topic", "how-to sub-topic final", "how_to_sub_topic"),
    "distributed": ("distributed-specified", "distributed-specified final", "distributed_specific"),
    "stage": ("stage", "stage final"),
    "group": ("type", "type final", "group"),
    "symptom": ("leaf category", "leaf category final", "symptom"),
    "fixes": ("fix pattern", "fix pattern final", "fix_pattern"),
}


def _faults(rows: Sequence[Row], where: str) -> tuple[Fault, ...]:
    column = _columns(rows, _FAULT, where)
    found: list[Fault] = []
    for number, row in enumerate(rows, 2):
        cell = {what: row.get(name, "").strip() for what, name in column.items()}
        if not (cell["stage"] and cell["symptom"]):
            raise ParamedicError(f"{where} line {number}: a fault without stage or symptom")
        above = found[-1] if found else None
        if not cell["link"] and above is None:
            raise ParamedicError(f"{where} line {number}: the first fault has no link")
        found.append(
            Fault(
                cell["origin"] or (above.origin if above else ""),
                cell["link"] or (above.link if above else ""),
                _yes(cell["distributed"], where, number),
                label(cell["stage"]),
                label(cell["group"]),
                label(cell["symptom"]),
                fixes(cell["fixes"]),
            )
        )
    return tuple(found)


def _yes(text: str, where: str, number: int) -> bool:
    if text not in ("0", "1", "0.0", "1.0", "True", "False"):
        raise ParamedicError(f"{where} line {number}: distributed-specific is {text!r}, not 0 or 1")
    return text in ("1", "1.0", "True")


def _questions(rows: Sequence[Row], where: str) -> tuple[Question, ...]:
    column = _columns(rows, _QUESTION, where)
    return tuple(Question(*(row.get(column[what], "").strip() for what in _QUESTION)) for row in rows)


def _round(data: bytes, number: int, where: str) -> Iterator[Rating]:
    sheets = _workbook(data, where)
    for sheet, rater in _SHEETS.items():
        yield from _rated(_sheet(sheets, sheet, where), number, rater, f"{where} ({sheet})")


def _ratings(rows: Sequence[Row], where: str) -> Iterator[Rating]:
    _columns(rows, {"round": ("round",), "rater": ("rater",)} | _RATING, where)
    keys = sorted({(row["round"], row["rater"]) for row in rows})
    for number, rater in keys:
        if not number.isdecimal():
            raise ParamedicError(f"{where}: the round {number!r} is no number")
        mine = [row for row in rows if (row["round"], row["rater"]) == (number, rater)]
        yield from _rated(mine, int(number), rater, where)


def _rated(rows: Sequence[Row], number: int, rater: str, where: str) -> Iterator[Rating]:
    column = _columns(rows, _RATING, where)
    link, part = "", 0
    for row in rows:
        cell = {what: row.get(name, "").strip() for what, name in column.items()}
        if not any(cell.values()):
            continue
        link, part = (cell["link"], 0) if cell["link"] else (link, part + 1)
        yield Rating(number, rater, link, part, _straightened(cell))


def _straightened(cell: dict[str, str]) -> dict[str, str]:
    """Labels by one spelling; a row whose cells slipped one column to the left is put right."""
    if label(cell["group"]) not in _GROUPS and cell["symptom"].startswith("fix") and not cell["fixes"]:
        cell |= {"group": "", "symptom": cell["group"], "fixes": cell["symptom"]}
    return {
        "issue type": label(cell["issue type"]),
        "how-to topic": topic(cell["topic"]),
        "distributed": cell["distributed"].removesuffix(".0"),
        "stage": label(cell["stage"]),
        "symptom": label(cell["symptom"]),
        "fix": "; ".join(sorted(fixes(cell["fixes"]))),
    }


# -- spelling ------------------------------------------------------------------------------------------------------


@cache
def spelling() -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath("spelling.toml").read_text("utf-8"))


def _squeezed(text: str) -> str:
    return " ".join(text.lower().split())


def label(text: str) -> str:
    text = _squeezed(text)
    return str(spelling()["label"].get(text, text))


def topic(text: str) -> str:
    text = _squeezed(text)
    return str(spelling()["topic"].get(text, text))


def category(symptom: str) -> str:
    """The paper's thirty: a symptom by its name, whatever the stage."""
    return str(spelling()["category"].get(symptom, symptom))


def fixes(text: str) -> tuple[str, ...]:
    """A cell may name several; each is given once, in the order they stand there."""
    text, known = _squeezed(text), spelling()["fix"]
    parts = [text] if text in known else [part.strip() for part in re.split(r" & | / |;", text)]
    return tuple(dict.fromkeys(fix for part in parts if part for fix in known.get(part, [part])))


def faults_csv(faults: Iterable[Fault]) -> bytes:
    out = io.StringIO(newline="")
    write: Callable[[Iterable[object]], object] = csv.writer(out).writerow
    write(("source", "link", "distributed_specific", "stage", "group", "symptom", "fixes"))
    for one in faults:
        write((one.origin, one.link, int(one.distributed), one.stage, one.group, one.symptom, "; ".join(one.fixes)))
    return out.getvalue().encode()
