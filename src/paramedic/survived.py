"""What a job survived: errors that were handled, attempts that were made up for, words after the end."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import pairwise
from pathlib import PurePath
from statistics import median

from paramedic.collect.tracebacks import ends_all
from paramedic.detect.interrupted import TIME_LIMIT, since
from paramedic.detect.recovery import MEETING
from paramedic.detect.sequels import place_of, sequels
from paramedic.detect.where import places
from paramedic.knowledge import Knowledge
from paramedic.model import Event, Finding, Run, Suppressed
from paramedic.regex import regex
from paramedic.unharmed import (
    NO_FAILURE,
    bad_ends,
    failures,
    logged_in_passing,
    long_before,
    own_progress,
    raised_again,
    started_elsewhere,
    trained_all_the_same,
)

_LINES_AFTER, _MANY_AFTER = 3, 12
_OF_OTHERS = 6  # lines of progress, where it is not known that the same rank wrote them
_SOMEBODY = -1
"""Stands for processes that a prefix tells apart, and of which nobody knows the ranks."""
_HANG, _LOSS = "collective-hang", "worker-or-node-loss"
_STAYS = frozenset(
    [
        "low-throughput",
        "memory-savings-not-realised",
        "straggler-or-imbalance",
        "unexpected-parallel-placement",
        "unexpected-transport",
    ]
)
"""Training goes on, and the fault with it."""
_BY_THE_DRIVER = ("smi gpu", "smi process")
"""What is seen from outside while training goes on."""
_SEEN_FROM_OUTSIDE = frozenset(["HOST031", "JOB073"])
"""By the shell or the kernel, of some process."""
_PREVIOUS = regex(r"[._-]prev(?:ious)?(?=\.(?:log|txt|out)\b|$)")
_ERRORS = regex(r"\bstderr\b|\berr$")
_OUTPUT = {"stderr": "stdout", "err": "out"}
_STARTED = "Started container"
_NOT_STARTED = regex(
    r"\b(?:FailedMount|FailedAttachVolume|FailedScheduling|FailedCreatePodSandBox|ErrImagePull|ImagePullBackOff)\b"
    r"|MountVolume|Failed to pull image|nodes are available"
)
_POD = regex(r"\bpod/([\w.-]{1,253})")
_OF_THE_END = frozenset(["communication-runtime-error", "native-crash", "worker-or-node-loss"])
_OF_AN_INTERRUPT = (*NO_FAILURE, 1, -2, 130)
_HOUR_NS = 3_600_000_000_000
_LONG_NS = 10 * 60_000_000_000
_NEAR_NS = 5 * 60_000_000_000
SILENT = frozenset(
    [
        "checkpoint-resume-failure",
        "low-throughput",
        "memory-growth",
        "memory-savings-not-realised",
        "non-convergence",
        "numerical-instability",
        "replica-divergence",
        "silent-wrong-result",
        "straggler-or-imbalance",
        "unexpected-parallel-placement",
        "unexpected-transport",
    ]
)
"""What a job can have and still end well by its own words."""


def outlived(run: Run, found: Sequence[Finding], knowledge: Knowledge) -> tuple[list[Finding], list[Suppressed]]:
    """Sets aside what a rank survived: it went on training after it, and nobody saw it die."""
    progress = _progress(run)
    tests = _tests(run)
    by_hand = since(run)
    again, ends, trained_on = _started_again(run), _ended_well(run, tests), _Elsewhere(run)
    failed = [e for e in run.of_kind("exit") if e.fields.get("exitcode") not in (0, -15)]
    dead = {e.rank for e in failed if e.seq > ends.get(e.source, -1)}
    somebody_died = bool(dead) or any(f.consequence == "always" for f in found)
    started_again = _StartedAgain(run, ends, _resumed(run, found))
    pods, own_jobs = places(run).pods, _own_jobs(run)
    own_pods, tagged = _own_pods(run, pods), _tagged(run)
    # Who is missed may have gone on to its own end: for those who gave up waiting for it that is too late.
    waited_in_vain = {rank for one in found if one.symptom == _HANG for rank in one.ranks} & dead
    unsaved = _unsaved_to_the_end(run, found)
    alive, survived = [], []
    for one in found:
        event = one.evidence[0].event
        if one.symptom == _SAVING and event.source in unsaved:
            alive.append(one)
            continue
        lives = event.rank not in dead or event.source in tests
        if one.severity == "error" and (
            why := _another_job(one, pods, own_pods, own_jobs)
            or started_again(one)
            or _begun_anew(event, again)
            or _before_the_ranks(event, tagged)
            or _by_hand(run, one, by_hand)
            or _all_the_same(run, one, found, ends)
            or ("" if failed else raised_again(run, one) or logged_in_passing(run, one, found))
            or (lives and (_after_the_end(one, ends, tests) or trained_on(one)))
        ):
            survived.append(Suppressed(one.rule, why, one.ranks))
            continue
        lasting = knowledge.rules[one.rule].lasting
        stays = one.symptom in _STAYS or lasting or event.kind in _BY_THE_DRIVER
        if one.severity != "error" or event.kind == "exit" or event.rank in dead or stays:
            alive.append(one)
            continue
        ranks = _whose_progress(run, one, somebody_died)
        known = (progress[event.source, rank] for rank in ranks if (event.source, rank) in progress)
        later = next((later for later in known if _went_on(event, later)), None)
        if later is None or (event.rank is None and somebody_died) or (one.symptom == _HANG and waited_in_vain):
            alive.append(one)
        else:
            why = f"handled: after line {event.line} training went on to line {later.line}"
            survived.append(Suppressed(one.rule, why, one.ranks))
    return alive, survived


def _another_job(one: Finding, pods: Mapping[str, int], own_pods: str, own_jobs: Set[str]) -> str:
    by_pod = _of_another_job(one, pods, own_pods) if pods.get(own_pods, 0) > 1 else ""
    return by_pod or (_of_another_number(one, own_jobs) if own_jobs else "")


def _begun_anew(event: Event, again: Mapping[str, int]) -> str:
    anew = event.seq <= again.get(event.source, -1)
    return "the job was started again afterwards, and finished" if anew else ""


def _tagged(run: Run) -> dict[str, int]:
    """Where ranks begin to speak, in files whose launcher numbers their lines; of jobs that trained after that, or by
    another file."""
    numbered = {fact.source for fact in run.facts if fact.name == "numbered lines"}
    first: dict[str, int] = {}
    for event in run.of_kind("line", "traceback") if numbered else ():
        if event.rank is not None and event.source in numbered:
            first[event.source] = min(first.get(event.source, event.seq), event.seq)
    trained = {(event.source, (event.fields.get("at") or (event.seq,))[-1]) for event in run.stepping}
    trained |= {(fact.source, -1) for fact in run.facts if fact.name == "trained"}
    return {log: begun for log, begun in first.items() if any(line > begun or other != log for other, line in trained)}


def made_up_for(run: Run, last: int) -> Set[str]:
    """The logs that go on with the last start, where somebody got further in that, by what such logs say."""
    goes_on = {event.source for event in run.of_kind("last") if event.attempt == last}
    again = {fact.source for fact in run.facts if fact.name == "begun anew"} & goes_on
    before = dict.fromkeys(again, -1)
    for event in run.events if again else ():
        if event.source in again and event.attempt < last:
            before[event.source] = max(before[event.source], event.seq)
    losses = [e for e in run.of_kind("metric") if e.source in again and e.fields["name"] == "loss"]
    learned = {event.source for event in losses if (event.line or 0) > before[event.source]}
    trained = [event for event in run.stepping if event.attempt == last and event.source in learned]
    return again if any(_got_further(event, before[event.source]) for event in trained) else frozenset()


def _got_further(event: Event, before: int) -> bool:
    """To its end, or through more steps than all starts before it together."""
    at = event.fields.get("at", ())
    later = sum(line > before for line in at)
    done = event.fields.get("finished") or event.fields.get("closes") or event.fields.get("ended")
    return later >= _LINES_AFTER if done else bool(later >= _MANY_AFTER and later > len(at) - later)


def _before_the_ranks(event: Event, tagged: Mapping[str, int]) -> str:
    """A program of the script's own stumbled, whose lines have no tag, and the script went on to start the ranks."""
    before = event.kind == "traceback" and event.rank is None and event.seq < tagged.get(event.source, 0)
    return "the script that met it went on and started the ranks, which trained" if before else ""


