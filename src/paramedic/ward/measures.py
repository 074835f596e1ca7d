"""Numbers that a silent failure is proven by: a bound such as `> 1e-3`, and whether a value keeps it."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass

from paramedic.errors import ParamedicError

_COMPARE = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le, "==": operator.eq}


@dataclass(frozen=True, slots=True)
class Bound:
    sign: str
    limit: float

    @classmethod
    def parse(cls, text: str) -> Bound:
        found = re.fullmatch(r"(>=|<=|==|>|<) *(-?[0-9.]+(?:e[+-]?[0-9]+)?)", text.strip(), re.IGNORECASE)
        if not found:
            raise ParamedicError(f"{text!r} is no bound; write for instance '> 1e-3'")
        return cls(found[1], float(found[2]))

    def kept_by(self, value: object) -> bool:
        """A value that is not a number keeps no bound."""
        return isinstance(value, int | float) and bool(_COMPARE[self.sign](value, self.limit))

    def __str__(self) -> str:
        return f"{self.sign} {self.limit:g}"
