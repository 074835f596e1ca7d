"""Timestamps as logs write them. A zone that is not written is not invented: the uncertainty says so."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple

from paramedic.model import Event

_HOUR = 3_600_000_000_000
UNKNOWN_ZONE_NS = 14 * _HOUR
"""Local time without a zone may be this far from UTC; between lines of one host only the resolution counts."""

_CLOCK = r"(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"
_ISO = re.compile(
    r"(?<![0-9])(?P<year>(?:19|20)[0-9]{2})[-/](?P<month>[0-9]{2})[-/](?P<day>[0-9]{2})[T _]"
    + _CLOCK
    + r"(?:[.,](?P<fraction>[0-9]{1,9}))?(?:\s?(?P<zone>Z\b|UTC\b|[+-][0-9]{2}:?[0-9]{2}\b))?"
)
_GLOG = re.compile(r"\b[IWEFDV](?P<month>[0-9]{1,2})(?P<day>[0-9]{2}) " + _CLOCK + r"\.(?P<fraction>[0-9]{1,9})\b")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SYSLOG = re.compile(rf"\b(?P<name>{'|'.join(_MONTHS)})\s{{1,2}}(?P<day>[0-9]{{1,2}}) {_CLOCK}\b")
_SYSLOG_YEAR = re.compile(
    rf"\b(?P<name>{'|'.join(_MONTHS)})\s{{1,2}}(?P<day>[0-9]{{1,2}}) {_CLOCK} (?P<year>20[0-9]{{2}})\b"
)
_SLASHES = re.compile(
    r"(?<![0-9/])(?P<month>[0-9]{2})/(?P<day>[0-9]{2})/(?P<year>(?:20)?[0-9]{2}) "
    + _CLOCK
    + r"(?:[.,](?P<fraction>[0-9]{1,9}))?(?![0-9])"
)
_APACHE = re.compile(
    rf"\b(?P<day>[0-9]{{2}})/(?P<name>{'|'.join(_MONTHS)})/(?P<year>20[0-9]{{2}})[: ]{_CLOCK}"
    r"(?: (?P<zone>[+-][0-9]{4}))?"
)
_COMPACT = re.compile(
    r"(?<![0-9])(?P<year>20[0-9]{2})(?P<month>[0-9]{2})(?P<day>[0-9]{2})[T_ -]"
    r"(?P<hour>[0-9]{2}):?(?P<minute>[0-9]{2}):?(?P<second>[0-9]{2})"
    r"(?:[.,](?P<fraction>[0-9]{1,9}))?(?P<zone>Z)?(?![0-9])"
)
_SHAPES = (_ISO, _GLOG, _SYSLOG_YEAR, _SYSLOG, _SLASHES, _APACHE, _COMPACT)
_EPOCH = re.compile(
    r"(?:^|^\[|^[IWEF]0000 00:00:|\"(?:ts|time|timestamp|asctime|created)\": ?\"?)"
    r"(?P<seconds>1[0-9]{9})(?:(?P<more>[0-9]{9}|[0-9]{6}|[0-9]{3})|[.,](?P<fraction>[0-9]{1,9}))?(?![0-9.])"
)
_BEFORE_EPOCH = ("1", "[", "I", "W", "E", "F", "{")
_KERNEL = re.compile(r"^(?:<[0-9]{1,3}>)?\[ {0,6}[0-9]{1,8}\.[0-9]{6}\](?= )")
_SEARCH = 160  # a timestamp stands near the start of its line
_LEAP_YEAR = "2000"


class Stamp(NamedTuple):
    text: str
    utc_ns: int | None
    uncertainty_ns: int


def find_stamp(line: str) -> Stamp | None:
    """The first timestamp near the start of a line; `utc_ns` is None when the year is not written.

    `05/12/24` is rich's, month first.
    """
    head = line[:_SEARCH]
    if line.startswith('{"log":"'):  # Docker writes the time behind the line
        head = line[max(line.rfind('"time":"'), 0) :][:_SEARCH]
    if head[:1] in _BEFORE_EPOCH and (epoch := _EPOCH.search(head)) is not None:
        return _since_epoch(epoch)
    for pattern in _SHAPES if ":" in head or _COMPACT.match(head) else ():
        if (found := pattern.search(head)) is not None and (stamp := _stamp(found)) is not None:
            return stamp
    kernel = _KERNEL.match(head)  # seconds since that host was started
    return Stamp(kernel.group().strip("[] "), None, UNKNOWN_ZONE_NS) if kernel else None


def _since_epoch(found: re.Match[str]) -> Stamp:
    fraction = found["more"] or found["fraction"] or ""
    nanoseconds = int(found["seconds"]) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    return Stamp(found.group()[found.start("seconds") - found.start() :], nanoseconds, int(10 ** (9 - len(fraction))))


def _stamp(found: re.Match[str]) -> Stamp | None:
    parts = found.groupdict()
    moment = _moment(parts)
    if moment is None or "year" not in parts:
        return None if moment is None else Stamp(found.group(), None, UNKNOWN_ZONE_NS)
    fraction = parts.get("fraction") or ""
    nanoseconds = int(moment.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    resolution = int(10 ** (9 - len(fraction)))
    return Stamp(found.group(), nanoseconds, resolution if parts.get("zone") else UNKNOWN_ZONE_NS)


def _moment(parts: Mapping[str, str]) -> datetime | None:
    month = parts["name"] if "name" in parts else parts["month"]
    date = parts.get("year", _LEAP_YEAR), month, parts["day"]
    return _second(date, (parts["hour"], parts["minute"], parts["second"]), parts.get("zone"))


@lru_cache(maxsize=256)
def _second(date: tuple[str, str, str], clock: tuple[str, str, str], zone: str | None) -> datetime | None:
    """Most lines of a log share theirs with others."""
    year, month, day = date
    full_year = int(year) + 2000 if len(year) == 2 else int(year)
    number = _MONTHS.index(month) + 1 if month in _MONTHS else int(month)
    try:
        hour, minute, second = map(int, clock)
        return datetime(full_year, number, int(day), hour, minute, second, tzinfo=_zone(zone))
    except ValueError:  # 2026-13-45 is no date
        return None


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
    found = next((hit for pattern in _SHAPES if (hit := pattern.search(event.time_text))), None)
    moment = _moment(found.groupdict()) if found else None
    if found is None or moment is None or (moment.month, moment.day) == (2, 29):
        return event
    fraction = (found.groupdict().get("fraction") or "").ljust(9, "0")
    nanoseconds = int(moment.replace(year=year).timestamp()) * 1_000_000_000 + int(fraction)
    return replace(event, utc_ns=nanoseconds, uncertainty_ns=UNKNOWN_ZONE_NS)
