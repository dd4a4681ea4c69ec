"""Nexmark's events in Spark: a Python data source, as a table and as a stream.

The same events as everywhere else, so that Spark can be given what a job of ours is given.

Examples
--------
::

    spark.dataSource.register(NexmarkSource)
    spark.read.format("nexmark").option("kind", "bid").option("events", 1_000_000).load()

Options: ``kind``, ``events``, ``delay_us``, ``group`` as of
:class:`~clonos_bench.nexmark.generator.Generator`; ``partitions``; for streams ``rows_per_batch``,
the rows that a micro-batch takes at most.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clonos_bench.nexmark.generator import KINDS, Generator
from clonos_bench.nexmark.source import batches

_BATCH_ROWS: Final = 8192
_ROWS_PER_BATCH: Final = 1_000_000


class Rows(InputPartition):
    """Consecutive rows."""

    def __init__(self, first: int, last: int) -> None:
        self.first = first
        self.last = last


class _Table:
    """What both readers share."""

    def __init__(self, options: Any) -> None:
        events, delay_us = int(options.get("events", 0)), int(options.get("delay_us", 100))
        self._generator = Generator(events, delay_us, int(options.get("group", 1)))
        self._kind: str = options.get("kind", "event")
        self._partitions = int(options.get("partitions", 1))
        self._total = self._generator.rows(self._kind)

    def _split(self, first: int, last: int) -> list[Rows]:
        """Ranges of nearly equal size."""
        edges = [first + (last - first) * i // self._partitions for i in range(self._partitions)]
        pairs = zip(edges, [*edges[1:], last], strict=True)
        return [Rows(start, end) for start, end in pairs if end > start]

    def _rows(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Rows)
        first, last = partition.first, partition.last
        return batches(self._generator, self._kind, _BATCH_ROWS, first, last)


class NexmarkReader(_Table, DataSourceReader):
    """All rows at once."""

    def partitions(self) -> Sequence[InputPartition]:
        return self._split(0, self._total)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows(partition)


class NexmarkStream(_Table, DataSourceStreamReader):
    """Rows micro-batch by micro-batch."""

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._rows_per_batch = int(options.get("rows_per_batch", _ROWS_PER_BATCH))
        self._offered = 0

    def initialOffset(self) -> dict[str, int]:  # noqa: N802 - Spark's name
        return {"rows": 0}

    def getDefaultReadLimit(self) -> Any:  # noqa: N802 - see above
        from pyspark.sql.streaming.datasource import ReadMaxRows  # from Spark 4.2 on

        return ReadMaxRows(self._rows_per_batch)

    def latestOffset(self, *given: Any) -> dict[str, int]:  # noqa: N802 - see above
        # Spark gives the start and a limit from 4.2 on, nothing before. The limit may be to read
        # all that there is: with the trigger availableNow.
        start, rows = self._offered, self._rows_per_batch
        if given:
            start, rows = given[0]["rows"], getattr(given[1], "max_rows", self._total)
        self._offered = min(self._total, start + rows)
        return {"rows": self._offered}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return self._split(start["rows"], end["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows(partition)

    def commit(self, end: dict[str, int]) -> None:
        """Nothing is kept."""


class NexmarkSource(DataSource):
    """Spark's way to the readers."""

    @classmethod
    def name(cls) -> str:
        return "nexmark"

    def schema(self) -> StructType:
        return from_arrow_schema(KINDS[self.options.get("kind", "event")])

    def reader(self, schema: StructType) -> NexmarkReader:
        return NexmarkReader(self.options)

    def streamReader(self, schema: StructType) -> NexmarkStream:  # noqa: N802 - Spark's name
        return NexmarkStream(self.options)


def write_table(
    spark: Any, generator: Generator, kind: str, name: str, partitions: int = 2
) -> None:
    """Write the rows of a kind as a table of Spark's catalogue, replacing one of this name."""
    spark.dataSource.register(NexmarkSource)
    options = {"kind": kind, "events": generator.events, "delay_us": generator.delay_us}
    options |= {"group": generator.group, "partitions": partitions}
    rows = spark.read.format("nexmark").options(**options).load()
    rows.write.mode("overwrite").saveAsTable(name)
