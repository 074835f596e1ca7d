"""The report's plots. Each comes with the sentence that says what to learn from it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from paramedic.knowledge.taxonomy import load_taxonomy
from paramedic.study.drawing import COLOURS, GREY, Plot, drawn, legend, share, stages
from paramedic.study.faults import OF_STUDY, Seen, together
from paramedic.study.flows import layout, weights
from paramedic.study.needed import needed
from paramedic.study.timing import by_release, over_time, to_resolution

_MOST = 15


def plots(faults: Sequence[Seen]) -> list[Plot]:
    return [
        make(faults) for make in (by_stage, flow, by_framework, over_time, by_release, to_resolution, co_occurrence)
    ]


def by_stage(faults: Sequence[Seen]) -> Plot:
    title = "What fails, and at which stage"
    counts = Counter(one.symptom for one in faults)
    if not counts:
        return Plot(title, "No fault is known here yet.", "")
    order = sorted(counts, key=lambda name: (counts[name], name))
    stage_of = {one.symptom: one.stage for one in faults}

    def draw(axes: Any) -> None:
        axes.barh(order, [counts[id] for id in order], color=[COLOURS[stage_of[id]] for id in order])
        for place, id in enumerate(order):
            axes.text(counts[id], place, f" {counts[id]}", va="center", fontsize=8)
        axes.set_xlabel("faults")
        legend(axes, [stage for stage in stages() if stage in stage_of.values()])

    top, first = order[-1], Counter(one.stage for one in faults).most_common(1)[0]
    five = sum(n for _, n in counts.most_common(5))
    caption = (
        f"{share(five, len(faults))} of {len(faults):,} faults fall to five symptoms, {top} the commonest "
        f"({share(counts[top], len(faults))}); {share(first[1], len(faults))} belong to the stage {first[0]}: "
        "look there first."
    )
    return Plot(title, caption, drawn("stage", (10.2, 0.24 * len(order) + 1.1), draw))


def flow(faults: Sequence[Seen]) -> Plot:
    title = "From symptom over cause to cure"
    boxes, bands = layout(*weights(faults))
    if not boxes:
        return Plot(title, "No fault here has a known fix.", "")
    stage_of = {str(id): entry.id.stage for id, entry in load_taxonomy().symptoms.items()}

    def draw(axes: Any) -> None:
        path, patches = needed("matplotlib.path").Path, needed("matplotlib.patches")
        for band in bands:
            x, to = band.column + 0.06, band.column + 0.94
            (low, high), (low_to, high_to), bend = band.left, band.right, (to - x) / 2
            points = [(x, high), (x + bend, high), (to - bend, high_to), (to, high_to),
                      (to, low_to), (to - bend, low_to), (x + bend, low), (x, low), (x, high)]  # fmt: skip
            codes = [path.MOVETO, *[path.CURVE4] * 3, path.LINETO, *[path.CURVE4] * 3, path.CLOSEPOLY]
            colour = COLOURS[stage_of[band.source]] if band.source in stage_of else GREY
            axes.add_patch(patches.PathPatch(path(points, codes), facecolor=colour, alpha=0.35, lw=0))
        for box in boxes:
            colour = COLOURS[stage_of[box.name]] if box.name in stage_of else GREY
            axes.add_patch(
                patches.Rectangle((box.column - 0.06, box.low), 0.12, box.high - box.low, color=colour, lw=0)
            )
            side = {0: ("right", -0.08), 1: ("center", 0.0), 2: ("left", 0.08)}[box.column]
            axes.text(
                box.column + side[1],
                (box.low + box.high) / 2,
                f"{box.name} {box.weight:.0f}",
                ha=side[0],
                va="center",
                fontsize=7.5,
                bbox={"facecolor": "white", "alpha": 0.75, "lw": 0, "pad": 1} if box.column == 1 else None,
            )
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
    caption = f"{share(either, len(cured))} of {len(cured):,} faults with a known fix were cured by {' or '.join(two)}."
    if judged:
        caption += f" Causes of {judged:,} of them have no label and are shared out by the base rates: no counts."
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
        for stage in stages():
            part = [100 * counts[name][stage] / sum(counts[name].values()) for name in order]
            axes.barh(
                [f"{name} ({sum(counts[name].values())})" for name in order], part, left=left, color=COLOURS[stage]
            )
            left = [one + two for one, two in zip(left, part, strict=True)]
        axes.set_xlabel("share of its faults, %")
        legend(axes, stages(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)

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
        f"Each row is a framework's faults by stage. {name} has {factor:.1f} times the usual share of {stage}."
        if factor > 1.2
        else "Each row is a framework's faults by stage; none stands out with five faults or more in a stage."
    )
    return Plot(title, caption, drawn("framework", (10.2, 0.34 * len(order) + 1.2), draw))


def co_occurrence(faults: Sequence[Seen]) -> Plot:
    title = "What comes together"
    pairs = together(faults)
    if not pairs:
        return Plot(title, "No post here has two different symptoms.", "")
    names = sorted({name for pair in pairs for name in pair})
    matrix = [[pairs.get((min(a, b), max(a, b)), 0) if a != b else 0 for b in names] for a in names]

    def draw(axes: Any) -> None:
        most = max(map(max, matrix))
        axes.pcolormesh(matrix, cmap="Oranges", vmin=0, vmax=2 * most, edgecolors="white")  # a picture is a request
        axes.invert_yaxis()
        middles = [place + 0.5 for place in range(len(names))]
        axes.set_xticks(middles, names, rotation=60, ha="right", fontsize=7.5)
        axes.set_yticks(middles, names, fontsize=7.5)
        for row, line in enumerate(matrix):
            for column, n in enumerate(line):
                if n:
                    axes.text(column + 0.5, row + 0.5, n, ha="center", va="center", fontsize=8)

    (first, second), n = max(pairs.items(), key=lambda item: (item[1], item[0]))
    several = {one.post for one in faults if one.by == OF_STUDY}
    caption = (
        f"{first} and {second} were reported in the same post most often ({n} times); {sum(pairs.values())} such "
        "pairs in all, "
        f"out of {len(several):,} posts labelled with all their faults: cure one and the other may remain."
    )
    side = 0.32 * len(names) + 2.2
    return Plot(title, caption, drawn("together", (side, side * 0.8), draw))
