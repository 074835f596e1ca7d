"""Errors that no signature knows: their class, words and frames still say at which stage of training they happened."""

from __future__ import annotations

import builtins
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from paramedic.detect import interrupted
from paramedic.detect.description import said_plainly
from paramedic.detect.match import MAX_MESSAGE, on_event, own_frame, own_frames
from paramedic.knowledge import Rule, load_taxonomy
from paramedic.knowledge.clues import load_clues
from paramedic.model import Event, Finding, Run, is_own, last_exception
from paramedic.regex import regex

_LAUNCHER = (
    "ChildFailedError",
    "WorkerGroupError",
    "SignalException",
    "ProcessRaisedException",
    "ProcessExitedException",
    "UnexpectedStatusException",
)
_QUIET = ("KeyboardInterrupt", "SystemExit", "BdbQuit")
_USUAL = "step-execution-error"
_USUAL_ODDS = 1.2
"""Log odds of an ordinary error in the step, against one symptom that some clue speaks for."""
_NAMED = regex(
    r"\b[Rr]anks?:? \[?(?P<accused>\d{1,6}(?:, ?\d{1,6}){0,63})\]? (?:has |have |is |are |was |were )?"
    r"(?:failed to (?:pass|arrive|join|respond|reach|report|connect|call|enter)|did not|didn't|not |never |missing"
    r"|died|dead|crashed|exited|left|lost|gone|timed out|unreachable|unresponsive)"
)
"""A message about other ranks than the one that prints it."""
_LAST_CALLS = 12
_SHARPER = 1.3
_ENOUGH = 2.4
"""Log odds that a mere line must gather to be believed."""
_RAISED = regex(r"^((?:[a-z_][\w.]{0,200}\.)?[A-Z]\w{0,100}(?:Error|Exception)|Exception)(?:\([\w., ]{1,100}\))?: \S")
_ENOUGH_RAISED = 2.0
"""The last line of a traceback, all that is left of it, need not gather as much."""
_GOES_ON = regex(
    r"\b(?:continuing|continue (?:with|without|to|anyway)|fall(?:s|ing)? ?back|ignor(?:e|ed|ing)|skipp(?:ed|ing)"
    r"|retry(?:ing)?|reinit\w*|newly initiali[sz]ed|temporarily|safely|by default|instead of|using \S.{0,40} instead"
    r"|(?:will|going to) (?:use|retry|ignore|default)|not (?:fatal|critical)|disabl(?:ed|ing)|deprecat\w+)\b"
    r"|if \w{1,40} is not (?:given|provided|specified),"
    r"|INTENDED_(?:SYSTEM|USER)_EXIT"
    r"|(?:failed|unable|not able) to (?:load|import|find) .{1,120}no module named|:\d+: \w*Warning: ",
    re.IGNORECASE,
)
"""Said by a program that does without what it missed."""
_MOST_BY_WORDS = 0.7
_LEAST, _MOST = 0.5, 0.88
"""Nobody has seen this message before, so never surer; but a rank did end with it."""


_OF_PEERS = frozenset(["DistBackendError", "DistNetworkError", "DistStoreError"])
"""What torch raises when it cannot reach or await the others, whatever stopped them."""


_DISTRIBUTED = regex(
    r"\b(?:dist|hvd|ddp|fsdp|mesh|deepspeed|horovod|megatron|accelerat\w*|fabric|trainer|strategy|no_sync|barrier|ray)\b"
    r"|distribut|parallel|(?<!lora_)(?:\b|_)ranks?\b|world_?size|all_?(?:reduce|gather|to_all)|broadcast|scatter|process_group|shard"
    r"|/(?:torch/nn/parallel|torch/distributed(?!/elastic|/run\.py|/launch)|lightning|transformers|tensorflow|jax|keras)/",
    re.IGNORECASE,
)
"""Words, calls and frames of what makes a job distributed."""
_NOT_DISTRIBUTED = {"distributed-api-misuse": 0.1, "framework-implementation-defect": 0.5}
"""What an error says that the user's own code raised, and in which nothing of the kind is named."""


_ENDED_BY_OTHERS = regex(r"\) (?:exited )?is killed by signal: (?:Terminated|Interrupt)\b")
"""A loader's worker that was asked to end, with its rank."""