def _by_hand(run: Run, one: Finding, by_hand: Mapping[str, int]) -> str:
    """All processes of a terminal are interrupted at once: whom threads then lose they may say before the main one says
    so, and not long before."""
    event = one.evidence[0].event
    if (told := by_hand.get(event.source)) is None:
        return ""
    later = event.seq >= told and _of_the_end(one)
    near = event.seq < told <= event.seq + _LINES_OF_AN_END and not _moved_between(run, event, told)
    lost = near and _in_a_thread(event) and str((event.fields.get("types") or [""])[-1]).endswith(_LOSES)
    return f"the job was interrupted by hand at line {told}" if later or lost else ""


_LINES_OF_AN_END = 500
_LOSES = ("EOFError", "ConnectionResetError", "ConnectionRefusedError", "BrokenPipeError")


def _moved_between(run: Run, event: Event, line: int) -> bool:
    moved = (at for told in run.stepping if told.source == event.source for at in told.fields.get("at", ()))
    return any(event.seq < at < line for at in moved)


def _all_the_same(run: Run, one: Finding, found: Sequence[Finding], ends: Mapping[str, int]) -> str:
    """What went well without it."""
    if started_elsewhere(run, one, found):
        return "Slurm started it in another folder, and nothing was missed there"
    if _fell_back(run, one, ends):
        return "training went on from another checkpoint, to its end"
    return "training began all the same, on all ranks" if trained_all_the_same(run, one) else ""


