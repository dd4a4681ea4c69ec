"""Durations as in Spark: ``"5 seconds"``."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

from clonos.errors import BadDuration

_MS = {
    "ms": 1,
    "millisecond": 1,
    "s": 1000,
    "sec": 1000,
    "second": 1000,
    "m": 60_000,
    "min": 60_000,
    "minute": 60_000,
    "h": 3_600_000,
    "hour": 3_600_000,
    "d": 86_400_000,
    "day": 86_400_000,
}
_TEXT = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+?)(s?)\s*", re.IGNORECASE)


def parse_duration(duration: str | timedelta, *, minimum_ms: int = 1) -> int:
    """A duration in ms.

    Raises
    ------
    BadDuration
        It cannot be understood, is shorter than `minimum_ms`, or has parts of a millisecond, which
        is the smallest unit.

    Examples
    --------
    >>> parse_duration("1.5 seconds"), parse_duration("200ms")
    (1500, 200)
    """
    ms: Decimal | None = None
    if isinstance(duration, timedelta):
        ms = Decimal(duration // timedelta(microseconds=1)) / 1000
    elif match := _TEXT.fullmatch(str(duration)):
        number, unit, plural = match.groups()
        scale = _MS.get((unit + plural).lower(), _MS.get(unit.lower()))
        if scale is not None:
            ms = Decimal(number) * scale
    if ms is not None and ms != ms.to_integral_value():
        raise BadDuration(
            f"{duration!r} has parts of a millisecond",
            remedy="give whole milliseconds, which are the smallest unit",
        )
    if ms is None or ms < minimum_ms:
        raise BadDuration(
            f"{duration!r} is not a duration of at least {minimum_ms} ms",
            remedy='write it like "5 seconds", "200 ms", "1 minute"',
        )
    return int(ms)
