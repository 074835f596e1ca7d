"""Packages, torch's build and the native stack below it: what does not fit what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from paramedic.detect.nodes import Node, nodes, on_facts, parsed
from paramedic.knowledge import Rule
from paramedic.knowledge.facts import Release, load_compatibility, load_releases
from paramedic.model import Fact, Finding, Run

COMPANIONS = ("torchvision", "torchaudio", "torchtext", "xformers", "torchdata", "fbgemm-gpu", "torchrec")
"""They carry code compiled against one torch: another one breaks them at import or at the first call."""
BUILDERS = ("deepspeed", "apex", "flash-attn", "transformer-engine", "colossalai", "megatron-core", "xformers")
"""They compile extensions on first use or on installation."""


def unmet(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """What an installed package asks for and is not there, or there in another version."""
    for node in nodes(run):
        for name, needed, there, fact in unmet_of(node):
            if name in COMPANIONS and needed.name == "torch":
                continue
            facts = [fact, *filter(None, [node.facts.get(f"package {canonicalize_name(needed.name)}")])]
            fields = {
                "package": f"{name} {node.get(f'package {name}')}",
                "needs": f"{needed.name}{needed.specifier}",
                "there": str(there) if there else "nothing",
            }
            yield on_facts(rule, facts, fields, said=f"{name} requires {needed}")


def unmet_of(node: Node) -> Iterator[tuple[str, Requirement, Version | None, Fact]]:
    markers = node.get("python markers")
    there = node.packages()
    for name, fact in node.below("requires"):
        for needed in requirements(fact.value, markers):
            version = there.get(canonicalize_name(needed.name))
            if version is None and f"package {canonicalize_name(needed.name)}" in node.facts:
                continue  # installed, in a version that cannot be compared
            if version is None or not needed.specifier.contains(version, prereleases=True):
                yield name, needed, version, fact


def requirements(texts: Any, markers: Any) -> Iterator[Requirement]:
    """Those that hold on this Python and platform; of another form are none of ours to judge."""
    environment = {**markers, "extra": ""} if isinstance(markers, Mapping) else {"extra": ""}
    for text in texts if isinstance(texts, list | tuple) else ():
        try:
            needed = Requirement(str(text))
            if needed.marker is None or needed.marker.evaluate(environment):
                yield needed
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName, InvalidSpecifier):
            continue


def companion(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """torchvision and its like, built for another torch: by what they declare, else by the table of pairs."""
    for node in nodes(run):
        torch = node.version("package torch") or node.version("torch version")
        if torch is None:
            continue
        for name in COMPANIONS:
            fact, version = node.facts.get(f"package {name}"), node.version(f"package {name}")
            if fact is None or version is None:
                continue
            wanted = _declared(node, name) or _paired(name, version)
            if wanted is not None and not any(
                wanted.contains(v, prereleases=True) for v in (torch, torch.base_version)
            ):
                fields = {"package": name, "version": str(version), "torch": str(torch), "needs": str(wanted)}
                yield on_facts(rule, [fact, *_of(node, "package torch")], {**fields, "pair": _pair_for(name, torch)})


def _declared(node: Node, name: str) -> SpecifierSet | None:
    asked = requirements(node.get(f"requires {name}"), node.get("python markers"))
    return next((one.specifier for one in asked if one.name == "torch" and str(one.specifier)), None)


def _paired(name: str, version: Version) -> SpecifierSet | None:
    rows = [row for row in load_compatibility().torch if version.base_version in row.get("torchvision", ())]
    return SpecifierSet(f"=={rows[0]['release']}") if name == "torchvision" and rows else None


def _pair_for(name: str, torch: Version) -> str:
    """The release of the companion that goes with the torch that is there."""
    rows = [row for row in load_compatibility().torch if row["release"] == torch.base_version]
    if name == "torchvision" and rows and rows[0].get("torchvision"):
        return f"torchvision=={rows[0]['torchvision'][-1]}"
    if name == "torchaudio" and torch < Version("2.12"):
        return f"torchaudio=={torch.base_version}"
    return f"{name} of the release made for torch {torch.base_version}"


def torn(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """torch's files are of another release than its metadata says."""
    for node in nodes(run):
        named, real = node.version("package torch"), node.version("torch version")
        if named and real and named.public != real.public:
            facts = _of(node, "package torch", "torch version")
            yield on_facts(rule, facts, {"named": str(named), "real": str(real)})