def _fell_back(run: Run, one: Finding, ends: Mapping[str, int]) -> bool:
    """A file could not be read, and behind that the log counts on from the middle: another one could."""
    event = one.evidence[0].event
    if one.symptom != _RESUME or event.kind == "metric" or event.source not in ends or event.fields.get("uncaught"):
        return False
    counted = [e for e in run.of_kind("metric") if (e.source, e.attempt) == (event.source, event.attempt)]
    starts = [start for told in counted if (start := _counts_from(told)) is not None and start[0] > (event.line or 0)]
    return bool(starts) and min(starts)[1]


_RESUME = "checkpoint-resume-failure"
_STRIDES = 10


def _counts_from(told: Event) -> tuple[int, bool] | None:
    """The first line of a series, and whether its first step is far from nought."""
    places = [place_of(step) for step in str(told.fields.get("steps", "")).split("\n")]
    line = str(told.fields.get("shown", "")).partition("\t")[0]
    if len(places) < 2 * _LINES_AFTER or not line.isdigit() or any(len(place) != 1 for place in places):
        return None
    stride = median(abs(b[0] - a[0]) for a, b in pairwise(places))
    return int(line), places[0][0] > _STRIDES * max(stride, 1.0)


_SAVING, _TIMES, _AT_THE_END = "checkpoint-save-failure", 3, 0.85


def _unsaved_to_the_end(run: Run, found: Sequence[Finding]) -> set[str]:
    """Logs in which saving fails time after time, and still does near the end: training went on, and what it had
    learned was lost."""
    lines = {source.id: source.lines for source in run.sources}
    failed: dict[str, list[int]] = defaultdict(list)
    for one in found:
        event = one.evidence[0].event
        if one.symptom == _SAVING and one.severity == "error" and event.line:
            failed[event.source].append(event.line)
    return {
        source for source, at in failed.items() if len(at) >= _TIMES and max(at) >= _AT_THE_END * lines.get(source, 0)
    }


def _own_pods(run: Run, pods: Mapping[str, int]) -> str:
    """Those whose logs tell of training; else those of whom there are most."""
    trained = {PurePath(event.source).name for event in run.of_kind("progress")}
    own = {stem for stem in pods if any(name.startswith(f"{stem}-") for name in trained)}
    return next(iter(own)) if len(own) == 1 else max(pods, key=lambda name: pods[name], default="")


