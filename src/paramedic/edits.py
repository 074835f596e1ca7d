"""One change of one setting in a text, all else kept: comments, order, spaces. What cannot be done surely is refused.

After every change the text is parsed again: the setting has its new value, and every other setting its old one.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from paramedic.collect import code, configs
from paramedic.collect.formats import Broken, Entry, Section

_MARK = "\ufeff"
"""What some editors put before a text: it is no part of it, and stays."""


class CannotEdit(ValueError):
    """The change has to be made by hand; says why."""


def edited(name: str, text: str, action: Mapping[str, Any]) -> str:
    """`action` says `edit` (set, add, remove, rename, replace), `key`, `value`, and which `section` of the file."""
    if text.startswith(_MARK):
        return _MARK + edited(name, text.removeprefix(_MARK), action)
    edit = action.get("edit")
    if edit == "replace":
        return _replaced(text, action)
    section = _section(name, text, action)
    style = _style(name)
    entry = next((e for e in reversed(section.entries) if e.key == action["key"]), None)
    value = action.get("value")
    if edit == "set" and entry is not None and isinstance(entry.value, dict):
        raise CannotEdit(f"{entry.key} holds settings of its own")
    if edit in ("remove", "rename"):
        if entry is None:
            raise CannotEdit(f"{action['key']} is not there")
        if section.kind == "requirements" and not name.endswith((".txt", ".in")):
            raise CannotEdit("it stands in a command")
        new = _removed(text, entry, section, style) if edit == "remove" else _renamed(text, entry, str(value), style)
    elif entry is not None:
        new = text[: entry.start] + _written(value, style) + text[entry.end :]
    else:
        new = _added(text, section, action, style)
    _verify(name, text, new, action, section)
    return new


def _style(name: str) -> str:
    base = name.rsplit("/", 1)[-1]
    suffix = PurePosixPath(base).suffix.lower()
    by_suffix = {
        ".json": "json",
        ".jsonc": "json",
        ".hjson": "json",
        ".yaml": "yaml",
        ".yml": "yaml",
        ".toml": "toml",
        ".py": "python",
    }
    return by_suffix.get(suffix, "docker" if "ockerfile" in base else "shell")


def _section(name: str, text: str, action: Mapping[str, Any]) -> Section:
    number = action.get("section", 0)
    for section in _sections(name, text):
        if section.number == number and (action.get("part") in (None, section.kind)):
            return section
    raise CannotEdit("the place is not found again")


def _sections(name: str, text: str) -> list[Section]:
    try:
        return code.read(name, text).sections if name.endswith(".py") else configs.sections_of(name, text)[0]
    except Broken as error:
        raise CannotEdit(f"line {error.line}: {error.why}") from None


def _written(value: Any, style: str) -> str:
    if style == "python":
        return repr(value)
    if style == "shell":
        return shlex.quote(json.dumps(value) if not isinstance(value, str) else value)
    if style == "docker":
        return value if isinstance(value, str) else json.dumps(value)
    if style == "yaml" and isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z_][\w./ -]*(?<! )", value) and value.lower() not in _SPECIAL
        return value if plain else json.dumps(value)
    return json.dumps(value)


_SPECIAL = frozenset(("true", "false", "yes", "no", "on", "off", "null", "y", "n"))


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _line_start(text: str, at: int) -> int:
    return text.rfind("\n", 0, at) + 1


def _line_end(text: str, at: int) -> int:
    """Just behind the line's newline."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _indent(text: str, at: int) -> str:
    found = re.compile(r"[ \t]*").match(text, _line_start(text, at))
    return found[0] if found else ""


# -- replace -------------------------------------------------------------------------------------------------------


def _replaced(text: str, action: Mapping[str, Any]) -> str:
    """One literal text on the named line by another."""
    lines = text.split("\n")
    at, old = int(action.get("line", 0)) - 1, str(action.get("old", ""))
    if not 0 <= at < len(lines) or not old or lines[at].count(old) != 1:
        raise CannotEdit(f"line {at + 1} does not hold {old!r} once")
    lines[at] = lines[at].replace(old, str(action["value"]))
    return "\n".join(lines)


# -- rename --------------------------------------------------------------------------------------------------------


