"""Lines that show training going on. Bars are left out: a dying process draws its last one, too."""

from __future__ import annotations

import re

_STEP = re.compile(
    r"(?:\b|_)(?:step|iter|iteration|epoch|batch)s?\b[^\w\n]{0,6}\d|(?:\b|_)loss\b[^\w\n]{0,6}(?:-?\d|nan\b|inf\b)|\[\d+/\d+\]",
    re.I,
)
_FINISHED = re.compile(r"\b(?:finished|completed|training (?:is )?(?:complete|done))\b(?!:)", re.I)
_NOT = re.compile(
    r"error|fail|exception|abort|killed|traceback|timed? ?out|fatal|\d%\||\d\s?(?:it/s|s/it)\b|\bwandb:", re.I
)


def shows_progress(text: str) -> bool:
    return (_STEP.search(text) is not None or finished(text)) and _NOT.search(text) is None


def finished(text: str) -> bool:
    return _FINISHED.search(text) is not None