def _of_another_job(one: Finding, pods: Mapping[str, int], job: str) -> str:
    """A list of a namespace's events has those of all: a pod that stands alone, beside several of another name."""
    pod = _pod(one.evidence[0].event)
    stem = pod.rpartition("-")[0]
    apart = bool(stem) and stem.partition("-")[0] != job.partition("-")[0]
    other = apart and (pods.get(stem, 0) <= 1 or pods[stem] > pods[job])
    return f"pod {pod} is not one of {job}" if other else ""


_NUMBERED = regex(r"\*\*\* (?:STEP|JOB) (\d{1,10})\b|\b(?:StepId|JobId)=(\d{1,10})\b")
_NUMBER = regex(r"\d{1,10}")
_IN_NAME = regex(r"(?<!\d)\d{4,10}(?!\d)")


def _own_jobs(run: Run) -> set[str]:
    """Numbers of the Slurm jobs whose output is here: by the files' names, or as they stand in logs of training."""
    trained = {e.source for e in run.of_kind("progress", "traceback", "exit")}
    told = [e for e in run.saying("STEP ", "line") if e.source in trained]
    said = [found for event in told if (found := _NUMBERED.search(event.text))]
    named = {n for source in trained for n in _IN_NAME.findall(PurePath(source).name)}
    return ({source.job for source in run.sources} | named | {found[1] or found[2] for found in said}) - {""}


def _of_a_kind(number: str, own: Set[str]) -> bool:
    """Jobs of one cluster and time have numbers of one length: what else stands in a file's name is a day, say."""
    return any(len(one) == len(number) and (len(one) < 5 or one[:2] == number[:2]) for one in own)


def _of_another_number(one: Finding, own: Set[str]) -> str:
    """Logs of nodes and of Slurm itself tell of the jobs that were there before, too."""
    found = _NUMBERED.search(one.evidence[0].event.text)
    if one.symptom != _LOSS and found is None:
        return ""
    number = (found[1] or found[2]) if found else one.fields.get("job", "").partition(".")[0]
    other = _NUMBER.fullmatch(number) is not None and number not in own and _of_a_kind(number, own)
    return f"of job {number}, and not of {', '.join(sorted(own)[:3])}" if other else ""


def _of_the_end(one: Finding) -> bool:
    """What ranks say when they are interrupted one after the other, and how they then end."""
    codes = [item.event.fields.get("exitcode") for item in one.evidence if item.event.kind == "exit"]
    return one.symptom in _OF_THE_END and all(code in _OF_AN_INTERRUPT for code in codes)


class _StartedAgain:
    """Whether what failed was started again: a container's earlier log and that of its next start, a job's log and a
    later one that tells of its good end or fails to resume it, what kept a pod from starting before it started."""

    def __init__(self, run: Run, ends: Mapping[str, int], resumed: Mapping[str, Event]) -> None:
        self.resumed = resumed
        failed = {e.source for e in failures(run)}
        trains = {e.source for e in run.stepping} - failed
        self.trains = trains
        names = {source.id: _PREVIOUS.sub("", source.id) for source in run.sources}
        self.next = {name: later for name, later in names.items() if later != name and later in trains}
        first: dict[str, Event] = {}
        for event in run.events if ends else ():
            if event.source in ends and event.utc_ns is not None:
                known = first.setdefault(event.source, event)
                first[event.source] = min(known, event, key=lambda e: e.utc_ns or 0)
        self.last = max(first.values(), key=lambda e: e.utc_ns or 0, default=None)
        self.logs = {PurePath(s).name for s in {e.source for e in run.of_kind("progress", "traceback", "exit")}}
        self.pods = {(e.source, _pod(e)): e.seq for e in run.saying(_STARTED, "line")}
        self.sequel = _gone_on(run, trains)
        self.waits = min((age for e in run.saying("FailedScheduling", "line") if (age := _still_waits(e))), default=0)

    def __call__(self, one: Finding) -> str:
        event = one.evidence[0].event
        if event.source in self.next:
            return f"started again: {self.next[event.source]} trains"
        if event.source in self.sequel and one.symptom not in SILENT:
            return f"the job went on in {self.sequel[event.source]}"
        refused = self.resumed.get(event.source)
        ended = one.rule == TIME_LIMIT if refused and refused.source in self.trains else one.symptom == _LOSS
        if refused and ended and (event.utc_ns or 0) <= (refused.utc_ns or math.inf):
            return f"the end of an earlier run, which {refused.source} was to resume"
        if placed := self._placed(event):
            return placed
        if one.symptom in SILENT or self.last is None or not _long_after(self.last, event):
            return ""
        return f"started again: {self.last.source} goes on to its end"

    def _placed(self, event: Event) -> str:
        """What became of a pod that had no place, or that lost it."""
        if self.waits and (gone := _PREEMPTED.search(event.text)) and _seconds(gone["age"]) > self.waits:
            return "the pods were made again afterwards, and wait to be placed"
        pod = _pod(event)
        started = event.seq < self.pods.get((event.source, pod), -1) or bool(pod and self._log_of(pod))
        return "the container was started afterwards" if _NOT_STARTED.search(event.text) and started else ""

    def _log_of(self, pod: str) -> bool:
        return any(name == pod or name.startswith((f"{pod}.", f"{pod}_")) for name in self.logs)


