"""What NCCL's RAS reports of communicators whose ranks have not launched alike: who, of how many, in which process.

RAS numbers ranks within their communicator: only in the one that holds the whole job are they the job's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paramedic.detect.once import once
from paramedic.model import Event, Run
from paramedic.regex import regex

_TITLE = regex(r"^#(\d{1,6}-\d{1,6}) \([0-9a-f]{1,20}\) ")
_BEGINS = "Communicator ranks have different "
_CAMP = regex(
    r"^\s{0,8}(\d{1,6}) ranks? ha(?:ve|s) (?:launched up to operation (\d{1,18})|not launched any operations)"
)
_RANK = regex(
    r"^\s{0,8}Rank (\d{1,6})(?: has (?:launched up to operation (\d{1,18})|(not) launched any operations))? -- "
    r"GPU \S{1,60} managed by process (\d{1,10}) on node \S"
)
_GROUP = regex(r"^\s{0,8}\d{1,6}\s{1,10}\d{1,6}\s{1,10}\d{1,6}\s{1,10}\d{1,6}\s{1,10}(\d{1,6})\s{1,10}\d{1,7}\s{1,4}")


@dataclass(slots=True)
class Report:
    """One communicator, at one time that RAS was asked."""

    event: Event
    name: str = ""
    camps: Counter[int] = field(default_factory=Counter)
    """How many ranks launched so many operations."""
    named: dict[int, int | None] = field(default_factory=dict)
    """Ranks with their own count, where RAS says it."""
    processes: dict[int, int] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(self.camps.values()) + sum(count is not None for count in self.named.values())

    def behind(self) -> dict[int, int]:
        """The ranks that launched fewer operations than most did. Those without a count of their own are of the one
        smaller camp; of several camps nobody knows who is of which."""
        if not self.camps:
            return {rank: count for rank, count in self.named.items() if count is not None}
        (usual, _), *others = self.camps.most_common()
        told = {rank: count for rank, count in self.named.items() if count is not None and count < usual}
        if len(others) == 1 and others[0][0] < usual and others[0][1] == len(self.named) - len(told):
            told |= {rank: others[0][0] for rank, count in self.named.items() if count is None}
        return told


@once
def reports(run: Run) -> tuple[Report, ...]:
    return tuple(_read(run))


def _read(run: Run) -> Iterator[Report]:
    current: dict[str, Report] = {}
    titles: dict[str, str] = {}
    for event in run.saying_one_of(("#", _BEGINS, "launched", "managed by process"), "line"):
        text = event.text
        if (title := _TITLE.match(text)) is not None:
            titles[event.source] = title[1]
            current.pop(event.source, None)
        elif _BEGINS in text:
            before = "\n".join(event.fields.get("before", ())[-1:])
            found = _TITLE.match(before)
            name = found[1] if found else titles.get(event.source, "")
            current[event.source] = Report(event, f"{name} {text.strip()}", events=[event])
            yield current[event.source]
        elif "launched" in text or "managed by process" in text:
            report = current.get(event.source)
            if report is None and (said := _RANK.match(text)) is not None and (said[2] or said[3]):
                report = current[event.source] = Report(event)
                yield report
            if report is not None:
                _add(report, event)


def _add(report: Report, event: Event) -> None:
    if (camp := _CAMP.match(event.text)) is not None:
        report.camps[int(camp[2] or 0)] += int(camp[1])
    elif (said := _RANK.match(event.text)) is not None:
        rank = int(said[1])
        report.named[rank] = int(said[2]) if said[2] else 0 if said[3] else None
        report.processes[rank] = int(said[4])
    report.events.append(event)


@once
def size_of_all(run: Run) -> int | None:
    """How many ranks the largest communicator has, by RAS's table or the job's own word; None: not known."""
    rows = (_GROUP.match(event.text) for event in run.saying("  RUNNING  ", "line"))
    return max((int(row[1]) for row in rows if row), default=run.world_size)


@once
def rank_of_process(run: Run) -> Mapping[int, int]:
    """As the communicator of all ranks numbers them."""
    size = size_of_all(run)
    found: dict[int, int] = {}
    for report in reports(run):
        if size is not None and report.size >= size:
            found |= {pid: rank for rank, pid in report.processes.items()}
    return found


def stuck(run: Run) -> Iterator[tuple[Report, dict[int, int]]]:
    """What RAS said last of each communicator, with those behind; not where they had moved on since it was asked."""
    asked: dict[tuple[str, str], list[Report]] = defaultdict(list)
    for report in reports(run):
        asked[report.event.source, report.name].append(report)
    for told in asked.values():
        behind = told[-1].behind()
        if behind and (len(told) < 2 or told[-2].behind() == behind):
            yield told[-1], behind
