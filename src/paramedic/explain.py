"""First failure, cascades, ranked causes.

Order comes from causality first (an out-of-memory error is never an echo, a timeout may be, the agent's SIGTERM always
is), then from clocks or the position in one file. What followed from the first failure is folded under it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace

from paramedic.causes import Place, explained, listed, subject
from paramedic.detect.exits import (
    as_srun_counts,
    as_the_table_counts,
    closed_by_launcher,
    killed_ranks,
    with_the_crashed,
)
from paramedic.detect.hang import absent, has_less, missed, odd_among_accused, odd_ones
from paramedic.detect.interrupted import TIME_LIMIT
from paramedic.detect.numerics import diverged, on_a_gpu_of_before, on_one_gpu
from paramedic.detect.places import at_ranks
from paramedic.detect.recovery import BY_SCHEDULER, SCHEDULER, lost_before
from paramedic.detect.series import of_all_attempts
from paramedic.detect.stacks import ENDED
from paramedic.detect.where import located, on_the_lost_node, places
from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.clues import OUTRIGHT
from paramedic.knowledge.priors import Setting
from paramedic.model import SEVERITIES, VERDICT_AT, Cascade, Event, Evidence, Finding, Report, Run
from paramedic.said import answered, only_ended
from paramedic.survived import SILENT, outlived

_DOUBT = 0.45
"""Of the doubt that rules carry, so much is left in a verdict: measured on the ward's development cases with the rules
of each case's own system left out, where rules that said 0.8 were right in 92 of 100, and all together in 94."""
_UNSURE = frozenset({"exceptions.unrecognised", "exceptions.last_words", "hang.silent_setup"})

MAX_EVIDENCE = 6
_ZONE_STEP_NS = 25 * 60 * 1_000_000_000
"""Clocks that are further apart than this may be in different zones: then they decide nothing."""
_DAY_NS = 24 * 3600 * 1_000_000_000
_BY_SIGNAL = 128
_ALIKE = frozenset(
    [
        "build-or-install-failure",
        "import-or-missing-symbol",
        "invalid-run-configuration",
        "model-weight-loading-failure",
        "unsupported-api-or-attribute",
    ]
)
"""What meets every rank on its way into training, though one may be the first and only one to say so."""
_OWN = frozenset(
    [
        "accelerator-fault",
        "checkpoint-save-failure",
        "device-placement-error",
        "host-out-of-memory",
        "native-crash",
        "numerical-instability",
        "rendezvous-setup-failure",
        "worker-or-node-loss",
    ]
)
"""What one rank can have alone: that others were ended meanwhile does not mean that they had it, too."""
_POSITIONS = frozenset({"trace", "stack", "process", "watch", "calls"})
"""Events that tell where a rank stands, and not why."""
_TORN = "checkpoint-save-failure"
_CONVICTS = 0.7
"""A pattern in a program that is less often the failure than this is a remark, and no verdict."""
_NEEDS_NO_OTHER = 0.9
"""A message that has one cause so often is not told by another one what its cause is."""
_FORESEEN = 12.0
"""How much likelier a cause is that the program itself shows."""
_BESIDE = 30.0
"""And one that a machine complains of meanwhile."""
_OF_ITSELF = 250.0
"""And one that the very rank which is missed complains of."""
_ORDER = {"never": 0, "possible": 1, "always": 2}


def explain(
    run: Run,
    found: Sequence[Finding],
    knowledge: Knowledge,
    setting: Setting,
    foreseen: Sequence[Finding] = (),
    *,
    told: Sequence[Event] = (),
) -> Report:
    """Turns what was detected into one verdict, with everything else folded, kept beside it, or left out by name.

    `foreseen` is what the job's program and settings say: it confirms what the logs show, and where they show nothing
    it may be all there is. `told` is what somebody says of the job: where nothing failed, that is to be explained.
    """
    alive, suppressed = outlived(run, with_the_crashed(run, located(run, found)), knowledge)
    alive = _called_off(run, _failures_first(_with_program(alive, foreseen, knowledge), knowledge))
    errors = [f for f in alive if f.severity == "error"]
    notes = [f for f in alive if f.severity != "error"]
    last = _judged(run, errors)
    first, echoes = _first_failure(run, [f for f in errors if f.attempt == last], knowledge)
    if first:
        echoes += [f for f in notes if f.consequence == "always" and f.attempt == last]
        notes = [f for f in notes if f.consequence != "always"]
        first[0] = _with_those_of_its_host(run, on_a_gpu_of_before(first[0], errors), errors)
        first[0] = _without_the_lost(run, first[0], errors)
        first[0] = _confirmed(_corroborated(first[0], [*notes, *first[1:]], knowledge), foreseen)
    else:
        first, foreseen = _by_program(run, foreseen, knowledge)
    if told and not (first and first[0].confidence >= VERDICT_AT and not only_ended(first[0], told)):
        first, notes, foreseen = answered(run, told, (first, notes, foreseen), knowledge)
    earlier = _merged(f for f in errors if f.attempt != last and f.consequence == "never")
    place = Place.of(run)
    findings = [explained(place, f, knowledge, setting) for f in (*first, *earlier, *_merged(notes), *foreseen)]
    findings.sort(key=lambda f: (f.severity != "error", f.attempt != last))
    if first and findings[0].confidence >= VERDICT_AT:
        verdict = findings[0] = _calibrated(findings[0], knowledge.rules[findings[0].rule])
    else:
        verdict = None
    return Report(
        run=run,
        verdict=verdict,
        findings=tuple(findings),
        cascades=_cascades(echoes, first[0].rule) if first else (),
        skipped=run.skipped,
        suppressed=tuple(suppressed),
    )


