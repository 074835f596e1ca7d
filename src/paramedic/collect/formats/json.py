"""JSON with the place of every value. As Hjson does, it passes over comments and over commas too many or too few."""

from __future__ import annotations

import json
import re
from typing import Any

from paramedic.collect.formats import DEEPEST, Broken, Entry, Lines, Parsed

_SPACE = re.compile(r"[ \t\r\n\f\ufeff]*")
_COMMENT = re.compile(r"//[^\n]*|#[^\n]*|/\*.*?\*/", re.S)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_SCALAR = re.compile(r"-?\d{1,300}(?:\.\d{1,300})?(?:[eE][+-]?\d{1,9})?(?![\w.])|(?:true|false|null|NaN|-?Infinity)\b")


def parse(text: str) -> Parsed:
    reader = _Reader(text)
    reader.value("", 0, None)
    reader.skip()
    if reader.at < len(text):
        raise Broken("text after the end of the document", reader.line())
    return reader.parsed


class _Reader:
    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0
        self.parsed, self.lines = Parsed(), Lines(text)

    def line(self) -> int:
        return self.lines.of(min(self.at, max(len(self.text) - 1, 0)))

    def skip(self) -> None:
        while True:
            self.at = _space(self.text, self.at)
            comment = _COMMENT.match(self.text, self.at)
            if comment is None:
                return
            self._loose("comment")
            self.at = comment.end()

    def _loose(self, what: str) -> None:
        self.parsed.loose.append(Entry(what, None, self.line()))

    def value(self, key: str, depth: int, key_start: int | None) -> Any:
        self.skip()
        if depth > DEEPEST:
            raise Broken(f"nested deeper than {DEEPEST}", self.line())
        start, line = self.at, self.line() if key_start is None else self.lines.of(key_start)
        opening = self.text[start : start + 1]
        slot = len(self.parsed.entries)
        if key:
            self.parsed.add(Entry(key, None, line))
        if opening == "{":
            value: Any = self._object(key, depth)
        elif opening == "[":
            value = self._list(key, depth)
        else:
            value = self._scalar()
        if key:
            span = (start if key_start is None else key_start, self.at)
            self.parsed.entries[slot] = Entry(key, value, line, start, self.at, span)
        return value

    def _object(self, key: str, depth: int) -> dict[str, Any]:
        self.at += 1
        seen: set[str] = set()
        while not self._closed("}"):
            start = self.at
            name = self._string()
            self.skip()
            if self.text[self.at : self.at + 1] != ":":
                raise Broken(f'":" is missing after "{name[:40]}"', self.line())
            self.at += 1
            path = f"{key}.{name}" if key else name
            if name in seen:
                self.parsed.duplicates.append(Entry(path, None, self.lines.of(start)))
            seen.add(name)
            self.value(path, depth + 1, start)
            self._comma("}")
        return {}

    def _list(self, key: str, depth: int) -> list[Any]:
        self.at += 1
        values: list[Any] = []
        number = 0
        while not self._closed("]"):
            value = self.value(f"{key}[{number}]", depth + 1, None)
            if not isinstance(value, dict | list):
                values.append(value)
            number += 1
            self._comma("]")
        return values

    def _closed(self, closing: str) -> bool:
        self.skip()
        if self.at >= len(self.text):
            raise Broken(f'the file ends where "{closing}" is missing', self.line())
        if self.text[self.at] == closing:
            self.at += 1
            return True
        return False

    def _comma(self, closing: str) -> None:
        before = self.at
        self.skip()
        if self.text[self.at : self.at + 1] == ",":
            comma = self.line()
            self.at += 1
            self.skip()
            if self.text[self.at : self.at + 1] == closing:
                self.parsed.loose.append(Entry("comma too many", None, comma))
        elif self.text[self.at : self.at + 1] != closing:
            if "\n" not in self.text[before : self.at]:
                raise Broken(f'"," or "{closing}" is missing', self.line())
            self._loose("comma missing")

    def _string(self) -> str:
        found = _STRING.match(self.text, self.at)
        if found is None:
            raise Broken("a key in double quotes is missing", self.line())
        self.at = found.end()
        return str(self._decoded(found[0]))

    def _scalar(self) -> Any:
        found = _STRING.match(self.text, self.at) or _SCALAR.match(self.text, self.at)
        if found is None:
            raise Broken("a value is missing or is none that JSON has", self.line())
        self.at = found.end()
        return self._decoded(found[0])

    def _decoded(self, text: str) -> Any:
        try:
            return json.loads(text, strict=False)
        except ValueError:
            raise Broken("a value that JSON does not have", self.line()) from None


def _space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at
