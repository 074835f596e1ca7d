"""The report's plots of when: over the years, by release, and how long it takes."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

from paramedic.study.drawing import COLOURS, Plot, drawn, legend, share, stages
from paramedic.study.faults import Seen


def over_time(faults: Sequence[Seen]) -> Plot:
    title = "Over time"
    dated = [one for one in faults if one.created]
    if len(dated) < 2:
        return Plot(
            title,
            "Study 1's labels have no dates; fetch the posts behind them (`study fetch linked`) or a tracker.",
            "",
        )
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in dated:
        assert one.created
        counts[f"{one.created.year} Q{(one.created.month + 2) // 3}"][one.stage] += 1
    quarters = _all_quarters(min(counts), max(counts))

    def draw(axes: Any) -> None:
        bottom = [0] * len(quarters)
        for stage in stages():
            part = [counts[quarter][stage] for quarter in quarters]
            axes.bar(range(len(quarters)), part, bottom=bottom, color=COLOURS[stage], width=0.85)
            bottom = [one + two for one, two in zip(bottom, part, strict=True)]
        step = max(1, len(quarters) // 12)
        axes.set_xticks(range(0, len(quarters), step), quarters[::step], rotation=45, ha="right")
        axes.set_ylabel("faults reported")
        legend(axes, stages(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)

    most = max(quarters, key=lambda quarter: sum(counts[quarter].values()))
    half = len(quarters) // 2
    early, late = (Counter[str](), Counter[str]())
    for place, quarter in enumerate(quarters):
        (early if place < half else late).update(counts[quarter])
    grown = max(stages(), key=lambda stage: late[stage] / max(late.total(), 1) - early[stage] / max(early.total(), 1))
    caption = (
        f"{len(dated):,} faults with a date; most were reported in {most} ({sum(counts[most].values())}). "
        f"From the first half to the second, the share of the stage {grown} grew most: "
        f"{share(early[grown], early.total())} to {share(late[grown], late.total())}."
    )
    return Plot(title, caption, drawn("time", (10.2, 3.4), draw))


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
        return Plot(
            title, "No releases are known: `study fetch github:OWNER/NAME` brings a repository's releases, too.", ""
        )
    name = Counter(one.framework for one in released).most_common(1)[0][0]
    mine = sorted(
        (one for one in released if one.framework == name and one.created), key=lambda one: one.created or one.post
    )
    order = list(dict.fromkeys(one.release for one in mine))[-25:]
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in mine:
        counts[one.release][one.stage] += 1

    def draw(axes: Any) -> None:
        bottom = [0] * len(order)
        for stage in stages():
            part = [counts[tag][stage] for tag in order]
            axes.bar(order, part, bottom=bottom, color=COLOURS[stage])
            bottom = [one + two for one, two in zip(bottom, part, strict=True)]
        axes.tick_params(axis="x", rotation=60)
        axes.set_ylabel("faults reported")
        legend(axes, stages(), loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=6)

    worst = max(order, key=lambda tag: sum(counts[tag].values()))
    caption = (
        f"Faults of {name} by the newest release when they were reported, not by the release in use. {worst} "
        f"drew the most ({sum(counts[worst].values())}): see what it changed before you upgrade to it."
    )
    return Plot(title, caption, drawn("release", (10.2, 3.4), draw))


def to_resolution(faults: Sequence[Seen]) -> Plot:
    title = "Time to resolution"
    days: dict[str, list[float]] = defaultdict(list)
    for one in faults:
        if one.days is not None:
            days[one.symptom].append(max(one.days, 0.02))
    known = {symptom: sorted(found) for symptom, found in days.items() if len(found) >= 3}
    if not known:
        return Plot(
            title, "No symptom has three resolved posts with dates; fetch a tracker or the posts behind study 1.", ""
        )
    order = sorted(known, key=lambda name: (-statistics.median(known[name]), id))

    def draw(axes: Any) -> None:
        axes.boxplot(
            [known[id] for id in order],
            orientation="horizontal",
            showfliers=False,
            widths=0.6,
            medianprops={"color": "#e45756"},
        )
        axes.set_yticks(range(1, len(order) + 1), [f"{id} ({len(known[id])})" for id in order])
        axes.set_xscale("log")
        ticks = [day for day in (0.1, 1, 7, 30, 90, 365, 1000) if day <= 2 * max(map(max, known.values()))]
        axes.set_xticks(ticks, [f"{day:g}" for day in ticks])
        axes.minorticks_off()
        axes.set_xlabel("days until it was closed or answered (log scale)")

    slow, fast = order[0], order[-1]
    all = statistics.median(day for found in known.values() for day in found)
    longest, soonest = (_days(statistics.median(known[id])) for id in (slow, fast))
    caption = (
        f"Half of the resolved posts took longer than {_days(all)}. {slow} takes longest (median {longest}), "
        f"{fast} is cured soonest ({soonest}). Posts still open are not in it, so true times are longer."
    )
    return Plot(title, caption, drawn("resolution", (10.2, 0.3 * len(order) + 1.2), draw))


def _days(days: float) -> str:
    return f"{days:.0f} days" if days >= 2 else f"{24 * days:.0f} hours"
