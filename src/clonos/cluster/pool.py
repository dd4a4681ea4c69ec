"""The job's slots on Spark: how many it wants, and the Spark jobs that run them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

from clonos.cluster.feeds import query_cores
from clonos.cluster.pickling import require_picklable
from clonos.columns.schema import RENAME, alike
from clonos.errors import (
    ClonosError,
    NotPicklable,
    OtherVersion,
    SlotBroken,
    SourceError,
    SparkStopped,
    UnusableStore,
)
from clonos.graph.compile import CompiledJob
from clonos.nodes.errors import ExecutorLost
from clonos.nodes.events import Ended, OutsideFailed
from clonos.nodes.versions import SAME_ENVIRONMENT
from clonos.runtime.shipment import Shipment
from clonos.runtime.slot import body
from clonos.spark.errors import SlotFailed
from clonos.spark.slots import SPARK_ERRORS, SlotHandle, SlotLauncher, in_short
from clonos.transport.inbox import Inbox

_OTHER_MODULES: Final = ("No module named", "AttributeError: Can't get attribute")
_OTHER_ENVIRONMENT: Final = ("PYTHON_VERSION_MISMATCH", *_OTHER_MODULES)
"""Found in the errors of slots that never began."""
_OWN_MODULE: Final = (
    "; a module of your own: install it there, as it is here, or sparkContext.addPyFile(...)"
)
_UNPACKS: Final = ("spark", "packed.py")
"""Of our own files, the one that unpickles the job in a slot."""
_FRAME: Final = re.compile(r'^ +File "([^"]+)", line \d+', re.MULTILINE)
_NO_MEMORY: Final = ("MemoryError", "failed to map segment", "Cannot allocate memory")
"""Found in the errors of slots that had not enough memory to begin."""
_LOST: Final = "ExecutorLostFailure"
"""Found in the errors of slots whose executor has ended, whatever reason Spark gives."""


class SlotPool:
    """The :class:`~clonos.nodes.ports.Launcher` of a job.

    Parameters
    ----------
    standby_slots
        Slots beyond one per cell, for the standbys of cells that any slot can run; the standbys of
        cells that read a DataFrame need slots of their own. Default: one for each copy or, if all
        slots are on one machine, one for two copies.
    inbox
        Gets an event for every end.
    profile
        PySpark's resource profile of the slots.

    Attributes
    ----------
    places
        One entry per slot that the job wants: the task whose partition of a DataFrame it reads, so
        it can only run that task's cell; or None.
    """

    def __init__(
        self,
        spark: Any,
        compiled: CompiledJob,
        shipment: Shipment,
        inbox: Inbox,
        standby_slots: int | None,
        profile: Any = None,
    ) -> None:
        self._compiled = compiled
        self._body = body(shipment)
        self._inbox = inbox
        self._launcher = SlotLauncher(spark, compiled.name, self._on_end, shipment.job_id, profile)
        self.places = places(compiled, standby_slots, is_local=self._launcher.is_local)
        self._frames: dict[str, Any] = {}
        self._handles: dict[int, SlotHandle] = {}  # by attempt

    @property
    def size(self) -> int:
        """How many slots the job wants."""
        return len(self.places)

    @property
    def bound(self) -> set[int]:
        """Tasks that can only live in slots of their own."""
        return {task for task in self.places if task is not None}

    def executors_with_room(self) -> set[str]:
        """Those that could run one more slot now."""
        return self._launcher.executors_with_room()

    @staticmethod
    def count(
        compiled: CompiledJob, standby_slots: int | None = None, *, is_local: bool = True
    ) -> int:
        """Spark cores that a job needs: one per slot, and one for queries that feed it."""
        return len(places(compiled, standby_slots, is_local=is_local)) + query_cores(compiled)

    # --- launching ------------------------------------------------------------------------------

    @property
    def retries(self) -> bool:
        return self._launcher.retries

    @property
    def running(self) -> int:
        """How many of its slots run."""
        return self._launcher.running

    def require(self, *, leaving: int = 0) -> None:
        """Raise if the application has too few cores. ``leaving``: slots of the job's driver before
        this one, which leave when this one goes on."""
        cores = query_cores(self._compiled)
        self._launcher.require(len(self.places), cores=cores, leaving=leaving)

    def prepare(self) -> None:
        """Have Spark plan once what the slots will read.

        Raises
        ------
        NotPicklable
            A function holds something that cannot be sent to slots.
        SourceError
            A DataFrame cannot be computed.
        """
        require_picklable(self._compiled)
        self._launcher.prepare(self._body)
        for code in self._compiled.codes:
            operator = code.task.operator
            if code.source is None or not code.source.is_bound or operator in self._frames:
                continue
            try:
                frame = _partitioned(code.source.dataframe, code.parallelism)
                self._launcher.prepare(self._body, frame)
            except SPARK_ERRORS as error:
                raise SourceError(
                    f"the DataFrame cannot be read: {in_short(error)}",
                    where=code.source_name,
                    remedy=RENAME if alike(code.source.dataframe.columns) else "",
                ) from error
            self._frames[operator] = frame

    def launch(self, place: int, attempt: int) -> None:
        running = {n: handle for n, handle in self._handles.items() if handle.is_running}
        try:
            self._handles = {**running, attempt: self._launch(place, attempt)}
        except Exception as error:  # noqa: BLE001 - Spark's, or no thread can be started
            if (stopped := self._stopped()) is not None:
                self._inbox.put(OutsideFailed(stopped))
                return
            why = ClonosError(f"slot {place} cannot be launched: {error}")
            self._inbox.put(Ended(place, attempt, why))  # it is launched again, after a while

    def _launch(self, place: int, attempt: int) -> SlotHandle:
        task, launch = self.places[place], partial(self._launcher.launch, attempt=attempt)
        if task is None:
            return launch(place, self._body, description="tasks or standbys")
        spec = self._compiled.codes[task].task
        return launch(
            place,
            self._body,
            dataframe=self._frames[spec.operator],
            partition=spec.index,
            description=f"{spec.name} with its cell, or their standbys",
        )

    def _on_end(self, place: int, attempt: int, error: ClonosError | None) -> None:
        """A slot's Spark job is over (called from a thread of the launcher)."""
        known = (
            wrong_environment(error)
            or executor_lost(error)
            or slot_broken(error)
            or unusable_store(error)
            or without_memory(error)
            or unreadable(error)
        )
        self._inbox.put(Ended(place, attempt, self._stopped() or known or error))

    def _stopped(self) -> SparkStopped | None:
        if not self._launcher.is_stopped:
            return None
        return SparkStopped(
            "the Spark application was stopped while the job ran",
            where=self._compiled.name,
            remedy="stop the job first; with a checkpoint_dir it goes on in a new session. A "
            "standalone master stops an application whose executors fail more than "
            "spark.deploy.maxExecutorRetries times in a row (10; a setting of the master, -1: "
            "never)",
        )

    def cancel(self, attempt: int) -> None:
        handle = self._handles.get(attempt)
        if handle is not None:
            handle.cancel()

    def describe(self, task: str, text: str) -> None:
        self._launcher.show(task, f"{task}, {text}")

    def label(self, text: str) -> None:
        """Describe this thread's Spark jobs in Spark's UI."""
        self._launcher.describe(f"{self._compiled.name}: {text}")

    def close(self) -> None:
        """See :meth:`~clonos.spark.slots.SlotLauncher.close`."""
        self._launcher.close()