def _renamed(text: str, entry: Entry, new: str, style: str) -> str:
    start = entry.whole[0]
    if style == "json":
        old, written = json.dumps(entry.name), json.dumps(new)
    elif style in ("yaml", "toml"):
        old, written = entry.name, new
    elif style == "shell" and (found := re.compile(r"--?[\w-]+").match(text, start)):
        old, written = found[0], "--" + (new.replace("_", "-") if "-" in found[0].lstrip("-") else new)
    else:
        raise CannotEdit("keys of this format are not renamed")
    if not text.startswith(old, start):
        raise CannotEdit(f"{entry.name} is written in an unusual way")
    return text[:start] + written + text[start + len(old) :]


# -- remove --------------------------------------------------------------------------------------------------------


def _removed(text: str, entry: Entry, section: Section, style: str) -> str:
    if style == "json":
        return _member_removed(text, *entry.whole)
    if style in ("shell", "docker"):
        return _word_removed(text, *entry.whole)
    if style not in ("yaml", "toml"):
        raise CannotEdit("nothing is taken out of programs")
    start = _line_start(text, entry.whole[0])
    if text[start : entry.whole[0]].strip():
        raise CannotEdit(f"{entry.key} shares its line")
    last = _last_end(section, entry)
    if re.match(r"[ \t]*[,}\]]", text[last:]):
        raise CannotEdit(f"{entry.key} stands in a list on one line")
    return text[:start] + text[_line_end(text, last) :]


def _last_end(section: Section, entry: Entry) -> int:
    """Of the last plain value in it: a YAML block itself ends where the next one begins."""
    inner = [e.end for e in section.entries if e.key.startswith((f"{entry.key}.", f"{entry.key}["))]
    inner = [
        e.end for e in section.entries if e.end in inner and e.value != {} and not isinstance(e.value, list)
    ] or inner
    return max(inner) if inner else entry.end


def _member_removed(text: str, start: int, end: int) -> str:
    comma = re.compile(r"[ \t\r\n]*,").match(text, end)
    if comma:
        end = comma.end()
    elif before := re.compile(r",[ \t\r\n]*$").search(text[:start]):
        return text[: before.start()] + text[end:]
    line = _line_start(text, start)
    rest = re.compile(r"[ \t]*\r?(?:\n|$)").match(text, end)
    if rest and not text[line:start].strip():
        return text[:line] + text[rest.end() :]
    return text[:start] + text[end:].lstrip(" ")


def _word_removed(text: str, start: int, end: int) -> str:
    line, after = _line_start(text, start), _line_end(text, end)
    front, back = text[line:start], text[end:after]
    leads = not front.strip() or front.strip() in ("export", "ENV")
    if leads and re.fullmatch(r"[ \t]*(?:#[^\n]*|\\)?\r?\n?", back):
        return text[:line] + text[after:]
    return text[:start].rstrip(" \t") + (text[end:] if back.strip() else text[end:].lstrip(" \t"))


# -- add -----------------------------------------------------------------------------------------------------------


def _added(text: str, section: Section, action: Mapping[str, Any], style: str) -> str:
    key, value = str(action["key"]), action.get("value")
    if style == "json":
        return _member_added(text, section, key, value)
    if style == "yaml":
        return _yaml_added(text, section, key, value)
    if style == "toml":
        return _toml_added(text, section, key, value)
    if style == "shell":
        return _option_added(text, section, key, action)
    raise CannotEdit("nothing is put into files of this kind")


def _parent(section: Section, key: str, value: Any) -> tuple[str, str, Any]:
    """The nearest object that is there; what is missing between is made."""
    parent, _, name = key.rpartition(".")
    known = {entry.key for entry in section.entries}
    while parent and parent not in known:
        parent, _, above = parent.rpartition(".")
        name, value = above, {name: value}
    return parent, name, value


def _children(section: Section, parent: str) -> list[Entry]:
    return [entry for entry in section.entries if entry.parent == parent and entry.key != parent]