_AGE = r"(?:\d{1,4}[dhms]){1,3}"
_PREEMPTED = regex(rf"(?:^|\s)(?P<age>{_AGE})\s{{1,20}}(?:Normal|Warning)\s{{1,20}}Preempted\s")
_STILL = regex(rf"FailedScheduling\s{{1,20}}(?P<age>{_AGE}) \(x\d{{1,6}} over (?P<since>{_AGE})\)")
_UNITS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def _seconds(age: str) -> int:
    """`25h` or `3m12s`, as kubectl tells ages."""
    return sum(int(number) * _UNITS[unit] for number, unit in re.findall(r"(\d{1,4})([dhms])", age))


def _still_waits(event: Event) -> int:
    """How long ago a pod could once more not be placed, which it could not be for far longer."""
    said = _STILL.search(event.text)
    return _seconds(said["age"]) if said and _seconds(said["since"]) > 10 * _seconds(said["age"]) else 0


def _gone_on(run: Run, trains: Set[str]) -> dict[str, str]:
    """Logs of a job that others go on with, part after part, as far as one that trains and has not failed."""
    after = {one.before[0]: one.after[0] for one in sequels(run) if one.said}
    last = dict(after)
    for _ in after:  # as many parts as there are
        last = {log: then if then in trains else after.get(then, then) for log, then in last.items()}
    return {log: then for log, then in last.items() if then in trains and then != log}


def _resumed(run: Run, found: Sequence[Finding]) -> dict[str, Event]:
    """Logs of training beside one of a job that could not resume, and so never trained, or trains without what was
    learned: theirs is the run before."""
    told = [one for one in found if one.symptom == "checkpoint-resume-failure" and one.severity == "error"]
    refused = [one.evidence[0].event for one in told if one.consequence == "never"]
    resuming = {event.source for event in refused}
    trained = {event.source for event in run.of_kind("progress", "bars")}
    if not resuming or any(source.rank is not None for source in run.sources):
        return {}
    return dict.fromkeys(trained - resuming, refused[0])


def _pod(event: Event) -> str:
    """Whose event it is in a list of all; what describes one pod names it elsewhere."""
    found = _POD.search(event.text)
    return found[1] if found else ""


def _ended_well(run: Run, tests: set[str]) -> dict[str, int]:
    """Sources in which training ended as it should, and where: after it nobody left with an error code of its own. A
    launcher tells of those who did when all are gone: whoever ends well after it was started again."""
    ends = {e.source: e.fields["ended"] for e in own_progress(run) if e.fields.get("ended")}
    for event in own_progress(run):
        if event.fields.get("closes") and event.source not in ends and not _only_a_script(run, event):
            ends[event.source] = event.seq
    for event in run.of_kind("last"):
        if event.fields.get("well"):
            ends.setdefault(event.source, event.seq)
    after = {e.source for e in failures(run) if e.seq > ends.get(e.source, e.seq)}
    return {source: end for source, end in ends.items() if source not in after - tests}


def _only_a_script(run: Run, event: Event) -> bool:
    """A script that starts a job says that it is done also where the job has just failed."""
    ends = bad_ends(run)
    if any(_output_beside(source) == event.source != source for source in ends):
        return True
    failed = max((seq for seq in ends.get(event.source, ()) if seq < event.seq), default=None)
    return failed is not None and sum(line > failed for line in event.fields.get("at", ())) < _LINES_AFTER


