"""Jobs that went on from saved state, and not where they had left off."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from paramedic.detect.hostnames import short
from paramedic.detect.match import on_events
from paramedic.detect.sequels import Parts, Sequel, around, begun_at_nought, sequels
from paramedic.detect.series import FIRST, LAST, Series, every, kendall, numbered
from paramedic.detect.where import places
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_NAMES = {"lr": "learning rate", "step": "step", "loss": "loss"}
_NOTHING_PRINTED = 1e-12
_LOOKS = 3


_MISSING = ("zero checkpoints paths are missing", "zero checkpoint load paths")
_SHARD = regex(r"zero_pp_rank_(\d{1,6})_mp_rank_(\d{1,6})")


class _Missing(NamedTuple):
    """A list of shards that are not there: their numbers among the data parallel ranks, and whether all of it stands
    there."""

    event: Event
    shards: frozenset[int]
    whole: bool


def some_shards_missing(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DeepSpeed lists shards of the optimizer that it does not find, and then goes on with none of them. Where there
    is not a single one, the checkpoint may have been given without."""
    told = [_missing(event) for words in _MISSING for event in run.saying(words, "line")]
    named = [pair for event in run.saying("zero_pp_rank_", "line") for pair in _SHARD.findall(event.text)]
    degree = max((int(part) for _, part in named), default=0) + 1
    known = max((int(shard) for shard, _ in named), default=-1) + 1
    size = max(known, _ranks(run) // degree)
    some = [one for one in told if _leaves_some(one, size)]
    if some:
        shards = sorted(frozenset().union(*(one.shards for one in some)))
        ranks = shards if degree == 1 and len(shards) < size else ()  # else several ranks have shards of one number
        fields = {"missing": str(len(shards)), "all": str(size)}
        if ranks:
            fields["accused"] = ", ".join(map(str, ranks))
        yield on_events(rule, [one.event for one in some[:2]], ranks, fields)


def _missing(event: Event) -> _Missing:
    """What stands between the brackets; a long list is cut off."""
    listed, closed, _ = event.text.partition("['")[2].partition("]")
    return _Missing(event, frozenset(int(shard) for shard, _ in _SHARD.findall(listed)), bool(closed))


def _leaves_some(one: _Missing, size: int) -> bool:
    """Others are there: those before the first, those between, or, of a list that is whole, those behind the last."""
    gaps = bool(one.shards) and len(one.shards) < max(one.shards) + 1
    return gaps or (one.whole and 0 < len(one.shards) < size)


def _ranks(run: Run) -> int:
    """How many there are, as the launcher or the logs say."""
    return max([len(run.expected_ranks), *(int(value) for one in every(run, "world") for value in one.said)])


def elsewhere(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """After a resume the first step or learning rate is not the one that the log says was left off at."""
    for kind, now in (("resumed_lr", "lr"), ("resumed_step", "step"), ("resumed_loss", "loss")):
        saved, later = every(run, kind), every(run, now)
        for one in saved:
            after = next((s for s in later if s.rank == one.rank and s.event.source == one.event.source), None)
            if after is not None and (pair := _differs(one, after, now)) is not None:
                shown = [*one.shown(LAST), *after.shown(FIRST)]
                yield on_events(rule, shown, (), {"what": _NAMES[now], "saved": f"{pair[0]:g}", "now": f"{pair[1]:g}"})
                return
    for one in every(run, "resumed by"):
        if one.said and one.said[-1] > _FORGOTTEN:
            fields = {"what": "loss", "saved": "its value", "now": f"{one.said[-1]:.3g} times that"}
            yield on_events(rule, one.shown(LAST), (), fields)
            return
    yield from (*_unlike_its_file(run, rule), *_in_the_same_log(run, rule), *_in_another_log(run, rule))[:1]


def _unlike_its_file(run: Run, rule: Rule) -> Iterator[Finding]:
    """The name of the file that was restored says how far training had come, and the first line behind it is of the
    very beginning. Batches are counted anew in every epoch, so a step tells something only where no epoch is named."""
    for kind, what in (("restored_epoch", "epoch"), ("restored_step", "step")):
        for one in every(run, kind):
            later = [s for s in every(run, *_COUNTS) if (s.rank, s.event.source) == (one.rank, one.event.source)]
            pairs = [pair for after in later if (pair := _begun_anew(one, after, what)) is not None]
            if later and len(pairs) == len(later):
                fields = {"what": what, "saved": f"{pairs[0][0]:g}", "now": f"{pairs[0][1]:g}"}
                yield on_events(rule, [*one.shown(LAST), *later[0].shown(FIRST)], (), fields)
                return


_COUNTS = ("loss", "step", "step_time", "throughput")
_COUNTED = regex(r"(?:epoch (?P<epoch>\d{1,6})(?:\.\d{1,9})?)?(?: ?step (?P<step>\d{1,12}))?")
_A_BAR = regex(r"it/s|s/it|%\|")


def _begun_anew(saved: Series, after: Series, what: str) -> tuple[float, float] | None:
    first = _COUNTED.fullmatch(after.steps[0]) if after.steps else None
    if first is None or first[what] is None or not saved.said or not 0 < saved.line(LAST) < after.line(FIRST):
        return None
    if what == "step" and (first["epoch"] or any(_A_BAR.search(event.text) for event in after.shown(FIRST))):
        return None
    old, new = saved.said[-1], float(first[what])
    return (old, new) if old >= _COME_FAR and new <= 1 else None


_COME_FAR = 2


def _in_the_same_log(run: Run, rule: Rule) -> Iterator[Finding]:
    """Before and behind the line that tells of the resume."""
    for one, step in _resumes(run):
        for name, what, judge in (*_BEGUN_ANEW, *(_UNDER_THE_SAME_RATE if _rate_went_on(run, one, step) else ())):
            for series in every(run, name):
                ours = series.rank == one.rank and (judge is not _retraced or _of_state(series.name))
                pair = judge(*_parted(series, step)) if ours else None
                if pair is not None:
                    named = what or series.name.removeprefix("counter ").removeprefix("said ")
                    fields = {"what": named, "saved": f"{pair[0]:g}", "now": f"{pair[1]:g}"}
                    yield on_events(rule, [*one.shown(LAST), *series.shown(FIRST, LAST)], (), fields)


def _rate_went_on(run: Run, one: Series, step: float) -> bool:
    parts = [_parted(series, step) for series in every(run, "lr") if series.rank == one.rank]
    return all(_alike(*part) for part in parts)


def _in_another_log(run: Run, rule: Rule) -> Iterator[Finding]:
    """The run before and the one that resumes it have a log each."""
    for one in sequels(run):
        for name, what, judge in (*_BETWEEN_LOGS, *(_UNDER_THE_SAME_RATE if _rate_goes_on(run, one) else ())):
            for parts in around(run, one, name):
                if (pair := judge(parts.old, parts.new)) is not None:
                    yield _between(rule, what, pair, parts, one.said)
    for parts, said in begun_at_nought(run):
        yield _between(rule, "step", (parts.old[-1], parts.new[0]), parts, said)


def _between(rule: Rule, what: str, pair: tuple[float, float], parts: Parts, said: Sequence[Event]) -> Finding:
    fields = {"what": what, "saved": f"{pair[0]:g}", "now": f"{pair[1]:g}"}
    return on_events(rule, [*parts.after.shown(FIRST), *parts.before.shown(LAST), *said], (), fields)


def _rate_goes_on(run: Run, one: Sequel) -> bool:
    """As far as it is said. With another rate, on purpose or not, the loss is another one, too."""
    return all(_alike(parts.old, parts.new) for parts in around(run, one, "lr"))


def _alike(before: Sequence[float], after: Sequence[float]) -> bool:
    return bool(before and after) and abs(after[0] - before[-1]) <= _SAME_RATE * abs(before[-1])


def _resumes(run: Run) -> Iterator[tuple[Series, float]]:
    """Who went on, and behind which step: as he said, or as the line says that stands before."""
    for one in every(run, "resumed_step"):
        if one.said:
            yield one, one.said[-1]
    for one in every(run, "resumed"):
        step = one.steps[-1].partition("+")[0].rpartition("step ")[2] if one.steps else ""
        if step.isdecimal():
            yield one, float(step)


def _parted(series: Series, step: float) -> tuple[list[float], list[float]]:
    """Nothing where steps are counted anew in every epoch: they do not say what was before. What was done behind the
    checkpoint, and is done once more, is of neither side."""
    points = numbered(series)
    falls = [n for n, ((at, _), (later, _)) in enumerate(pairwise(points), 1) if later < at]
    if len(falls) > 1:
        return [], []
    start = falls[0] if falls and points[falls[0]][0] >= step else 0
    before = points[:start] or points
    return [value for at, value in before if at <= step], [value for at, value in points[start:] if at > step]


def _warmed_up_again(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The rate stood high and begins again far below, rising."""
    if len(before) < _LOOKS or len(after) < _LOOKS or kendall(before[-_MANY:]) > 0.5:
        return None
    low = after[0] < _FAR_BELOW * before[-1] and kendall(after[:_MANY]) > 0.8
    return (before[-1], after[0]) if low else None


def _from_the_top(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The rate was on its way down and begins above again, to go down once more. From near its end a schedule with
    warm restarts does so, too; and a rate that stood still was changed by somebody."""
    if len(before) < _LOOKS or len(after) < _LOOKS or min(*before, *after) < 0:
        return None
    falls = kendall(before) < -0.8 and kendall(after[:_MANY]) < -0.5
    above = after[0] > _ABOVE * before[-1] and before[-1] > _NEAR_ITS_END * after[0]
    return (before[-1], after[0]) if falls and above else None


def _leapt(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The loss is far above all that it was last, beyond its noise, and does not come back at once."""
    return _above_noise(before, after, _LEAP)


def _leapt_far(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The same of the gradient, which leaps at times."""
    return _above_noise(before, after, _FAR)


def _above_noise(before: Sequence[float], after: Sequence[float], share: float) -> tuple[float, float] | None:
    last, first = before[-2 * _MANY :], after[:_LOOKS]
    if len(last) < _ENOUGH or len(first) < _LOOKS or min(last) <= 0:
        return None
    level, noise = median(last[-_MANY:]), max(last) - min(last)
    return (level, first[0]) if min(first) - level > max(share * level, _NOISE * noise) else None


def _counted_anew(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """A counter that went with the step begins again."""
    return (before[-1], after[0]) if before and after and after[0] < _FAR_BELOW * before[-1] else None


def _fell_back(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """Fewer samples were consumed behind the resume than before it."""
    return (before[-1], after[0]) if before and after and after[0] < before[-1] else None


def _seen(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The batches behind the resume are those of the very beginning, in their order."""
    again = len(before) > 2 * _LOOKS and len(after) >= _LOOKS and list(after[:_LOOKS]) == list(before[:_LOOKS])
    return (before[-1], after[0]) if again and len(set(after[:_LOOKS])) == _LOOKS else None


def _retraced(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """What had come far from where it began is there again, and goes the same way once more."""
    if len(before) < 2 * _LOOKS or len(after) < _LOOKS:
        return None
    way, trend = before[-1] - before[0], kendall(before)
    far = abs(way) > _COME_ALONG * max(abs(before[0]), abs(before[-1])) and abs(trend) > 0.8
    back = abs(after[0] - before[0]) <= _AS_AT_FIRST * abs(way)
    return (before[-1], after[0]) if far and back and kendall(after[:_MANY]) * trend > 0.5 else None


_COME_ALONG, _AS_AT_FIRST = 0.3, 0.15
_OF_ONE_START = regex(
    r"\b(?:time|elapsed|secs?|seconds|minutes|hours|eta|since|run|session|local|job|wall|done|left|remaining|percent|rss"
    r"|mem(?:ory)?|alloc\w{0,10}|cache\w{0,3}|epochs?|it|iter|step)\b|/s\b",
    re.I,
)
"""Names of what each start counts for itself."""


def _of_state(name: str) -> bool:
    return _OF_ONE_START.search(name) is None


_FAR_BELOW, _MANY = 0.2, 10
_LEAP, _FAR, _NOISE, _ENOUGH = 0.2, 2.0, 5.0, 6
_SAME_RATE, _ABOVE, _NEAR_ITS_END = 0.25, 1.5, 0.1


def _unlearned(before: Sequence[float], after: Sequence[float]) -> tuple[float, float] | None:
    """The loss right before and right after, if it is as at the beginning again."""
    if len(before) < _LOOKS or len(after) < 2 or min(before) <= 0:
        return None
    old, new = median(before[-_LOOKS:]), after[0]
    leapt = new > _FORGOTTEN * max(before[-_LOOKS:]) and new > _FRESH * before[0] and kendall(after) < 0
    return (old, new) if leapt else None


def _differs(saved: Series, after: Series, kind: str) -> tuple[float, float] | None:
    if not (saved.values and after.finite) or saved.values[-1] is None or after.line(FIRST) < saved.line(LAST):
        return None  # it also trained before: which value is the first one afterwards is not known
    old, new = saved.values[-1], after.finite[0]
    if kind == "step":
        return (old, new) if old >= _COME_FAR and new <= 1 and not _in_a_later_epoch(after) else None
    if kind == "loss":
        return (old, new) if new > _FORGOTTEN * old and new - old > _NOTICED else None
    return (old, new) if abs(new - old) > 0.5 * max(abs(old), _NOTHING_PRINTED) else None


def _in_a_later_epoch(after: Series) -> bool:
    """Its steps are counted anew in every epoch, and this is not the first one."""
    first = _COUNTED.fullmatch(after.steps[0]) if after.steps else None
    return first is not None and first["epoch"] is not None and int(first["epoch"]) > 1


_FORGOTTEN, _NOTICED, _FRESH = 3.0, 0.3, 0.7


_BEGUN_ANEW = (
    ("loss", "loss", _unlearned),
    ("lr", "learning rate", _warmed_up_again),
    ("counter", "", _counted_anew),
    ("consumed", "number of samples", _fell_back),
    ("batch_sum", "sum of the batch", _seen),
    ("said", "", _retraced),
)
"""What may begin anew, what it is called, and how it is told from before and behind the resume."""
_BETWEEN_LOGS = (
    ("lr", "learning rate", _warmed_up_again),
    ("lr", "learning rate", _from_the_top),
    ("consumed", "number of samples", _counted_anew),
    ("tokens_seen", "number of tokens", _counted_anew),
    ("batch_sum", "sum of the batch", _seen),
)
_UNDER_THE_SAME_RATE = (("loss", "loss", _leapt), ("grad_norm", "gradient norm", _leapt_far))
"""The same between two logs, and what tells something only where the learning rate goes on."""


_LACKS = regex(
    r"^(?P<host>[A-Za-z][\w.-]{0,100}): (?:\S{0,40}/)?(?:ls|cat|stat|du|head|tail|find|readlink): "
    r"(?:cannot (?:access|open|stat) )?"
    r"['\u2018]?(?P<path>/[^'\u2019\n:]{1,300})['\u2019]?(?: for reading)?: No such file or directory"
)
_OF_STATE = regex(r"ckpt|checkpoint|\biter_\d|global_step|\blatest\b", re.I)
_LISTED = regex(r"^(?P<host>[A-Za-z][\w.-]{0,100}): (?P<said>.{1,400})")


def on_some_hosts_only(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Of hosts that were asked for the checkpoint, one after the other, some do not have it, and nothing trains."""
    if run.stepping:
        return
    lacking: dict[str, tuple[Event, str]] = {}
    having: set[str] = set()
    for event in run.saying(": No such file or directory", "line"):
        if (said := _LACKS.match(event.text)) is not None and _OF_STATE.search(said["path"]):
            lacking.setdefault(said["host"], (event, said["path"]))
            lines = (*event.fields.get("before", ()), *event.fields.get("after", ()))
            listed = [hit for line in lines if (hit := _LISTED.match(line)) and "No such file" not in hit["said"]]
            having |= {hit["host"] for hit in listed if _stem(hit["host"]) == _stem(said["host"])}
    if lacking and having - lacking.keys():
        ranks = {rank for host in lacking for rank in places(run).ranks_on.get(short(host), ())}
        event, path = next(iter(lacking.values()))
        fields = {"host": ", ".join(sorted(lacking)[:8]), "path": path, "source": min(having - lacking.keys())}
        fields |= {"accused": ", ".join(map(str, sorted(ranks)))} if ranks else {}
        yield on_events(rule, [event], sorted(ranks), fields)


def _stem(host: str) -> str:
    """What hosts of one job have in common."""
    return re.sub(r"\d{1,9}", "#", host)
