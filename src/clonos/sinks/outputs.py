"""How the driver handles delivered output, by the kind of sink."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos.blame import in_short, users_traceback
from clonos.columns.rows import FAR, dicts_of, unreadable
from clonos.core.housekeeper import Deliver
from clonos.core.messages import Kind
from clonos.core.plan import Plan
from clonos.errors import OperatorError, SourceError, UnreadableOutput
from clonos.sinks.delivered import DeliveredFile, DeliveredStore, read_file
from clonos.sinks.spec import SinkSpec
from clonos.storage.files import files_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Consumers:
    """Hands delivered batches to their sinks' consumers in the driver."""

    def __init__(self, plan: Plan, sinks: Mapping[str, SinkSpec]) -> None:
        self._plan = plan
        self._sinks = sinks
        self.watchers: list[Callable[[str, Deliver], None]] = []

    def watch(self, watcher: Callable[[str, Deliver], None]) -> None:
        """Call ``watcher(sink, output)`` for everything delivered from now on."""
        self.watchers.append(watcher)

    def __call__(self, output: Deliver) -> None:
        sink = self._plan.tasks[output.task].sink
        assert sink is not None
        batch = output.item.batch
        if output.item.kind is Kind.BATCH and batch is not None:
            self._consume(sink, self._sinks[sink], batch.payload)
        for watcher in self.watchers:
            watcher(sink, output)

    def _consume(self, name: str, sink: SinkSpec, batch: pa.RecordBatch | None) -> None:
        if batch is not None:
            hand_over(name, sink, batch)


def hand_over(name: str, sink: SinkSpec, batch: pa.RecordBatch) -> None:
    """Give rows to the sink if it is in the driver: ``console`` or ``callback``."""
    if sink.kind == "console":
        sys.stdout.writelines(f"{row}\n" for row in dicts_of(batch))
        sys.stdout.flush()
    elif sink.kind == "callback" and sink.fn is not None:
        remedy = "correct the function; with a checkpoint_dir the job then goes on"
        if unreadable(batch):
            remedy += f". Its rows have a {FAR}. Cast such columns to text, or keep them in Arrow"
        _call(sink.fn, batch, name, "the callback raised", remedy)


def read_all(store: DeliveredStore, operator: str, schema: pa.Schema) -> pa.Table:
    """Everything a sink has delivered, in order of (generation, task, seq)."""
    batches = [delivered.batch for delivered in store.read(operator)]
    return pa.Table.from_batches(batches, schema=schema)


def as_dataframe(
    spark: SparkSession, store: DeliveredStore, operator: str, schema: pa.Schema
) -> DataFrame:
    """Delivered output as a DataFrame whose rows Spark's own tasks read (``mapInArrow``).

    Every delivered file is read by one task; on a cluster its folder must be shared.
    """
    from pyspark.sql.pandas.types import from_arrow_schema

    root = len(store.directory)
    found = store.files(operator)
    names = [file.path[root:] for file in found]
    fields = from_arrow_schema(schema)
    if not names:
        return spark.createDataFrame([], fields)
    keep = _ranges(found)
    count, uri = len(names), store.uri

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for numbers in batches:
            for number in numbers.column(0).to_pylist():
                yield from _read_file(uri, names[number], *keep[number])

    return spark.range(0, count, 1, min(count, 64)).mapInArrow(read, fields)


def _ranges(files: Sequence[DeliveredFile]) -> list[tuple[int, int]]:
    """For each file, the seq up to which earlier files have the same batches, and its last one."""
    newest: dict[tuple[int, int], int] = {}
    result = []
    for file in files:
        key = (file.generation, file.task_index)
        result.append((newest.get(key, -1), file.last_seq))
        newest[key] = max(newest.get(key, -1), file.last_seq)
    return result


def _read_file(uri: str, name: str, behind: int, last: int) -> Iterator[pa.RecordBatch]:
    files, root = files_of(uri)
    path = f"{root}{name}"
    try:
        for seq, batch in read_file(path, files):
            if behind < seq <= last:
                yield batch
    except UnreadableOutput as error:
        if files.info(path) is not None:
            raise
        raise SourceError(
            "an executor does not find the delivered output",
            where=path,
            remedy="keep the checkpoint_dir (or the journal) in a folder that all executors "
            'share, or use clonos.sinks.table(path) and spark.read.format("clonos").load(path)',
        ) from error


def write_with_spark(sink: SinkSpec, operator: str, frame: Any) -> None:
    """Hand the rows of a finished job to a user's function."""
    assert sink.fn is not None
    remedy = (
        "correct the function and start the job again: with a checkpoint_dir, tasks compute "
        "nothing again"
    )
    _call(sink.fn, frame, operator, "writing with Spark failed:", remedy)


def _call(fn: Callable[[Any], Any], rows: Any, where: str, what: str, remedy: str) -> None:
    """Call a user's function with rows."""
    try:
        fn(rows)
    except (Exception, SystemExit) as error:
        raise OperatorError(
            f"{what} {in_short(error)}",
            trace=users_traceback(error),
            where=where,
            remedy=remedy,
        ) from error
