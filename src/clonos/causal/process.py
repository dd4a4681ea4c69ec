"""Finds out the log, the task and the operator of the running code.

A :class:`~clonos.causal.holder.LogAccess` says how a job's log is reached. It travels inside the
functions that Spark ships: everything that users import from :mod:`clonos.causal` carries it when
pickled. It is never in configuration, properties or the environment, which Spark shows in its UI
and event logs.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import FrameType
from typing import Any, Final, TypeVar

import pyspark
from pyspark import TaskContext

from clonos.causal import gate
from clonos.causal.holder import Holder, LogAccess
from clonos.causal.task import Task
from clonos.errors.causal import NotConnected, OnDriver, OutsideTask

QUERY_PROPERTY: Final = "sql.streaming.queryId"
BATCH_PROPERTY: Final = "streaming.sql.batchId"
EXECUTION_PROPERTY: Final = "spark.sql.execution.id"
RUN_PROPERTY: Final = "clonos.causal.run"
"""Local properties of Spark's threads, which tasks inherit; the last one is set by us."""

DRIVER: Final = -1
"""Stands for the driver in place of a partition."""

_PYSPARK: Final = str(os.path.dirname(pyspark.__file__)) + os.sep  # noqa: PTH120 - as in frames
_HERE: Final = str(os.path.dirname(__file__)) + os.sep  # noqa: PTH120 - see above

F = TypeVar("F", bound=Callable[..., Any])


class _Process:
    """The state of this process; set by :func:`connect`, or by each function that arrives."""

    def __init__(self) -> None:
        self.access: LogAccess | None = None
        self.spark_context: Any = None  # on the driver only
        self.holder: tuple[LogAccess, Holder] | None = None
        self.task: Task | None = None
        self.driver_tasks: dict[int, Task] = {}
        self.lock = threading.Lock()


_process: Final = _Process()
_operator_name: ContextVar[str] = ContextVar("clonos_operator", default="")


def access() -> LogAccess | None:
    """The log that this process uses, if any."""
    return _process.access


def connect(new: LogAccess | None, spark_context: Any = None) -> None:
    """Set the driver's log (None: it has none any more)."""
    with _process.lock:
        _process.access, _process.spark_context = new, spark_context
        _drop_holder()


def _drop_holder() -> None:
    if _process.holder is not None:
        _process.holder[1].close()
    _process.holder = _process.task = None
    _process.driver_tasks.clear()


def arrived(shipped: LogAccess | None) -> None:
    """A function has arrived from the driver with this access."""
    if shipped is not None and shipped != _process.access:
        with _process.lock:
            if _process.spark_context is None:  # the driver keeps its own
                _process.access = shipped
                _drop_holder()
    if TaskContext.get() is not None:
        gate.install()


def holder() -> Holder:
    """The process's holder of the log."""
    connected = _process.access
    if connected is None:
        raise NotConnected(
            "no log is known here",
            remedy="call causal.start(spark, directory) on the driver before you build the "
            "DataFrame; if this function comes from an installed module, hand Spark "
            "causal.operator(function) instead of it",
        )
    known = _process.holder
    if known is None or known[0] is not connected:
        with _process.lock:
            known = _process.holder
            if known is None or known[0] is not connected:
                known = _process.holder = (connected, connected.holder())
    return known[1]


# --- tasks --------------------------------------------------------------------------------------


def current() -> Task:
    """The running task.

    Raises
    ------
    OutsideTask
        No task runs in this process.
    NotConnected
        The log is unknown.
    """
    context = TaskContext.get()
    if context is None:
        return _on_driver()
    task = _process.task
    if task is None or task.number != context.taskAttemptId():
        task = _process.task = _new_task(context)
    return task


