"""The process of a canary, which follows the log of a job and reports differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, Final, TypeVar

from clonos.branch.answers import Answers
from clonos.branch.follow import Follower, Report
from clonos.branch.live_log import LiveLog
from clonos.branch.witness import with_trace
from clonos.errors import NothingToReplay
from clonos.graph.changed import changed
from clonos.graph.compile import CompiledJob

T = TypeVar("T")

ATTEMPTS: Final = 10
"""How many reads in a row may fail because the job changes files while they are read."""
QUESTIONS_MAX: Final = 100_000
"""How many questions of the job are remembered until the changed code asks the same."""


def follow(
    is_to_end: Callable[[float], bool],
    compiled: CompiledJob,
    checkpoint_dir: str,
    journal: str | None,
    replace: Mapping[str, Any] | CompiledJob,
    keys: Mapping[str, Sequence[str]],
    every_s: float,
    calls: Any = "stub",
    stand_in: Any = None,
    ask: Sequence[Any] = (),
    reuse: Sequence[Any] = (),
    cost: Any = None,
    in_flight: int = 0,
) -> Iterator[Report]:
    """See :meth:`clonos.RunningJob.canary`."""
    log, fitting = LiveLog(compiled, checkpoint_dir, journal), changed(compiled, replace)

    def begun() -> Follower:
        answers = Answers((), calls, stand_in, ask, reuse, cost, in_flight, QUESTIONS_MAX)
        return Follower(log, fitting, answers, keys)

    reads = _Reads()
    with with_trace():
        while (follower := reads.of(begun)) is None:
            if is_to_end(every_s):
                return
        with closing(follower):
            while not log.is_over:
                ends = is_to_end(every_s)
                report = reads.of(partial(follower.go_on, to_the_end=ends))
                if report is not None:
                    yield report
                if ends:
                    return
            yield follower.go_on(to_the_end=True)


class _Reads:
    """Reads of the job's files, of which a few in a row may fail."""

    def __init__(self) -> None:
        self._failures = 0

    def of(self, read: Callable[[], T]) -> T | None:
        """What is read; None: it has failed."""
        try:
            found = read()
        except NothingToReplay:
            self._failures += 1
            if self._failures == ATTEMPTS:
                raise
            return None
        self._failures = 0
        return found
