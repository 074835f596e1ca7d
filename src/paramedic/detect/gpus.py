"""What the driver of each node said about its GPUs while the job ran, joined with the rank that used each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paramedic.detect.match import on_events
from paramedic.detect.ranks import listed
from paramedic.detect.watched import said_by, seen_ranks
from paramedic.knowledge import Rule
from paramedic.model import Event, Finding, Run

_LOOKS = 6
_OFTEN = 0.5
"""Of all looks: so often a GPU that is slowed down is so; for a moment any may be."""


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU that a rank uses."""

    rank: int
    event: Event
    said: Mapping[str, Any]

    @property
    def named(self) -> str:
        return f"GPU {self.said.get('index')} of {self.event.host or 'its node'}"

    @property
    def slowed(self) -> str:
        """Why, if it was slowed down most of the time."""
        looks, reasons = self.said.get("looks"), self.said.get("slowed")
        if not isinstance(looks, int) or looks < _LOOKS or not isinstance(reasons, Mapping):
            return ""
        often = [str(why) for why, times in reasons.items() if isinstance(times, int) and times > _OFTEN * looks]
        return " and ".join(sorted(often))

    @property
    def errors(self) -> int:
        count = self.said.get("new_errors")
        return count if isinstance(count, int) else 0


def cards(run: Run) -> list[Card]:
    by_uuid = {uuid: (event, card) for event in run.of_kind("gpus") for uuid, card in _listed(event)}
    found = []
    for rank, one in sorted(seen_ranks(run).items()):
        values = said_by(one.event).get("values")
        uuid = values.get("device") if isinstance(values, Mapping) else None
        if isinstance(uuid, str) and uuid in by_uuid:
            found.append(Card(rank, *by_uuid[uuid]))
    return found


def new_errors(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """Memory errors that the card could not correct came while the job ran."""
    if bad := [card for card in cards(run) if card.errors > 0]:
        fields = {
            "cards": ", ".join(card.named for card in bad[:4]),
            "errors": str(sum(card.errors for card in bad)),
            "accused": listed([card.rank for card in bad]),
        }
        yield on_events(rule, [card.event for card in bad[:3]], [card.rank for card in bad], fields)


def slowed(run: Run, rule: Rule, found: Sequence[Finding]) -> Iterator[Finding]:
    """A few cards run slower than they could, and the ranks on all others wait for theirs."""
    all_cards = cards(run)
    slow = [card for card in all_cards if card.slowed]
    if not slow or 2 * len(slow) >= len(all_cards):
        return
    fields = {
        "cards": ", ".join(card.named for card in slow[:4]),
        "why": slow[0].slowed,
        "temperature": str(slow[0].said.get("temperature")),
        "accused": listed([card.rank for card in slow]),
    }
    yield on_events(rule, [card.event for card in slow[:3]], [card.rank for card in slow], fields)


def _listed(event: Event) -> Iterator[tuple[str, Mapping[str, Any]]]:
    cards = said_by(event).get("gpus")
    for card in cards if isinstance(cards, list) else ():
        if isinstance(card, Mapping) and isinstance(card.get("uuid"), str):
            yield card["uuid"], card
