"""Which frameworks, versions and world size a log speaks of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from paramedic.model import Event, Fact, Source

_FRAMEWORKS = {
    "deepspeed": ("deepspeed", "DeepSpeed"),
    "megatron": ("megatron", "Megatron"),
    "colossalai": ("colossalai", "ColossalAI"),
    "horovod": ("horovod", "Horovod"),
    "lightning": ("pytorch_lightning", "/lightning/"),
    "accelerate": ("/accelerate/", "accelerate.launch"),
    "transformers": ("/transformers/", "transformers."),
    "ray": ("ray.train", "/ray/", "(RayTrainWorker"),
    "tensorflow": ("tensorflow", "keras"),
    "pytorch": ("torch", "ProcessGroup", "[rank"),
    "nccl": ("NCCL", "nccl"),
    "gloo": ("gloo",),
}
MAX_WORLD_SIZE = 1_000_000
_WORLD = re.compile(r"\bworld[_ -]?size['\"]?\W{1,4}([0-9]{1,7})\b(?! ?(?:!=|\*))|\bnranks ([0-9]{1,7})\b", re.I)
_VERSION = re.compile(
    r"\b(?P<name>torch|pytorch|deepspeed|transformers|accelerate|nccl|cuda|tensorflow|horovod|lightning|megatron-core|python)"
    r"(?:[ _-]?version)?(?: ?[=:] ?|==| )v?(?P<value>[0-9]{1,4}\.[0-9]{1,4}(?:\.[0-9]{1,4})?(?:[+.\w-]{0,24}))",
    re.I,
)
_SAME = {"pytorch": "torch", "megatron-core": "megatron"}


def facts_in(lines: Sequence[str], source: Source) -> Iterator[Fact]:
    """Versions and world size as a log's first lines state them, each once."""
    stated: set[tuple[str, object]] = set()
    for number, line in enumerate(lines, 1):
        for name, value in _stated(line[:500]):
            if (name, value) not in stated:
                stated.add((name, value))
                yield Fact(name, value, source.id, number, source.rank, source.host)


def _stated(line: str) -> Iterator[tuple[str, int | str]]:
    if (found := _WORLD.search(line)) is not None and 0 < int(found[1] or found[2]) <= MAX_WORLD_SIZE:
        yield "world_size", int(found[1] or found[2])
    for version in _VERSION.finditer(line):
        name = version["name"].lower()
        yield f"version {_SAME.get(name, name)}", version["value"].rstrip(".-")


def frameworks_in(events: Iterable[Event], facts: Sequence[Fact]) -> tuple[str, ...]:
    """The frameworks named in what was kept, the most specific first."""
    named = {fact.name.removeprefix("version ").replace("torch", "pytorch") for fact in facts}
    named |= {fact.value for fact in facts if fact.name == "framework"}
    said = "\n".join(text for event in events for text in (event.text, *event.fields.get("frames", ())[-12:]))
    return tuple(n for n, needles in _FRAMEWORKS.items() if n in named or any(needle in said for needle in needles))


def world_size(sources: Sequence[Source], facts: Sequence[Fact]) -> int | None:
    """What the log states; else the number of rank files, if they count 0, 1, … without a gap."""
    stated = {fact.value for fact in facts if fact.name == "world_size"}
    ranks = {source.rank for source in sources if source.rank is not None}
    if len(stated) == 1 and max(ranks, default=0) < (only := stated.pop()):
        return int(only)
    return len(ranks) if len(ranks) > 1 and ranks == set(range(len(ranks))) else None
