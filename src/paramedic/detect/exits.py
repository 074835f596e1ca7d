"""How ranks ended, as the launcher saw it: signals and exit codes."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, islice

from paramedic.detect.match import on_event
from paramedic.detect.once import once
from paramedic.detect.places import at_ranks
from paramedic.detect.ranks import MOST_TASKS
from paramedic.detect.where import left_by_themselves
from paramedic.knowledge import Rule
from paramedic.model import Event, Evidence, Finding, Run, names_processes
from paramedic.regex import regex

_CRASHES = {signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE}
_FROM_OUTSIDE = {
    signal.SIGKILL,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGXCPU,
    signal.SIGXFSZ,
}
_CLOSED = regex(r"Sending process \d{1,10} closing signal |\bKilling subprocess \d{1,10}\b")
_LOADER_KILLED = regex(r"DataLoader worker \(pid (\d{1,10})\) is killed by signal: Killed")
_FORCED = regex(r"Unable to shutdown process (\d{1,10}) via")
_STEP_ENDED = regex(
    r"(?:slurmstepd: |\[\d{4}-[\dT:.-]{6,24}\] )error: \*\*\* (?:STEP|JOB) \S{1,40} ON \S{1,120} CANCELLED AT"
    r"|srun: (?:Job step aborted: Waiting up to|Terminating StepId=)"
)
_SCHEDULER = regex(
    r"slurm|\bsrun\b|\bsbatch\b|kubernetes|kubectl|\bpod[/ s]|k8s|preempt|evict|\bspot\b|\bPBS|\bLSF|sagemaker|volcano",
    re.I,
)
_ASKED = {
    True: ("the scheduler", "sacct -j JOBID --format=JobID,State%30,ExitCode,Reason,MaxRSS  # PBS: tracejob JOBID"),
    False: ("the kernel, then whoever else uses this host,", "dmesg -T | grep -iE 'oom|killed process'; last -n 20"),
}
"""Who may have sent SIGKILL, where the logs show that there is a scheduler, and where they do not."""
_HARDLY_BY_CHANCE = 3
"""So many that abort without a word, while others tell that they waited too long, have waited themselves."""
_VICTIMS = ("communication-runtime-error", "collective-hang")
_ENDINGS: Mapping[str, Mapping[str, float]] = {
    "SIGBUS": {"host-resource-exhaustion": 300.0},  # a mapped page that could not be had: mostly /dev/shm
    "SIGILL": {"driver-toolkit-or-architecture-mismatch": 30.0},  # an instruction that this processor has not
}
_MEMORY_USED = regex(
    r"(?i)(?:virtual|host|cpu|system|ram)[ _]?(?:mem(?:ory)?|ram)?\b[^\n%]{0,60}?\b(\d{2,3}(?:\.\d{1,4})?) ?%"
)
_NEARLY_FULL = 90.0
_MISSED_BY_PEERS = 0.65
"""How sure an exit code alone is of a loss, where all that the others say is that a peer has gone."""


def signal_of(exitcode: int) -> signal.Signals | None:
    """-9 and 137 both mean SIGKILL."""
    number = -exitcode if exitcode < 0 else exitcode - 128
    try:
        return signal.Signals(number) if exitcode < 0 or exitcode > 128 else None
    except ValueError:
        return None


def closed_by_launcher(run: Run, attempt: int) -> list[Event]:
    """What torchrun or DeepSpeed's launcher said of each process that it ended because another had failed. Containers
    count their processes alike, so each line counts."""
    return [event for event in run.saying("process", "line") if event.attempt == attempt and _CLOSED.search(event.text)]


def killed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Who had said that a collective took too long, its own or another's, was alive when the job was already lost."""
    forced = _forced(run)
    alive = {(rank, one.attempt) for one in found if one.symptom == "collective-hang" for rank in one.ranks}

    def wanted(event: Event) -> bool:
        from_outside = _signal(event) in _FROM_OUTSIDE and event.fields["pid"] not in forced
        return from_outside and (event.rank, event.attempt) not in alive

    for one in _ended(run, rule, wanted):
        whom, ask = _ASKED[_scheduled(run)]
        ask = ask.replace("JOBID", _slurm_job(run) or "JOBID", 1)
        yield replace(one, fields={**one.fields, "whom": whom, "ask": ask})


def killed_ranks(run: Run, attempt: int) -> set[int]:
    """Who got SIGKILL, from whomever; containers count their processes alike, so each row counts."""
    ends = [event for event in run.of_kind("exit") if event.attempt == attempt and _signal(event) == signal.SIGKILL]
    return {event.rank for event in ends if event.rank is not None}


