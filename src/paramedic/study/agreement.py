"""How far two raters agree beyond chance: Cohen's kappa."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

from paramedic.study.labels import Rating

FIELDS = ("issue type", "distributed", "stage", "symptom", "fix")
_RESAMPLED = 1_000


@dataclass(frozen=True, slots=True)
class Agreement:
    what: str
    pairs: int
    agreed: int
    kappa: float | None
    """None where it says nothing: no pairs, or one label throughout."""
    low: float | None = None
    high: float | None = None


def kappa(pairs: Sequence[tuple[Hashable, Hashable]]) -> float | None:
    if not pairs:
        return None
    n = len(pairs)
    observed = sum(one == two for one, two in pairs) / n
    first, second = Counter(one for one, _ in pairs), Counter(two for _, two in pairs)
    chance = sum(first[label] * second[label] for label in first) / n**2
    return None if chance == 1 else (observed - chance) / (1 - chance)


def agreement(what: str, pairs: Sequence[tuple[Hashable, Hashable]]) -> Agreement:
    """With a bootstrap interval of 95 %."""
    found = kappa(pairs)
    if found is None:
        return Agreement(what, len(pairs), sum(a == b for a, b in pairs), None)
    rng = random.Random(0)
    drawn = sorted(value for _ in range(_RESAMPLED) if (value := kappa(rng.choices(pairs, k=len(pairs)))) is not None)
    low, high = drawn[int(0.025 * len(drawn))], drawn[int(0.975 * len(drawn)) - 1]
    return Agreement(what, len(pairs), sum(a == b for a, b in pairs), round(found, 4), round(low, 3), round(high, 3))


def by_round(ratings: Iterable[Rating]) -> dict[int, list[Agreement]]:
    """A label is compared where both raters gave one to the same part of the same post; the others are not pairs."""
    rows: dict[int, dict[tuple[str, int], dict[str, Rating]]] = defaultdict(lambda: defaultdict(dict))
    for one in ratings:
        if one.rater in ("rater1", "rater2"):
            rows[one.round][one.link, one.part][one.rater] = one
    found: dict[int, list[Agreement]] = {}
    for number in sorted(rows):
        both = [(a["rater1"].values, a["rater2"].values) for a in rows[number].values() if len(a) == 2]
        found[number] = [
            agreement(what, [(one[what], two[what]) for one, two in both if one[what] and two[what]]) for what in FIELDS
        ]
    return found


def unpaired(ratings: Iterable[Rating]) -> int:
    """Rows of one rater to which the other has no counterpart: one saw a fault more in the post."""
    seen = Counter((one.round, one.link, one.part) for one in ratings if one.rater in ("rater1", "rater2"))
    return sum(count == 1 for count in seen.values())
