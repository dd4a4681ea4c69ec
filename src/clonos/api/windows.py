"""Windows, and how their rows are ranked."""

from __future__ import annotations

from datetime import timedelta

from clonos.columns.durations import parse_duration
from clonos.errors import BadDuration
from clonos.operators.windows.content import Ranking
from clonos.operators.windows.kinds import Fixed, Given, Session


def tumbling(size: str | timedelta, on: str | None = None) -> Fixed:
    """Windows of one size, side by side.

    Parameters
    ----------
    size
        Such as ``"5 seconds"``.
    on
        A timestamp or date column: windows in event time, which need ``with_watermark`` before.
        Without `on`, a row belongs to the window in which it arrives (processing time).

    Examples
    --------
    >>> tumbling("5 seconds")
    Fixed(size_ms=5000, slide_ms=5000, event_time=None)
    """
    size_ms = parse_duration(size)
    return Fixed(size_ms, size_ms, on)


def sliding(size: str | timedelta, slide: str | timedelta, on: str | None = None) -> Fixed:
    """Windows of one size, one beginning at each multiple of `slide`.

    Parameters
    ----------
    size, on
        See :func:`tumbling`.
    slide
        At most `size`: a row is in every window that has its time.

    Examples
    --------
    >>> sliding("10 seconds", "5 seconds", on="time")
    Fixed(size_ms=10000, slide_ms=5000, event_time='time')
    """
    size_ms, slide_ms = parse_duration(size), parse_duration(slide)
    if slide_ms > size_ms:
        raise BadDuration(
            f"windows of {size!r} every {slide!r} would leave out rows",
            remedy="give a slide that is not longer than the window",
        )
    return Fixed(size_ms, slide_ms, on)


def session(gap: str | timedelta, on: str | None = None) -> Session:
    """Windows of a key's rows, each at most `gap` after the one before, as in Spark.

    A window begins with its first row and ends `gap` after its last one.

    Examples
    --------
    >>> session("10 minutes", on="time")
    Session(gap_ms=600000, event_time='time')
    """
    return Session(parse_duration(gap), on)


def between(start: str, end: str) -> Given:
    """Windows that each row gives itself: from its column `start` up to before its column `end`.

    Examples
    --------
    >>> between("opens", "expires")
    Given(start='opens', end='expires')
    """
    return Given(start, end)


def asc(column: str) -> Ranking:
    """Rank by this column, the smallest first.

    Examples
    --------
    >>> asc("price")
    Ranking(column='price', is_descending=False)
    """
    return Ranking(column, is_descending=False)


def desc(column: str) -> Ranking:
    """Rank by this column, the largest first."""
    return Ranking(column, is_descending=True)
