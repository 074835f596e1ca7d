"""Emergency care for distributed deep-learning training.

>>> from paramedic import diagnose
>>> report = diagnose("logs/")
>>> report.verdict.symptom, report.verdict.ranks
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.report import ShownReport

__version__ = "0.1.0"
__all__ = ["ParamedicError", "__version__", "diagnose"]


def diagnose(
    *paths: str | os.PathLike[str],
    rules: Iterable[str | os.PathLike[str]] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    setting: Literal["lab", "cluster"] = "lab",
) -> ShownReport:
    """Reads logs, folders and archives and returns the Report; it shows itself in Jupyter and with rich.

    Raises ParamedicError when a path does not exist or cannot be read.
    """
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"diagnose takes paths, not a {type(path).__name__}; unpack it: diagnose(*paths)")
    from pathlib import Path

    from paramedic.pipeline import Options
    from paramedic.pipeline import diagnose as run_pipeline

    options = Options(tuple(Path(rule) for rule in rules), tuple(select), tuple(ignore), setting)
    return run_pipeline([os.fspath(path) for path in paths], options)
