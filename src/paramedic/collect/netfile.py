"""Nodes' network facts and what they saw of each other, as one JSON document: `net probe` writes it, all else reads it.

{"paramedic_net": 1, "nodes": {"node-1": {"interface eth0": {…}, …}}, "pairs": [{"from": "node-1", "to": "node-2", …}]}
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from paramedic.model import Fact, Skipped, Source
from paramedic.redact import clipped
from paramedic.regex import regex

if TYPE_CHECKING:
    from paramedic.collect.logs import LogRead

VERSION = 1
MAX_NETWORK = 64 << 20
MAX_NODES = 8_192
MAX_PAIRS = 400_000
_MAX_FACTS, _MAX_ITEMS, _MAX_TEXT, _MAX_DEPTH = 2_000, 5_000, 8_000, 6
_NAME = regex(r"[\w .:/@=+~-]{1,200}")
_HOST = regex(r"[\w.:#-]{1,120}")


def is_network(name: str) -> bool:
    return name.endswith(".net.json")


def document(facts: Iterable[Fact]) -> dict[str, Any]:
    nodes: dict[str, dict[str, Any]] = {}
    pairs = []
    for fact in facts:
        if fact.name == "pair":
            pairs.append(fact.value)
        elif fact.host:
            nodes.setdefault(fact.host, {})[fact.name] = fact.value
    return {"paramedic_net": VERSION, "nodes": nodes} | ({"pairs": pairs} if pairs else {})


def read_network(data: bytes, source: Source) -> LogRead:
    """One source a file; what is not as it must be is refused and named."""
    from paramedic.collect.logs import LogRead  # only here: the probe on each node should start at once

    source = replace(source, kind="network", bytes=len(data))
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        return LogRead(source, skipped=[Skipped(source.id, "is no JSON, or not a whole one")])
    facts, why = checked(said, source.id)
    skipped = [Skipped(source.id, reason) for reason in why]
    return LogRead(replace(source, lines=1 if facts else 0), [], skipped, facts)


def checked(said: Any, source: str) -> tuple[list[Fact], list[str]]:
    """(facts, what was refused and why)."""
    version = said.get("paramedic_net") if isinstance(said, dict) else None
    if version is None:
        return [], ["not facts as `paramedic net probe` writes them"]
    if version != VERSION:
        age = "a newer" if isinstance(version, int) and version > VERSION else "an older or unknown"
        return [], [f"facts of {age} version of paramedic ({version!r:.20}); probe again with this one"]
    why: list[str] = []
    facts = [*_nodes(said.get("nodes"), source, why), *_pairs(said.get("pairs"), source, why)]
    return facts, why


def _nodes(nodes: Any, source: str, why: list[str]) -> Iterator[Fact]:
    if not isinstance(nodes, dict):
        why.append("nodes: missing or no object")
        return
    if len(nodes) > MAX_NODES:
        why.append(f"{len(nodes)} nodes: only the first {MAX_NODES} are used")
    for host, known in list(nodes.items())[:MAX_NODES]:
        if not _HOST.fullmatch(host) or not isinstance(known, dict):
            why.append(f"node {host!r:.60}: refused, its name or its facts are not as they must be")
            continue
        for name, value in list(known.items())[:_MAX_FACTS]:
            if _NAME.fullmatch(name):
                yield Fact(name, _cleaned(value), source, host=host)


def _pairs(pairs: Any, source: str, why: list[str]) -> Iterator[Fact]:
    if pairs is None:
        return
    if not isinstance(pairs, list):
        why.append("pairs: no list")
        return
    for pair in pairs[:MAX_PAIRS]:
        if isinstance(pair, Mapping) and all(isinstance(pair.get(end), str) for end in ("from", "to")):
            yield Fact("pair", _cleaned(pair), source, host=clipped(pair["from"], 120))
        else:
            why.append("a pair without its two ends was left out")
            return


def _cleaned(value: Any, depth: int = 0) -> Any:
    """The same with bounded size: plain values, short texts, no deep nesting."""
    if isinstance(value, str):
        return clipped(value, _MAX_TEXT)
    if isinstance(value, bool | float) or (isinstance(value, int) and abs(value) < 1 << 63):
        return value
    if isinstance(value, Mapping) and depth < _MAX_DEPTH:
        items = list(value.items())[:_MAX_ITEMS]
        return {clipped(str(key), 200): _cleaned(item, depth + 1) for key, item in items}
    if isinstance(value, list | tuple) and depth < _MAX_DEPTH:
        return [_cleaned(item, depth + 1) for item in value[:_MAX_ITEMS]]
    return None
