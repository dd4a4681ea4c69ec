"""Sources as DataFrames: those that already are one, and those read by the readers of tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from typing import Any, Final

import pyarrow as pa

from clonos.columns.batches import conform
from clonos.columns.schema import quoted
from clonos.dataframes.functions import Step, apply
from clonos.dataframes.rows import Rows, Site, spark_schema
from clonos.dataframes.stateless import dataframe_of
from clonos.sinks.data_source import FORMAT, register
from clonos.sources.readers import EndOfInput
from clonos.sources.spec import SourceSpec
from clonos.sources.tables import followed_by

_ROWS: Final = 10_000

_WATERMARK: Final = "spark.watermarkDelayMs"

_READ: Final = re.compile(r"StreamingRelation (.*?), \[")

_INSTEAD: Final = {
    "kafka": 'give job.source(...) the DataFrame of spark.readStream.format("kafka")',
    "postgres": "give job.source(...) the DataFrame of spark.read.jdbc(...), which ends",
    "socket": "lines from a socket cannot be read again: use files, or a stream of Spark's",
    "rate": 'give job.source(...) the DataFrame of spark.readStream.format("rate")',
}


def streams(source: SourceSpec) -> bool | None:
    """Whether the source streams in Spark; None if it fits streams and tables alike."""
    if source.kind == "versions":
        return None
    return source.kind == "stream" or (source.kind == "table" and not source.ends)


def inputs_of(source: SourceSpec) -> list[str]:
    """The inputs of a streaming source: files with their path, others by their kind."""
    if source.kind == "table":
        return [followed_by(source).path]
    told = StringIO()
    # The only public way to see a plan. A stream made by spark.sql() is not shown, as it does not
    # look like a stream before it is analysed; a select from it is shown.
    with redirect_stdout(told):
        source.dataframe.select("*").explain()
    return _READ.findall(told.getvalue())


def rows_of(source: SourceSpec, site: Site) -> Rows:
    """The rows of a source.

    Raises
    ------
    NotInSpark
        Spark cannot read it as tasks do.
    """
    if source.rows_per_second is not None:
        raise site.refusal("only tasks support rows_per_second", "leave it out")
    if source.kind in ("dataframe", "materialized", "stream"):
        feeding = source.feeding
        if feeding is not None and feeding.output_mode != "append":
            raise site.refusal(f"its output mode is {feeding.output_mode}", "use append")
        _require_plain(source.dataframe, site)
        return Rows(source.dataframe, source.rows_schema)
    if source.kind == "table":
        return Rows(_table(source, site), source.rows_schema)
    if source.kind == "batches":
        reader = source.reader(0, 1)
        reader.open(0)
        table = pa.Table.from_batches(list(_read(reader)), source.schema)
        return Rows(dataframe_of(site.spark, table), source.rows_schema)
    if source.kind == "files":
        tasks = site.vertex.parallelism
        frame = site.spark.range(0, tasks, 1, tasks)
        read = _reading(source, tasks, site.vertex.name)
        return Rows(frame.mapInArrow(read, spark_schema(source.rows_schema)), source.rows_schema)
    if source.kind == "versions":
        raise site.refusal("only tasks read a table again while the job runs", "leave out refresh=")
    raise site.refusal(f"Spark cannot read a {source.kind} source", _INSTEAD.get(source.kind, ""))


def _table(source: SourceSpec, site: Site) -> Any:
    """A table, read by the format that Spark's own queries use."""
    followed = followed_by(source)
    if followed.until is not None:
        raise site.refusal(
            "tasks end where the table ended when the job was defined",
            f'give job.source(...) the DataFrame spark.read.format("{FORMAT}").load(path)',
        )
    register(site.spark)
    reader = site.spark.readStream if site.streams else site.spark.read
    if site.streams and not followed.fail_on_data_loss:
        reader = reader.option("failOnDataLoss", "false")
    frame = reader.format(FORMAT).load(followed.path)
    return frame.select(*map(quoted, source.rows_schema.names))


def _require_plain(frame: Any, site: Site) -> None:
    """Refuse properties of a DataFrame that tasks would not see."""
    for field in frame.schema:
        if site.streams and _WATERMARK in field.metadata:
            raise site.refusal(
                f"the DataFrame has a watermark on {field.name!r}: Spark would forget rows by it",
                "leave it out, and write with_watermark on the stream",
            )


def _reading(
    source: SourceSpec, tasks: int, name: str
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Reads the shares of the tasks with these numbers, with the readers and parsers of tasks."""

    def read(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column(0).to_pylist():
                reader = source.reader(number, tasks)
                reader.open(0)
                steps = (Step(name, source.head, source.schema),)
                for rows in apply(steps, _read(reader), number):
                    yield conform(rows, source.rows_schema)

    return read


def _read(reader: Any) -> Iterator[pa.RecordBatch]:
    while True:
        try:
            batch = reader.read(_ROWS, 0.0)
        except EndOfInput:
            return
        if batch is not None:
            yield batch
