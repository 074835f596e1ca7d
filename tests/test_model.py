"""What a Run is asked of all its events."""

from __future__ import annotations

from dataclasses import FrozenInstanceError

import pytest

from paramedic.model import Event, Run, event_of


def _events(texts: list[str], kind: str = "line") -> list[Event]:
    return [Event("log", seq, kind, text) for seq, text in enumerate(texts)]


TEXTS = ["NCCL timeout", "step 7 loss 0.1", "", "naïve café \ud800 NCCL", "a\0b", "NCCL timeout"]


@pytest.mark.parametrize("times", [1, 100], ids=["few", "many"])
@pytest.mark.parametrize("word", ["NCCL", "café", "step 7", "\ud800", "nobody says this", "1step"])
def test_a_word_is_found_where_it_stands_in_few_events_and_in_many(times: int, word: str) -> None:
    run = Run("r", events=tuple(_events(TEXTS * times)))

    assert run.saying(word, "line") == [event for event in run.events if word in event.text]


def test_one_of_several_words_in_events_of_several_kinds_keeps_their_order() -> None:
    lines, traces = _events(TEXTS * 100), _events(["RuntimeError: NCCL", "ValueError: x"] * 100, "traceback")
    run = Run("r", events=tuple(event for pair in zip(lines, traces, strict=False) for event in pair))

    said = run.saying_one_of(("NCCL", "ValueError"), "line", "traceback")

    assert said == [e for e in run.events if "NCCL" in e.text or "ValueError" in e.text]
    assert len({event.kind for event in said}) == 2


def test_an_event_made_of_its_values_is_one_like_any_other() -> None:
    plain = Event("log", 3, "line", "text", rank=1)

    made = event_of(("log", 3, "line", "text", None, 1, None, 0, None, 0, "", {}))

    assert made == plain and type(made) is Event
    with pytest.raises(FrozenInstanceError):
        made.seq = 4  # type: ignore[misc]
