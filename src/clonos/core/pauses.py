"""Pauses between attempts."""

from __future__ import annotations

from typing import Final

_DOUBLINGS_MAX: Final = 60
"""After so many any pause is beyond its limit; after a thousand it is beyond what a float has."""


def doubled(first: float, times: int, most: float) -> float:
    """A pause that was doubled so many times, and is at most `most`.

    Examples
    --------
    >>> [doubled(0.5, times, 10.0) for times in (0, 1, 4, 5, 1100)]
    [0.5, 1.0, 8.0, 10.0, 10.0]
    """
    return min(first * 2.0 ** min(times, _DOUBLINGS_MAX), most)
