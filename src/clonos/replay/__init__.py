"""Replays the past of a job: in one process, from a checkpoint, with the answers in its log.

The code of the tasks repeats every logged step, from the state at the last checkpoint, or at an
earlier point of the job's history. So an error can be inspected where it happened, with a debugger,
as often as needed. (Databases call this point-in-time recovery; debuggers, record and replay.)
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from clonos.core.messages import Item
from clonos.errors import ClonosError, NothingToReplay
from clonos.operators.chain import ChainProgram
from clonos.replay.kept import At
from clonos.replay.past import Past, read
from clonos.replay.steps import Step
from clonos.replay.tasks import ReplayedTask, Watched

__all__ = ["NothingToReplay", "Replay", "ReplayedTask", "Step"]


class Replay:
    """A job as it was at a checkpoint, with its log since.

    The checkpoint is only read; sinks, services and Spark are never touched. The job may be
    stopped, complete, failed, or running; if it runs, the replay uses its journal as it is now.

    Parameters
    ----------
    job
        A :class:`clonos.Job` with the same graph. Its functions may have been changed, for instance
        to print something; if they compute anything else than before, that is a ``Divergence``.
    checkpoint_dir
        The checkpoint, or a copy of it; by default that of the job.
    journal
        The journal, if it is not below the checkpoint_dir.
    call
        ``call(fn, *args)`` answers calls of ``ctx.call`` after the end of the log; without it they
        raise :class:`~clonos.replay.NothingToReplay`.
    at
        A point of the job's history (``Job(history=...)``): its number, ``"oldest"``, or a time,
        which means the newest point at or before it. By default, the newest checkpoint.

    Attributes
    ----------
    lost
        Messages about failed steps that cannot be repeated.

    Raises
    ------
    NothingToReplay
        There is no checkpoint, the job keeps no log, or rows can only be read with Spark.
    OtherJob
        The checkpoint belongs to another graph.

    Examples
    --------
    >>> with clonos.Replay(job) as replay:  # doctest: +SKIP
    ...     replay.run("score[0]", to=1042)
    ...     print(replay["score[0]"].state("score")["alice"])
    ...     replay.run()  # all the rest that the log knows: an error is raised again
    {'total': 120}
    """

    watch: Callable[[ChainProgram], Watched] = Watched
    """Wraps the tasks' programs to record their input."""
    follows = False
    """Whether the log grows during the replay."""

    def __init__(
        self,
        job: Any,
        checkpoint_dir: str | None = None,
        *,
        journal: str | Path | None = None,
        call: Callable[..., Any] | None = None,
        at: At | None = None,
    ) -> None:
        is_read = isinstance(job, Past)
        past = job if is_read else read(job.compile(), checkpoint_dir, journal, at)
        self._plan, self.lost = past.compiled.plan, past.lost
        self._items = None if past.only is None else dict(past.items)
        if self._plan.loops:
            first = self._plan.tasks[min(self._plan.loops)]
            raise NothingToReplay(
                "a job with a loop cannot be replayed",
                where=first.operator,
                remedy="try it in the simulator: clonos sim MODULE:JOB",
            )
        self._tasks: dict[str, ReplayedTask] = {}
        self._close = weakref.finalize(self, _close, self._tasks, None if is_read else past)
        try:
            for spec in past.tasks:
                self._tasks[spec.name] = ReplayedTask(
                    past, spec.id, call, type(self).watch, follows=self.follows
                )
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Replay:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close files and connections of sources."""
        self._close()

    def __getitem__(self, name: str) -> ReplayedTask:
        if name not in self._tasks:
            raise NothingToReplay(
                f"there is no task {name!r}", remedy=f"use one of {', '.join(self._tasks)}"
            )
        return self._tasks[name]

    def __iter__(self) -> Iterator[ReplayedTask]:
        return iter(self._tasks.values())

    def _of(self, task: int) -> ReplayedTask:
        return self._tasks[self._plan.tasks[task].name]

    @property
    def is_at_the_end(self) -> bool:
        """Whether all logged steps have been repeated."""
        return all(task.is_at_the_end for task in self)

    @property
    def compared(self) -> dict[str, tuple[int, int]]:
        """For each task of a sink, how many outputs were found equal to those delivered since the
        checkpoint, and how many were delivered."""
        return {t.name: t.compared for t in self if t.machine.spec.is_sink}

    def step(
        self, task: str | None = None, *, beyond: bool = False, state: bool = False
    ) -> Step | None:
        """Do one step; None if there is none to do.

        Parameters
        ----------
        task
            Do a step of this task, after necessary steps of others; by default, of the first task
            that can do one.
        beyond
            Go on after the end of the log, with the input that is available. This need not repeat
            what happened, because order, clock and cuts of the input are chosen anew.
        state
            Record what the step changes in the state: ``before`` and ``after``. For this, the whole
            state of its task is read, twice. A notebook shows the step with its rows and changes.

        Raises
        ------
        OperatorError
            A function has raised; ``__cause__`` is its own exception.
        Divergence
            The program does something else than before.
        """
        wanted = None if task is None else self[task]
        # The wanted task first, then from the sinks upwards, so that none works ahead of need.
        order = [*([] if wanted is None else [wanted]), *reversed(self._tasks.values())]
        while (done := self._first_of(order, beyond, wanted if state else None, state)) is not None:
            if wanted is None or done.task == wanted.name:
                return done
        self._require_complete()
        if beyond:
            self._require_no_calls()
        return None

    def run(
        self, task: str | None = None, *, to: int | None = None, beyond: bool = False
    ) -> list[Step]:
        """Do steps, until nothing is left to do, or `task` is at position `to`.

        Returns
        -------
        list of Step
            The steps of `task`, or all, with their rows. For a long log, use :meth:`step` instead.

        Raises
        ------
        NothingToReplay
            `to` is before the beginning, or says no `task`; or see :meth:`step`.
        """
        steps: list[Step] = []
        while self.is_before(task, to):
            done = self.step(task, beyond=beyond)
            if done is None:
                break
            steps.append(done)
        return steps

    def is_before(self, task: str | None, to: int | None) -> bool:
        """Whether a task has still to come to a step; always, if no step is given.

        Raises
        ------
        NothingToReplay
            The step is before the beginning, or no task is given.
        """
        if to is None:
            return True
        if task is None:
            raise NothingToReplay(
                f"each task counts its own steps: step {to} of which one?",
                remedy=f"name one of {', '.join(self._tasks)}",
            )
        one = self[task]
        if to < one.restored_at:
            raise NothingToReplay(
                f"step {to} is before the beginning, which is after step {one.restored_at}",
                where=one.name,
                remedy="begin at an earlier point, if the job keeps its past: clonos history DIR",
            )
        return one.position < to

    def _first_of(
        self,
        order: Sequence[ReplayedTask],
        beyond: bool,
        shown: ReplayedTask | None,
        state: bool,
    ) -> Step | None:
        for task in order:
            self.feed(task)
            with_state = state and shown in {None, task}
            if (done := task.step(beyond=beyond, state=with_state)) is not None:
                return done
        return None

    def feed(self, task: ReplayedTask) -> None:
        """Give a task the new items of its senders."""
        for channel, end in task.machine.inputs.items():
            if self._items is not None:
                if items := self._items.pop(channel, ()):
                    task.take(channel, items)
                continue
            sender = self._of(self._plan.channels[channel].sender)
            items = sender.items(channel, end.consumed + len(end.queue))
            if items:
                self.fed(task, channel, items)
                task.take(channel, items)
                sender.machine.outputs[channel].log.truncate(items[-1].seq)

    def fed(self, task: ReplayedTask, channel: int, items: Sequence[Item]) -> None:
        """A task is about to get these items; a hook for subclasses."""

    def _require_no_calls(self) -> None:
        for task in self:
            if task.open_calls:
                raise NothingToReplay(
                    f"the log has no answers to {task.open_calls} calls that rows wait for",
                    where=task.name,
                    remedy="a replay makes no calls; start the job again to have them made",
                )

    def _require_complete(self) -> None:
        waiting = [task for task in self if not task.is_at_the_end]
        if waiting:
            raise ClonosError(
                f"the log has {waiting[0].log_ends_at} steps, and the input of step "
                f"{waiting[0].position + 1} is not made again",
                where=waiting[0].name,
                remedy="report this as a bug",
            )


def _close(tasks: Mapping[str, ReplayedTask], past: Past | None) -> None:
    for task in tasks.values():
        task.close()
    if past is not None:
        past.close()
