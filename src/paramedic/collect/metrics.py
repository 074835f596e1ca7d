"""Numbers that training prints on its way, as series: which rank said which value at which step.

A failure that raises no error shows only here. Of a big log the beginning, the end and samples in between are read.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from paramedic.collect.activity import warns
from paramedic.collect.glue import apart
from paramedic.collect.guarded import Guarded
from paramedic.collect.layouts import By, Peeled, plain
from paramedic.collect.quantities import Value
from paramedic.collect.readings import Said, is_bar, said_in, said_of_rank
from paramedic.collect.rows import Rows, rows_of
from paramedic.collect.tables import Table, of_ranks, unpacked
from paramedic.redact import redact
from paramedic.regex import regex

POINTS = 128
"""Of one series so many are kept, evenly spread; the first, the last and the extreme lines besides."""
MAX_SERIES = 16384
WHOLE = 16 << 10
"""So much of a log's beginning is read; afterwards samples, and the end."""
TABLE = 64 << 20
"""So much of a table with a row for each rank."""
SAMPLE, EVERY = 2 << 10, 4 << 20
"""So many bytes of a block, at most once in so many."""
END = 8 << 10
"""So much of the end of a log that is too long to be read whole: of lines that are about training, and of all others
between them, which scripts and platforms write when it is over."""
TAIL = 64 << 10
"""As much of the end as `tail` is given at most."""
_MIN_LINE, _MAX_LINE = 4, 600

_WORTH = regex(
    rb"[Ll]oss|[Ss]tep|[Ii]ter|[Ee]poch|update|[Nn]orm|[Mm]em|resident|checksum|hash|/s|ms\b|[Ww]orld|[Rr]ank|"
    rb"replicas|process|MEMBER|words|tokens|documents|scale|accuracy|[Tt]hrottl|quota|[Rr]esum|[Rr]estor|holds|param|weight|"
    rb"[Aa]cc|[Tt]ime|[Bb]atch|_s\b|OMP_NUM|nproc|NTASKS|_PROCID|_RANK|torchrun|num_gpus|[Dd]evice|CUDA|[Bb]ackend|samples|examples|"
    rb"[Dd]ataset|images|loader|classes|[Vv]ocab|bs/|[Ss]eq(?:uence)?[_ -][Ll]en|"
    rb"indices|idx|shards|files|across ranks|GPU|took|MiB|[Ee]fficiency|numel|[Dd]istributed|[MGk]i?B\b|rss|RSS|"
    rb"\b(?:[Rr]?mse|mae|bce|ce|huber|elbo|ctc|mlm|kl)\b|RMSE|MSE|MAE|BCE|theta|learner"
)
_ALONE = Guarded(
    (
        " gpu", "-gpu", " process", "-process", " device", "-device", "one rank", "single rank", "1 rank",
        "standalone",
    ),
    regex(
        r"\b(?:on|with|in|by|using) (?:one|a single|1) (?:gpu|process|device|rank)\b"
        r"|\b(?:1|one|single)[ -](?:gpu|process|device)\b|\bstandalone\b",
        re.I,
    ),
)  # fmt: skip
_ALONE_LINES = 3
_JUDGED = regex(
    r"\b(?:val|valid|validation|eval\w{0,7}|test|dev|ema|score|reward|acc\w{0,6}|auc|psnr|ssim|bleu|wer|cer|fid|lddt|map|iou|knn|kl)\b"
)
"""Names of what a model is judged by: of interest also where it is not known who speaks."""
_SHARDED = (b"FSDP", b"fully_shard", b"ZeRO", b"tensor parallel", b"TensorParallel", b"pipeline", b"microbatch")
_SPLIT = (
    b"tensor parallel", b"TensorParallel", b"tensor_parallel", b"tensor_model_parallel", b"tensor-model-parallel",
    b"tp_size", b"tp=", b"TP=", b"pipeline parallel", b"pipeline_parallel", b"PipelineModule", b"pipeline stage",
    b"pp=", b"PP=", b"microbatch", b"model parallel", b"model_parallel", b"context parallel", b"context_parallel",
    b"sequence parallel", b"sequence_parallel",
)  # fmt: skip
"""Ranks may have parts of one replica, and then read the same samples."""
_BRACKETED = regex(r"\[(?:worker|trainer|process|gpu|replica|stage|proc|p)[ :_-]?(\d{1,6})\]", re.I)
_SPEAKS = regex(
    r"^(?:[^\n]{0,60}?(?:: ?| - |\] ?|\| ?)|e(?:poch )?\d{1,4} )?"
    r"(?:proc(?:ess)?|worker|trainer|learner|replica|peer|member|gpu|stage|part)[ _#]{0,2}(\d{1,6})"
    r"(?: ?[:|,\]-]| step\b| iter\w*\b| epoch\b| [a-z_]{1,16}[ =:]{1,2}\d)",
    re.I,
)
_CHANGED = ("+  ", "-  ", "+\t", "-\t")
"""Lines of a program that differ from its last version, as `git diff` prints them."""
_TIMERS = regex(r"\btimes? across ranks \((ms|s)\):\s{0,4}$")
_TIMER = regex(r"\s{1,6}([a-z][\w+-]{2,60}):$")
_TIMER_OF_RANK = regex(r"\s{2,10}rank\s{1,4}(\d{1,6}): (\d{1,9}\.\d{1,4})$")
_TIMER_RANGE = regex(r"\s{1,6}([a-z][\w+-]{2,60}) \.{0,60}: \((\d{1,9}\.\d{1,4}), (\d{1,9}\.\d{1,4})\)$")
_SPEAKER = regex(
    r"^[^\n]{0,60}?(?<!lora[ _-])(?<!low[ _-])(?<!local[ -])(?<!node[ -])(?<!\bto )(?<!from )(?<!than )"
    r"\b(?:global_|ep_|dp_)?rank['\"]?[ _=:#-]{0,2}(\d{1,6})\b",
    re.I,
)

