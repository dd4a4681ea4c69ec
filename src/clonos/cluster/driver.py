"""A running job in the user's hands."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import timedelta
from math import inf
from pathlib import Path
from typing import Any, Final

from clonos.cluster.feeds import FeedView
from clonos.cluster.former import Former
from clonos.cluster.listener import Listener
from clonos.cluster.loop import STOP_S, DriverLoop
from clonos.cluster.moves import Mover
from clonos.cluster.not_ended import goes_on
from clonos.cluster.result import JobResult
from clonos.cluster.run_options import RunOptions
from clonos.cluster.running_past import RunningPast
from clonos.cluster.setup import DriverSetup
from clonos.cluster.succession import Succession, after_the_switch
from clonos.columns.durations import parse_duration
from clonos.errors import CannotUpgrade
from clonos.graph.compile import CompiledJob, compile_graph
from clonos.graph.logical import LogicalGraph
from clonos.graph.replaced import replaced
from clonos.graph.rescaled import rescaled
from clonos.nodes.events import StopAsked
from clonos.nodes.views import DriverView, JobEvent, JobProgress, JobStatus, SlotView, TaskView
from clonos.options import drops_of, renames_of
from clonos.runtime.interpreter import low_latency
from clonos.storage.files import Durability
from clonos.upgrade.names import ALL_STAYS, NOTHING_RENAMED, StateChanges
from clonos.upgrade.switch import require_stored
from clonos.watch.picture import in_notebook

LOGGER: Final = logging.getLogger("clonos")
LISTENERS_S: Final = 1.0
"""Grace period for slow listeners when a job has ended."""


class RunningJob(RunningPast):
    """A running job, as ``Job.start`` returns it; its loop is a thread of the driver.

    Parameters
    ----------
    compiled, spark
        What to run, and in which session.
    journal
        Where the house-keeper keeps its journal: a local folder (the checkpoint's by default, if
        that is local), or ``postgresql://user@host/database``, which outlives this machine.
    standby
        If another driver runs this job, wait until it has ended or died, and then go on with the
        job. A standby driver has its Spark session ready, for example on another machine.
    standby_slots
        Slots beyond one per task (see :class:`~clonos.cluster.pool.SlotPool`).
    durability
        "fsync": delivered output survives a crash of the driver's machine; "process": only the
        death of its process.
    tls
        Encrypt all streams of the job (TLS 1.3, with certificates made for this job alone).
        Default: if they leave this machine. False: they may leave it unencrypted.
    batch_rows_max, linger_ms
        The most rows that a source puts into a batch, and how long it waits for them.
    silence_s
        A slot that is silent for this long is given up although its connection stands; if a
        recovery awaits its answer, after a fifth of this. A slot is silent when its process is
        frozen, or while native code keeps all other threads from running. On a busy machine, where
        all processes are late, the time is longer, up to 10 s.
    answer_s
        How long a recovery waits for a slot that is not silent but does not answer, for example
        because it restores its state. Then that slot is given up, too.
    listeners
        Listeners of the job (:class:`~clonos.cluster.listener.Listener`), from its start on.
    progress_s
        Time from one progress report to the next.
    sole_driver
        You make sure that no two drivers of this job ever run at once. Needed if the file system of
        the checkpoint cannot refuse one of two that start at once; object stores cannot.
    ui_port
        Serve a page about the job on 127.0.0.1, at this port (0: any that is free), until the job
        ends; :attr:`ui_url` says where. Default: no page.
    upgrade, drop_state, renamed
        The graph may differ from that of the checkpoint: in parallelism, or by operators that were
        added, removed, renamed or changed (see :meth:`upgrade`). The job must have settled; see
        :meth:`stop`.
    profile
        PySpark's ``ResourceProfile`` for the slots, as for ``mapInArrow``: with ``cpus(0.25)`` four
        slots share a core. Not every master supports it; see ``docs/deploy.md``.
    graph
        The graph that was compiled; needed for rescaling.

    Examples
    --------
    >>> running = job.start(spark)  # doctest: +SKIP
    >>> [task.phase for task in running.tasks()]  # doctest: +SKIP
    ['live', 'live', 'live']
    >>> running.wait().table()  # doctest: +SKIP
    """

    def __init__(
        self,
        compiled: CompiledJob,
        spark: Any,
        *,
        journal: str | Path | None = None,
        standby: bool = False,
        standby_slots: int | None = None,
        durability: Durability = "fsync",
        tls: bool | None = None,
        batch_rows_max: int = 32_768,
        linger_ms: float = 10.0,
        silence_s: float = 1.5,
        answer_s: float = 30.0,
        listeners: Sequence[Listener] = (),
        progress_s: float = 1.0,
        sole_driver: bool = False,
        ui_port: int | None = None,
        upgrade: bool = False,
        drop_state: Collection[Any] = (),
        renamed: Mapping[Any, str] | None = None,
        profile: Any = None,
        graph: LogicalGraph | None = None,
    ) -> None:
        self.spark, self.graph = spark, graph
        self._run_options = RunOptions(
            journal=journal,
            standby_slots=standby_slots,
            durability=durability,
            tls=tls,
            batch_rows_max=batch_rows_max,
            linger_ms=linger_ms,
            silence_s=silence_s,
            answer_s=answer_s,
            progress_s=progress_s,
            sole_driver=sole_driver,
            profile=profile,
        )
        self._succeeding = threading.Lock()  # held while another driver takes over
        self._is_to_end = False
        self._left_by: BaseException | None = None  # why the job has no driver
        with low_latency():  # begins before there is a driver: what is older is never collected
            self._is_driven_by(
                DriverSetup(
                    compiled,
                    spark,
                    self._run_options,
                    standby=standby,
                    listeners=listeners,
                    ui_port=ui_port,
                    upgrade=upgrade,
                    changes=StateChanges(drop_state, renamed or NOTHING_RENAMED),
                )
            )

    def _is_driven_by(self, setup: DriverSetup) -> None:
        self._setup, self.compiled = setup, setup.compiled
        self.plan, self.options = self.compiled.plan, self.compiled.options
        self.run_id, self.pool, self.observer = setup.run_id, setup.pool, setup.observer
        self.consumers, self._plane = setup.consumers, setup.plane
        self._loop = DriverLoop(setup)
        self._mover = Mover(
            self.plan, setup.inbox, setup.observer, lambda: self._view, lambda: self.is_running
        )

    def start(self) -> RunningJob:
        """Ask Spark for the slots and begin.

        Raises
        ------
        NotEnoughSlots
            The application has too few cores.
        SourceError
            A DataFrame cannot be computed, or a streaming query does not start.
        OutputExists
            Another job has begun at the same moment to write to the same place.
        """
        self._loop.start()
        return self

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait for the end (of the input, or by :meth:`stop`).

        Raises
        ------
        JobCancelled
            Somebody has cancelled its Spark jobs.
        ClonosError
            The job has failed.
        NotEnded
            It has not ended in time, and goes on; also a `TimeoutError`.
        """
        until_s = inf if timeout_s is None else time.monotonic() + timeout_s
        loop: DriverLoop | None = None
        while loop is not self._loop:  # another driver may take over meanwhile
            setup, loop = self._setup, self._loop
            if not (loop.over.wait(_left(until_s)) and self._has_changed(until_s)):
                raise goes_on(self, timeout_s or 0.0)
        setup.audience.join(LISTENERS_S)
        if (error := loop.error or self._left_by) is not None:
            raise error
        return JobResult(self._view, setup.keeper.forgiven, self.warnings, setup.delivered)

    def _has_changed(self, until_s: float) -> bool:
        """Wait until no change is under way, perhaps not for ever."""
        if is_over := self._succeeding.acquire(timeout=_left(until_s)):
            self._succeeding.release()
        return is_over

    def stop(self, *, settle: str | timedelta | None = None) -> bool:
        """End the job; with a checkpoint directory it can be resumed later.

        Parameters
        ----------
        settle
            First let the job settle, for this long at most, such as ``"30 seconds"``: sources take
            no more rows, those taken are processed up to the sinks, and a last checkpoint is made
            after them. The next start then has nothing to replay, and functions may be changed.

        Returns
        -------
        bool
            Whether the next start has nothing to replay. Otherwise it begins by replaying steps
            from the log, and needs the functions that took them.

        Raises
        ------
        BadDuration
            `settle` is not a duration.

        Examples
        --------
        >>> if not running.stop(settle="30 seconds"):  # doctest: +SKIP
        ...     print("start it once more with the same functions, and stop it again")
        """
        settle_s = None if settle is None else parse_duration(settle) / 1000
        self._is_to_end, told = True, None
        if settle_s is None:  # a change under way need not be waited for
            (told := self._setup).inbox.put(StopAsked(None))
        with self._succeeding:
            setup, loop = self._setup, self._loop
            if setup is not told:
                setup.inbox.put(StopAsked(settle_s))
        if settle_s is None:
            setup.directory.hurry()
        if not loop.over.wait(wait_s := STOP_S + (settle_s or 0.0)):
            LOGGER.warning("%s has not ended within %s s; %s", self.run_id, wait_s, loop.awaited)
            return False
        setup.audience.join(LISTENERS_S)
        return loop.error is None and (setup.keeper.complete or setup.keeper.is_settled)

    def upgrade(
        self,
        job: Any,
        *,
        drop_state: Collection[Any] = (),
        renamed: Mapping[Any, str] | None = None,
        within: str | timedelta = "30 seconds",
    ) -> None:
        """Go on with another graph, or with other functions, after a short pause. State is kept.

        The slots of the new graph start first, if there are cores for them. Then the job settles as
        with :meth:`stop`, one record of the journal replaces the graph, and the new slots go on.
        From then on :attr:`run_id`, :meth:`tasks` and the progress are those of the new graph.

        Parameters
        ----------
        job
            A :class:`clonos.Job` of the same name, with the same ``checkpoint_dir``;
            ``docs/upgrade.md`` says what else must be the same.
        drop_state
            Operators whose state may be lost; ``("clicks", "old_topic")``: a source's position.
        renamed
            Present names, by former name of an operator (``{"score": "scoring"}``), or by operator
            and former name of a state of its process (``{("score", "total"): "sum"}``).
        within
            How long the job may take to settle.

        Raises
        ------
        CannotUpgrade
            Something would be lost. The job goes on as it was; after a pause, if only its state
            could tell.
        NotSettled
            It did not settle in time, and goes on as it was.

        Examples
        --------
        >>> running.upgrade(define(prompt="Be brief."))  # doctest: +SKIP
        """
        where = "running.upgrade"
        changes = StateChanges(drops_of(drop_state, where), renames_of(renamed, where))
        self._replace(lambda: job.graph, parse_duration(within) / 1000, changes)

    def adopt(self, branch: Any, *, within: str | timedelta = "30 seconds") -> None:
        """Go on with the functions that a branch has tried; see :meth:`upgrade`.

        They replace those of the job, from the first row that the job has not taken.
        The job keeps its own state: nothing that the branch has computed gets into it.

        Parameters
        ----------
        branch
            A :class:`clonos.Branch` of this job.
        within
            How long the job may take to settle.

        Raises
        ------
        CannotReplace
            The functions do not fit the graph that runs now.
        CannotUpgrade, NotSettled
            See :meth:`upgrade`.

        Examples
        --------
        >>> branch = job.branch(at="08:00", replace={"judge": careful})  # doctest: +SKIP
        >>> running.adopt(branch)  # doctest: +SKIP
        """
        changes = branch.replaces

        def graph() -> LogicalGraph:
            self._changes(changes)  # the graph may be another by now
            is_job = not isinstance(changes, Mapping)
            return changes.graph if is_job else replaced(self._defined(), changes)

        self._replace(graph, parse_duration(within) / 1000)

    def rescale(
        self, parallelism: int | Mapping[str, int], *, within: str | timedelta = "30 seconds"
    ) -> None:
        """Go on with more tasks, or fewer; see :meth:`upgrade`.

        Parameters
        ----------
        parallelism
            That of the named operators, and of the operators that follow each of them in the same
            tasks; or one number for all operators that get their rows by key. Sources keep theirs.
        within
            How long the job may take to settle.

        Examples
        --------
        >>> running.rescale({"totals": 4})  # doctest: +SKIP
        """
        settle_s = parse_duration(within) / 1000
        self._replace(lambda: rescaled(self._defined(), parallelism), settle_s)

    def _defined(self) -> LogicalGraph:
        if self.graph is None:
            raise CannotUpgrade(
                "this job was started without its definition", remedy="start it with job.start(...)"
            )
        return self.graph

    def _replace(
        self,
        made: Callable[[], LogicalGraph],
        settle_s: float,
        changes: StateChanges = ALL_STAYS,
    ) -> None:
        with self._succeeding:  # a change begins with what the one before it has come to
            graph = made()
            compiled = compile_graph(graph)
            self._require_no_stop()
            require_stored(self._setup.compiled.plan)
            with low_latency():  # between two drivers, too
                self._succeed(compiled, settle_s, changes)
            self.graph = graph

    def _succeed(self, compiled: CompiledJob, settle_s: float, changes: StateChanges) -> None:
        before, page = self._setup, self._setup.page
        succession = Succession(before, self._loop, settle_s)
        succession.require(compiled, changes)
        succession.prepare(compiled, changes)
        ui_port = page.port if page is not None else None
        delivered, leaving = lambda: before.node.delivered, lambda: before.pool.running
        try:
            self._go_on(
                DriverSetup(
                    compiled,
                    self.spark,
                    self._run_options,
                    standby=True,
                    ui_port=ui_port,
                    upgrade=True,
                    changes=changes,
                    look=succession.look,
                    former=Former(lambda: succession.prepared, delivered, leaving),
                )
            )
        except BaseException as error:
            succession.give_up()
            if succession.has_stopped():
                self._left_by = error  # after the switch, only the new graph can be started
                with after_the_switch(error):
                    self._go_on(
                        DriverSetup(
                            before.compiled,
                            self.spark,
                            self._run_options,
                            ui_port=ui_port,
                            look=self._require_no_stop,
                            former=Former(delivered=delivered),
                            goes_on=True,
                        )
                    )
                    self._left_by = None
            raise

    def _require_no_stop(self, _: Any = None) -> bool:
        if self._is_to_end:
            where, remedy = self.compiled.name, "see running.wait()"
            raise CannotUpgrade("the job was told to stop", where=where, remedy=remedy)
        return False

    def _go_on(self, setup: DriverSetup) -> None:
        setup.audience.follow(self._setup.audience)
        setup.observer.follow(self.observer)
        setup.consumers.watchers += self.consumers.watchers
        setup.trials = self._setup.trials
        self._is_driven_by(setup)
        self._loop.start()

    def move(self, task: str, *, timeout_s: float = 120.0) -> None:
        """Move a task, with its cell, to another slot; return when it runs there.

        First a copy of its state is made there. Then the task ends the step, calls and writes under
        way, and goes on in the other slot from its log: no call and no row is repeated. Its old
        slot becomes free for standbys.

        Parameters
        ----------
        task
            Its name, as in :meth:`tasks`.
        timeout_s
            How long to wait. The move may still happen after that.

        Raises
        ------
        UnknownTask
            There is no task of this name.
        CannotMove
            There is no free slot, something has failed meanwhile, or a step, call or
            write took longer than a second. The task goes on where it is.

        Examples
        --------
        >>> running.move("count[1]")  # doctest: +SKIP
        """
        self._mover.move(task, timeout_s)

    def drain(self, executor: str, *, timeout_s: float = 120.0) -> None:
        """Move all tasks away from an executor, and place none there from now on, unless there is
        no other slot. Executors that Spark decommissions are drained by themselves.

        Standbys of state at level "memory" or "local" may stay there while no slot elsewhere is
        free: until one is, wait with removing the executor.

        Parameters
        ----------
        executor
            As in :meth:`slots`.
        timeout_s
            How long to wait. Tasks that are still there leave as soon as they can.

        Raises
        ------
        CannotMove
            The job has no slot there, or some task is still there. If no other executor has a free
            slot, that is said at once.

        Examples
        --------
        >>> running.drain("2")  # doctest: +SKIP
        """
        self._mover.drain(executor, timeout_s)

    def restart_slots(self, *, timeout_s: float = 600.0) -> None:
        """Start all slots anew, one after the other, while the job runs: a rolling restart.

        First the slots that run no task, then each of the others when its tasks have moved away. So
        processes get new packages or free their memory, and no call and no row is repeated.

        Parameters
        ----------
        timeout_s
            How long it may take. Slots that have been started anew by then stay.

        Raises
        ------
        CannotMove
            There is no free slot to begin with, tasks could not move, or time is over.

        Examples
        --------
        >>> running.restart_slots()  # doctest: +SKIP
        """
        self._mover.renew(timeout_s)

    def add_listener(self, listener: Listener) -> None:
        """Add a listener, for events from now on."""
        self._setup.audience.add(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Remove a listener."""
        self._setup.audience.remove(listener)

    def on_event(self, listener: Callable[[JobEvent], Any]) -> None:
        """Call `listener` with every event of the job from now on: recoveries, floors, ...

        It is called in the driver's loop and must be quick. Its exceptions are logged.
        """
        self.observer.listeners = (*self.observer.listeners, listener)

    @property
    def ui_url(self) -> str | None:
        """URL of the page about the job, if there is one. Anybody who has the URL sees the job, so
        keep it secret."""
        page = self._setup.page
        return page.url if page is not None else None

    def __repr__(self) -> str:
        return f"<RunningJob {self.compiled.name!r}, {self.status.message}>"

    def _repr_html_(self) -> str:
        """A picture of the job at this moment, for notebooks."""
        return in_notebook(self._setup.snapshot())

    # --- how it is: from one view, which never changes --------------------------------------------

    @property
    def _view(self) -> DriverView:
        return self._setup.node.view

    @property
    def last_progress(self) -> JobProgress | None:
        """The newest progress report; None before the first one."""
        recent = self._view.recent
        return recent[-1] if recent else None

    @property
    def recent_progress(self) -> list[JobProgress]:
        """The last hundred progress reports, oldest first."""
        return list(self._view.recent)

    @property
    def status(self) -> JobStatus:
        """A summary of the job's state."""
        return self._view.status

    def tasks(self) -> list[TaskView]:
        """Every task as it is now."""
        return list(self._view.tasks)

    def slots(self) -> list[SlotView]:
        """Every registered slot as it is now."""
        return list(self._view.slots)

    @property
    def delivered(self) -> dict[str, int]:
        """Rows delivered by each sink since the job was started. A change of the graph goes on
        counting; ``JobResult.rows`` counts all runs of the job."""
        return dict(self._view.delivered)

    def feeds(self) -> list[FeedView]:
        """Every streaming query that feeds the job, as it is now."""
        return self._setup.feeds.views()

    @property
    def is_running(self) -> bool:
        return self._succeeding.locked() or not self._loop.over.is_set()

    @property
    def term(self) -> int:
        """How many times the job was started with its checkpoint."""
        return self._setup.node.coordinator.term

    @property
    def warnings(self) -> list[str]:
        """Warnings about the job, in words."""
        return list(self._setup.warn.said)

    @property
    def strangers_refused(self) -> int:
        """How many connections to the driver did not come from this job's processes."""
        return self._plane.strangers_refused


def _left(until_s: float) -> float:
    return min(max(until_s - time.monotonic(), 0.0), threading.TIMEOUT_MAX)
