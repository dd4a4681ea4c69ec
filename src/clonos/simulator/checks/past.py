"""Invariants of the history that a job keeps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from clonos.core.history import History, Point, decode_segment, joined
from clonos.core.messages import Run
from clonos.errors import UnreadableHistory, UnreadableLayer
from clonos.simulator.checks.violations import Violation, require
from clonos.storage.layers import LayerStore, get_layers


@dataclass(frozen=True)
class KeptPast:
    """The history of a house-keeper when a group of records was closed."""

    points: tuple[Point, ...]
    segments: Mapping[int, str]
    unstored: Mapping[int, tuple[Run, ...]]
    going: int
    paths: frozenset[str]

    @classmethod
    def of(cls, history: History) -> KeptPast:
        """The history as it is now."""
        unstored = {number: tuple(runs) for number, runs in history.closed.items()}
        if history.points:
            unstored[history.points[-1].number] = tuple(history.open)
        segments = {number: segment.path for number, segment in history.segments.items()}
        paths = frozenset(history.paths)
        return cls(tuple(history.points), segments, unstored, history.going, paths)

    def needed_from(self, number: int) -> set[str]:
        """The files that a replay from a point needs."""
        (point,) = (p for p in self.points if p.number == number)
        behind = {path for begin, path in self.segments.items() if begin >= number}
        return behind | {path for path, _ in point.paths}


def past_is_there(store: LayerStore, past: KeptPast) -> None:
    """The layers of every point, and every segment, can be read."""
    try:
        for point in past.points:
            for chain in point.layers.values():
                get_layers(store, chain)
        for path in past.segments.values():
            store.get(path)
    except UnreadableLayer as error:
        raise Violation("kept past", f"the journal refers to a missing file: {error}") from error


def past_is_true(
    store: LayerStore,
    past: KeptPast,
    held: Iterable[Run],
    truth: Mapping[int, Sequence[bytes]],
    first: Mapping[int, int],
) -> None:
    """From every point on, all log entries are kept, up to those that the house-keeper holds.
    Points before the positions `first` belong to a past that a rewind has left: no log leads from
    them to the present."""
    points = [p for p in past.points if all(p.positions[task] >= first[task] for task in first)]
    parts = [
        decode_segment(store.get(past.segments[point.number]))
        if point.number in past.segments
        else past.unstored[point.number]
        for point in points
    ]
    ends = dict(points[0].positions) if points else {}
    try:
        runs = joined(points[0], [*parts, held]) if points else []
    except UnreadableHistory as error:
        raise Violation("kept past", error.what) from error
    for run in runs:
        for position, record in enumerate(run.records, run.start):
            is_same = truth[run.task][position - 1 : position] == [record]
            require(is_same, "kept past", f"entry {position} of task {run.task} is another one")
        ends[run.task] = max(ends[run.task], run.end)
    for point in points:
        for task, position in point.positions.items():
            require(
                ends[task] >= position,
                "kept past",
                f"of task {task} the entries {ends[task] + 1} to {position} are missing",
            )


def past_stays(paths: Iterable[str], past: KeptPast) -> None:
    """No file is deleted that a point needs."""
    for path in paths:
        require(path not in past.paths, "kept past", f"{path} is deleted, and a point needs it")


def pinned_stays(stored: Iterable[str], needed: Iterable[str], number: int) -> None:
    """No file is deleted while somebody reads it."""
    gone = set(needed) - set(stored)
    require(not gone, "kept past", f"point {number} is being read, and lacks {sorted(gone)[:3]}")
