"""What remains of a job when it has ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from clonos.cluster.directory import JobDirectory
from clonos.errors import DefinitionError
from clonos.nodes.views import DriverView, Recovery, Spent
from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.outputs import as_dataframe, read_all


@dataclass(frozen=True)
class Delivered:
    """The output of a job that was delivered to its driver, by sink."""

    spark: Any
    directory: JobDirectory
    store: DeliveredStore
    schemas: Mapping[str, pa.Schema]

    def table(self, sink: str) -> pa.Table:
        return read_all(self.store, sink, self.schemas[sink])

    def batches(self, sink: str) -> Iterator[pa.RecordBatch]:
        return (delivered.batch for delivered in self.store.read(sink))

    def dataframe(self, sink: str) -> Any:
        return as_dataframe(self.spark, self.store, sink, self.schemas[sink])


class JobResult:
    """What a job leaves when it has ended.

    Attributes
    ----------
    is_complete
        False if the job was stopped; started again with its checkpoint, it goes on.
    recoveries
        One per recovery of a task, in order.
    generation
        How often availability was chosen over consistency. Above 0, rows may have been delivered
        twice.
    dropped
        Rows that were left out, by reason: ``{"words: bad_records": 3}``.
    bill
        What calls have cost, by operator: ``{"judge": Spent(calls=200, cost=4.8, hits=0)}``. Calls
        count if their outcome is in the log. A call that was open when its process died may have
        been answered, and charged, once more than this says.
    warnings
        The warnings of the run, in words.
    """

    def __init__(
        self, view: DriverView, generation: int, warnings: Sequence[str], delivered: Delivered
    ) -> None:
        self._delivered = delivered
        self.is_complete = view.is_complete
        self.recoveries: list[Recovery] = list(view.recoveries)
        self.generation = generation
        self.dropped: dict[str, int] = dict(view.dropped)
        self.bill: dict[str, Spent] = dict(view.bill)
        self.warnings: list[str] = list(warnings)

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks."""
        return list(self._delivered.schemas)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each sink has delivered, in all runs of the job together."""
        return {name: self._delivered.store.count(name) for name in self.sinks}

    def table(self, sink: str | None = None) -> pa.Table:
        """Delivered rows of a sink (the only one, if not named) as an Arrow table.

        They are ordered by sink task, and in the order of their delivery within it.
        """
        return self._delivered.table(self._named(sink))

    def batches(self, sink: str | None = None) -> Iterator[pa.RecordBatch]:
        """The same rows batch by batch, read from files one after the other, so they need not fit
        into memory.

        Examples
        --------
        >>> for batch in result.batches():  # doctest: +SKIP
        ...     total += batch.num_rows
        """
        return self._delivered.batches(self._named(sink))

    def dataframe(self, sink: str | None = None) -> Any:
        """The same rows as a Spark DataFrame, which Spark's own tasks read whenever it is used."""
        name = self._named(sink)
        self._delivered.directory.keep()
        return self._delivered.dataframe(name)

    def _named(self, sink: str | None) -> str:
        names = self.sinks
        if sink is None and len(names) == 1:
            return names[0]
        if sink not in names:
            raise DefinitionError(
                "the job has several sinks" if sink is None else f"there is no sink {sink!r}",
                remedy=f"name one of {', '.join(names)}",
            )
        return sink

    def __repr__(self) -> str:
        rows = ", ".join(f"{sink}: {count}" for sink, count in self.rows.items())
        state = "complete" if self.is_complete else "stopped"
        return f"<JobResult {state}, rows {rows}, {len(self.recoveries)} recoveries>"
