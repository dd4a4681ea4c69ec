"""The numbers behind the tables: percentiles, gaps, return to normal, paired ratios."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]

TYPICAL_S: Final = 2.0
"""How long before a kill the usual pause between outputs is observed."""
TOGETHER_S: Final = 0.001
"""Outputs that follow each other so closely were made durable together: they are one moment."""
BASELINE_S: Final = 1.0
"""How long before a kill the usual latency is observed."""
HOLD_S: Final = 0.25
"""Latency is back to normal if it stays there for so long."""
TOLERANCE: Final = 0.10
"""... within so much of the usual latency."""
USUAL: Final = 95
"""The percentile that stands for "the latency" of a stretch of time; the median would hide a
tail that has come back only in part, the maximum is one unlucky batch."""


def percentile(values: Sequence[float] | Series, q: float) -> float:
    """The `q`-th percentile, interpolated between finite values; NaN of nothing.

    Examples
    --------
    >>> percentile([1.0, 2.0, 3.0], 50), percentile([1.0, 2.0], 75)
    (2.0, 1.75)
    """
    array = np.asarray(values, float)
    if not len(array):
        return math.nan
    return float(np.percentile(array, q, method="linear" if np.isfinite(array).all() else "higher"))


def spread(values: Sequence[float]) -> str:
    """Median, lowest and highest, for a table.

    Examples
    --------
    >>> spread([1000.0, 3000.0, 2500.0])
    '2,500 [1,000, 3,000]'
    """
    middle, low, high = (percentile(values, q) for q in (50, 0, 100))
    return f"{middle:,.0f} [{low:,.0f}, {high:,.0f}]" if len(values) > 1 else f"{middle:,.0f}"


@dataclass(frozen=True)
class Summary:
    """A distribution in five numbers, in the unit of its values."""

    count: int
    p50: float
    p90: float
    p99: float
    max: float


def summarize(values: Sequence[float] | Series) -> Summary:
    """The usual percentiles.

    Examples
    --------
    >>> summarize([1.0, 2.0, 3.0])
    Summary(count=3, p50=2.0, p90=2.8, p99=2.98, max=3.0)
    """
    p50, p90, p99, top = (percentile(values, q) for q in (50, 90, 99, 100))
    return Summary(len(values), p50, p90, p99, top)


@dataclass(frozen=True)
class Gap:
    """A pause in the output and what is usual, in ms."""

    pause_ms: float
    usual_ms: float

    @property
    def gap_ms(self) -> float:
        """What the failure added: the pause less the usual one."""
        return max(0.0, self.pause_ms - self.usual_ms)


def output_gap(
    times: Series, kill_s: float, until_s: float, *, usual_s: float = TYPICAL_S
) -> tuple[Gap, float] | None:
    """The longest pause in one partition's output that a kill may have caused.

    Of all pauses between consecutive outputs that end after `kill_s` and begin before `until_s`
    (the recovery's end), the longest. "Usual" is the median pause of the `usual_s` before.

    Parameters
    ----------
    times
        When outputs were delivered (s), ascending. Within :data:`TOGETHER_S` they count as one.

    Returns
    -------
    gap, end
        The gap and when it ended (s); None if nothing was delivered after the kill.

    Examples
    --------
    >>> times = np.array([1.00, 1.01, 1.02, 1.03, 1.10, 1.11])
    >>> gap, end = output_gap(times, kill_s=1.035, until_s=1.09)
    >>> round(gap.pause_ms), round(gap.usual_ms), round(gap.gap_ms), end
    (70, 10, 60, 1.1)
    """
    moments = times[np.diff(times, prepend=-np.inf) > TOGETHER_S]
    starts, ends = moments[:-1], moments[1:]
    around = (ends > kill_s) & (starts < until_s)
    if not around.any():
        return None
    pauses = ends - starts
    before = pauses[(starts >= kill_s - usual_s) & (ends <= kill_s)]
    median_s = float(np.median(before)) if len(before) else 0.0
    longest = int(np.argmax(np.where(around, pauses, -1.0)))
    return Gap(float(pauses[longest]) * 1000, median_s * 1000), float(ends[longest])


def gap_before(times: Series, kill_s: float, next_s: float) -> float:
    """The gap that a kill caused before something else happened at `next_s`, in ms.

    Of a pause that is still open then, what has passed counts. See :func:`output_gap`; infinite if
    nothing was ever delivered before `next_s`.

    Examples
    --------
    >>> times = np.array([1.00, 1.01, 1.02, 1.03, 1.10, 1.11, 1.12, 1.42])
    >>> round(gap_before(times, kill_s=1.035, next_s=1.125))
    60
    """
    found = output_gap(np.append(times[times < next_s], next_s), kill_s, next_s)
    return math.inf if found is None else found[0].gap_ms


@dataclass(frozen=True)
class Normal:
    """Return to normal: usual latency, and how long after the kill it was there again (ms).

    ``after_ms`` is infinite if it was not seen to return.
    """

    usual_ms: float
    after_ms: float


def back_to_normal(
    times: Series,
    latencies_ms: Series,
    kill_s: float,
    gap_end_s: float,
    until_s: float,
    *,
    usual_s: float = BASELINE_S,
    hold_s: float = HOLD_S,
) -> Normal:
    """When the latency of one partition's output was what it had been.

    Usual is the :data:`USUAL`-th percentile of the latencies in the `usual_s` before the
    kill. Normal is the first output at or after `gap_end_s` from which on, for `hold_s`,
    the same percentile is at most :data:`TOLERANCE` above that. Outputs after `until_s` (the next
    kill) are not looked at.

    Examples
    --------
    >>> times = np.arange(0.0, 3.0, 0.01)
    >>> latencies = np.where((times > 1.5) & (times < 1.75), 80.0, 5.0)
    >>> normal = back_to_normal(times, latencies, 1.5, 1.55, 3.0)
    >>> normal.usual_ms, round(normal.after_ms)
    (5.0, 250)
    """
    before = (times >= kill_s - usual_s) & (times < kill_s)
    usual_ms = percentile(latencies_ms[before], USUAL)
    normal_s = normal_from(times, latencies_ms, usual_ms, gap_end_s, until_s, hold_s)
    return Normal(usual_ms, (normal_s - kill_s) * 1000)


def normal_from(
    times: Series,
    latencies_ms: Series,
    usual_ms: float,
    begin_s: float,
    end_s: float,
    hold_s: float,
) -> float:
    """The first output between two moments from which on latency is usual for `hold_s` (or inf)."""
    limit_ms = usual_ms * (1 + TOLERANCE)
    first = int(np.searchsorted(times, begin_s))
    last = int(np.searchsorted(times, end_s - hold_s, "right"))
    for i in first + np.flatnonzero(latencies_ms[first:last] <= limit_ms):
        held = int(np.searchsorted(times, times[i] + hold_s, "right"))
        if percentile(latencies_ms[i:held], USUAL) <= limit_ms:
            return float(times[i])
    return math.inf


@dataclass(frozen=True)
class Interval:
    """An estimate and its confidence interval."""

    value: float
    low: float
    high: float

    def percent_more(self) -> Interval:
        """Of a ratio: by how many percent it is larger than 1.

        Examples
        --------
        >>> Interval(1.5, 1.0, 2.0).percent_more()
        Interval(value=50.0, low=0.0, high=100.0)
        """
        return Interval(*(100 * (x - 1) for x in (self.value, self.low, self.high)))


def paired_ratio(pairs: Sequence[tuple[float, float]]) -> Interval:
    """How many times larger the first of each pair is: geometric mean, 95 % interval.

    What changes slowly on the machine cancels out within a pair. The interval is Student's, of the
    logarithms; of fewer than two pairs it is unknown.

    Examples
    --------
    >>> paired_ratio([(2.0, 1.0), (4.0, 2.0)])
    Interval(value=2.0, low=2.0, high=2.0)
    """
    return mean_ratio([pairs])


def mean_ratio(groups: Sequence[Sequence[tuple[float, float]]]) -> Interval:
    """:func:`paired_ratio` over several groups of pairs, each of which counts as much.

    The groups (queries, say) are those that were chosen: the interval tells how exactly their mean
    is known, not what other groups would give.
    """
    logs = [np.log(np.array([a / b for a, b in pairs], float)) for pairs in groups if pairs]
    if not logs:
        return Interval(math.nan, math.nan, math.nan)
    value = float(np.mean([each.mean() for each in logs]))
    freedom = min(len(each) for each in logs) - 1
    if freedom < 1:
        return Interval(round(math.exp(value), 12), math.nan, math.nan)
    squared = sum(float(each.var(ddof=1)) / len(each) for each in logs)
    freedom = sum(len(each) - 1 for each in logs)
    reach = _student(freedom) * math.sqrt(squared) / len(logs)
    return Interval(*(round(math.exp(x), 12) for x in (value, value - reach, value + reach)))


def mean(values: Sequence[float]) -> Interval:
    """Arithmetic mean, Student's 95 % interval; of fewer than two values that is unknown.

    Examples
    --------
    >>> mean([2.0, 2.0, 2.0])
    Interval(value=2.0, low=2.0, high=2.0)
    """
    each = np.array(values, float)
    value = float(each.mean())
    if len(each) < 2:
        return Interval(value, math.nan, math.nan)
    reach = _student(len(each) - 1) * float(each.std(ddof=1)) / math.sqrt(len(each))
    return Interval(value, value - reach, value + reach)


def _student(freedom: int) -> float:
    """The 97.5th percentile of Student's t, by a million draws (within 1 % from 2 on)."""
    draws = np.random.default_rng(0).standard_t(freedom, 1_000_000)
    return float(np.percentile(draws, 97.5))
