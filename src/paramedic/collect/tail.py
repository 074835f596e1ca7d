"""What the end of a log shows: what each rank said last, and whether it was training."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from paramedic.collect.activity import (
    bar,
    closing,
    complains,
    ended,
    evaluates,
    finished,
    left_well,
    only_settings,
    out_of_data,
    shows_progress,
    steps,
    tested,
)
from paramedic.collect.decoding import MAX_RAW
from paramedic.collect.drafts import Draft, drafted, speaker
from paramedic.collect.glue import apart
from paramedic.collect.guarded import shape
from paramedic.collect.layouts import Peeled, Prefixes, Who, plain
from paramedic.collect.tracebacks import rank_named

TAIL = 64 << 10
_FINALISERS = (", in __del__", ", in _run_finalizers")
_PINNING = ", in _pin_memory_loop"
_GONE = ("BrokenPipeError", "ConnectionRefusedError", "ConnectionResetError", "EOFError", "FileNotFoundError")
"""What the thread that pins a loader's batches raises when the workers end before it."""
_COMPLAINTS = 12  # of the tail's lines that speak of an error, the last ones
_LAST_LINES = 8  # in which a program takes its leave
_PROGRESS = 64  # of each rank's lines in the tail that show it, the last ones


def last_activity(
    lines: list[str], last_line: int, is_part: bool, prefixes: Prefixes, of_file: int | None
) -> Iterator[Draft]:
    """Each rank's last line, and its last line that shows training going on."""
    lines = lines[:-1] if lines and not lines[-1] else lines
    last: dict[int | None, tuple[int, str, Peeled]] = {}
    complaints: list[tuple[int, str, Peeled]] = []
    progress: dict[int | None, list[tuple[int, str, Peeled]]] = {}
    bars: dict[int | None, dict[str, tuple[int, str, Peeled]]] = defaultdict(dict)
    again: dict[int | None, int] = {}
    shapes: dict[int | None, bytes] = {}
    dry: set[int | None] = set()
    end, closes, passed = 0, False, False
    tail = _said(lines, last_line - len(lines) + 1, is_part, prefixes)
    ignored = _of_ignored(tail)
    for seen, item in enumerate(reversed(tail)):
        peeled = item[2]
        rank = prefixes.whose(speaker(peeled), None)
        last.setdefault(rank, item)
        end = end or (item[0] if ended(peeled.text) else 0)
        passed = passed or tested(peeled.text)
        closes = closes or (not progress and seen < _LAST_LINES and closing(peeled.text))
        if rank not in progress and out_of_data(peeled.text):
            dry.add(rank)
        alike = shape(peeled.text)
        again[rank] = again.get(rank, 0) + (shapes.setdefault(rank, alike) == alike)
        if len(complaints) < _COMPLAINTS and item[0] not in ignored and complains(peeled.text):
            complaints.append(item)
        nameless = rank is None and of_file is None
        if (nameless or len(progress.get(rank, ())) < _PROGRESS) and shows_progress(peeled.text):
            named = rank_named(peeled.text) if nameless else None
            progress.setdefault(rank if named is None else named, []).append(item)
        elif drawn := bar(peeled.text):
            bars[rank][drawn] = item
    for drawn_by in bars.values():
        number, raw, peeled = max(drawn_by.values())
        at = sorted(line for line, _, _ in drawn_by.values())[-_PROGRESS:]
        yield drafted("bars", peeled, number, raw, at=at, prefixed=peeled.prefixed)
    for rank, found in progress.items():
        if only_settings(one.text for _, _, one in found):
            continue
        number, raw, peeled = found[0]
        prefixed = peeled.prefixed
        whose = peeled if prefixed or rank is None else Peeled(rank, "said", peeled.text)
        yield drafted(
            "progress", whose, number, raw,
            at=[n for n, _, _ in found[:_PROGRESS]][::-1], finished=finished(peeled.text), prefixed=prefixed,
            **({"ended": end} if end else {}), **({"closes": True} if closes else {}),
            **({"tested": True} if passed else {}),
            **({} if any(steps(one.text) for _, _, one in found) else {"stepless": True}),
            **({"evaluates": True} if all(evaluates(one.text) for _, _, one in found) else {}),
        )  # fmt: skip
    for rank, (number, raw, peeled) in last.items():
        named = rank_named(peeled.text) if rank is None and of_file is None else None
        yield drafted(
            "last", peeled, number, raw, again=again[rank], **({} if named is None else {"said_by": named}),
            **({"well": True} if left_well(peeled.text) else {}), **({"dry": True} if rank in dry else {}),
        )  # fmt: skip
    for number, raw, peeled in complaints:
        yield drafted("complaint", peeled, number, raw)


def _of_ignored(tail: list[tuple[int, str, Peeled]]) -> set[int]:
    """Where exceptions stand that Python passed over, in a finaliser or at its exit: nothing has failed by them."""
    within: dict[Who, tuple[str, ...]] = {}
    found = set()
    for number, _, peeled in tail:
        if peeled.text.startswith("Exception ignored in") or peeled.text.endswith(_FINALISERS):
            within[peeled.who] = ("",)
        elif peeled.text.endswith(_PINNING):
            within[peeled.who] = _GONE
        elif (
            peeled.who in within
            and not peeled.text.startswith((" ", "\t", "Traceback "))
            and peeled.text.startswith(within.pop(peeled.who))
        ):
            found.add(number)
    return found


def _said(lines: list[str], first: int, is_part: bool, prefixes: Prefixes) -> list[tuple[int, str, Peeled]]:
    """Those that say something, with their numbers; of the very first perhaps only a part is left."""
    part = is_part and len(lines) > 1
    whole = [line.encode("utf-8", "surrogatepass") for line in lines[part:]]
    pieces = [(at, raw.decode("utf-8", "surrogatepass")) for at, raw in apart(whole) if raw.strip()]
    last = [(first + part + at, raw.rstrip("\r").rsplit("\r", 1)[-1][:MAX_RAW]) for at, raw in pieces]
    peeled = [(number, raw, prefixes.peel(plain(raw))) for number, raw in last]
    return [item for item in peeled if item[2].text.strip()]
