"""Spark's formats ``clonos.state`` and ``clonos.log``: the contents of a checkpoint as DataFrames.

Examples
--------
::

    state = spark.read.format("clonos.state").load("/data/checkpoint")
    calls = spark.read.format("clonos.log").load("/data/checkpoint")
    state.where("operator = 'count' and kind = 'value'").select("key", "value")

Options: ``operator``, to read only that one; ``journal``, if it is not in the checkpoint_dir. The
log also takes ``job``, such as ``my_module:job``, whose code says what an answer has cost. Each
task of the job is a partition. Nothing is locked and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from clonos.errors import DefinitionError
from clonos.named import named_job
from clonos.replay.contents import (
    LOG_SCHEMA,
    STATE_SCHEMA,
    TaskContents,
    contents,
    costs_of,
    log_rows,
    state_rows,
)


class OfTask(InputPartition):
    """One task's part of a checkpoint."""

    def __init__(self, task: TaskContents) -> None:
        self.task = task


class CheckpointReader(DataSourceReader):
    """Reads a checkpoint, task by task."""

    def __init__(
        self,
        options: Mapping[str, str],
        rows: Callable[[TaskContents, str | None], Iterator[pa.RecordBatch]],
        *,
        with_log: bool,
    ) -> None:
        path = options.get("path")
        if not path:
            raise DefinitionError(
                "which checkpoint?", remedy='write .load("/the/checkpoint_dir"), as the job has it'
            )
        self._path, self._journal = path, options.get("journal")
        self._rows, self._with_log = rows, with_log
        self._operator = options.get("operator")

    def partitions(self) -> Sequence[InputPartition]:
        found = contents(self._path, self._journal, with_log=self._with_log)
        if self._operator is not None:
            names = dict.fromkeys(name for task in found for name, *_ in task.operators)
            if self._operator not in names:
                raise DefinitionError(
                    f"the job has no operator {self._operator!r}",
                    where=self._path,
                    remedy=f"it has {', '.join(names)}",
                )
        return [OfTask(task) for task in found]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if isinstance(partition, OfTask):
            yield from self._rows(partition.task, self._operator)


class StateSource(DataSource):
    """``clonos.state``."""

    @classmethod
    def name(cls) -> str:
        return "clonos.state"

    def schema(self) -> StructType:
        return from_arrow_schema(STATE_SCHEMA)

    def reader(self, schema: StructType) -> CheckpointReader:
        del schema
        return CheckpointReader(self.options, state_rows, with_log=False)


class LogSource(DataSource):
    """``clonos.log``."""

    @classmethod
    def name(cls) -> str:
        return "clonos.log"

    def schema(self) -> StructType:
        return from_arrow_schema(LOG_SCHEMA)

    def reader(self, schema: StructType) -> CheckpointReader:
        del schema
        job = self.options.get("job")
        costs = costs_of(named_job(job).graph) if job else {}
        return CheckpointReader(self.options, partial(log_rows, costs=costs), with_log=True)


def register(spark: Any) -> None:
    """Register both formats with a session that has not found them by itself."""
    from pyspark.errors import AnalysisException

    for source in (StateSource, LogSource):
        try:
            spark.dataSource.register(source)
        except AnalysisException as error:
            if "ALREADY_EXISTS" not in str(error.getCondition()):
                raise
