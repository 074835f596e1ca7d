"""A case: one real failure, the truth about it, how it is made, what proves it, and the change that cures it."""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from paramedic.errors import ParamedicError
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.ward.measures import Bound
from paramedic.ward.systems import SYSTEMS

CASES = Path(__file__).parent / "cases"
PROGRAMS = Path(__file__).parent / "programs"


@dataclass(frozen=True, slots=True)
class Truth:
    symptom: str
    cause: str
    ranks: tuple[int, ...]
    """Global ranks that failed first; none where all failed alike."""
    fix: str
    also: tuple[str, ...] = ()
    """Symptoms that the record alone does not exclude."""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Edit:
    file: str
    old: str
    new: str


@dataclass(frozen=True, slots=True)
class Launch:
    """How the job is started, and in what surroundings."""

    launcher: str
    program: str
    files: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    before: tuple[str, ...] = ()
    limit: float = 60
    disk: dict[str, str] = field(default_factory=dict)
    shm: str = ""
    memory: str = ""
    hold_port: bool = False
    environment: str = ""
    ranks: int = 1
    edits: tuple[Edit, ...] = ()


@dataclass(frozen=True, slots=True)
class Expect:
    """What proves that the job went as labelled, whatever a diagnosis says."""

    exit: str = "success"
    says: tuple[str, ...] = ()
    measures: dict[str, Bound] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Variants:
    """Ways in which the case can be recorded beside the canonical one."""

    layouts: tuple[str, ...] | None = None
    """None: all that the launcher offers."""
    ranks: tuple[int, ...] = ()
    """Other world sizes that leave the truth as it is."""
    first: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The ranks that fail first, where they differ in a layout."""


@dataclass(frozen=True, slots=True)
class Case:
    id: str
    folder: Path
    title: str
    system: str
    truth: Truth
    change: str
    """The cure in a sentence."""
    ranks: int
    needs: tuple[str, ...] = ()
    synthetic: bool = False
    source: str = ""
    """Of a synthetic case: where its form is documented."""
    in_sight: bool = False
    """Rules were written with it in sight before there was a split: it can never be held back."""
    launch: Launch | None = None
    expect: Expect = Expect()
    cured: Launch | None = None
    cured_expect: Expect = Expect()
    variants: Variants = Variants()

    def job(self, fixed: bool) -> Launch:
        """How it is started, with the cure or without; a synthetic case has none."""
        launch = self.cured if fixed else self.launch
        assert launch is not None, f"{self.id} is synthetic"
        return launch

    @property
    def stage(self) -> str:
        return load_taxonomy().symptom(self.truth.symptom).stage

    @property
    def held_back(self) -> bool:
        """A quarter of the cases, chosen by a hash of their names alone."""
        return not self.in_sight and hashlib.sha256(self.id.encode()).digest()[0] % 4 == 0


def load_all(folder: Path = CASES) -> list[Case]:
    return [load(file.parent) for file in sorted(folder.glob("*/case.toml"))]


def load(folder: Path) -> Case:
    file = folder / "case.toml"
    try:
        table = tomllib.loads(file.read_text("utf-8"))
        return _case(folder, table)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ParamedicError) as error:
        raise ParamedicError(f"{file}: {error}") from None


def _case(folder: Path, table: dict[str, Any]) -> Case:
    _only(
        table,
        {
            "title",
            "system",
            "environment",
            "ranks",
            "needs",
            "synthetic",
            "source",
            "in_sight",
            "truth",
            "run",
            "expect",
            "cure",
            "variants",
        },
    )
    truth = _truth(_table(table, "truth"))
    cure = _table(table, "cure")
    case = Case(
        id=folder.name,
        folder=folder,
        title=_text(table, "title"),
        system=_one_of("system", _text(table, "system"), SYSTEMS),
        truth=truth,
        change=_text(cure, "change"),
        ranks=_typed(table, "ranks", int, 1),
        needs=_texts(table, "needs"),
        synthetic=_typed(table, "synthetic", bool, False),
        source=_typed(table, "source", str, ""),
        in_sight=_typed(table, "in_sight", bool, False),
    )
    if case.synthetic:
        if "run" in table or not case.source or not any((folder / "input").iterdir()):
            raise ParamedicError("a synthetic case has no [run]; it has a `source` and files in input/")
        return case
    run = _table(table, "run") | {"environment": _text(table, "environment"), "ranks": case.ranks}
    changed = {key: value for key, value in cure.items() if key not in ("change", "edit", "expect")}
    cured = run | changed | {"env": run.get("env", {}) | changed.get("env", {})}
    return replace(
        case,
        launch=_launch(run),
        expect=_expect(_table(table, "expect")),
        cured=replace(_launch(cured), edits=tuple(_edit(edit) for edit in cure.get("edit", ()))),
        cured_expect=_expect(cure.get("expect", {})),
        variants=_variants(table.get("variants", {})),
    )


def _truth(table: dict[str, Any]) -> Truth:
    taxonomy = load_taxonomy()
    _only(table, {f.name for f in fields(Truth)})
    also = _texts(table, "also")
    for symptom in also:
        _one_of("truth.also", symptom, taxonomy.symptoms)
    return Truth(
        symptom=_one_of("truth.symptom", _text(table, "symptom"), taxonomy.symptoms),
        cause=_one_of("truth.cause", _text(table, "cause"), taxonomy.causes),
        ranks=tuple(_typed(table, "ranks", list, [])),
        fix=_one_of("truth.fix", _text(table, "fix"), taxonomy.fix_patterns),
        also=also,
        note=_typed(table, "note", str, ""),
    )


LAUNCHERS = ("torchrun", "plain", "python", "deepspeed", "accelerate", "colossalai", "mpirun", "script")


def _launch(table: dict[str, Any]) -> Launch:
    _only(table, {f.name for f in fields(Launch)} - {"edits"})
    launcher = _one_of("run.launcher", _text(table, "launcher"), LAUNCHERS)
    return Launch(
        launcher=launcher,
        program=_typed(table, "program", str, "launch.sh" if launcher == "script" else "train.py"),
        files=_texts(table, "files"),
        args=_texts(table, "args"),
        options=_texts(table, "options"),
        env={key: str(value) for key, value in _typed(table, "env", dict, {}).items()},
        before=_texts(table, "before"),
        limit=float(_typed(table, "limit", (int, float), 60)),
        disk={key: str(value) for key, value in _typed(table, "disk", dict, {}).items()},
        shm=_typed(table, "shm", str, ""),
        memory=_typed(table, "memory", str, ""),
        hold_port=_typed(table, "hold_port", bool, False),
        environment=_text(table, "environment"),
        ranks=_typed(table, "ranks", int, 1),
    )


def _expect(table: dict[str, Any]) -> Expect:
    _only(table, {f.name for f in fields(Expect)})
    measures = {name: Bound.parse(str(bound)) for name, bound in _typed(table, "measures", dict, {}).items()}
    exit = _one_of("expect.exit", _typed(table, "exit", str, "success"), ("failure", "success", "hang"))
    return Expect(exit, _texts(table, "says"), measures)


def _variants(table: dict[str, Any]) -> Variants:
    _only(table, {f.name for f in fields(Variants)})
    first = {layout: tuple(ranks) for layout, ranks in _typed(table, "first", dict, {}).items()}
    layouts = _texts(table, "layouts") if "layouts" in table else None
    return Variants(layouts, tuple(_typed(table, "ranks", list, [])), first)


def _edit(table: dict[str, Any]) -> Edit:
    _only(table, {"file", "old", "new"})
    return Edit(_text(table, "file"), _text(table, "old"), _typed(table, "new", str, ""))


def _only(table: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(set(table) - known):
        raise ParamedicError(f"unknown key {unknown[0]!r}; known: {', '.join(sorted(known))}")


def _table(table: dict[str, Any], key: str) -> dict[str, Any]:
    if not isinstance(table.get(key), dict):
        raise ParamedicError(f"no table [{key}]")
    return dict(table[key])


def _typed(table: dict[str, Any], key: str, kind: Any, default: Any) -> Any:
    value = table.get(key, default)
    if not isinstance(value, kind):
        wanted = " or ".join(one.__name__ for one in (kind if isinstance(kind, tuple) else (kind,)))
        raise ParamedicError(f"{key} must be {wanted}, not {value!r}")
    return value


def _text(table: dict[str, Any], key: str) -> str:
    value = table.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ParamedicError(f"{key} is missing, or is no text")
    return value


def _texts(table: dict[str, Any], key: str) -> tuple[str, ...]:
    values = _typed(table, key, list, [])
    return tuple(_typed({key: value}, key, str, "") for value in values)


def _one_of(what: str, value: str, known: Any) -> str:
    if value not in known:
        raise ParamedicError(f"{what}: {value!r} is none of {', '.join(known)}")
    return value
