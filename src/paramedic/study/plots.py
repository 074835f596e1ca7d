"""The report's plots: matplotlib, as SVG inside the page. Each comes with the sentence that says what to learn from it."""

from __future__ import annotations

import io
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.faults import OF_STUDY, Seen, together
from paramedic.study.flows import REST, layout, weights
from paramedic.study.needed import needed

COLOURS = {
    "initialization": "#4c78a8", "communication": "#f58518", "computation": "#54a24b", "memory": "#e45756",
    "fault-tolerance": "#b279a2", "scheduling": "#9d755d",
}  # fmt: skip
_GREY = "#8a929c"
_MOST = 15
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


def plots(faults: Sequence[Seen]) -> list[Plot]:
    return [make(faults) for make in (by_stage, flow, by_framework, over_time, by_release, to_resolution, co_occurrence)]


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


def _stages() -> list[str]:
    return list(load_taxonomy().stages)


def _share(part: int, of: int) -> str:
    return f"{100 * part / of:.0f} %" if of else "0 %"


# -- what fails ----------------------------------------------------------------------------------------------------


def by_stage(faults: Sequence[Seen]) -> Plot:
    title = "What fails, and at which stage"
    counts = Counter(one.symptom for one in faults)
    if not counts:
        return Plot(title, "No fault is known here yet.", "")
    order = sorted(counts, key=lambda id: (counts[id], id))
    stage_of = {one.symptom: one.stage for one in faults}

    def draw(axes: Any) -> None:
        axes.barh(order, [counts[id] for id in order], color=[COLOURS[stage_of[id]] for id in order])
        for place, id in enumerate(order):
            axes.text(counts[id], place, f" {counts[id]}", va="center", fontsize=8)
        axes.set_xlabel("faults")
        _legend(axes, [stage for stage in _stages() if stage in stage_of.values()])

    stages = Counter(one.stage for one in faults)
    top, first = order[-1], stages.most_common(1)[0]
    five = sum(n for _, n in counts.most_common(5))
    caption = (
        f"{_share(five, len(faults))} of {len(faults):,} faults fall to five symptoms, {top} the commonest "
        f"({_share(counts[top], len(faults))}); {_share(first[1], len(faults))} belong to the stage {first[0]}: look there first."
    )
    return Plot(title, caption, drawn("stage", (8.2, 0.24 * len(order) + 1.1), draw))


def _legend(axes: Any, stages: Sequence[str], **how: Any) -> None:
    patches = needed("matplotlib.patches")
    handles = [patches.Patch(color=COLOURS[stage], label=stage) for stage in stages]
    axes.legend(handles=handles, frameon=False, fontsize=8, **({"loc": "lower right"} | how))


def flow(faults: Sequence[Seen]) -> Plot:
    title = "From symptom over cause to cure"
    boxes, bands = layout(*weights(faults))
    if not boxes:
        return Plot(title, "No fault here has a known fix.", "")
    stages = {str(id): entry.id.stage for id, entry in load_taxonomy().symptoms.items()}

    def draw(axes: Any) -> None:
        path, patches = needed("matplotlib.path").Path, needed("matplotlib.patches")
        for band in bands:
            x, to = band.column + 0.06, band.column + 0.94
            (low, high), (low_to, high_to), bend = band.left, band.right, (to - x) / 2
            points = [(x, high), (x + bend, high), (to - bend, high_to), (to, high_to),
                      (to, low_to), (to - bend, low_to), (x + bend, low), (x, low), (x, high)]  # fmt: skip
            codes = [path.MOVETO, *[path.CURVE4] * 3, path.LINETO, *[path.CURVE4] * 3, path.CLOSEPOLY]
            colour = COLOURS[stages[band.source]] if band.source in stages else _GREY
            axes.add_patch(patches.PathPatch(path(points, codes), facecolor=colour, alpha=0.35, lw=0))
        for box in boxes:
            colour = COLOURS[stages[box.name]] if box.name in stages else _GREY
            axes.add_patch(patches.Rectangle((box.column - 0.06, box.low), 0.12, box.high - box.low, color=colour, lw=0))
            side = {0: ("right", -0.08), 1: ("center", 0.0), 2: ("left", 0.08)}[box.column]
            axes.text(box.column + side[1], (box.low + box.high) / 2, f"{box.name} {box.weight:.0f}", ha=side[0], va="center", fontsize=7.5)
        axes.set_xlim(-0.75, 2.85)
        axes.set_ylim(-0.02, 1.02)
        axes.axis("off")

    cures = Counter[str]()
    for one in faults:
        cures.update(one.fixes)
    two = [name for name, _ in cures.most_common(2)]
    cured = [one for one in faults if one.fixes]
    either = sum(bool(set(one.fixes) & set(two)) for one in cured)
    judged = sum(not one.cause for one in cured)
    caption = (
        f"{_share(either, len(cured))} of {len(cured):,} faults with a known fix were cured by {' or '.join(two)}. "
        f"Causes of {judged:,} of them are not labelled and are shared out by the base rates: judgement, not counts."
    )
    return Plot(title, caption, drawn("flow", (11, 7.2), draw))


