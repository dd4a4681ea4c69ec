"""Runs a job: coordinator and house-keeper in one loop of the driver, slots borrowed from Spark.

Order matters in one place, and is kept there: what the coordinator and the house-keeper have
decided is durable *before* any slot hears of it (:meth:`RunningJob._turn`).
"""

from __future__ import annotations

import ipaddress
import logging
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from clonos import errors
from clonos.cluster.directory import JobDirectory
from clonos.cluster.feeds import Feeds, FeedView, with_materialized
from clonos.cluster.keeper_host import KeeperHost
from clonos.cluster.layers import Layers
from clonos.cluster.listener import JobProgress, JobStatus, Listener
from clonos.cluster.pool import SlotPool, places
from clonos.cluster.progress import JobEvent, Observer, Sample, SlotView, TaskView
from clonos.cluster.result import JobResult
from clonos.cluster.shipping import ship
from clonos.cluster.watch import TRAFFIC, Watch
from clonos.core import coordinator as co
from clonos.core import messages as msg
from clonos.graph.compile import CompiledJob
from clonos.runtime.interpreter import quick_switching
from clonos.sinks.outputs import Consumers, as_dataframe, write_with_spark
from clonos.sinks.writers import Folders
from clonos.spark.errors import JobCancelled, SparkSetup, SparkStopped
from clonos.spark.slots import driver_address, is_local
from clonos.storage.files import Durability
from clonos.transport.certificates import Authority
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    ControlOpened,
    Heartbeat,
    TaskStatistics,
)
from clonos.transport.inbox import Inbox
from clonos.transport.plane import Plane
from clonos.transport.secret import JobSecret
from clonos.transport.tls import DRIVER_NAME, Identity, slot_name

LOGGER: Final = logging.getLogger("clonos")

PATIENCE_S: Final = 10.0
"""A peer that cannot be connected to for so much longer than silence takes to be noticed, lives."""
TICK_S: Final = 0.02
"""How often the driver looks at its own clock."""
PAUSE_MAX_S: Final = 1.0
"""A longer time between two looks was a sleep of the driver."""
LEAVE_S: Final = 5.0
"""So long slots may take to leave; then Spark is told to end them."""
STOP_S: Final = 30.0
"""How long stopping may take before its caller goes on."""
LISTENERS_S: Final = 1.0
"""So long who waits for a job's end waits for slow listeners, too."""


