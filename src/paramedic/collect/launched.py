"""How a run was started, as lines say it: its variables, its command, its revision, its nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import islice

from paramedic.collect.rosters import all_of
from paramedic.collect.settings import MOST_HOSTS, Settings
from paramedic.redact import redact

_OVERRIDE = re.compile(r"\+{0,2}([A-Za-z_][\w.@/]{0,80})=(\S{1,200})")
"""`data.root=/scratch`, as Hydra takes it."""
_NODES = re.compile(r"\b(?:SLURM_(?:JOB_|STEP_)?NODELIST|NodeList)=([\w.,\[\]-]{2,2000})")
_REVISION = re.compile(
    r"(?i:\b(?:commit|revision|git[ _-]?(?:sha|hash|rev))(?: id| hash| sha)?\b[ \t]{0,2}[:=]?[ \t]{0,2}"
    r"|\bhead is now at )"
    r"([0-9a-f]{7,40})\b|^([0-9a-f]{7,40}) \(HEAD\b"
)
_ASSIGNED = re.compile(
    r"^(?:\+ |\d{1,4} )?(?:setenv (?=\w{3,61} )|(?:export )?(?=\w{3,61}=))([A-Z][A-Z0-9_]{2,60})[= ](.{0,400})$"
)
_SEVERAL = re.compile(r"(?:^|\s)([A-Z][A-Z0-9_]{2,60})=(\S{1,200})(?=\s+[A-Za-z_]\w{1,60}=\S|$)")
"""`MASTER_ADDR=a1 MASTER_PORT=29500`."""
_OUR_VARIABLES = re.compile(
    r"^(?:NCCL|TORCH|PYTORCH|CUDA|GLOO|UCX|FI|OMPI|OMP|MKL|HF|TRANSFORMERS|ACCELERATE|DEEPSPEED|DS|MASTER|WORLD|HOROVOD|TF|XLA|"
    r"RAY|MV2|I_MPI|PMIX|LD|PYTHON|PATH|NVIDIA|ROCR|HIP|SLURM|NVTE|MEGATRON|TOKENIZERS|TRITON|BNB|FSDP|WANDB|NODE|NUM|N?NODES|"
    r"GPUS|CPUS|BATCH|LR|SEED|MODEL|DATA|CONDA|VIRTUAL)(?:_|$)"
)
_OF_ONE_RUN = re.compile(
    r"^(?:RANK|LOCAL_RANK|GROUP_RANK|ROLE_RANK|NODE_RANK|PWD|OLDPWD|HOME|USER|TERM|SHLVL|_|PS1|HOSTNAME|TMPDIR|"
    r"(?:TORCHELASTIC_RUN|SLURM_(?:JOB|JOBID|STEP|PROC|LOCAL|NODE|TASK|GTIDS|TOPOLOGY|LAUNCH|SUBMIT|SRUN|UMASK|CONF))\w*|"
    r"OMPI_\w*|PMIX?_\w*|SSH_\w*|XDG_\w*|TMUX\w*|STY|WINDOW\w*|DISPLAY|COLUMNS|LINES|LESS\w*|EDITOR|MAIL|DBUS_\w*|LS_COLORS|BASH_\w*|\w*PID|\w*TIMESTAMP|\w*_PORT_RANGE)$"
)
_NCCL_ENV = re.compile(r"NCCL INFO ([A-Z][A-Z0-9_]{3,60}) set by environment to (\S{1,200}?)\.?$")
_LAUNCHERS = (
    r"(?:torchrun|accelerate launch|deepspeed|horovodrun|mpirun|mpiexec|srun|colossalai run|ray job submit|"
    r"(?:\S{0,200}python[\d.]{0,8}) (?:-u )?-m (?:torch\.distributed\.(?:run|launch)|deepspeed\.launcher\.launch|"
    r"accelerate\.commands\.launch)|(?:\S{0,200}python[\d.]{0,8})(?: -u)?(?= \S{1,200}\.py\b))"
)
_LAUNCH = re.compile(rf"(?:^|\bcmd = |[Cc]ommand(?: line)?: |[$+] |&& |: )(\S{{0,200}}?{_LAUNCHERS} .{{1,2000}})$")


def environment(found: Settings, line: str, source: str, number: int, part: str = "log") -> bool:
    if (nccl := _NCCL_ENV.search(line)) is not None:
        found.add("environment", nccl[1], nccl[2], source, number, part="nccl")
        return True
    said = _ASSIGNED.match(line.strip())
    if said is None:
        return False
    several = _SEVERAL.findall(line) if "=" in said[2] else []
    every = part == "listing" or line.startswith(("export ", "+ export "))
    for name, value in several if len(several) > 1 else [(said[1], said[2])]:
        if (every or _OUR_VARIABLES.match(name)) and not _OF_ONE_RUN.match(name):
            found.add("environment", name, value.strip().strip("'\""), source, number, part=part)
    return True


def launch(found: Settings, line: str, source: str, number: int) -> bool:
    said = _LAUNCH.search(line)
    if said is None or line.lstrip().startswith("#"):
        return False
    words = redact(said[1]).split()[:400]  # before anything is taken apart: the half of an address hides nothing
    program = next((i for i, word in enumerate(words) if re.search(r"\.(?:py|sh)$", word)), len(words))
    found.add(
        "launch",
        "launcher",
        " ".join(w.rsplit("/", 1)[-1] for w in words[:program] if not w.startswith("-"))[:80],
        source,
        number,
    )
    if program < len(words):
        found.add("launch", "program", words[program], source, number)
    for key, value in _flags(words[:program]):
        found.add("launch", key, value, source, number)
    for key, value in _flags(words[program + 1 :]):
        found.add("argument", key.lstrip("-").replace("-", "_"), value, source, number)
    for word in words[:program]:
        environment(found, word, source, number)
    return True


def _flags(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if (override := _OVERRIDE.fullmatch(word)) is not None:
            yield override[1], override[2]
        if not word.startswith("-") or word == "-":
            continue
        key, equals, value = word.partition("=")
        if not equals and at < len(words) and not re.match(r"-[A-Za-z-]", words[at]):
            value, at = words[at], at + 1
        yield key.replace("_", "-"), value or "given"


def revision(found: Settings, text: str, source: str, number: int) -> bool:
    """Of a list of them the first one counts, which is the newest."""
    said = _REVISION.search(text[:300])
    digits = "" if said is None else said[1] or said[2]
    if digits and not digits.isdigit():
        known = found.stated.get(("code", "revision"))
        if known is None or known.source != source:
            found.add("code", "revision", digits[:12], source, number)
    return False


def nodes(found: Settings, line: str, source: str, number: int) -> None:
    if (listed := _NODES.search(line)) is not None:
        for host in islice(all_of(listed[1]), MOST_HOSTS):
            found.add("hosts", "hosts", host, source, number)
