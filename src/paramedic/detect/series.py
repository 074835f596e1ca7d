"""The numbers that ranks printed, as the detectors want them: by rank, by step, and with the lines that show them."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import NamedTuple

from paramedic.clocks import Stamp, find_stamp
from paramedic.detect.once import once
from paramedic.model import Event, Run
from paramedic.regex import regex

FIRST, LARGEST, LAST = 0, 1, -1


class Lost(NamedTuple):
    """The step at which a value became no number, the last at which it was one, that value, and the line."""

    since: str
    last: str
    before: float
    event: Event


_POINTS = 256  # more than any series of ours has: a recording is a stranger's file, and pairs are compared


@dataclass(frozen=True, slots=True)
class Series:
    """One rank's values of one quantity; `steps` are what the log calls them, `#3` where it says none."""

    name: str
    rank: int | None
    steps: tuple[str, ...]
    values: tuple[float | None, ...]
    sharded: bool
    event: Event

    @property
    def finite(self) -> list[float]:
        """At the steps of training, without what is no number."""
        pairs = zip(self.steps, self.values, strict=True)
        return [value for step, value in pairs if value is not None and not step.startswith("#")]

    @property
    def finite_steps(self) -> list[str]:
        """Where those were."""
        pairs = zip(self.steps, self.values, strict=True)
        return [step for step, value in pairs if value is not None and not step.startswith("#")]

    @property
    def split(self) -> bool:
        """Its log speaks of ranks that have parts of one replica."""
        return bool(self.event.fields.get("split"))

    @property
    def count(self) -> int:
        """Of all values, also those that were thinned out."""
        count = self.event.fields.get("count", 0)
        return count if isinstance(count, int) else 0

    @property
    def since_start(self) -> Series:
        """Without what an earlier run wrote into the same file: from where the first step stands for the last time."""
        named = self.steps[:1] != ("",) and not "".join(self.steps[:1]).startswith("#")
        last = max((at for at, step in enumerate(self.steps) if step == self.steps[0]), default=0) if named else 0
        return replace(self, steps=self.steps[last:], values=self.values[last:])

    @property
    def said(self) -> list[float]:
        """All that are numbers, also those that belong to no step."""
        return [value for value in self.values if value is not None]

    @property
    def at(self) -> dict[str, float]:
        """By step, where a step stands only once and has a finite value."""
        often = Counter(self.steps)
        pairs = zip(self.steps, self.values, strict=True)
        return {step: value for step, value in pairs if step and value is not None and often[step] == 1}

    def shown(self, *which: int) -> list[Event]:
        """The lines that show it, each as an event of its own place."""
        lines = [line.partition("\t") for line in str(self.event.fields.get("shown", "")).split("\n")]
        known = [(int(line), text) for line, _, text in lines if line.isdecimal() and int(line) > 0]
        chosen = {known[n]: n % len(known) for n in which if -len(known) <= n < len(known)}
        return [self._line(line, text, place) for (line, text), place in chosen.items()]

    @property
    def lost(self) -> Lost | None:
        """Since when it has been no number, to its end."""
        since, _, rest = str(self.event.fields.get("lost", "")).partition("\t")
        last, _, rest = rest.partition("\t")
        before, _, rest = rest.partition("\t")
        line, _, text = rest.partition("\t")
        value = _number(before)
        if value is None or not line.isdecimal():
            return None
        return Lost(since, last, value, self._line(int(line), text, len(self.values)))

    def line(self, which: int) -> int:
        """In which of the log's lines it is shown; nought where that is not known."""
        return max((event.line or 0 for event in self.shown(which)), default=0)

    def _line(self, line: int, text: str, place: int) -> Event:
        one = replace(self.event, line=line, text=text, rank=self.rank, seq=self.event.seq + place, fields={})
        return one if line == self.event.line else at_line(one, line, text)


def at_line(event: Event, line: int, text: str) -> Event:
    """The same, of another line of its source, with that line's own time."""
    stamp = find_stamp(text) or Stamp("", None, 0)
    return replace(
        event,
        line=line,
        text=text,
        utc_ns=stamp.utc_ns,
        time_text=stamp.text,
        uncertainty_ns=stamp.uncertainty_ns,
    )


def every(run: Run, *names: str) -> list[Series]:
    """All series of the last attempt whose name is one of these or begins with one of them and a blank."""
    found = of_all_attempts(run, *names)
    last = max((one.event.attempt for one in found), default=0)
    return [one for one in found if one.event.attempt == last]