class RunningJob:
    """A job at work. Made by ``Job.start``; its loop is a thread of the driver.

    Parameters
    ----------
    compiled, spark
        What to run and in which session.
    journal_dir
        A local folder for the house-keeper's journal and delivered output; the checkpoint's by
        default, if that is local. Needed if it is not.
    standby_slots
        Slots beyond one per task (see :class:`~clonos.cluster.pool.SlotPool`).
    durability
        "fsync": what is delivered survives the driver's machine; "process": only its process.
    tls
        Encrypt all streams of the job (TLS 1.3, with certificates made for this job alone).
        Default: if they leave this machine. False lets them leave it unencrypted.
    batch_rows_max, linger_ms
        A source cuts a batch at so many rows at most, or waits no longer for more of them.
    silence_s
        A slot that has not been heard of for so long is given up, though its connection stands.
    answer_s
        So long a slot may stay in one call of user code while others wait for its answer in a
        recovery; then it is given up, too.
    listeners
        Who hears of the job (:class:`~clonos.cluster.listener.Listener`), from its start on.
    progress_s
        Time from one progress to the next.

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
        journal_dir: str | Path | None = None,
        standby_slots: int | None = None,
        durability: Durability = "fsync",
        tls: bool | None = None,
        batch_rows_max: int = 32_768,
        linger_ms: float = 10.0,
        silence_s: float = 10.0,
        answer_s: float = 30.0,
        listeners: Sequence[Listener] = (),
        progress_s: float = 1.0,
    ) -> None:
        self.compiled, self.spark = compiled, spark
        self.plan, self.options = compiled.plan, compiled.options
        self.sinks = {name: sink for name, (sink, _) in compiled.sinks.items()}
        self.sink_schemas = {name: schema for name, (_, schema) in compiled.sinks.items()}
        self.observer = Observer({t.id: t.name for t in self.plan.tasks})
        self.consumers = Consumers(self.plan, self.sinks)
        self.warnings: list[str] = []
        self._durability, self._silence_s = durability, silence_s
        address = driver_address(spark)
        self.directory = _directory(compiled, spark, journal_dir)
        with ExitStack() as undo:  # whatever fails below: let go of the lock and the port
            self._inbox = undo.enter_context(closing(Inbox()))
            self.host = KeeperHost(self.plan, self.directory.journal, durability, self.consumers)
            undo.callback(self.host.close)
            self._claim(undo)
            self.layers = Layers(self.directory.layers_uri, durability, self._inbox)
            self._feeds = Feeds(compiled, self.directory, durability, self._inbox, self.warn)
            self.run_id = f"{compiled.name}-{secrets.token_hex(6)}"
            secret, identities = self._listen(address, self.run_id, standby_slots, tls)
            undo.callback(self._plane.shutdown)
            shipment = ship(
                self._feeds.reading(with_materialized(compiled, spark, self.directory.spool_uri)),
                self.run_id,
                secret,
                self._plane.address,
                self.directory.layers_uri,
                layers_durability=durability,
                lineage=self.options.lineage or self.directory.checkpoint_id,
                identities=identities,
                allow_plaintext=tls is False,
                unreachable_s=silence_s + PATIENCE_S,
                batch_rows_max=batch_rows_max,
                linger_ms=linger_ms,
            )
            self.pool = SlotPool(spark, compiled, shipment, self._inbox, standby_slots)
            self.coordinator = co.Coordinator(
                self.plan,
                self.host.keeper,
                address=self._plane.address,
                standbys=self.options.standbys,
                availability=self.options.on_orphan == "availability",
                bound=self.pool.bound,
                fence_timeout_ms=int(answer_s * 1000),
            )
            self._undo = undo.pop_all()
        self._heard: dict[int, float] = {}
        self._next_epoch = self._clock = 0.0
        self._looked = time.monotonic()
        self._error: errors.ClonosError | None = None
        self._over, self._stop_asked = threading.Event(), False
        self._pending: list[co.Action] = []
        self.watch = Watch(self, listeners, progress_s)
        self._thread = threading.Thread(target=self._run, name="clonos-driver", daemon=True)

    def _listen(
        self, address: str, job_id: str, standby_slots: int | None, tls: bool | None
    ) -> tuple[JobSecret, dict[int, Identity]]:
        """Open this process's plane; return what the slots need to use it."""
        secret, driver, identities = JobSecret.new(), None, {}
        if not ipaddress.ip_address(address).is_loopback if tls is None else tls:
            authority = Authority(job_id)
            driver = authority.issue(DRIVER_NAME)
            slots = len(places(self.compiled, standby_slots, is_local=is_local(self.spark)))
            identities = {slot: authority.issue(slot_name(slot)) for slot in range(slots)}
        is_plaintext = tls is False  # asked for by name
        try:
            self._plane = Plane(
                address,
                secret,
                job_id,
                self._inbox,
                identity=driver,
                allow_plaintext=is_plaintext,
            )
        except OSError as error:
            raise SparkSetup(
                f"the driver cannot listen on {address}: {error}",
                remedy="set spark.driver.host to the address of an interface of the driver's "
                "machine",
            ) from error
        for channel, schema in self.compiled.schemas.items():
            self._plane.pin(channel, schema)
        return secret, identities

    def _claim(self, undo: ExitStack) -> None:
        """The directory is ours now; what a new job finds in its outputs is another's."""
        keeper = self.host.keeper
        self._folders = Folders(self.sinks, self._durability, self.directory.checkpoint_id)
        undo.callback(self._withdraw)
        if not keeper.complete:
            self._folders.begin(self.sink_schemas, is_new=keeper.term == 0)
        self.directory.claim(self.compiled)

    def _withdraw(self) -> None:
        """Let others have the folders, if nobody can go on with this job."""
        if self.host.keeper.term == 0 or self.directory.is_temporary:
            self._folders.withdraw()

    # --- for the user ---------------------------------------------------------------------------

    def start(self) -> RunningJob:
        """Ask Spark for the slots and begin.

        Raises
        ------
        NotEnoughSlots
            The application has too few cores.
        SourceError
            A DataFrame cannot be computed, or a streaming query does not start.
        OutputExists
            Another job has begun at the same moment to write where this one would.
        """
        try:
            if not self.host.keeper.complete:
                self.pool.require()
                self.pool.prepare()
                self._folders.check()
                self._feeds.start()
            self.watch.started()
        except BaseException:
            self._feeds.close()
            self._undo.close()
            self._over.set()
            raise
        self._thread.start()
        return self

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait for the end (of the input, or by :meth:`stop`).

        Raises
        ------
        JobCancelled
            Somebody has cancelled Spark jobs of it.
        ClonosError
            The job has failed.
        TimeoutError
            It has not ended in time (and goes on).
        """
        if not self._over.wait(timeout_s):
            raise TimeoutError(f"job {self.compiled.name!r} has not ended after {timeout_s} s")
        self.watch.join(LISTENERS_S)
        if self._error is not None:
            raise self._error
        return JobResult(self)

    def stop(self) -> None:
        """End the job now; with a checkpoint directory it can be started again where it was."""
        self._stop_asked = True
        self._inbox.put(None)
        if self._over.wait(STOP_S):
            self.watch.join(LISTENERS_S)
        else:
            LOGGER.warning("job %s has not ended within %s s; it is ending", self.run_id, STOP_S)

    def add_listener(self, listener: Listener) -> None:
        """Let it hear of the job from now on."""
        self.watch.add(listener)

    def remove_listener(self, listener: Listener) -> None:
        """Let it hear no more."""
        self.watch.remove(listener)

    @property
    def last_progress(self) -> JobProgress | None:
        """The newest progress; None before the first one. After the end, the last word."""
        return self.watch.recent[-1] if self.watch.recent else None

    @property
    def recent_progress(self) -> list[JobProgress]:
        """The last hundred, oldest first."""
        return list(self.watch.recent)

    @property
    def status(self) -> JobStatus:
        """In short how the job is."""
        return self.watch.status

    def on_event(self, listener: Callable[[JobEvent], Any]) -> None:
        """Call `listener` with every event of the job from now on: recoveries, floors, ...

        It is called in the driver's loop and must be quick. What it raises is logged.
        """
        self.observer.listeners.append(listener)

    @property
    def is_running(self) -> bool:
        return not self._over.is_set()

    @property
    def strangers_refused(self) -> int:
        """How many connections to the driver were not of this job's processes."""
        return self._plane.strangers_refused

    def tasks(self) -> list[TaskView]:
        """Every task as it is now."""
        views = []
        for state in list(self.coordinator.tasks.values()):
            slot = self.pool.view(state.slot)
            rate, latency = self.observer.rates(state.id)
            views.append(
                TaskView(
                    state.id,
                    self.plan.tasks[state.id].name,
                    state.phase.value,
                    state.incarnation,
                    slot.place if slot else None,
                    slot.pid if slot else None,
                    rate,
                    latency,
                )
            )
        return views

    def slots(self) -> list[SlotView]:
        """Every registered slot as it is now."""
        running = {t.slot: t.id for t in list(self.coordinator.tasks.values())}
        names = [t.name for t in self.plan.tasks]
        result = []
        for slot in list(self.coordinator.slots.values()):
            seat = self.pool.view(slot.id)
            if seat is None:
                continue
            runs = running.get(slot.id)
            result.append(
                SlotView(
                    seat.place,
                    seat.pid,
                    seat.executor,
                    seat.executor_pid,
                    names[runs] if runs is not None else None,
                    tuple(names[t] for t, epoch in slot.standbys.items() if epoch >= 0),
                )
            )
        return result

    def feeds(self) -> list[FeedView]:
        """Every streaming query that feeds the job, as it is now."""
        return self._feeds.views()

    # --- the loop -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self.host.redeliver()
            self._pending += self.coordinator.start()
            self._carry_out()
            if not self.coordinator.done:
                self.pool.launch_all()
            with quick_switching():
                while not (self.coordinator.done or self._error or self._stop_asked):
                    self._turn()
        except errors.ClonosError as error:
            self._error = error
        except Exception as error:  # noqa: BLE001 - the thread's end must not go unnoticed
            self._error = errors.ClonosError(f"the driver failed: {type(error).__name__}: {error}")
            self._error.__cause__ = error
        finally:
            self._finish()

    def _finish(self) -> None:
        """Let everything go; even if a part of that fails, the rest and the waiting user follow."""
        acts = (self._feeds.close, self._dismiss, self._conclude, self._undo.close)
        for act in (*acts, self._tell_the_end):
            try:
                act()
            except errors.ClonosError as error:
                self._error = self._error or error
            except Exception as error:  # noqa: BLE001 - see _run
                self._error = self._error or errors.ClonosError(f"ending the job failed: {error}")
        self._over.set()

    def _tell_the_end(self) -> None:
        is_complete = self.host.keeper.complete
        self.watch.over(self._error, time.monotonic(), is_complete=is_complete)

    def _dismiss(self) -> None:
        """Send the slots home."""
        for slot in list(self.coordinator.slots):
            self.pool.command(slot, msg.Stop())
        until = time.monotonic() + LEAVE_S
        while self._plane.is_connected and time.monotonic() < until:
            for thing in self._plane.poll(TICK_S):  # the slots' last words
                if isinstance(thing, tuple) and isinstance(thing[1], TaskStatistics):
                    self._handle(thing)
        self.pool.shutdown()
        self.layers.close()
        self._plane.shutdown()

    def _conclude(self) -> None:
        """Put what was delivered where it is read from."""
        if self._error is not None and not isinstance(self._error, (JobCancelled, SparkStopped)):
            return
        self.host.rotate()
        if self._error is not None or not self.host.keeper.complete:
            return
        self._folders.end()
        for operator, sink in self.sinks.items():
            if sink.kind == "spark_write" and not self.directory.is_written(operator):
                self.pool.describe(f"write the rows of {operator}")
                frame = as_dataframe(
                    self.spark, self.host.delivered, operator, self.sink_schemas[operator]
                )
                write_with_spark(sink, operator, frame)
                self.directory.set_written(operator, self.compiled)

    def _turn(self) -> None:
        """Handle what has come; make it durable; only then act on it."""
        for thing in self._plane.poll(TICK_S):
            self._handle(thing)
        now = self._listened()
        self._pending += self.coordinator.tick(self._now_ms())
        if now >= self._next_epoch:
            actions = self.coordinator.begin_epoch()
            if actions:
                self._next_epoch = now + self.options.checkpoint_interval_ms / 1000
                self.watch.epoch_began(time.monotonic())
            self._pending += actions
        self._check_silence(now)
        for warning in self.pool.tick():
            self.warn(warning)
        self._carry_out()
        self.watch.tick(time.monotonic())

    def _listened(self) -> float:
        """For how long the driver has listened (s): silence while it slept is not the slots'."""
        now = time.monotonic()
        self._clock += min(now - self._looked, PAUSE_MAX_S)
        self._looked = now
        return self._clock

    def _carry_out(self) -> None:
        self.host.commit()
        actions, self._pending = self._pending, []
        for action in actions:
            match action:
                case co.Command(slot=slot, command=command):
                    self.pool.command(slot, command)
                case co.Expel(slot=slot):
                    self.pool.expel(slot)
                case co.Note():
                    self._on_note(action)
                case co.Fail():
                    self._error = self._failure(action)
                case co.Done():
                    pass

    def _on_note(self, note: co.Note) -> None:
        now_s = time.monotonic()
        self.observer.note(note, now_s)
        self.watch.noted(note, now_s)
        if note.what == "floor":
            self.host.rotate_if_large()
            self.layers.after_floor(self.host.keeper.layers)
            self._feeds.after_floor(self.host.keeper.layers)
        elif note.what == "live":  # not before: a recovery needs the processors
            task = self.coordinator.tasks[note.task]
            self.pool.show(self.plan.tasks[task.id].name, note.incarnation, task.slot)
        elif note.what == "generation":
            self.warn(
                f"job {self.compiled.name!r}: a failure took log entries that nobody else held; "
                f"on_orphan='availability': it goes on in generation {note.value}, and rows may "
                "have been delivered twice"
            )

    def warn(self, text: str) -> None:
        """Say, in the log and in the result, that something is not as good as it could be."""
        self.warnings.append(text)
        LOGGER.warning(text)

    def _failure(self, fail: co.Fail) -> errors.ClonosError:
        where = fail.where or (self.plan.tasks[fail.task].name if fail.task >= 0 else "")
        kind, what = _error_types().get(fail.error), fail.message
        if kind is None:
            kind, what = errors.TaskFailed, f"{fail.error}: {what}"
        return kind(what, where=where, remedy=fail.remedy, trace=fail.trace)

    def _now_ms(self) -> int:
        return int(self._clock * 1000)

    def _tell(self, event: co.Event) -> None:
        self._pending += self.coordinator.handle(event, self._now_ms())

    # --- what comes in ----------------------------------------------------------------------------

    def _handle(self, thing: Any) -> None:
        match thing:
            case (int(conn), Heartbeat()):
                self._heard[conn] = self._clock
            case (int(conn), TaskStatistics(task=task, now_ms=now_ms, counters=counters)):
                if self.coordinator.tasks[task].slot == conn:  # else it is an earlier life's
                    self.watch.heard(task, counters)
                kept = {k: v for k, v in counters.items() if not k.endswith(TRAFFIC)}
                self.observer.sample(Sample(now_ms / 1000, task, kept))
                held = counters.get("inflight_bytes", 0)
                self._pending += self.coordinator.pressure(task, held)
            case (int(conn), msg.Data() | msg.Welcome()):
                self.host.heard(*thing)
            case (int(conn), report):
                self._tell(co.Reported(conn, report))
            case ChannelOpened():
                self.host.opened(thing)
            case ChannelClosed():
                self.host.closed(thing)
            case ControlOpened():
                self._heard[thing.conn_id] = self._clock
                for slot in self.pool.replaced(thing):
                    self.pool.expel(slot, is_replaced=True)
                    self._tell(co.SlotLost(slot))
                self._tell(self.pool.registered(thing))
            case ControlLost():
                self._heard.pop(thing.conn_id, None)
                self._tell(co.SlotLost(thing.conn_id))
                self.pool.lost(thing.conn_id)
            case co.Compacted():
                self._tell(thing)
                self.layers.compacted(thing, self.host.keeper.layers[thing.merged.task])
            case errors.ClonosError():
                self._error = self._error or thing
            case None:
                pass
            case _ if callable(thing):
                thing()

    def _check_silence(self, now: float) -> None:
        for conn, heard in list(self._heard.items()):
            if now - heard > self._silence_s:
                del self._heard[conn]
                self.pool.expel(conn)
                self._tell(co.SlotLost(conn))


