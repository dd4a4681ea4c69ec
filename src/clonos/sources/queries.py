"""A streaming query that feeds a source: Structured Streaming's micro-batches go into a spool.

Spark commits its offset when the function of ``foreachBatch`` has returned, which it does when the
batch's manifest is in the spool. So whatever dies on either side: a batch whose offset was
committed is in the spool, and a batch that Spark offers again is in it only once.

Before a batch, Spark records the range of the input that it covers. The manifest has a digest of
this range, because the batch's number alone would not distinguish a repeated batch from a different
one, of a query whose checkpoint was reset.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark import TaskContext

from clonos.errors import ClonosError, FeedFailed, SourceError, SparkStopped
from clonos.sources.spec import Feeding
from clonos.sources.spool import Part, Spool, write_parts
from clonos.spark.micro_batches import MicroBatchFailed, interrupted, short_errors
from clonos.spark.slots import CANCELLED, SPARK_ERRORS, cancelled, in_short, is_stopped
from clonos.storage.files import Durability
from clonos.storage.layers import LayerStore
from clonos.storage.planned import extent
from clonos.storage.retry import Retry

LOGGER: Final = logging.getLogger("clonos")

STOP_S: Final = 15.0
"""Grace period for Spark to stop a query; then the job goes on, as the query can do no harm."""

STOPPING_S: Final = 5.0
"""Grace period for Spark to begin to stop a query."""
LOOK_S: Final = 0.01

_QUERY_PROPERTY: Final = "sql.streaming.queryId"
_PART: Final = "path string, rows long, nbytes long"


class FeedingQuery:
    """One streaming query and the spool that it fills.

    Parameters
    ----------
    name
        The query's name, as Spark and our errors show it.
    schema
        The schema of the rows in the spool.
    checkpoint
        Where the query keeps its own checkpoint: a local path or a URI.
    report
        Called, from a separate thread, with the error that ended the query.
    """

    def __init__(
        self,
        name: str,
        frame: Any,
        schema: pa.Schema,
        feeding: Feeding,
        spool: Spool,
        checkpoint: str,
        report: Callable[[ClonosError], Any],
    ) -> None:
        self._name, self._frame, self._schema = name, frame, schema
        self._feeding, self._spool, self._checkpoint = feeding, spool, checkpoint
        self._report = report
        self._query: Any = None
        self._synced: set[Path] = set()
        self._error: ClonosError | None = None
        self._told = ""  # Spark's error for a micro-batch that it could not compute
        self._closed = False
        self._stopper: threading.Thread | None = None
        self._watcher = threading.Thread(
            target=self._watch, name=f"clonos-feed {name}", daemon=True
        )

    def start(self) -> None:
        """Start the query where it stopped.

        Raises
        ------
        SourceError
            Spark cannot start it.
        """
        feeding = self._feeding
        try:
            writer = (
                self._frame.writeStream.queryName(self._name)
                .outputMode(feeding.output_mode)
                .option("checkpointLocation", hadoop_path(self._checkpoint))
                .foreachBatch(self._take)
            )
            if feeding.available_now:
                writer = writer.trigger(availableNow=True)
            elif feeding.processing_time is not None:
                writer = writer.trigger(processingTime=feeding.processing_time)
            self._query = writer.start()
        except SPARK_ERRORS as error:
            raise SourceError(
                f"the streaming query does not start: {in_short(error)}", where=self._name
            ) from error
        self._watcher.start()

    def _take(self, frame: Any, batch: int) -> None:
        """Spool a micro-batch (called by Spark in its own thread)."""
        try:
            self._spool.wait_for_room()
            with short_errors(self._is_stopping):
                query = frame.sparkSession.sparkContext.getLocalProperty(_QUERY_PROPERTY)
                write = partial(
                    write_rows, self._spool.uri, self._spool.durability, batch, self._schema
                )
                parts = [Part(*row) for row in frame.mapInArrow(write, _PART).collect()]
            planned = extent(self._checkpoint, batch, self._spool.durability, self._synced)
            self._spool.take(query, batch, parts, planned)
        except ClonosError as error:
            if self._closed:  # the batch was not taken, and is offered again when the job goes on
                self._wait_until_stopping()
                raise interrupted() from None
            self._error = error
            raise
        except (MicroBatchFailed, OSError) as error:
            self._told = in_short(error)  # the query's own error names the place, but not the cause
            raise

    def _is_stopping(self) -> bool:
        return self._closed or (self._query is not None and not self._query.isActive)

    def _wait_until_stopping(self) -> None:
        """Spark logs an error that comes before it knows that the query is being stopped."""
        until = time.monotonic() + STOPPING_S
        with contextlib.suppress(*SPARK_ERRORS, AttributeError):
            while self._query is not None and self._query.isActive and time.monotonic() < until:
                time.sleep(LOOK_S)

    def _watch(self) -> None:
        """Wait for the query's end and report it."""
        try:
            self._query.awaitTermination()
            if self._closed:
                return
            if self._is_spark_stopped():
                raise self._stopped()
            self._spool.end()
        except Exception as error:  # noqa: BLE001 - whatever it is, the job waits for rows or an end
            if not self._closed:
                self._report(self._failed(error))

    def _failed(self, error: Exception) -> ClonosError:
        if isinstance(error, ClonosError):
            return error
        if self._error is not None:
            return self._error
        if self._is_spark_stopped():  # whatever the error is: Spark is shutting down
            return self._stopped()
        if CANCELLED in str(error):  # the query was cancelled, or all jobs of the application
            return cancelled(self._name, error)
        return FeedFailed(
            f"the streaming query that feeds the job has failed: {self._told or in_short(error)}",
            where=self._name,
            remedy="correct what it says and start the job again: with a checkpoint_dir both go on "
            "where they were",
        )

    def _is_spark_stopped(self) -> bool:
        return is_stopped(self._frame.sparkSession.sparkContext)

    def _stopped(self) -> SparkStopped:
        return SparkStopped(
            "the Spark application was stopped while the job ran",
            where=self._name,
            remedy="stop the job first; with a checkpoint_dir it goes on in a new session",
        )

    def leave(self) -> None:
        """Begin to stop the query; its current batch is offered again when it continues."""
        self._closed = True
        self._spool.close()
        if self._query is None or self._stopper is not None:
            return

        def stop() -> None:
            with contextlib.suppress(*SPARK_ERRORS, AttributeError):
                self._query.stop()

        name = f"clonos-unfeed {self._name}"
        self._stopper = threading.Thread(target=stop, name=name, daemon=True)
        self._stopper.start()

    def close(self, until: float | None = None) -> None:
        """Stop the query, and wait until it has stopped or until this time (monotonic)."""
        self.leave()
        if self._stopper is None:
            return
        left_s = STOP_S if until is None else max(0.0, until - time.monotonic())
        self._stopper.join(left_s)
        if self._stopper.is_alive():
            LOGGER.warning("%s: Spark does not stop the query; the job ends without", self._name)


def write_rows(
    uri: str,
    durability: Durability,
    batch: int,
    schema: pa.Schema,
    batches: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Spool a partition, in Spark's task; yields a row for each file."""
    context = TaskContext.get()
    assert context is not None
    store = LayerStore(uri, durability, retry=Retry("rows that Spark hands over"))
    for part in write_parts(store, batch, context.partitionId(), batches, schema):
        yield pa.RecordBatch.from_pydict(
            {"path": [part.path], "rows": [part.rows], "nbytes": [part.nbytes]}
        )


def hadoop_path(uri: str) -> str:
    """A location in Spark's notation. Hadoop says s3a for pyarrow's s3, and escapes nothing; it
    would look for a bare path on its default file system.

    Examples
    --------
    >>> hadoop_path("/data/a b"), hadoop_path("s3://bucket/a%20b")
    ('file:///data/a b', 's3a://bucket/a b')
    """
    if "://" not in uri:
        return f"file://{Path(uri).absolute()}"
    scheme, _, rest = uri.partition("://")
    return f"{'s3a' if scheme == 's3' else scheme}://{unquote(rest)}"
