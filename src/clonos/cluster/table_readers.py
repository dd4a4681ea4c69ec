"""Notes in tables how far a job has read them, so that rows it may still ask for are not removed.

A job is noted before it begins to read, and until it is complete. It has passed rows that are below
the floors of all its tasks, and below the oldest point to which it can be rewound.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import pyarrow as pa

from clonos.core.sealed import Layer
from clonos.errors import SourceError
from clonos.graph.code import TaskCode
from clonos.graph.compile import CompiledJob
from clonos.sources.tables import followed_by, passed
from clonos.storage.segments import Positions
from clonos.storage.tables import Table


class TableReaders:
    """The tables of one job.

    Parameters
    ----------
    checkpoint_id
        The random name of the job's checkpoint.
    """

    def __init__(self, compiled: CompiledJob, checkpoint_id: str) -> None:
        self._names = {op: f"{compiled.name}: {op} ({checkpoint_id})" for op in _tasks(compiled)}
        self._tasks = _tasks(compiled)
        self._noted: dict[str, Positions] = {}

    def __bool__(self) -> bool:
        return bool(self._tasks)

    def register(self) -> None:
        """The job is about to read.

        Raises
        ------
        SourceError
            A table's folder cannot be used.
        """
        for operator, codes in self._tasks.items():
            table, name = self._table(codes[0]), self._names[operator]
            try:
                if not table.is_noted(name):
                    table.note_reader(name, {})
            except (OSError, pa.ArrowException) as error:
                raise SourceError(
                    f"the job cannot note that it reads the table: {error}",
                    where=table.path,
                    remedy="check that the driver reaches the folder and may write to it: it keeps "
                    "there how far it has read",
                ) from error

    def look(self, floors: Callable[[Sequence[TaskCode]], Sequence[Layer]]) -> None:
        """Note which rows are no longer needed, by the layers of the oldest floors."""
        for operator, codes in self._tasks.items():
            source = codes[0].source
            found = floors(codes)
            if not found or source is None:
                continue
            now = passed(source, [floor.source_cut for floor in found])
            if now != self._noted.get(operator):
                self._table(codes[0]).note_reader(self._names[operator], now)
                self._noted[operator] = now

    def forget(self) -> None:
        """The job is complete."""
        for operator, codes in self._tasks.items():
            self._table(codes[0]).forget_reader(self._names[operator])

    @staticmethod
    def _table(code: TaskCode) -> Table:
        assert code.source is not None
        return Table(followed_by(code.source).path)


def _tasks(compiled: CompiledJob) -> Mapping[str, list[TaskCode]]:
    found: dict[str, list[TaskCode]] = {}
    for code in compiled.codes:
        if code.source is not None and code.source.kind == "table":
            found.setdefault(code.source_name, []).append(code)
    return found
