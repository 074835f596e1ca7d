"""How a plot becomes part of the page: matplotlib's SVG, the same bytes for the same faults."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.needed import needed

COLOURS = {
    "initialization": "#4c78a8", "communication": "#f58518", "computation": "#54a24b", "memory": "#e45756",
    "fault-tolerance": "#b279a2", "scheduling": "#9d755d",
}  # fmt: skip
GREY = "#8a929c"
_SETTINGS = {
    "svg.fonttype": "none", "text.parse_math": False, "font.family": "sans-serif", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#b9c0c8",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Plot:
    title: str
    caption: str
    svg: str
    """Empty where there is nothing to draw: then the caption says why."""


def drawn(name: str, size: tuple[float, float], draw: Callable[[Any], None]) -> str:
    """The same faults give the same bytes: no date, no random ids."""
    matplotlib = needed("matplotlib")
    with matplotlib.rc_context(_SETTINGS | {"svg.hashsalt": name}):
        figure = needed("matplotlib.figure").Figure(figsize=size, layout="constrained")
        draw(figure.add_subplot())
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
    return _inline(out.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    """No XML head, and ids that do not meet those of the next plot."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    return re.sub(r'((?:xlink:)?href="#|url\(#)', rf"\1{name}-", svg)


def stages() -> list[str]:
    return list(load_taxonomy().stages)


def share(part: int, of: int) -> str:
    return f"{100 * part / of:.0f} %" if of else "0 %"


def legend(axes: Any, shown: Sequence[str], **how: Any) -> None:
    patches = needed("matplotlib.patches")
    handles = [patches.Patch(color=COLOURS[stage], label=stage) for stage in shown]
    axes.legend(handles=handles, frameon=False, fontsize=8, **({"loc": "lower right"} | how))
