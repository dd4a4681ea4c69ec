"""Latency over time around kills, in one shape for all systems that are compared.

A timeline is a JSON file::

    {"system": "Clonos, sharing depth 1", "query": "3", "rate": 50000.0,
     "latency": [[12.25, 8.1], [12.26, 7.9], ...], "kills": [15.0, 18.2], "settings": {...}}

``latency``: a pair per delivery (a batch, or a row) of the partition whose task is killed, in
order: when it came out (s, on any clock), and how long after the creation of the event that its
oldest row had waited for (ms). Event n is created at ``began + n / rate``. ``kills``: when the
processes were killed (s, on the same clock). What is drawn and computed of it follows from
nothing else, by one rule for all systems.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np

from clonos.errors import WrongType
from clonos_bench.statistics import (
    HOLD_S,
    TYPICAL_S,
    USUAL,
    Series,
    normal_from,
    output_gap,
    percentile,
)

SUFFIX: Final = ".timeline.json"
BEGINS_S: Final = 2.0
"""A pause of the output that begins later than this after a kill is not due to it."""

_FEW: Final = 8
"""Deliveries that a stretch of time has to hold before anything usual is read off it."""


@dataclass(frozen=True)
class Effect:
    """What one kill did, in ms; infinite: not seen to end before the next kill."""

    gap_ms: float
    normal_ms: float


@dataclass(frozen=True)
class Timeline:
    """One run of one system.

    Examples
    --------
    >>> points = [(i / 100, 5.0) for i in range(1000) if not 500 < i < 520]
    >>> timeline = Timeline("one", "3", 100.0, points, [5.001])
    >>> [round(effect.gap_ms) for effect in timeline.effects()]
    [190]
    >>> timeline.usual_ms
    5.0
    """

    system: str
    query: str
    rate: float
    latency: Sequence[tuple[float, float]]
    kills: Sequence[float]
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def series(self) -> tuple[Series, Series]:
        """Moments (s) and latencies (ms)."""
        points = np.array(self.latency, np.float64).reshape(-1, 2)
        return points[:, 0], points[:, 1]

    def effects(self) -> list[Effect]:
        """Of every kill: the output's gap, and when latency was back within 10 % of the usual.

        The gap is the longest pause that begins before the kill or within :data:`BEGINS_S`, less
        the usual one: the median of the two seconds before, or of as long as eight deliveries
        take if that is more (systems that deliver a micro-batch now and then). Latency is back
        when it has been so for 0.25 s, or as long as three deliveries take.
        """
        return self._effects(percentile(self.quiet(), USUAL))

    @property
    def usual_ms(self) -> float:
        """The latency (95th percentile) that there is when nothing fails."""
        return percentile(self.quiet(), USUAL)

    def quiet(self) -> Series:
        """Latencies from each return to the next kill, and of half of the time before the first.

        To know when latency had returned takes a usual one: here that of the second half of the
        time before each kill.
        """
        halves = [(begin + end) / 2 for begin, end in self._stretches]
        usual_ms = percentile(self._within(halves), USUAL)
        returns = [
            kill + effect.normal_ms / 1000
            for kill, effect in zip(self.kills, self._effects(usual_ms), strict=True)
        ]
        return self._within([*halves[:1], *returns])

    @property
    def _stretches(self) -> list[tuple[float, float]]:
        """From the beginning to the first kill, from each kill to the next, and to the end."""
        times, _ = self.series
        if not len(times):
            return []
        return list(pairwise([float(times[0]), *self.kills, float(times[-1])]))

    def _within(self, begins: Sequence[float]) -> Series:
        """Latencies of each stretch from a moment in it on."""
        times, latencies = self.series
        chosen = np.zeros(len(times), bool)
        for begin, (_, end) in zip(begins, self._stretches, strict=False):
            chosen |= (times >= begin) & (times < end)
        return latencies[chosen]

    def _effects(self, usual_ms: float) -> list[Effect]:
        nexts = [*self.kills[1:], math.inf]
        kills = zip(self.kills, nexts, strict=False)
        return [self._effect(kill, after, usual_ms) for kill, after in kills]

    def _effect(self, kill_s: float, next_s: float, usual_ms: float) -> Effect:
        times, latencies = self.series
        pause_s = percentile(np.diff(times[times < kill_s])[-_FEW * 4 :], 50)
        pause_s = 0.0 if math.isnan(pause_s) else pause_s
        until_s = min(next_s, kill_s + BEGINS_S)
        found = output_gap(times, kill_s, until_s, usual_s=max(TYPICAL_S, _FEW * pause_s))
        if found is None:
            return Effect(math.inf, math.inf)
        gap, end_s = found
        last_s = min(next_s, float(times[-1]))
        hold_s = max(HOLD_S, 3 * pause_s)
        normal_s = normal_from(times, latencies, usual_ms, end_s, last_s, hold_s)
        return Effect(gap.gap_ms, (normal_s - kill_s) * 1000)

    def save(self, folder: Path, name: str) -> Path:
        """Write ``<folder>/<name>.timeline.json``."""
        path = folder / f"{name}{SUFFIX}"
        path.write_text(json.dumps(asdict(self)) + "\n", "utf-8")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Timeline:
        """Read what :meth:`save`, or another system's measurement, has written.

        Raises
        ------
        WrongType
            It is no timeline.
        """
        try:
            found = json.loads(Path(path).read_text("utf-8"))
            return cls(
                str(found["system"]),
                str(found["query"]),
                float(found["rate"]),
                [(float(at_s), float(late_ms)) for at_s, late_ms in found["latency"]],
                [float(at_s) for at_s in found["kills"]],
                dict(found.get("settings", {})),
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise WrongType(
                f"{path} is no timeline: {type(error).__name__}: {error}",
                remedy="its shape is described in clonos_bench.timelines",
            ) from error
