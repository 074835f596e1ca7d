"""Who reaches whom, as a picture: a matrix for the terminal, and as SVG. Hosts of one network stand together."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from html import escape
from typing import Any

from rich.text import Text

from paramedic.model import Fact, Finding, Report
from paramedic.report.escape import crop, one_line

STATES = {
    "ok": ("●", "+", "green", "#2e7d32", "reaches it"),
    "slow": ("◐", "~", "yellow", "#f9a825", "reaches it, but slowly or with losses"),
    "stalled": ("◒", "M", "red", "#c62828", "connects, but large packets vanish"),
    "filtered": ("▣", "F", "red", "#c62828", "filtered"),
    "master": ("◆", "P", "red", "#c62828", "all but the master's port"),
    "unreachable": ("✗", "X", "red", "#6a1b9a", "cannot reach it"),
    "": ("·", ".", "dim", "#cfd8dc", "not tested"),
}
"""Sign, the same in ASCII, colours for terminal and page, meaning."""
MOST_IN_TERMINAL = 32
_MOST = 256
_NAME = 14


@dataclass(frozen=True, slots=True)
class Matrix:
    hosts: tuple[str, ...]
    cells: Mapping[tuple[str, str], str]
    odd: frozenset[str]

    def state(self, start: str, end: str) -> str:
        return self.cells.get((start, end), "")


def matrix(facts: Iterable[Fact], findings: Iterable[Finding]) -> Matrix:
    """From what the nodes saw of each other; `odd` are the hosts that findings name."""
    facts, findings = list(facts), list(findings)
    cells: dict[tuple[str, str], str] = {}
    order: dict[str, tuple[Any, ...]] = {fact.host: (9,) for fact in facts if fact.host}
    for fact in facts:
        if fact.name != "pair" or not isinstance(fact.value, Mapping) or fact.value.get("chosen") is False:
            continue
        ends = (str(fact.value.get("from")), str(fact.value.get("to")))
        cells[ends] = _worse(cells.get(ends, ""), _state(fact.value))
        order[ends[1]] = _network(fact.value)
    for one in findings:
        if one.rule in ("NET055", "NET056"):
            for ends, state in cells.items():
                if state == "ok" and set(ends) & set(one.hosts) and _names(one, ends):
                    cells[ends] = "slow"
    hosts = sorted(order, key=lambda host: (order[host], host))
    odd = frozenset(host for one in findings for host in one.hosts if len(one.hosts) * 2 <= max(len(hosts), 2))
    return Matrix(tuple(hosts[:_MOST]), cells, odd)


def _names(one: Finding, ends: tuple[str, str]) -> bool:
    return any(f"{ends[0]} → {ends[1]}:" in item.event.text for item in one.evidence) or len(one.hosts) == 1


def _state(pair: Mapping[str, Any]) -> str:
    if pair.get("stalled"):
        return "stalled"
    result = pair.get("result")
    if result in ("ok", "silent"):
        return "ok" if result == "ok" else ""
    if pair.get("role") == "master":
        return "master"
    return "filtered" if result in ("filtered", "refused") else "unreachable"


def _worse(one: str, other: str) -> str:
    ranks = ["", "ok", "slow", "master", "filtered", "stalled", "unreachable"]
    return max(one, other, key=ranks.index)


def _network(pair: Mapping[str, Any]) -> tuple[Any, ...]:
    try:
        address = ipaddress.ip_address(str(pair.get("address")))
    except ValueError:
        return (9,)
    return (address.version, int(address) >> (8 if address.version == 4 else 64))


def terminal(shown: Matrix, encoding: str = "utf-8") -> Text:
    """Rows dial columns. Of many hosts only those with trouble have a row."""
    plain = not _can(encoding)
    hosts = [host for host in shown.hosts if any(host in ends for ends in shown.cells)]
    text = Text()
    if not hosts:
        return text
    rows = hosts
    if len(hosts) > MOST_IN_TERMINAL:
        bad = [host for host in hosts if any(shown.state(host, other) not in ("ok", "") for other in hosts)]
        rows = bad[:MOST_IN_TERMINAL]
        text.append(f"{len(hosts) - len(bad)} of {len(hosts)} hosts reach all that they dialled.\n")
        hosts = [
            host for host in hosts if host in bad or any(shown.state(row, host) not in ("ok", "") for row in rows)
        ][:MOST_IN_TERMINAL]
        if not rows:
            return text
    wide = max(len(_short(host)) for host in rows)
    text.append(" " * (wide + 2) + "dials " + " ".join(f"{n:<2}" for n in range(1, len(hosts) + 1)) + "\n", "dim")
    for row in rows:
        text.append(f"{_short(row):>{wide}}", "bold red" if row in shown.odd else "")
        text.append(f" {hosts.index(row) + 1 if row in hosts else '-':>3}    ", "dim")
        for column in hosts:
            sign, ascii, colour, _, _ = STATES[shown.state(row, column)]
            text.append(
                ("-  " if row == column else f"{ascii if plain else sign}  "), "dim" if row == column else colour
            )
        text.append("\n")
    used = {shown.state(row, column) for row in rows for column in hosts if row != column}
    legend = [f"{s[1] if plain else s[0]} {s[4]}" for name, s in STATES.items() if name in used]
    text.append("  ".join(legend) + "\n", "dim")
    return text


def _short(host: str) -> str:
    return crop(one_line(host), _NAME)


def _can(encoding: str) -> bool:
    try:
        "".join(state[0] for state in STATES.values()).encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def svg(shown: Matrix) -> str:
    """Each cell says on hover who dialled whom and what came of it."""
    hosts, side, left = shown.hosts, 18, 130
    size = left + side * len(hosts) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size} {size}" width="{size}" role="img"'
        ' aria-label="who reaches whom" font-family="sans-serif" font-size="11">'
    ]
    for i, host in enumerate(hosts):
        colour = "#c62828" if host in shown.odd else "#37474f"
        name = escape(_short(host))
        at = left + side * i + 13
        parts.append(f'<text x="{left - 6}" y="{at}" text-anchor="end" fill="{colour}">{name}</text>')
        parts.append(f'<text transform="translate({at - 2},{left - 6}) rotate(-60)" fill="{colour}">{name}</text>')
        for j, other in enumerate(hosts):
            if host == other:
                continue
            state = STATES[shown.state(host, other)]
            title = escape(f"{one_line(host)} → {one_line(other)}: {state[4]}")
            parts.append(
                f'<rect x="{left + side * j}" y="{left + side * i}" width="{side - 2}" height="{side - 2}" rx="3"'
                f' fill="{state[3]}">'
                f"<title>{title}</title></rect>"
            )
    parts.append("</svg>")
    return "\n".join(parts)


def legend(shown: Matrix) -> list[tuple[str, str]]:
    """(colour, meaning) of what occurs."""
    used = {shown.state(a, b) for a in shown.hosts for b in shown.hosts if a != b}
    return [(state[3], state[4]) for name, state in STATES.items() if name in used]


def page(report: Report, shown: Matrix) -> str:
    """One self-contained HTML file: the matrix, then the findings."""
    from markupsafe import Markup

    from paramedic.report.html import digest, environment

    template = environment().get_template("network.html.j2")
    return template.render(
        style=Markup(_STYLE), hash=digest(_STYLE), svg=Markup(svg(shown)), legend=legend(shown),
        hosts=len(shown.hosts), odd=sorted(shown.odd), findings=report.findings, skipped=report.skipped,
    )  # fmt: skip


_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem;color:#263238}"
    "pre{background:#eceff1;padding:.5rem .8rem;overflow:auto;border-radius:4px}pre.fix{background:#e8f5e9}"
    ".legend{list-style:none;padding:0}.legend li{display:inline-block;margin-right:1.2rem}h2{font-size:1.05rem}"
    "@media(prefers-color-scheme:dark){body{background:#121212;color:#eceff1}pre{background:#263238}"
    "pre.fix{background:#1b3a20}svg text{fill:#eceff1}}"
)