def _member_added(text: str, section: Section, key: str, value: Any) -> str:
    parent, name, value = _parent(section, key, value)
    member = f"{json.dumps(name)}: {json.dumps(value)}"
    children = _children(section, parent)
    if not children:
        holder = next(entry for entry in section.entries if entry.key == parent)
        if text[holder.start : holder.end].replace(" ", "") != "{}":
            raise CannotEdit(f"{parent} is empty in an unusual way")
        return text[: holder.start] + "{" + member + "}" + text[holder.end :]
    last = max(children, key=lambda entry: entry.end)
    own_line = not text[_line_start(text, last.whole[0]) : last.whole[0]].strip()
    gap = _newline(text) + _indent(text, last.whole[0]) if own_line else " "
    return text[: last.end] + "," + gap + member + text[last.end :]


def _yaml_added(text: str, section: Section, key: str, value: Any) -> str:
    parent, name, value = _parent(section, key, value)
    children = _children(section, parent)
    if not children or isinstance(value, dict):
        raise CannotEdit(f"there is no block {parent or name} to add to")
    first = children[0].whole[0]
    indent = text[_line_start(text, first) : first]
    if indent.strip():
        raise CannotEdit(f"{parent} is not a block of its own lines")
    end = _line_end(text, max(_last_end(section, child) for child in children))
    front = text[:end] if text[:end].endswith("\n") else text[:end] + _newline(text)
    return front + f"{indent}{name}: {_written(value, 'yaml')}{_newline(text)}" + text[end:]


def _toml_added(text: str, section: Section, key: str, value: Any) -> str:
    parent, name, value = _parent(section, key, value)
    children = [entry for entry in _children(section, parent) if entry.end and entry.value != {}]
    if isinstance(value, dict) or not children:
        raise CannotEdit(f"there is no table {parent or name} to add to")
    end = _line_end(text, max(child.end for child in children))
    front = text[:end] if text[:end].endswith("\n") else text[:end] + _newline(text)
    return front + f"{name} = {_written(value, 'toml')}{_newline(text)}" + text[end:]


def _option_added(text: str, section: Section, key: str, action: Mapping[str, Any]) -> str:
    argument = str(action.get("argument", ""))
    if section.kind == "slurm":
        last = max(section.entries, key=lambda entry: entry.whole[1])
        end = _line_end(text, last.whole[1])
        return text[:end] + f"#SBATCH {argument}{_newline(text)}" + text[end:]
    head = next((entry for entry in section.entries if entry.key == "launcher"), None)
    if not argument or head is None:
        raise CannotEdit(f"no place for {key} is known")
    end = head.end
    if verb := re.compile(r"[ \t]+(?:launch|run|-m[ \t]+[\w.]+)(?=\s)").match(text, end):
        end = verb.end()
    return text[:end] + " " + argument + text[end:]


# -- proof ---------------------------------------------------------------------------------------------------------


def _verify(name: str, before: str, after: str, action: Mapping[str, Any], section: Section) -> None:
    try:
        sections = _sections(name, after)
    except CannotEdit as error:
        raise CannotEdit(f"the change would break the file: {error}") from None
    other = next((s for s in sections if s.kind == section.kind and s.number == section.number), None)
    key = str(action["key"])
    if other is None:
        if action.get("edit") == "remove" and len(section.entries) == 1:
            return
        raise CannotEdit("the change would break the file")
    if _others(other, key, action) != _others(section, key, action):
        raise CannotEdit("the change would touch other settings")
    found = [entry.value for entry in other.entries if entry.key == key]
    if action.get("edit") in ("remove", "rename") and found:
        raise CannotEdit(f"{key} would still be there")
    if action.get("edit") in ("set", "add") and "value" in action and found[-1:] != [action["value"]]:
        raise CannotEdit(f"{key} would not be {action['value']!r}")


def _others(section: Section, key: str, action: Mapping[str, Any]) -> Counter[tuple[str, str]]:
    renamed = str(action.get("value")) if action.get("edit") == "rename" else None
    parents = {key.rsplit(".", n)[0] for n in range(1, key.count(".") + 1)}
    own = {key, *parents, *({f"{key.rpartition('.')[0]}.{renamed}".lstrip(".")} if renamed else ())}
    kept = (e for e in section.entries if e.key not in own and not e.key.startswith(f"{key}."))
    if renamed:
        new = f"{key.rpartition('.')[0]}.{renamed}".lstrip(".")
        kept = (e for e in section.entries if e.key not in own and not e.key.startswith((f"{key}.", f"{new}.")))
    return Counter((entry.key, repr(entry.value)) for entry in kept)