def by_framework(faults: Sequence[Seen]) -> Plot:
    title = "By framework"
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in faults:
        counts[one.framework or "unknown"][one.stage] += 1
    if not counts:
        return Plot(title, "No fault is known here yet.", "")
    order = sorted(counts, key=lambda name: (sum(counts[name].values()), name))[-_MOST:]

    def draw(axes: Any) -> None:
        left = [0.0] * len(order)
        for stage in _stages():
            part = [100 * counts[name][stage] / sum(counts[name].values()) for name in order]
            axes.barh([f"{name} ({sum(counts[name].values())})" for name in order], part, left=left, color=COLOURS[stage])
            left = [one + two for one, two in zip(left, part, strict=True)]
        axes.set_xlabel("share of its faults, %")
        _legend(axes, _stages(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)

    usual = Counter(one.stage for one in faults)
    name, stage, factor = max(
        (
            (name, stage, n / sum(counts[name].values()) / (usual[stage] / len(faults)))
            for name in order
            for stage, n in counts[name].items()
            if n >= 5
        ),
        key=lambda item: item[2],
        default=("", "", 0.0),
    )
    caption = (
        f"Every row is one framework's faults by stage. {name} has {factor:.1f} times the usual share of faults in the stage {stage}."
        if factor > 1.2
        else "Every row is one framework's faults by stage; no framework stands out with five faults or more in a stage."
    )
    return Plot(title, caption, drawn("framework", (8.2, 0.34 * len(order) + 1.2), draw))


# -- when ----------------------------------------------------------------------------------------------------------


def over_time(faults: Sequence[Seen]) -> Plot:
    title = "Over time"
    dated = [one for one in faults if one.created]
    if len(dated) < 2:
        return Plot(title, "Study 1's labels have no dates; fetch the posts behind them (`study fetch linked`) or a tracker.", "")
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in dated:
        assert one.created
        counts[f"{one.created.year} Q{(one.created.month + 2) // 3}"][one.stage] += 1
    quarters = _all_quarters(min(counts), max(counts))

    def draw(axes: Any) -> None:
        bottom = [0] * len(quarters)
        for stage in _stages():
            part = [counts[quarter][stage] for quarter in quarters]
            axes.bar(range(len(quarters)), part, bottom=bottom, color=COLOURS[stage], width=0.85)
            bottom = [one + two for one, two in zip(bottom, part, strict=True)]
        step = max(1, len(quarters) // 12)
        axes.set_xticks(range(0, len(quarters), step), quarters[::step], rotation=45, ha="right")
        axes.set_ylabel("faults reported")
        _legend(axes, _stages(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)

    most = max(quarters, key=lambda quarter: sum(counts[quarter].values()))
    half = len(quarters) // 2
    early, late = (Counter[str](), Counter[str]())
    for place, quarter in enumerate(quarters):
        (early if place < half else late).update(counts[quarter])
    grown = max(_stages(), key=lambda stage: late[stage] / max(late.total(), 1) - early[stage] / max(early.total(), 1))
    caption = (
        f"{len(dated):,} faults with a date; most were reported in {most} ({sum(counts[most].values())}). "
        f"From the first half to the second, the share of the stage {grown} grew most: "
        f"{_share(early[grown], early.total())} to {_share(late[grown], late.total())}."
    )
    return Plot(title, caption, drawn("time", (8.2, 3.4), draw))


def _all_quarters(first: str, last: str) -> list[str]:
    year, quarter = int(first[:4]), int(first[-1])
    found = [first]
    while found[-1] < last and len(found) < 400:
        year, quarter = (year, quarter + 1) if quarter < 4 else (year + 1, 1)
        found.append(f"{year} Q{quarter}")
    return found


def by_release(faults: Sequence[Seen]) -> Plot:
    title = "By release"
    released = [one for one in faults if one.release]
    if not released:
        return Plot(title, "No releases are known: `study fetch github:OWNER/NAME` brings a repository's releases, too.", "")
    name = Counter(one.framework for one in released).most_common(1)[0][0]
    mine = sorted((one for one in released if one.framework == name and one.created), key=lambda one: one.created or one.post)
    order = list(dict.fromkeys(one.release for one in mine))[-25:]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in mine:
        counts[one.release][one.stage] += 1

    def draw(axes: Any) -> None:
        bottom = [0] * len(order)
        for stage in _stages():
            part = [counts[tag][stage] for tag in order]
            axes.bar(order, part, bottom=bottom, color=COLOURS[stage])
            bottom = [one + two for one, two in zip(bottom, part, strict=True)]
        axes.tick_params(axis="x", rotation=60)
        axes.set_ylabel("faults reported")
        _legend(axes, _stages(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)

    worst = max(order, key=lambda tag: sum(counts[tag].values()))
    caption = (
        f"Faults of {name} by the newest release when they were reported, not by the release in use. {worst} drew the most "
        f"({sum(counts[worst].values())}): see what it changed before you upgrade to it."
    )
    return Plot(title, caption, drawn("release", (8.2, 3.4), draw))


def to_resolution(faults: Sequence[Seen]) -> Plot:
    title = "Time to resolution"
    days: dict[str, list[float]] = defaultdict(list)
    for one in faults:
        if one.days is not None:
            days[one.symptom].append(max(one.days, 0.02))
    known = {symptom: sorted(found) for symptom, found in days.items() if len(found) >= 3}
    if not known:
        return Plot(title, "No symptom has three resolved posts with dates; fetch a tracker or the posts behind study 1.", "")
    order = sorted(known, key=lambda id: (-statistics.median(known[id]), id))

    def draw(axes: Any) -> None:
        axes.boxplot([known[id] for id in order], vert=False, showfliers=False, widths=0.6, medianprops={"color": "#e45756"})
        axes.set_yticks(range(1, len(order) + 1), [f"{id} ({len(known[id])})" for id in order])
        axes.set_xscale("log")
        axes.set_xlabel("days until it was closed or answered (log scale)")

    slow, fast = order[0], order[-1]
    all = statistics.median(day for found in known.values() for day in found)
    caption = (
        f"Half of the resolved posts took longer than {_days(all)}. {slow} takes longest (median {_days(statistics.median(known[slow]))}), "
        f"{fast} is cured soonest ({_days(statistics.median(known[fast]))}). Posts still open are not in it, so true times are longer."
    )
    return Plot(title, caption, drawn("resolution", (8.2, 0.3 * len(order) + 1.2), draw))


def _days(days: float) -> str:
    return f"{days:.0f} days" if days >= 2 else f"{24 * days:.0f} hours"


def co_occurrence(faults: Sequence[Seen]) -> Plot:
    title = "What comes together"
    pairs = together(faults)
    if not pairs:
        return Plot(title, "No post here has two different symptoms.", "")
    names = sorted({name for pair in pairs for name in pair})
    matrix = [[pairs.get((min(a, b), max(a, b)), 0) if a != b else 0 for b in names] for a in names]

    def draw(axes: Any) -> None:
        axes.imshow(matrix, cmap="Oranges", aspect="auto")
        axes.set_xticks(range(len(names)), names, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(range(len(names)), names, fontsize=7.5)
        for row, line in enumerate(matrix):
            for column, n in enumerate(line):
                if n:
                    axes.text(column, row, n, ha="center", va="center", fontsize=8)

    (first, second), n = max(pairs.items(), key=lambda item: (item[1], item[0]))
    several = {one.post for one in faults if one.by == OF_STUDY}
    caption = (
        f"{first} and {second} were reported in the same post most often ({n} times); {sum(pairs.values())} such pairs in all, "
        f"out of {len(several):,} posts labelled with all their faults: cure one and the other may remain."
    )
    side = 0.32 * len(names) + 2.2
    return Plot(title, caption, drawn("together", (side, side * 0.8), draw))


__all__ = ["REST", "Plot", "plots"]
