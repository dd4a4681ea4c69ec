"""Changed code follows the live log of a job: a branch that runs as things happen.

The job's own code repeats each new step of the log, and then the changed code takes it. So the
changed code gets the same rows in the same order at the same time, and the same answers, while each
of the two keeps its own state. Their output is compared row by row.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import pyarrow as pa

from clonos.branch.answers import Answers
from clonos.branch.compare import Comparison
from clonos.branch.original import Asked, Recorded, RecordedReplay, Recording, StepNote
from clonos.branch.tally import Tally
from clonos.branch.tasks import BranchedTask, Made
from clonos.core.calls import CallId
from clonos.core.messages import Run
from clonos.errors import CannotReplace
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.replay.past import Past

ANEW_AFTER: Final = 1_000_000
"""After so many log entries the replay of the job's own code begins anew at a point, because it
never frees memory by itself."""


class Log(Protocol):
    """The log to follow."""

    def begin(self, heard: Mapping[int, int] | None) -> Past:
        """The job's state at a point at or before these positions."""

    def more(self, heard: Mapping[int, int]) -> list[Run]:
        """The entries after these positions."""


class Done(NamedTuple):
    """A step that the job has done: its input beyond the log entry, and its output."""

    task: int
    position: int
    note: StepNote
    rows: tuple[pa.RecordBatch, ...]
    outputs: tuple[tuple[str, pa.RecordBatch], ...]


class FollowedReplay(RecordedReplay):
    """A replay whose log grows."""

    watch = Recorded
    follows = True


class _Nowhere:
    """Discards rows of sources, because each step carries its own."""

    def add(self, batch: pa.RecordBatch) -> None:
        """See :class:`~clonos.branch.rows.Rows`."""


class Followed(Recording):
    """The replay of the job's own code, as far as the log has come.

    Parameters
    ----------
    done
        Positions up to which steps and questions were handled already.
    open_calls
        Earlier questions without an answer.
    """

    def __init__(
        self,
        past: Past,
        replay: FollowedReplay,
        folder: Path,
        done: Mapping[int, int],
        open_calls: Mapping[tuple[int, CallId], Asked],
    ) -> None:
        self._known = dict(open_calls)
        super().__init__(past, replay, None, folder)
        self._done = done
        self._found.rows = dict.fromkeys(self._tasks, _Nowhere())  # type: ignore[arg-type]

    @property
    def is_partial(self) -> bool:
        """Whether items taken before the beginning are still being made again."""
        return bool(self._to_come)

    @property
    def begins(self) -> dict[int, int]:
        """See :class:`~clonos.branch.original.Original`."""
        return self._found.begins

    @property
    def open_calls(self) -> dict[tuple[int, CallId], Asked]:
        """Questions without an answer."""
        return dict(self._open)

    @property
    def left(self) -> int:
        """The number of logged steps that were not repeated yet."""
        return sum(task.log_ends_at - task.position for task in self._tasks.values())

    def positions(self) -> dict[int, int]:
        """The ends of the known logs."""
        return {number: task.log_ends_at for number, task in self._tasks.items()}

    def extend(self, runs: Sequence[Run]) -> None:
        """Add new log entries."""
        for run in runs:
            self._tasks[run.task].extend(run)
        self._limits = self.positions()

    def steps(self) -> Iterator[Done]:
        """Repeat all logged steps; yields the new ones."""
        while self._step():
            (number,) = self._found.order
            (note,) = self._found.notes[number]
            task = self._tasks[number]
            outputs = tuple(
                (name, batch) for name, made in self._found.outputs.items() for *_, batch in made
            )
            self._found.order.clear()
            self._found.notes[number].clear()
            self._found.outputs.clear()
            if task.position > self._done[number]:
                took = task.watched.took if task.machine.spec.is_source else ()
                rows = tuple(batch.payload for batch in took)
                yield Done(number, task.position, note, rows, outputs)

    def asked(self) -> list[Asked]:
        """New questions."""
        asked, self._found.asked = self._found.asked, []
        return [one for one in asked if one.position > self._done[one.task]]

    def _asked(self, number: int, call: CallId, asked: Asked) -> Asked:
        """Return the same object for the same question, because its answer may be awaited."""
        return self._known.get((number, call), asked)


@dataclass
class Report:
    """How a canary is doing.

    Attributes
    ----------
    steps
        Steps of the job that the changed code has taken.
    behind
        Logged steps of the job that it has not taken yet.
    looks
        How often it has read the log.
    differences
        The differences, by sink.
    bill, calls, cost
        See :class:`~clonos.branch.Branch`.
    """

    steps: int = 0
    behind: int = 0
    looks: int = 0
    differences: dict[str, Comparison] = field(default_factory=dict)
    bill: pa.Table | None = None
    calls: int = 0
    cost: float = 0.0

    def __str__(self) -> str:
        """A summary in a few lines."""
        lines = [f"{self.steps} steps followed, {self.behind} to follow"]
        lines += [str(one) for one in self.differences.values()]
        if self.calls:
            lines.append(f"{self.calls} calls made, cost {self.cost:.2f}")
        return "\n".join(lines)


