"""Memory over the step for a browser: stacked areas by owner as SVG, in one HTML file that loads nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator
from html import escape
from importlib import resources

from paramedic.memory.cards import GIB
from paramedic.memory.estimate import Estimate
from paramedic.memory.picture import KINDS, total
from paramedic.memory.show import size

WIDTH, HEIGHT = 960, 430
LEFT, RIGHT, TOP, BOTTOM = 76, 18, 34, 54
FAR = 2.2
"""A card that is larger than so many times the peak would press the picture flat: it is named, not drawn."""
LETTER = 6.9
"""Pixels of a letter of the labels, on the wide side."""
LONGEST = 64
LEAST = 1 << 19
PHASES = ("forward", "backward", "optimizer")


def page(title: str, words: str, made: Estimate) -> str:
    """`page.html` with the picture, the legend and the words put in."""
    template = resources.files(__package__).joinpath("page.html").read_text("utf-8")
    parts = {
        "title": escape(title),
        "verdict": escape(words.split("\n", 1)[0]),
        "svg": _Drawing(made).svg(),
        "legend": "".join(_legend(made)),
        "words": escape(words),
    }
    for name, part in parts.items():
        template = template.replace(f"<!-- {name} -->", part)
    return template


def _legend(made: Estimate) -> Iterator[str]:
    points = made.result["series"]["points"]
    highest: dict[str, int] = max(points, key=total, default={})
    for kind, name in reversed(KINDS.items()):
        if any(point.get(kind) for point in points):
            most = highest.get(kind, 0)
            yield f'<li><i class="{kind}"></i>{name}<b>{size(most) if most >= LEAST else "little"}</b></li>'


class _Drawing:
    def __init__(self, made: Estimate) -> None:
        self.made = made
        series = made.result["series"]
        self.points, self.phases = series["points"], series["phases"]
        self.events = max(int(series["events"]), 1)
        self.peak = max(self.points, key=total, default={"event": 0})
        most = max(total(self.peak), made.reserved.mid, 1)
        self.card = made.card.memory if made.card.memory <= FAR * most else None
        self.top = max(most, self.card or 0) * 1.08

    def svg(self) -> str:
        label = escape(f"memory over the step, at most {size(total(self.peak))}")
        parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">']
        parts += [*self._grid(), *self._areas(), *self._bounds(), *self._names(), *self._limits(), *self._mark()]
        return "\n".join([*parts, "</svg>"])

    def _x(self, event: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(event / self.events, 1)

    def _y(self, value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value / self.top)

    def _grid(self) -> Iterator[str]:
        rough = self.top / GIB / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * times for times in (1, 2, 5, 10) if unit * times >= rough)
        places = max(0, -math.floor(math.log10(step)))
        for number in range(int(self.top / GIB / step) + 1):
            y = self._y(number * step * GIB)
            yield f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{number * step:.{places}f} GiB</text>'

    def _areas(self) -> Iterator[str]:
        base = [0] * len(self.points)
        for kind in KINDS:
            if not any(point.get(kind) for point in self.points):
                continue
            upper = [low + point.get(kind, 0) for low, point in zip(base, self.points, strict=True)]
            there, back = self._edge(upper), self._edge(base)[::-1]
            yield f'<polygon class="{kind}" points="{" ".join(there + back)}"/>'
            base = upper

    def _edge(self, values: list[int]) -> list[str]:
        """To both ends of the axis: the first and the last stretch begin and end there."""
        if not values:
            return []
        found = [
            f"{self._x(point['event']):.1f},{self._y(value):.1f}"
            for point, value in zip(self.points, values, strict=True)
        ]
        first, last = (f"{self._x(at):.1f},{self._y(values[index]):.1f}" for at, index in ((0, 0), (self.events, -1)))
        return [first, *found, last]

    def _bounds(self) -> Iterator[str]:
        for phase in self.phases:
            if phase["phase"] in PHASES and phase["event"]:
                x = self._x(phase["event"])
                yield f'<line class="bound" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM + 6}"/>'

    def _names(self) -> Iterator[str]:
        """Under the middle of each phase; where two would touch, the second stands a line lower."""
        free = [float(LEFT)] * 2
        ends = [phase["event"] for phase in self.phases[1:]] + [self.events]
        for phase, end in zip(self.phases, ends, strict=True):
            name = phase["phase"]
            if name not in PHASES:
                continue
            half = len(name) * LETTER / 2
            x = min(max((self._x(phase["event"]) + self._x(end)) / 2, LEFT + half), WIDTH - RIGHT - half)
            row = 0 if x - half >= free[0] else 1
            free[row] = x + half + 8
            y = HEIGHT - BOTTOM + 20 + 17 * row
            yield f'<text class="phase" x="{x:.1f}" y="{y}" text-anchor="middle">{escape(name)}</text>'

    def _limits(self) -> Iterator[str]:
        reserved = self.made.reserved.mid
        yield from self._line("reserved", reserved, f"reserved by torch {size(reserved)}", above=True)
        card = self.made.card
        if self.card is not None:
            near = abs(self._y(self.card) - self._y(reserved)) < 20
            yield from self._line(
                "card", self.card, f"the card's {size(self.card)}", above=not near or self.card > reserved
            )
        else:
            text = f"the card has {size(card.memory)}, far above"
            yield f'<text class="card" x="{LEFT + 6}" y="18">{escape(text)} ↑</text>'

    def _line(self, name: str, value: int, text: str, above: bool) -> Iterator[str]:
        y = self._y(value)
        right = name == "reserved"
        x, anchor = (WIDTH - RIGHT - 4, "end") if right else (LEFT + 6, "start")
        yield f'<line class="{name}" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>'
        at = y - 6 if above else y + 15
        yield f'<text class="{name} halo" x="{x}" y="{at:.1f}" text-anchor="{anchor}">{escape(text)}</text>'

    def _mark(self) -> Iterator[str]:
        at = self.made.result["at"]
        where = " in ".join(part for part in (str(at["operation"]), str(at["module"] or "")) if part)
        text = f"peak {size(self.made.allocated.mid)}: {at['phase']}, {where}"
        text = text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
        x, y = self._x(self.peak["event"]), self._y(total(self.peak))
        left = x > (LEFT + WIDTH - RIGHT) / 2  # beside the mark, where there is more room
        beside, anchor = (x - 11, "end") if left else (x + 11, "start")
        yield f'<circle class="peak" cx="{x:.1f}" cy="{y:.1f}" r="4"/>'
        yield f'<text class="mark halo" x="{beside:.1f}" y="{y + 4:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
