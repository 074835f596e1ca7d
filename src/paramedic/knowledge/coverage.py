"""Tables for the docs: which rule speaks for which system (and why a cell has none), and every rule of `check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.advisories import Advisory

COLUMNS = {
    "PyTorch": ("pytorch", "torchrun", "gloo"),
    "NCCL": ("nccl",),
    "CUDA": ("cuda", "rocm", "triton", "gcc"),
    "DeepSpeed": ("deepspeed",),
    "Megatron": ("megatron",),
    "Colossal-AI": ("colossalai",),
    "Accelerate": ("accelerate",),
    "Transformers": ("transformers", "safetensors", "datasets", "huggingface-hub"),
    "Lightning": ("lightning",),
    "TensorFlow": ("tensorflow", "keras"),
    "Horovod": ("horovod",),
    "Ray": ("ray",),
    "MPI": ("mpi",),
    "Slurm": ("slurm",),
    "Kubernetes": ("kubernetes",),
    "Python, Linux": ("python", "linux", "infiniband", "pip", "conda", "uv", "numpy"),
}
_ON_TORCH = ("DeepSpeed", "Megatron", "Colossal-AI", "Accelerate", "Transformers", "Lightning", "Horovod", "Ray")
_BELOW = ("PyTorch", "NCCL", "CUDA", "Python, Linux")
_PLATFORM = ("MPI", "Slurm", "Kubernetes")
_LIBRARIES = ("NCCL", "CUDA")
_OF_PLATFORMS = frozenset(
    [
        "invalid-run-configuration",
        "path-or-permission-error",
        "rendezvous-setup-failure",
        "collective-desync",
        "communication-runtime-error",
        "native-crash",
        "host-out-of-memory",
        "worker-or-node-loss",
        "failed-recovery",
        "unexpected-parallel-placement",
        "resource-allocation-failure",
    ]
)
"""What a scheduler or launcher can know of a job at all."""
BELOW, ELSEWHERE, CLUES = "↓", "·", "c"
LEGEND = (
    "A number: rules that know this system's own words. "
    f"`{BELOW}`: the message comes from the layer below (PyTorch, CUDA, NCCL, Python, Linux), whose rules hold, too. "
    f"`{ELSEWHERE}`: not seen by this system: a scheduler does not compute, a collective library reads no data. "
    f"`{CLUES}`: no rule yet; an error of this kind is read by the clues for unknown errors."
)


def rows(knowledge: Knowledge) -> Iterator[tuple[str, list[str]]]:
    for symptom in knowledge.taxonomy.symptoms:
        mine = [set(rule.systems) for rule in knowledge.rules.values() if rule.symptom == symptom and not rule.before]
        counts = {name: sum(bool(systems & set(names)) for systems in mine) for name, names in COLUMNS.items()}
        yield str(symptom), [str(counts[name]) if counts[name] else _why(symptom, name, counts) for name in COLUMNS]


def _why(symptom: str, column: str, counts: dict[str, int]) -> str:
    if column in _PLATFORM:
        return CLUES if symptom in _OF_PLATFORMS else ELSEWHERE
    if column in _LIBRARIES:
        return ELSEWHERE
    below = _BELOW if column in _ON_TORCH else ("Python, Linux",)
    return BELOW if any(counts[name] for name in below if name != column) else CLUES


def markdown(knowledge: Knowledge) -> str:
    lines = ["| symptom | " + " | ".join(COLUMNS) + " |", "|---|" + ":-:|" * len(COLUMNS)]
    lines += [f"| {symptom} | " + " | ".join(cells) + " |" for symptom, cells in rows(knowledge)]
    known = sum(not rule.before for rule in knowledge.rules.values())
    return f"{known} rules. {LEGEND}\n\n" + "\n".join(lines) + "\n"


# -- the rules of `check` ------------------------------------------------------------------------------------------

NODES = {
    "Packages and native libraries": ("versions",),
    "Origins and environment variables": ("environment",),
    "Machine and GPUs": ("hosts",),
    "Nodes beside each other": ("skew",),
    "Checkpoints": ("checkpoints",),
    "Network of all nodes": ("network", "routes", "agreement", "adapters", "reach", "payload"),
}
"""Rooms of `detect` that judge what nodes tell of themselves."""


def checks(knowledge: Knowledge) -> str:
    """Those that judge a project's files, one a row."""
    rules = [rule for rule in knowledge.rules.values() if rule.before]
    count = sum(rule.id.startswith("CODE") for rule in rules)
    rows = [(*_cells(rule), _by_fix(rule)) for rule in rules]
    head = ("rule", "severity", "what is wrong", "prevents", "`fix`")
    return f"{len(rules) - count} rules for configurations, {count} for code.\n\n" + _table(head, rows) + "\n"


def node_checks(knowledge: Knowledge) -> str:
    """Those that judge nodes and checkpoints, by subject."""
    parts = []
    for subject, rooms in NODES.items():
        mine = [rule for rule in knowledge.rules.values() if rule.detector.partition(".")[0] in rooms]
        head = ("rule", "severity", "what is wrong", "prevents")
        parts.append(f"## {subject}\n\n{_table(head, map(_cells, mine))}")
    return "\n\n".join(parts) + "\n"


def advisories(known: Sequence[Advisory]) -> str:
    """Known bugs of releases."""
    head = ("advisory", "package", "affected", "together with", "fixed in", "what happens")
    rows = [
        (
            _link(one.rule, "advisories"),
            one.package,
            f"`{one.affected}`" if str(one.affected) else "all",
            ", ".join(f"`{name}{versions}`" for name, versions in one.with_.items()),
            one.fixed or "none yet",
            one.rule.title,
        )
        for one in known
    ]
    return f"{len(rows)} known bugs of releases.\n\n{_table(head, rows)}\n"


def _cells(rule: Rule) -> tuple[str, ...]:
    return _link(rule, "signatures"), rule.severity, rule.title, rule.symptom


def _link(rule: Rule, folder: str) -> str:
    return f"[{rule.id}](../src/paramedic/knowledge/{folder}/{rule.path})"


def _by_fix(rule: Rule) -> str:
    return rule.fixes[0].safety if "edit" in rule.fixes[0].action else "by hand"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    shown = [" | ".join(cell.replace("|", "/") for cell in row) for row in rows]
    return "\n".join([f"| {' | '.join(head)} |", "|---" * len(head) + "|", *(f"| {row} |" for row in shown)])
