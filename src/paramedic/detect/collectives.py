"""Collectives that differ between ranks, as TORCH_DISTRIBUTED_DEBUG=DETAIL reports them: the minority is named."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from paramedic.detect import ras
from paramedic.detect.match import on_events, own_frames
from paramedic.detect.numbering import placed
from paramedic.detect.ranks import few, listed
from paramedic.detect.series import every
from paramedic.detect.situation import parting, situation
from paramedic.detect.where import places
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_MISMATCH = "Detected mismatch between collectives on ranks"
_FINGERPRINT = regex(
    r"Rank (?P<rank>\d{1,6}) is running (?:inconsistent )?(?:collective: )?CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<sequence>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=(?P<shape>\[[^\]]{0,200}\]))?(?:, TensorDtypes=(?P<dtype>\w+))?"
)
_COUNTS = regex(
    r"but Rank (?P<one>\d{1,6}) has (?P<its>\d{1,9}) params, "
    r"while rank (?P<other>\d{1,6}) has inconsistent (?P<theirs>\d{1,9}) params"
)
_SIZES = regex(
    r"(?:\[(?P<rank>\d{1,6})\]: )?(?:params|replicas\[0\])\[\d{1,9}\] in this process with (?:sizes|strides) "
    r"(?P<size>\[[\d, ]{0,200}\]) appears not to match \w{1,20} of the same param in process 0"
)

_READY = regex(r"\[ready ranks: ?(\d{1,6}(?:, ?\d{1,6}){0,4095})\]")
_SAME_GPU = regex(
    r"Duplicate GPU detected ?: rank (?P<first>\d{1,6}) and rank (?P<second>\d{1,6}) "
    r"both on CUDA device (?P<gpu>[0-9a-fA-F]{1,16})"
)


def fingerprints(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank says what it runs and what another one runs; whoever runs what the fewest run is named."""
    for events in _by_attempt(run.saying(_MISMATCH, "line", "traceback")):
        runs: dict[int, str] = {}
        ops: set[str] = set()
        for event in events:
            for one in _FINGERPRINT.finditer(event.text):
                ops.add(one["op"])
                runs[int(one["rank"])] = " ".join(one[part] for part in ("op", "shape", "dtype") if one[part])
        odd, usual = _minority(runs)
        fields = {"odd": " and ".join(sorted({runs[r] for r in odd})), "usual": usual} if odd else {}
        weights = {"collective-order-divergence": 8.0} if len(ops) > 1 or _far_apart(runs) else {}
        stood = {int(said["rank"]): own_frames(e) for e in events if (said := _FINGERPRINT.search(e.text)) is not None}
        fields |= situation(run, odd, stood) if odd else _of_two(stood)
        odd = _with_their_host(run, odd, runs)
        yield replace(on_events(rule, events, odd, fields), weights=weights)


def _far_apart(runs: Mapping[int, str]) -> bool:
    """A statistic here and gradients there are two calls, of whatever kind."""
    sizes = [int(said[1]) for call in runs.values() if (said := _FLAT.search(call)) is not None]
    return len(sizes) == len(runs) and len({*sizes}) > 1 and max(sizes) > _TIMES * max(1, min(sizes))


_FLAT, _TIMES = regex(r"ALLREDUCE \[(\d{1,12})\] "), 16


def _of_two(stood: Mapping[int, Sequence[str]]) -> dict[str, str]:
    """Of two ranks nobody is the odd one: whichever is in work beside the step is taken for it, to show its line."""
    ways = [stood[rank] for rank in sorted(stood)]
    if len(ways) != len(_PAIR):
        return {}
    both = [parting(ways[one], ways[1 - one], first=True) for one in _PAIR]
    return next((fields for fields in both if not fields.keys().isdisjoint(_BESIDE)), {})


_PAIR, _BESIDE = (0, 1), ("saves", "generates", "evaluates")


def _with_their_host(run: Run, odd: list[int], said: Mapping[int, str]) -> list[int]:
    """All ranks of one host, where half of them or more run the odd thing, nobody else does, and the rest of that host
    was ended before it could say what it runs."""
    theirs = max((ranks for ranks in places(run).ranks_on.values() if ranks >= {*odd}), key=len, default=frozenset())
    alike = len(odd) > 1 and theirs & said.keys() == {*odd} and 2 * len(odd) >= len(theirs)
    return sorted(theirs) if alike and said.keys() - theirs else odd


