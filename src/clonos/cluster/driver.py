"""Runs a job: coordinator and house-keeper in one loop of the driver, slots borrowed from Spark.

Order matters in one place, and is kept there: what the coordinator and the house-keeper have
decided is durable *before* any slot hears of it (:meth:`RunningJob._turn`).
"""

from __future__ import annotations

import queue
import secrets
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from clonos import errors
from clonos.cluster import compaction
from clonos.cluster.keeper_host import KeeperHost
from clonos.cluster.outputs import Consumers, finish, read_all
from clonos.cluster.pool import SlotPool
from clonos.cluster.progress import Observer, Recovery, Sample, SlotView, TaskView
from clonos.cluster.shipping import ship
from clonos.core import coordinator as co
from clonos.core import messages as msg
from clonos.graph.compile import CompiledJob
from clonos.operators.state import merge_deltas
from clonos.runtime.loop import SWITCH_S
from clonos.storage.layers import LayerStore
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    ControlLost,
    ControlOpened,
    Heartbeat,
    TaskStatistics,
)
from clonos.transport.plane import FlightPlane
from clonos.transport.secret import JobSecret

SILENCE_S: Final = 10.0
"""A slot whose heartbeats stop for so long is taken for dead though its stream is open."""
GARBAGE_S: Final = 30.0
"""Layers that were merged away stay so long: a slot may have been told to read them."""
TICK_S: Final = 0.02
"""How often the driver looks at its own clock."""


class JobResult:
    """What a finished job leaves.

    Attributes
    ----------
    recoveries
        One per recovery of a task, in order.
    rows
        Delivered rows per sink.
    generation
        0, unless availability was chosen over consistency (so often).
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self.recoveries: list[Recovery] = job.observer.recoveries
        self.rows = dict(job.consumers.rows)
        self.generation = job.observer.generation

    def table(self, sink: str | None = None) -> pa.Table:
        """Delivered rows of a sink (the only one, if not named) as an Arrow table."""
        name = sink or next(iter(self._job.sinks))
        return read_all(self._job.host.delivered, name, self._job.sink_schemas[name])

    def dataframe(self, sink: str | None = None) -> Any:
        """The same as a Spark DataFrame, read by Spark's own tasks."""
        from clonos.cluster.outputs import as_dataframe

        name = sink or next(iter(self._job.sinks))
        schema = self._job.sink_schemas[name]
        return as_dataframe(self._job.spark, self._job.host.delivered, name, schema)


