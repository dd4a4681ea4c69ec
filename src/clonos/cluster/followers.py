"""Spark's streaming queries that write a job's rows with Spark's writers: ``clonos.sinks.spark``.

The tasks write a table, as for ``clonos.sinks.table``, and a query follows it. It starts, stops,
fails and recovers with the job: its checkpoint is in the job's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from clonos.errors import ClonosError, SinkFailed
from clonos.graph.compile import CompiledJob
from clonos.nodes.events import OutsideFailed
from clonos.sinks.spec import NO_FORMAT, SinkSpec
from clonos.sources.queries import hadoop_path
from clonos.spark.slots import SPARK_ERRORS, in_short
from clonos.storage.files import folder_name

TAKE_S: Final = 60.0
"""How long a query has at the end of a job to take the delivered rows. It goes on at the next
start."""


class Followers:
    """The queries of one job.

    Parameters
    ----------
    checkpoint
        The folder of their checkpoints.
    report
        Takes the error of a query that has ended.
    warn
        Called with a text.
    """

    def __init__(
        self,
        compiled: CompiledJob,
        spark: Any,
        checkpoint: str,
        report: Callable[[OutsideFailed], object],
        warn: Callable[[str], object],
    ) -> None:
        self._job, self._spark, self._checkpoint = compiled.name, spark, checkpoint
        self._sinks = {name: sink for name, (sink, _) in compiled.sinks.items() if sink.query}
        self._report, self._warn = report, warn
        self._queries: dict[str, Any] = {}
        self._is_over = False

    def start(self) -> None:
        """Begin to follow, or go on.

        Raises
        ------
        SinkFailed
            Spark does not start a query.
        """
        for name, sink in self._sinks.items():
            try:
                query = self._queries[name] = self._started(name, sink)
            except SPARK_ERRORS as error:
                raise SinkFailed(
                    f"Spark does not start its query: {in_short(error)}",
                    where=name,
                    remedy=NO_FORMAT,
                ) from error
            watching = threading.Thread(target=self._watch, args=(name, query), daemon=True)
            watching.start()

    def _started(self, name: str, sink: SinkSpec) -> Any:
        assert sink.query is not None
        how, place = sink.query, f"{self._checkpoint}/{folder_name(name)}"
        writer = (
            self._spark.readStream.format("clonos")
            .load(sink.path)
            .writeStream.queryName(f"{self._job}: {name}")
            .format(how.format)
            .options(**how.options)
            .option("checkpointLocation", hadoop_path(place))
        )
        if how.partition_by:
            writer = writer.partitionBy(*how.partition_by)
        if how.processing_time is not None:
            writer = writer.trigger(processingTime=how.processing_time)
        return writer.start(how.path)

    def _watch(self, name: str, query: Any) -> None:
        try:
            query.awaitTermination()
        except SPARK_ERRORS as error:
            if not self._is_over:
                self._report(OutsideFailed(_failed(name, error)))
        else:
            if not self._is_over:
                stopped = SinkFailed(
                    "its query was stopped while the job ran",
                    where=name,
                    remedy="stop the job, not the query: it is started with the job again",
                )
                self._report(OutsideFailed(stopped))

    def finish(self) -> None:
        """The job has ended: let queries take the delivered rows, and stop them.

        Raises
        ------
        SinkFailed
            A query has failed meanwhile.
        """
        self._is_over = True
        errors: dict[str, ClonosError] = {}
        taking = [
            threading.Thread(target=self._take_all, args=(name, query, errors), daemon=True)
            for name, query in self._queries.items()
        ]
        for thread in taking:
            thread.start()
        for name, thread in zip(self._queries, taking, strict=True):
            thread.join(TAKE_S)
            if thread.is_alive():
                self._warn(
                    f"{name}: its query has not taken all rows in {TAKE_S:g} s; it goes on when "
                    "the job is started again"
                )
            with suppress(*SPARK_ERRORS):
                self._queries[name].stop()
        self._queries.clear()
        for error in errors.values():
            raise error

    @staticmethod
    def _take_all(name: str, query: Any, errors: dict[str, ClonosError]) -> None:
        try:
            query.processAllAvailable()
        except SPARK_ERRORS as error:
            errors[name] = _failed(name, error)


def _failed(name: str, error: BaseException) -> SinkFailed:
    return SinkFailed(
        f"its query has failed: {in_short(error)}",
        where=name,
        remedy="correct what it says and start the job again: with a checkpoint_dir both go on "
        "where they were",
    )
