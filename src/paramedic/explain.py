"""First failure, cascades, ranked causes.

Order comes from causality first (an out-of-memory error is never an echo, a timeout may be, the agent's SIGTERM always
is), then from clocks or the position in one file. What followed from the first failure is folded under it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace

from paramedic.detect.exits import closed_by_launcher
from paramedic.detect.hang import absent, missed, odd_among_accused, odd_ones
from paramedic.detect.where import located, places
from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.clues import OUTRIGHT
from paramedic.knowledge.priors import Setting
from paramedic.model import SEVERITIES, Cascade, Cause, Event, Evidence, Finding, Report, Run, Suppressed

VERDICT_AT = 0.5
"""No answer beats a wrong one: below this confidence the verdict is null."""

_DOUBT = 0.45
"""Of the doubt that rules carry, so much is left in a verdict: measured on the ward's development cases with the rules
of each case's own system left out, where rules that said 0.8 were right in 92 of 100, and all together in 94."""
_UNSURE = frozenset({"exceptions.unrecognised", "exceptions.last_words", "hang.silent_setup"})

MAX_EVIDENCE = 6
UNKNOWN = 0.1
"""The share of every cause distribution that is kept for causes nobody listed."""
_UNLISTED = 0.05
_UNHEARD_OF = 0.02
"""The base rate of a cause that the taxonomy does not list for a symptom."""
_ZONE_STEP_NS = 25 * 60 * 1_000_000_000
"""Clocks that are further apart than this may be in different zones: then they decide nothing."""
_TEMPER = 0.5
"""Whoever weighed a rule's causes knew the base rate already, so it counts by its square root beside them."""
_LOCAL = frozenset(
    [
        "data-or-input-defect",
        "uneven-work-across-ranks",
        "cross-node-environment-skew",
        "hardware-fault",
        "host-resource-exhaustion",
        "network-fabric-fault",
        "device-assignment-error",
        "storage-or-external-service-fault",
        "collective-order-divergence",
    ]
)
"""Causes that strike some ranks and spare others; code, model and versions are the same everywhere."""
_OF_SOME_RANKS = 4.0
_LINES_AFTER = 3
_BY_SIGNAL = 128
_OF_OTHERS = 6  # lines of progress, where it is not known that the same rank wrote them
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
_STAYS = frozenset(["low-throughput", "straggler-or-imbalance", "unexpected-transport"])
"""Training goes on, and the fault with it."""
_SILENT = frozenset(
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
_CONVICTS = 0.7
"""A pattern in a program that is less often the failure than this is a remark, and no verdict."""
_FORESEEN = 12.0
"""How much likelier a cause is that the program itself shows."""
_ORDER = {"never": 0, "possible": 1, "always": 2}


def explain(
    run: Run, found: Sequence[Finding], knowledge: Knowledge, setting: Setting, foreseen: Sequence[Finding] = ()
) -> Report:
    """Turns what was detected into one verdict, with everything else folded, kept beside it, or left out by name.

    `foreseen` is what the job's program and settings say: it confirms what the logs show, and where they show nothing
    it may be all there is.
    """
    alive, suppressed = _outlived(run, located(run, found))
    alive = _failures_first(_with_program(alive, foreseen, knowledge), knowledge)
    errors = [f for f in alive if f.severity == "error"]
    notes = [f for f in alive if f.severity != "error"]
    last = _judged(run, errors)
    first, echoes = _first_failure(run, [f for f in errors if f.attempt == last], knowledge)
    if first:
        echoes += [f for f in notes if f.consequence == "always"]
        notes = [f for f in notes if f.consequence != "always"]
        first[0] = _confirmed(first[0], foreseen)
    else:
        first, foreseen = _by_program(run, foreseen)
    earlier = _merged(f for f in errors if f.attempt != last and f.consequence == "never")
    place = _Place(_hosts(run), _blamed_by_torchrun(run), len(run.ranks_seen))
    findings = [_explained(place, f, knowledge, setting) for f in (*first, *earlier, *_merged(notes), *foreseen)]
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
    return [
        replace(one, severity="warning") if id(one) in remarks and one.severity == "error" else one for one in found
    ]


def _calibrated(verdict: Finding, rule: Rule) -> Finding:
    """As often right as it says. What people tell in their own words, what only the program shows and what no rule
    knows stays as it is: on posts of strangers it is not righter than it says."""
    if rule.detector in _UNSURE or rule.before or verdict.evidence[0].event.kind == "description":
        return verdict
    return replace(verdict, confidence=round(1 - _DOUBT * (1 - verdict.confidence), 3))


def foresee(run: Run, found: Iterable[Finding], knowledge: Knowledge, setting: Setting) -> Report:
    """Before the start nothing has failed yet: no verdict, and every finding stands for itself."""
    place = _Place({}, None, 0)
    findings = [_explained(place, one, knowledge, setting) for one in found]
    findings.sort(key=lambda one: (SEVERITIES[::-1].index(one.severity), -one.confidence))
    return Report(run=run, verdict=None, findings=tuple(findings), skipped=run.skipped)


def _confirmed(first: Finding, foreseen: Sequence[Finding]) -> Finding:
    """The program has what leads to the very symptom: its cause is the likely one, and its line is evidence."""
    same = [one for one in foreseen if one.symptom == first.symptom and one.severity != "info"]
    named = {cause.id: _FORESEEN * cause.probability for one in same for cause in one.causes[:1]}
    weights = {cause: max(named.get(cause, 1.0), first.weights.get(cause, 1.0)) for cause in {*named, *first.weights}}
    evidence = (*first.evidence[: MAX_EVIDENCE - 1], *(one.evidence[0] for one in same[:2])) if same else first.evidence
    return replace(first, weights=weights, evidence=evidence)


def _by_program(run: Run, foreseen: Sequence[Finding]) -> tuple[list[Finding], Sequence[Finding]]:
    """Nobody failed by the logs. What the program does wrong by itself, and nothing stops it from, is the verdict."""
    if not any(source.lines for source in run.sources):
        return [], foreseen
    sure = [one for one in foreseen if one.symptom in _SILENT and _convicts(one)]
    if not sure:
        return [], foreseen
    first = max(sure, key=lambda one: one.confidence)
    return [replace(first, severity="error")], [one for one in foreseen if one is not first]


def _convicts(one: Finding) -> bool:
    """A setting that may cost time is on purpose as often as not, and nobody said that the job is slow."""
    setting = one.evidence[0].event.kind == "setting"
    return (
        one.severity != "info"
        and one.confidence >= _CONVICTS
        and not (setting and one.symptom in ("low-throughput", "unexpected-transport"))
    )


def _judged(run: Run, errors: Sequence[Finding]) -> int:
    """The last attempt that failed; a later one that trains on has made up for it."""
    failed = max((f.attempt for f in errors), default=0)
    return max((e.attempt for e in run.events if e.kind == "progress" and e.attempt > failed), default=failed)


# -- who failed first ----------------------------------------------------------------------------------------------


def _first_failure(run: Run, errors: Sequence[Finding], knowledge: Knowledge) -> tuple[list[Finding], list[Finding]]:
    """([the first failure, then rivals that cannot be told from it], the echoes)."""
    if not errors:
        return [], []
    merged = sorted(_merged(_roots(errors)), key=_preference)
    first = _of_the_job(_earliest(merged), merged, knowledge)
    named = set(first.ranks)
    rest = [f for f in errors if f.rule != first.rule or not named.issuperset(f.ranks)]
    first = _named(run, replace(first, weights=_named_causes(first, errors)), errors, knowledge)
    rivals = [f for f in merged if f.rule != first.rule and f.consequence == "never" and first.consequence == "never"]
    if rivals:
        first = replace(first, confidence=first.confidence * 0.9)
    echoes = [f for f in rest if not any(f.rule == r.rule for r in rivals)]
    return [first, *rivals], echoes


def _named(run: Run, first: Finding, errors: Sequence[Finding], knowledge: Knowledge) -> Finding:
    """With the ranks where the fault was; none where all failed alike, or where the message does not say."""
    rule = knowledge.rules[first.rule]
    own = [f for f in errors if f.rule == first.rule]
    accused = "accused" in first.fields
    if not first.ranks and first.consequence == "never":
        first = _with_rank_of_exit(_as_ranks_said(run, first, errors), errors)
    everywhere = _everywhere(run, first, errors)
    odd: Set[int] = frozenset()
    if first.symptom == "rendezvous-setup-hang" and not accused:
        odd = absent(run, own)
    elif everywhere and accused and first.symptom == "collective-hang":
        odd = odd_among_accused([f for f in own if "accused" in f.fields])
    elif everywhere and first.symptom == "collective-desync":
        odd = odd_ones(own)
    if odd:
        ranks = tuple(sorted(odd))
        fields = {**first.fields, "accused": _listed(ranks), "who": _who(first.ranks)}
        return replace(first, ranks=ranks, scope="rank", fields=fields)
    echo = first.consequence != "never" and rule.consequence == "never"
    if everywhere or (echo and not accused) or not (rule.blames_reporter or accused):
        who = "Every rank" if everywhere and first.ranks else _who(first.ranks)
        return replace(first, ranks=(), scope="job", fields={**first.fields, "who": who})
    return first


def _named_causes(first: Finding, errors: Sequence[Finding]) -> Mapping[str, float]:
    """Its own, and what somebody else's message of the same attempt names outright: the peers' disk is its disk."""
    others = [f.weights for f in errors if f.attempt == first.attempt and f.consequence != "always"]
    named = {cause: factor for weights in others for cause, factor in weights.items() if factor >= OUTRIGHT}
    return {**named, **first.weights}


def _of_the_job(first: Finding, merged: Sequence[Finding], knowledge: Knowledge) -> Finding:
    """Of two words for one failure, the one that names who did it; else the surer one that is about the job: a rank
    then only met the job's mistake."""
    same = [f for f in merged if f.symptom == first.symptom and f.consequence == "never"]
    if "accused" not in first.fields and not knowledge.rules[first.rule].blames_reporter:
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
    if not said and first.symptom in ("accelerator-fault", "host-out-of-memory", "native-crash"):
        said = missed(run, errors)
    return replace(first, ranks=tuple(sorted(said)), scope="rank") if said else first


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
    where the rank stands because of it, then the surest."""
    kind = one.evidence[0].event.kind
    return _ORDER[one.consequence], kind == "exit", kind in _POSITIONS, -one.confidence


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


def _with_rank_of_exit(first: Finding, errors: Sequence[Finding]) -> Finding:
    """A crash line without a rank, and exactly one rank that ended by a signal of its own: they belong together."""
    ends = {r for f in errors if f.evidence[0].event.kind == "exit" and f.consequence == "never" for r in f.ranks}
    nobodys = first.symptom == "accelerator-fault" and not first.ranks
    if len(ends) != 1 or not (nobodys or first.symptom in ("native-crash", "host-out-of-memory")):
        return first
    return replace(first, ranks=tuple(ends), scope="rank")


def _everywhere(run: Run, first: Finding, errors: Sequence[Finding]) -> bool:
    """All ranks failed alike: the rest were ended before they could say so, or nobody kept what they said."""
    expected = run.expected_ranks
    if not first.ranks:
        return False
    others = expected - set(first.ranks) - _saying_the_same(first, errors)
    if not others:
        return len(expected) > 1 or _alone(run, first)
    said_more = {r for f in errors if f.rule != first.rule and not _only_ended(f) for r in f.ranks}
    if others & said_more or "accused" in first.fields or _on_hosts_of_their_own(run, first.ranks):
        return False
    ended = {r for f in errors if f.consequence == "always" for r in f.ranks}
    stopped = others <= ended or len(closed_by_launcher(run, first.attempt)) >= len(others)
    trained = any(e.kind == "progress" and e.attempt == first.attempt for e in run.events)
    before_meeting = not any(
        item.event.fields.get("uncaught") for item in first.evidence
    )  # torch's hook is not yet set
    heard = {s.rank for s in run.sources if s.lines} | {e.rank for e in run.events if e.kind != "exit"}
    if len(first.ranks) > 1 and not others & heard and first.symptom not in _OWN:
        return True  # several say the same, and of the rest nobody kept a word
    if not trained and (first.symptom in _ALIKE or (stopped and before_meeting and first.symptom not in _OWN)):
        return stopped or not others & heard
    more = 2 * len(first.ranks) - len(expected)  # in step with each other, all would have had the time to say it
    return stopped and (more > 0 or (more == 0 and not trained and first.symptom not in _OWN))


def _only_ended(one: Finding) -> bool:
    """A bare exit code, without a signal, says nothing of why."""
    event = one.evidence[0].event
    return one.consequence == "always" or (event.kind == "exit" and 0 < event.fields.get("exitcode", 0) < _BY_SIGNAL)


def _saying_the_same(first: Finding, errors: Sequence[Finding]) -> set[int]:
    """Of whom only the last line is left, so that another rule fits it."""
    own = [item.event for item in first.evidence if item.event.kind == "traceback"]
    said = {event.text for event in own}
    other = [one for one in errors if one.rule != first.rule and one.consequence == first.consequence == "never"]
    events = [(one, one.evidence[0].event) for one in other]
    return {rank for one, event in events if event.text in said and event not in own for rank in one.ranks}


def _alone(run: Run, first: Finding) -> bool:
    """One process is the whole job: it is counted so, or the launcher has seen no other one end."""
    if run.world_size == 1 or set(first.ranks) != {0}:
        return run.world_size == 1
    ends = [e for e in run.events if e.kind == "exit" and e.attempt == first.attempt]
    one = bool(ends) and all(e.rank in (None, 0) and e.fields.get("local_rank") == 0 for e in ends)
    return run.world_size is None and one and not closed_by_launcher(run, first.attempt)


def _on_hosts_of_their_own(run: Run, ranks: Sequence[int]) -> bool:
    hosts = [set(there) for there in places(run).ranks_on.values()]
    theirs = [there for there in hosts if there & set(ranks)]
    return len(theirs) < len(hosts) and all(there <= set(ranks) for there in theirs)


def _outlived(run: Run, found: Sequence[Finding]) -> tuple[list[Finding], list[Suppressed]]:
    """Sets aside what a rank survived: it went on training after it, and nobody saw it die."""
    progress = _progress(run)
    dead = {e.rank for e in run.events if e.kind == "exit" and e.fields.get("exitcode") not in (0, -15)}
    somebody_died = bool(dead) or any(f.consequence == "always" for f in found)
    again, ends = _started_again(run), _ended_well(run)
    alive, survived = [], []
    for one in found:
        event = one.evidence[0].event
        if one.severity == "error" and event.seq <= again.get(event.source, -1):
            survived.append(Suppressed(one.rule, "the job was started again afterwards, and finished", one.ranks))
            continue
        if one.severity == "error" and event.rank not in dead and (why := _after_the_end(one, ends)):
            survived.append(Suppressed(one.rule, why, one.ranks))
            continue
        if one.severity != "error" or event.kind == "exit" or event.rank in dead or one.symptom in _STAYS:
            alive.append(one)
            continue
        ranks = _whose_progress(run, one, somebody_died)
        known = (progress[event.source, rank] for rank in ranks if (event.source, rank) in progress)
        later = next((later for later in known if _went_on(event, later)), None)
        if later is None or (event.rank is None and somebody_died):
            alive.append(one)
        else:
            why = f"handled: after line {event.line} training went on to line {later.line}"
            survived.append(Suppressed(one.rule, why, one.ranks))
    return alive, survived


def _ended_well(run: Run) -> dict[str, int]:
    """Sources in which training ended as it should, and where: after it nobody left with an error code of its own."""
    ends = {e.source: e.fields["ended"] for e in run.events if e.kind == "progress" and e.fields.get("ended")}
    failed = {e.source for e in run.events if e.kind == "exit" and e.fields.get("exitcode") not in (0, -15, 143)}
    return {source: end for source, end in ends.items() if source not in failed}


def _after_the_end(one: Finding, ends: Mapping[str, int]) -> str:
    """Who is stopped when all is done has lost nothing, nor who was stopped and came back to finish it."""
    event = one.evidence[0].event
    end = ends.get(event.source)
    if end is None or one.symptom in _SILENT or event.kind not in ("line", "traceback"):
        return ""
    if event.seq > end:
        return f"training had ended at line {end}" if one.symptom == "worker-or-node-loss" else ""
    return f"training went on to its end at line {end}"


def _whose_progress(run: Run, one: Finding, somebody_died: bool) -> list[int | None]:
    """Its own. What a program prints need not carry the prefix of its errors; and who meets the others again does not
    wait for them any more."""
    event = one.evidence[0].event
    ranks: list[int | None] = [event.rank]
    if event.fields.get("named") or not somebody_died:
        ranks.append(None)
    if one.symptom == "collective-hang" and not somebody_died:
        ranks += run.ranks_seen
    return ranks


def _started_again(run: Run) -> dict[str, int]:
    """Sources in which training went on to its end after a launcher had seen ranks die, and where that was."""
    ends: dict[str, int] = {}
    for event in run.events:
        if event.kind == "exit" or (event.kind == "traceback" and "SignalException" in event.text):
            ends[event.source] = max(ends.get(event.source, -1), event.seq)
    went_on = {
        event.source
        for event in run.events
        if event.kind == "progress"
        and event.fields.get("finished")
        and sum(line > ends.get(event.source, event.seq) for line in event.fields.get("at", ())) >= _LINES_AFTER
    }
    return {source: end for source, end in ends.items() if source in went_on}


def _progress(run: Run) -> dict[tuple[str, int | None], Event]:
    """The progress of each rank by source; under None that of everybody who is not told apart by a prefix."""
    found: dict[tuple[str, int | None], Event] = {}
    for event in run.events:
        if event.kind not in ("progress", "bars"):
            continue
        one = _thinned(event) if event.kind == "bars" else event
        for rank in {event.rank, None} if not event.fields.get("prefixed") else {event.rank} - {None}:
            found[event.source, rank] = _together(found.get((event.source, rank), one), one)
    return found


def _thinned(bars: Event) -> Event:
    """Each third: of a dying process the bars that are open are drawn once more, and there are rarely three."""
    return replace(bars, fields={**bars.fields, "at": bars.fields.get("at", ())[2::3]})


def _together(one: Event, other: Event) -> Event:
    newer = max(one, other, key=lambda e: e.seq)
    lines = sorted({*one.fields.get("at", ()), *other.fields.get("at", ())})
    return replace(newer, fields={**newer.fields, "at": lines})


def _went_on(event: Event, later: Event) -> bool:
    """Several lines of progress after it, or the end of the work. One alone may be what a dying process flushed; and
    the others go on for a while, until they miss it."""
    if event.fields.get("uncaught") and not later.fields.get("prefixed"):
        return False  # torch's excepthook had the last word; what follows was still in a buffer
    after = sum(line > event.seq for line in later.fields.get("at", ()))
    needed = 3 if event.rank is None else 2 if event.rank == later.rank else _OF_OTHERS
    return after >= needed or (after >= 1 and bool(later.fields.get("finished")))


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


@dataclass(frozen=True, slots=True)
class _Place:
    """What is asked of the run for every finding, worked out once."""

    hosts: Mapping[int | None, str]
    blamed: int | None
    ranks_seen: int


def _explained(place: _Place, one: Finding, knowledge: Knowledge, setting: Setting) -> Finding:
    rule = knowledge.rules[one.rule]
    prior = knowledge.priors.cause(one.symptom, setting)
    weights = rule.causes if one.symptom == rule.symptom else {}
    if rule.before:  # what the program has says its cause itself
        prior = {**dict.fromkeys(weights, _UNHEARD_OF), **prior}
    if rule.of_conduct:  # and so does what it was seen doing, whatever is usual
        prior = {**prior, **dict.fromkeys(weights, max(prior.values(), default=1.0))}
    some_only = bool(one.ranks) and place.ranks_seen > len(one.ranks)
    return replace(
        one,
        hosts=tuple(sorted({*one.hosts, *(place.hosts[rank] for rank in one.ranks if rank in place.hosts)})),
        causes=_causes(prior, weights, one.weights, some_only, setting),
        summary=_summary(rule, one) + _misled(place, one),
    )


def _hosts(run: Run) -> dict[int | None, str]:
    """Which rank was where, as the launcher's table says."""
    return {e.rank: str(e.fields["host"]) for e in run.events if e.kind == "exit" and e.fields.get("host")}


def _blamed_by_torchrun(run: Run) -> int | None:
    named = {e.rank for e in run.events if e.kind == "exit" and e.fields.get("first_observed")}
    return named.pop() if len(named) == 1 else None


def _misled(place: _Place, one: Finding) -> str:
    """torchrun names the rank whose end its agent saw first, which is often a mere victim."""
    if place.blamed is None or not one.ranks or place.blamed in one.ranks or one.severity != "error":
        return ""
    return f" (torchrun's table blames rank {place.blamed}, whose end it merely saw first.)"


def _causes(
    prior: Mapping[str, float],
    weights: Mapping[str, float],
    evidence: Mapping[str, float],
    some_only: bool,
    setting: str,
) -> tuple[Cause, ...]:
    """Base rate × what this message says × how many ranks have it, normalised to leave a share for the unknown.
    What the message names outright counts though the symptom's list does not have it."""
    prior = {**{cause: _UNHEARD_OF for cause, factor in evidence.items() if factor >= OUTRIGHT}, **prior}
    likelihood = {
        cause: (prior[cause] ** _TEMPER * weights.get(cause, _UNLISTED) if weights else prior[cause])
        * (_OF_SOME_RANKS if cause in _LOCAL and some_only else 1.0)
        * evidence.get(cause, 1.0)
        for cause in prior
    }
    total = sum(likelihood.values())
    causes = [
        Cause(cause, round((1 - UNKNOWN) * value / total, 3), _why(cause, prior[cause], weights, some_only, setting))
        for cause, value in sorted(likelihood.items(), key=lambda item: -item[1])
    ]
    return tuple(c for c in causes if c.probability >= 0.02)


def _why(cause: str, base: float, weights: Mapping[str, float], some_only: bool, setting: str) -> str:
    reasons = [] if cause in weights or not weights else ["not what this message usually means"]
    if some_only and cause in _LOCAL:
        reasons.append("only some ranks have it")
    return "; ".join([*reasons, f"base rate {base:.0%} ({setting})"])


_ONE_WAITS = {
    "anks {waiting} wait ": "ank {waiting} waits ",
    "anks {waiting} wait{": "ank {waiting} waits{",
    "anks {waiting} have": "ank {waiting} has",
    "anks {waiting}": "ank {waiting}",
}


def _summary(rule: Rule, one: Finding) -> str:
    """The rule's sentence with what the message said; the plain title where the message does not say enough."""
    who = one.fields.get("who") or _who(one.ranks)
    sentence = rule.summary.replace("Rank {rank}", who).replace("rank {rank}", who[0].lower() + who[1:])
    if one.fields.get("waiting", "").isdigit():
        for many, single in _ONE_WAITS.items():
            sentence = sentence.replace(many, single)
    known = {**one.fields, "rank": _listed(one.ranks) or "?"}
    for name, value in known.items():
        sentence = sentence.replace("{" + name + "}", value)
    return rule.title if any(f"{{{name}}}" in sentence for name in _placeholders(rule)) else sentence


def _who(ranks: Sequence[int]) -> str:
    if not ranks:
        return "A rank"
    return f"Rank {ranks[0]}" if len(ranks) == 1 else f"Ranks {_listed(ranks)}"


def _placeholders(rule: Rule) -> list[str]:
    return [part.split("}", 1)[0] for part in rule.summary.split("{")[1:]]


def _listed(ranks: Sequence[int]) -> str:
    texts = [str(rank) for rank in ranks[:8]] + ([f"{len(ranks) - 8} more"] if len(ranks) > 8 else [])
    return " and ".join([", ".join(texts[:-1]), texts[-1]]) if len(texts) > 1 else "".join(texts)
