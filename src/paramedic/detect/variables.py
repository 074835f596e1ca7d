"""Environment variables that do not do what they should, wherever they are set: on a node, in a script, in an image."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping

from packaging.version import InvalidVersion, Version

from paramedic.detect.setup import Hit, Setup, shown
from paramedic.knowledge.facts import Row, load_variables
from paramedic.model import Event, Fact

_WITH_A_RULE_OF_ITS_OWN = ("NCCL_TIMEOUT",)

# -- a name, a value -----------------------------------------------------------------------------------------------


def meant(name: str) -> str:
    """The known name that it is a slip of. A word more or less is another name, not a slip."""
    family = _family(name)
    if family is None or _is_known(name, family):
        return ""
    near = difflib.get_close_matches(name, family["names"], n=1, cutoff=0.9)
    same_words = [known for known in near if abs(len(known) - len(name)) <= 2 and _slips(name, known) <= 2]
    return same_words[0] if same_words else ""


def unread(name: str) -> str:
    """Of a name that nobody reads, although its family's list is whole: where that list comes from."""
    family = _family(name)
    if family is None or not family["whole"] or _is_known(name, family) or meant(name):
        return ""
    return str(family["source"])


def wrong(name: str, value: str) -> str:
    """What its reader does not understand about the value."""
    for row in load_variables().values:
        if name in row["names"] and (why := _not_understood(value, row)):
            return why
    return ""


def _family(name: str) -> Row | None:
    families = [family for family in load_variables().family if name.startswith(family["prefix"])]
    return max(families, key=lambda family: len(family["prefix"]), default=None)


def _is_known(name: str, family: Row) -> bool:
    return name in family["names"] or name.startswith(tuple(family.get("others", ())))


def _slips(one: str, other: str) -> int:
    """Edit distance, with a swap of neighbours as one."""
    rows = [list(range(len(other) + 1))]
    for i, a in enumerate(one, 1):
        row = [i]
        for j, b in enumerate(other, 1):
            cost = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (a != b))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                cost = min(cost, rows[-2][j - 2] + 1)
            row.append(cost)
        rows.append(row)
    return rows[-1][-1]


def _not_understood(text: str, row: Row) -> str:
    if not text:
        return ""
    if row["form"] == "number":
        return "" if re.fullmatch(r"\s*-?(?:0x)?[0-9a-fA-F]+\s*", text) else "is no number"
    if row["form"] == "words":
        return "" if text.strip().upper() in row["words"] else f"is none of {', '.join(row['words'])}"
    keys = [part.split(":", 1)[0].strip() for part in re.sub(r"\[[^\]]*\]", "", text).split(",") if part.strip()]
    odd = [key for key in keys if key not in row["words"]]
    return f"names {odd[0]!r}, which is no option" if odd else ""


# -- set in a project's files --------------------------------------------------------------------------------------


def misspelt(setup: Setup) -> Iterator[Hit]:
    for given in _given(setup):
        for name, item in given.items():
            if (right := meant(name)) and right not in given:
                yield Hit((item,), {"name": name, "meant": right, "line": item.line})


def not_read(setup: Setup) -> Iterator[Hit]:
    """A script may set a variable for itself alone."""
    used = {(event.source, event.text) for event in setup.events("used")}
    for given in _given(setup):
        for name, item in given.items():
            if unread(name) and name not in _WITH_A_RULE_OF_ITS_OWN and (item.source, name) not in used:
                yield Hit((item,), {"name": name})


def renamed(setup: Setup) -> Iterator[Hit]:
    for given in _given(setup):
        for row in load_variables().renamed:
            item = given.get(row["name"])
            if item is not None and row["to"] not in given and not _is_before(setup, row):
                yield Hit((item,), {key: row[key] for key in ("name", "to", "package", "since")})


def not_understood(setup: Setup) -> Iterator[Hit]:
    for given in _given(setup):
        for name, item in given.items():
            value = shown(item.fields["value"] if isinstance(item, Event) else item.value)
            if value != "null" and not value.startswith("=") and (why := wrong(name, value)):
                yield Hit((item,), {"name": name, "value": value, "wrong": why})


def _given(setup: Setup) -> Iterator[Mapping[str, Fact | Event]]:
    """By name, for every place where variables are set together."""
    for part in setup.of("environment"):
        yield part.facts
    for script in setup.scripts:
        yield {event.fields["name"]: event for event in script.events if event.kind == "variable"}


def _is_before(setup: Setup, row: Row) -> bool:
    """Whether the release that is installed, or pinned by the project, still has the old name."""
    pinned = (str(part.get(row["package"]) or "") for part in setup.of("requirements"))
    versions = [text.removeprefix("==").strip() for text in pinned if text.startswith("==")]
    versions += [str(fact.value) for fact in setup.run.facts if fact.name == f"package {row['package']}"]
    return any(_version(text) < Version(row["since"]) for text in versions)


def _version(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("9999")
