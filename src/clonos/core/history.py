"""The past that a job keeps: floors that stay, and the log entries between them.

No recovery needs what lies below a floor, but looking back does. With a :class:`Keep`, a floor
becomes a *point* every so often. Its layers stay, and the log entries that floors have passed since
are stored in *segments*, one from each point to the next. A point, the segments after it and the
house-keeper's own logs are enough to replay everything since.

The history is part of the house-keeper's state. Every change is a record of its journal, and
:meth:`History.take` applies the record, whether it has just been written or is read back. So a
point is as durable as the floor that it is made of, and what is in no segment yet is in the
journal.

No file is deleted while it is read. A reader first *pins* a point, with a file beside the segments,
and then checks in the journal that the point is there and not *going*. The driver first journals
that points are going, then looks for pins, and deletes only points without one. So at least one of
the two sees the other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import msgpack

from clonos.core.levels import LayerRef
from clonos.core.messages import Run
from clonos.core.plan import Incarnation
from clonos.errors import UnreadableHistory

OPEN_BYTES_MAX: Final = 16 << 20
"""How much of the driver's memory log entries may take until their segment is stored; above that,
the next point comes early."""
FOLDER: Final = "history"
"""The folder of segments and pins, beside the layers."""
RECORDS: Final = ("point", "kept", "archived", "going", "gone")
"""Kinds of records in the journal."""

_SEGMENT: Final = re.compile(r"history/\.?(\d{12})-(\d+)\.log(?:\.[0-9a-f]+\.tmp)?")
_PIN: Final = re.compile(r"history/\.?pin-(\d{12})-(\d+)-[0-9a-z]+(?:\.[0-9a-f]+\.tmp)?")

Chains = Mapping[int, tuple[LayerRef, ...]]


@dataclass(frozen=True, slots=True)
class Keep:
    """How much of the past a job keeps.

    ``ms``: how far back one can go, unless that takes more than ``nbytes`` (None: no limit), in
    segments and in layers that only the past needs. ``every_ms``: time between points.
    """

    ms: int
    nbytes: int | None = None
    every_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class Point:
    """A floor that is kept. ``at_ms``: when it was the newest, by the driver's wall clock."""

    number: int
    at_ms: int
    epoch: int
    positions: Mapping[int, int]
    layers: Chains
    needs: Mapping[int, int]

    @property
    def paths(self) -> Iterator[tuple[str, int]]:
        """Its layers: path and bytes."""
        return ((ref.path, ref.nbytes) for chain in self.layers.values() for ref in chain)


@dataclass(frozen=True, slots=True)
class Segment:
    """Where the log entries from a point to the next are stored."""

    path: str
    nbytes: int