def _tests(run: Run) -> set[str]:
    """Sources in which tests were run, and passed: processes die there on purpose."""
    return {e.source for e in run.of_kind("progress") if e.fields.get("tested")}


def _after_the_end(one: Finding, ends: Mapping[str, int], tests: set[str]) -> str:
    """Who is stopped when all is done has lost nothing, nor who was stopped and came back to finish it."""
    event = one.evidence[0].event
    end = ends.get(event.source)
    silent = one.symptom in SILENT and event.source not in tests
    if silent or event.kind not in ("line", "traceback", "complaint"):
        return ""
    if end is None:
        output = _output_beside(event.source)
        return f"training went on to its end in {output}" if output in ends else ""
    if event.seq > end:
        harmless = one.symptom == _LOSS or one.rule in _SEEN_FROM_OUTSIDE or _in_a_thread(event)
        return f"training had ended at line {end}" if harmless else ""
    return f"training went on to its end at line {end}"


def _output_beside(source: str) -> str:
    """Where a process writes what it does, by the name of the file that has its errors."""
    return _ERRORS.sub(lambda found: _OUTPUT[found[0]], source)


def _in_a_thread(event: Event) -> bool:
    """Beside the main thread: nothing ends by it."""
    return any(frame.endswith(" in _bootstrap_inner") for frame in event.fields.get("frames", ()))


def _beside_no_better(sources: set[str]) -> set[str]:
    """Without what a job writes as errors, where it writes its progress to the file beside."""
    return {s for s in sources if (output := _output_beside(s)) == s or output not in sources}


class _Elsewhere:
    """Whether training, as all logs that show any tell it, was done or went on regardless of what a scheduler, a kernel
    or an older log has seen."""

    def __init__(self, run: Run) -> None:
        progress = run.stepping
        ends = [e.fields.get("exitcode") for e in run.of_kind("exit")]
        self.quiet = all(code in NO_FAILURE for code in ends)
        self.training = _beside_no_better({e.source for e in progress})
        self.done = self.training <= {e.source for e in progress if e.fields.get("ended") or e.fields.get("closes")}
        timed = [e for e in progress if len(e.fields.get("at", ())) >= _LINES_AFTER and e.utc_ns is not None]
        self.last = max(timed, key=lambda e: e.utc_ns or 0, default=None)
        self.raised = {e.source for e in run.of_kind("traceback", "exit")}
        self.theirs = self.training | {source.id for source in run.sources if source.rank is not None}
        self.succeeded = _succeeded(run, self.training)

    def __call__(self, one: Finding) -> str:
        event = one.evidence[0].event
        met = one.symptom in MEETING and event.source not in self.raised  # without all of them nobody trains
        theirs = (event.source in self.theirs or event.rank is not None) and not (met and self.done)
        if theirs or not self.training or not self.quiet or one.symptom in SILENT or event.kind not in ("line", "exit"):
            return ""
        if self.done:
            return "every log that shows training tells of its good end"
        if self.succeeded:
            return f"the operator tells that {self.succeeded} completed"
        if self.last is None or not _long_after(self.last, event):
            return ""
        return f"training went on in {self.last.source} long after it"


_COMPLETED = regex(r"\b[A-Za-z]{2,20}Job (?:[\w.-]{1,120}/)?([\w.-]{1,253}) (?:is )?successfully completed\b")


def _succeeded(run: Run, training: Set[str]) -> str:
    """The job whose pods' logs these are, where Kubernetes' operator says that it has completed."""
    told = {found[1] for event in run.of_kind("progress") if (found := _COMPLETED.search(event.text))}
    names = {PurePath(source).name for source in training}
    return next((job for job in sorted(told) if all(name.startswith(f"{job}-") for name in names)), "")


def _long_after(later: Event, event: Event) -> bool:
    """By clocks that are known alike. One may be in another zone, which is whole hours: then it says nothing."""
    if later.utc_ns is None or event.utc_ns is None or event.uncertainty_ns != later.uncertainty_ns:
        return False
    gap = later.utc_ns - event.utc_ns
    return gap > _LONG_NS and min(gap % _HOUR_NS, -gap % _HOUR_NS) >= _NEAR_NS


