"""Which ranks the first failure is told of: where the fault was, or none where all failed alike or nobody can say."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from paramedic.causes import listed, subject
from paramedic.detect.exits import as_srun_counts, as_the_table_counts, closed_by_launcher, killed_ranks
from paramedic.detect.hang import absent, missed, odd_among_accused, odd_ones
from paramedic.detect.series import of_all_attempts
from paramedic.detect.where import on_the_lost_node, places
from paramedic.knowledge import Knowledge
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

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


def with_ranks(run: Run, first: Finding, errors: Sequence[Finding], knowledge: Knowledge) -> Finding:
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


_QUOTA = regex(r"Disk quota exceeded|\[Errno 122\]")
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
        only = first.symptom in _ALIKE or first.symptom in _OF_THE_STEP  # others may write elsewhere
        return len(expected) > 1 or _alone(run, first) or _is_missing_data(first) or (only and first.ranks == (0,))
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


_OF_THE_STEP = ("step-execution-error", "tensor-shape-or-dtype-mismatch")


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
    text = first.evidence[0].event.text
    missing = "No such file or directory" in text or "FileNotFoundError" in text
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
