"""A plan in words and as JSON: what to change, what is left then, why it helps, what it costs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from paramedic import __version__
from paramedic.memory.configs import config_of
from paramedic.memory.estimate import SCHEMA_VERSION
from paramedic.memory.plan import Answer, Effect, Need, Plan
from paramedic.memory.request import Request
from paramedic.memory.show import size

_SMALL = 1 << 26


def document(found: Plan) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": {"name": "paramedic", "version": __version__},
        "tried": found.tried,
        "card_bytes": found.card.memory,
        "as_it_is": {
            "flags": flags(found.asked),
            "device_total_bytes": found.need.total if found.need else None,
            "breakdown": found.need.kinds if found.need else None,
        },
        "answers": [
            {
                "flags": flags(answer.candidate.request),
                "edits": [
                    {
                        "change": one.title, "why": one.why, "costs": one.cost or None,
                        "removes_bytes": one.removes, "removes_share": round(one.share, 3),
                        "speed_ratio": round(one.speed, 2),
                    }
                    for one in answer.effects
                ],
                "effort": answer.candidate.effort,
                "predicted_samples_per_second": round(answer.speed, 2),
                "fits": answer.estimate.fits,
                "device_total_bytes": answer.estimate.total.mid,
                "device_total_bytes_worst": answer.estimate.total.high,
                "peak_allocated_bytes": answer.estimate.allocated.mid,
                "config": config_of(answer.candidate.request),
            }
            for answer in found.answers
        ],
    }  # fmt: skip


def flags(request: Request) -> str:
    """The request as a command line would say it; what is default is left out."""
    plain = Request()
    words = []
    for name, value in request.to_dict().items():
        if value == getattr(plain, name) or name in ("layers",):
            continue
        flag = "--" + {"checkpointing": "activation-checkpointing"}.get(name, name).replace("_", "-")
        words.append(flag if value is True else f"{flag} {value}")
    return " ".join(words)


def text(found: Plan) -> str:
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Plan) -> Iterator[str]:
    if found.largest:
        yield from _largest(found)
        return
    if found.need is not None:
        yield from _as_it_is(found, found.need)
        yield ""
    if not found.answers:
        yield f"none of {found.tried} settings fits: use more or larger cards, or a smaller model"
    for number, answer in enumerate(found.answers, 1):
        yield from _answer(number, answer)
    if found.answers:
        yield "Speeds are predicted from arithmetic and bytes moved: they order the answers and promise nothing."


def _largest(found: Plan) -> Iterator[str]:
    if not found.answers:
        yield f"no {found.largest} fits: use more or larger cards, or ask `paramedic memory plan` without --largest"
        return
    answer = found.answers[0]
    value = getattr(answer.candidate.request, str(found.largest))
    verdict = "tightly, " if answer.estimate.fits == "tight" else ""
    yield f"largest --{found.largest}: {value} ({verdict}{_room(answer)})"


def _as_it_is(found: Plan, need: Need) -> Iterator[str]:
    asked, card = found.asked, found.card
    cards = f"{asked.world_size} × {asked.gpu}" if asked.world_size > 1 else asked.gpu
    how = f", {asked.strategy}" if asked.strategy != "none" else ""
    fits = "fits" if need.total <= card.memory else "does not fit"
    parts = [f"{size(count)} {name}" for name, count in need.kinds.items() if count > need.total / 100]
    yield f"As it is ({cards}{how}): {fits}, about {size(need.total)} of {size(card.memory)} a card:"
    yield f"     {', '.join(parts)}"


def _answer(number: int, answer: Answer) -> Iterator[str]:
    verdict = "fits" if answer.estimate.fits == "yes" else "fits tightly"
    yield f"{number}. {answer.candidate.title}"
    yield f"     {verdict}: {_room(answer)}; about {answer.speed:.1f} samples a second"
    for effect in answer.effects:
        yield f"     {effect.title}: {effect.why}"
        yield f"         {_removed(effect)}{_cost(effect)}"
    for line in config_of(answer.candidate.request):
        yield f"       {line}".rstrip()
    yield ""


def _room(answer: Answer) -> str:
    card, total = answer.estimate.card.memory, answer.estimate.total
    worst = card - total.high
    last = f"{size(worst)} in the worst case" if worst >= 0 else f"{size(-worst)} too much in the worst case"
    return f"{size(total.mid)} of {size(card)}, {size(card - total.mid)} left, {last}"


def _removed(effect: Effect) -> str:
    if effect.removes < _SMALL:
        return "changes the peak little" if effect.removes > -_SMALL else f"adds {size(-effect.removes)}"
    return f"removes {size(effect.removes)} ({effect.share:.0%})"


def _cost(effect: Effect) -> str:
    slower = 1 - effect.speed
    speed = f"{slower:.0%} slower" if slower >= 0.01 else ""
    said = ", ".join(part for part in (speed, effect.cost) if part)
    return f"; costs: {said}" if said else "; costs nothing"
