"""Names of hosts: without their domain, in their order, and in the names of files."""

from __future__ import annotations

import re

from paramedic.regex import regex

ADDRESS = regex(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*")


def short(host: str) -> str:
    """Without the domain; an address stays whole."""
    return host.lower() if ADDRESS.fullmatch(host) else host.lower().split(".", 1)[0]


def in_order(name: str) -> list[tuple[bool, int, str]]:
    """node-2 before node-10."""
    return [(not part.isdigit(), int(part) if part.isdigit() else 0, part) for part in re.split(r"(\d{1,18})", name)]


def parts_of_name(source: str) -> set[str]:
    """`kernel-node-02.log`, `node-02_dmesg.txt`: every end of it may be a host's name, and what ends with a number."""
    stem = re.sub(r"\.(?:log|txt|out|err|gz|zst)\b.*$", "", source.rsplit("/", 1)[-1])[:200]
    cuts = list(re.finditer(r"[-_.]", stem))
    heads = (stem[: cut.start()] for cut in cuts if stem[cut.start() - 1 : cut.start()].isdigit())
    return {stem, *(stem[cut.end() :] for cut in cuts), *heads}
