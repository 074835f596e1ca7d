"""How far a run came and how fast it was, by the lines of its log: for `paramedic diff`, which compares two."""

from __future__ import annotations

import re
import statistics
from dataclasses import dataclass, field
from itertools import pairwise

from paramedic.clocks import find_stamp

_STEP = re.compile(r"(?:\b|_)(?:global[ _])?(?:step|iter|iteration)\b\W{0,4}(\d{1,9})(?!\d*[.:]\d)", re.I)
_LOSS = re.compile(r"(?:\b|_)loss\b\W{0,4}(-?\d{1,9}(?:\.\d{1,12})?(?:e[+-]?\d{1,3})?|nan|-?inf)\b", re.I)
_TOOK = (
    (re.compile(r"(?i)(?:time per iteration|step[ _]time)\W{0,3}\(?(ms|s)\)?\W{1,3}(\d{1,9}(?:\.\d+)?)"), 2, 1),
    (re.compile(r"\b(\d{1,7}(?:\.\d{1,6})?) ?(s/it|it/s)\b"), 1, 2),
    (re.compile(r"\bloss\b.{1,60}?\b(\d{1,7}(?:\.\d{1,6})?) (ms)\b"), 1, 2),
    (re.compile(r"\beta: .{1,200}?\btime: (\d{1,6}\.\d{1,6})()"), 1, 2),
)  # fmt: skip
_RATE = re.compile(
    r"\b(\d{1,9}(?:,\d{3}){0,3}(?:\.\d{1,6})?) ?(?:tok(?:en)?s?|samples|images?|imgs?|seqs?|examples|rows)"
    r"(?:/| per )s(?:ec(?:ond)?)?\b"
    r"|\b(?:tokens|samples|images|examples)(?:/s(?:ec)?|_per_sec(?:ond)?| per second)\b[ =:]{1,3}"
    r"(\d{1,9}(?:\.\d{1,6})?)",
    re.I,
)
_MEMORY = re.compile(
    r"(?:\b|_)(?:mem|memory)(?:[ _](?:alloc(?:ated)?|reserved|used|usage|peak|max)){0,2}\W{0,3}"
    r"(\d{1,9}(?:\.\d{1,6})?) ?([GM])i?B?\b",
    re.I,
)


@dataclass(slots=True)
class Pace:
    last: int = -1
    loss: str = ""
    memory: float = 0.0
    rates: list[float] = field(default_factory=list)
    took: list[float] = field(default_factory=list)
    stamps: dict[int, int] = field(default_factory=dict)

    def see(self, line: str) -> bool:
        for pattern, number, unit in _TOOK:
            if (found := pattern.search(line)) and len(self.took) < 5_000 and (value := float(found[number])) > 0:
                self.took.append(
                    {"ms": value / 1e3, "s": value, "": value, "s/it": value, "it/s": 1 / value}[found[unit].lower()]
                )
                break
        if loss := _LOSS.search(line):
            self.loss = loss[1]
        step = _STEP.search(line)
        if (step or loss) and len(self.rates) < 5_000 and (rate := _RATE.search(line)):
            self.rates.append(float((rate[1] or rate[2]).replace(",", "")))
        if (step or loss) and (memory := _MEMORY.search(line)):
            self.memory = max(self.memory, float(memory[1]) / (1 if memory[2] in "gG" else 1024))
        if step is None:
            return loss is not None
        self.last = max(self.last, int(step[1]))
        if len(self.stamps) < 5_000 and (stamp := find_stamp(line)) is not None and stamp.utc_ns is not None:
            self.stamps.setdefault(int(step[1]), stamp.utc_ns)
        return True

    def seconds(self) -> float | None:
        """Of a step: as the log says it, else between the clocks of its lines."""
        if len(self.took) >= 3:
            return statistics.median(self.took)
        points = sorted(self.stamps.items())
        gaps = [(b - a) / (n - m) / 1e9 for (m, a), (n, b) in pairwise(points) if n > m and b > a]
        return statistics.median(gaps) if len(gaps) >= 3 else None
