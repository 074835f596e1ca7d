"""Which frameworks, versions and world size a log speaks of."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TypeVar

from paramedic.collect.guarded import Guarded, Words
from paramedic.model import Event, Fact, Run, Source
from paramedic.regex import regex

_FRAMEWORKS = {
    "deepspeed": ("deepspeed", "DeepSpeed"),
    "megatron": ("megatron", "Megatron"),
    "colossalai": ("colossalai", "ColossalAI"),
    "horovod": ("horovod", "Horovod"),
    "lightning": ("pytorch_lightning", "/lightning/", "lightning.pytorch"),
    "accelerate": ("/accelerate/", "accelerate.launch", "accelerate.commands"),
    "transformers": ("/transformers/", "transformers."),
    "ray": ("ray.train", "/ray/", "ray.exceptions", "ray::"),
    "tensorflow": ("tensorflow", "keras", "/job:worker/"),
    "jax": ("/jax/", "jaxlib", "jax.errors"),
    "paddle": ("paddle.distributed", "/paddle/", "paddlepaddle", "PADDLE_", "paddle::", "CUDAPlace("),
    "mxnet": ("mxnet",),
    "mindspore": ("mindspore",),
    "pytorch": ("torch", "ProcessGroup", "[rank"),
    "nccl": ("NCCL", "nccl"),
    "gloo": ("gloo",),
}
MAX_WORLD_SIZE = 1_000_000
_WORLD = Guarded(
    (
        "world",
        "nranks ",
        "member: ",
        " processes",
        "num_workers = ",
        "worker group of size ",
        "tasks to connect",
    ),
    regex(
        r"\b(?:dist_)?world[_ -]?size['\"]?\W{1,4}([0-9]{1,7})\b(?! ?(?:!=|\*))|\bnranks ([0-9]{1,7})\b"
        r"|\bMEMBER: [0-9]{1,7}/([0-9]{1,7})\b|\bStarting with ([0-9]{1,7}) processes\b|^Num processes: ([0-9]{1,7})$"
        r"|\btask_id = [0-9]{1,6}, num_workers = ([0-9]{1,7})\b|\bworker group of size ([0-9]{1,7})\b"
        r"|\bWaiting for [0-9]{1,7}/([0-9]{1,7}) tasks to connect\b|\bworld ?[=:] ?([0-9]{1,7})\b(?![.%/])",
        re.I,
    ),
)
_PART = regex(r"[0-9](?: of |/)[1-9]")
_PART_OF_WORLD = regex(
    r"(?<!local )(?<!node )(?<!lora )\b(?:rank|process|worker) [0-9]{1,6}(?: of |/)([1-9][0-9]{0,6})\b(?![.%/])", re.I
)
_MESH = Guarded(
    ("device mesh with ",),
    regex(
        r"\bBuilding [0-9]{1,2}-D device mesh with \[[^\]\n]{1,200}\], \[([0-9]{1,6}(?:, [0-9]{1,6}){0,9})\]"
        r"|\bBuilding device mesh with parallelism: "
        r"(pp=[0-9]{1,6}, dp_replicate=[0-9]{1,6}, dp_shard=[0-9]{1,6}, cp=[0-9]{1,6}, tp=[0-9]{1,6})\b"
    ),
)
"""As torchtitan says it; experts share the ranks of the other dimensions."""
_NUMBER = regex(r"[0-9]{1,6}")
_CHIEF = regex(r"['\"](?:chief|master)['\"]: ?\[")
_RANK_STATED = Guarded(
    (
        "global_rank: ",
        "process index: ",
        "process rank: ",
        "task_type = ",
        "to store for rank: ",
        "process_index",
        "init (rank ",
        "tf_config",
    ),
    regex(
        r"\bGLOBAL_RANK: ([0-9]{1,6}), MEMBER:|^Process index: ([0-9]{1,6})$|\bProcess rank: ([0-9]{1,6}), device:"
        r"|\btask_type = '(?:chief|master)', task_id = ([0-9]{1,6})\b|\btask_type = 'worker', task_id = ([0-9]{1,6})\b"
        r"|\bto store for rank: ([0-9]{1,6})\b|\bprocess_index[=:] ?([0-9]{1,6})\b"
        r"|\bdistributed init \(rank ([0-9]{1,6})\)"
        r"|\bTF_CONFIG\b.{0,1900}?['\"]type['\"]: ?['\"](?:chief|master)['\"], ?['\"]index['\"]: ?([0-9]{1,6})"
        r"|\bTF_CONFIG\b.{0,1900}?['\"]type['\"]: ?['\"]worker['\"], ?['\"]index['\"]: ?([0-9]{1,6})"
    ),
)
_VERSIONED = (
    "torch", "pytorch", "deepspeed", "transformers", "accelerate", "nccl", "cuda", "tensorflow", "horovod", "lightning",
    "megatron-core", "colossalai", "pytorch-lightning", "ray", "keras", "jax", "python",
)  # fmt: skip
_VERSION = Guarded(
    _VERSIONED,
    regex(
        rf"\b(?P<name>{'|'.join(_VERSIONED)})"
        r"(?:[ _-]?version)?(?: ?[=:] ?|==| )v?"
        r"(?P<value>[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?(?:[+.\w-]{0,24}))",
        re.I,
    ),
)
_BEFORE_WHOLE = (" of ", "/")
_WORDS = Words((*_WORLD.words, *_MESH.words, *_VERSION.words, *_BEFORE_WHOLE))
_SAME = {"pytorch": "torch", "megatron-core": "megatron", "pytorch-lightning": "lightning"}


def facts_in(lines: Sequence[str], source: Source) -> Iterator[Fact]:
    """Versions and world size as a log's first lines state them, each once."""
    stated: set[tuple[str, object]] = set()
    for number, line in enumerate(lines, 1):
        for name, value in _stated(line[:500]):
            if (name, value) not in stated:
                stated.add((name, value))
                yield Fact(name, value, source.id, number, source.rank, source.host)