Key = tuple[By, int | None, str, int | None, str]
"""Which prefix names the rank, that rank, the one that the line itself names, and the quantity."""


@dataclass(slots=True)
class Series:
    """One rank's values of one name in the order of the log, thinned out by halves when they become many."""

    name: str
    unit: str
    labels: list[str] = field(default_factory=list)
    values: list[float | None] = field(default_factory=list)
    count: int = 0
    unlabelled: int = 0
    inherited: str = ""
    first: tuple[int, str] = (0, "")
    last: tuple[int, str] = (0, "")
    largest: tuple[int, str] = (0, "")
    latest: tuple[str, float | None] = ("", None)
    most: float = -math.inf
    good: tuple[str, float] | None = None
    """The last that was a number, and where."""
    lost: tuple[str, int, str] | None = None
    """Since when it has been none, and the line that shows it."""
    _stride: int = 1

    def add(self, label: str, value: float | None, line: int, text: str) -> None:
        if self.count and (label, value) == self.latest:
            return  # the same line once more, as in the console and in a file
        if not self.count:
            self.first = line, text
        self.last, self.latest = (line, text), (label, value)
        if value is not None and value > self.most:
            self.most, self.largest = value, (line, text)
        if value is not None:
            self.good, self.lost = (label, value), None
        elif self.lost is None:
            self.lost = label, line, text
        if self.count % self._stride == 0:
            self.labels.append(label)
            self.values.append(value)
            if len(self.values) >= POINTS:
                del self.labels[1::2], self.values[1::2]
                self._stride *= 2
        self.count += 1

    def fields(self) -> dict[str, Any]:
        """As plain texts, so that a recording holds them like any other field."""
        steps, values = list(self.labels), list(self.values)
        if (self.count - 1) % self._stride:
            steps.append(self.latest[0])
            values.append(self.latest[1])
        lines = (f"{line}\t{text}" for line, text in (self.first, self.largest, self.last) if line)
        return {
            "name": redact(self.name), "unit": self.unit, "count": self.count, "steps": "\n".join(steps),
            "values": " ".join("nan" if value is None else repr(value) for value in values),
            "shown": redact("\n".join(lines)), **self._lost(),
        }  # fmt: skip

    def _lost(self) -> dict[str, str]:
        """Exactly, though the values themselves are thinned out."""
        if self.lost is None or self.good is None:
            return {}
        (since, line, text), (last, value) = self.lost, self.good
        return {"lost": redact("\t".join((since, last, repr(value), str(line), text)))}


