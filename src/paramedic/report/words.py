"""The phrases all formats share: ranks, places, shares, counts, times. All of them safe to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from paramedic.model import Cascade, Cause, Event, Finding, Report, Run
from paramedic.report.escape import crop, one_line

MOST_GROUPS = 8


def name(id: str) -> str:
    """`collective-hang` as people say it."""
    return one_line(id).replace("-", " ")


def count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Never 0 % or 100 % by rounding alone."""
    if 0 < share < 0.005:
        return "<1 %"
    if 0.995 <= share < 1:
        return ">99 %"
    return f"{share * 100:.0f} %"


def compact(numbers: Iterable[int], most: int = MOST_GROUPS) -> str:
    """`0-3,7`; beyond `most` groups the rest is only counted."""
    groups = list(_groups(sorted(set(numbers))))
    shown = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in groups[:most])
    left = sum(high - low + 1 for low, high in groups[most:])
    return f"{shown} and {left:,} more" if left else shown


def _groups(numbers: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for i in range(1, len(numbers) + 1):
        if i == len(numbers) or numbers[i] != numbers[i - 1] + 1:
            yield numbers[start], numbers[i - 1]
            start = i


def on_ranks(ranks: tuple[int, ...]) -> str:
    """`rank 3`, `ranks 0-3,7`, `999 ranks (1-42,44-85 and 915 more)`."""
    different = set(ranks)
    if len(different) <= 1:
        return f"rank {ranks[0]}" if ranks else "no single rank"
    if len(list(_groups(sorted(different)))) <= MOST_GROUPS:
        return f"ranks {compact(different)}"
    return f"{len(different):,} ranks ({compact(different, 2)})"


def where(finding: Finding) -> str:
    """`rank 3 on node-03`, `host node-03`, `whole job`."""
    hosts = _hosts(finding.hosts)
    if finding.ranks:
        return on_ranks(finding.ranks) + (f" on {hosts}" if hosts else "")
    if finding.scope == "job":
        return "whole job"
    return f"{'host' if len(finding.hosts) == 1 else 'hosts'} {hosts}" if hosts else f"one {finding.scope}"


def _hosts(hosts: tuple[str, ...]) -> str:
    shown = ", ".join(crop(one_line(host), 48) for host in hosts[:3])
    return f"{shown} and {len(hosts) - 3:,} more" if len(hosts) > 3 else shown


def when(event: Event) -> str | None:
    """The event's time for people; a clock that is beyond any calendar is no time."""
    try:
        return event.time
    except (OverflowError, ValueError, OSError):
        return event.time_text or None


def place(event: Event) -> str:
    """`logs/rank3.log:812`."""
    source = "standard input" if event.source == "-" else one_line(event.source)
    return source if event.line is None else f"{source}:{event.line}"


def origin(event: Event) -> str:
    """Where and when a quote comes from: place, rank, time."""
    rank = None if event.rank is None else f"rank {event.rank}"
    time = when(event)
    return " · ".join(part for part in (place(event), rank, one_line(time) if time else None) if part)


def followed(cascade: Cascade) -> str:
    noun = "message" if cascade.count == 1 else "messages"
    return f"{cascade.count:,} {noun} on {on_ranks(cascade.ranks)} followed from this ({name(cascade.symptom)})"


def unknown(causes: tuple[Cause, ...]) -> float:
    """The share of 1 that no named cause takes."""
    return max(0.0, 1.0 - sum(cause.probability for cause in causes))


def by_probability(causes: tuple[Cause, ...]) -> list[Cause]:
    return sorted(causes, key=lambda cause: -cause.probability)


def others(report: Report) -> list[Finding]:
    """The findings beside the verdict, worst and surest first."""
    severities = {"error": 0, "warning": 1, "info": 2}
    left = [finding for finding in report.findings if finding != report.verdict]
    return sorted(left, key=lambda finding: (severities[finding.severity], -finding.confidence))


def examined(run: Run) -> str:
    """What was read, in one sentence."""
    parts = [count(len(run.sources), "source")]
    if lines := sum(source.lines for source in run.sources):
        parts.append(count(lines, "line"))
    seen = run.ranks_seen
    if seen:
        parts.append(on_ranks(seen))
    if run.world_size is not None and len(seen) < run.world_size:
        parts.append(_heard(run, len(seen), run.world_size))
    parts += [crop(one_line(framework), 32) for framework in run.frameworks[:8]]
    return ", ".join(parts)


def _heard(run: Run, seen: int, size: int) -> str:
    """Who has files of its own and wrote none is silent; whose lines stand among others' may only be unnamed."""
    if not undivided(run):
        return f"{seen:,} of {count(size, 'rank')} left output"
    return f"{seen:,} of {count(size, 'rank')} told apart" if seen else f"{count(size, 'rank')}, not told apart"


def undivided(run: Run) -> bool:
    """There are lines, and no file that is one rank's own."""
    written = [source.rank for source in run.sources if source.lines]
    return bool(written) and all(rank is None for rank in written)


def next_step(report: Report) -> str:
    """Without a verdict: what would tell more. Nothing where a job was watched, or has not been started."""
    kinds = {source.kind for source in report.run.sources}
    if report.verdict is not None or not kinds & {"log", "description"} or kinds & {"watch", "box"}:
        return ""
    if any("ChildFailedError" in event.text for event in report.run.events):
        return "ChildFailedError is only torchrun's wrapper: give the ranks' output, too (`--log-dir logs --tee 3`)"
    return "`paramedic run` watches the job, `paramedic check` looks before, `paramedic attach` at a hang"


def no_verdict(report: Report) -> str:
    """What follows the words `No verdict`."""
    if not report.run.sources and not report.findings:
        return "nothing could be examined"
    kinds = {event.kind for event in report.run.events}
    if "process" in kinds and not kinds & {"stack", "trace"}:
        why = next((f" ({one.why})" for one in report.skipped if one.what == "stacks"), "")
        return f"without their stacks it cannot be told where the ranks stand{why}"
    if not report.findings:
        return "nothing that is known to fail was found"
    return f"{count(len(report.findings), 'finding')}, no first failure named"
