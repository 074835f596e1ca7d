"""Pods of Kubernetes: how many there are, which ranks each has, and which went with their node."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping

from paramedic.detect.hostnames import parts_of_name, short
from paramedic.detect.numbering import MOST_ON_A_NODE
from paramedic.detect.places import Places
from paramedic.model import Event, Finding, Run
from paramedic.regex import regex

_NUMBERED_POD = regex(r"\bpod/([a-z0-9][a-z0-9.-]{0,252})-(\d{1,5})\b")
_POD = regex(r"\bpod/([a-z0-9][a-z0-9.-]{0,252})|^([a-z0-9][a-z0-9.-]{0,252}-\d{1,5}) {1,40}\d{1,4}/\d{1,4} ")
_TAKEN = regex(
    r"\b(?:Killing|Evicted|TaintManagerEviction|Preempted|NodeNotReady|NodeLost) {1,40}pod/([a-z0-9][a-z0-9.-]{0,252})"
)
_OF_NODE = regex(r" node/([a-z0-9][a-z0-9.-]{0,252})")


def counted(run: Run) -> dict[str, int]:
    found: dict[str, int] = {}
    texts = [event.text for event in run.saying("pod/", "line")]
    texts += [f"pod/{source.name}" for source in run.sources if texts]
    for text in texts:
        for stem, number in _NUMBERED_POD.findall(text):
            found[stem] = max(found.get(stem, 0), int(number) + 1)
    return found


def pod_of(one: Finding) -> str:
    """The pod that it accuses."""
    pod = _POD.search(one.evidence[0].event.text) if "accused" in one.fields else None
    return (pod[1] or pod[2]) if pod else ""


def ranks_of_pod(name: str, known: Places, pods: Mapping[str, int | None], size: int) -> Collection[int]:
    bare = _DRAWN.sub("", name)
    ranks = _in_pod(name, known) or _in_pod(bare, known) or _block_of_pod(bare, known, size)
    if ranks and (pods.get(name) is None or _is_its_first(pods[name], ranks)):
        return ranks
    rank = _rank_of_pod(name, pods)
    return () if rank is None else (rank,)


_DRAWN = regex(r"(?<=-\d)-[a-z0-9]{5}$|(?<=-\d\d)-[a-z0-9]{5}$|(?<=-\d\d\d)-[a-z0-9]{5}$")
"""What a controller adds to the number of a pod."""


def _is_its_first(rank: int | None, ranks: Collection[int]) -> bool:
    """The only one in the pod's log: of several, launchers are often told to show the first alone."""
    return len(ranks) > 1 and rank == min(ranks)


def _in_pod(name: str, known: Places) -> frozenset[int]:
    """Under its own name, or that of the file with its log: `logs_train-worker-1`."""
    if (ranks := known.ranks_on.get(short(name))) is not None:
        return ranks
    files = [ranks for host, ranks in known.ranks_on.items() if name in parts_of_name(host)]
    return files[0] if len(files) == 1 and len(files[0]) > 1 else frozenset()


def _block_of_pod(name: str, known: Places, size: int) -> Collection[int]:
    """Of a job with several ranks in each pod, by the pod's number; not beside a master, which has the first."""
    stem, _, number = name.rpartition("-")
    count = known.pods.get(stem, 0)
    each, rest = divmod(size, count) if count else (0, 0)
    if (
        not 2 <= each <= MOST_ON_A_NODE
        or rest
        or not number.isdecimal()
        or known.pods.keys() & {f"{stem.rpartition('-')[0]}-master"}
    ):
        return ()
    return range(int(number) * each, (int(number) + 1) * each)


def _rank_of_pod(name: str, pods: Mapping[str, int | None]) -> int | None:
    """As its own log's; without one, the number in its name, which beside a master counts from rank 1."""
    if name in pods:
        return pods[name]
    number = re.search(r"-worker-(\d{1,5})(?:-[a-z0-9]{5})?$", name)
    beside_master = any(re.search(r"-(?:master|chief)-0\b", pod) for pod in pods)
    return int(number[1]) + 1 if number and beside_master else None


def taken_with(run: Run, event: Event) -> set[str]:
    """Beside what a list of Kubernetes' events tells of a node: the pods that were on it, or that were ended."""
    if (node := _OF_NODE.search(event.text)) is None:
        return set()
    on = [fact.value.split() for fact in run.facts if fact.name == "pod on"]
    there = {short(pod) for pod, where in on if where == node[1]}
    lines = (one for one in run.saying("pod/", "line") if one.source == event.source)
    return there or {short(found[1]) for one in lines if (found := _TAKEN.search(one.text)) is not None}
