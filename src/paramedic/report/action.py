"""A fix's action as text that can be copied: a shell line, a configuration line, or a hint."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import Any

from paramedic.report.escape import one_line, printable

KINDS = {
    "env": "environment variable",
    "config": "configuration",
    "launch": "launch argument",
    "package": "package",
    "command": "command",
    "code": "code",
}


def label(action: Mapping[str, Any]) -> str:
    """What is to be changed: `configuration, ds_config.json`."""
    kind = one_line(str(action.get("kind", "")))
    words = KINDS.get(kind, kind or "action")
    return f"{words} in {one_line(str(action['file']))}" if "file" in action else words


def copyable(action: Mapping[str, Any]) -> str:
    """Ready to paste; commands and hints may have several lines, all else has one."""
    match action:
        case {"kind": "env", "name": name, "value": value}:
            text = f"export {one_line(str(name))}={shlex.quote(one_line(_plain(value)))}"
        case {"kind": "config", "key": key, "value": value}:
            text = f"{one_line(str(key))} = {one_line(json.dumps(value, default=str, ensure_ascii=False))}"
        case {"kind": "launch", "argument": argument}:
            text = one_line(str(argument))
        case {"kind": "package", "requirement": requirement}:
            text = f"pip install {shlex.quote(one_line(str(requirement)))}"
        case {"kind": "command", "run": lines} | {"kind": "code", "hint": lines}:
            text = printable(str(lines)).strip("\n")
        case _:
            rest = {str(key): _plain(value) for key, value in action.items() if key != "kind"}
            text = "\n".join(f"{one_line(key)} = {one_line(value)}" for key, value in rest.items())
    return text


def _plain(value: Any) -> str:
    """True is `1` where a shell reads it."""
    return str(int(value)) if isinstance(value, bool) else str(value)