def of_all_attempts(run: Run, *names: str) -> list[Series]:
    """The same of all attempts, where what one did is compared with the next."""
    known, by_word = _metrics(run)
    places = {place for name in names for place in by_word.get(_word(name), ()) if _is(known[place].name, names)}
    return [known[place] for place in sorted(places)]


@once
def _metrics(run: Run) -> tuple[Sequence[Series], dict[str, list[int]]]:
    """All of them, and the places of those whose names begin with a word: hundreds of questions are asked of them."""
    known = [_series(event) for event in run.of_kind("metric")]
    by_word: dict[str, list[int]] = defaultdict(list)
    for place, one in enumerate(known):
        by_word[_word(one.name)].append(place)
    return known, dict(by_word)


def _word(name: str) -> str:
    return name.partition(" ")[0]


def by_rank(found: Iterable[Series]) -> dict[int, Series]:
    """Each rank's longest; what is of no known rank is left out."""
    longest: dict[int, Series] = {}
    for one in found:
        if one.rank is not None and (one.rank not in longest or len(one.values) > len(longest[one.rank].values)):
            longest[one.rank] = one
    return longest


def numbered(one: Series) -> list[tuple[float, float]]:
    """(step, value) of those whose step is a number, in the order of the log."""
    pairs = ((step.rpartition("step ")[2], value) for step, value in zip(one.steps, one.values, strict=True))
    return [(float(step), value) for step, value in pairs if step.isdecimal() and value is not None]


def latest(found: Iterable[Series]) -> float | None:
    """The last value of the first of them."""
    return next((one.values[-1] for one in found if one.values), None)


def sharded(found: Iterable[Series]) -> bool:
    return any(one.sharded for one in found)


def precise(value: float, digits: int = 5) -> bool:
    """Printed with so many digits or more."""
    return len(f"{value:.12g}".partition("e")[0].replace(".", "").replace("-", "").lstrip("0")) >= digits


def names(found: Iterable[Series]) -> list[str]:
    return sorted({one.name for one in found})


def called(step: str) -> str:
    """For people: what names no step is counted by its prints."""
    return f"print {step[1:]}" if step.startswith("#") else step


def common_steps(found: Sequence[Series]) -> list[tuple[str, list[float]]]:
    """The steps that all of them have, in the order of the log, with the value of each."""
    if not found:
        return []
    tables = [one.at for one in found]
    shared = [step for step in tables[0] if all(step in table for table in tables[1:])]
    return [(step, [table[step] for table in tables]) for step in shared]


def _is(name: str, wanted: Sequence[str]) -> bool:
    return any(name == one or name.startswith(one + " ") for one in wanted)


def _series(event: Event) -> Series:
    fields = event.fields
    values = [_number(word) for word in str(fields.get("values", "")).split()]
    steps = str(fields.get("steps", "")).split("\n")
    rank = fields.get("rank") if event.rank is None or fields.get("listed") else event.rank
    size = min(len(steps), len(values), _POINTS)
    return Series(
        name=str(fields.get("name", "")),
        rank=rank if isinstance(rank, int) else None,
        steps=tuple(steps[:size]),
        values=tuple(values[:size]),
        sharded=bool(fields.get("sharded")),
        event=event,
    )


def _number(text: str) -> float | None:
    """None for what is no finite number; a recording is a stranger's file."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


# -- robust statistics ---------------------------------------------------------------------------------------------


def kendall(values: Sequence[float]) -> float:
    """Of all pairs, the share that rises less the share that falls: 1 for a steady rise, near 0 for noise."""
    rises = falls = 0
    for at, value in enumerate(values):
        rises += sum(later > value for later in values[at + 1 :])
        falls += sum(later < value for later in values[at + 1 :])
    pairs = len(values) * (len(values) - 1) // 2
    return (rises - falls) / pairs if pairs else 0.0


def parts(values: Sequence[float], number: int) -> list[float]:
    """The medians of so many equal stretches."""
    size = len(values) / number
    return [median(values[int(n * size) : max(int((n + 1) * size), int(n * size) + 1)]) for n in range(number)]


_OF_ANOTHER_RUN = regex(r"(?:^|[/._-])(?:prev|previous|reference|baseline|earlier|known[-_]?good)(?=[/._-])", re.I)


def of_this_run(found: Sequence[Series]) -> Sequence[Series]:
    """Without those of logs whose names say that they are of an earlier run, which went well, beside others."""
    own = [one for one in found if not _OF_ANOTHER_RUN.search("/".join(one.event.source.split("/")[-2:]))]
    return own or found
