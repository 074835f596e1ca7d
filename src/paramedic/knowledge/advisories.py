"""Known bugs of released versions, in OSV's spirit: one Markdown file each, as a rule is, with its range in front."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from paramedic.errors import ParamedicError
from paramedic.knowledge.rules import Rule
from paramedic.knowledge.schema import problems
from paramedic.knowledge.taxonomy import Taxonomy, load_taxonomy
from paramedic.model import Fix
from paramedic.regex import regex

DETECTOR = "advisories.known"
HEADINGS = ("What happens", "Do instead")
_ID = regex(r"^ADV\d{3}-")


@dataclass(frozen=True, slots=True)
class Advisory:
    """`package` is a project of the index, or `nccl`, `python`. It holds where all of `with_` hold, too."""

    rule: Rule
    package: str
    affected: SpecifierSet
    with_: Mapping[str, SpecifierSet]
    fixed: str
    """The first release without it; empty where there is none yet."""
    seen_in: str


@cache
def load_advisories() -> tuple[Advisory, ...]:
    folder = resources.files(__package__).joinpath("advisories")
    return tuple(_read(folder, load_taxonomy()))


def _read(folder: Traversable, taxonomy: Taxonomy) -> Iterator[Advisory]:
    for file in sorted(folder.iterdir(), key=lambda one: one.name):
        if _ID.match(file.name) and file.name.endswith(".md"):
            yield parse_advisory(file.read_text("utf-8"), file.name, taxonomy)


def parse_advisory(text: str, path: str, taxonomy: Taxonomy) -> Advisory:
    """Raises ParamedicError with the file and every problem found."""
    parts = text.split("+++\n", 2)
    if len(parts) != 3 or parts[0].strip():
        raise ParamedicError(f"advisory {path}: starts with TOML front matter between two `+++` lines, found none")
    try:
        front = tomllib.loads(parts[1])
    except ValueError as error:
        raise ParamedicError(f"advisory {path}: front matter is no TOML: {error}") from None
    wrong = [*problems(front, _schema())] or [*_meaning(front, path, taxonomy)]
    wrong += [f"heading '## {h}' is missing" for h in HEADINGS if not re.search(rf"^## {h}$", parts[2], re.M)]
    if wrong:
        raise ParamedicError(f"advisory {path}: " + "; ".join(wrong))
    return Advisory(
        _rule(front, parts[2], path, taxonomy),
        front["package"],
        SpecifierSet(front["affected"]),
        {name: SpecifierSet(versions) for name, versions in front.get("with", {}).items()},
        front.get("fixed", ""),
        front["seen_in"],
    )


def _meaning(front: Mapping[str, Any], path: str, taxonomy: Taxonomy) -> Iterator[str]:
    if path != f"{front['id']}-{front['name']}.md":
        yield f"the file must be called {front['id']}-{front['name']}.md"
    if front["symptom"] not in taxonomy.symptoms:
        yield f"symptom {front['symptom']!r} is not of the taxonomy"
    elif front["cause"] not in taxonomy.symptoms[front["symptom"]].causes:
        yield f"cause {front['cause']!r} is not among those of {front['symptom']}"
    try:
        affected = SpecifierSet(front["affected"])
        for versions in front.get("with", {}).values():
            SpecifierSet(versions)
        if not affected.contains(Version(front["seen_in"]), prereleases=True):
            yield f"seen_in {front['seen_in']} is not in {affected}"
        if front.get("fixed") and affected.contains(Version(front["fixed"]), prereleases=True):
            yield f"fixed {front['fixed']} is still in {affected}"
    except (InvalidSpecifier, InvalidVersion) as error:
        yield str(error)


def _rule(front: Mapping[str, Any], body: str, path: str, taxonomy: Taxonomy) -> Rule:
    """As a rule among the others: `explain`, `--select` and the reports need not know the difference."""
    return Rule(
        id=front["id"],
        name=front["name"],
        title=front["title"],
        summary=f"{{package}} {{version}}: {front['title']}",
        status="stable",
        severity=front["severity"],
        symptom=taxonomy.symptom(front["symptom"]),
        causes={front["cause"]: 1.0},
        systems=tuple(front["systems"]),
        keywords=(),
        match=(),
        stack="",
        unless=(),
        excused_by=(),
        sure_with=(),
        lasting=False,
        setup_only=False,
        config=(),
        when=(),
        detector=DETECTOR,
        consequence="never",
        blames_reporter=True,
        confidence=front.get("confidence", 0.9),
        fixes=tuple(_fixes(front)),
        references=tuple(front["references"]),
        aliases=(),
        body=body,
        path=path,
    )


def _fixes(front: Mapping[str, Any]) -> Iterator[Fix]:
    package, way = front["package"], "version-and-dependency-management"
    if front.get("fixed") and package not in ("nccl", "python"):
        needed = f"{package}>={front['fixed']}"
        yield Fix(way, f"Upgrade: {needed} has it no more", "unsafe", {"kind": "package", "requirement": needed})
    elif front.get("fixed"):
        yield Fix(
            way, f"Upgrade {package} to {front['fixed']}", "manual", {"kind": "code", "hint": front["workaround"]}
        )
    yield Fix(way, "Until then", "manual", {"kind": "code", "hint": front["workaround"]})


@cache
def _schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(
        resources.files(__package__).joinpath("advisory.schema.json").read_text("utf-8")
    )
    return schema
