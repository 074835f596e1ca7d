"""Timestamps as logs write them. A zone that is not written is not invented: the uncertainty says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from paramedic.model import UNKNOWN_ZONE_NS, Event
from paramedic.regex import regex

_CLOCK = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_ISO = regex(
    r"(?<![0-9])(?P<year>(?:19|20)[0-9]{2})[-/](?P<month>[0-9]{2})[-/](?P<day>[0-9]{2})[T _]"
    + _CLOCK
    + r"(?:[.,](?P<fraction>[0-9]{1,9}))?(?:\s?(?P<zone>Z\b|UTC\b|[+-][0-9]{2}:?[0-9]{2}\b))?"
)
_GLOG = regex(r"\b[IWEFDV](?P<month>[0-9]{1,2})(?P<day>[0-9]{2}) " + _CLOCK + r"\.(?P<fraction>[0-9]{1,9})\b")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SYSLOG = regex(rf"\b(?P<name>{'|'.join(_MONTHS)})\s{{1,2}}(?P<day>[0-9]{{1,2}}) {_CLOCK}\b")
_SYSLOG_YEAR = regex(
    rf"\b(?P<name>{'|'.join(_MONTHS)})\s{{1,2}}(?P<day>[0-9]{{1,2}}) {_CLOCK} (?P<year>20[0-9]{{2}})\b"
)
_SLASHES = regex(
    r"(?<![0-9/])(?P<month>[0-9]{2})/(?P<day>[0-9]{2})/(?P<year>(?:20)?[0-9]{2}) (?:\| )?"
    + _CLOCK
    + r"(?:[.,](?P<fraction>[0-9]{1,9}))?(?![0-9])"
)
_APACHE = regex(
    rf"\b(?P<day>[0-9]{{2}})/(?P<name>{'|'.join(_MONTHS)})/(?P<year>20[0-9]{{2}})[: ]{_CLOCK}"
    r"(?: (?P<zone>[+-][0-9]{4}))?"
)
_COMPACT = regex(
    r"(?<![0-9])(?P<year>20[0-9]{2})(?P<month>[0-9]{2})(?P<day>[0-9]{2})[T_ -]"
    r"(?P<hour>[0-9]{2}):?(?P<minute>[0-9]{2}):?(?P<second>[0-9]{2})"
    r"(?:[.,](?P<fraction>[0-9]{1,9}))?(?P<zone>Z)?(?![0-9])"
)
_SHAPES = (_ISO, _GLOG, _SYSLOG_YEAR, _SYSLOG, _SLASHES, _APACHE, _COMPACT)
"""In the order in which they are tried."""
_FRACTIONS = tuple(shape.groupindex.get("fraction", 0) for shape in _SHAPES)
_EPOCH = regex(
    r"(?:^|^\[|^[IWEF]0000 00:00:|\"(?:ts|time|timestamp|asctime|created)\": ?\"?)"
    r"(?P<seconds>1[0-9]{9})(?:(?P<more>[0-9]{9}|[0-9]{6}|[0-9]{3})|[.,](?P<fraction>[0-9]{1,9}))?(?![0-9.])"
)
_BEFORE_EPOCH = ("1", "[", "I", "W", "E", "F", "{")
_KERNEL = regex(r"^(?:<[0-9]{1,3}>)?\[ {0,6}[0-9]{1,8}\.[0-9]{6}\](?= )")
_SEARCH = 160  # a timestamp stands near the start of its line
_LEAP_YEAR = "2000"
_LOOKED_AT = 200


class Stamp(NamedTuple):
    text: str
    utc_ns: int | None
    uncertainty_ns: int


def find_stamp(line: str) -> Stamp | None:
    """The first timestamp near the start of a line; `utc_ns` is None when the year is not written.

    `05/12/24` is rich's, month first.
    """
    if line.startswith("20") and (found := _ISO.match(line, 0, _SEARCH)) and (stamp := _stamp(found, 0)):
        return stamp  # most lines of most logs begin so
    head = line[:_SEARCH]
    if line.startswith('{"log":"'):  # Docker writes the time behind the line
        head = line[max(line.rfind('"time":"'), 0) :][:_SEARCH]
    if head[:1] in _BEFORE_EPOCH and (epoch := _EPOCH.search(head)) is not None:
        return _since_epoch(epoch)
    for number, shape in enumerate(_SHAPES) if ":" in head or _COMPACT.match(head) else ():
        if (found := shape.search(head)) is not None and (stamp := _stamp(found, number)) is not None:
            return stamp
    kernel = _KERNEL.match(head)  # seconds since that host was started
    return Stamp(kernel.group().strip("[] "), None, UNKNOWN_ZONE_NS) if kernel else None


def as_written(line: str) -> float | None:
    """Seconds by the clock of a line, whose year may be missing: they can be compared within one log of one year."""
    if (stamp := find_stamp(line)) is None:
        return None
    hits = ((hit, number) for number, shape in enumerate(_SHAPES) if (hit := shape.search(stamp.text)))
    found = next(hits, None)
    second = _taken_apart(*found)[2] if found else None
    return second.moment.replace(year=int(_LEAP_YEAR), tzinfo=UTC).timestamp() if second else None


def first_time(lines: Iterable[str]) -> int | None:
    """The first that is written whole, with its year, in so many lines."""
    stamps = (find_stamp(line) for line in islice(lines, _LOOKED_AT))
    return next((stamp.utc_ns for stamp in stamps if stamp and stamp.utc_ns is not None), None)


def first_written(lines: Iterable[str]) -> float | None:
    """The first clock in so many lines, as it is written."""
    return next((clock for line in islice(lines, _LOOKED_AT) if (clock := as_written(line)) is not None), None)


def _since_epoch(found: re.Match[str]) -> Stamp:
    fraction = found["more"] or found["fraction"] or ""
    nanoseconds = int(found["seconds"]) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    return Stamp(found.group()[found.start("seconds") - found.start() :], nanoseconds, int(10 ** (9 - len(fraction))))


def _stamp(found: re.Match[str], shape: int) -> Stamp | None:
    text, fraction, second = _taken_apart(found, shape)
    if second is None or second.since_epoch is None:
        return None if second is None else Stamp(text, None, UNKNOWN_ZONE_NS)
    nanoseconds = second.since_epoch * 1_000_000_000 + int(fraction.ljust(9, "0"))
    return Stamp(text, nanoseconds, 10 ** (9 - len(fraction)) if second.has_zone else UNKNOWN_ZONE_NS)


def _taken_apart(found: re.Match[str], shape: int) -> tuple[str, str, _Second | None]:
    """The whole of it, the digits behind the second, and the second."""
    text = found[0]
    part = _FRACTIONS[shape]
    fraction = (found[part] or "") if part else ""
    if not fraction:
        return text, "", _second(shape, text)
    start, end = found.span(part)
    begin = found.start()
    return text, fraction, _second(shape, f"{text[: start - begin]}0{text[end - begin :]}")


class _Second(NamedTuple):
    moment: datetime
    since_epoch: int | None
    """None where the year is not written."""
    has_zone: bool


@lru_cache(maxsize=256)
def _second(shape: int, text: str) -> _Second | None:
    """Most lines of a log share theirs with others. None for what is no date."""
    found = _SHAPES[shape].search(text)
    parts = {name: part for name, part in found.groupdict().items() if part} if found else {}
    year, month = parts.get("year", _LEAP_YEAR), parts["name"] if "name" in parts else parts["month"]
    full_year = int(year) + 2000 if len(year) == 2 else int(year)
    number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
    day, hour, minute, second = (int(parts[name]) for name in ("day", "hour", "minute", "second"))
    try:
        moment = datetime(full_year, number, day, hour, minute, second, tzinfo=_zone(parts.get("zone")))
    except ValueError:  # 2026-13-45
        return None
    return _Second(moment, int(moment.timestamp()) if "year" in parts else None, "zone" in parts)


def _zone(zone: str | None) -> timezone:
    if not zone or zone in ("Z", "UTC"):
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if zone[0] == "-" else offset)


def with_years(events: Sequence[Event]) -> list[Event]:
    """Lines that leave out the year (`E1115 02:06:27.4`) get that of the run's other lines, if these have only one."""
    known = [event.utc_ns for event in events if event.utc_ns is not None]
    ends = (min(known), max(known)) if known else ()
    years = {datetime.fromtimestamp(ns // 1_000_000_000, UTC).year for ns in ends}
    if len(years) != 1:
        return list(events)
    year = years.pop()
    return [_in_year(event, year) if event.time_text and event.utc_ns is None else event for event in events]


def _in_year(event: Event, year: int) -> Event:
    hits = ((hit, number) for number, shape in enumerate(_SHAPES) if (hit := shape.search(event.time_text)))
    first = next(hits, None)
    _, fraction, second = _taken_apart(*first) if first else ("", "", None)
    if second is None or (second.moment.month, second.moment.day) == (2, 29):
        return event
    moment = second.moment.replace(year=year)
    nanoseconds = int(moment.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    return replace(event, utc_ns=nanoseconds, uncertainty_ns=UNKNOWN_ZONE_NS)
