"""``df.writeStream.format("clonos")``: the batches of a streaming query become a table.

Spark runs the parts in different processes: ``write`` in its tasks, any number of times; ``commit``
and ``abort`` beside the driver, each in a process without memory. All common state is in the
folder: a batch is in the table as soon as its manifest is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import datasource
from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import StructType

from clonos.columns.batches import conform
from clonos.columns.schema import parse_schema
from clonos.errors import BadSchema, DefinitionError, OtherQuery, OutputExists, SourceError
from clonos.storage.planned import extent
from clonos.storage.table_batches import StagedFile
from clonos.storage.tables import OF_QUERY, Table

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
else:  # it exists from Spark 4.1 on
    DataSourceStreamArrowWriter = getattr(datasource, "DataSourceStreamArrowWriter", object)

_QUERY: Final = "sql.streaming.queryId"
_BATCH: Final = "streaming.sql.batchId"


@dataclass
class Written(WriterCommitMessage):
    """The files that one attempt of a partition has written."""

    query: str
    batch: int
    files: tuple[StagedFile, ...]


def claim(table: Table, schema: pa.Schema, query: str) -> None:
    """Claim a table for a query, unless the query owns it already.

    Raises
    ------
    OtherQuery, OutputExists, BadSchema
        The table has another owner or other columns, or has been ended.
    """
    owner, schema = OF_QUERY + query, _nullable(schema)
    if not table.exists:
        table.create(schema, owner)
    found = table.owner
    if found != owner and table.is_of_query:
        raise OtherQuery(
            f"the rows so far came from the streaming {found}, these come from {owner}",
            where=table.path,
            remedy="restore the query's checkpoint, or give it a folder of its own",
        )
    if found != owner:
        raise OutputExists(
            "the folder is a table that a job writes", where=table.path, remedy="use another"
        )
    if not _nullable(table.schema).equals(schema):
        raise BadSchema(
            f"the table has columns {_shown(table.schema)}, the query gives {_shown(schema)}",
            where=table.path,
            remedy="write other columns into a folder of their own, with a new checkpoint",
        )
    if table.ended:
        raise OutputExists(
            "the table has been ended: its readers expect nothing more",
            where=table.path,
            remedy="write into another folder, with a new checkpoint",
        )


def _nullable(schema: pa.Schema) -> pa.Schema:
    """The schema with all columns nullable, because Spark and jobs may disagree about that."""
    return pa.schema([field.with_nullable(True) for field in schema])


class QueryWriter(DataSourceStreamArrowWriter):
    """Writes the batches of one query, each once.

    Parameters
    ----------
    schema
        The schema of the rows.
    options
        The query's options: ``path``, ``removeRead`` and, if the query sets it,
        ``checkpointLocation``.

    Raises
    ------
    DefinitionError
        Spark is too old, or the query outputs all its rows again in each batch.
    """

    def __init__(
        self, path: str, schema: StructType, options: Mapping[str, str], *, overwrite: bool
    ) -> None:
        if DataSourceStreamArrowWriter is object:
            raise DefinitionError(
                "this Spark cannot write batches of Arrow", where="clonos", remedy="use Spark 4.1"
            )
        if overwrite:
            raise DefinitionError(
                'outputMode("complete") gives all rows again in each batch',
                where="clonos",
                remedy='use outputMode("append"), or "update" for rows that replace others',
            )
        remove = options.get("removeRead", "false").lower()
        if remove not in ("true", "false"):
            raise DefinitionError(
                f"removeRead={remove!r}", where="clonos", remedy='say "true" or "false"'
            )
        self._path, self._schema = path, _nullable(parse_schema(schema))
        self._removes = remove == "true"
        self._checkpoint = options.get("checkpointLocation")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Write a partition (runs in a Spark task)."""
        context = TaskContext.get()
        assert context is not None
        query, batch = context.getLocalProperty(_QUERY), context.getLocalProperty(_BATCH)
        assert query is not None
        assert batch is not None
        rows = (self._fitting(piece) for piece in iterator)
        table, number = Table(self._path, "fsync"), int(batch)
        staged = table.stage(number, context.partitionId(), rows, self._schema)
        return Written(query, number, tuple(staged))

    def _fitting(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        try:
            return conform(batch, self._schema)
        except (pa.ArrowException, ValueError) as error:
            raise BadSchema(f"the query gives other columns: {error}", where=self._path) from error

    def commit(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Take a batch (runs beside the driver)."""
        written = [message for message in messages if isinstance(message, Written)]
        if not written:  # not even a partition without rows
            return
        table = Table(self._path, "fsync")
        claim(table, self._schema, written[0].query)
        files = [file for message in written for file in message.files]
        table.take(batchId, files, self._extent(batchId))
        if self._removes:
            table.remove_read()

    def abort(self, messages: Sequence[Any], batchId: int) -> None:  # noqa: N803 - Spark's name
        """A batch has failed, or Spark does not know that it was taken."""
        written = [message for message in messages if isinstance(message, Written)]
        files = [file for message in written for file in message.files]
        Table(self._path, "fsync").discard(batchId, files)

    def _extent(self, batch: int) -> str:
        """Identifies the batch's input, unlike its number; empty if unknown."""
        if self._checkpoint is None:
            return ""
        try:
            return extent(_arrow_uri(self._checkpoint), batch, "fsync", set())
        except SourceError:  # a file system that only Spark reaches
            return ""


def _arrow_uri(path: str) -> str:
    """A Hadoop path in pyarrow's notation.

    Examples
    --------
    >>> _arrow_uri("s3a://bucket/a"), _arrow_uri("file:/data/a"), _arrow_uri("/data/a")
    ('s3://bucket/a', 'file:///data/a', '/data/a')
    """
    scheme, mark, rest = path.partition(":")
    if not mark:
        return path
    scheme = "s3" if scheme in ("s3a", "s3n") else scheme
    return f"{scheme}:{rest if rest.startswith('//') else '//' + rest}"


def _shown(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} {field.type}" for field in schema)
