"""The log of a running job, as its journal has it at the moment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from clonos.core.history import History, Point
from clonos.core.housekeeper import HouseKeeper
from clonos.core.messages import Run
from clonos.errors import NothingToReplay, OtherJob
from clonos.graph.compile import CompiledJob
from clonos.replay.kept import since
from clonos.replay.past import LiveKeeper, Past, read
from clonos.storage.layers import LayerStore

WHOLE = 1 << 62
"""Read layers as a whole, because the job may delete them while they are in use."""


class LiveLog:
    """Log entries that can never be cut any more, and points at which to begin.

    Parameters
    ----------
    checkpoint_dir, journal
        The location of the job, which must keep a history.
    """

    def __init__(self, compiled: CompiledJob, checkpoint_dir: str, journal: str | None) -> None:
        self.compiled = compiled
        self._where = checkpoint_dir, journal
        self._begun: tuple[int, int] | None = None
        self._live = LiveKeeper(compiled, checkpoint_dir, journal)
        self.is_over = False
        """Whether the job is complete, so that nothing more will come."""

    def begin(self, heard: Mapping[int, int] | None) -> Past:
        """The job at its newest point, without the log since.

        Parameters
        ----------
        heard
            The point must not be after these positions.

        Raises
        ------
        NothingToReplay
            There is no such point.
        OtherJob
            The job's graph or functions have changed.
        """
        keeper, _ = self._now()
        point = newest(keeper.history, heard, self.compiled.name)
        past = read(self.compiled, *self._where, at=point.number)
        return without_log(past)

    def more(self, heard: Mapping[int, int]) -> list[Run]:
        """The entries after these positions, of all tasks, in order."""
        keeper, store = self._now()
        self.is_over = keeper.complete
        return entries_behind(keeper, store, heard, self.compiled.name)

    def _now(self) -> tuple[HouseKeeper, LayerStore]:
        keeper, store, version = self._live.now()
        # Each graph is a version, but functions are others with another driver, too.
        driven = version, keeper.term
        self._begun = self._begun or driven
        if driven != self._begun:
            raise OtherJob(
                "the job has another graph, or other functions, than when the canary began",
                where=self.compiled.name,
                remedy="begin another canary",
            )
        return keeper, store


def entries_behind(
    keeper: HouseKeeper, store: LayerStore, heard: Mapping[int, int], job: str
) -> list[Run]:
    """The entries after these positions that can never be cut any more.

    Raises
    ------
    NothingToReplay
        See :func:`newest`.
    """
    keeper.committed()  # now it knows which entries are stable
    runs = since(keeper, newest(keeper.history, heard, job), store)
    return [
        part
        for run in runs
        if (part := part_of(run, heard[run.task], keeper.stable[run.task])) is not None
    ]


def newest(history: History, heard: Mapping[int, int] | None, job: str) -> Point:
    """The newest point that is not after the positions `heard`.

    Raises
    ------
    NothingToReplay
        There is no such point (any more).
    """
    found = [
        point
        for point in history.points
        if point.number > history.going
        and (heard is None or all(at <= heard[task] for task, at in point.positions.items()))
    ]
    if not found:
        what = "the job keeps no history" if heard is None else "the job has gone on too fast"
        raise NothingToReplay(
            f"{what}: there is no point from which its log could be followed",
            where=job,
            remedy='clonos.Job(history="1 hour") keeps it',
        )
    return found[-1]


def without_log(past: Past) -> Past:
    """The past as it was at its beginning, for a follower that gets the log step by step.

    A restart would fence the present lives of tasks. Here they go on, and the follower only gets
    entries that can never be cut. So nothing is fenced.
    """
    lives = {task: replace(life, log=(), fences=()) for task, life in past.activations.items()}
    return replace(past, activations=lives, failed={}, opened_bytes=WHOLE)


def part_of(run: Run, after: int, until: int) -> Run | None:
    """The entries of a run after one position and up to another; None: there are none.

    Examples
    --------
    >>> from clonos.core.plan import Incarnation
    >>> run = Run(3, Incarnation(1, 0), 5, (b"5", b"6", b"7"))
    >>> part_of(run, 5, 6).start, part_of(run, 5, 6).records, part_of(run, 7, 9)
    (6, (b'6',), None)
    """
    start = max(run.start, after + 1)
    records = run.records[start - run.start : max(until + 1 - run.start, 0)]
    return replace(run, start=start, records=records) if records else None