@once
def _scheduled(run: Run) -> bool:
    names = (*(source.id for source in run.sources), *(fact.name for fact in run.facts))
    texts = (event.text for event in run.events if event.kind != "metric")
    by_srun = any(event.fields.get("by_srun") for event in run.of_kind("exit"))
    return by_srun or "nodelist" in names or any(_SCHEDULER.search(text) for text in chain(names, texts))


_SLURM_JOB = regex(r"\b(?:SLURM_JOB_?ID=|STEP |JOB |StepId=)(\d{2,10})\b")
_SLURM_FILE = regex(r"(?:^|/)slurm[-_](\d{2,10})\b")


@once
def _slurm_job(run: Run) -> str:
    """Its number, by what Slurm says of it or by the name of its output."""
    lines = run.saying_one_of(("SLURM_JOB", "STEP ", "JOB ", "StepId="), "line")
    said = (_SLURM_JOB.search(event.text) for event in lines)
    named = (_SLURM_FILE.search(source.id) for source in run.sources)
    return next((hit[1] for hit in chain(said, named) if hit is not None), "")


def crashed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """An abort is also how a process ends on purpose when it has said what is wrong, as torch's watchdog does."""
    other = [one for one in found if one.severity == "error" and one.symptom != "native-crash"]
    spoken = {rank for one in other for rank in one.ranks}
    nameless = {(one.evidence[0].event.source, one.attempt) for one in other if _is_timeout_of_anybody(one)}

    aborted = {_rank(event) for event in _exits(run) if _signal(event) == signal.SIGABRT}
    waiting = {rank for one in other if one.symptom in _VICTIMS for rank in one.ranks}
    most = 2 * len(waiting & aborted) > len(aborted)  # the words of some are lost among the others'
    together = len(waiting) >= 2 and (most or len(aborted - spoken) >= _HARDLY_BY_CHANCE)

    def wanted(event: Event) -> bool:
        whose = _rank(event)
        told = (bool(spoken) if whose is None else whose in spoken) or (event.source, event.attempt) in nameless
        told = told or together
        return _signal(event) in _CRASHES and not (_signal(event) == signal.SIGABRT and told)

    for one in _ended(run, rule, wanted):
        yield replace(one, weights=_ENDINGS.get(one.fields["ending"], {}))


