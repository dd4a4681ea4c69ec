"""The process of a canary, which follows the log of a job and reports differences."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any, Final

from clonos.branch.answers import Answers
from clonos.branch.follow import Follower, Report
from clonos.branch.live_log import LiveLog
from clonos.branch.witness import with_trace
from clonos.errors import NothingToReplay
from clonos.graph.changed import changed
from clonos.graph.compile import CompiledJob

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
    log = LiveLog(compiled, checkpoint_dir, journal)
    answers = Answers((), calls, stand_in, ask, reuse, cost, in_flight, QUESTIONS_MAX)
    follower = Follower(log, changed(compiled, replace), answers, keys)
    failures = 0
    with with_trace(), closing(follower):
        while not log.is_over:
            ends = is_to_end(every_s)
            try:
                yield follower.go_on(to_the_end=ends)
                failures = 0
            except NothingToReplay:
                failures += 1
                if failures == ATTEMPTS:
                    raise
            if ends:
                return
        yield follower.go_on(to_the_end=True)
