"""What did not hold anybody up: set-up that worked after all, calls that fail time after time and are guarded."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from paramedic.detect.once import once
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_ELSEWHERE = ": going to /tmp instead"
"""What Slurm says where the folder of a job is not there."""
_OF_FILES = frozenset(
    [
        "checkpoint-resume-failure",
        "data-pipeline-failure",
        "import-or-missing-symbol",
        "model-weight-loading-failure",
        "path-or-permission-error",
    ]
)


def started_elsewhere(run: Run, one: Finding, found: Sequence[Finding]) -> bool:
    """And missed nothing there: it trains, or has failed for another reason."""
    if _ELSEWHERE not in one.evidence[0].event.text:
        return False
    errors = [f for f in found if f.severity == "error" and f.rule != one.rule and f.consequence != "always"]
    if errors:
        return all(f.symptom not in _OF_FILES for f in errors)
    return bool(run.stepping) and not bad_ends(run)


NO_FAILURE = (0, -15, 143)
"""Exit codes of processes that ended well, or were asked to end."""


def failures(run: Run) -> list[Event]:
    return [e for e in run.of_kind("exit") if e.fields.get("exitcode") not in NO_FAILURE]


@once
def bad_ends(run: Run) -> dict[str, list[int]]:
    """Where in each source a launcher saw somebody end with a code of his own."""
    found: dict[str, list[int]] = defaultdict(list)
    for event in (*failures(run), *run.saying("Exited with exit code", "line")):
        found[event.source].append(event.seq)
    return {source: sorted(places) for source, places in found.items()}


_SET_UP = frozenset(
    [
        "build-or-install-failure",
        "device-placement-error",
        "import-or-missing-symbol",
        "rendezvous-setup-failure",
        "rendezvous-setup-hang",
    ]
)
_OF_PACKAGES = frozenset(["build-or-install-failure", "import-or-missing-symbol"])
_ONLY_WARNS = regex(r"\.py:\d{1,6}: \w{0,40}Warning: ")
"""How Python prints a warning: the program goes on without that package."""
_BEGUN, _RIGHT_BEFORE = 8, 64
_FALLS_BACK = "Cannot initialize CollNet, using point-to-point network instead"
"""NCCL without the offload that it has tried: the results that it passes up are of that."""


def trained_all_the_same(run: Run, one: Finding) -> bool:
    """Who cannot be set up does not train. Behind it there are steps of training; or each rank that there is was heard
    of later, and it was none of theirs."""
    event = one.evidence[0].event
    if one.symptom not in _SET_UP or event.fields.get("uncaught"):
        return False
    if one.symptom in _OF_PACKAGES and _ONLY_WARNS.search(event.text[:1_000]):
        return True
    if _without_collnet(run, event):
        return True
    if event.kind == "traceback" and bad_ends(run) and not _set_up_and_over(run, one):
        return _of_nobody(run, one)
    for later in run.stepping:
        if (later.source, later.attempt) == (event.source, event.attempt) and later.seq > event.seq:
            at = later.fields.get("at") or ()
            if len(at) - bisect_right(at, event.seq) >= _BEGUN:
                return True
    return _of_nobody(run, one)


def _set_up_and_over(run: Run, one: Finding) -> bool:
    """Out of the very calls with which every rank begins, and all that launchers saw end badly had ended before
    training: that was another start."""
    event = one.evidence[0].event
    if one.symptom not in _BEGINNING or not any(map(_BEGINS.search, event.fields.get("frames", ()))):
        return False
    if run.saying("Exited with exit code", "line"):
        return False  # one task of several, which need not know each other
    last = max(bad_ends(run).get(event.source, [0]))
    first = min((at for told in run.stepping if told.source == event.source for at in told.fields["at"]), default=0)
    return last < first and all(source == event.source for source in bad_ends(run))


_BEGINNING = frozenset(["device-placement-error", "rendezvous-setup-failure", "rendezvous-setup-hang"])
_BEGINS = regex(r"torch/cuda/__init__\.py:\d{1,5} in (?:set_device|_lazy_init)$| in init_process_group$")


def _of_nobody(run: Run, one: Finding) -> bool:
    """Every rank that there is was heard of later: it was a program beside them that lacks a package."""
    event = one.evidence[0].event
    if event.rank is not None or event.kind != "traceback" or one.symptom != "import-or-missing-symbol":
        return False
    heard = {e.rank for e in run.of_kind("traceback", "progress") if e.seq > event.seq and e.source == event.source}
    return len(run.expected_ranks) > 1 and heard >= set(run.expected_ranks) and bool(run.stepping)


def _without_collnet(run: Run, event: Event) -> bool:
    """The same thread has said right before that it does without."""
    if "NCCL INFO" not in event.text or "[Async thread]" in event.text:
        return False
    who = event.text.split(" ", 1)[0]
    return any(
        fallback.source == event.source
        and fallback.text.startswith(who)
        and 0 <= event.seq - fallback.seq <= _RIGHT_BEFORE
        for fallback in run.saying(_FALLS_BACK, "line")
    )


def logged_in_passing(run: Run, one: Finding, found: Sequence[Finding]) -> str:
    """Somebody caught it and logged it, and long after it nobody has anything else to complain of."""
    event = one.evidence[0].event
    if not event.fields.get("logged") or run.of_kind("exit") or event.line is None:
        return ""
    lines = next((source.lines for source in run.sources if source.id == event.source), 0)
    others = any(f.severity == "error" and not f.evidence[0].event.fields.get("logged") for f in found)
    return "" if others or lines - event.line < _LONG_AFTER else "logged by the program, which went on"


_LONG_AFTER = 200
_TIMES_AGAIN = 3
_AGAIN_AND_AGAIN = "raised time after time, while training went on"


def raised_again(run: Run, one: Finding) -> str:
    """The same exception out of the same call, time after time between lines of training: somebody catches it, and
    prints where it came from."""
    event = one.evidence[0].event
    if event.kind != "traceback" or event.fields.get("uncaught") or one.symptom in _OF_DEVICES:
        return ""
    alike = _alike(run).get(_kind_of(event), [])
    often = _TIMES_AGAIN if event.rank is not None else max(_TIMES_AGAIN, len(run.expected_ranks))
    moved = [told for told in own_progress(run) if told.source == event.source]
    trained = sorted(line for told in moved for line in told.fields.get("at", ()))
    between = sum(bisect_right(trained, b) > bisect_right(trained, a) for a, b in pairwise(alike))
    behind = bool(alike and trained) and trained[-1] > alike[-1]
    return _AGAIN_AND_AGAIN if between + behind >= often else ""


_OF_DEVICES = frozenset(
    [
        "accelerator-fault",
        "collective-hang",
        "communication-runtime-error",
        "device-out-of-memory",
        "host-out-of-memory",
        "native-crash",
        "worker-or-node-loss",
    ]
)
"""After these nobody goes on in the same process."""


class _Kind(NamedTuple):
    source: str
    attempt: int
    rank: int | None
    first: str
    """The call that is guarded; none where the whole program is left."""
    raised: str


@once
def _alike(run: Run) -> dict[_Kind, list[int]]:
    """Where tracebacks of one kind stand."""
    found: dict[_Kind, list[int]] = defaultdict(list)
    for event in run.of_kind("traceback"):
        if (kind := _kind_of(event)).first:
            found[kind].append(event.seq)
    return found


_WHOLE = regex(r" in <module>$|/runpy\.py:|<frozen runpy>|/multiprocessing/|/threading\.py:|/concurrent/futures/")


def _kind_of(event: Event) -> _Kind:
    """Who formats an exception himself shows it from the call on that he guards."""
    frames = [str(frame) for frame in event.fields.get("frames") or [""]]
    guarded = not any(map(_WHOLE.search, frames))
    raised = str((event.fields.get("types") or [""])[-1])
    return _Kind(event.source, event.attempt, event.rank, frames[0] if guarded else "", raised)


@once
def own_progress(run: Run) -> list[Event]:
    """Without that of another run, from an earlier day, which somebody has put below."""
    found = []
    latest: dict[str, Event] = {}
    for event in sorted(run.of_kind("line", "progress"), key=attrgetter("seq")):
        above = latest.get(event.source, event)
        if event.kind == "progress" and not long_before(event, above):
            found.append(event)
        elif event.kind == "line" and event.utc_ns is not None and event.utc_ns >= (above.utc_ns or 0):
            latest[event.source] = event
    return found


def long_before(one: Event, other: Event) -> bool:
    """Surely so, whatever zones their clocks are in."""
    if one.utc_ns is None or other.utc_ns is None:
        return False
    return one.utc_ns + one.uncertainty_ns + other.uncertainty_ns < other.utc_ns