_CALLED_OFF = re.compile(r"\bCANCELLED (?:AT \S{1,40} \*\*\*|by \d)")


def _called_off(run: Run, found: list[Finding]) -> list[Finding]:
    """That somebody cancelled a job that had just moved says nothing of a failure, where nothing else does."""
    if any(one.severity == "error" and one.consequence != "always" and one.rule != _CANCELLED for one in found):
        return found
    return [
        replace(one, severity="warning")
        if one.rule == _CANCELLED and _CALLED_OFF.search(one.evidence[0].event.text) and _had_moved(run, one)
        else one
        for one in found
    ]


def _had_moved(run: Run, one: Finding) -> bool:
    """Up to then, as far as clocks tell; those of other zones are whole hours apart."""
    ended = one.evidence[0].event
    moved = [event for event in run.stepping if not event.fields.get("finished")]
    last = max((e for e in moved if e.utc_ns is not None), key=lambda e: e.utc_ns or 0, default=None)
    if last is None or ended.utc_ns is None:
        return bool(moved)
    gap = ended.utc_ns - (last.utc_ns or 0)
    return (gap if last.uncertainty_ns == ended.uncertainty_ns else gap % _HOUR_NS) < _HALF_AN_HOUR_NS


_HOUR_NS, _HALF_AN_HOUR_NS = 3_600_000_000_000, 1_800_000_000_000
_CANCELLED = "JOB014"


def _with_program(found: Sequence[Finding], foreseen: Sequence[Finding], knowledge: Knowledge) -> list[Finding]:
    """What was seen and looks wrong is a remark where the program shows that it is meant, and made up for elsewhere;
    what alone is a remark is an error where the program shows the same, and nothing else is one."""
    shown = {one.rule for one in foreseen}
    alone = not any(one.severity == "error" for one in found)
    judged = []
    for one in found:
        rule = knowledge.rules[one.rule]
        if one.severity == "error" and shown.intersection(rule.excused_by):
            judged.append(replace(one, severity="warning"))
        elif alone and one.severity == "warning" and shown.intersection(rule.sure_with):
            judged.append(replace(one, severity="error"))
        else:
            judged.append(one)
    return judged


def _failures_first(found: Sequence[Finding], knowledge: Knowledge) -> list[Finding]:
    """What agents saw a program do wrong is a remark beside a failure of another kind: that job has ended by this."""
    seen = {id(one) for one in found if knowledge.rules[one.rule].of_conduct}
    errors = [one for one in found if one.severity == "error" and id(one) not in seen]
    failed = {one.symptom for one in errors if one.consequence != "always"}
    remarks = {id(one) for one in found if failed and id(one) in seen and one.symptom not in failed}
    if any(_ends_it(one) for one in errors):
        remarks |= {id(one) for one in errors if one.symptom in _COSTLY}
    return [
        replace(one, severity="warning") if id(one) in remarks and one.severity == "error" else one for one in found
    ]


_COSTLY = frozenset(["low-throughput", "memory-savings-not-realised"])
"""With these a job goes on, slower or on fewer samples."""


def _ends_it(one: Finding) -> bool:
    """An exception that nobody caught, of something else than want of memory."""
    return _raised(one) and one.symptom not in _COSTLY and not one.symptom.endswith("out-of-memory")


def _calibrated(verdict: Finding, rule: Rule) -> Finding:
    """As often right as it says. What people tell in their own words, what only the program shows and what no rule
    knows stays as it is: on posts of strangers it is not righter than it says."""
    told = any(item.event.kind == "description" for item in verdict.evidence)
    if rule.detector in _UNSURE or rule.before or told:
        return verdict
    return replace(verdict, confidence=round(1 - _DOUBT * (1 - verdict.confidence), 3))