class RunningJob:
    """A job at work. Made by ``Job.start``; its loop is a thread of the driver."""

    def __init__(
        self,
        compiled: CompiledJob,
        spark: Any,
        *,
        standby_slots: int | None = None,
        durability: str = "fsync",
        allow_plaintext: bool = False,
        batch_rows_max: int = 8192,
        linger_ms: float = 5.0,
    ) -> None:
        self.compiled = compiled
        self.plan = compiled.plan
        self.options = compiled.options
        self.spark = spark
        self.sinks = {c.task.operator: c.sink for c in compiled.codes if c.sink is not None}
        self.sink_schemas = {
            c.task.operator: c.schemas[c.task.outputs[-1]]
            for c in compiled.codes
            if c.sink is not None
        }
        directory = self.options.checkpoint_dir
        self._scratch = None if directory else tempfile.TemporaryDirectory(prefix="clonos-")
        base = directory or str(self._scratch.name if self._scratch else "")
        self.directory = Path(base) if "://" not in base else Path(tempfile.mkdtemp())
        self.layers_uri = f"{base.rstrip('/')}/layers"
        self.store = LayerStore(self.layers_uri, durability)  # type: ignore[arg-type]
        self.observer = Observer({t.id: t.name for t in self.plan.tasks})
        self.consumers = Consumers(self.plan, self.sinks)
        self.host = KeeperHost(self.plan, self.directory, durability, self.consumers)  # type: ignore[arg-type]
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        secret = JobSecret.new()
        job_id = f"{compiled.name}-{secrets.token_hex(6)}"
        self._plane = FlightPlane(
            "127.0.0.1", secret, job_id, self._inbox, allow_plaintext=allow_plaintext
        )
        for channel, schema in compiled.schemas.items():
            self._plane.pin(channel, schema)
        shipment = ship(
            compiled,
            job_id,
            secret,
            self._plane.address,
            self.layers_uri,
            layers_durability=durability,
            allow_plaintext=allow_plaintext,
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
        )
        self._background = ThreadPoolExecutor(1, thread_name_prefix="clonos-compact")
        self._compacting: set[int] = set()
        self._garbage: list[tuple[float, str]] = []
        self._heard: dict[int, float] = {}
        self._next_epoch = 0.0
        self._error: errors.ClonosError | None = None
        self._over = threading.Event()
        self._stop_asked = False
        self._pending: list[co.Action] = []
        self._thread = threading.Thread(target=self._run, name="clonos-driver", daemon=True)

    # --- for the user ---------------------------------------------------------------------------

    def start(self) -> RunningJob:
        """Ask Spark for the slots and begin."""
        self.pool.require()
        self._thread.start()
        return self

    def wait(self, timeout_s: float | None = None) -> JobResult:
        """Wait for the end.

        Raises
        ------
        ClonosError
            The job has failed.
        TimeoutError
            It has not ended in time (and goes on).
        """
        if not self._over.wait(timeout_s):
            raise TimeoutError(f"job {self.compiled.name!r} has not ended after {timeout_s} s")
        if self._error is not None:
            raise self._error
        return JobResult(self)

    def stop(self) -> None:
        """End the job now; with a checkpoint directory it can be started again where it was."""
        self._stop_asked = True
        self._inbox.put(None)
        self._over.wait(30)

    @property
    def is_running(self) -> bool:
        return not self._over.is_set()

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
                    tuple(names[task] for task in slot.standbys),
                )
            )
        return result

    # --- the loop -------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._pending += self.coordinator.start()
            self._carry_out()
            if not self.coordinator.done:
                self.pool.launch_all()
            sys.setswitchinterval(SWITCH_S)
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
        try:
            for slot in list(self.coordinator.slots):
                self.pool.command(slot, msg.Stop())
            self.pool.shutdown()
            self._background.shutdown(wait=True, cancel_futures=True)
            self._plane.shutdown()
            if self._error is None:
                self.host.rotate()
            if self.coordinator.done and self._error is None:
                finish(self.spark, self.host.delivered, self.sinks, self.sink_schemas)
            self.host.close()
        except Exception as error:  # noqa: BLE001 - see _run
            self._error = self._error or errors.ClonosError(f"ending the job failed: {error}")
        finally:
            self._over.set()

    def _turn(self) -> None:
        """Handle what has come; make it durable; only then act on it."""
        for thing in self._drain():
            self._handle(thing)
        now = time.monotonic()
        self._pending += self.coordinator.tick(self._now_ms())
        if now >= self._next_epoch:
            actions = self.coordinator.begin_epoch()
            if actions:
                self._next_epoch = now + self.options.checkpoint_interval_ms / 1000
            self._pending += actions
        self._check_silence(now)
        self._carry_out()

    def _drain(self) -> list[Any]:
        things: list[Any] = []
        try:
            things.append(self._inbox.get(timeout=TICK_S))
            while len(things) < 1024:
                things.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        return things

    def _carry_out(self) -> None:
        self.host.commit()
        actions, self._pending = self._pending, []
        for action in actions:
            match action:
                case co.Order(slot=slot, command=command):
                    self.pool.command(slot, command)
                case co.Expel(slot=slot):
                    self.pool.expel(slot)
                case co.Note():
                    self.observer.note(action, time.monotonic())
                    if action.what == "floor":
                        self._after_floor()
                case co.Fail():
                    self._error = self._failure(action)
                case co.Done():
                    pass

    def _failure(self, fail: co.Fail) -> errors.ClonosError:
        kind = getattr(errors, fail.error, None)
        where = self.plan.tasks[fail.task].name if fail.task >= 0 else ""
        message = fail.message.removeprefix(f"{where}: ")
        if not (isinstance(kind, type) and issubclass(kind, errors.ClonosError)):
            return errors.TaskFailed(f"{fail.error}: {message}", where=where)
        return kind(message, where=where)

    def _now_ms(self) -> int:
        return int(time.monotonic() * 1000)

    def _tell(self, event: co.Event) -> None:
        self._pending += self.coordinator.handle(event, self._now_ms())

    # --- what comes in ----------------------------------------------------------------------------

    def _handle(self, thing: Any) -> None:
        match thing:
            case (int(conn), Heartbeat()):
                self._heard[conn] = time.monotonic()
            case (int(), TaskStatistics(task=task, now_ms=now_ms, counters=counters)):
                self.observer.sample(Sample(now_ms / 1000, task, counters))
            case (int(conn), msg.Data() | msg.Welcome()):
                self.host.heard(*thing)
            case (int(conn), report):
                self._tell(co.Reported(conn, report))
            case ChannelOpened():
                self.host.opened(thing)
            case ChannelClosed():
                self.host.closed(thing)
            case ControlOpened():
                self._heard[thing.conn_id] = time.monotonic()
                self._tell(self.pool.registered(thing))
            case ControlLost():
                self._heard.pop(thing.conn_id, None)
                self._tell(co.SlotLost(thing.conn_id))
                self.pool.lost(thing.conn_id)
            case co.Compacted():
                self._on_compacted(thing)
            case errors.ClonosError():
                self._error = thing
            case None:
                pass
            case _ if callable(thing):
                thing()

    def _check_silence(self, now: float) -> None:
        for conn, heard in list(self._heard.items()):
            if now - heard > SILENCE_S:
                del self._heard[conn]
                self.pool.expel(conn)
                self._tell(co.SlotLost(conn))

    # --- layers -----------------------------------------------------------------------------------

    def _after_floor(self) -> None:
        self.host.rotate_if_large()
        due = time.monotonic() - GARBAGE_S
        self.store.delete([path for since, path in self._garbage if since < due])
        self._garbage = [(since, path) for since, path in self._garbage if since >= due]
        for task, chain in self.host.keeper.layers.items():
            chosen = compaction.choose(chain)
            if chosen and task not in self._compacting:
                self._compacting.add(task)
                self._background.submit(self._compact, task, chain, tuple(chosen))

    def _compact(
        self, task: int, chain: tuple[msg.LayerRef, ...], chosen: tuple[msg.LayerRef, ...]
    ) -> None:
        try:
            merged = compaction.merge(self.store, chain, chosen, merge_deltas)
        except Exception as error:  # noqa: BLE001 - told to the loop
            self._inbox.put(errors.ClonosError(f"merging layers of task {task} failed: {error}"))
            return
        self._inbox.put(co.Compacted(merged, chosen))

    def _on_compacted(self, event: co.Compacted) -> None:
        self._compacting.discard(event.merged.task)
        self._tell(event)
        now = time.monotonic()
        self._garbage += [(now, ref.path) for ref in event.replaced]


Starter = Callable[..., RunningJob]


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
    """Start a job and wait for its end."""
    return start_job(compiled, spark, **options).wait(timeout_s)
