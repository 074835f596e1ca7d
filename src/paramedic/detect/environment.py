"""Where packages come from, what stands in their way, and environment variables that do not do what they should."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from paramedic.detect import variables
from paramedic.detect.nodes import Node, nodes, on_facts
from paramedic.knowledge import Rule
from paramedic.knowledge.facts import load_compatibility, load_variables
from paramedic.model import Fact, Finding, Run

_STALE = 600
_FRAMEWORKS = (
    "torch",
    "deepspeed",
    "accelerate",
    "transformers",
    "lightning",
    "pytorch-lightning",
    "megatron-core",
    "numpy",
)
_OF_RANKS = ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")


def lookalike(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for row in load_compatibility().lookalike:
            version = node.version(f"package {row['name']}")
            if version is not None and SpecifierSet(row["versions"]).contains(version, prereleases=True):
                fields = {key: str(row[key]) for key in ("name", "is", "meant", "install")}
                yield on_facts(rule, [node.facts[f"package {row['name']}"]], fields)


def leftover(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name, fact in node.below("leftover"):
            yield on_facts(rule, [fact], {"name": name, "path": str(fact.value)})


def shadow(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name, fact in node.below("shadow"):
            yield on_facts(rule, [fact], {"name": name, "path": str(fact.value)})


def elsewhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """In a virtual environment, and yet from the user's own site or PYTHONPATH."""
    for node in nodes(run):
        for name, fact in node.below("origin") if node.get("python virtual") else ():
            if name in _FRAMEWORKS and str(fact.value).startswith(("user site", "PYTHONPATH")):
                yield on_facts(rule, [fact], {"package": name, "origin": str(fact.value)})


def lock(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A build lock, minutes old, while nothing on the node builds. From torch 2.14 on a lock dies with its owner."""
    for node in nodes(run):
        if (node.version("torch version") or Version("2.0")) >= Version("2.14"):
            continue
        for path, fact in node.below("lock"):
            age = fact.value if isinstance(fact.value, int | float) else 0
            if age > _STALE and not node.number("builds running"):
                yield on_facts(rule, [fact], {"path": path, "minutes": f"{age // 60:.0f}"})


# -- variables -----------------------------------------------------------------------------------------------------


def misspelt(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for name, fact in node.below("variable"):
            meant = variables.meant(name)
            if meant and f"variable {meant}" not in node.facts:
                yield on_facts(rule, [fact], {"name": name, "meant": meant, "value": str(fact.value)})


def unknown(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A name that nobody reads, of a family whose list is whole."""
    for node in nodes(run):
        for name, fact in node.below("variable"):
            if source := variables.unread(name):
                yield on_facts(rule, [fact], {"name": name, "source": source})


def renamed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for row in load_variables().renamed:
            fact, version = node.facts.get(f"variable {row['name']}"), _version(node, row["package"])
            if fact and version and version >= Version(row["since"]) and f"variable {row['to']}" not in node.facts:
                fields = {"name": row["name"], "to": row["to"], "package": row["package"], "since": row["since"]}
                yield on_facts(rule, [fact], {**fields, "value": str(fact.value)})


def _version(node: Node, package: str) -> Version | None:
    if package == "nccl":
        named = [version for name, version in node.packages().items() if name.startswith("nvidia-nccl-")]
        return node.version("nccl loaded") or (named[0] if named else None)
    return node.version(f"package {package}")


def debugging(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for row in load_variables().debugging:
            fact = node.facts.get(f"variable {row['name']}")
            value = str(fact.value) if fact else ""
            costly = value in row["values"] if "values" in row else value not in ("", "0", "false", "False", "OFF")
            if fact and costly and (row.get("needs") != "rdma" or any(node.below("rdma"))):
                yield on_facts(rule, [fact], {"name": row["name"], "value": value, "costs": row["costs"]})


def value(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Set to something that its reader does not understand."""
    for node in nodes(run):
        for name, fact in node.below("variable"):
            if wrong := variables.wrong(name, str(fact.value)):
                yield on_facts(rule, [fact], {"name": name, "value": str(fact.value), "wrong": wrong})


def contradiction(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        for row in load_variables().contradiction:
            one, other = node.facts.get(f"variable {row['name']}"), node.facts.get(f"variable {row['against']}")
            if one and other and str(one.value) == row["value"] and str(other.value) not in ("", "0"):
                fields = {"name": row["name"], "value": row["value"], "against": row["against"], "why": row["why"]}
                yield on_facts(rule, [one, other], fields)


def interface(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """NCCL takes a list of prefixes, `=` for whole names, `^` for all but those; gloo takes whole names."""
    for node in nodes(run):
        there = node.get("interfaces")
        for name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
            fact = node.facts.get(f"variable {name}")
            if fact and isinstance(there, list) and there and _absent(str(fact.value), there, name.startswith("NCCL")):
                fields = {"name": name, "value": str(fact.value), "there": ", ".join(map(str, there))}
                yield on_facts(rule, [fact, node.facts["interfaces"]], fields)


def _absent(text: str, there: Sequence[str], prefixes: bool) -> bool:
    if not text or (prefixes and text.startswith("^")):
        return False
    names = [name.split(":")[0] for name in text.removeprefix("=").split(",") if name.strip()]
    whole = not prefixes or text.startswith("=")
    return not any(one == name if whole else one.startswith(name) for name in names for one in there)


def devices(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """CUDA_VISIBLE_DEVICES hides every GPU, or names one that is not there: all from there on are hidden, too."""
    for node in nodes(run):
        fact, count = node.facts.get("variable CUDA_VISIBLE_DEVICES"), node.number("gpu count")
        if fact is None or not count:
            continue
        named = [part.strip() for part in str(fact.value).split(",")]
        odd = [
            part
            for part in named
            if not part.startswith(("GPU-", "MIG-")) and not (part.isdigit() and int(part) < count)
        ]
        if odd:
            yield on_facts(rule, [fact, node.facts["gpu count"]], {"value": str(fact.value), "count": str(int(count))})


def cuda_home(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        if node.get("cuda home exists") is False:
            yield on_facts(rule, [node.facts["cuda home exists"]], {"path": str(node.get("cuda home"))})


def ranks_left(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Variables that only a launcher sets, in a shell where nothing has been launched."""
    for node in nodes(run):
        left = [node.facts[f"variable {name}"] for name in _OF_RANKS if f"variable {name}" in node.facts]
        if left and not any(
            name in ("SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK") for name, _ in node.below("variable")
        ):
            yield on_facts(rule, left, {"names": ", ".join(fact.name.split()[-1] for fact in left)})


def threads(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    for node in nodes(run):
        fact, cores = node.facts.get("variable OMP_NUM_THREADS"), node.number("host usable cores")
        if fact and cores and str(fact.value).isdigit() and int(str(fact.value)) > cores:
            yield on_facts(rule, [fact, *_cores(node)], {"value": str(fact.value), "cores": str(int(cores))})


def _cores(node: Node) -> list[Fact]:
    return [node.facts["host usable cores"]]
