"""Collectives that differ between ranks, as TORCH_DISTRIBUTED_DEBUG=DETAIL reports them: the minority is named."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

from paramedic.detect.match import on_events
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_MISMATCH = "Detected mismatch between collectives on ranks"
_FINGERPRINT = re.compile(
    r"Rank (?P<rank>\d{1,6}) is running (?:inconsistent )?(?:collective: )?CollectiveFingerPrint\("
    r"(?:SequenceNumber=(?P<sequence>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, TensorShape=(?P<shape>\[[^\]]{0,200}\]))?(?:, TensorDtypes=(?P<dtype>\w+))?"
)
_COUNTS = re.compile(
    r"but Rank (?P<one>\d{1,6}) has (?P<its>\d{1,9}) params, "
    r"while rank (?P<other>\d{1,6}) has inconsistent (?P<theirs>\d{1,9}) params"
)
_SIZES = re.compile(
    r"(?:\[(?P<rank>\d{1,6})\]: )?(?:params|replicas\[0\])\[\d{1,9}\] in this process with (?:sizes|strides) "
    r"(?P<size>\[[\d, ]{0,200}\]) appears not to match \w{1,20} of the same param in process 0"
)


def fingerprints(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Each rank says what it runs and what another one runs; whoever runs what the fewest run is named."""
    by_attempt: dict[int, list[Event]] = defaultdict(list)
    for event in run.events:
        if event.kind in ("line", "traceback") and _MISMATCH in event.text:
            by_attempt[event.attempt].append(event)
    for _, events in sorted(by_attempt.items()):
        runs: dict[int, str] = {}
        ops: set[str] = set()
        for event in events:
            for one in _FINGERPRINT.finditer(event.text):
                ops.add(one["op"])
                runs[int(one["rank"])] = " ".join(one[part] for part in ("op", "shape", "dtype") if one[part])
        votes = Counter(runs.values()).most_common()
        decided = len(votes) > 1 and votes[0][1] > votes[1][1]
        usual = votes[0][0] if decided else ""
        odd = sorted(rank for rank, what in runs.items() if decided and what != usual)
        fields = {"odd": " and ".join(sorted({runs[r] for r in odd})), "usual": usual} if odd else {}
        unlike = "uneven-work-across-ranks" if len(ops) == 1 else "collective-order-divergence"
        yield replace(on_events(rule, events, odd, fields), weights={unlike: 8.0})


def unlike_models(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """DDP on each rank compares its parameters with another rank's; whoever has what the fewest have is the odd one."""
    by_attempt: dict[int, list[Event]] = defaultdict(list)
    for event in run.events:
        if event.kind in ("line", "traceback") and (_COUNTS.search(event.text) or _SIZES.search(event.text)):
            by_attempt[event.attempt].append(event)
    for _, events in sorted(by_attempt.items()):
        models: dict[int, str] = {}
        for event in events:
            for said in _COUNTS.finditer(event.text):
                models |= {int(said["one"]): said["its"], int(said["other"]): said["theirs"]}
            if (unlike := _SIZES.search(event.text)) is not None:
                rank = event.rank if unlike["rank"] is None else int(unlike["rank"])
                models |= {0: "process 0"} | ({} if rank is None else {rank: unlike["size"]})
        votes = Counter(models.values()).most_common()
        decided = len(votes) > 1 and votes[0][1] > votes[1][1]
        odd = sorted(rank for rank, model in models.items() if decided and model != votes[0][0])
        yield on_events(rule, events, odd, {"accused": ", ".join(map(str, odd))} if odd else {})
