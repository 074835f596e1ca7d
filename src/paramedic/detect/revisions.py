"""Ranks that run another revision of the program than the others."""

from __future__ import annotations

from collections.abc import Sequence

from paramedic.detect.calls import Group
from paramedic.detect.difference import CALLED_BY, call_of
from paramedic.detect.mismatches import same_calls
from paramedic.regex import regex

_LAST = 16
_FRAME = regex(r"(.{1,450}):(\d{1,9})( in .{1,90})")


def of_another_revision(groups: Sequence[Group]) -> frozenset[int]:
    """The fewer ranks that made the same finished call by the same functions of the same files, but from other lines of
    all of them: between branches of one program only the innermost line changes."""
    for group in groups:
        classes = same_calls(group)
        shared = set.intersection(*({*part.calls} - {*part.open} for part, _ in classes)) if len(classes) > 1 else set()
        for seq in sorted(shared, reverse=True)[:_LAST]:
            sites: dict[str, list[int]] = {}
            for _, ranks in classes:
                sites.setdefault(call_of(group, ranks[0], seq).site, []).extend(ranks)
            (usual, most), *rest = sorted(sites.items(), key=lambda item: -len(item[1]))
            odd = [rank for _, ranks in rest for rank in ranks]
            if 0 < len(odd) < len(most) and all(_same_functions(usual, site) for site, _ in rest):
                return frozenset(odd)
    return frozenset()


def _same_functions(one: str, other: str) -> bool:
    """`train.py:152 in log ← train.py:231 in fit` and `train.py:143 in log ← train.py:222 in fit`."""
    mine, theirs = ([_FRAME.fullmatch(frame) for frame in site.split(CALLED_BY)] for site in (one, other))
    if len(mine) != len(theirs) or len(mine) < 2:
        return False
    pairs = [(a.groups(), b.groups()) for a, b in zip(mine, theirs, strict=True) if a and b]
    alike = all(a[0] == b[0] and a[1] != b[1] and a[2] == b[2] for a, b in pairs)
    return len(pairs) == len(mine) and alike
