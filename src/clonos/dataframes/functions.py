"""Functions in Spark's Python workers: the same operators as in a task, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from clonos import causal
from clonos.columns.batches import conform
from clonos.dataframes.asking import Asker, Asking
from clonos.errors import OperatorError
from clonos.operators.base import Operator, OperatorInfo, Services
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation


@dataclass(frozen=True)
class Step:
    """A function, and what it is given.

    Attributes
    ----------
    time
        The event-time column of a watermark declared after the function; None without one.
    asker
        Identifies the operator to the causal log; None if it asks nothing.
    """

    name: str
    operation: Operation
    given: pa.Schema
    time: str | None = None
    asker: Asker | None = None


def host(
    steps: tuple[Step, ...],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for ``mapInArrow``; with access to the causal log if a step asks."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return apply(steps, batches, _partition())

    if not any(step.asker for step in steps):
        return run
    asking: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]
    asking = causal.operator(run, steps[-1].name)
    return asking


def apply(
    steps: tuple[Step, ...], batches: Iterator[pa.RecordBatch], partition: int
) -> Iterator[pa.RecordBatch]:
    """Apply the functions to the rows of a partition."""
    operators: list[Operator | Asking] = []
    for given in batches:
        if not given.num_rows:  # a partition without rows asks nothing
            continue
        if not operators:
            operators = [_opened(step, number, partition) for number, step in enumerate(steps)]
        rows: pa.RecordBatch | None = conform(given, steps[0].given)
        for step, operator in zip(steps, operators, strict=True):
            if rows is None or not rows.num_rows:
                break
            before = rows
            rows = operator.on_batch(before)
            if step.time is not None and rows is not None:
                _require_none_later(step, before.column(step.time), rows.column(step.time))
        if rows is not None and rows.num_rows:
            yield rows


def _opened(step: Step, number: int, partition: int) -> Operator | Asking:
    operator = make_operator(step.operation)
    if step.asker is not None:
        return Asking(operator, step.asker, number, partition)
    info = OperatorInfo(
        job=step.name,
        task=partition,
        task_name=f"{step.name}[{partition}]",
        operator=step.name,
        number=number,
        index=partition,
        parallelism=1,
    )
    operator.open(info, Services())
    return operator


def _partition() -> int:
    from pyspark import TaskContext

    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def _require_none_later(step: Step, before: pa.Array, after: pa.Array) -> None:
    """A watermark declared after a function must not be ahead of one declared before it."""
    newest, made = (pc.max(column).as_py() for column in (before, after))
    if made is not None and (newest is None or made > newest):
        raise OperatorError(
            f"the function makes event times ({made}) that are later than those it was given "
            f"({newest}): Spark would drop other late rows than tasks do",
            where=step.name,
            remedy="write with_watermark after it, or run the job with execution='tasks'",
        )