def foresee(run: Run, found: Iterable[Finding], knowledge: Knowledge, setting: Setting) -> Report:
    """Before the start nothing has failed yet: no verdict, and every finding stands for itself."""
    place = Place({}, None, 0)
    findings = [explained(place, one, knowledge, setting) for one in found]
    findings.sort(key=lambda one: (SEVERITIES[::-1].index(one.severity), -one.confidence))
    return Report(run=run, verdict=None, findings=tuple(findings), skipped=run.skipped)


def _confirmed(first: Finding, foreseen: Sequence[Finding]) -> Finding:
    """The program has what leads to the very symptom: its cause is the likely one, and its line is evidence."""
    same = [one for one in foreseen if one.symptom == first.symptom and one.severity != "info"]
    named = {cause.id: _FORESEEN * cause.probability for one in same for cause in one.causes[:1]}
    weights = {**first.weights, **{c: max(factor, first.weights.get(c, 1.0), 1.0) for c, factor in named.items()}}
    evidence = (*first.evidence[: MAX_EVIDENCE - 1], *(one.evidence[0] for one in same[:2])) if same else first.evidence
    return replace(first, weights=weights, evidence=evidence)


def _corroborated(first: Finding, beside: Sequence[Finding], knowledge: Knowledge) -> Finding:
    """What a machine complained of meanwhile is the likely cause, where it can be one: a hang is the disk's when the
    kernel waits for the disk. And so is what another message about the same thing is sure of."""
    possible = knowledge.taxonomy.symptoms[first.symptom].causes
    sure = max(knowledge.rules[first.rule].causes.values(), default=0.0) >= _NEEDS_NO_OTHER
    told: dict[str, Finding] = {}
    for one in beside:
        rule = knowledge.rules[one.rule]
        same = one.severity == "error" and one.symptom == first.symptom and not sure
        if same or (one.severity == "warning" and _of_a_machine(rule) and _same_day(one, first)):
            told.update({c: one for c, share in rule.causes.items() if share >= _CONVICTS and c in possible})
    evidence = (*first.evidence[: MAX_EVIDENCE - 1], *(one.evidence[0] for one in told.values()))[:MAX_EVIDENCE]
    odds = {cause: _OF_ITSELF if _same_ranks(one, first) else _BESIDE for cause, one in told.items()}
    weights = {**first.weights, **{cause: max(factor, first.weights.get(cause, 0.0)) for cause, factor in odds.items()}}
    return replace(first, weights=weights, evidence=evidence)


def _same_ranks(one: Finding, first: Finding) -> bool:
    return bool(one.ranks) and (one.ranks, one.symptom) == (first.ranks, first.symptom)


def _same_day(one: Finding, other: Finding) -> bool:
    """Whatever the zones of their clocks; a kernel log may go back for months."""
    times = [f.evidence[0].event.utc_ns for f in (one, other)]
    return None in times or abs((times[0] or 0) - (times[1] or 0)) < _DAY_NS


def _of_a_machine(rule: Rule) -> bool:
    return not (rule.before or rule.of_conduct) and rule.symptom not in SILENT


def _by_program(run: Run, foreseen: Sequence[Finding], knowledge: Knowledge) -> tuple[list[Finding], Sequence[Finding]]:
    """Nobody failed by the logs. What the program does wrong by itself, and nothing stops it from, is the verdict."""
    if not any(source.lines for source in run.sources):
        return [], foreseen
    sure = [one for one in foreseen if _without_a_word(one, knowledge.rules[one.rule]) and _convicts(one)]
    if not sure:
        return [], foreseen
    first = max(sure, key=lambda one: one.confidence)
    return [replace(first, severity="error")], [one for one in foreseen if one is not first]


def _without_a_word(one: Finding, rule: Rule) -> bool:
    """Of what single calls look like an error would tell; what follows a whole program shows that none will."""
    return one.symptom in SILENT or (one.symptom == _TORN and not rule.detector.startswith("code."))


def _convicts(one: Finding) -> bool:
    """A setting that may cost time is on purpose as often as not, and nobody said that the job is slow."""
    setting = one.evidence[0].event.kind == "setting"
    return (
        one.severity != "info"
        and one.confidence >= _CONVICTS
        and not (setting and one.symptom in ("low-throughput", "unexpected-transport"))
    )


def _judged(run: Run, errors: Sequence[Finding]) -> int:
    """The last attempt that failed; a later one that trains on has made up for it, but not one that only evaluates."""
    failed = max((f.attempt for f in errors), default=0)
    later = [e for e in run.of_kind("progress") if e.attempt > failed and not e.fields.get("evaluates")]
    return max((e.attempt for e in later), default=failed)


