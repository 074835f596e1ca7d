"""A traced step as data: what was allocated when, in which module, by which operation. No torch here."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from paramedic.memory.allocator import Event


class Moment(NamedTuple):
    step: int
    phase: str
    module: str
    operation: str


@dataclass
class Trace:
    events: list[Event] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    """Where each step begins in `events`; before the first: model, batch, and what is built around them."""
    phases: list[tuple[int, int, str]] = field(default_factory=list)
    """(event, step, phase): from which event on."""
    lines: dict[int, str] = field(default_factory=dict)
    """Event → the line of code that ran."""
    notes: list[str] = field(default_factory=list)
    kinds: dict[int, str] = field(default_factory=dict)
    """Storages whose owner is known at birth: parameters, inputs, communication."""
    optional: set[int] = field(default_factory=set)
    """Workspaces without which the operation takes another way."""