def _directory(compiled: CompiledJob, spark: Any, journal_dir: str | Path | None) -> JobDirectory:
    on_one_machine = (spark.sparkContext.master or "").startswith("local")
    directory = JobDirectory(
        compiled.options.checkpoint_dir, journal_dir, on_one_machine=on_one_machine
    )
    directory.check(compiled)
    return directory


def _error_types() -> dict[str, type[errors.ClonosError]]:
    """Every error of clonos by its name: a slot tells what went wrong by name."""
    found: dict[str, type[errors.ClonosError]] = {}
    todo: list[type[errors.ClonosError]] = [errors.ClonosError]
    while todo:
        kind = todo.pop()
        found[kind.__name__] = kind
        todo += kind.__subclasses__()
    del found["CallError"]  # made of other things than the rest
    return found


def start_job(compiled: CompiledJob, spark: Any = None, **options: Any) -> RunningJob:
    """Start a compiled job on a Spark session (the active one, or a new local one)."""
    if spark is None:
        from clonos.spark.session import get_or_create

        needed = SlotPool.count(compiled, options.get("standby_slots"))
        spark = get_or_create(f"local[{needed}]")
    return RunningJob(compiled, spark, **options).start()


def run_job(
    compiled: CompiledJob, spark: Any = None, *, timeout_s: float | None = None, **options: Any
) -> JobResult:
    """Start a job and wait for its end; if the wait is broken off, so is the job."""
    running = start_job(compiled, spark, **options)
    try:
        return running.wait(timeout_s)
    finally:
        if running.is_running:
            running.stop()
