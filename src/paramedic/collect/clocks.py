"""Timestamps as logs write them. A zone or a year that is not written is not invented: the uncertainty says so."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone

_HOUR = 3_600_000_000_000
UNKNOWN_ZONE_NS = 14 * _HOUR
"""Local time without a zone may be this far from UTC; between lines of one host only the resolution counts."""

_ISO = re.compile(
    r"(?P<year>(?:19|20)\d\d)[-/](?P<month>\d\d)[-/](?P<day>\d\d)[T _](?P<clock>\d\d:\d\d:\d\d)"
    r"(?:[.,](?P<fraction>\d{1,9}))?\s?(?P<zone>Z|UTC|[+-]\d\d:?\d\d)?"
)
_GLOG = re.compile(
    r"\b[IWEFDV](?P<month>\d{1,2})(?P<day>\d\d) (?P<clock>\d\d:\d\d:\d\d)\.(?P<fraction>\d{1,9})\b"
)
_SYSLOG = re.compile(
    r"\b(?P<name>Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}(?P<day>\d{1,2}) (?P<clock>\d\d:\d\d:\d\d)\b"
)
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_SEARCH = 160  # a timestamp stands near the start of its line


@dataclass(frozen=True, slots=True)
class Stamp:
    text: str
    utc_ns: int | None
    uncertainty_ns: int


def find_stamp(line: str) -> Stamp | None:
    """The first timestamp near the start of a line; `utc_ns` is None when the year is not written."""
    head = line[:_SEARCH]
    if (found := _ISO.search(head)) is not None:
        return _stamp(found, int(found["year"]), int(found["month"]), found["zone"])
    if (found := _GLOG.search(head)) is not None:
        month = int(found["month"])
        return Stamp(found.group(), None, UNKNOWN_ZONE_NS) if 1 <= month <= 12 else None
    if (found := _SYSLOG.search(head)) is not None:
        return Stamp(found.group(), None, UNKNOWN_ZONE_NS)
    return None


def order_key(time_text: str) -> tuple[int, int, int, int] | None:
    """(month, day, seconds, ns) of any stamp: enough to order lines of one host where the year is not written."""
    for pattern in (_ISO, _GLOG, _SYSLOG):
        if (found := pattern.search(time_text)) is not None:
            parts = found.groupdict()
            month = _MONTHS.index(parts["name"]) + 1 if "name" in parts else int(parts["month"])
            hour, minute, second = map(int, parts["clock"].split(":"))
            fraction = int((parts.get("fraction") or "0").ljust(9, "0"))
            return month, int(parts["day"]), hour * 3600 + minute * 60 + second, fraction
    return None


def _stamp(found: re.Match[str], year: int, month: int, zone: str | None) -> Stamp | None:
    hour, minute, second = map(int, found["clock"].split(":"))
    fraction = found["fraction"] or ""
    try:
        moment = datetime(year, month, int(found["day"]), hour, minute, second, tzinfo=_zone(zone))
    except ValueError:  # 2026-13-45 is no date
        return None
    nanoseconds = int(moment.timestamp()) * 1_000_000_000 + int(fraction.ljust(9, "0"))
    resolution = int(10 ** (9 - len(fraction)))
    return Stamp(found.group().rstrip(), nanoseconds, resolution if zone else UNKNOWN_ZONE_NS)


def _zone(zone: str | None) -> timezone:
    if not zone or zone in ("Z", "UTC"):
        return UTC
    hours, minutes = int(zone[1:3]), int(zone[-2:])
    offset = timedelta(hours=hours, minutes=minutes)
    return timezone(-offset if zone[0] == "-" else offset)