# -- who failed first ----------------------------------------------------------------------------------------------


def _first_failure(run: Run, errors: Sequence[Finding], knowledge: Knowledge) -> tuple[list[Finding], list[Finding]]:
    """([the first failure, then rivals that cannot be told from it], the echoes)."""
    if not errors:
        return [], []
    errors = _not_by_time(run, _without_a_way(_not_unexpectedly(errors)))
    merged = sorted(_merged(_roots(_telling(errors))), key=_preference)
    first = _of_the_job(_earliest(merged), merged, knowledge)
    named = set(first.ranks)
    rest = [f for f in errors if f.rule != first.rule or not named.issuperset(f.ranks)]
    first = _named(run, replace(first, weights=_named_causes(first, errors, knowledge)), errors, knowledge)
    if first.symptom in _WAITED and has_less(run, first.ranks):
        first = replace(first, weights={**first.weights, "uneven-work-across-ranks": _FEWER})
    if first.symptom == "numerical-instability" and first.evidence[0].event.kind in ("line", "traceback"):
        first = on_one_gpu(replace(first, weights={**diverged(run, first), **first.weights}))
    rivals = [f for f in merged if f.rule != first.rule and f.consequence == "never" and first.consequence == "never"]
    if rivals:
        first = replace(first, confidence=first.confidence * 0.9)
    echoes = [f for f in rest if not any(f.rule == r.rule for r in rivals)]
    return [first, *rivals], echoes


