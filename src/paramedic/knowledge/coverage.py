"""Which rule speaks for which system: symptom × system, and why a cell has none of its own."""

from __future__ import annotations

from collections.abc import Iterator

from paramedic.knowledge import Knowledge

COLUMNS = {
    "PyTorch": ("pytorch", "torchrun", "gloo"),
    "NCCL": ("nccl",),
    "CUDA": ("cuda", "rocm", "triton", "gcc"),
    "DeepSpeed": ("deepspeed",),
    "Megatron": ("megatron", "megatron-lm"),
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


def checks(knowledge: Knowledge) -> str:
    """The rules of `paramedic check`, one a row."""
    rules = [rule for rule in knowledge.rules.values() if rule.before]
    lines = ["| rule | severity | what is wrong | prevents | `fix` |", "|---|---|---|---|---|"]
    for rule in rules:
        first = rule.fixes[0]
        how = first.safety if "edit" in first.action else "by hand"
        link = f"[{rule.id}](../src/paramedic/knowledge/signatures/{rule.path})"
        lines.append(f"| {link} | {rule.severity} | {rule.title.replace('|', '/')} | {rule.symptom} | {how} |")
    count = sum(rule.id.startswith("CODE") for rule in rules)
    return f"{len(rules) - count} rules for configurations, {count} for code.\n\n" + "\n".join(lines) + "\n"
