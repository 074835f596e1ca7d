"""The score as one self-contained HTML page: no script, no network."""

from __future__ import annotations

from html import escape

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from paramedic import __version__
from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.ward.score import NO_VERDICT, Bin, Score
from paramedic.ward.systems import SYSTEMS
from paramedic.ward.tables import COLUMNS, cells, left_out, pairs

_SPLITS = {"development": "development cases", "held-back": "held-back cases", "all": "all cases"}
_SIDE, _EDGE = 320, 44


def render(score: Score, commit: str = "", seen: int | None = None) -> str:
    environment = Environment(
        loader=PackageLoader("paramedic.ward", "assets"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    order = list(load_taxonomy().symptoms)
    true = {pair[0] for pair in score.confusion}
    said = {pair[1] for pair in score.confusion}
    return environment.get_template("score.html.j2").render(
        score=score,
        words=_SPLITS[score.split],
        version=__version__,
        commit=commit,
        seen=seen,
        columns=COLUMNS,
        cells=cells,
        baselines=[("paramedic", score.canonical), *score.baselines.items()],
        layouts=[("all", score.every), *score.by_layout.items()],
        systems=[(SYSTEMS[name], one) for name, one in score.by_system.items()],
        stages=list(score.by_stage.items()),
        alterations=list(pairs(score)),
        left_out=list(left_out(score)),
        plot=Markup(_plot(score.calibration)),
        confusion={
            "rows": [s for s in order if s in true],
            "columns": [s for s in [*order, NO_VERDICT] if s in true | said],
        },
        none_said=NO_VERDICT,
    )


def _plot(bins: tuple[Bin, ...]) -> str:
    """Confidence to the right, share right upwards; a dot's area is the number of verdicts."""
    most = max((one.n for one in bins), default=1)
    parts = [
        f'<svg role="img" aria-label="reliability diagram" width="{_SIDE + 2 * _EDGE}" height="{_SIDE + 2 * _EDGE}">',
        _line(0, 0, 1, 1, "ideal"),
        _line(0, 0, 1, 0, "axis"),
        _line(0, 0, 0, 1, "axis"),
    ]
    for tick in (0, 0.5, 1):
        parts.append(f'<text x="{_x(tick)}" y="{_y(0) + 18}" text-anchor="middle">{tick:g}</text>')
        parts.append(f'<text x="{_x(0) - 8}" y="{_y(tick) + 4}" text-anchor="end">{tick:g}</text>')
    for one in bins:
        parts.append(_line(one.said, one.said, one.said, one.right, "gap"))
        told = escape(f"{one.n} verdicts: said {one.said:.2f}, right {one.right:.2f}")
        radius = 4 + 10 * (one.n / most) ** 0.5
        parts.append(
            f'<circle class="dot" cx="{_x(one.said):.1f}" cy="{_y(one.right):.1f}" r="{radius:.1f}">'
            f"<title>{told}</title></circle>"
        )
        parts.append(f'<text x="{_x(one.said) + radius + 3:.1f}" y="{_y(one.right) + 4:.1f}">{one.n}</text>')
    parts.append(f'<text x="{_x(0.5)}" y="{_y(0) + 38}" text-anchor="middle">confidence of the verdict</text>')
    parts.append(f'<text x="{_x(0)}" y="{_y(1) - 12}">share whose symptom is right</text></svg>')
    return "".join(parts)


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{_x(x1):.1f}" y1="{_y(y1):.1f}" x2="{_x(x2):.1f}" y2="{_y(y2):.1f}"/>'


def _x(value: float) -> float:
    return _EDGE + value * _SIDE


def _y(value: float) -> float:
    return _EDGE + (1 - value) * _SIDE