def _stated(line: str) -> Iterator[tuple[str, int | str]]:
    present = _WORDS.present(line.casefold())
    found = None if present.isdisjoint(_WORLD.words) else _WORLD.pattern.search(line)
    if found is None and not present.isdisjoint(_BEFORE_WHOLE) and _PART.search(line):
        found = _PART_OF_WORLD.search(line)
    size = int(next(part for part in found.groups() if part)) if found is not None else 0
    if not present.isdisjoint(_MESH.words) and (mesh := _MESH.pattern.search(line)) is not None:
        size = math.prod(map(int, _NUMBER.findall(mesh[1] or mesh[2])))
    if 0 < size <= MAX_WORLD_SIZE:
        yield "world_size", size
    for version in () if present.isdisjoint(_VERSION.words) else _VERSION.pattern.finditer(line):
        name = version["name"].lower()
        yield f"version {_SAME.get(name, name)}", version["value"].rstrip(".-")


def ranks_stated(lines: Sequence[str]) -> set[int]:
    """The ranks that the programs in a log's first lines say they are."""
    named: set[int] = set()
    for line in lines:
        if (found := _RANK_STATED.search(line[:2_000])) is not None:
            beside_chief = any(found[n] is not None for n in (5, 10)) and _CHIEF.search(line) is not None
            named.add(int(next(part for part in found.groups() if part)) + beside_chief)
    return named


_Sourced = TypeVar("_Sourced", Event, Fact)
_INSTALLED = regex(r"(?:requirements|constraints|freeze|pip[_-]?list|conda[_-]?list)[\w.-]{0,60}$", re.I)


def _run_by(sourced: Sequence[_Sourced]) -> Sequence[_Sourced]:
    """Without what stands in listings of packages: what is installed is not yet what ran."""
    listings = {name for name in {one.source for one in sourced} if _INSTALLED.search(name.rsplit("/", 1)[-1])}
    return [one for one in sourced if one.source not in listings] if listings else sourced


def frameworks_in(events: Sequence[Event], facts: Sequence[Fact]) -> tuple[str, ...]:
    """The frameworks named in what was kept, the most specific first."""
    events, facts = _run_by(events), _run_by(facts)
    named = {fact.name.removeprefix("version ").replace("torch", "pytorch") for fact in facts}
    named |= {fact.value for fact in facts if fact.name == "framework"}
    texts = [event.text for event in events]
    texts += [frame for event in events if event.fields for frame in event.fields.get("frames", ())[-12:]]
    said = "\n".join(texts)
    return tuple(n for n, needles in _FRAMEWORKS.items() if n in named or any(needle in said for needle in needles))


