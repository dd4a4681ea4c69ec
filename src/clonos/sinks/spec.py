"""The description of a sink: what a slot or the driver has to set up for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import pyarrow as pa

from clonos.operators.operations import Operation, PassOn
from clonos.sinks.lanes import Lane, OutputWriter


class Claim(Protocol):
    """The place that one sink of a job writes to, as its driver claims it and lets it go.

    Everything but `withdraw` may raise :class:`~clonos.sinks.errors.SinkFailed`.
    """

    def begin(self, schema: pa.Schema, *, is_new: bool) -> None:
        """Claim it, before any task runs. A job that `is_new` has written nothing anywhere."""

    def widen(self) -> None:
        """The sink may have more tasks now than when it was claimed: claim it for them, too."""

    def check(self) -> None:
        """See that no other job has claimed it at the same moment."""

    def withdraw(self) -> None:
        """The job will not go on: if nothing was written, the place is nobody's again."""

    def end(self) -> None:
        """The job is complete and nobody writes: sweep up."""


class Store(Protocol):
    """Where the tasks of a sink write to themselves, in transactions. It is sent to slots."""

    @property
    def place(self) -> str | None:
        """What no two sinks of a job may share; errors name it, so it has no secrets."""

    def claim(self, lane: Lane, tasks: int) -> Claim | None:
        """Of the sink with this (first) lane and so many tasks; None: nothing is claimed."""

    def writer(self, lane: Lane) -> OutputWriter:
        """What a life of a task writes with."""


@dataclass(frozen=True)
class Query:
    """A streaming query that takes a table's rows to where Spark writes.

    ``format``, ``options``, ``path``, ``partition_by``, ``processing_time``: as ``writeStream`` has
    them.
    """

    format: str
    path: str | None
    options: Mapping[str, str]
    partition_by: tuple[str, ...] = ()
    processing_time: str | None = None


@dataclass(frozen=True)
class SinkSpec:
    """What becomes of a sink's rows.

    Parameters
    ----------
    kind
        "collect", "console", "callback", "http", "kafka", "parquet", "table", "spark_write",
        "postgres" or "transactional".
    head
        What the sink's chain does with rows.
    path
        Folder that the tasks write to themselves.
    store
        ... or what else they write to.
    upsert
        Columns by which later rows replace earlier ones.
    fn
        The callback, or the function that writes a DataFrame; called in the driver.
    query
        Of a table: what follows it while the job runs.
    schema
        Of the rows; filled in when the sink is attached to a stream.
    """

    kind: str
    head: Operation = field(default_factory=PassOn)
    path: str | None = None
    store: Store | None = None
    upsert: tuple[str, ...] = ()
    fn: Callable[..., Any] | None = None
    query: Query | None = None
    schema: pa.Schema | None = None

    @property
    def writes_itself(self) -> bool:
        """Its tasks write, not the driver."""
        return self.path is not None or self.store is not None

    def with_schema(self, schema: pa.Schema) -> SinkSpec:
        """The same sink for rows of this schema."""
        return replace(self, schema=schema)

    def __getstate__(self) -> dict[str, Any]:
        # The driver calls it; slots need not be able to hold what it captures.
        return {**self.__dict__, "fn": None}
