"""What is installed or mounted on some hosts only, and what fails for the want of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence, Set
from dataclasses import replace

from paramedic.detect.places import LACKING
from paramedic.detect.where import places
from paramedic.model import Finding, Run

_ONE_HOST = {"cross-node-environment-skew": 0.03}
_ODD_HOST = {"cross-node-environment-skew": 30.0}
_MOUNT_FAILED = "HOST011"
"""By a kernel: what its host has not, storage has not given it."""


def within_one_host(run: Run, found: Sequence[Finding]) -> list[Finding]:
    """Where all ranks are known to be on one host, a file that some do not find is missing on no node in particular;
    where all ranks of a host lack what all others have, it is the host that differs."""
    here = places(run).ranks_on
    if len(here) == 1 and set().union(*here.values()) >= run.expected_ranks:
        return [replace(one, weights={**one.weights, **_ONE_HOST}) if _is_missing_file(one) else one for one in found]
    if any(one.rule == _MOUNT_FAILED for one in found):
        return list(found)
    lacking: dict[tuple[str, int], set[int]] = defaultdict(set)
    for one in found:
        if one.symptom in LACKING and one.severity == "error":
            lacking[one.rule, one.attempt].update(one.ranks)
    odd = {key for key, ranks in lacking.items() if _are_some_hosts(ranks, {*here.values()})}
    return [
        replace(one, weights={**_ODD_HOST, **one.weights}) if (one.rule, one.attempt) in odd else one for one in found
    ]


def _are_some_hosts(ranks: Set[int], hosts: Collection[frozenset[int]]) -> bool:
    """All ranks of fewer than half of the hosts, or of one of two; one rank alone may have a reason of its own."""
    struck = [host for host in hosts if host & ranks]
    whole = len(ranks) > 1 and ranks == set().union(*struck)
    return whole and 0 < 2 * len(struck) <= len(hosts) and all(len(host) > 1 for host in hosts)


def _is_missing_file(one: Finding) -> bool:
    return one.symptom == "path-or-permission-error" and "No such file" in one.evidence[0].event.text
