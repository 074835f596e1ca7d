"""The smallest change that resolves version conflicts: cheapest alternatives first, each proven by pip's resolver."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, product

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from paramedic.collect.resolver import Answer, dry_run
from paramedic.detect.advisories import applies
from paramedic.detect.nodes import Node
from paramedic.detect.versions import requirements, unmet_of
from paramedic.knowledge.advisories import Advisory
from paramedic.model import Fix

TRIES = 8
_NATIVE = ("torch", "triton", "nvidia-", "cuda-", "tensorflow", "jax", "jaxlib")
_FRAMEWORKS = (
    "accelerate", "colossalai", "datasets", "deepspeed", "flash-attn", "horovod", "lightning", "megatron-core", "numpy",
    "peft", "pytorch-lightning", "ray", "torchaudio", "torchvision", "transformer-engine", "transformers", "trl",
    "xformers",
)  # fmt: skip
_OPPOSITE = {">=": "<", "<": ">=", ">": "<=", "<=": ">"}


@dataclass(frozen=True, slots=True)
class Conflict:
    """`ways` are the single changes that would end it."""

    text: str
    packages: frozenset[str]
    ways: tuple[Requirement, ...]
    rule: str


@dataclass(frozen=True, slots=True)
class Repair:
    """`changes` is name → (version now, version then); empty where nothing that was tried is accepted."""

    conflicts: tuple[Conflict, ...]
    changes: Mapping[str, tuple[str, str]]
    refused: tuple[str, ...] = ()
    """What was tried before it and why the resolver said no."""


Ask = Callable[[Sequence[str], Iterable[str]], Answer]


def conflicts(node: Node, advisories: Iterable[Advisory]) -> list[Conflict]:
    """What is declared and not met, and what is known to break on import."""
    found = list(_declared(node))
    found += [made for one in advisories if one.rule.severity == "error" if (made := _known(one, node))]
    return found


def _declared(node: Node) -> Iterator[Conflict]:
    for name, needed, there, _ in unmet_of(node):
        wanted = canonicalize_name(needed.name)
        way = Requirement(f"{wanted}{needed.specifier}")
        other = Requirement(f"{name}!={node.packages()[name].public}")  # changed for another reason, it may ask no more
        asked = f"{name} {node.get(f'package {name}')} requires {needed.name}{needed.specifier}"
        text = f"{asked}, and {there or 'none'} is there"
        yield Conflict(text, frozenset({name, wanted}), (way, other), "VER021" if wanted == "torch" else "VER020")


def _known(one: Advisory, node: Node) -> Conflict | None:
    if applies(one, node) is None or one.package in ("nccl", "python"):
        return None
    ways = [Requirement(f"{one.package}>={one.fixed}")] if one.fixed else []
    ways += [Requirement(f"{name}{opposite}") for name, spec in one.with_.items() if (opposite := _opposite(spec))]
    with_ = " with ".join(
        f"{name} {node.get(f'package {name}')}" for name in (one.package, *one.with_) if name != "python"
    )
    return Conflict(f"{with_}: {one.rule.title}", frozenset({one.package, *one.with_}), tuple(ways), one.rule.id)


def _opposite(spec: SpecifierSet) -> str:
    parts = list(spec)
    return (
        f"{_OPPOSITE[parts[0].operator]}{parts[0].version}"
        if len(parts) == 1 and parts[0].operator in _OPPOSITE
        else ""
    )


def weight(name: str) -> float:
    """What it costs to change a package: native > framework > leaf."""
    if name == "python":
        return 1000.0
    if name.startswith(_NATIVE) and name not in _FRAMEWORKS:
        return 100.0
    return 10.0 if name in _FRAMEWORKS else 1.0


def cost(way: Sequence[Requirement]) -> float:
    """A package that is changed for two reasons is changed once; going back costs more than going on."""
    by_name: dict[str, float] = {}
    for one in way:
        back = any(part.operator in ("<", "<=") for part in one.specifier) and ">" not in str(one.specifier)
        by_name[one.name] = max(by_name.get(one.name, 0.0), weight(one.name) * (1.5 if back else 1.0))
    return sum(by_name.values())


def smallest(node: Node, found: Sequence[Conflict], ask: Ask | None = None) -> Repair:
    """The cheapest combination of single changes that the resolver accepts with all else left as it is."""
    python = str(node.get("python executable"))
    ask = ask or (lambda wanted, pins: dry_run(python, wanted, pins))
    there = node.packages()
    refused: list[str] = []
    ways = sorted(islice(product(*(one.ways for one in found if one.ways)), 4096), key=cost)
    for way in islice(_different(ways), TRIES):
        for loose in (False, True):
            answer = _asked(node, way, loose, ask)
            changes = {
                name: (str(there[name]) if name in there else "", version)
                for name, version in answer.install.items()
                if name not in there or Version(version).public != there[name].public
            }
            if changes:
                return Repair(tuple(found), changes, tuple(refused))
        refused.append(f"{' and '.join(map(str, way))}: {answer.why or 'would change nothing'}")
    return Repair(tuple(found), {}, tuple(refused))


def _different(ways: Iterable[Sequence[Requirement]]) -> Iterator[tuple[Requirement, ...]]:
    seen: set[frozenset[str]] = set()
    for way in ways:
        key = frozenset(map(str, way))
        if key not in seen:
            seen.add(key)
            yield tuple({str(one): one for one in way}.values())


def _asked(node: Node, way: Sequence[Requirement], loose: bool, ask: Ask) -> Answer:
    """Who depends on what is changed is named, too, so that the resolver keeps them satisfied."""
    changed: set[str] = {canonicalize_name(one.name) for one in way}
    there = {name: str(version) for name, version in node.packages().items()}
    free = set(changed)
    if loose:
        free |= {name for name in _needed_by(node, changed) if weight(name) < 100}
    dependents = sorted(name for name in there if name not in free and _needed_by(node, {name}) & free)
    wanted = [*map(str, way), *(f"{name}=={there[name]}" for name in dependents)]
    return ask(wanted, [f"{name}=={version}" for name, version in there.items() if name not in free])


def _needed_by(node: Node, names: set[str]) -> set[str]:
    markers = node.get("python markers")
    return {
        canonicalize_name(needed.name)
        for name in names
        for needed in requirements(node.get(f"requires {name}"), markers)
    }


# -- in words and lines --------------------------------------------------------------------------------------------


def explained(repair: Repair) -> str:
    """Why this change, and why no smaller one."""
    lines = [f"{one.text}." for one in repair.conflicts[:4]]
    for name, (now, then) in repair.changes.items():
        kind = {100.0: "native", 10.0: "framework"}.get(weight(name), "leaf")
        lines.append(f"{name}: {now or 'not there'} becomes {then} ({kind} package).")
    lines += [f"Tried before: {one}" for one in repair.refused[:2]]
    lines.append("All else stays as it is: pip's resolver accepts it in a dry run.")
    return "\n".join(lines)


def pins(repair: Repair) -> list[str]:
    return [f"{name}=={then}" for name, (_, then) in sorted(repair.changes.items())]


def as_fix(repair: Repair) -> Fix:
    """One command to paste; the same as requirements, constraints, Dockerfile and conda lines."""
    lines = pins(repair)
    command = f"python -m pip install {' '.join(map(shlex.quote, lines))}"
    action = {
        "kind": "command",
        "run": command,
        "lines": {
            "requirements": lines,
            "constraints": lines,
            "dockerfile": [f"RUN {command}"],
            "conda": ["- pip:", *(f"  - {line}" for line in lines)],
        },
        "explanation": explained(repair),
    }
    count = len(repair.changes)
    many = "1 package" if count == 1 else f"{count} packages"
    title = f"Change {', '.join(lines)}: the smallest change that pip's resolver accepts ({many})"
    return Fix(
        "version-and-dependency-management", title, "unsafe", action, "`paramedic check` no longer names the conflict."
    )
