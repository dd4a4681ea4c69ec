"""The description of a source: what a slot or the driver has to set up for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from clonos.errors import ProtocolError
from clonos.operators.operations import Operation, PassOn
from clonos.sources.readers import Reader

ReaderFactory = Callable[[int, int], Reader]
"""(task index, parallelism) -> reader."""


@dataclass(frozen=True)
class Feeding:
    """How a streaming query feeds a source.

    Parameters
    ----------
    output_mode, processing_time, available_now
        As PySpark's ``writeStream`` takes them.
    backlog_bytes
        The query waits while more than this is spooled and may still be asked for.
    """

    output_mode: str = "append"
    processing_time: str | None = None
    available_now: bool = False
    backlog_bytes: int = 256 << 20


Offer = Callable[[bytes, str | None, str | None, Callable[[bool], object]], bool]
"""(value, key, topic, thank) -> whether it was taken; `thank` then hears whether it is durable."""


Fail = Callable[[Exception], object]
"""Called, from any thread, with the error for which nothing will come any more: the job ends."""


class Listener(Protocol):
    """An inlet that is open."""

    def close(self) -> None:
        """Let go of it."""


class Inlet(Protocol):
    """Where messages come from that are offered once. The driver opens it."""

    def open(self, offer: Offer, fail: Fail) -> Listener:
        """Offer what comes, from threads of its own.

        Raises
        ------
        SourceError
            Nothing can come.
        """


@dataclass(frozen=True)
class SourceSpec:
    """Where a source's rows come from.

    Parameters
    ----------
    kind
        "batches", "dataframe", "files", "kafka", "materialized" (a DataFrame that is written to
        files first), "mqtt", "postgres", "rate", "redis", "socket", "stream" (a streaming
        DataFrame), "table", "versions" (of a table that is looked up), "webhook" or "websocket".
    schema
        Of what the reader delivers.
    factory
        Makes a task's reader; None for DataFrames, whose rows Spark brings.
    replayable
        Whether the reader can deliver the same rows again.
    rows_schema
        Of the stream, after `head`.
    head
        What the chain begins with (parsing of lines); most pass rows on.
    parallelism_max
        The highest number of tasks that can share the source, None if any.
    dataframe
        The Spark DataFrame, or the table. It stays in the driver: it is not pickled.
    rows_per_second
        Of all tasks together, at most; None: as fast as the job can.
    feeding
        Of a "stream".
    refresh_ms
        Of "versions": how often the table is read again.
    inlet
        Of "mqtt", "webhook" and "websocket". It stays in the driver, as its secrets do.
    ends
        Whether it is known to end by itself.
    narrow
        The same source without all columns but those that it is given, in their order; None if
        that saves nothing.
    """

    kind: str
    schema: pa.Schema
    factory: ReaderFactory | None
    replayable: bool
    rows_schema: pa.Schema
    head: Operation = field(default_factory=PassOn)
    parallelism_max: int | None = None
    dataframe: Any = field(default=None, compare=False)
    rows_per_second: float | None = None
    feeding: Feeding | None = None
    refresh_ms: int | None = None
    inlet: Inlet | None = field(default=None, compare=False)
    ends: bool = True
    narrow: Callable[[Sequence[str]], SourceSpec] | None = field(default=None, compare=False)

    @property
    def is_fed(self) -> bool:
        """Whether the driver hands over rows while the job runs: Spark's, or an inlet's."""
        return self.is_fed_by_spark or self.inlet is not None

    @property
    def is_fed_by_spark(self) -> bool:
        """Whether Spark makes them."""
        return self.feeding is not None or self.refresh_ms is not None

    @property
    def is_bound(self) -> bool:
        """Whether Spark brings the rows to a slot of the task's own."""
        return self.kind == "dataframe"

    def reader(self, task_index: int, parallelism: int) -> Reader:
        """The reader of one task."""
        if self.factory is None:
            raise ProtocolError(f"a {self.kind} source has no reader of its own")
        return self.factory(task_index, parallelism)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dataframe": None, "narrow": None, "inlet": None}