def unrecognised(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    known = {(e.event.source, e.event.seq) for one in found for e in one.evidence}
    for event in run.of_kind("traceback"):
        if (event.source, event.seq) in known or not event.fields.get("types"):
            continue
        name = event.fields["types"][-1].rsplit(".", 1)[-1]
        of_child = name == "CalledProcessError" and any(one.severity == "error" for one in found)
        if _left_alone(event, name) or _ENDED_BY_OTHERS.search(event.text):
            continue
        if name not in _LAUNCHER and name not in _QUIET and not of_child:
            fields = {"exception": last_exception(event)[:200], "where": own_frame(event)}
            one = _read(rule, event, fields)
            yield replace(one, consequence="possible") if name in _OF_PEERS else one


_GONE = frozenset(
    ["BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "FileNotFoundError"]
)
_PINNING = regex(r" in _pin_memory_loop$")
_BORN = regex(r"multiprocessing/spawn\.py:\d{1,5} in _main$")


def _left_alone(event: Event, name: str) -> bool:
    """The thread that pins a loader's batches loses the workers that it takes them from when the job ends, and a child
    that is just being started its parent."""
    frames = event.fields.get("frames", ())
    if name in ("UnpicklingError", "EOFError"):
        return bool(frames) and _BORN.search(frames[-1]) is not None
    return name in _GONE and any(map(_PINNING.search, frames))


_MOST_HEARD = 64
"""Complaints that differ in more than their numbers; all ranks say the same few."""
_OF_TRACKER = regex(r" (?:ERROR|WARNING) +[\w-]{1,40}:\d{1,10} \[[\w/]{1,60}\.py:\w{1,60}\(\):\d{1,6}\] ")
"""How wandb writes its own log."""
_KERNEL = regex(r"\[ {0,6}\d{1,8}\.\d{6}\] ")


def last_words(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Nothing else was recognised: the last lines that speak of an error, if they say enough."""
    if any(one.severity == "error" for one in found):
        return
    if any(e.fields.get("finished") for e in run.events) or said_plainly(run):
        return
    by_hand = interrupted.since(run)
    best: tuple[float, Event] | None = None
    heard: set[str] = set()
    passed: set[str] = set()
    lasts = {(event.source, event.seq) for event in run.of_kind("last")}
    trained = sorted((event.source, line) for event in run.of_kind("progress") for line in event.fields.get("at", ()))
    for event in map(_as_raised, run.of_kind("complaint")):
        if event.seq >= by_hand.get(event.source, event.seq + 1):
            continue
        if _of_others(event) or len(heard) >= _MOST_HEARD:
            continue
        alike = re.sub(r"\d{1,20}", "#", event.text[:MAX_MESSAGE])
        if _goes_on(event, trained):
            passed.add(alike)
        elif alike not in heard and (alike not in passed or (event.source, event.seq) in lasts):
            heard.add(alike)
            odds, _ = weigh(event)
            most = max(odds.values(), default=0.0)
            enough = _ENOUGH_RAISED if event.fields.get("types") else _ENOUGH
            if most >= enough and (best is None or most > best[0]):
                best = most, event
    best = best or _cut_off(run)
    if best is not None:
        one = _read(rule, best[1], {"line": best[1].text[:200]})
        yield replace(one, confidence=min(one.confidence, _MOST_BY_WORDS))


def bare(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """All that is left is the last line of a traceback, and it says too little: what it is, and what to ask for."""
    if any(one.severity == "error" for one in found):
        return
    by_hand = interrupted.since(run)
    lasts = {(e.source, e.seq) for e in run.of_kind("last")}
    for event in map(_as_raised, run.of_kind("complaint")):
        types = event.fields.get("types")
        if types and (event.source, event.seq) in lasts and event.source not in by_hand and not _of_others(event):
            yield on_event(rule, event, {"line": event.text[:200], "means": _meaning(types[-1])})
            return


def _meaning(name: str) -> str:
    """Python's own word for its exceptions: `Mapping key not found.`"""
    known = getattr(builtins, name, None)
    said = (known.__doc__ or "").strip().split("\n")[0] if isinstance(known, type) else ""
    return f" (Python: {said[:1].lower()}{said[1:].rstrip('.')})" if said else ""


def _cut_off(run: Run) -> tuple[float, Event] | None:
    """A traceback whose end is missing still shows what its rank was doing when it failed."""
    for event in run.of_kind("traceback"):
        if not event.fields.get("types") and len(own_frames(event)) > 0:
            odds, _ = weigh(event)
            most = max(odds.values(), default=0.0)
            if most >= _ENOUGH:
                return most, event
    return None


def _as_raised(event: Event) -> Event:
    """A line that can only be the end of a traceback has a class, too."""
    raised = _RAISED.match(event.text)
    return event if raised is None else replace(event, fields={**event.fields, "types": (raised[1],)})


def _goes_on(event: Event, trained: Sequence[tuple[str, int]]) -> bool:
    """Whoever says it goes on, or training does: two lines of it stand behind."""
    if event.fields.get("types"):
        return False
    after = sum(source == event.source and line > event.seq for source, line in trained)
    return after >= 2 or _GOES_ON.search(event.text[:MAX_MESSAGE]) is not None


def _of_others(event: Event) -> bool:
    """A launcher's words, or a kernel's, of which each that matters has a rule."""
    if _KERNEL.match(event.text) or _OF_TRACKER.search(event.text):
        return True
    return any(name.rsplit(".", 1)[-1] in (*_LAUNCHER, *_QUIET) for name in event.fields.get("types", ()))


def _read(rule: Rule, event: Event, fields: Mapping[str, str]) -> Finding:
    odds, factors = weigh(event)
    odds[_USUAL] += _USUAL_ODDS
    symptom = max(odds, key=odds.__getitem__)
    share = math.exp(_SHARPER * odds[symptom]) / (1 + sum(math.exp(_SHARPER * value) for value in odds.values()))
    one = _on_whom_it_names(on_event(rule, event, fields), event)
    allowed = load_taxonomy().symptoms[symptom].causes
    if _of_the_program_alone(event):
        factors = {**_NOT_DISTRIBUTED, **factors}
    weights = {cause: factor for cause, factor in factors.items() if cause in allowed}
    return replace(
        one,
        symptom=load_taxonomy().symptom(symptom),
        confidence=round(min(max(share, _LEAST), _MOST), 3),
        weights=weights,
        consequence="possible" if symptom in _ECHOES else "never",
    )


def _of_the_program_alone(event: Event) -> bool:
    """Raised by a line of the user's own code, with no frame, call or word of a distributed library."""
    frames = list(event.fields.get("frames", ()))
    if not frames or not is_own(frames[-1]):
        return False
    called = [frame for frame in frames if not is_own(frame)]
    said = (*called, *event.fields.get("code", ())[-1:], event.text[:MAX_MESSAGE])
    return not any(_DISTRIBUTED.search(text) for text in said)


def _on_whom_it_names(one: Finding, event: Event) -> Finding:
    named = _NAMED.search(event.text[:MAX_MESSAGE])
    if named is None or event.rank is None:
        return one
    ranks = tuple(sorted({int(rank) for rank in named["accused"].split(",")}))
    if event.rank in ranks:
        return one
    return replace(one, ranks=ranks, fields={**one.fields, "accused": named["accused"]})


_ECHOES = ("communication-runtime-error", "collective-hang", "worker-or-node-loss")


def weigh(event: Event) -> tuple[dict[str, float], dict[str, float]]:
    """(log odds of each symptom that some clue speaks for, factors for the odds of causes)."""
    frames = list(event.fields.get("frames", ()))
    places = {
        "type": "\n".join(event.fields.get("types", ())),
        "message": event.text[:MAX_MESSAGE],
        "call": "\n".join(frames[-_LAST_CALLS:]),
        "own": "\n".join(own_frames(event)[-3:]),
        "code": "\n".join(event.fields.get("code", ())),
    }
    odds: dict[str, float] = defaultdict(float)
    factors: dict[str, float] = {}
    for clue in load_clues():
        if clue.pattern.search(places[clue.place]):
            for symptom, weight in clue.symptoms.items():
                odds[symptom] += weight
            for cause, factor in clue.causes.items():
                factors[cause] = factors.get(cause, 1.0) * factor
    return odds, factors
