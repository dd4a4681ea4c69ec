"""Look-up tables that the driver reads: the first version is shipped, newer ones are spooled.

The first version of a table is stored before anything else, so that a job that is started again
uses the same version. Every later version is a batch of one row in a source's spool. All tasks that
look up in the table read this spool, so a version is an input like any other.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

import pyarrow as pa

from clonos.columns.batches import from_bytes, to_bytes
from clonos.core.digest import content_digest
from clonos.errors import ClonosError, TableFailed, UnreadableLayer
from clonos.operators.by_key.look_up import VERSIONS, SideTable
from clonos.operators.operations import LookUp, Operation
from clonos.sources.spool import Spool, write_parts
from clonos.spark.slots import SPARK_ERRORS, in_short
from clonos.storage.files import Durability, folder_name
from clonos.storage.layers import LayerStore

TABLE_BYTES_MAX: Final = 128 << 20
"""The largest table: every task that uses it holds it in memory, and a version is one message."""
STOP_S: Final = 5.0
"""How long a read of a table may hold up the end of a job."""
FIRST: Final = "first"

Operators = tuple[tuple[str, Operation], ...]
"""The operations of a chain, by name."""

_QUERY: Final = "table"


def read(table: SideTable, where: str) -> bytes:
    """The present content of a table, encoded.

    Raises
    ------
    TableFailed
        It cannot be read, its columns have changed, or it is too large.
    """
    try:
        content = to_bytes(table.read())
    except ClonosError:
        raise
    except (*SPARK_ERRORS, pa.ArrowException) as error:
        raise _failed(in_short(error), where) from error
    except Exception as error:
        raise _failed(f"{type(error).__name__}: {error}", where) from error
    if len(content) > TABLE_BYTES_MAX:
        raise TableFailed(
            f"the table has {len(content)} bytes, more than {TABLE_BYTES_MAX}",
            where=where,
            remedy="select the columns and rows that are needed, or join it as a stream",
        )
    return content


def _failed(why: str, where: str) -> TableFailed:
    return TableFailed(
        f"the table cannot be read: {why}", where=where, remedy="check that Spark can compute it"
    )


class Tables:
    """The first version of every look-up table.

    Parameters
    ----------
    base
        The folder in which they are stored.
    """

    def __init__(self, base: str, durability: Durability) -> None:
        self._base = base
        self._durability = durability
        self._first: dict[int, bytes] = {}
        self._contents: dict[int, pa.RecordBatch] = {}

    def pinned(self, operators: Operators) -> Operators:
        """The operators of a task, with the content of their tables.

        All tasks share one object, because pickle ships an object once.

        Raises
        ------
        TableFailed
            A table cannot be read.
        """
        return tuple((name, self._with_content(name, operation)) for name, operation in operators)

    def first(self, table: SideTable) -> bytes:
        """The content at the job's first start."""
        return self._first[id(table)]

    def _with_content(self, name: str, operation: Operation) -> Operation:
        if isinstance(operation, LookUp) and isinstance(operation.table, SideTable):
            return operation.showing(self._content(operation.table, name))
        return operation

    def _content(self, table: SideTable, name: str) -> pa.RecordBatch:
        if id(table) not in self._first:
            store = LayerStore(f"{self._base}/{folder_name(name)}", self._durability)
            if not store.has(FIRST):
                store.put(FIRST, read(table, name))
            try:
                self._first[id(table)] = store.get(FIRST)
            except UnreadableLayer as error:
                raise _failed(error.what, name) from error
            self._contents[id(table)] = from_bytes(self._first[id(table)])
        return self._contents[id(table)]


class Refresher:
    """Reads a table again and again, and spools it when it has changed.

    If a version cannot be read, the job goes on with the previous one and warns.

    Parameters
    ----------
    first
        Version 0, which every task has already.
    warn
        Called with a text, from a separate thread.
    """

    def __init__(
        self,
        name: str,
        table: SideTable,
        first: bytes,
        refresh_ms: int,
        spool: Spool,
        warn: Callable[[str], object],
    ) -> None:
        self._name, self._table, self._spool, self._warn = name, table, spool, warn
        self._refresh_s = refresh_ms / 1000
        self._newest = content_digest(first)
        self._first = first
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"clonos-table {name}", daemon=True)

    def start(self) -> None:
        if self._spool.newest is None:
            self._take(self._first)
        else:
            self._newest = 0  # the newest version is not recorded, so it is taken again
        self._thread.start()

    def _run(self) -> None:
        has_failed = False
        while not self._closed.wait(self._refresh_s):
            try:
                self._refresh()
                has_failed = False
            except Exception as error:  # noqa: BLE001 - a thread that ends would not be noticed
                if not has_failed and not self._closed.is_set():
                    self._warn(f"{self._name}: rows go on seeing an older version: {error}")
                has_failed = True

    def _refresh(self) -> None:
        content = read(self._table, self._name)
        digest = content_digest(content)
        if digest != self._newest:
            self._spool.wait_for_room()
            if self._take(content):
                self._newest = digest

    def _take(self, content: bytes) -> bool:
        """Spool a version; False if an earlier write that seemed to fail has taken its number."""
        newest = self._spool.newest
        version = 0 if newest is None else newest.batch + 1
        row = pa.RecordBatch.from_pydict(
            {"version": [version], "table": [content]}, schema=VERSIONS
        )
        parts = list(write_parts(self._spool.store, version, 0, [row], VERSIONS))
        return self._spool.take(_QUERY, version, parts)

    def leave(self) -> None:
        """Begin to stop reading the table."""
        self._closed.set()
        self._spool.close()

    def close(self, until: float | None = None) -> None:
        """Stop reading the table: when this returns, or soon after the time `until` (monotonic)."""
        self.leave()
        if self._thread.is_alive():
            left_s = STOP_S if until is None else max(0.0, until - time.monotonic())
            self._thread.join(min(STOP_S, left_s))
