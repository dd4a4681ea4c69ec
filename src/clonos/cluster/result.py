"""What a job leaves when it has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa

from clonos.cluster.progress import Recovery
from clonos.errors import DefinitionError
from clonos.sinks.outputs import as_dataframe, read_all

if TYPE_CHECKING:
    from clonos.cluster.driver import RunningJob


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
    warnings
        What was not as good as it could have been, in words.
    """

    def __init__(self, job: RunningJob) -> None:
        self._job = job
        self.is_complete: bool = job.host.keeper.complete
        self.recoveries: list[Recovery] = job.observer.recoveries
        self.generation: int = job.host.keeper.generation
        self.dropped: dict[str, int] = job.observer.dropped()
        self.warnings: list[str] = list(job.warnings)

    @property
    def sinks(self) -> list[str]:
        """The names of the sinks."""
        return list(self._job.sinks)

    @property
    def rows(self) -> dict[str, int]:
        """How many rows each sink has delivered, in all runs of the job together."""
        return {name: self._job.host.delivered.count(name) for name in self.sinks}

    def table(self, sink: str | None = None) -> pa.Table:
        """Delivered rows of a sink (the only one, if not named) as an Arrow table.

        They are ordered by sink task, and in the order of their delivery within it.
        """
        name = self._named(sink)
        return read_all(self._job.host.delivered, name, self._job.sink_schemas[name])

    def dataframe(self, sink: str | None = None) -> Any:
        """The same as a Spark DataFrame, read by Spark's own tasks, now and whenever it is used."""
        name = self._named(sink)
        self._job.directory.keep()
        schema = self._job.sink_schemas[name]
        return as_dataframe(self._job.spark, self._job.host.delivered, name, schema)

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
