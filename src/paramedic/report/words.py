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
    if "log" not in kinds:
        return 'give what the job itself has printed, too: `paramedic diagnose LOGS/ --saw "what you see"`'
    if not report.findings and _end(report.run) is not None:
        return 'where you are not content with it, say so: `paramedic diagnose LOGS/ --saw "what you see"`'
    if not report.findings and not _understood(report.run):
        return "give what the ranks, the launcher and the scheduler printed, from the first line: each may know more"
    return (
        "`paramedic run -- COMMAND` watches the job, `paramedic check` examines it before the start, "
        "`paramedic attach` one that hangs"
    )


def no_verdict(report: Report) -> str:
    """What follows the words `No verdict`."""
    if not report.run.sources and not report.findings:
        return "nothing could be examined"
    kinds = {event.kind for event in report.run.events}
    if "process" in kinds and not kinds & {"stack", "trace"}:
        why = next((f" ({one.why})" for one in report.skipped if one.what == "stacks"), "")
        return f"without their stacks it cannot be told where the ranks stand{why}"
    if not report.findings:
        return _nothing_found(report.run)
    if all(one.evidence and one.evidence[0].event.kind == "description" for one in report.findings):
        return "words alone are too little for one; what they sound like:"
    return f"{count(len(report.findings), 'finding')}, no first failure named"


def _nothing_found(run: Run) -> str:
    """Silence of three kinds: words that say nothing, lines that nobody understood, and a job that trains."""
    if run.sources and all(source.kind == "description" for source in run.sources):
        return "these words name no failure that is known"
    if not _understood(run):
        lines = count(sum(source.lines for source in run.sources), "line")
        return f"neither a training step nor an error that is known was recognised in {lines}"
    found = "nothing that is known to fail was found"
    if (end := _end(run)) is not None:
        return f"{found}, and it ends normally" + (f": {end}" if end else "")
    last = any(event.fields.get("finished") for event in run.of_kind("progress"))
    return f"{found}; it trains, and no line says that it ended" if run.stepping and not last else found


_NOT_UNDERSTOOD = frozenset({"last", "line", "complaint", "description"})
"""Kinds of events that are only lines: those that somebody looked at, and the last ones."""


def _understood(run: Run) -> bool:
    """Anything in it but lines: a step, a figure, a traceback, an end, a dump, a fact."""
    return bool(run.facts) or not {event.kind for event in run.events} <= _NOT_UNDERSTOOD


def _end(run: Run) -> str | None:
    """The line with which all of it is done, where every file that trains has one; None where it is not known."""
    ends = [event for event in run.stepping if event.fields.get("ended") or event.fields.get("closes")]
    failed = any(event.fields.get("exitcode") for event in run.of_kind("exit"))
    if not ends or failed or {event.source for event in run.stepping} - {event.source for event in ends}:
        return None
    last = max(ends, key=lambda event: event.line or 0)
    return crop(one_line(last.text), 100) if last.fields.get("ended") in (None, True, last.line) else ""