class History:
    """What is kept of a job's past.

    Parameters
    ----------
    keep
        None: keep nothing, and delete what an earlier run of the job has kept.

    Attributes
    ----------
    points
        Oldest first.
    segments
        Those that are stored, by the number of the point where they begin.
    closed
        By the same number: log entries whose segment is not stored yet.
    open
        Log entries after the newest point that floors have passed.
    going
        No reader may begin at a point up to this number.
    kept_bytes
        The size of the history, without the layers of the floors, when last computed.

    Examples
    --------
    >>> history = History(Keep(ms=1000, every_ms=100))
    >>> for at_ms in (0, 600, 1200, 1800):
    ...     record = history.next_point(at_ms, 0, {0: at_ms}, {0: ()}, {})
    ...     history.take(*record)
    ...     history.passed(Run(0, Incarnation(1, 0), at_ms + 1, (b"",) * 600), at_ms + 600)
    >>> [point.number for point in history.points], sorted(history.closed)
    ([1, 2, 3, 4], [1, 2, 3])
    >>> history.too_old(1800, {}), history.too_old(2300, {})
    (1, 2)
    """

    def __init__(self, keep: Keep | None = None) -> None:
        self.keep = keep
        self.points: list[Point] = []
        self.segments: dict[int, Segment] = {}
        self.closed: dict[int, list[Run]] = {}
        self.open: list[Run] = []
        self.going = self.kept_bytes = 0
        self._open_bytes = 0
        self._last = 0  # number of the newest point ever
        self._takes = {kind: getattr(self, f"_take_{kind}") for kind in RECORDS}

    # --- what happens ---------------------------------------------------------------------------

    def passed(self, run: Run, position: int) -> None:
        """The floor of a task has moved to `position`; `run` is a part of the task's log."""
        records = run.records[: max(position - run.start + 1, 0)]
        if records:
            self._keep(Run(run.task, run.incarnation, run.start, records))

    def _keep(self, run: Run) -> None:
        self.open.append(run)
        self._open_bytes += sum(map(len, run.records))

    def is_due(self, now_ms: int) -> bool:
        """Whether the newest floor should become a point. The clock may have been set back."""
        if self.keep is None or not self.points:
            return self.keep is not None
        is_time = abs(now_ms - self.points[-1].at_ms) >= self.keep.every_ms
        return is_time or self._open_bytes >= OPEN_BYTES_MAX

    def too_old(self, now_ms: int, layers: Chains) -> int:
        """Points up to this number may go (0: none). The newest always stays, because its segment
        is still growing. `layers`: those of the floors."""
        if self.keep is None or not self.points:
            return self._last if self.points else 0
        limit, sizes = self.keep.nbytes, self.sizes(layers)
        self.kept_bytes = sum(sizes.values())
        begin_ms, nbytes = now_ms - self.keep.ms, sizes[self.points[-1].number]
        for after, point in pairwise(reversed(self.points)):
            nbytes += sizes[point.number]
            if after.at_ms <= begin_ms or (limit is not None and nbytes > limit):
                return point.number
        return 0

    def begin_behind(self, before: History) -> None:
        """The job has another plan: nothing of its past is kept, and no number is used twice."""
        if before._last:
            self._take_gone(before._last)

    # --- records --------------------------------------------------------------------------------

    def next_point(
        self,
        at_ms: int,
        epoch: int,
        positions: Mapping[int, int],
        layers: Chains,
        needs: Mapping[int, int],
    ) -> tuple[Any, ...]:
        """The record that makes a floor a point."""
        point = Point(self._last + 1, at_ms, epoch, positions, layers, needs)
        return _point_record(point)

    def take(self, kind: str, *values: Any) -> None:
        """Apply a record."""
        self._takes[kind](*values)

    def _take_point(self, number: int, at_ms: int, epoch: int, *rest: Any) -> None:
        positions, refs, needs = rest
        layers = {task: tuple(map(LayerRef.of, chain)) for task, chain in refs.items()}
        if self.points and self.points[-1].number not in self.segments:
            self.closed[self.points[-1].number] = self.open
        self.open, self._open_bytes, self._last = [], 0, number
        self.points.append(Point(number, at_ms, epoch, positions, layers, needs))

    def _take_kept(self, task: int, term: int, n: int, start: int, records: list[bytes]) -> None:
        self._keep(Run(task, Incarnation(term, n), start, tuple(records)))

    def _take_archived(self, number: int, path: str, nbytes: int) -> None:
        self.closed.pop(number, None)
        if any(point.number == number for point in self.points):
            self.segments[number] = Segment(path, nbytes)

    def _take_going(self, number: int) -> None:
        self.going = number

    def _take_gone(self, number: int) -> None:
        self.points = [point for point in self.points if point.number > number]
        self._last = max(self._last, number)
        for of_point in (self.segments, self.closed):
            for gone in [n for n in of_point if n <= number]:
                del of_point[gone]
        if not self.points:
            self.open, self._open_bytes = [], 0

    def snapshot(self) -> Iterator[tuple[Any, ...]]:
        """Records that replace all records so far."""
        for point in self.points:
            yield _point_record(point)
            if segment := self.segments.get(point.number):
                yield "archived", point.number, segment.path, segment.nbytes
            for run in self._entries(point.number):
                yield "kept", run.task, *run.incarnation, run.start, run.records
        if self._last:
            yield "gone", self.points[0].number - 1 if self.points else self._last
        if self.going:
            yield "going", self.going

    def _entries(self, number: int) -> list[Run]:
        """The log entries after a point that are in no segment yet."""
        is_newest = self.points[-1].number == number
        return self.open if is_newest else self.closed.get(number, [])

    # --- what there is --------------------------------------------------------------------------

    @property
    def paths(self) -> set[str]:
        """All files that must stay in the store."""
        found = {path for point in self.points for path, _ in point.paths}
        return found | {segment.path for segment in self.segments.values()}

    def sizes(self, layers: Chains) -> dict[int, int]:
        """How many bytes each point frees, by its number, if those before it are already gone.

        `layers`: those of the floors, which stay.
        """
        needed = {ref.path for chain in layers.values() for ref in chain}
        found = {}
        for point in reversed(self.points):
            new = {path: size for path, size in point.paths if path not in needed}
            needed |= new.keys()
            segment = self.segments.get(point.number)
            found[point.number] = sum(new.values()) + (segment.nbytes if segment else 0)
        return found

    def newest_before(self, at_ms: int) -> Point | None:
        """The newest point at or before a time that is not going."""
        found = [p for p in self.points if p.number > self.going and p.at_ms <= at_ms]
        return found[-1] if found else None

    def check(self) -> None:
        """Assertions over the whole state."""
        numbers = [point.number for point in self.points]
        assert numbers == sorted(set(numbers))
        assert not numbers or self._last == numbers[-1]
        between = set(numbers[:-1])
        assert self.segments.keys() | self.closed.keys() == between
        assert not self.segments.keys() & self.closed.keys()
        assert numbers or not self.open