def unlike_models(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP on each rank compares its parameters with another rank's; whoever has what the fewest have is the odd one."""
    for events in _by_attempt(_telling_models_apart(run)):
        models: dict[int, str] = {}
        for event in events:
            for said in _COUNTS.finditer(event.text):
                models |= {int(said["one"]): said["its"], int(said["other"]): said["theirs"]}
            if (unlike := _SIZES.search(event.text)) is not None:
                rank = event.rank if unlike["rank"] is None else int(unlike["rank"])
                models |= {0: "process 0"} | ({} if rank is None else {rank: unlike["size"]})
        models |= dict.fromkeys(_past_the_check(run, events[0].attempt) - models.keys(), "process 0")
        odd, _ = _minority(models)
        yield on_events(rule, events, odd, {"accused": ", ".join(map(str, odd))} if odd else {})


def _telling_models_apart(run: Run) -> Iterator[Event]:
    for event in run.of_kind("line", "traceback"):
        counts, sizes = "has inconsistent" in event.text, "appears not to match" in event.text
        if (counts and _COUNTS.search(event.text)) or (sizes and _SIZES.search(event.text)):
            yield event


def stalled(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Horovod lists who is ready for each tensor: the few that are ready for other ones than most, or for none."""
    for events in _by_attempt(run.saying("[ready ranks:", "line", "traceback")):
        ready: dict[int, str] = {}
        for event in events:
            for ranks in _READY.findall(event.text):
                ready |= {int(rank): ranks for rank in ranks.split(",")}
        odd, _ = _minority(ready)
        odd = odd or sorted(run.expected_ranks - ready.keys())
        if few({*odd}, {*ready}):
            fields = {"accused": ", ".join(map(str, odd)), "waiting": listed(ready.keys() - {*odd})}
            fields |= situation(run, odd)
            yield on_events(rule, events[:4], odd, fields)


def launched_fewer(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """RAS names who has not launched what the others have; within a part of the job it numbers ranks otherwise."""
    size, known = ras.size_of_all(run), ras.rank_of_process(run)
    for report, behind in ras.stuck(run):
        of_all = size is None or report.size >= size
        ranks = {rank if of_all else known.get(report.processes[rank], -1) for rank in behind}
        named = () if -1 in ranks else sorted(ranks)
        fields = {"count": str(min(behind.values()))} | ({"accused": ", ".join(map(str, named))} if named else {})
        own = [event for event in report.events if "managed by process" in event.text]
        yield on_events(rule, [*own[:4], report.event], named, fields)


def shared_gpus(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank names one other that has its GPU, too. Where most are named, it is the whole job's doing; where all
    others have the GPU of their own place on the host, it is the one's that has not."""
    astray = _on_anothers_gpu(run) or _shown_otherwise(run)
    for events in _by_attempt(run.saying("Duplicate GPU detected", "line", "traceback")):
        pairs = [said for event in events for said in _SAME_GPU.finditer(event.text)]
        ranks = sorted({int(said[end]) for said in pairs for end in ("first", "second")})
        ranks = sorted(astray.intersection(ranks)) or ranks
        size = max([len(run.expected_ranks), *(rank + 1 for rank in ranks)])
        if pairs:
            yield on_events(rule, events[:4], ranks if 2 * len(ranks) <= size else (), pairs[0].groupdict())


_UNLIKE = regex(
    r"tensor of shape \[(?P<one>[\d, ]{1,200})\], but another rank sent a tensor of shape \[(?P<other>[\d, ]{1,200})\]"
    r"|equal to (?P<size>\d{1,12}), but another rank sent a tensor with dimension \d{1,3} equal to (?P<two>\d{1,12})"
)
_LOCAL_FILE = {"cross-node-environment-skew": 400.0, "collective-order-divergence": 0.1}


def unlike_vocabularies(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Horovod tells which two shapes it was sent, but not by whom: ranks have said how many classes or words they know.
    Only where those of one host agree is it what hosts have read; else each counts what it was dealt, and none is odd.
    Where as many know the one as the other, those are amiss who are not as the one that sends its own to all."""
    for events in _by_attempt(run.saying("but another rank sent a tensor", "line", "traceback")):
        sizes = {size for event in events for said in _UNLIKE.finditer(event.text) for size in _apart(said)}
        told = [one for one in every(run, "vocabulary") if one.rank is not None and sizes.intersection(one.said)]
        knows = {one.rank: f"{one.said[-1]:g}" for one in told if one.rank is not None}
        if not run.expected_ranks <= knows.keys() or len(set(knows.values())) != 2 or not _by_host(run, knows):
            continue
        odd, usual = _minority(knows)
        others = [rank for rank, size in sorted(knows.items()) if size != knows[min(knows)]]
        sent = any("Mismatched BROADCAST" in event.text for event in events)
        named = odd or (others if sent else [])
        shown = [event for one in told if one.rank in (odd or others)[:2] for event in one.shown(0)]
        fields = {"odd": knows[(odd or others)[0]], "usual": usual or knows[min(knows)]}
        fields |= {"accused": ", ".join(map(str, named))} if named else {"who": "Half of the ranks"}
        yield on_events(rule, [*shown, events[0]], named, fields, _LOCAL_FILE)


_OWN_SHAPE = regex(
    r"\bOp at device /job:(?P<job>\w{1,40})/replica:\d{1,4}/task:(?P<task>\d{1,6})/\S{1,60} expected shape "
    r"(?P<own>\[[\d,? ]{0,200}\]) but another member in the group expected shape (?P<other>\[[\d,? ]{0,200}\])"
)
_SEVERAL = 3


def other_shape(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each of TensorFlow's workers tells the shape that it brought: one alone has another than all others. Beside a
    chief workers are numbered otherwise, and of two nobody can say which."""
    for events in _by_attempt(run.saying("but another member in the group expected shape", "line", "traceback")):
        said = [(event, hit) for event in events if (hit := _OWN_SHAPE.search(event.text)) is not None]
        shapes = {int(hit["task"]): hit["own"] for _, hit in said}
        odd, usual = _minority(shapes) if len(shapes) >= _SEVERAL else ([], "")
        if len(odd) == 1 and len(set(shapes.values())) == 2 and all(hit["job"] == "worker" for _, hit in said):
            fields = {"odd": shapes[odd[0]], "usual": usual, "accused": str(odd[0])}
            own = sorted(said, key=lambda one: int(one[1]["task"]) != odd[0])
            yield on_events(rule, [event for event, _ in own], odd, fields, _LOCAL_FILE)


def _by_host(run: Run, knows: Mapping[int, str]) -> bool:
    """Every host has several ranks, which say the same."""
    here = [{*ranks} & knows.keys() for ranks in {*places(run).ranks_on.values()}]
    return len(here) > 1 and all(len(ranks) > 1 and len({knows[rank] for rank in ranks}) == 1 for ranks in here)


def _apart(said: re.Match[str]) -> set[float]:
    """The sizes in which two shapes differ, where it is one dimension."""
    if said["size"]:
        return {float(said["size"]), float(said["two"])}
    one, other = ([int(n) for n in said[side].replace(" ", "").split(",") if n] for side in ("one", "other"))
    pairs = [(a, b) for a, b in zip(one, other, strict=False) if a != b]
    return {float(size) for size in pairs[0]} if len(one) == len(other) and len(pairs) == 1 else set()


def _on_anothers_gpu(run: Run) -> set[int]:
    """The few ranks whose device is not their place on the host, where that is how devices are given out."""
    devices: dict[tuple[str, int], dict[int, int]] = defaultdict(dict)
    for host, device, size, rank in placed(run, "device"):
        if rank is not None:
            devices[host, size][rank] = device
    astray: set[int] = set()
    for of_ranks in devices.values():
        odd = {rank for rank, device in of_ranks.items() if device != rank - min(of_ranks)}
        astray |= odd if 2 * len(odd) < len(of_ranks) else set()
    return astray


def _shown_otherwise(run: Run) -> set[int]:
    """The one rank that was shown other GPUs than all others, which were shown the same several."""
    shown = {fact.rank: str(fact.value) for fact in run.facts if fact.name == "visible" and fact.rank is not None}
    usual = max(shown.values(), key=list(shown.values()).count, default="")
    odd = {rank for rank, gpus in shown.items() if gpus != usual}
    return odd if len(odd) == 1 and len(shown) > _SHOWN and "," in usual else set()


_SHOWN = 3


def _past_the_check(run: Run, attempt: int) -> set[int]:
    """Ranks that stood behind it when the others' end reached them: their parameters are those of process 0."""
    traces = [e for e in run.of_kind("traceback") if e.rank is not None and e.attempt == attempt]
    frames = [(e.rank, e.fields.get("frames", ())) for e in traces]
    return {rank for rank, told in frames if rank and told and not any("_verify_param" in frame for frame in told)}


def _by_attempt(events: Iterable[Event]) -> list[list[Event]]:
    found: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        found[event.attempt].append(event)
    return [of_attempt for _, of_attempt in sorted(found.items())]


def _minority(said: Mapping[int, str]) -> tuple[list[int], str]:
    """The ranks that say something else than most do, and what most say; nobody where no saying leads."""
    votes = Counter(said.values()).most_common()
    if len(votes) < 2 or votes[0][1] == votes[1][1]:
        return [], ""
    usual = votes[0][0]
    return sorted(rank for rank, what in said.items() if what != usual), usual
