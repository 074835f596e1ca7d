"""symptom → cause → fix as a picture: bands as wide as their faults are many. Pure geometry; plots.py draws it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from paramedic.study.faults import Seen

REST = "all others"
_GAP = 0.012
Links = Mapping[tuple[str, str], float]


@dataclass(frozen=True, slots=True)
class Box:
    name: str
    column: int
    low: float
    high: float
    weight: float


@dataclass(frozen=True, slots=True)
class Band:
    column: int
    """It runs from this column to the next."""
    source: str
    target: str
    left: tuple[float, float]
    right: tuple[float, float]
    weight: float


def weights(faults: Iterable[Seen], symptoms: int = 12, causes: int = 12) -> tuple[Links, Links]:
    """(symptom, cause) and (cause, fix); a fault counts 1, shared out over its causes and fixes; the rare unite."""
    first: dict[tuple[str, str], float] = defaultdict(float)
    second: dict[tuple[str, str], float] = defaultdict(float)
    cured = [one for one in faults if one.fixes]
    top_symptoms = _top((one.symptom, 1.0) for one in cured)[:symptoms]
    top_causes = _top(item for one in cured for item in one.causes.items())[:causes]
    for one in cured:
        symptom = one.symptom if one.symptom in top_symptoms else REST
        whole = sum(one.causes.values())
        for cause, share in one.causes.items():
            name = cause if cause in top_causes else REST
            first[symptom, name] += share / whole
            for fix in one.fixes:
                second[name, fix] += share / whole / len(one.fixes)
    return dict(first), dict(second)


def _top(items: Iterable[tuple[str, float]]) -> list[str]:
    found: dict[str, float] = defaultdict(float)
    for name, weight in items:
        found[name] += weight
    return sorted(found, key=lambda name: (-found[name], name))


def layout(first: Links, second: Links) -> tuple[list[Box], list[Band]]:
    total = sum(first.values())
    if not total:
        return [], []
    sides: list[dict[str, float]] = [defaultdict(float), defaultdict(float), defaultdict(float)]
    for (symptom, cause), weight in first.items():
        sides[0][symptom] += weight
        sides[1][cause] += weight
    for (_, fix), weight in second.items():
        sides[2][fix] += weight
    boxes = [box for column, side in enumerate(sides) for box in _stacked(side, column, total)]
    place = {(box.column, box.name): box for box in boxes}
    bands = [*_bands(first, 0, place, total), *_bands(second, 1, place, total)]
    return boxes, bands


def _stacked(side: Mapping[str, float], column: int, total: float) -> list[Box]:
    """The heaviest on top, the united rest at the bottom."""
    order = sorted(side, key=lambda name: (name == REST, -side[name], name))
    room = 1 - _GAP * (len(order) - 1)
    top, made = 1.0, []
    for name in order:
        height = side[name] / total * room
        made.append(Box(name, column, top - height, top, side[name]))
        top -= height + _GAP
    return made


def _bands(links: Links, column: int, place: Mapping[tuple[int, str], Box], total: float) -> list[Band]:
    used: dict[tuple[int, str], float] = defaultdict(float)
    made = []
    order = sorted(links, key=lambda pair: (-place[column, pair[0]].high, -place[column + 1, pair[1]].high))
    for source, target in order:
        ends = []
        for key in ((column, source), (column + 1, target)):
            box = place[key]
            height = links[source, target] / box.weight * (box.high - box.low)
            top = box.high - used[key]
            used[key] += height
            ends.append((top - height, top))
        made.append(Band(column, source, target, ends[0], ends[1], links[source, target]))
    return made