@dataclass(slots=True)
class Meter:
    """Collects the series of one source. Fed with its blocks and, at the end, with its tail."""

    ranked: bool
    """The file is one rank's, so a rank that a line speaks of may be another's."""
    peel: Callable[[str], Peeled]
    series: dict[Key, Series] = field(default_factory=dict)
    read: int = 0
    gaps: bool = False
    """Not all of it was read, so lines without a step cannot be counted."""
    last_line: int = 0
    sharded: bool = False
    split: bool = False
    table: Table = field(default_factory=Table)
    rows: Rows | None = None
    """The whole source is one table with a row for each rank."""
    timers: str = ""
    """The unit of Megatron's timers, while they are being listed."""
    timer: str = ""
    epochs: dict[tuple[By, int | None, str, int | None], str] = field(default_factory=dict)
    now: dict[tuple[By, int | None, str, int | None], str] = field(default_factory=dict)
    """The last step that each speaker named: what it says next without one is of that step."""
    next_sample: int = EVERY
    alone: int = 0
    """So many lines may still be about what one process has computed by itself."""
    counters: set[str] = field(default_factory=set)
    """What has been equal to the step once."""
    listed: set[Key] = field(default_factory=set)
    """Series from lines that list all ranks: whoever wrote them speaks of others, too."""

    def block(self, lines: bytes, first: int, last: bool) -> None:
        """`first` is the number of the block's first line. Behind the log's beginning only a block's own is read."""
        if self.read < WHOLE:
            self._take(_beginning(lines, WHOLE - self.read), first)
            if (
                not self.read
                and not self.ranked
                and lines.partition(b"\n")[0].count(b",") + 1 == len(self.table.columns)
            ):
                self.rows = rows_of(self.table.columns)
        elif self.rows is None and (len(lines) > TAIL if last else self.read >= self.next_sample):
            self.gaps = True
            self.next_sample = (self.read // EVERY + 1) * EVERY
            self._take(_beginning(lines, SAMPLE), first)
        if self.rows is not None and self.read < TABLE:
            self._take_rows(self.rows, lines, first)
        self.read += len(lines)

    def tail(self, tail: bytes, first: int) -> None:
        """Those of its lines that were not read yet; all of them where that makes the log whole."""
        self.gaps = self.gaps or self.read > (WHOLE if self.rows is None else TABLE) + len(tail)
        start = _end_worth(tail) if self.gaps else 0
        first += tail.count(b"\n", 0, start)
        while start < len(tail) and first <= self.last_line:
            start, first = _line_start(tail, start + 1), first + 1
        self._take(tail[start:], first)

    def _take(self, lines: bytes, first: int) -> None:
        self.sharded = self.sharded or any(word in lines for word in _SHARDED)
        self.split = self.split or any(word in lines for word in _SPLIT)
        for at, whole in apart(lines.removesuffix(b"\n").split(b"\n")) if lines else ():
            for raw in whole.split(b"\r"):
                if len(raw) > _MIN_LINE and (self.table.columns or self.timers or _worth(raw)):
                    self._line(first + at, _cut(raw).decode("utf-8", "replace"))
            self.last_line = first + at

    def _take_rows(self, rows: Rows, lines: bytes, first: int) -> None:
        who = self.peel("")
        for number, raw in enumerate(lines.removesuffix(b"\n").split(b"\n"), first):
            if number > self.last_line and len(raw) <= _MAX_LINE:
                text = raw.decode("utf-8", "replace").strip()
                rank, label, values = rows.row(text) or (None, "", ())
                for one in values:
                    self._add((who.by, who.rank, who.stream, rank, one.name), label, one, number, text)
        self.last_line = max(self.last_line, number)

    def _line(self, number: int, raw: str) -> None:
        peeled = self.peel(plain(raw))
        text = self.table.row(peeled.text) or unpacked(peeled.text)
        if self._timed(number, peeled) or warns(peeled.text) or peeled.text.startswith(_CHANGED):
            return
        said = said_in(text)
        named = None if peeled.rank is not None or self.ranked else _rank_in(text)
        who = peeled.by, peeled.rank, peeled.stream, named
        label = said.label
        if label.startswith("step ") and is_bar(text):  # Keras counts anew in each epoch, which it has named before
            label = f"{self.epochs.get(who, '')} {label}".strip()
        elif label and not said.values and len(self.epochs) < MAX_SERIES:
            self.epochs[who] = label if label.startswith("epoch ") and " step " not in label else ""
        if label and len(self.now) < MAX_SERIES:
            self.now[who] = label
        self.alone = _ALONE_LINES if _ALONE.search(text) else max(self.alone - 1, 0)
        ranked = peeled.rank is not None or named is not None or self.ranked
        for one in (*said.values, *self._by_one_process(said), *self._others(said, label, ranked)):
            self._add((*who, one.name), label, one, number, peeled.text)
        for rank, of_rank in of_ranks(text, bool(label)):
            for one in said_of_rank(of_rank):
                self._add_listed((*who[:3], rank, one.name), label, one, number, peeled.text)
                if one.name == "loss":  # listed rank by rank, it is each one's own
                    own = one._replace(name="own loss")
                    self._add_listed((*who[:3], rank, own.name), label, own, number, peeled.text)

    def _by_one_process(self, said: Said) -> Iterator[Value]:
        """What is said, outside of training, where one process works by itself."""
        for one in said.values if self.alone and not said.label else ():
            if one.name.startswith(("loss", "eval_loss", "score ")):
                yield one._replace(name=f"alone {one.name}")

    def _others(self, said: Said, label: str, ranked: bool) -> Iterator[Value]:
        """Of numbers of any name those that ranks may be compared by, that a model is judged by, and that count."""
        for one in said.others:
            if ranked or _JUDGED.search(one.name):
                yield one
            if label.endswith(f"step {one.value:.0f}" if one.value else "step 0"):
                self.counters.add(one.name)
            if one.name in self.counters:
                yield one._replace(name=f"counter {one.name.removeprefix('said ')}")

    def _timed(self, number: int, peeled: Peeled) -> bool:
        """Megatron's timers: under each one's name a line a rank, or its least and its most."""
        if "across ranks (" in peeled.text and (found := _TIMERS.search(peeled.text)) is not None:
            self.timers = found[1]
            return True
        if not self.timers:
            return False
        who = peeled.by, peeled.rank, peeled.stream
        label = self.now.get((*who, None), "")
        if (found := _TIMER.fullmatch(peeled.text)) is not None:
            self.timer = found[1]
        elif (found := _TIMER_OF_RANK.fullmatch(peeled.text)) is not None and self.timer:
            for one in said_in(f"{self.timer} {found[2]} {self.timers}").values:
                self._add_listed((*who, int(found[1]), one.name), label, one, number, f"{self.timer}:{peeled.text}")
        elif (found := _TIMER_RANGE.fullmatch(peeled.text)) is not None:
            for which, value in (("fastest", found[2]), ("slowest", found[3])):
                for one in said_in(f"{found[1]} {value} {self.timers}").values:
                    named = one._replace(name=f"{which} {one.name}")
                    self._add((*who, None, named.name), label, named, number, peeled.text)
        else:
            self.timers = self.timer = ""
            return False
        return True

    def _add_listed(self, key: Key, label: str, one: Value, number: int, text: str) -> None:
        if len(self.series) < MAX_SERIES:
            self.listed.add(key)
        self._add(key, label, one, number, text)

    def _add(self, key: Key, label: str, one: Value, number: int, text: str) -> None:
        series = self.series.get(key)
        if series is None:
            if len(self.series) >= MAX_SERIES:
                return
            series = self.series[key] = Series(one.name, one.unit)
        if not label:
            label = self._place(key, series)
        series.add(label, one.value, number, text.strip())

    def _place(self, key: Key, series: Series) -> str:
        """Of a value without a step of its own: the speaker's last one, or its number where it has named none yet."""
        now = "" if self.gaps else self.now.get(key[:4]) or self.now.get((*key[:3], None), "")
        if now != series.inherited:
            series.inherited, series.unlabelled = now, 0
        series.unlabelled += 1
        if now:
            return now if series.unlabelled == 1 and series.latest[0] != now else f"{now}+{series.unlabelled}"
        return "" if self.gaps else f"#{series.unlabelled}"

    def found(self) -> Iterator[tuple[Peeled, int, dict[str, Any]]]:
        """For each series: whose it is, with its last line, that line's number, and the fields of its event."""
        for key, series in self.series.items():
            by, rank, stream, named, _ = key
            more = {} if named is None else {"rank": named, "listed": key in self.listed}
            fields = {**series.fields(), "sharded": self.sharded, "split": self.split, **more}
            yield Peeled(rank, by, series.last[1], stream), series.last[0], fields


def _beginning(lines: bytes, most: int) -> bytes:
    """So many bytes, without the last line if only a part of it is among them."""
    if len(lines) <= most:
        return lines
    return lines[: max(lines.rfind(b"\n", 0, most), lines.rfind(b"\r", 0, most)) + 1]


def _end_worth(tail: bytes) -> int:
    """Where the end begins that is read."""
    start, worth = len(tail), 0
    while start > 0 and worth + _MAX_LINE < END:  # or the step beyond it is as long again
        end, start = start, _line_start(tail, max(start - END, 0))
        start = start if start < end else 0  # a line as long as that
        lines = tail[start:end].replace(b"\r", b"\n").split(b"\n")
        worth += sum(len(line) + 1 for line in lines if _worth(line))
    return start


def _worth(raw: bytes) -> bool:
    """Lines of training mostly have one of the first two words, which are found sooner by themselves."""
    return b"loss" in raw[:_MAX_LINE] or b"step" in raw[:_MAX_LINE] or _WORTH.search(raw, 0, _MAX_LINE) is not None


def _line_start(lines: bytes, at: int) -> int:
    """Where the first line begins at or behind `at`."""
    if at <= 0 or at >= len(lines):
        return min(max(at, 0), len(lines))
    return (lines.find(b"\n", at - 1) + 1) or len(lines)


def _cut(raw: bytes) -> bytes:
    """Between words: half a secret would not be known as one."""
    return raw if len(raw) <= _MAX_LINE else raw[:_MAX_LINE].rpartition(b" ")[0]


def _rank_in(text: str) -> int | None:
    """Whose line it is, in the program's own words: the rank that it names first, near its beginning."""
    found = (_BRACKETED.search(text) if "[" in text else None) or _SPEAKER.match(text) or _SPEAKS.match(text)
    return int(found[1]) if found else None