_PLATFORMS = {
    "slurm": regex(r"\bsrun: |\bslurmstepd\b|\bSLURM_|\bsbatch\b|\bscontrol\b"),
    "kubernetes": regex(
        r"\bkubelet\b|\bkubectl\b|\bOOMKilled\b|\bPyTorchJob\b|\bpods?/|\bBackOff\b|\bkubernetes\.io/|\bkubeflow\.org\b"
        r"|\.svc(?:\.cluster\.local)?\b|[a-z0-9]-(?:worker|master|launcher)-\d{1,4}:\d{1,7}:\d{1,7} \[\d\] NCCL"
    ),
    "mpi": regex(
        r"\b(?:mpirun|mpiexec|prterun|orterun|orted|MPI_ABORT|MPI_Init|PRTE|hydra_pmi_proxy)\b|\[\d+,\d+\]<std"
    ),
    "torchrun": regex(
        r"\btorchrun\b|torch\.distributed\.(?:run|launch)\b|torch/distributed/(?:run|launch|launcher)|torchelastic|\belastic/(?:agent|multiprocessing)"
    ),
    "horovodrun": regex(r"\bhorovodrun\b|horovod/runner"),
    "colossalrun": regex(r"\bcolossalai run\b|colossalai/cli"),
    "rocm": regex(r"\bHIP error|\bhipError|\brocm[\d./-]|\bROCm\b|\bgfx9\d\w\b|\bMI[23]\d\dX?\b"),
    "nemo": regex(r"\[NeMo [IWE] |\bnemo_logging\b|\bnemo/(?:collections|core|lightning|utils)/"),
}
"""Who starts processes, or whose settings they take, by what it says of itself."""
_PLATFORM_WORDS = {
    "slurm": ("srun: ", "slurmstepd", "SLURM_", "sbatch", "scontrol"),
    "kubernetes": ("kube", "OOMKilled", "PyTorchJob", "pod", "BackOff", ".svc", "] NCCL"),
    "mpi": ("mpirun", "mpiexec", "prterun", "orte", "MPI_", "PRTE", "hydra_pmi_proxy", "]<std"),
    "torchrun": ("torchrun", "torch.distributed.", "torch/distributed/", "torchelastic", "elastic/"),
    "horovodrun": ("horovod",),
    "colossalrun": ("colossalai",),
    "rocm": ("HIP error", "hipError", "rocm", "ROCm", "gfx9", "MI2", "MI3"),
    "nemo": ("[NeMo ", "nemo_logging", "nemo/"),
}
"""One of them stands in whatever the pattern finds; looking for them costs far less."""
_PLATFORM_FILES = {
    "slurm": regex(r"(?:^|/)slurm[-_]\d"),
    "kubernetes": regex(r"(?:^|/)(?:(?:pods?|kubectl|k8s)\b|describe[_-])"),
}


def platforms_in(run: Run) -> tuple[str, ...]:
    """The launchers and schedulers that were seen to start it."""
    texts = (text for event in run.events for text in (event.text, *map(str, event.fields.get("frames", ())[:12])))
    said = "\n".join(dict.fromkeys(text[:_AS_FAR] for text in texts))
    files = "\n".join(source.id for source in run.sources)
    return tuple(
        name
        for name, pattern in _PLATFORMS.items()
        if (any(word in said for word in _PLATFORM_WORDS[name]) and pattern.search(said))
        or (name in _PLATFORM_FILES and _PLATFORM_FILES[name].search(files))
    )


_AS_FAR = 2_000


def world_size(sources: Sequence[Source], facts: Sequence[Fact]) -> int | None:
    """What the log states; else the number of rank files, if they count 0, 1, … without a gap."""
    stated = {fact.value for fact in facts if fact.name == "world_size"}
    ranks = {source.rank for source in sources if source.rank is not None}
    if len(stated) == 1 and max(ranks, default=0) < (only := stated.pop()):
        return int(only)
    return len(ranks) if len(ranks) > 1 and ranks == set(range(len(ranks))) else None
