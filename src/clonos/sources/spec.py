"""The description of a source: what a slot or the driver must set up for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from clonos.errors import ProtocolError, WrongType
from clonos.operators.by_key.look_up import VERSIONS, SideTable
from clonos.operators.calls.budget import is_number
from clonos.operators.operations import Operation, PassOn, PassVersions
from clonos.sources.readers import Reader

ReaderFactory = Callable[[int, int], Reader]
"""(task index, parallelism) -> reader."""


def rate_of(name: str, rate: Any) -> float:
    """A number of rows per second."""
    if not (is_number(rate) and rate > 0):
        raise WrongType(f"{name}={rate!r}", remedy="give a number above 0")
    return float(rate)


@dataclass(frozen=True)
class Feeding:
    """How a streaming query feeds a source.

    Parameters
    ----------
    output_mode, processing_time, available_now
        As PySpark's ``writeStream`` takes them.
    backlog_bytes
        The query waits while more than this is spooled and may still be needed.
    """

    output_mode: str = "append"
    processing_time: str | None = None
    available_now: bool = False
    backlog_bytes: int = 256 << 20


Offer = Callable[[bytes, str | None, str | None, Callable[[bool], object]], bool]
"""(value, key, topic, thank) -> whether the message was taken. If so, `thank` is called with
whether it is durable."""


Fail = Callable[[Exception], object]
"""Called, from any thread, with the error that has ended the inlet; the job ends, too."""


Warn = Callable[[str], object]
"""Called, from any thread, with what the user should hear while the inlet goes on."""


class Listener(Protocol):
    """An open inlet."""

    def close(self) -> None:
        """Close the inlet."""


class Inlet(Protocol):
    """A source of messages that are offered only once. The driver opens it."""

    def open(self, offer: Offer, fail: Fail, warn: Warn) -> Listener:
        """Offer incoming messages, and warn, from the inlet's own threads.

        Raises
        ------
        SourceError
            The inlet cannot be opened.
        """


@dataclass(frozen=True)
class SourceSpec:
    """Where a source's rows come from.

    Parameters
    ----------
    kind
        "batches", "dataframe", "files", "kafka", "materialized" (a DataFrame that is written to
        files first), "mqtt", "postgres", "rate", "redis", "socket", "stream" (a streaming
        DataFrame), "table", "versions" (of a look-up table), "webhook" or "websocket".
    schema
        The schema of the reader.
    factory
        Makes a task's reader; None for DataFrames, whose rows Spark delivers.
    replayable
        Whether the reader can deliver the same rows again.
    rows_schema
        The schema of the stream, after `head`.
    head
        The first operation of the chain, such as parsing lines; most sources pass rows on.
    parallelism_max
        The largest number of tasks that can share the source; None: any.
    dataframe
        The Spark DataFrame, or the table. It stays in the driver and is not pickled.
    rows_per_second
        The largest rate of all tasks together; None: no limit.
    feeding
        For a "stream".
    refresh_ms
        For "versions": how often the table is read again.
    inlet
        For "mqtt", "webhook" and "websocket". It stays in the driver, with its secrets.
    ends
        Whether the source is known to end by itself.
    begins_now
        Whether a new task begins with what comes next, whenever that is. Only a log knows later
        when it was.
    reads
        What it reads, by name: topics, streams, a query. Positions in one of them mean nothing in
        another. Empty if the reader itself notices that it reads something else.
    forget
        Makes a cut without the positions in some of these, which are read from their starting point
        then, if at all; None if a cut has one position in all of them.
    narrow
        Makes the same source with only the given columns, in their order; None if that saves
        nothing.
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
    begins_now: bool = False
    reads: tuple[str, ...] = ()
    forget: Callable[[bytes, Collection[str]], bytes] | None = field(default=None, compare=False)
    narrow: Callable[[Sequence[str]], SourceSpec] | None = field(default=None, compare=False)

    @property
    def is_fed(self) -> bool:
        """Whether the driver feeds it while the job runs, from Spark or from an inlet."""
        return self.is_fed_by_spark or self.inlet is not None

    @property
    def is_fed_by_spark(self) -> bool:
        """Whether the driver feeds it from Spark."""
        return self.feeding is not None or self.refresh_ms is not None

    @property
    def is_bound(self) -> bool:
        """Whether Spark delivers the rows to a slot that only this task can use."""
        return self.kind == "dataframe"

    def reader(self, task_index: int, parallelism: int) -> Reader:
        """The reader of one task."""
        if self.factory is None:
            raise ProtocolError(f"a {self.kind} source has no reader of its own")
        return self.factory(task_index, parallelism)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "dataframe": None, "narrow": None, "inlet": None}


def table_versions(table: SideTable, refresh_ms: int) -> SourceSpec:
    """Versions of a look-up table, one row each; for ``look_up(..., refresh=...)``."""
    return SourceSpec(
        kind="versions",
        schema=VERSIONS,
        factory=None,
        replayable=True,
        rows_schema=VERSIONS,
        head=PassVersions(),
        parallelism_max=1,
        dataframe=table,
        refresh_ms=refresh_ms,
    )