def wrong_environment(error: ClonosError | None) -> OtherVersion | None:
    """The error of a slot that could not begin because its executor has another environment, if
    so."""
    if error is None:
        return None
    if said := _raised(OtherVersion, error):
        return OtherVersion(said, where=error.where, remedy=SAME_ENVIRONMENT)
    if not any(sign in error.what for sign in _OTHER_ENVIRONMENT):
        return None
    may_be_own = any(sign in error.what for sign in _OTHER_MODULES)
    return OtherVersion(
        f"the executor has another environment than the driver: {error.what}",
        where=error.where,
        remedy=f"{SAME_ENVIRONMENT}{_OWN_MODULE if may_be_own else ''}",
    )


def without_memory(error: ClonosError | None) -> SlotFailed | None:
    """The error of a slot that had not enough memory to begin, if so; what it said then may look
    like a fault of a library."""
    if error is None or not any(sign in error.what for sign in _NO_MEMORY):
        return None
    text = (
        "it had not enough memory to begin (see spark.executor.pyspark.memory, which Arrow needs "
        f"to be unset or generous, and spark.executor.memoryOverhead): {error.what}"
    )
    return SlotFailed(text, where=error.where, trace=error.trace)


def unreadable(error: ClonosError | None) -> NotPicklable | None:
    """The error of a slot that could not read the job, because the user's own code that makes
    something of the job anew has raised there, if so."""
    frames = [Path(file).parts for file in _FRAME.findall(error.trace)] if error else []
    frames = [parts for parts in frames if parts[-2:] != _UNPACKS]
    if error is None or not frames or "pyspark" in frames[-1]:
        return None
    if any("clonos" in parts for parts in frames):  # it could be read: the slot's body ran
        return None
    return NotPicklable(
        f"what the job consists of cannot be made anew in a slot: {error.trace.splitlines()[-1]}",
        where=error.where,
        remedy="correct what runs when it is unpickled there (__setstate__, __reduce__, a module's "
        "own lines), or make it in open() of a Process or a Service",
        trace=error.trace.replace("Traceback", "Traceback of your code", 1),
    )


