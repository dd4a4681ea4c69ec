"""Tables as a source, written by a Spark query or by a sink of another job.

Any number of jobs can read a table independently. A task reads segments in the order in which they
were written. All segments of a sink's task are read by one task; files of a query are dealt out in
turn. The number of rows read does not determine which rows they are, so the log has a cut for each
batch.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

import msgpack
import pyarrow as pa

from clonos.arguments import require_types
from clonos.columns.batches import concat, empty
from clonos.columns.schema import parse_schema, require_columns
from clonos.errors import (
    BadSchema,
    ClonosError,
    NoTable,
    RowsRemoved,
    SourceError,
    StoreAway,
    UnreadableTable,
)
from clonos.sources.readers import CutReader, EndOfInput, Reader
from clonos.sources.spec import SourceSpec
from clonos.storage.retry import Retry, may_pass
from clonos.storage.segments import START, Position, Positions, Segment, newest
from clonos.storage.table_batches import TASK
from clonos.storage.tables import Table

FIRST_PAUSE_S: Final = 0.005
"""Delay before a reader that found nothing looks again; doubled each time ..."""
PAUSE_MAX_S: Final = 0.05
"""... up to this: each look lists a folder."""
REMOTE_PAUSE_MAX_S: Final = 0.5
"""The same where each look costs money."""

_T = TypeVar("_T")


def table(
    path: str | Path,
    schema: Any = None,
    *,
    available_now: bool = False,
    fail_on_data_loss: bool = True,
) -> SourceSpec:
    """A table written by ``df.writeStream.format("clonos")`` or by ``clonos.sinks.table``.

    Each row comes once, whatever dies on either side. Any number of jobs may read a table: before,
    while and after it is written. The input ends with the table: a job's table ends with that job,
    a query's table with :func:`clonos.sinks.data_source.end`.

    Parameters
    ----------
    schema
        The columns to read. Without it, all columns; then the table must already exist.
    available_now
        End the input after the rows that exist when the job is defined.
    fail_on_data_loss
        With False, begin with the remaining rows of a table from which rows were removed.

    Raises
    ------
    NoTable
        The table does not exist yet, and there is no `schema`.
    BadSchema
        The table has other columns.

    Examples
    --------
    >>> clicks = table("/data/clicks", "user string, n long")
    >>> clicks.rows_schema.names, clicks.ends
    (['user', 'n'], False)
    """
    require_types(table, locals())
    path = str(path)
    found = Table(path)
    until: dict[int, Position] | None = None
    ends = False
    if found.exists:
        rows = _columns(found, None if schema is None else parse_schema(schema))
        ends = available_now or found.ended
        until = newest(found.segments()) if available_now else None
    elif schema is None:
        raise NoTable(
            "there is no table yet, so its columns are not known",
            where=path,
            remedy='begin to write it first, or say table(path, "user string, n long")',
        )
    else:
        rows = parse_schema(schema)
        ends, until = available_now, {} if available_now else None
    return _spec(Followed(path, rows, until, fail_on_data_loss), ends=ends)


def _spec(followed: Followed, *, ends: bool) -> SourceSpec:
    def narrow(columns: Sequence[str]) -> SourceSpec:
        few = pa.schema([followed.schema.field(name) for name in columns])
        return _spec(replace(followed, schema=few), ends=ends)

    rows, factory = followed.schema, partial(_reader, followed)
    return SourceSpec("table", rows, factory, True, rows, ends=ends, narrow=narrow)


def followed_by(source: SourceSpec) -> Followed:
    """The table that a source reads."""
    assert isinstance(source.factory, partial)
    found: Followed = source.factory.args[0]
    return found


def _columns(found: Table, wanted: pa.Schema | None) -> pa.Schema:
    """The columns to read."""
    if wanted is None:
        return parse_schema(found.schema)
    there = parse_schema(found.schema)
    require_columns(there, wanted.names, found.path)
    for one in wanted:
        if there.field(one.name).type != one.type:
            raise BadSchema(
                f"column {one.name!r} of the table is {there.field(one.name).type}, not {one.type}",
                where=found.path,
                remedy="read it as it is, and cast it then",
            )
    return wanted


@dataclass(frozen=True)
class Followed:
    """A table as a source.

    Parameters
    ----------
    schema
        The columns to read.
    until
        For each task of the writer, the last segment to read; None: no end.
    """

    path: str
    schema: pa.Schema
    until: Mapping[int, Position] | None = None
    fail_on_data_loss: bool = True

    @property
    def place(self) -> str:
        """The table's folder."""
        return self.path