class Follower:
    """Makes changed code follow a log.

    Parameters
    ----------
    changed
        The job with the changed code.
    answers
        The answers to its questions.
    keys
        By sink, the columns by which rows are matched.
    """

    def __init__(
        self,
        log: Log,
        changed: CompiledJob,
        answers: Answers,
        keys: Mapping[str, Sequence[str]],
    ) -> None:
        self._log, self._changed, self._answers = log, changed, answers
        self._steps = self._looks = self._heard_since = 0
        self.anew_after = ANEW_AFTER
        self._waiting: deque[Done] = deque()  # steps that the changed code has not taken
        # By channel, the sender's step up to which the initial state includes its items.
        self._begins: dict[int, int] | None = None  # not known yet
        self._replay: FollowedReplay | None = None
        with ExitStack() as undo:
            undo.callback(answers.close)
            folder = tempfile.TemporaryDirectory(prefix="clonos-canary-")
            self._folder = Path(undo.enter_context(folder))
            undo.callback(self._end_replay)
            with closing(log.begin(None)) as past:
                self._leaves = past.leaves
                if unknown := keys.keys() - set(self._leaves.values()):
                    raise CannotReplace(
                        f"keys= names {min(unknown)!r}, and there is no sink {min(unknown)!r}",
                        where=changed.name,
                        remedy=f"the sinks are {', '.join(self._leaves.values())}",
                    )
                self._tallies = {
                    name: Tally(name, changed.schemas[channel], keys.get(name))
                    for channel, name in self._leaves.items()
                }
                self._followed = self._begun(past, {}, {})
                self._rows: dict[int, deque[pa.RecordBatch]] = {t.id: deque() for t in past.tasks}
                self._tasks = {code.task.id: self._task(code, past) for code in changed.codes}
            self.close = undo.pop_all().close
            """Release all resources."""

    def _task(self, code: TaskCode, past: Past) -> BranchedTask:
        number = code.task.id
        return BranchedTask(
            self._changed.plan,
            code,
            code.program(past.lineage, f"{past.run}/canary"),
            past.layers(number),
            0,
            _taken(self._rows[number]),
            self._answers,
            self._put,
        )

    def _end_replay(self) -> None:
        if self._replay is not None:
            self._replay.close()

    def _begun(
        self,
        past: Past,
        done: Mapping[int, int],
        open_calls: Mapping[tuple[int, CallId], Asked],
    ) -> Followed:
        replay = self._replay = FollowedReplay(past)
        floors = {task.machine.id: task.position for task in replay}
        self._heard_since = 0
        known = {task: done.get(task, floor - 1) for task, floor in floors.items()}
        followed = Followed(past, replay, self._folder, known, open_calls)
        self._answers.add(followed.asked())
        return followed

    def go_on(self, *, to_the_end: bool = False) -> Report:
        """Follow the log up to its present end.

        The changed code does not take the steps that are new in this call: of several answers to
        equal questions the nearest one is used, and it may come a little later.

        Parameters
        ----------
        to_the_end
            The log is complete, so take all steps.
        """
        ready, self._looks = len(self._waiting), self._looks + 1
        self._hear(self._log.more(self._followed.positions()))
        for done in self._followed.steps():
            self._answers.add(self._followed.asked())
            self._waiting.append(done)
        if self._begins is None and not self._followed.is_partial:
            self._begins = dict(self._followed.begins)
        if not self._followed.is_partial:
            for _ in range(len(self._waiting) if to_the_end else ready):
                self._take(self._waiting.popleft())
            for task in self._tasks.values():
                task.settle()
        if to_the_end:
            for task in self._tasks.values():
                task.drain(dict.fromkeys((c.id for c in self._changed.plan.channels), 1 << 62))
        return self.report()

    def _hear(self, runs: Sequence[Run]) -> None:
        if self._heard_since > self.anew_after and self._begins is not None:
            heard, calls = self._followed.positions(), self._followed.open_calls
            with closing(self._log.begin(heard)) as past:
                self._end_replay()
                self._followed = self._begun(past, heard, calls)
            runs = self._log.more(self._followed.positions())
        self._heard_since += sum(len(run.records) for run in runs)
        self._followed.extend(runs)

    def _take(self, done: Done) -> None:
        self._rows[done.task].extend(batch for batch in done.rows if batch.num_rows)
        self._tasks[done.task].step(done.note)
        for name, batch in done.outputs:
            self._tallies[name].add("a", batch)
        self._steps += 1

    def _put(self, channel: int, made: Made) -> None:
        spec = self._changed.plan.channels[channel]
        if channel in self._leaves:
            if made.batch is not None:
                self._tallies[self._leaves[channel]].add("b", made.batch.payload)
        elif spec.receiver in self._tasks and made.step > (self._begins or {}).get(channel, 0):
            self._tasks[spec.receiver].take(channel, made)

    def report(self) -> Report:
        """The present state of the canary."""
        return Report(
            self._steps,
            len(self._waiting) + self._followed.left,
            self._looks,
            {name: tally.comparison() for name, tally in self._tallies.items()},
            self._answers.bill(),
            self._answers.live,
            self._answers.cost,
        )


def _taken(rows: deque[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    while True:
        yield rows.popleft()
