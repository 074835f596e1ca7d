"""Text from logs is hostile: what would steer a terminal or hide itself is shown as its escape."""

from __future__ import annotations

import re
import unicodedata

_COLOUR = re.compile(r"\x1b\[[0-9;:]*m")
_SUSPECT = re.compile(r"[^ -~\n]")


def printable(text: str) -> str:
    """`text` with nothing left that does not print: colour codes go, all else becomes visible; lines stay."""
    if text.isprintable():
        return text
    text = _COLOUR.sub("", text).replace("\r\n", "\n").replace("\t", "    ")
    return _SUSPECT.sub(lambda found: _visible(found.group()), text)


def one_line(text: str) -> str:
    """The same on one line: runs of white space become one space."""
    return " ".join(printable(text).split())


def crop(text: str, width: int) -> str:
    """At most `width` characters; what is cut is marked."""
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip() + "…"


def shorten(text: str, most: int) -> str:
    """For long quotes: the start, and how much was left out."""
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


def encodable(text: str) -> str:
    """As it stands, but lone surrogates (bytes that were no UTF-8) become visible, so that it encodes."""
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return re.sub("[\ud800-\udfff]", lambda found: _escape(ord(found.group())), text)
    return text


def _visible(character: str) -> str:
    if character.isprintable() or unicodedata.category(character) == "Zs":
        return character
    return _escape(ord(character))


def _escape(code: int) -> str:
    if 0xDC80 <= code <= 0xDCFF:  # how Python carries a byte that was no UTF-8
        code -= 0xDC00
    if code == 0x0D:
        return r"\r"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