@dataclass(frozen=True)
class Cut:
    """How far a task has read.

    Attributes
    ----------
    table
        The table's name; a later table in the same folder has another one.
    rows
        The number of rows of the batch.
    done
        For each task of the writer, the last segment that was read completely.
    begun
        The task whose next segment was read in part, and the number of rows read; None: none.

    Examples
    --------
    >>> cut = Cut("17", 5, {0: Position(0, 3)}, (0, 2))
    >>> Cut.decode(cut.encode()) == cut
    True
    """

    table: str
    rows: int = 0
    done: Mapping[int, Position] = field(default_factory=dict)
    begun: tuple[int, int] | None = None

    def encode(self) -> bytes:
        """Encode in as few bytes as possible, because each of the task's log entries has a cut."""
        done = {task: tuple(position) for task, position in self.done.items()}
        packed: bytes = msgpack.packb((self.table, self.rows, done, self.begun))
        return packed

    @classmethod
    def decode(cls, data: bytes) -> Cut:
        """Inverse of :meth:`encode`; anything else raises `SourceError`."""
        try:
            table, rows, done, begun = msgpack.unpackb(data, strict_map_key=False)
            positions = {task: Position(*said) for task, said in done.items()}
            return cls(table, rows, positions, None if begun is None else (begun[0], begun[1]))
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SourceError(
                f"{len(data)} bytes do not say where in a table they lie: {error}",
                remedy="check that the source of this name was a table when the job began",
            ) from error


