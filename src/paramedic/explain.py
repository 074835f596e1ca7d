"""First failure, cascades, ranked causes.

Order comes from causality first (an out-of-memory error is never an echo, a timeout may be, the agent's SIGTERM always
is), then from clocks or the position in one file. What followed from the first failure is folded under it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from paramedic.causes import Place, explained
from paramedic.detect.exits import with_the_crashed
from paramedic.detect.numerics import on_a_gpu_of_before
from paramedic.detect.where import host_of, located
from paramedic.echoes import DAY_NS, called_off, raised
from paramedic.first import BESIDE, MAX_EVIDENCE, first_failure, one_each, with_those_of_its_host, without_the_lost
from paramedic.knowledge import Knowledge, Rule
from paramedic.knowledge.priors import Setting
from paramedic.model import SEVERITIES, VERDICT_AT, Cascade, Event, Finding, Report, Run
from paramedic.said import answered, only_ended
from paramedic.survived import SILENT, made_up_for, outlived

_DOUBT = 0.45
"""Of the doubt that rules carry, so much is left in a verdict: measured on the ward's development cases with the rules
of each case's own system left out, where rules that said 0.8 were right in 92 of 100, and all together in 94."""
_UNSURE = frozenset({"exceptions.unrecognised", "exceptions.last_words", "hang.silent_setup"})
_TORN = "checkpoint-save-failure"
_CONVICTS = 0.7
"""A pattern in a program that is less often the failure than this is a remark, and no verdict."""
_NEEDS_NO_OTHER = 0.9
"""A message that has one cause so often is not told by another one what its cause is."""
_FORESEEN = 12.0
"""How much likelier a cause is that the program itself shows."""
_OF_ITSELF = 250.0
"""And one that the very rank which is missed complains of."""


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
    alive = called_off(run, _failures_first(_with_program(alive, foreseen, knowledge), knowledge))
    errors = [f for f in alive if f.severity == "error"]
    notes = [f for f in alive if f.severity != "error"]
    last = _judged(run, errors)
    first, echoes = first_failure(run, [f for f in errors if f.attempt == last], knowledge)
    if first:
        echoes += [f for f in notes if f.consequence == "always" and f.attempt == last]
        notes = [f for f in notes if f.consequence != "always"]
        first[0] = with_those_of_its_host(run, on_a_gpu_of_before(first[0], errors), errors)
        first[0] = without_the_lost(run, first[0], errors)
        first[0] = _confirmed(_corroborated(first[0], [*notes, *first[1:]], knowledge), foreseen)
    else:
        first, foreseen = _by_program(run, foreseen, knowledge)
    if told and not (first and first[0].confidence >= VERDICT_AT and not only_ended(first[0], told)):
        first, notes, foreseen = answered(run, told, (first, notes, foreseen), knowledge)
    earlier = one_each(f for f in errors if f.attempt != last and f.consequence == "never")
    if earlier and all(f.attempt < last for f in errors):
        logs = made_up_for(run, last)
        earlier = [replace(f, severity="warning") if f.evidence[0].event.source in logs else f for f in earlier]
    place = Place.of(run, host_of(run))
    findings = [explained(place, f, knowledge, setting) for f in (*first, *earlier, *one_each(notes), *foreseen)]
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
    if any(_ends_it(one) for one in errors):
        remarks |= {id(one) for one in errors if one.symptom in _COSTLY}
    return [
        replace(one, severity="warning") if id(one) in remarks and one.severity == "error" else one for one in found
    ]


_COSTLY = frozenset(["low-throughput", "memory-savings-not-realised"])
"""With these a job goes on, slower or on fewer samples."""


def _ends_it(one: Finding) -> bool:
    """An exception that nobody caught, of something else than want of memory."""
    return raised(one) and one.symptom not in _COSTLY and not one.symptom.endswith("out-of-memory")


def _calibrated(verdict: Finding, rule: Rule) -> Finding:
    """As often right as it says. What people tell in their own words, what only the program shows and what no rule
    knows stays as it is: on posts of strangers it is not righter than it says."""
    told = any(item.event.kind == "description" for item in verdict.evidence)
    if rule.detector in _UNSURE or rule.before or told:
        return verdict
    return replace(verdict, confidence=round(1 - _DOUBT * (1 - verdict.confidence), 3))


def foresee(run: Run, found: Iterable[Finding], knowledge: Knowledge, setting: Setting) -> Report:
    """Before the start nothing has failed yet: no verdict, and every finding stands for itself."""
    place = Place({}, {}, None, 0)
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
    odds = {cause: _OF_ITSELF if _same_ranks(one, first) else BESIDE for cause, one in told.items()}
    weights = {**first.weights, **{cause: max(factor, first.weights.get(cause, 0.0)) for cause, factor in odds.items()}}
    return replace(first, weights=weights, evidence=evidence)


def _same_ranks(one: Finding, first: Finding) -> bool:
    return bool(one.ranks) and (one.ranks, one.symptom) == (first.ranks, first.symptom)


def _same_day(one: Finding, other: Finding) -> bool:
    """Whatever the zones of their clocks; a kernel log may go back for months."""
    times = [f.evidence[0].event.utc_ns for f in (one, other)]
    return None in times or abs((times[0] or 0) - (times[1] or 0)) < DAY_NS


def _of_a_machine(rule: Rule) -> bool:
    return not (rule.before or rule.of_conduct) and rule.symptom not in SILENT


def _by_program(run: Run, foreseen: Sequence[Finding], knowledge: Knowledge) -> tuple[list[Finding], Sequence[Finding]]:
    """Nobody failed by the logs. What the program does wrong by itself, and nothing stops it from, is the verdict."""
    if not any(source.lines for source in run.sources):
        return [], foreseen
    alone = run.expected_ranks == {0} or run.world_size == 1
    sure = [one for one in foreseen if _without_a_word(one, knowledge.rules[one.rule], alone) and _convicts(one)]
    if not sure:
        return [], foreseen
    first = max(sure, key=lambda one: one.confidence)
    return [replace(first, severity="error")], [one for one in foreseen if one is not first]


def _without_a_word(one: Finding, rule: Rule, alone: bool) -> bool:
    """Of what single calls look like an error would tell; what follows a whole program shows that none will. Files that
    several ranks write at once are torn where there are several, and not where one alone was heard."""
    return one.symptom in SILENT or (one.symptom == _TORN and not rule.detector.startswith("code.") and not alone)


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
            rules=frozenset(one.rule for one in group),
        )
        for group in sorted(by_symptom.values(), key=len, reverse=True)
    )
