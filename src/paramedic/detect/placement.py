"""How many ranks there are, by what the processes say, against how many there were to be."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from paramedic.detect.match import on_events
from paramedic.detect.series import FIRST, LAST, Series, every, latest, of_this_run
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_STEPS, _SAID_OFTEN = 6, 3
_LEFT_OUT = "Skipping registering GPU devices"
_NUMBER = regex(r"-?\d{1,15}(?:\.\d{1,9})?")


def other_than_planned(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All processes agree on the number of ranks, and it is not the planned one, or less than were started."""
    planned, launched = every(run, "planned"), every(run, "launched")
    said = every(run, "world") or launched
    sizes = _numbers(said)
    if len(sizes) != 1:
        return
    (size,) = sizes
    wanted, started = _numbers(planned), _numbers(launched)
    if len(wanted) == 1 and wanted != sizes:
        reason = planned
    elif size > 1 and started and min(started) > size:  # a process that knows of no other is another matter
        reason, wanted = launched, started
    else:
        return
    events = [*said[0].shown(LAST), *reason[0].shown(LAST)]
    yield on_events(rule, events, (), {"planned": str(min(wanted)), "ranks": str(size)})


_TRAINS_ALONE = "JOB027"


def each_alone(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Several processes of one job, and each says that it is the only one, or found no cluster."""
    lonely = {one.ranks: one for one in found if one.rule == _TRAINS_ALONE and one.ranks}
    if len(lonely) >= 2:
        yield on_events(rule, [one.evidence[0].event for one in [*lonely.values()][:4]], ())
        return
    alone = _trainers_alone(run)
    labelled = len({event.rank for event in alone} - {None}) == len(alone)
    if alone and (labelled or max(_numbers(every(run, "launched")), default=1) == len(alone)):
        yield on_events(rule, alone[:4], ())
        return
    said = of_this_run(every(run, "world"))
    shown = said or every(run, "whole_batch")
    if (_numbers(said) or _shares_of_batch(run)) != {1}:
        return
    processes = {(one.event.source, one.event.rank) for one in said if one.event.rank is not None}
    launched = [*every(run, "several"), *every(run, "launched")]
    several = (len(processes) >= 2 and any(rank for _, rank in processes)) or _interleaved(run)
    several = several or any(_one_after_the_other(one) for one in said) or _tasks_of_one_job(run)
    if several or every(run, "several") or max(_numbers(launched), default=1) > 1:
        yield on_events(rule, [event for one in (*shown[:4], *launched[:1]) for event in one.shown(LAST)], ())


def _trainers_alone(run: Run) -> list[Event]:
    """Processes of one log of which each says that it is the first, and that training is not distributed. It may have
    several GPUs to itself, which divide its batch."""
    told = run.saying("distributed training: ", "line")
    said = [event for event in told if _FIRST_OF_ALL.search(event.text)]
    every_one = len(said) == len(told)
    return said if len(said) > 1 and every_one and len({event.source for event in said}) == 1 else []


_FIRST_OF_ALL = regex(r"\bProcess rank: (?:0|-1), device: \S{1,20}, n_gpu: \d{1,4},? ?distributed training: False")


def _tasks_of_one_job(run: Run) -> bool:
    """Several logs by tasks that a launcher has numbered, all with the same plan and the same learning rates: runs with
    settings of their own, side by side, are another matter."""
    numbers = {one.event.source: int(one.said[-1]) for one in every(run, "task") if one.said}
    if len(set(numbers.values())) < 2 or len(set(numbers.values())) != len(numbers):
        return False
    plans = {
        source: [
            (one.name, one.values) for one in every(run, "samples", "total_steps", "lr") if one.event.source == source
        ]
        for source in numbers
    }
    first = next(iter(plans.values()))
    return bool(first) and all(plan == first for plan in plans.values())


def _one_after_the_other(one: Series) -> bool:
    """The same sentence in one line after the other, before training: each by another process."""
    first, last = one.line(FIRST), one.line(LAST)
    texts = {_NUMBER.sub("", event.text) for event in one.shown(FIRST, LAST)}
    often = len(one.steps) >= _SAID_OFTEN and all(step.startswith("#") for step in one.steps)
    return often and last - first == len(one.steps) - 1 and len(texts) == 1


def _shares_of_batch(run: Run) -> set[int]:
    """Between how many ranks the batch is divided, by its whole, a device's part, and how often that is accumulated."""
    whole, part = latest(every(run, "whole_batch")), latest(every(run, "device_batch"))
    often = latest(every(run, "accumulated")) or 1.0
    return {round(each)} if whole and part and (each := _share(whole, part * often)) else set()


def each_node_alone(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Processes of several hosts are numbered alike, and train: as many jobs as there are hosts. Where srun labels the
    lines of its tasks, and each of them is a launcher of several processes, a task stands for its host."""
    if any(one.severity == "error" for one in found):
        return
    told: dict[str, dict[str, dict[int, Event]]] = {}
    for event in run.of_kind("line"):
        if (event.host or event.rank is not None) and (own := _NUMBERED.search(event.text)):
            among = told.setdefault("" if event.host else event.source, {})
            by = among.setdefault(event.host or f"task {event.rank}", {})
            by.setdefault(int(next(filter(None, own.groups()))), event)
    for among in told.values():
        alike = {frozenset(by) for by in among.values()}
        if len(among) > 1 and len(alike) == 1 and len(*alike) > 1 and 0 in next(iter(alike)):
            fields = {"hosts": str(len(among)), "ranks": str(len(*alike))}
            yield on_events(rule, [by[0] for by in among.values()][:4], (), fields)
            return


def alone_side_by_side(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Logs that are numbered like the nodes of one job, of models of one size, each by a process that knows of no
    other. They may be trials that somebody started side by side."""
    launched = {event.source: event for event in run.saying("--standalone", "line") if "torchrun" in event.text}
    if len(launched) == len(run.sources) > 1 and _differ_by_a_number(launched):
        yield on_events(rule, list(launched.values())[:4], (), {"logs": str(len(launched))})
        return
    sizes = {one.event.source: one for one in every(run, "world") if one.said}
    models = {one.event.source: one.said[-1] for one in every(run, "parameters") if one.said}
    alone = [one for source, one in sizes.items() if set(one.said) == {1.0} and source in models]
    numbered = _numbered_alike([one.event.source for one in alone])
    if numbered and len(set(models.values())) == 1 and len(alone) == len(sizes) == len(run.sources):
        yield on_events(rule, [event for one in alone[:4] for event in one.shown(LAST)], (), {"logs": str(len(alone))})


def _numbered_alike(sources: Sequence[str]) -> bool:
    """Their names differ by a number that counts up."""
    counts = sorted(int(number[-1]) for source in sources if (number := _COUNT.findall(source)))
    in_a_row = len(counts) == len(sources) > 1 and counts[-1] - counts[0] == len(counts) - 1
    return in_a_row and _differ_by_a_number(sources)


def _differ_by_a_number(sources: Iterable[str]) -> bool:
    return len({_COUNT.sub("#", source) for source in sources}) == 1


_COUNT = regex(r"\d{1,5}(?=\D{0,12}$)")
"""The last number in a file's name."""


_NUMBERED = regex(r"^Process index: (\d{1,6})$|\bGLOBAL_RANK: (\d{1,6}), MEMBER:|\bProcess rank: (\d{1,6}), device:")
"""As accelerate, Lightning and transformers print the rank of each process in its job."""


def same_task_twice(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Two workers were told the same number, and another number nobody was told."""
    told: dict[int, dict[tuple[str, str | None], Event]] = {}
    size = 0
    for event in run.saying("TF_CONFIG", "line"):
        if (task := _TASK.search(event.text)) and (workers := _WORKERS.search(event.text)):
            told.setdefault(int(task[1]), {}).setdefault((event.source, event.host), event)
            size = max(size, workers[1].count(":"))
    twice = [number for number, by in told.items() if len(by) > 1]
    if len(twice) == 1 and len(set(range(size)) - told.keys()) == 1:
        missing = min(set(range(size)) - told.keys())
        fields = {"accused": str(twice[0]), "missing": str(missing)}
        yield on_events(rule, list(told[twice[0]].values())[:2], twice, fields)


_TASK = regex(r'"task"\s{0,4}:\s{0,4}\{[^}]{0,80}"worker"[^}]{0,40}"index"\s{0,4}:\s{0,4}"?(\d{1,5})')
_WORKERS = regex(r'"worker"\s{0,4}:\s{0,4}\[([^\]]{1,20000})\]')


def each_does_all(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Processes announce themselves one after the other, and each plans as many steps as one alone would."""
    planned = [every(run, name) for name in ("samples", "device_batch", "epochs", "total_steps")]
    if not all(planned) or max(_numbers(every(run, "world")), default=1) > 1:
        return
    samples, batch, epochs, steps = (latest(series) or 0.0 for series in planned)
    often = latest(every(run, "accumulated")) or 1.0
    alone = _share(epochs * samples, batch * often)
    if steps < 2 or abs(steps - alone) > epochs:
        return
    again, end = planned[0][0].line(LAST), planned[-1][0].line(FIRST)
    if 0 < end < again and all(len(set(one.said)) == 1 for series in planned for one in series):  # a second block
        yield on_events(rule, [event for series in planned for event in series[0].shown(LAST)], ())


def _share(whole: float, part: float) -> float:
    """Of a stranger's numbers; nought where there is none."""
    each = whole / part if part else 0.0
    return each if math.isfinite(each) else 0.0


def on_other_device(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """The processes say that there are GPUs, and each that it runs on the processor."""
    there, used = every(run, "gpu_there"), every(run, "on_gpu")
    if there and _numbers(used) == {0}:
        yield on_events(rule, [*there[0].shown(LAST), *(e for one in used[:3] for e in one.shown(LAST))], ())


def gpus_left_out(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """TensorFlow goes on without the GPUs; where it only reads the data of others, it need not have them."""
    if "tensorflow" in run.frameworks and not {"pytorch", "jax"} & set(run.frameworks):
        said = run.saying(_LEFT_OUT, "line")
        if said:
            yield on_events(rule, said, {event.rank for event in said if event.rank is not None})


def slow_backend(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Training on GPUs whose only backend, as far as the log says, is made for processors."""
    used, backend = every(run, "on_gpu"), every(run, "backend")
    sizes = _numbers(every(run, "world"))
    if _numbers(used) == {1} and _numbers(backend) == {1} and sizes != {1}:
        yield on_events(rule, [*backend[0].shown(LAST), *used[0].shown(LAST)], ())


def _interleaved(run: Run) -> bool:
    """One log whose steps go back and forth: several processes count them at once. A restart goes back only once."""
    for one in every(run, "loss", "score", "eval_loss"):
        if any("%|" in event.text for event in one.shown(FIRST, LAST)) or 4 * sum("+" in s for s in one.steps) > len(
            one.steps
        ):
            continue  # a bar is drawn anew at the same step, and an evaluation says several things at one
        places = [place for step in one.steps if "+" not in step and "step" in step and (place := _place(step))]
        far = [max(column) / 2 for column in zip(*places, strict=False)]
        back = sum(_a_little_back(place, later, far) for place, later in pairwise(places))
        if len(places) >= _STEPS and back >= len(places) // 4:
            return True
    return False


def _a_little_back(place: Sequence[float], later: Sequence[float], far: Sequence[float]) -> bool:
    """Not to where a loop begins anew."""
    parts = zip(place, later, far, strict=False)
    return next((0 < one - other <= most for one, other, most in parts if one != other), len(place) == len(later))


def _place(step: str) -> list[float]:
    """The numbers of `epoch 2 step 40`; none where it is something else."""
    words = step.split()[1::2]
    return [float(word) for word in words] if all(_NUMBER.fullmatch(word) for word in words) else []


def _numbers(found: Sequence[Series]) -> set[int]:
    return {int(value) for one in found for value in one.values if value is not None}
