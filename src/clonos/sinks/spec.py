"""The description of a sink: what a slot or the driver must set up for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

import pyarrow as pa

from clonos.operators.operations import Operation, PassOn
from clonos.sinks.lanes import Lane, OutputWriter

NO_FORMAT: Final = (
    "see Spark's error; a format of another package needs its jars: spark.jars.packages"
)
"""What to do if Spark does not begin to write."""


class Claim(Protocol):
    """The driver's claim on the place that one sink of its job writes to.

    Everything but `withdraw` may raise :class:`~clonos.errors.SinkFailed`.

    Attributes
    ----------
    is_fresh
        Whether :meth:`begin` found the place without a claim, and has claimed it.
    """

    is_fresh: bool

    def begin(self, schema: pa.Schema, *, is_new: bool, is_added: bool = False) -> None:
        """Claim the place, before any task runs.

        Parameters
        ----------
        is_new
            The sink has written nothing yet.
        is_added
            It was added to a job that has run, so `is_new` is true of what its tasks number. But an
            earlier graph of the job may have had it: what that has put out may be there.
        """

    def require(self, schema: pa.Schema) -> None:
        """Before the graph of the job changes: check that rows with these columns fit what is
        there, as it will be too late to refuse the change when the claim begins.

        Raises
        ------
        DefinitionError, CannotUpgrade
            They do not.
        """

    def widen(self) -> None:
        """Extend the claim: the sink may have more tasks than when the place was claimed."""

    def check(self) -> None:
        """Check that no other job has claimed the place at the same moment."""

    def withdraw(self) -> None:
        """The job will not go on: release the place if nothing was written."""

    def end(self) -> None:
        """The job is complete, and no task writes: clean up."""


class Store(Protocol):
    """A store to which the tasks of a sink write themselves, in transactions; sent to slots."""

    @property
    def place(self) -> str | None:
        """A name that no two sinks of a job may share; errors show it, so it has no secrets."""

    def check(self, schema: pa.Schema) -> None:
        """Check that rows with these columns can be written, where the job is defined.

        Raises
        ------
        BadSchema, UnknownColumn, WrongType
            They cannot.
        """

    def claim(self, lane: Lane, tasks: int) -> Claim | None:
        """The claim of a sink with this first lane and number of tasks; None: nothing to claim."""

    def writer(self, lane: Lane) -> OutputWriter:
        """The writer of one life of a task."""


@dataclass(frozen=True)
class Query:
    """A streaming query that follows a table and writes its rows with Spark.

    ``format``, ``options``, ``path``, ``partition_by``, ``processing_time``: as in ``writeStream``.
    """

    format: str
    path: str | None
    options: Mapping[str, str] = field(repr=False)  # with passwords, perhaps
    partition_by: tuple[str, ...] = ()
    processing_time: str | None = None


@dataclass(frozen=True)
class SinkSpec:
    """The target of a sink's rows.

    Parameters
    ----------
    kind
        "collect", "console", "callback", "http", "kafka", "parquet", "table", "spark_write",
        "postgres" or "transactional".
    head
        The first operation of the sink's chain.
    path
        The folder that the tasks write to themselves.
    store
        Another store that the tasks write to themselves.
    upsert
        Columns by which later rows replace earlier ones.
    fn
        The callback, or the function that writes a DataFrame; called in the driver.
    query
        For a table: the query that follows it while the job runs.
    schema
        The schema of the rows; set when the sink is attached to a stream.
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
        """Whether its tasks write, rather than the driver."""
        return self.path is not None or self.store is not None

    def with_schema(self, schema: pa.Schema) -> SinkSpec:
        """The same sink for rows of this schema, if it can write them."""
        if self.store is not None:
            self.store.check(schema)
        return replace(self, schema=schema)

    def __getstate__(self) -> dict[str, Any]:
        # Only the driver calls it, so it need not be pickled for slots.
        return {**self.__dict__, "fn": None}
