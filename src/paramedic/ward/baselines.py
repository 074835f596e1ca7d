"""What people do without Paramedic, as programs: they read the same recording and say which rank failed, and of what.

None of them says a cause or a fix. All four name symptoms by one table of plain keywords, so that they differ only in
where they look.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from paramedic.ward.corpus import Recording, rank_of_file, rank_of_line

_TROUBLE = re.compile(r"error|exception|fail|fatal|killed|timed out|timeout|abort|out of memory|\bnan\b", re.IGNORECASE)
_TABLE_ROW = re.compile(r"rank\s+: (\d+) .*\n\s+exitcode\s+: (-?\d+)")
_ROOT = re.compile(
    r"Root Cause \(first observed failure\):.*?rank\s+: (\d+).*?exitcode\s+: (-?\d+)(.*?)={20}", re.DOTALL
)

_KEYWORDS = [
    ("device-out-of-memory", r"CUDA out of memory|OutOfMemoryError"),
    ("host-out-of-memory", r"MemoryError|allocate memory|oom-kill|OOMKilled|shared memory"),
    ("import-or-missing-symbol", r"ModuleNotFoundError|ImportError|undefined symbol|cannot open shared object"),
    ("build-or-install-failure", r"Error building extension|error: command|ResolutionImpossible|No matching"),
    ("accelerator-fault", r"CUDA error|device-side assert|Xid"),
    ("model-weight-loading-failure", r"Missing key|Unexpected key|size mismatch for"),
    ("data-pipeline-failure", r"DataLoader worker|StopIteration"),
    ("path-or-permission-error", r"FileNotFoundError|PermissionError|No such file|Permission denied|Read-only"),
    ("checkpoint-save-failure", r"No space left|PytorchStreamWriter"),
    ("rendezvous-setup-failure", r"EADDRINUSE|[Aa]ddress already in use|Connection refused|Rendezvous|not known"),
    ("communication-runtime-error", r"Connection (?:closed|reset)|Broken pipe|ncclRemoteError|NCCL error|UNAVAILABLE"),
    ("collective-hang", r"[Tt]imed? ?out|Timeout"),
    ("native-crash", r"Segmentation fault|SIGSEGV|SIGABRT|core dumped|terminate called"),
    ("worker-or-node-loss", r"SIGKILL|Killed|died"),
    ("tensor-shape-or-dtype-mismatch", r"shape|size of tensor|expected scalar type|dtype|dimension"),
    ("numerical-instability", r"\bnan\b|NaN|\binf\b|overflow"),
    ("unsupported-api-or-attribute", r"AttributeError|NotImplementedError|unexpected keyword argument"),
    ("invalid-run-configuration", r"ValueError|AssertionError|[Cc]onfiguration|[Ii]nvalid"),
    ("step-execution-error", r"RuntimeError|Error|Exception"),
]  # fmt: skip
_BY_CODE = {
    -9: "worker-or-node-loss", -15: "worker-or-node-loss", -11: "native-crash", -6: "native-crash", -7: "native-crash",
    -4: "native-crash", -8: "native-crash",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Answer:
    """What somebody said about a recording. A field is None where they said nothing of it."""

    symptom: str | None
    ranks: tuple[int, ...] | None = None
    causes: tuple[str, ...] | None = None
    fix: str | None = None
    confidence: float | None = None
    rule: str = ""
    seconds: float = 0.0


def plain_grep(recording: Recording) -> Answer:
    """The first line that looks like trouble."""
    for rank, line in _numbered(recording):
        if _TROUBLE.search(line):
            return Answer(_symptom(line), _ranks(rank))
    return Answer(None)


def exit_code(recording: Recording) -> Answer:
    """The first bad code in the launcher's table or closing words, else that of the whole job."""
    text = "\n".join(line for _, line in _numbered(recording))
    rows = [(int(rank), int(code)) for rank, code in _TABLE_ROW.findall(text)]
    own = [row for row in rows if row[1] != -15] or rows
    if own:
        return Answer(_by_code(own[0][1]), (own[0][0],))
    if found := re.search(r"(?:return|exit) ?code:? =? ?(-?\d+)|exitcode: (-?\d+)", text):
        return Answer(_by_code(int(found[1] or found[2])))
    said = str(recording.made.get("exit", ""))
    return Answer(_by_code(int(said))) if re.fullmatch(r"-?\d+", said) else Answer("collective-hang" if said else None)


def first_traceback(recording: Recording) -> Answer:
    """The first traceback in the order of the files, and the exception at its end."""
    inside: str | None = None
    began: int | None = None
    for rank, line in _numbered(recording):
        plain = re.sub(r"^(?:\[\w+\]: ?|\d+: |\[1,\d+\]<\w+>: ?)+", "", line)
        if inside is None and "Traceback (most recent call last)" in plain:
            inside, began = plain, rank
        elif (
            inside is not None
            and rank == began
            and re.match(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Warning)?\b[:(]?", plain)
        ):
            return Answer(_symptom(plain), _ranks(began))
    return Answer(None)


def torchrun(recording: Recording) -> Answer:
    """The rank that torchrun's table calls the root cause, and the message or code beside it."""
    found = _ROOT.search("\n".join(line for _, line in _numbered(recording)))
    if not found:
        return Answer(None)
    told = re.search(r"traceback : (?!To enable)(?!Signal)(.+)", found[3], re.DOTALL)
    return Answer(_symptom(told[1]) if told else _by_code(int(found[2])), (int(found[1]),))


BASELINES: dict[str, Callable[[Recording], Answer]] = {
    "plain grep": plain_grep,
    "exit code only": exit_code,
    "first traceback only": first_traceback,
    "torchrun's root cause": torchrun,
}


def _numbered(recording: Recording) -> Iterator[tuple[int | None, str]]:
    for file in _files(recording.input):
        of_file = rank_of_file(str(file.relative_to(recording.input)))
        for line in file.read_text("utf-8", "replace").split("\n"):
            rank = rank_of_line(line)
            yield (of_file if rank is None else rank), line


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".json")


def _ranks(rank: int | None) -> tuple[int, ...] | None:
    return None if rank is None else (rank,)


def _symptom(text: str) -> str | None:
    return next((symptom for symptom, words in _KEYWORDS if re.search(words, text)), None)


def _by_code(code: int) -> str | None:
    code = 128 - code if code > 128 else code
    return None if code == 0 else _BY_CODE.get(code, "step-execution-error")