def executor_lost(error: ClonosError | None) -> ExecutorLost | None:
    """The error of a slot that ended because its executor has ended, if so."""
    if error is None or _LOST not in error.what:
        return None
    return ExecutorLost(error.what, where=error.where)


def slot_broken(error: ClonosError | None) -> SlotBroken | None:
    """The error of a slot's loop, if that is how the slot ended."""
    text = _raised(SlotBroken, error)
    return SlotBroken(text, where=error.where) if error is not None and text else None


def unusable_store(error: ClonosError | None) -> UnusableStore | None:
    """The error of a slot that could not begin because its machine cannot keep state, if so; its
    place is that machine."""
    if not (text := _raised(UnusableStore, error)):
        return None
    said, _, remedy = text.partition(" To do: ")
    where, _, what = said.partition(": ")
    return UnusableStore(what.removesuffix("."), where=where, remedy=remedy)


def _raised(kind: type[ClonosError], error: ClonosError | None) -> str:
    """What an error of this kind says that a slot has raised; empty if it has raised none."""
    return error.what.partition(f"{kind.__name__}: ")[2] if error is not None else ""


def warm_up(spark: Any, slots: int, profile: Any = None) -> None:
    """Have Spark do once everything that is slow when slots are first launched: start executors,
    plan, and import a slot's modules in workers."""

    def run(batches: Iterator[Any]) -> Iterator[Any]:
        import clonos.runtime.slot  # noqa: F401 - the import is the purpose

        yield from batches

    spark.range(0, slots, 1, slots).mapInArrow(run, "id long", profile=profile).collect()


def places(
    compiled: CompiledJob, standby_slots: int | None, *, is_local: bool = True
) -> list[int | None]:
    """One entry per slot that the job wants (see :attr:`SlotPool.places`).

    On a cluster, each copy gets its own slot, because many cells may be lost together with an
    executor.
    """
    copies = compiled.options.standbys
    bound = [c.task.id for c in compiled.codes if c.source and c.source.is_bound]
    free = len(compiled.plan.cells) - len(bound)
    if standby_slots is None:
        wanted = free * copies
        standby_slots = max(copies, -(-wanted // 2)) if wanted and is_local else wanted
    return [*([None] * free), *([None] * standby_slots), *(bound * (1 + copies))]


def _partitioned(frame: Any, parallelism: int) -> Any:
    """A DataFrame with one partition per task."""
    partitions = frame.rdd.getNumPartitions()
    if partitions == parallelism:
        return frame
    return (
        frame.coalesce(parallelism) if partitions > parallelism else frame.repartition(parallelism)
    )
