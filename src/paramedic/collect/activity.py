"""Lines that show training going on. Bars are told apart: a dying process draws its last one, too."""

from __future__ import annotations

import re

from paramedic.collect.guarded import Guarded

_STEP = Guarded(
    ("step", "iter", "epoch", "batch", "loss", "/"),
    re.compile(
        r"(?:\b|_)(?:step|iter|iteration|epoch|batch)s?\b[^\w\n]{0,12}\d|(?:\b|_)loss\b[^\w\n]{0,6}(?:-?\d|nan\b|inf\b)"
        r"|(?<!\d\] )\[\d+/\d+\]",  # not the number that torch's compiler gives to a frame
        re.I,
    ),
)
_FINISHED = Guarded(
    ("finished", "complete", "training ", "stopped"),
    re.compile(
        r"\b(?:finished|completed|training (?:is )?(?:complete|done))\b(?!:)|^`Trainer\.fit` stopped: \S{1,60} reached",
        re.I,
    ),
)
_ENDED = Guarded(
    ("training ", "train_runtime", "stopped", "job completed"),
    re.compile(
        r"\btraining (?:is |has |was )?(?:completed?|done|finished)\b(?! (?:epoch|step|iter))|'train_runtime': \d"
        r"|^`Trainer\.fit` stopped: \S{1,60} reached|\bjob completed successfully\b",
        re.I,
    ),
)
_NOT = Guarded(
    (
        "error", "fail", "exception", "abort", "killed", "traceback", "time", "fatal", "%|", "it [", "wandb:",
        "exit code",
    ),
    re.compile(
        r"error|fail|exception|abort|killed|traceback|timed? ?out|fatal|\d%\||\dit \[\d|\bwandb:|exit code (?!0\b)",
        re.I,
    ),
)  # fmt: skip
_COMPLAINT = Guarded(
    (
        "error", "fatal", "fail", "cannot", "can't", "could not", "unable", "refused", "denied", "invalid", "no such",
        "time", "not found", "not available", "not enough", "abort", "killed", "cancel", "rejected", "exceed",
        "insufficient", "evicted", "preempted", "unreachable", "mismatch",
    ),
    re.compile(
        r"\b(?:error|fatal|failed|failure|cannot|can't|could not|unable|refused|denied|invalid|no such|timed? ?out"
        r"|timeout|not (?:found|available|enough)|abort(?:ed|ing)?|killed|cancel+ed|rejected|exceeds?|insufficient"
        r"|evicted|preempted|unreachable|mismatch)\b",
        re.I,
    ),
)  # fmt: skip
_MILD = re.compile(
    r"\b(?:warn(?:ing)?|info|debug|deprecat\w*|note|notice|retry(?:ing)?|falling back)\b|^[WI]\d{4} "
    r"|cuInit|Unable to register cu|computation_placer",  # TensorFlow on a machine without a GPU
    re.I,
)
_EXCEPTION = re.compile(
    r"^(?:[a-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?:Error|Exception)(?:\([\w., ]{1,100}\))?: \S|^Exception: \S"
)


_BAR = re.compile(r"^.{0,200}\d%\|.{0,200}\| {0,9}\d{1,12}/\d{1,12} \[\d")


def bar(text: str) -> str:
    """What a tqdm bar counts and how far it is: the same text when it is merely drawn again."""
    found = _BAR.match(text) if "%|" in text else None
    return found.group() if found else ""


def complains(text: str) -> bool:
    """A line that speaks of something that did not work, and not as a mere warning."""
    if _EXCEPTION.match(text):
        return True
    return _COMPLAINT.search(text) is not None and _MILD.search(text[:200]) is None


def shows_progress(text: str) -> bool:
    return (_STEP.search(text) is not None or finished(text)) and _NOT.search(text) is None


def ended(text: str) -> bool:
    """Not an epoch or a step, but all of it is done."""
    return _ENDED.search(text) is not None and _NOT.search(text) is None


def finished(text: str) -> bool:
    return _FINISHED.search(text) is not None
