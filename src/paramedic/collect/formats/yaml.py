"""YAML with the place of every value, one section a document. Anchors and tags are refused or read as plain text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from paramedic.collect.formats import DEEPEST, Broken, Entry, Parsed

_MANY_ANCHORS = 50
_ANCHOR = re.compile(r"(?:^|[\s\[,:-])[&*]\w")
_MANY_OPEN = 200
_BRACKET = re.compile(r"[\[\]{}]")
_INT = re.compile(r"[-+]?\d{1,18}")
_FLOAT = re.compile(r"[-+]?(?:\d{1,17}(?:\.\d{0,17})?|\.\d{1,17})(?:[eE][-+]?\d{1,3})?")
_WORDS = {"true": True, "false": False, "yes": True, "no": False, "on": True, "off": False}  # YAML 1.1, as PyYAML reads


def parse(text: str) -> list[Parsed]:
    if len(_ANCHOR.findall(text)) > _MANY_ANCHORS:
        raise Broken(f"more than {_MANY_ANCHORS} anchors", 1)
    if _opened(text) > _MANY_OPEN:  # the library's time grows with the square of it
        raise Broken(f"nested deeper than {DEEPEST}", 1)
    return [_document(node) for node in _nodes(text)]


def _opened(text: str) -> int:
    """How many brackets are open at once, at most."""
    return max(accumulate(1 if found in "[{" else -1 for found in _BRACKET.findall(text)), default=0)


def _nodes(text: str) -> Iterator[Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        yield from (node for node in YAML(pure=True).compose_all(text) if node is not None)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise Broken(str(error.problem or "no YAML")[:200], mark.line + 1 if mark else 1) from None
    except YAMLError as error:
        raise Broken(" ".join(str(error).split())[:200], 1) from None
    except RecursionError:
        raise Broken(f"nested deeper than {DEEPEST}", 1) from None
    except (ValueError, TypeError, AttributeError, KeyError, IndexError, AssertionError) as error:
        raise Broken(f"no YAML: {type(error).__name__}", 1) from None


def _document(root: Any) -> Parsed:
    parsed = Parsed()
    _read(parsed, root, "", 0, None, frozenset())
    return parsed


def _read(parsed: Parsed, node: Any, key: str, depth: int, key_node: Any, above: frozenset[int]) -> Any:
    if id(node) in above:
        raise Broken("contains itself", node.start_mark.line + 1)
    if depth > DEEPEST:
        raise Broken(f"nested deeper than {DEEPEST}", node.start_mark.line + 1)
    place = key_node or node
    slot = len(parsed.entries)
    if key:
        parsed.add(Entry(key, None, place.start_mark.line + 1))
    inside = above | {id(node)}
    if node.id == "mapping":
        value: Any = _mapping(parsed, node, key, depth, inside)
    elif node.id == "sequence":
        read = [_read(parsed, item, f"{key}[{n}]", depth + 1, None, inside) for n, item in enumerate(node.value)]
        value = [item for item in read if not isinstance(item, dict | list)]
    else:
        value = _scalar(node)
    if key:
        span = (node.start_mark.index, node.end_mark.index)
        parsed.entries[slot] = Entry(
            key, value, place.start_mark.line + 1, *span, (place.start_mark.index, node.end_mark.index)
        )
    return value


def _mapping(parsed: Parsed, node: Any, key: str, depth: int, above: frozenset[int]) -> dict[str, Any]:
    seen: set[str] = set()
    for name_node, value_node in node.value:
        name = str(name_node.value) if name_node.id == "scalar" else "?"
        path = f"{key}.{name}" if key else name
        if name in seen and name != "<<":
            parsed.duplicates.append(Entry(path, None, name_node.start_mark.line + 1))
        seen.add(name)
        _read(parsed, value_node, path, depth + 1, name_node, above)
    return {}


def _scalar(node: Any) -> Any:
    text = str(node.value)
    if node.style in ("'", '"', "|", ">"):
        return text
    if text in ("", "~", "null", "Null", "NULL"):
        return None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return text
