"""What is known of where ranks were: their hosts, their processes, their GPUs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass, field, replace

from paramedic.detect.hostnames import ADDRESS, short
from paramedic.model import Event, Finding
from paramedic.regex import regex

NCCL_PROCESS = regex(
    r"(?:\[[^\]\n]{1,60}\] ?|\d{4}-\d\d-\d\d[ T][\d:.,]{8,15}Z? )?([\w.-]{1,120}):(\d{1,10}):\d{1,10} \[(-?\d{1,3})\] "
)

LACKING = frozenset(
    ["build-or-install-failure", "import-or-missing-symbol", "path-or-permission-error", "unsupported-api-or-attribute"]
)
"""What depends on what is installed on a host, or mounted there."""


@dataclass(frozen=True, slots=True)
class Places:
    ranks_on: Mapping[str, frozenset[int]] = field(default_factory=dict)
    """By the host's short name."""
    ranks_of_pid: Mapping[int, Set[int]] = field(default_factory=dict)
    """Two ranks on two hosts may have one number."""
    rank_of_gpu: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """By the host's short name and the GPU, as `ab:00`."""
    pods: Mapping[str, int] = field(default_factory=dict)
    """`job-worker` → how many of them are spoken of."""
    each: int = 0
    """How many ranks a host has, where those that are known in a row say so; else 0."""

    def rank_of(self, pid: int, host: str | None = None) -> int | None:
        ranks = self.ranks_of_pid.get(pid, frozenset())
        there: Set[int] = self.ranks_on.get(short(host), frozenset()) if host else frozenset()
        if host and (there or len(ranks) > 1):
            ranks = ranks & there  # each container counts its processes from 1 on
        elif host:
            ranks = ranks - self._on_others(host)
        return next(iter(ranks)) if len(ranks) == 1 else None

    def _on_others(self, host: str) -> Set[int]:
        """Ranks of which it is known that they are on another host; one may have a name and an address."""
        of_a_kind = ADDRESS.fullmatch(host) is None
        hosts = [name for name in self.ranks_on if (ADDRESS.fullmatch(name) is None) == of_a_kind]
        return frozenset(rank for name in hosts if name != short(host) for rank in self.ranks_on[name])


def rank_by_nccl(event: Event, known: Places) -> int | None:
    """Its own, or by NCCL, which begins its lines with host, process and the number of the GPU: ranks of a host take
    GPUs in their order, and hosts whose ranks are all known tell how many there are on each."""
    if event.rank is not None or (said := NCCL_PROCESS.match(event.text)) is None:
        return event.rank
    if (rank := known.rank_of(int(said[2]), said[1])) is not None:
        return rank
    ranks, index = sorted(known.ranks_on.get(short(said[1]), ())), int(said[3])
    if not ranks or index < 0:
        return None
    if ranks[-1] - ranks[0] == len(ranks) - 1 and index < len(ranks):
        return ranks[index]
    each = known.each
    return ranks[0] // each * each + index if index < each and ranks[0] // each == ranks[-1] // each else None


def at_ranks(one: Finding, ranks: Iterable[int]) -> Finding:
    chosen = tuple(sorted(ranks))
    return replace(one, ranks=chosen, scope="rank", fields={**one.fields, "accused": ", ".join(map(str, chosen))})
