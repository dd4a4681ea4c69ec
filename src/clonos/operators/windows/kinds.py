"""The kinds of windows: which rows they contain, and when they are over.

All times are in ms. A window is over when the watermark reaches its last millisecond; a session,
one millisecond later, because a row exactly at its end still extends it (as in Spark and Flink).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from clonos.state.pieces import END, START

Int64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

FOR_EVER = 2**61
"""Later than any time."""


class Due(NamedTuple):
    """Pieces of windows that are complete.

    ``pieces``: their numbers, each piece once for each of its windows; ``starts``, ``ends``: of
    these windows.
    """

    pieces: Int64
    starts: Int64
    ends: Int64


class Fixed(NamedTuple):
    """Windows of one size that begin every `slide_ms`; tumbling if that is the size.

    A piece covers a *pane*: the time between two neighbouring window bounds.
    """

    size_ms: int
    slide_ms: int
    event_time: str | None

    @property
    def is_tumbling(self) -> bool:
        """Every row is in one window."""
        return self.size_ms == self.slide_ms

    @property
    def time(self) -> str:
        """The column of pieces in whose order they are due."""
        return START

    def intervals(self, times: Int64) -> tuple[Int64, Int64]:
        """For each row, the start of its pane, and the end of its last window."""
        pane = math.gcd(self.size_ms, self.slide_ms)
        return times // pane * pane, times // self.slide_ms * self.slide_ms + self.size_ms

    def due(self, starts: Int64, ends: Int64, mark: int, done: int) -> Due:
        """The windows that are over at `mark` and were not at `done`."""
        pieces, window_starts = [], []
        for back in range(-(-self.size_ms // self.slide_ms)):
            first = starts // self.slide_ms * self.slide_ms - back * self.slide_ms
            last = first + self.size_ms - 1
            found = np.flatnonzero((last >= starts) & (last <= mark) & (last > done))
            pieces.append(found)
            window_starts.append(first[found])
        chosen, begin = np.concatenate(pieces), np.concatenate(window_starts)
        by_window = np.lexsort((chosen, begin))
        begin = begin[by_window]
        return Due(chosen[by_window], begin, begin + self.size_ms)

    def reach(self, mark: int) -> tuple[int, int]:
        """Up to which time pieces may belong to windows that are over at `mark`, and up to which
        they belong to no later ones."""
        over = ((mark + 1 - self.size_ms) // self.slide_ms + 1) * self.slide_ms - 1
        return over if self.is_tumbling else mark, over

    def is_over(self, ends: Int64, mark: int) -> Mask:
        """Whether windows with these ends are over at `mark`."""
        return ends - 1 <= mark

    def next_end(self, earliest: int, done: int) -> int:
        """The time plus 1 at which the next window is over, given the earliest time of a piece."""
        # The first window that contains the pane and is not over at `done`.
        before = max(earliest - self.size_ms, done - self.size_ms + 1)
        return (before // self.slide_ms + 1) * self.slide_ms + self.size_ms


class Session(NamedTuple):
    """Windows of a key's rows, each at most `gap_ms` after the one before."""

    gap_ms: int
    event_time: str | None

    @property
    def is_tumbling(self) -> bool:
        """See :attr:`Fixed.is_tumbling`."""
        return True

    @property
    def time(self) -> str:
        """See :attr:`Fixed.time`."""
        return END

    def intervals(self, times: Int64) -> tuple[Int64, Int64]:
        """The session that each row makes alone."""
        return times, times + self.gap_ms

    def due(self, starts: Int64, ends: Int64, mark: int, done: int) -> Due:
        """See :meth:`Fixed.due`."""
        del done
        return _due(starts, ends, self.is_over(ends, mark))

    def is_over(self, ends: Int64, mark: int) -> Mask:
        """See :meth:`Fixed.is_over`."""
        return ends <= mark

    def reach(self, mark: int) -> tuple[int, int]:
        """See :meth:`Fixed.reach`."""
        return mark, mark

    def next_end(self, earliest: int, done: int) -> int:
        """See :meth:`Fixed.next_end`; later rows may extend a session."""
        del done
        return earliest + 1


class Given(NamedTuple):
    """Windows given by two columns of the rows: start (included) and end (excluded)."""

    start: str
    end: str

    @property
    def is_tumbling(self) -> bool:
        """See :attr:`Fixed.is_tumbling`."""
        return True

    @property
    def time(self) -> str:
        """See :attr:`Fixed.time`."""
        return END

    def due(self, starts: Int64, ends: Int64, mark: int, done: int) -> Due:
        """See :meth:`Fixed.due`."""
        del done
        return _due(starts, ends, self.is_over(ends, mark))

    def is_over(self, ends: Int64, mark: int) -> Mask:
        """See :meth:`Fixed.is_over`."""
        return ends - 1 <= mark

    def reach(self, mark: int) -> tuple[int, int]:
        """See :meth:`Fixed.reach`."""
        return mark + 1, mark + 1

    def next_end(self, earliest: int, done: int) -> int:
        """See :meth:`Fixed.next_end`."""
        del done
        return earliest


Window = Fixed | Session | Given


def is_event_time(window: Window) -> bool:
    """Whether the window needs watermarks."""
    return isinstance(window, Given) or window.event_time is not None


def sessions(codes: Int64, starts: Int64, ends: Int64) -> Int64:
    """Number intervals by session: intervals of one code that overlap or touch form a session.

    Examples
    --------
    >>> sessions(np.array([0, 1, 0, 0]), np.array([1, 2, 9, 3]), np.array([4, 5, 12, 6])).tolist()
    [0, 2, 1, 0]
    """
    low = int(starts.min(initial=0))
    span = int(ends.max(initial=0)) - low + 1
    if int(codes.max(initial=0) + 1) * span >= 2**62:  # too far apart to be shifted
        _, ranks = np.unique(np.concatenate([starts, ends]), return_inverse=True)
        starts, ends = ranks[: len(codes)], ranks[len(codes) :]  # only their order counts
        low, span = 0, len(ranks)
    # Shift codes apart, so that intervals of one code never touch those of the next.
    shift = codes * span - low
    starts, ends = starts + shift, ends + shift
    by_start = np.argsort(starts)
    reach = np.maximum.accumulate(ends[by_start])
    is_new = np.ones(len(codes), bool)
    is_new[1:] = starts[by_start][1:] > reach[:-1]
    numbered = np.empty(len(codes), np.int64)
    numbered[by_start] = np.cumsum(is_new) - 1
    return numbered


def _due(starts: Int64, ends: Int64, is_over: Mask) -> Due:
    pieces = np.flatnonzero(is_over)
    pieces = pieces[np.lexsort((pieces, ends[pieces], starts[pieces]))]
    return Due(pieces, starts[pieces], ends[pieces])
