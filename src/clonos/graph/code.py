"""What a task runs: its part of the graph, as it travels to slots.

Slots import nothing else of this folder: each of their processes would take time and memory for the
compiler.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import pyarrow as pa

from clonos.core.plan import TaskSpec
from clonos.operators.base import OnBadRecord, OperatorInfo
from clonos.operators.chain import ChainedOperator, ChainProgram
from clonos.operators.make import make_operator
from clonos.operators.operations import Operation
from clonos.operators.router import Router
from clonos.sinks.spec import SinkSpec
from clonos.sources.readers import IteratorReader, Reader
from clonos.sources.spec import SourceSpec


@dataclass(frozen=True)
class TaskCode:
    """Everything that a slot needs to run a task; shipped in Spark's closure.

    ``schemas``: of the task's channels, the same at both ends; ``ports``: the inputs to which
    channels lead, where that is not the first; ``digests``: whether its output may be compared with
    earlier output; ``feedback``: which inputs are feedback channels.
    """

    task: TaskSpec
    job: str
    parallelism: int
    seed: int
    on_bad_record: OnBadRecord
    operators: tuple[tuple[str, Operation], ...]
    routers: tuple[Router, ...]
    schemas: Mapping[int, pa.Schema]
    source: SourceSpec | None = None
    sink: SinkSpec | None = None
    ports: Mapping[int, int] = field(default_factory=dict)
    digests: bool = True
    bad_records: Router | None = None
    feedback: tuple[int, ...] = ()

    @property
    def source_name(self) -> str:
        """The name of the chain's source, which may differ from that of the chain."""
        return self.operators[0][0]

    def program(self, lineage: str = "", run: str = "") -> ChainProgram:
        """A fresh program, with no state.

        `lineage`, `run`: see :class:`~clonos.operators.base.OperatorInfo`.
        """
        chain = [
            ChainedOperator(make_operator(operation), self._info(number, name, lineage, run))
            for number, (name, operation) in enumerate(self.operators)
        ]
        return ChainProgram(
            chain,
            self.task.inputs,
            self.routers,
            self.ports,
            digests=self.digests,
            bad_records=self.bad_records,
            feedback=self.feedback,
        )

    def _info(self, number: int, name: str, lineage: str, run: str) -> OperatorInfo:
        return OperatorInfo(
            job=self.job,
            task=self.task.id,
            task_name=self.task.name,
            operator=name,
            number=number,
            index=self.task.index,
            parallelism=self.parallelism,
            seed=self.seed,
            on_bad_record=self.on_bad_record,
            lineage=lineage,
            run=run,
        )


def reader_of(code: TaskCode, batches: Iterator[pa.RecordBatch] | None) -> Reader:
    """A reader of the task's source; `batches`: of the partition of a DataFrame that it reads, if
    it reads one."""
    assert code.source is not None
    if code.source.factory is None:
        assert batches is not None
        return IteratorReader(batches, code.source.schema)
    return code.source.factory(code.task.index, code.parallelism)