class TableReader(CutReader):
    """One task's share of a table."""

    def __init__(self, followed: Followed, task_index: int, parallelism: int) -> None:
        self.schema = followed.schema
        self._followed, self._table = followed, Table(followed.path)
        self._index, self._parallelism = task_index, parallelism
        self._closing = threading.Event()
        self._retry = Retry(f"rows of the table {followed.path}", self._closing.wait)
        self._at = Cut("")
        self._waiting: list[Segment] = []  # found, not read yet
        self._open: tuple[Segment, pa.RecordBatch] | None = None  # read in part; remaining rows
        self._is_checked = self._is_of_query = False
        self._pause_s, self._look_at = FIRST_PAUSE_S, 0.0

    @property
    def away_s(self) -> float:
        """See :class:`CutReader`."""
        return self._retry.away_s

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        """See :meth:`CutReader.open`; looks at nothing before the first read."""
        del rows_consumed
        self._closing.clear()
        self.cut = cut
        self._at = Cut.decode(cut) if cut else Cut("")
        self._waiting, self._open, self._is_checked = [], None, False
        self._look_at = 0.0

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        self._closing.set()

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        if not self._waiting and self._open is None and not self._look():
            time.sleep(max(0.0, min(max_wait_s, self._look_at - time.monotonic())))
            if not self._look():
                return None
        return self._taken(max_rows)

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        """See :meth:`CutReader.read_cut`."""
        to = Cut.decode(cut)
        if not self._is_checked and not self._is_there():
            raise self._lost("the table is not there")
        self._require_table(to.table)
        task, rows = to.begun or (-1, 0)
        self._waiting, begun = [], rows == 0
        for segment in self._segments():
            is_begun = not begun and segment.task == task
            if segment.position <= to.done.get(segment.task, START):
                self._waiting.append(segment)
            elif is_begun and self._is_mine(segment):
                self._waiting.append(segment)
                begun = True
        batch = self._taken(to.rows, to)
        if self.cut != cut:
            raise self._lost(f"{batch.num_rows} of {to.rows} rows are there")
        return batch

    # --- segments -------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Look for unread segments; raises `EndOfInput` if none will come."""
        now = time.monotonic()
        if now < self._look_at:
            return False
        if self._is_checked or self._is_there():
            has_ended = self._do(lambda: self._table.ended)  # read before looking
            self._waiting = self._segments()
            if self._waiting:
                self._pause_s, self._look_at = FIRST_PAUSE_S, 0.0
                return True
            if has_ended or self._followed.until is not None:
                raise EndOfInput
        elif self._followed.until is not None:  # the table did not exist when the job was defined
            raise EndOfInput
        most = PAUSE_MAX_S if self._table.is_local else REMOTE_PAUSE_MAX_S
        self._look_at = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, most)
        return False

    def _is_there(self) -> bool:
        """Whether the table exists, and is still the same one."""
        if not self._do(lambda: self._table.exists):
            return False
        found = self._do(lambda: self._table.id)
        if self._at.table:
            self._require_table(found)
        else:
            self._at = replace(self._at, table=found)
        try:
            _columns(self._table, self.schema)
        except ClonosError as error:
            raise SourceError(error.what, where=error.where, remedy=error.remedy) from error
        self._is_checked = True
        return True

    def _segments(self) -> list[Segment]:
        """The next segments of this task, in reading order."""
        first = self._at.done
        self._is_of_query = self._is_of_query or self._do(lambda: self._table.is_of_query)
        found = self._do(lambda: self._table.segments(first))
        removed = self._do(lambda: self._table.removed)
        if self._followed.fail_on_data_loss:
            lost = [t for t, end in removed.items() if end > first.get(t, START) and self._reads(t)]
            if lost:
                raise self._lost(f"rows of {_tasks(lost)} were removed before they were read")
        until = self._followed.until
        if until is not None:
            found = [s for s in found if s.position <= until.get(s.task, START)]
        # A segment read in part comes first, whatever has been written meanwhile.
        begun = self._at.begun[0] if self._at.begun is not None else -1
        opened = self._open[0] if self._open is not None else None
        mine = (s for s in found if self._reads(s.task) and s != opened)
        return sorted(mine, key=lambda segment: (segment.task != begun, segment))

    def _reads(self, task: int) -> bool:
        return self._is_of_query or task % self._parallelism == self._index

    def _is_mine(self, segment: Segment) -> bool:
        """Whether its rows belong to this task; a query's other files are skipped."""
        number = sum(segment.position) if self._is_of_query else segment.task
        return number % self._parallelism == self._index

    # --- rows -----------------------------------------------------------------------------------

    def _taken(self, max_rows: int, to: Cut | None = None) -> pa.RecordBatch:
        """The next rows: at most `max_rows`, or up to a cut."""
        taken: list[pa.RecordBatch] = []
        rows, at = 0, self._at
        while to is None or (at.done, at.begun) != (to.done, to.begun):
            if self._open is None and self._waiting and not self._is_mine(self._waiting[0]):
                segment = self._waiting.pop(0)
                at = replace(at, done={**at.done, segment.task: segment.position})
                continue
            left = max_rows - rows
            if self._open is None and self._waiting and (not rows or self._waiting[0].rows <= left):
                self._open = self._opened(self._waiting.pop(0), at)
            if self._open is None or left <= 0:
                break
            segment, rest = self._open
            some = rest.slice(0, left)
            taken.append(some)
            rows += some.num_rows
            self._open, at = self._behind(segment, rest.slice(some.num_rows), at)
        self._at = replace(at, rows=rows)
        self.cut = self._at.encode()
        return concat(taken) if taken else empty(self.schema)

    @staticmethod
    def _behind(
        segment: Segment, rest: pa.RecordBatch, at: Cut
    ) -> tuple[tuple[Segment, pa.RecordBatch] | None, Cut]:
        """The position when the rows `rest` of a segment remain."""
        if rest.num_rows:
            begun = (segment.task, segment.rows - rest.num_rows)
            return (segment, rest), replace(at, begun=begun)
        return None, replace(at, done={**at.done, segment.task: segment.position}, begun=None)

    def _opened(self, segment: Segment, at: Cut) -> tuple[Segment, pa.RecordBatch]:
        names = self.schema.names
        try:
            batches = self._do(lambda: list(self._table.read(segment.path)))
        except RowsRemoved as error:
            raise self._lost(f"{segment.path} is not there any more") from error
        if sum(batch.num_rows for batch in batches) != segment.rows:
            raise self._lost(f"{segment.path} does not have its {segment.rows} rows")
        fitting = [batch.select(names).cast(self.schema) for batch in batches]
        whole = concat(fitting) if fitting else empty(self.schema)
        read = at.begun[1] if at.begun is not None and at.begun[0] == segment.task else 0
        return segment, whole.slice(read)

    # --- errors ---------------------------------------------------------------------------------

    def _do(self, act: Callable[[], _T]) -> _T:
        """Do something with the table; while its file system is away, keep trying."""

        def reach() -> _T:
            try:
                return act()
            except (OSError, pa.ArrowException, UnreadableTable) as error:
                cause = error.__cause__ if isinstance(error, UnreadableTable) else error
                if isinstance(cause, OSError) and may_pass(cause):
                    raise StoreAway(str(cause), where=self._followed.path) from error
                raise SourceError(
                    f"the table cannot be read: {cause}",
                    where=self._followed.path,
                    remedy="check that every executor reaches the folder and may read it",
                ) from error

        return self._retry(reach)

    def _require_table(self, found: str) -> None:
        if self._at.table not in ("", found):
            raise self._lost("another table is in its folder now")

    def _lost(self, why: str) -> SourceError:
        return SourceError(
            f"the table does not have what the job needs of it: {why}",
            where=self._followed.path,
            remedy="remove only what all readers have passed (remove_read); to begin with what is "
            "left, start the job afresh with fail_on_data_loss=False",
        )


def passed(source: SourceSpec, cuts: Sequence[bytes]) -> Positions:
    """The positions below which no task of a source reads again, given the cuts of all tasks."""
    decoded = [Cut.decode(cut).done if cut else {} for cut in cuts]
    if not any(decoded):
        return {}
    if Table(followed_by(source).path).is_of_query:
        return {TASK: min(one.get(TASK, START) for one in decoded)}
    return {task: position for one in decoded for task, position in one.items()}


def _tasks(tasks: Sequence[int]) -> str:
    return ", ".join(f"task {task}" for task in tasks)


def _reader(followed: Followed, index: int, parallelism: int) -> Reader:
    return TableReader(followed, index, parallelism)