def _new_task(context: TaskContext) -> Task:
    known = holder()
    connected = _process.access
    assert connected is not None
    number = context.taskAttemptId()
    scope, batch = scope_of(context.getLocalProperty, connected.run)
    execution = context.getLocalProperty(EXECUTION_PROPERTY) or f"stage {context.stageId()}"
    return Task(
        known,
        scope,
        batch,
        context.partitionId(),
        f"{connected.term}/{number}",
        f"{connected.term}/{execution}",
        connected.patience_s,
        number=number,
        is_gated=gate.guards(number),
        is_over=lambda: not _is_running(number),
    )


def _is_running(number: int) -> bool:
    context = TaskContext.get()
    return context is not None and context.taskAttemptId() == number


def scope_of(prop: Callable[[str], str | None], run: str) -> tuple[str, int]:
    """Scope and batch by Spark's local properties."""
    query, batch = prop(QUERY_PROPERTY), prop(BATCH_PROPERTY)
    if query is not None and batch is not None:
        return query, int(batch)
    return prop(RUN_PROPERTY) or run, 0


def _on_driver() -> Task:
    """The task of a ``foreachBatch`` function; other code on the driver has none."""
    spark_context = _process.spark_context
    if spark_context is None:
        raise OutsideTask(
            "no Spark task runs in this process",
            remedy="ask inside a function that Spark runs on rows: udf, pandas_udf, mapInPandas, "
            "mapInArrow, applyInPandas, transformWithState, read() or write() of a data source, "
            "foreachBatch",
        )
    query = spark_context.getLocalProperty(QUERY_PROPERTY)
    batch = spark_context.getLocalProperty(BATCH_PROPERTY)
    if query is None or batch is None:
        raise OnDriver(
            "this is the driver, and no foreachBatch function runs in this thread",
            remedy="ask inside a function that Spark runs on rows, or inside foreachBatch",
        )
    here = threading.get_ident()
    attempt = f"{spark_context.getLocalProperty('spark.jobGroup.id')}/{batch}"
    task = _process.driver_tasks.get(here)
    if task is None or task.attempt != attempt:
        if task is not None:
            task.end(succeeded=True)
        connected = _process.access
        assert connected is not None
        patience_s = connected.patience_s
        task = Task(
            holder(), query, int(batch), DRIVER, attempt, attempt, patience_s, is_gated=False
        )
        _process.driver_tasks[here] = task
    return task


def end_driver_task(*, succeeded: bool) -> None:
    """The ``foreachBatch`` function that ran in this thread has returned, or raised."""
    task = _process.driver_tasks.pop(threading.get_ident(), None)
    if task is not None:
        task.end(succeeded=succeeded)


def settle() -> None:
    """Make all answers of this task durable.

    Rows returned to Spark wait for this by themselves. Call it before your own function makes
    anything visible that depends on its answers, such as an INSERT in ``foreachPartition`` or in
    ``write()`` of a data source.
    """
    task = _process.task
    if task is not None and task.is_dirty:
        task.settle()


def end_task(*, succeeded: bool) -> None:
    """The task of this process has produced all its output, or failed."""
    task, _process.task = _process.task, None
    if task is not None:
        task.end(succeeded=succeeded)


gate.connect(settle, end_task)

# --- operators ----------------------------------------------------------------------------------


def operator_name(service: str) -> str:
    """The name of the calling operator: the outermost user function on the stack.

    It is the service itself if Spark was given the service, or in a thread started by the user,
    whose stack has no frame of Spark.
    """
    named = _operator_name.get()
    if named:
        return named
    frame: FrameType | None = sys._getframe(2)  # noqa: SLF001 - there is no other way to look up
    outermost = ""
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(_PYSPARK):
            return outermost or service
        if not code.co_filename.startswith(_HERE):
            outermost = getattr(code, "co_qualname", code.co_name)  # from Python 3.11 on
        frame = frame.f_back
    return service


@contextmanager
def named(name: str) -> Iterator[None]:
    """Within this block, :func:`operator_name` returns `name`."""
    token = _operator_name.set(name)
    try:
        yield
    finally:
        _operator_name.reset(token)
