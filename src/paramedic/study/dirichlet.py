"""Shares with their uncertainty: counts plus a little prior weight for each category (Dirichlet)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

SMOOTHING = 0.5
"""Prior weight of each category: Jeffreys' choice."""


@dataclass(frozen=True, slots=True)
class Share:
    mean: float
    low: float
    high: float
    """The middle 95 % of the share's own distribution, a Beta."""


def shares(counts: Mapping[str, int], categories: Iterable[str], smoothing: float = SMOOTHING) -> dict[str, Share]:
    weight = {name: counts.get(name, 0) + smoothing for name in categories}
    total = sum(weight.values())
    return {
        name: Share(
            round(one / total, 4),
            round(beta_quantile(one, total - one, 0.025), 4),
            round(beta_quantile(one, total - one, 0.975), 4),
        )
        for name, one in weight.items()
    }


def beta_quantile(a: float, b: float, p: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if beta_cdf(a, b, middle) < p:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def beta_cdf(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction (Lentz)."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):
        return 1 - beta_cdf(b, a, 1 - x)
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    return math.exp(log_front) * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / max(1 - (a + b) * x / (a + 1), tiny)
    found = d
    for m in range(1, 300):
        for top in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + top * d or tiny)
            c = 1 + top / c or tiny
            found *= c * d
        if abs(c * d - 1) < 1e-12:
            break
    return found
