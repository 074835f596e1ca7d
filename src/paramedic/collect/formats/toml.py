"""TOML: values by the standard library; their places by the lines of tables and keys."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from paramedic.collect.formats import DEEPEST, Broken, Entry, Lines, Parsed

_TABLE = re.compile(r"^[ \t]*+\[(\[?)([^\[\]\n]++)\]\]?[ \t]*+(?:#[^\n]*)?$", re.M)
_KEY = re.compile(
    r"^[ \t]*((?:[\w-]+|\"[^\"\n]*\"|'[^'\n]*')(?:[ \t]*\.[ \t]*(?:[\w-]+|\"[^\"\n]*\"))*)[ \t]*=[ \t]*", re.M
)
_VALUE = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'|\[[^\[\]]*\]|[^\s#,\[{\"'](?:[ \t\r]*+[^ \t\r\n#])*+", re.M)
_TEXT_OR_COMMENT = re.compile(
    r"#[^\n]*|\"\"\"(?:[^\\]|\\.)*?(?:\"\"\"|\Z)|\'\'\'.*?(?:\'\'\'|\Z)|\"(?:[^\"\\\n]|\\.)*+\"|'[^'\n]*'", re.S
)
_NO_KEY = re.compile(r"[^\w \t.-]++")


def parse(text: str) -> Parsed:
    refuse_deep_keys(text)
    try:
        document = tomllib.loads(text.replace("\r\n", "\n"))
    except tomllib.TOMLDecodeError as error:
        line = re.search(r"at line (\d{1,9})", str(error))
        raise Broken(str(error)[:200], int(line[1]) if line else 1) from None
    except (ValueError, RecursionError) as error:
        raise Broken(str(error)[:200], 1) from None
    places = dict(_places(text))
    parsed = Parsed()
    for key, value in _leaves(document, "", 0):
        parsed.add(Entry(key, value, *places.get(key, (1, 0, 0, (0, 0)))))
    return parsed


def refuse_deep_keys(text: str) -> None:
    """Before it is parsed: tomllib keeps every beginning of a key `a.a.a…`, which is gigabytes for a few kilobytes."""
    for number, piece in enumerate(_TEXT_OR_COMMENT.sub(_stand_in, text).split("\n"), 1):
        if piece.count(".") > DEEPEST and any(part.count(".") > DEEPEST for part in _NO_KEY.split(piece)):
            raise Broken(f"nested deeper than {DEEPEST}", number)


def _stand_in(found: re.Match[str]) -> str:
    """A quoted name is one part of a key; lines keep their numbers."""
    return ("" if found[0].startswith("#") else "x") + "\n" * found[0].count("\n")


def _leaves(table: Mapping[str, Any], path: str, depth: int) -> Iterator[tuple[str, Any]]:
    if depth > DEEPEST:
        raise Broken(f"nested deeper than {DEEPEST}", 1)
    for name, value in table.items():
        key = f"{path}.{name}" if path else name
        if isinstance(value, dict):
            yield key, {}
            yield from _leaves(value, key, depth + 1)
        elif isinstance(value, list):
            yield key, [item for item in value if not isinstance(item, dict | list)]
            for number, item in enumerate(value):
                if isinstance(item, dict):
                    yield from _leaves(item, f"{key}[{number}]", depth + 1)
        else:
            yield key, value


def _places(text: str) -> Iterator[tuple[str, tuple[int, int, int, tuple[int, int]]]]:
    lines, counts = Lines(text), dict[str, int]()
    tables = list(_TABLE.finditer(text))
    heads = [("", 0), *((_table(head, counts), head.end()) for head in tables)]
    ends = [*(head.start() for head in tables), len(text)]
    for head, table in zip(tables, heads[1:], strict=True):
        yield table[0], (lines.of(head.start()), head.start(), head.end(), (head.start(), head.end()))
    for (table_name, start), end in zip(heads, ends, strict=True):
        for found in _KEY.finditer(text, start, end):
            key = ".".join(part.strip(" \t\"'") for part in found[1].split("."))
            value = _VALUE.match(text, found.end())
            span = (found.end(), value.end() if value else found.end())
            begins = found.start(1)
            yield (
                f"{table_name}.{key}" if table_name else key,
                (lines.of(begins), *span, (begins, span[1])),
            )


def _table(head: re.Match[str], counts: dict[str, int]) -> str:
    name = ".".join(part.strip(" \t\"'") for part in head[2].split("."))
    if not head[1]:
        return name
    counts[name] = counts.get(name, -1) + 1
    return f"{name}[{counts[name]}]"