def _whose_progress(run: Run, one: Finding, somebody_died: bool) -> list[int | None]:
    """Its own. What a program prints need not carry the prefix of its errors; and who meets the others again does not
    wait for them any more."""
    event = one.evidence[0].event
    ranks: list[int | None] = [event.rank]
    if event.fields.get("named") or not somebody_died:
        ranks.append(None)
    if one.symptom == "collective-hang" and not somebody_died:
        ranks += run.ranks_seen
    if event.rank is None and not somebody_died:
        ranks += [_SOMEBODY, *run.ranks_seen]
    return ranks


def _started_again(run: Run) -> dict[str, int]:
    """Sources in which training went on to its end after a launcher had seen ranks die, and where that was. Behind a
    launcher's own end nobody trains on but who was started anew, and Horovod's ends all others unless it is elastic:
    many lines will do."""
    ends: dict[str, int] = {}
    for event in run.of_kind("exit", "traceback"):
        if event.kind == "exit" or "SignalException" in event.text:
            ends[event.source] = max(ends.get(event.source, -1), event.seq)
    said = (*run.saying("SignalException: Process ", "line"), *run.saying(" exit with status code ", "line"))
    asked = {event.source: event.seq for event in said}
    again: dict[str, int] = {}
    for event in own_progress(run):
        end = ends.get(event.source, asked.get(event.source, event.seq))
        later = sum(line > end for line in event.fields.get("at", ()))
        done = event.fields.get("finished") or event.fields.get("closes")
        if later >= (_LINES_AFTER if done and event.source in ends else _MANY_AFTER) and (
            done or event.source in asked
        ):
            again[event.source] = end
    return again


def _progress(run: Run) -> dict[tuple[str, int | None], Event]:
    """The progress of each rank by source, its lines in order; under None that of everybody who is not told apart by a
    prefix."""
    found: dict[tuple[str, int | None], Event] = {}
    for event in run.of_kind("progress", "bars"):
        one = _thinned(event) if event.kind == "bars" else event
        of_somebody = _SOMEBODY if event.rank is None else event.rank
        for rank in (of_somebody,) if event.fields.get("prefixed") else {event.rank, None}:
            found[event.source, rank] = _together(found.get((event.source, rank), one), one)
    return found


def _thinned(bars: Event) -> Event:
    """Each third: of a dying process the bars that are open are drawn once more, and there are rarely three."""
    return replace(bars, fields={**bars.fields, "at": bars.fields.get("at", ())[2::3]})


def _together(one: Event, other: Event) -> Event:
    newer = max(one, other, key=lambda e: e.seq)
    lines = sorted({*one.fields.get("at", ()), *other.fields.get("at", ())})
    return replace(newer, fields={**newer.fields, "at": lines})


_BARE = regex(r"\W{0,8}(?:all )?(?:finished|done|completed?)\W{0,8}", re.I)


def _by_script(event: Event, later: Event, at: Sequence[int]) -> bool:
    """A bare word behind a program that had not trained: its script says so whatever has become of it."""
    trained = bisect_right(at, event.seq) >= _LINES_AFTER
    return not trained and ends_all(event.fields.get("frames")) and _BARE.fullmatch(later.text.strip()) is not None


def _went_on(event: Event, later: Event) -> bool:
    """Several lines of progress after it, or the end of the work. One alone may be what a dying process flushed; and
    the others go on for a while, until they miss it."""
    if event.fields.get("uncaught") and not later.fields.get("prefixed"):
        return False  # torch's excepthook had the last word; what follows was still in a buffer
    if long_before(later, event):
        return False
    at = later.fields.get("at") or ()
    after = len(at) - bisect_right(at, event.seq)
    needed = 3 if event.rank is None else 2 if event.rank == later.rank else _OF_OTHERS
    if later.fields.get("prefixed") and (later.rank is None or event.rank is None):
        return bool(after >= 2 * _OF_OTHERS)
    done = later.fields.get("finished") or later.fields.get("closes")
    script = after == 1 and _by_script(event, later, at)
    return after >= needed or (after >= 1 and bool(done) and not script)
