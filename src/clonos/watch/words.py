"""Human-readable numbers, the same on the page and in terminals."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB")


def costs(by_operator: Mapping[str, float]) -> str:
    """The cost of calls.

    Examples
    --------
    >>> costs({"ask": 14.2, "find": 0.0})
    'cost: ask 14.20'
    >>> costs({"find": 0.0})
    ''
    """
    paid = [f"{name} {cost:,.2f}" for name, cost in by_operator.items() if cost > 0]
    return f"cost: {', '.join(paid)}" if paid else ""


def size(nbytes: float) -> str:
    """A number of bytes.

    Examples
    --------
    >>> size(0), size(999), size(41_500), size(2_000_000_000)
    ('0 B', '999 B', '41.5 kB', '2.0 GB')
    """
    unit = 0
    while nbytes >= 1000 and unit < len(_UNITS) - 1:
        nbytes, unit = nbytes / 1000, unit + 1
    return f"{nbytes:.1f} {_UNITS[unit]}" if unit else f"{nbytes:.0f} B"


def kept(nbytes: float, level: str) -> str:
    """The size of a state, and the level of its next layers unless that is the strongest.

    Examples
    --------
    >>> kept(41_500, ""), kept(41_500, "local")
    ('41.5 kB', '41.5 kB, local')
    """
    return f"{size(nbytes)}, {level}" if level else size(nbytes)


def count(number: float) -> str:
    """A number of rows.

    Examples
    --------
    >>> count(0), count(9_999), count(20_310), count(3_600_000)
    ('0', '9,999', '20.3 k', '3.60 M')
    """
    if number < 10_000:
        return f"{number:,.0f}"
    return f"{number / 1000:,.1f} k" if number < 1_000_000 else f"{number / 1_000_000:,.2f} M"


def moment(utc: str | None) -> str:
    """A time, as a clock on the wall here shows it; with its day, if that is not today.

    Examples
    --------
    >>> moment("1999-05-04T08:00:12.000+00:00")[:8], moment(None)
    ('1999-05-', '')
    """
    if utc is None:
        return ""
    local = datetime.fromisoformat(utc).astimezone()
    is_today = local.date() == datetime.now(local.tzinfo).date()
    return f"{local:%H:%M:%S}" if is_today else f"{local:%Y-%m-%d %H:%M}"


def duration(ms: float | None) -> str:
    """A duration.

    Examples
    --------
    >>> duration(None), duration(3.21), duration(81.4), duration(2_345), duration(3_725_000)
    ('', '3.2 ms', '81 ms', '2.3 s', '1 h 2 min')
    """
    if ms is None:
        return ""
    if ms < 1000:
        return f"{ms:.1f} ms" if ms < 10 else f"{ms:.0f} ms"
    seconds = ms / 1000
    if seconds < 120:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