def _point_record(point: Point) -> tuple[Any, ...]:
    refs = {task: [ref.named for ref in chain] for task, chain in point.layers.items()}
    head = "point", point.number, point.at_ms, point.epoch
    return (*head, dict(point.positions), refs, dict(point.needs))


# --- files ----------------------------------------------------------------------------------------

_VERSION: Final = 1


def segment_path(number: int, term: int) -> str:
    """Where a driver, in its term, stores the segment that begins at a point."""
    return f"{FOLDER}/{number:012d}-{term}.log"


def encode_segment(runs: Iterable[Run]) -> bytes:
    """Log entries as bytes.

    Examples
    --------
    >>> runs = [Run(3, Incarnation(1, 2), 7, (b"a", b"b"))]
    >>> decode_segment(encode_segment(runs)) == runs
    True
    """
    flat = [[run.task, *run.incarnation, run.start, run.records] for run in runs]
    packed: bytes = msgpack.packb([_VERSION, flat])
    return packed


def decode_segment(content: bytes, where: str = "") -> list[Run]:
    """Inverse of :func:`encode_segment`.

    Raises
    ------
    UnreadableHistory
        It is of another version.
    """
    version, flat = msgpack.unpackb(content)
    if version != _VERSION:
        raise UnreadableHistory(
            f"the segment has version {version}, this clonos reads {_VERSION}",
            where=where,
            remedy="read it with the clonos that wrote it",
        )
    return [Run(t, Incarnation(term, n), start, tuple(r)) for t, term, n, start, r in flat]


def pin_path(number: int, until_s: int, name: str) -> str:
    """The file that says that a reader needs this point, and until when at the latest.

    Parameters
    ----------
    name
        Unique among pins; lower-case letters and digits.
    """
    return f"{FOLDER}/pin-{number:012d}-{until_s}-{name}"


def pinned(stored: Iterable[str], now_s: float) -> int | None:
    """The oldest point that a reader has pinned.

    Examples
    --------
    >>> stored = [pin_path(7, 100, "a1"), pin_path(5, 50, "b2"), segment_path(4, 1)]
    >>> pinned(stored, 20.0), pinned(stored, 60.0), pinned(stored, 100.0)
    (5, 7, None)
    """
    pins = [pin for pin in map(_PIN.fullmatch, stored) if pin is not None]
    return min((int(pin[1]) for pin in pins if int(pin[2]) > now_s), default=None)


def litter(stored: Iterable[str], history: History, term: int, now_s: float) -> list[str]:
    """Which of these files no process will read: segments of earlier drivers that no record names,
    segments of points that are gone, what attempts to store a segment have left, and expired pins.

    Examples
    --------
    >>> history = History()
    >>> stored = [segment_path(1, 1), segment_path(1, 2), pin_path(1, 100, "a"), "3/else.layer"]
    >>> litter(stored, history, 2, 50.0)
    ['history/000000000001-1.log']
    >>> litter(stored[1:], history, 2, 100.0)
    ['history/pin-000000000001-100-a']
    """
    used = history.paths
    first = history.points[0].number if history.points else 0
    found = []
    for path in stored:
        if (pin := _PIN.fullmatch(path)) is not None:
            is_over = int(pin[2]) <= now_s
        elif (segment := _SEGMENT.fullmatch(path)) is not None and path not in used:
            number, maker = int(segment[1]), int(segment[2])
            is_stored = segment_path(number, maker) in used  # by a later attempt
            is_over = is_stored or maker < term or (maker == term and number < first)
        else:
            continue
        if is_over:
            found.append(path)
    return found


def joined(point: Point, parts: Iterable[Iterable[Run]]) -> list[Run]:
    """The log entries after a point, joined from parts without gaps.

    Raises
    ------
    UnreadableHistory
        Some are missing.
    """
    ends = dict(point.positions)
    found = []
    for run in (run for part in parts for run in part):
        end = ends[run.task]
        if run.start > end + 1:
            raise UnreadableHistory(
                f"log entries {end + 1} to {run.start - 1} of task {run.task} are missing",
                remedy="begin at a later point",
            )
        ends[run.task] = max(end, run.end)
        found.append(run)
    return found
