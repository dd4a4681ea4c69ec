"""A user's own job, as the simulated cluster runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa
from pyspark import cloudpickle  # Spark ships functions with it

from clonos.core.messages import Kind
from clonos.core.program import Program
from clonos.graph.compile import CompiledJob
from clonos.simulator.checks.recorder import Recorder
from clonos.simulator.jobs.arrow import ArrowJob
from clonos.simulator.user_job.rows import rows_of, with_rows

RUN = "simulation"
"""The run and lineage in idempotency keys."""


class UserJob(ArrowJob):
    """A compiled job, and the rows that its sources read.

    Parameters
    ----------
    rows
        See :func:`clonos.simulator.user_job.rows.with_rows`.
    """

    def __init__(self, compiled: CompiledJob, rows: Any = None) -> None:
        super().__init__(with_rows(compiled, rows))
        codes = self.compiled.codes
        fixed = {code.task.id: rows_of(code) for code in codes if code.source is not None}
        self.sources = dict(fixed)
        self.rows = max((max(1, source.rows.num_rows) for source in fixed.values()), default=1)
        dumps: Callable[[Any], bytes] = cloudpickle.dumps
        self._shipped = [dumps(code) for code in codes]

    def program(self, task: int) -> Program:
        """A fresh program. It is pickled and unpickled, as if for a new process: functions and
        objects remember nothing of an earlier life."""
        program: Program = cloudpickle.loads(self._shipped[task]).program(RUN, RUN)
        return program

    def delivered(self, recorder: Recorder) -> dict[str, pa.Table]:
        """The output of each sink: its tasks one after the other, each in its order."""
        tables: dict[str, list[pa.RecordBatch]] = {name: [] for name in self.compiled.sinks}
        for task in self.plan.tasks:
            if task.sink is not None:
                contents = recorder.output(task.id)
                tables[task.sink] += [rows for kind, rows, _ in contents if kind == Kind.BATCH]
        schemas: Mapping[str, tuple[Any, pa.Schema]] = self.compiled.sinks
        return {n: pa.Table.from_batches(tables[n], schema) for n, (_, schema) in schemas.items()}