def loader_aborted(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """cuDNN met a part of another release and aborted the process: no error of Python's came of it. A part that is not
    there is another matter."""
    aborted = {one.attempt for one in found if one.symptom == "native-crash" and _is_abort(one.evidence[0].event)}
    for one in found:
        event = one.evidence[0].event
        if one.attempt in aborted and event.kind == "line" and (part := _CUDNN_PART.search(event.text)) is not None:
            yield on_event(rule, event, {"library": part[1]})


_CUDNN_PART = regex(r"Could not load library (libcudnn[\w.]{1,40}?)\. Error: (?!.{0,300}cannot open shared object)")
"""As cuDNN 8 says it itself, before it aborts."""


def _is_abort(event: Event) -> bool:
    ended = event.kind == "exit" and _signal(event) == signal.SIGABRT
    return ended or "Fatal Python error: Aborted" in event.text or "SIGABRT" in event.text


_SIGNALLED = regex(r"\[([\w.-]{1,120}:\d{1,10})\] \*\*\* Process received signal \*\*\*")


def with_the_crashed(run: Run, found: Sequence[Finding]) -> list[Finding]:
    """Of a log in which only one rank ended by a signal of its own making, a crash that names nobody is that one's. Of
    several processes that say that they crash mpirun names the first that it has seen end."""
    said = {hit[1] for e in run.saying("*** Process received signal ***", "line") if (hit := _SIGNALLED.search(e.text))}
    if len(said) > 1:
        own = [one for one in found if one.symptom == "native-crash" and _BY_SIGNAL in one.evidence[0].event.text]
        whole = all(one.ranks for one in own)
        return [_of_several(one, whole=whole) if one.symptom == "native-crash" else one for one in found]
    return [_crashed_there(run, one) if one.symptom == "native-crash" and not one.ranks else one for one in found]


_BY_SIGNAL = "] Signal: "


def _of_several(one: Finding, *, whole: bool) -> Finding:
    """Nobody's, where mpirun names one of them, or where of some that say so themselves nobody knows the rank."""
    event = one.evidence[0].event
    of_one = _BY_SIGNAL in event.text and not whole
    if not of_one and "noticed that process rank" not in event.text and event.kind != "exit":
        return one
    others = {"accused": f"{one.fields['accused']} and others"} if "accused" in one.fields else {}
    return replace(one, ranks=(), scope="job", fields={**one.fields, **others, "who": "Several ranks"})


def _crashed_there(run: Run, one: Finding) -> Finding:
    event = one.evidence[0].event
    ends = [e for e in run.of_kind("exit") if (e.source, e.attempt) == (event.source, event.attempt)]
    ranks = {e.rank for e in ends if e.rank is not None and _signal(e) in _CRASHES}
    alone = event.rank is None and len(ranks) == 1 and len({e.rank for e in ends}) > 1
    return at_ranks(one, ranks) if alone else one


def as_the_table_counts(run: Run, first: Finding) -> Finding:
    """Nobody's tracebacks, all of one kind and as many as torchrun's table has ranks that raised, or that aborted since
    C++ then raised in them, too, are those ranks'; where others are known to have been ended."""
    event = first.evidence[0].event
    if first.ranks or event.kind != "traceback":
        return first
    mine = [e for e in run.events if (e.source, e.attempt) == (event.source, first.attempt)]
    types = [(e.rank, tuple(e.fields.get("types") or ())) for e in mine if e.kind == "traceback"]
    raised = [(rank, names) for rank, names in types if not (names and names[-1].endswith("ChildFailedError"))]
    ends = [e for e in mine if e.kind == "exit"]
    code = 1 if any(e.fields["exitcode"] > 0 for e in ends) else -signal.SIGABRT
    ended = {e.rank: str(e.fields.get("host")) for e in ends if e.rank is not None and e.fields["exitcode"] == code}
    spared = {str(e.fields.get("host") or "") for e in ends if e.fields["exitcode"] < 0} - {"", *ended.values()}
    as_many = len(set(raised)) == 1 and (len(raised) == len(ended) or _beyond_the_last_device(first, ended))
    others = spared or set(run.ranks_seen) > ended.keys() or closed_by_launcher(run, first.attempt)
    return at_ranks(first, ended) if as_many and others else first


def _beyond_the_last_device(first: Finding, ended: Collection[int]) -> bool:
    """Whose number is too high for the devices of a host: all of those from some number on, though one may have said
    it for all."""
    return (
        first.symptom == "device-placement-error"
        and "ordinal" in first.evidence[0].event.text
        and min(ended, default=0) > 0
        and max(ended) - min(ended) == len(ended) - 1
    )


_OF_STEPD = regex(r"slurmstepd(?:-[\w.-]{1,80})?: error: ")


def as_srun_counts(run: Run, first: Finding) -> Finding:
    """What a node's slurmstepd says names neither node nor task; srun tells which tasks then left by themselves, and
    which it only ended."""
    event = first.evidence[0].event
    if first.ranks or event.rank is not None or not _OF_STEPD.match(event.text) or names_processes(run.events):
        return first
    left = {task for _, task in islice(left_by_themselves(run, event.source), MOST_TASKS)}
    ended = {e.rank for e in run.of_kind("exit") if e.source == event.source and e.fields.get("by_srun")} - {None}
    return at_ranks(first, left) if left and ended and not left & ended else first


def killed_while_full(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Somebody got SIGKILL, and the last that was said of the host's memory is that hardly any was left."""
    said = [(e, hit) for e in run.saying("%", "line") if (hit := _MEMORY_USED.search(e.text))]
    if not said or float(said[-1][1][1]) < _NEARLY_FULL:
        return
    event, used = said[-1]
    for one in killed(run, rule, found):
        fields = {**one.fields, "used": used[1]}
        yield replace(one, evidence=(Evidence(event), *one.evidence), fields=fields)


def loader_killed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A loader's worker got SIGKILL: where somebody tells of memory that ran out, it follows from that."""
    for event in run.saying("is killed by signal: Killed", "line", "traceback"):
        if (worker := _LOADER_KILLED.search(event.text)) is not None:
            one = on_event(rule, event, {"pid": worker[1]})
            yield _explained_by_memory(one, found)


def _explained_by_memory(one: Finding, found: Sequence[Finding]) -> Finding:
    told = any(other.symptom == "host-out-of-memory" and other.consequence == "never" for other in found)
    return replace(one, consequence="always") if told else one


def deepspeed_killed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DeepSpeed's launcher says that one of its processes got SIGKILL, and names the command that it started last,
    whichever it was: so nobody is accused. Where a kernel tells of memory that ran out, it follows from that, whatever
    the clocks of the two say."""
    for event in run.saying("exits with return code = ", "line"):
        if (code := _RETURNED_KILLED.search(event.text)) is not None:
            one = replace(on_event(rule, event, {"code": code[1]}), ranks=(), scope="job")
            yield _explained_by_memory(one, found)


_RETURNED_KILLED = regex(r"exits with return code = (-9|137)\b")


def terminated(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Asked to end, or forced to by the agent that had asked before."""
    forced = _forced(run)
    return _ended(run, rule, lambda e: _signal(e) == signal.SIGTERM or e.fields["pid"] in forced)


def wordless(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Ranks that left with an error code and said nothing that we know."""
    spoken = {rank for one in found for rank in one.ranks}
    spoken |= {e.rank for e in run.of_kind("traceback") if e.rank is not None}
    nameless = {(f.evidence[0].event.source, f.attempt) for f in found if _may_be_of_anybody(f)}
    ends = Counter((e.source, e.attempt) for e in _exits(run))
    alone = {key for key in nameless if ends[key] == 1}  # who else should have said it?

    def wanted(event: Event) -> bool:
        whose = _rank(event)
        heard = bool(spoken) if whose is None else whose in spoken  # of those who spoke, it may be anybody's end
        silent = not heard and (event.source, event.attempt) not in alone
        return silent and event.fields["exitcode"] > 0 and _signal(event) is None

    silent = _ended(run, rule, wanted)
    for one in silent:
        errors = [f for f in found if f.severity == "error" and f.attempt == one.attempt and f.consequence != "always"]
        missed = all(f.symptom in _VICTIMS and f.consequence == "possible" and f.ranks for f in errors)
        sure = bool(errors) and missed and bool(one.ranks)
        yield replace(one, confidence=_MISSED_BY_PEERS) if sure else one


def _is_timeout_of_anybody(one: Finding) -> bool:
    """The watchdog names the rank within its group, which may be another than the job's."""
    return not one.ranks and one.symptom in ("collective-hang", "rendezvous-setup-hang") and bool(one.evidence)


def _may_be_of_anybody(one: Finding) -> bool:
    return one.severity == "error" and one.consequence != "always" and one.evidence[0].event.rank is None


def _signal(event: Event) -> signal.Signals | None:
    return signal_of(event.fields["exitcode"])


def _rank(event: Event) -> int | None:
    """A restarting agent names only the local rank; on the first node it is the global one, too."""
    local = event.fields.get("local_rank")
    return event.rank if event.rank is not None or not isinstance(local, int) else local


@once
def _forced(run: Run) -> set[int]:
    """Processes that did not end when the agent asked them to, or that Slurm ended with the step after others had
    failed: the SIGKILL is their doing."""
    asked = {int(hit[1]) for e in run.saying("shutdown process", "line") if (hit := _FORCED.search(e.text))}
    return asked | _cancelled(run)


def _cancelled(run: Run) -> set[int]:
    by_srun = [e for e in run.of_kind("exit") if e.fields.get("by_srun")]
    left = run.saying("Exited with exit code", "line") if by_srun else []
    first = {e.source: e.seq for e in sorted((*by_srun, *left), key=lambda e: -e.seq)}
    steps: dict[str, int] = {}
    for event in run.of_kind("line") if by_srun else ():
        if event.seq > first.get(event.source, event.seq) and _STEP_ENDED.search(event.text):
            steps.setdefault(event.source, event.seq)
    return {event.fields["pid"] for event in by_srun if event.seq > steps.get(event.source, event.seq)}


def _ended(run: Run, rule: Rule, wanted: Callable[[Event], bool]) -> Iterator[Finding]:
    for event in _exits(run):
        if wanted(event):
            ending = signal_of(event.fields["exitcode"])
            name = ending.name if ending else f"exit code {event.fields['exitcode']}"
            pid = event.fields["pid"]  # below nought where the launcher has not said it
            yield on_event(rule, event, {"ending": name, "pid": str(pid), "process": f", pid {pid}" if pid > 0 else ""})


def _exits(run: Run) -> list[Event]:
    """One event for each process: the table's row, or the agent's line where there is no row. Containers count their
    processes alike, so rows of one number and several ranks are several."""
    ends: dict[tuple[int, int, int | None], Event] = {}
    for event in run.of_kind("exit"):
        if event.fields["exitcode"] != 0:
            ends.setdefault((event.attempt, event.fields["pid"], event.rank), event)
    rows = {(attempt, pid) for attempt, pid, rank in ends if rank is not None}
    return [event for (attempt, pid, rank), event in ends.items() if rank is not None or (attempt, pid) not in rows]