def _with_those_of_its_host(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """Memory is its host's: whoever was killed for it there in the attempt before had the same fault."""
    if first.symptom != "host-out-of-memory" or not first.ranks:
        return first
    same = [f for f in errors if f.rule == first.rule and f.attempt == first.attempt - 1 and f.ranks]
    ranks = {*first.ranks, *(rank for f in same for rank in f.ranks)}
    beside = any(ranks <= there for there in places(run).ranks_on.values())
    return replace(first, ranks=tuple(sorted(ranks))) if beside else first


def _without_the_lost(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """A launcher that gives up for want of room misses those whom it lost in the attempt before: whose host was gone,
    or who had failed for a reason of their own."""
    if first.symptom != "failed-recovery" or first.ranks or _WANT_OF_ROOM.search(first.evidence[0].event.text) is None:
        return first
    before = [f for f in errors if f.attempt == first.attempt - 1 and f.consequence == "never"]
    gone = lost_before(run, first.attempt) or {rank for f in before for rank in f.ranks}
    if any(f.rule in BY_SCHEDULER for f in before):
        first = replace(first, weights={**first.weights, SCHEDULER: _BESIDE})
    return at_ranks(first, gone) if gone and gone < run.expected_ranks else first


_WANT_OF_ROOM = re.compile(r"failed to activate new hosts|minimum number of slots")


def _not_unexpectedly(errors: Sequence[Finding]) -> Sequence[Finding]:
    """Ray sees an actor gone and knows no reason; where the actor itself said before that it shuts down because of
    an error above, that is an echo."""
    gave_up = [f.evidence[0].event for f in errors if f.rule == _GAVE_UP]
    return [replace(f, consequence="always") if f.rule == _DIED and _told_before(gave_up, f) else f for f in errors]


_GAVE_UP, _DIED = "JOB760", "JOB047"
_NO_WAY = frozenset(["Host is down", "Network is down", "Network is unreachable", "No route to host"])


def _without_a_way(errors: Sequence[Finding]) -> Sequence[Finding]:
    """A peer that has died refuses; that there is no way to its host was so before, and who dies then dies of it."""
    cut_off = {rank for f in errors if f.fields.get("why") in _NO_WAY for rank in f.ranks}
    if not cut_off:
        return errors
    return [
        replace(f, consequence="never")
        if f.fields.get("why") in _NO_WAY
        else replace(f, consequence="always")
        if f.symptom == "native-crash" and f.ranks and cut_off.issuperset(f.ranks)
        else f
        for f in errors
    ]


def _not_by_time(run: Run, errors: Sequence[Finding]) -> Sequence[Finding]:
    """Who waits in vain waits until the scheduler's time is over: that is the echo, where the wait was told before it,
    and nobody made a step in between. And so it is where one rank made all others slow, or all was begun anew."""
    if any(f.rule == _STUCK_SAVING for f in errors):  # seen before the end that somebody made of it
        errors = [replace(f, consequence="always") if f.rule in ENDED else f for f in errors]
    if not any(map(_ran_out, errors)):
        return errors
    waits = [f.evidence[0].event for f in errors if f.symptom in _IN_VAIN or _raised(f)]
    last: dict[str, int] = {}
    for event in run.stepping:
        last[event.source] = max(last.get(event.source, -1), *event.fields.get("at", ()), -1)
    since = [e for e in waits if last.get(e.source, -1) <= e.seq]
    slowed = any(f.symptom == _SLOWED or f.rule == _BEGUN_ANEW for f in errors)
    late = [_ran_out(f) and (slowed or _told_before(since, f)) for f in errors]
    return [replace(f, consequence="always") if is_late else f for f, is_late in zip(errors, late, strict=True)]


_STUCK_SAVING = "CKPT780"
_IN_VAIN = ("collective-hang", "communication-runtime-error", "rendezvous-setup-hang")
_SLOWED, _BEGUN_ANEW = "straggler-or-imbalance", "CKPT790"
_OF_TIME = frozenset(["TIME LIMIT", "TIMEOUT", "wall clock limit", "walltime", "TERM_RUNLIMIT"])


_TOP = (" in <module>", " in _bootstrap", " in _run_module_as_main", " in _wrap")


def _raised(one: Finding) -> bool:
    """Out of the whole program, and not merely out of a call that somebody guards."""
    event = one.evidence[0].event
    first = str((event.fields.get("frames") or [""])[0])
    return (
        event.kind == "traceback"
        and one.consequence == "never"
        and (bool(event.fields.get("uncaught")) or first.endswith(_TOP))
    )


def _ran_out(one: Finding) -> bool:
    return one.rule == TIME_LIMIT and one.fields.get("reason") in _OF_TIME


def _told_before(waits: Sequence[Event], ended: Finding) -> bool:
    """By their place in one file, else by clocks."""
    end = ended.evidence[0].event
    return any(e.seq < end.seq if e.source == end.source else _earlier(e, end) for e in waits)


def _earlier(one: Event, other: Event) -> bool:
    known = one.utc_ns is not None and other.utc_ns is not None and one.uncertainty_ns == other.uncertainty_ns
    return known and 0 < (other.utc_ns or 0) - (one.utc_ns or 0) < _DAY_NS


def _named(run: Run, first: Finding, errors: Sequence[Finding], knowledge: Knowledge) -> Finding:
    """With the ranks where the fault was; none where all failed alike, or where the message does not say."""
    rule = knowledge.rules[first.rule]
    own = [f for f in errors if f.rule == first.rule]
    accused = "accused" in first.fields
    if first.symptom == "worker-or-node-loss":
        first = on_the_lost_node(run, first, errors)
    if not first.ranks and first.consequence == "never":
        first = as_the_table_counts(run, _with_rank_of_exit(run, _as_ranks_said(run, first, errors), errors))
        first = as_srun_counts(run, first)
    everywhere = _everywhere(run, first, errors)
    if not first.ranks and (who := _together(run, own, errors)):
        first = replace(first, fields={**first.fields, "who": who})
    odd: Set[int] = frozenset()
    if first.symptom == "rendezvous-setup-hang" and not accused:
        odd = absent(run, own)
    elif everywhere and accused and first.symptom == "collective-hang":
        odd = odd_among_accused([f for f in own if "accused" in f.fields])
    elif everywhere and first.symptom == "collective-desync":
        odd = odd_ones(own)
    if odd:
        ranks = tuple(sorted(odd))
        fields = {**first.fields, "accused": listed(ranks), "who": subject(first.ranks)}
        return replace(first, ranks=ranks, scope="rank", fields=fields)
    echo = first.consequence != "never" and rule.consequence == "never"
    shared = len(first.ranks) > 1 and _QUOTA.search(first.evidence[0].event.text) is not None
    shared = shared or _one_speaks_for_all(run, first)
    if everywhere or shared or (echo and not accused) or not (rule.blames_reporter or accused):
        who = "Every rank" if everywhere and first.ranks else first.fields.get("who") or subject(first.ranks)
        return replace(first, ranks=(), scope="job", fields={**first.fields, "who": who})
    return first


_WAITED, _FEWER = ("collective-hang", "collective-desync"), 20.0
_QUOTA = re.compile(r"Disk quota exceeded|\[Errno 122\]")
"""Of a project on shared storage: whoever writes next meets it."""


def _one_speaks_for_all(run: Run, first: Finding) -> bool:
    """A number went wrong that one rank of several prints, and nobody else prints any: it may be all ranks'."""
    if first.symptom != "numerical-instability" or first.evidence[0].event.kind not in ("progress", "metric"):
        return False
    speak = {e.rank for e in run.of_kind("progress", "metric")} - {None}
    several = len(run.expected_ranks) > 1 or any(f.name == "world_size" and f.value not in (0, 1) for f in run.facts)
    return len(first.ranks) == 1 and speak == {*first.ranks} and several


def _together(run: Run, own: Sequence[Finding], errors: Sequence[Finding]) -> str:
    """Several said it without a name, and the launcher saw as many fail by themselves: it was not one rank."""
    failed = [f for f in errors if f.evidence[0].event.kind == "exit" and f.consequence != "always"]
    ended = {rank for one in failed for rank in one.ranks}
    if len(own) < 2 or len(ended) < 2 or any(one.ranks for one in own):
        return ""
    return "Every rank" if ended >= run.expected_ranks else "Several ranks"


def _named_causes(first: Finding, errors: Sequence[Finding], knowledge: Knowledge) -> Mapping[str, float]:
    """Its own, and what somebody else's message of the same attempt names outright: the peers' disk is its disk, where
    a disk can bring this about."""
    can = {*knowledge.taxonomy.symptoms[first.symptom].causes, *(cause.id for cause in first.causes)}
    others = [f.weights for f in errors if f.attempt == first.attempt and f.consequence != "always"]
    named = {c: factor for weights in others for c, factor in weights.items() if factor >= OUTRIGHT and c in can}
    return {**named, **first.weights}


def _of_the_job(first: Finding, merged: Sequence[Finding], knowledge: Knowledge) -> Finding:
    """Of two words for one failure, the one that names who did it; else the surer one that is about the job: a rank
    then only met the job's mistake."""
    same = [f for f in merged if f.symptom == first.symptom and f.consequence == "never"]
    met = first.symptom == "numerical-instability"  # by whoever looked, one step after the rank whose number it was
    if "accused" not in first.fields and (met or not knowledge.rules[first.rule].blames_reporter):
        first = next((f for f in same if "accused" in f.fields), first)
    return next(
        (
            f
            for f in same
            if f.confidence > first.confidence
            and not knowledge.rules[f.rule].blames_reporter
            and "accused" not in first.fields
        ),
        first,
    )


def _as_ranks_said(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """The kernel or the scheduler saw what some ranks say of themselves, or what the others miss them for."""
    said: Set[int] = {r for f in errors if f.symptom == first.symptom and f.consequence == "never" for r in f.ranks}
    if not said and _opens_the_store(first.evidence[0].event):
        said = {0}
    if not said and first.symptom in ("accelerator-fault", "host-out-of-memory", "native-crash"):
        said = missed(run, errors)
        said = said & killed_ranks(run, first.attempt) or said
    elif not said and len([f for f in errors if f.rule == first.rule and f.attempt == first.attempt]) == 1:
        alone = missed(run, errors)  # one process has said it, and all but one have missed one
        said = alone if len(alone) == 1 and len(run.expected_ranks) > 2 else said
    return replace(first, ranks=tuple(sorted(said)), scope="rank") if said else first


def _opens_the_store(event: Event) -> bool:
    """Of all ranks the first one listens, where the others come to; an agent of torchrun's does it for itself."""
    frames = event.fields.get("frames", ())
    torchs = any("distributed/rendezvous.py" in frame or "distributed_c10d.py" in frame for frame in frames)
    return torchs and "failed to listen" in event.text and not any("/elastic/" in frame for frame in frames)


def _telling(errors: Sequence[Finding]) -> Sequence[Finding]:
    """Without what says too little for a verdict, where somebody's words are enough for one: ends beside words, and
    failures beside a sure one."""
    sure = [f for f in errors if f.confidence >= VERDICT_AT]
    spoken = any(f.consequence != "always" and f.evidence[0].event.kind != "exit" for f in sure)
    failed = any(f.consequence == "never" for f in sure)
    return [
        f
        for f in errors
        if f.confidence >= VERDICT_AT
        or not ((spoken and f.evidence[0].event.kind == "exit") or (failed and f.consequence == "never"))
    ]


def _roots(errors: Sequence[Finding]) -> list[Finding]:
    """Each rank's own first failure; of all ranks, only those that are least likely to be an echo."""
    by_rank: dict[int | None, list[Finding]] = defaultdict(list)
    for one in errors:
        for rank in one.ranks or (None,):
            by_rank[rank].append(one)
    if len(by_rank) > 1 and None in by_rank:
        ranked = {f.rule for rank, found in by_rank.items() if rank is not None for f in found}
        by_rank[None] = [f for f in by_rank[None] if f.rule not in ranked]
    own = [
        min(found, key=lambda f: (*_preference(f), "accused" not in f.fields)) for found in by_rank.values() if found
    ]
    least = min(_preference(f)[:2] for f in own)
    return [f for f in own if _preference(f)[:2] == least]


def _preference(one: Finding) -> tuple[int, bool, bool, float]:
    """Within a rank: what cannot be an echo, then what was said rather than how it exited, then an error rather than
    where the rank stands because of it (unless that is what the error is about), then the surest."""
    kind = one.evidence[0].event.kind
    position = kind in _POSITIONS and "confirmed" not in one.fields
    return _ORDER[one.consequence], kind == "exit", position, -one.confidence


def _merged(found: Iterable[Finding]) -> list[Finding]:
    """One finding for each rule and attempt, with all its ranks and the first evidence of each."""
    groups: dict[tuple[str, str, int], list[Finding]] = defaultdict(list)
    for one in found:
        groups[one.rule, one.symptom, one.attempt].append(one)
    return [_merge(group) for group in groups.values()]


def _merge(group: Sequence[Finding]) -> Finding:
    ordered = sorted(group, key=lambda f: (f.evidence[0].event.rank is None, f.evidence[0].event.seq))
    evidence: dict[tuple[str, int], Evidence] = {}
    for one in ordered:
        for item in one.evidence:
            evidence.setdefault((item.event.source, item.event.seq), item)
    named = [one for one in group if "accused" in one.fields]
    ordered = named or ordered
    ranks = tuple(sorted({rank for one in ordered for rank in one.ranks}))
    hosts = tuple(sorted({host for one in group for host in one.hosts}))
    chosen = tuple(evidence.values())[:MAX_EVIDENCE]
    return replace(ordered[0], ranks=ranks, hosts=hosts, evidence=chosen, scope="rank" if ranks else "job")


def _earliest(merged: Sequence[Finding]) -> Finding:
    """Of equals, the one whose clock or place in one file is first; without either, the one we are surest of."""
    if len(merged) == 1:
        return merged[0]
    events = [f.evidence[0].event for f in merged]
    times = sorted(e.utc_ns for e in events if e.utc_ns is not None)
    if len(times) == len(events) and times[1] - times[0] < _ZONE_STEP_NS:
        return min(merged, key=lambda f: f.evidence[0].event.utc_ns or 0)
    if len({e.source for e in events}) == 1:
        return min(merged, key=lambda f: f.evidence[0].event.seq)
    return merged[0]


def _with_rank_of_exit(run: Run, first: Finding, errors: Sequence[Finding]) -> Finding:
    """A crash line without a rank, and exactly one rank that ended by a signal of its own, or that the launcher saw
    fail at all: they belong together."""
    ends = {r for f in errors if f.evidence[0].event.kind == "exit" and f.consequence == "never" for r in f.ranks}
    if not ends and first.symptom in ("host-out-of-memory", "accelerator-fault"):
        failed = [e for e in run.of_kind("exit") if e.attempt == first.attempt and e.fields["exitcode"] > 0]
        ends = {e.rank for e in failed if e.rank is not None and e.source == first.evidence[0].event.source}
    nobodys = first.symptom == "accelerator-fault" and not first.ranks
    if len(ends) != 1 or not (nobodys or first.symptom in ("native-crash", "host-out-of-memory")):
        return first
    return replace(first, ranks=tuple(ends), scope="rank")


def _everywhere(run: Run, first: Finding, errors: Sequence[Finding]) -> bool:
    """All ranks failed alike: the rest were ended before they could say so, or nobody kept what they said."""
    expected = _ranks_then(run, first.attempt)
    if not first.ranks:
        return False
    repeated = "accused" in first.fields and first.symptom not in _MET_BY_MANY
    others = expected - set(first.ranks) - (set() if repeated else _saying_the_same(first, errors))
    if not others:
        return len(expected) > 1 or _alone(run, first) or _is_missing_data(first)
    said_more = {r for f in errors if f.rule != first.rule and not _only_ended(f) for r in f.ranks}
    now = [e for e in run.events if e.attempt == first.attempt]
    heard = {s.rank for s in run.sources if s.lines} | {e.rank for e in now if e.kind != "exit"}
    logs = {e.source for e in now if e.rank in first.ranks}
    kept = len(logs) == 1 or others & heard  # else nobody has the logs of the other hosts
    if others & said_more or "accused" in first.fields or (kept and _on_hosts_of_their_own(run, first.ranks)):
        return False
    ended = {r for f in errors if f.consequence == "always" for r in f.ranks}
    stopped = others <= ended or len(closed_by_launcher(run, first.attempt)) >= len(others)
    trained = any(e.attempt == first.attempt for e in run.of_kind("progress"))
    before_meeting = not any(
        item.event.fields.get("uncaught") for item in first.evidence
    )  # torch's hook is not yet set
    if len(first.ranks) > 1 and not others & heard and first.symptom not in _OWN and not _told_elsewhere(run, first):
        return True  # several say the same, and of the rest nobody kept a word
    alike = first.symptom in _ALIKE or _is_missing_data(first)
    if not trained and (alike or (stopped and before_meeting and first.symptom not in _OWN)):
        return stopped or not others & heard or (alike and others <= _ended_alike(run, first))
    more = 2 * len(first.ranks) - len(expected)  # in step with each other, all would have had the time to say it
    return stopped and (more > 0 or (more == 0 and not trained and first.symptom not in _OWN))


def _ranks_then(run: Run, attempt: int) -> frozenset[int]:
    """All ranks of that attempt: one that was begun anew may have fewer, as it says itself."""
    stated = {one.said[-1] for one in of_all_attempts(run, "world") if one.said and one.event.attempt == attempt}
    size = int(stated.pop()) if run.world_size is None and attempt and len(stated) == 1 else 0
    return run.expected_ranks & set(range(size)) if size > 0 else run.expected_ranks


def _ended_alike(run: Run, first: Finding) -> set[int]:
    """Ranks that the launcher saw end by themselves, with the very code of those who said why."""
    ends = [e for e in run.of_kind("exit") if e.attempt == first.attempt and e.fields["exitcode"] > 0]
    codes = {e.fields["exitcode"] for e in ends if e.rank in first.ranks}
    return {e.rank for e in ends if e.rank is not None and codes == {e.fields["exitcode"]}}


def _is_missing_data(first: Finding) -> bool:
    """The first rank opens it for all others, as Megatron's does, and finds nothing there."""
    missing = "No such file or directory" in first.evidence[0].event.text
    return first.symptom == "data-pipeline-failure" and missing and first.ranks == (0,)


def _told_elsewhere(run: Run, first: Finding) -> bool:
    """There are logs of other nodes, whose launcher was told to stop, and in them nobody says it."""
    own = {event.source for event in run.events if event.rank in first.ranks}
    return any(event.source not in own for event in closed_by_launcher(run, first.attempt))


def _only_ended(one: Finding) -> bool:
    """A bare exit code, without a signal, says nothing of why."""
    event = one.evidence[0].event
    return one.consequence == "always" or (event.kind == "exit" and 0 < event.fields.get("exitcode", 0) < _BY_SIGNAL)


_MET_BY_MANY = ("checkpoint-save-failure", "native-crash")
"""That one of those who met it is known by its host does not make it that one's alone."""


def _saying_the_same(first: Finding, errors: Sequence[Finding]) -> set[int]:
    """Of whom only the last line is left, so that another rule fits it; or whose checkpoint met the same full disk, or
    whose crash somebody else saw, in other words."""
    if first.symptom in _MET_BY_MANY:
        return {r for one in errors if (one.symptom, one.consequence) == (first.symptom, "never") for r in one.ranks}
    own = [item.event for item in first.evidence if item.event.kind == "traceback"]
    said = {event.text for event in own}
    other = [one for one in errors if one.rule != first.rule and one.consequence == first.consequence == "never"]
    events = [(one, one.evidence[0].event) for one in other]
    return {rank for one, event in events if event.text in said and event not in own for rank in one.ranks}


def _alone(run: Run, first: Finding) -> bool:
    """One process is the whole job: it is counted so, or the launcher has seen no other one end."""
    if run.world_size == 1 or set(first.ranks) != {0}:
        return run.world_size == 1
    ends = [e for e in run.of_kind("exit") if e.attempt == first.attempt]
    one = bool(ends) and all(e.rank in (None, 0) and e.fields.get("local_rank") == 0 for e in ends)
    return run.world_size is None and one and not closed_by_launcher(run, first.attempt)


def _on_hosts_of_their_own(run: Run, ranks: Sequence[int]) -> bool:
    hosts = [set(there) for there in places(run).ranks_on.values()]
    theirs = [there for there in hosts if there & set(ranks)]
    return len(theirs) < len(hosts) and all(there <= set(ranks) for there in theirs)


def _cascades(echoes: Sequence[Finding], because: str) -> tuple[Cascade, ...]:
    by_symptom: dict[str, list[Finding]] = defaultdict(list)
    for one in echoes:
        by_symptom[one.symptom].append(one)
    return tuple(
        Cascade(
            symptom=group[0].symptom,
            ranks=tuple(sorted({rank for one in group for rank in one.ranks})),
            because=because,
            count=sum(len(one.evidence) for one in group),
            events=tuple(item.event for one in group for item in one.evidence),
        )
        for group in sorted(by_symptom.values(), key=len, reverse=True)
    )


# -- why -----------------------------------------------------------------------------------------------------------
