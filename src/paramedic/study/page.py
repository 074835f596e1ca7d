"""The report as one self-contained HTML page: no script, no request to anywhere."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from paramedic import __version__
from paramedic.errors import ParamedicError
from paramedic.study import cures
from paramedic.study.faults import Seen, together
from paramedic.study.plots import plots
from paramedic.study.store import Store


def render(faults: Sequence[Seen], beside: Sequence[Mapping[str, Any]], framework: str = "") -> str:
    if not faults:
        raise ParamedicError("no fault is known here: fetch study1 or posts, and `paramedic study label` them")
    mine = [one for one in faults if not framework or one.framework == framework]
    if not mine:
        among = ", ".join(cures.frameworks(faults, 1))
        raise ParamedicError(f"{framework}: no fault of this framework is known here; there are {among}")
    environment = Environment(
        loader=PackageLoader("paramedic.study", "assets"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    names = [framework] if framework else cures.frameworks(mine)
    return environment.get_template("report.html.j2").render(
        version=__version__,
        framework=framework,
        faults=mine,
        by=Counter(one.by for one in mine),
        plots=[(one.title, one.caption, Markup(one.svg)) for one in plots(mine)],
        pages=[(name, sum(one.framework == name for one in mine), cures.top(mine, name)) for name in names],
        overall=[] if framework else cures.top(mine),
        beside=beside,
    )


def export(faults: Sequence[Seen], store: Store, folder: Path) -> list[Path]:
    """Faults, symptom × stage × fix, and what comes together, as CSV and Parquet."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ParamedicError(f"{folder}: {error.strerror or error}") from None
    tables: dict[str, tuple[str, list[tuple[Any, ...]]]] = {
        "faults": (
            "post TEXT, by_whom TEXT, framework TEXT, stage TEXT, symptom TEXT, cause TEXT, fixes TEXT, "
            "distributed DOUBLE, created TIMESTAMP, resolved TIMESTAMP, release TEXT",
            [
                (one.post, one.by, one.framework, one.stage, one.symptom, one.cause, "; ".join(one.fixes),
                 one.distributed, one.created, one.resolved, one.release)
                for one in faults
            ],
        ),
        "symptoms": (
            "framework TEXT, stage TEXT, symptom TEXT, fix TEXT, faults INTEGER",
            [(*key, n) for key, n in sorted(_by_fix(faults).items())],
        ),
        "together": (
            "first TEXT, second TEXT, posts INTEGER",
            [(*pair, n) for pair, n in sorted(together(faults).items())],
        ),
    }  # fmt: skip
    written = []
    for name, (columns, rows) in tables.items():
        store.fill(f"out_{name}", columns, rows)
        for suffix in (".csv", ".parquet"):
            file = folder / f"{name}{suffix}"
            store.export(f"SELECT * FROM out_{name}", file)
            written.append(file)
    return written


def _by_fix(faults: Sequence[Seen]) -> Counter[tuple[str, str, str, str]]:
    return Counter((one.framework, one.stage, one.symptom, fix) for one in faults for fix in one.fixes or ("",))
