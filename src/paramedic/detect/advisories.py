"""Known bugs of released versions, against what is installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from packaging.version import Version

from paramedic.detect.nodes import Node, nodes, on_facts
from paramedic.knowledge.advisories import Advisory
from paramedic.model import Fact, Finding, Run


def known(run: Run, advisories: Sequence[Advisory]) -> Iterator[Finding]:
    for node in nodes(run):
        for one in advisories:
            fact = applies(one, node)
            if fact is not None:
                yield on_facts(one.rule, [fact], {"package": one.package, "version": str(fact.value)})


def applies(one: Advisory, node: Node) -> Fact | None:
    there = _there(one.package, node)
    if there is None or not one.affected.contains(there[0], prereleases=True):
        return None
    for name, versions in one.with_.items():
        other = _there(name, node)
        if other is None or not versions.contains(other[0], prereleases=True):
            return None
    return there[1]


def _there(package: str, node: Node) -> tuple[Version, Fact] | None:
    """NCCL and cuDNN are what is loaded, else what is installed beside torch."""
    names = [f"package {package}"]
    if package == "python":
        names = ["python version"]
    elif package in ("nccl", "cudnn"):
        names = [f"{package} loaded", *(f"package nvidia-{package}-cu{major}" for major in (13, 12, 11))]
    for name in names:
        version = node.version(name)
        if version is not None:
            return Version(version.public), node.facts[name]
    return None
