"""Emergency care for distributed deep-learning training.

>>> from paramedic import diagnose
>>> report = diagnose("logs/")
>>> report.verdict.symptom, report.verdict.ranks
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

from paramedic.errors import ParamedicError

if TYPE_CHECKING:
    from paramedic.report import ShownReport
    from paramedic.submit.job import Job, JobCancelled, RankFailed, job

__version__ = "0.1.0"
__all__ = ["Job", "JobCancelled", "ParamedicError", "RankFailed", "__version__", "diagnose", "job"]


def diagnose(
    *paths: str | os.PathLike[str],
    rules: Iterable[str | os.PathLike[str]] = (),
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    setting: Literal["lab", "cluster"] = "lab",
    command: Iterable[str] = (),
) -> ShownReport:
    """Reads logs, folders and archives and returns the Report; it shows itself in Jupyter and with rich.

    `command` is what started the job, as words: it is read, never started.

    Raises ParamedicError when a path does not exist or cannot be read.
    """
    for path in paths:
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"diagnose takes paths, not a {type(path).__name__}; unpack it: diagnose(*paths)")
    from pathlib import Path

    from paramedic.pipeline import Options
    from paramedic.pipeline import diagnose as run_pipeline

    options = Options(tuple(Path(rule) for rule in rules), tuple(select), tuple(ignore), setting)
    return run_pipeline([os.fspath(path) for path in paths], options, command=tuple(command))


def __getattr__(name: str) -> Any:
    """What submits jobs is imported when it is first asked for."""
    if name in ("Job", "JobCancelled", "RankFailed", "job"):
        from paramedic.submit import job as module

        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
