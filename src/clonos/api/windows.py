"""Windows."""

from __future__ import annotations

from datetime import timedelta
from typing import NamedTuple

from clonos.api.durations import parse_duration


class Tumbling(NamedTuple):
    """Windows of one size, side by side; made by :func:`tumbling`."""

    size_ms: int
    event_time: str | None


def tumbling(size: str | timedelta, on: str | None = None) -> Tumbling:
    """Windows of one size, side by side.

    Parameters
    ----------
    size
        Such as ``"5 seconds"``.
    on
        A timestamp or date column: windows in event time, which need ``with_watermark`` before.
        Without it a row belongs to the window in which it arrives.

    Examples
    --------
    >>> tumbling("5 seconds")
    Tumbling(size_ms=5000, event_time=None)
    """
    return Tumbling(parse_duration(size), on)