def extension(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """An extension asks this torch for symbols or libraries that it does not have."""
    for node in nodes(run):
        for name, fact in node.below("extension"):
            value = fact.value if isinstance(fact.value, Mapping) else {}
            libraries, symbols = value.get("missing libraries") or [], value.get("missing symbols") or []
            if libraries or symbols:
                wants = f"the library {libraries[0]}" if libraries else f"the symbol {symbols[0]}"
                fields = {"extension": name.rsplit("/", 1)[-1], "wants": wants, "torch": str(node.get("torch version"))}
                cached = name.startswith("/")  # another environment may have built it for itself
                yield on_facts(rule, [fact], fields, severity="warning" if cached else None)


def cpu_build(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        there = node.number("gpu count") or 0
        if there and node.text("torch version") and not node.text("torch cuda") and not node.text("torch hip"):
            fields = {"torch": str(node.get("torch version")), "gpus": str(int(there))}
            yield on_facts(rule, _of(node, "torch version", "gpu count"), fields)


def driver(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The driver is below the floor of torch's CUDA major release."""
    for node in nodes(run):
        cuda, there = node.version("torch cuda"), node.version("gpu driver")
        floor = next((row for row in load_compatibility().driver if cuda and row["cuda"] == str(cuda.major)), None)
        if floor is None or there is None or there >= Version(floor["floor"]):
            continue
        compat = "/compat" in str(node.get("variable LD_LIBRARY_PATH") or "")
        fields = {"driver": str(node.get("gpu driver")), "cuda": str(cuda), "floor": floor["floor"]}
        facts = _of(node, "torch cuda", "gpu driver")
        yield on_facts(rule, facts, fields, severity="warning" if compat else None)


def architecture(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A GPU for which torch has neither machine code nor an intermediate form that the driver can translate."""
    for node in nodes(run):
        listed, sure = _architectures(node)
        for number in range(int(node.number("gpu count") or 0)) if listed else ():
            capability = str(node.get(f"gpu {number} capability") or "")
            major, _, minor = capability.partition(".")
            if minor.isdigit() and not any(_runs(one, int(major), int(minor)) for one in listed):
                fields = {
                    "capability": capability,
                    "name": str(node.get(f"gpu {number} name")),
                    "listed": " ".join(listed),
                }
                yield on_facts(
                    rule, _of(node, f"gpu {number} capability", "torch version", "torch architectures"),
                    fields, severity=None if sure else "warning",
                )  # fmt: skip
                break


def _architectures(node: Node) -> tuple[list[str], bool]:
    value = node.get("torch architectures")
    if isinstance(value, list):
        return [str(one) for one in value], True
    torch, cuda = node.version("torch version"), node.version("torch cuda")
    for row in load_compatibility().architectures if torch and cuda else ():
        if row["cuda"] == f"{cuda.major}.{cuda.minor}" and SpecifierSet(row["torch"]).contains(torch.base_version):  # type: ignore[union-attr]
            return [f"sm_{one.replace('.', '')}" for one in row["list"]], False
    return [], False


def _runs(listed: str, major: int, minor: int) -> bool:
    """Machine code runs on the same major generation from its minor on; PTX on every later one; `a` on its own only."""
    kind, _, digits = listed.partition("_")
    own = digits.rstrip("abcdef")
    if not own.isdigit():
        return True
    made = (int(own[:-1]), int(own[-1]))
    if digits != own:
        return made == (major, minor)
    return made <= (major, minor) if kind == "compute" else made[0] == major and made[1] <= minor


def toolkit(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """nvcc of another CUDA major than torch's: it matters to those who compile extensions, and to nobody else."""
    for node in nodes(run):
        cuda, nvcc = node.version("torch cuda"), node.version("nvcc version")
        building = [name for name in BUILDERS if f"package {name}" in node.facts]
        if cuda and nvcc and building and cuda.major != nvcc.major:
            fields = {"cuda": str(cuda), "nvcc": str(nvcc), "who": ", ".join(building)}
            yield on_facts(rule, _of(node, "torch cuda", "nvcc version"), fields)


def compiler(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        gcc, nvcc = node.version("gcc version"), node.version("nvcc version")
        building = [name for name in BUILDERS if f"package {name}" in node.facts]
        if not (gcc and nvcc and building and node.text("torch cuda")):
            continue
        rows = [row for row in load_compatibility().compiler if row["cuda"] == f"{nvcc.major}.{nvcc.minor}"]
        if rows and gcc.major >= int(rows[0]["gcc_below"]):
            fields = {"gcc": str(gcc), "nvcc": str(nvcc), "below": rows[0]["gcc_below"]}
            yield on_facts(rule, _of(node, "gcc version", "nvcc version"), fields)


def nccl(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The NCCL that the linker would give to torch is not the one that torch pins. An older one is worse."""
    for node in nodes(run):
        loaded, pinned = node.version("nccl loaded"), _pinned(node, "nvidia-nccl-")
        if loaded and pinned and loaded.release[:3] != pinned.release[:3]:
            facts = _of(node, "nccl loaded", "nccl path")
            way = node.facts["nccl path"].source if "nccl path" in node.facts else "?"
            fields = {"loaded": str(loaded), "pinned": str(pinned), "path": str(node.get("nccl path")), "way": way}
            yield on_facts(rule, facts, fields, severity="error" if loaded < pinned else "warning")


def _pinned(node: Node, prefix: str) -> Version | None:
    asked = requirements(node.get("requires torch"), node.get("python markers"))
    for needed in asked:
        if needed.name.startswith(prefix):
            return next((parsed(one.version) for one in needed.specifier if one.operator == "=="), None)
    return None


def copies(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name, fact in node.below("copies"):
            yield on_facts(rule, [fact], {"package": name, "copies": " and ".join(map(str, fact.value[:3]))})


def generations(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Native libraries of two CUDA generations side by side, or two of Lightning."""
    for node in nodes(run):
        there = node.packages()
        pairs = [(f"nvidia-nccl-{a}", f"nvidia-nccl-{b}") for a, b in (("cu11", "cu12"), ("cu12", "cu13"))]
        pairs += [("lightning", "pytorch-lightning")]
        for first, second in pairs:
            if first in there and second in there and there[first].release[:2] != there[second].release[:2]:
                facts = _of(node, f"package {first}", f"package {second}")
                yield on_facts(rule, facts, {"first": f"{first} {there[first]}", "second": f"{second} {there[second]}"})


def python(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        here = node.version("python version")
        for name, fact in node.below("requires-python") if here else ():
            try:
                if not SpecifierSet(str(fact.value)).contains(here.base_version, prereleases=True):  # type: ignore[union-attr]
                    yield on_facts(rule, [fact], {"package": name, "needs": str(fact.value), "python": str(here)})
            except InvalidSpecifier:
                continue


def yanked(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    known = load_releases().projects
    for node in nodes(run):
        for name, version in node.packages().items():
            for release in known.get(name, ()):
                if release.yanked and release.version.public == version.public:
                    fields = {"package": name, "version": str(version), "why": release.yanked}
                    yield on_facts(rule, _of(node, f"package {name}"), fields)


def behind(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Asked for a package, silently given an old release: the newest that fits here, with newer ones that do not."""
    table = load_releases()
    for node in nodes(run):
        for name, version in node.packages().items():
            releases = [one for one in table.projects.get(name, ()) if not one.yanked]
            if name == "torch" or not releases or version.public not in {one.version.public for one in releases}:
                continue
            newer = [one for one in releases if one.version.release > version.release]
            why = [_unfit(one, node) for one in newer]
            if newer and all(why):
                fields = {
                    "package": name, "version": version.public, "newest": str(newer[-1].version),
                    "count": f"{len(newer)} release{'s' if len(newer) > 1 else ''}",
                    "why": f"{newer[-1].version} {why[-1]}", "date": table.date,
                }  # fmt: skip
                yield on_facts(rule, _of(node, f"package {name}"), fields)


def _unfit(release: Release, node: Node) -> str:
    """Why this release cannot be installed here; empty where it can, or where we cannot tell."""
    here, torch = node.version("python version"), node.version("package torch")
    try:
        if here and release.python and not SpecifierSet(release.python).contains(here.base_version, prereleases=True):
            return f"needs Python {release.python}, this is {here.base_version}"
    except InvalidSpecifier:
        return ""
    if here and not release.source and not _has_wheel(release, node, here):
        return f"has no wheel for Python {here.major}.{here.minor} with glibc {node.get('host glibc')} here"
    for needed in requirements(list(release.requires or ()), node.get("python markers")):
        if needed.name == "torch" and torch and not needed.specifier.contains(torch, prereleases=True):
            return f"needs torch{needed.specifier}, this is {torch}"
    return ""


def _has_wheel(release: Release, node: Node, here: Version) -> bool:
    """Whether any wheel's Python, ABI and platform fit; glibc must not be older than the wheel's."""
    machine, glibc = node.text("host architecture") or "", node.version("host glibc")
    for tag in release.wheels:
        interpreter, abi, platform = tag.split("-", 2)
        fits = interpreter in ("py3", f"py3{here.minor}", f"cp3{here.minor}") or (
            abi == "abi3"
            and interpreter[2:3] == "3"
            and interpreter[3:].isdigit()
            and int(interpreter[3:]) <= here.minor
        )
        if fits and (platform == "any" or (machine and platform.endswith(machine) and _glibc_fits(platform, glibc))):
            return True
    return False


def _glibc_fits(platform: str, glibc: Version | None) -> bool:
    parts = platform.split("_")
    if parts[0] != "manylinux" or glibc is None or not (parts[1].isdigit() and parts[2].isdigit()):
        return not platform.startswith("musllinux")
    return (glibc.major, glibc.minor) >= (int(parts[1]), int(parts[2]))


def _of(node: Node, *names: str) -> list[Fact]:
    return [node.facts[name] for name in names if name in node.facts]
