"""Rows of a PostgreSQL query, in the order of a growing column.

A row gets its number from a sequence when it is inserted, but becomes visible only when its
transaction commits. So a row may appear *below* rows that were read before, and a reader that
continues after the greatest value would miss it. This reader therefore looks twice::

    first:   the greatest visible value, and then all transactions writing in this database
    later:   have all of these ended?  Then rows up to that value are *settled*: read them

A transaction that has taken a smaller value had locked its table before, so it is among those
writers.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final

import msgpack
import pyarrow as pa

from clonos.errors import ProtocolError, SourceError, WrongType
from clonos.postgres import STATEMENT_MS, Server, driver, is_away, is_refusal
from clonos.sources.outage import Outage
from clonos.sources.readers import CutReader

LOOK_S: Final = 0.02
"""Time between looks while the reader waits for writers."""
SLOW_MAX: Final = 3
"""A query that took too long so many times, one after the other, is an error. Once may be a lock,
or somebody who has cancelled it."""

_ZONELESS: Final = (1082, 1114)
"""The numbers of the types date and timestamp (without time zone) in all servers."""

PREPARED: Final = " prepared"
"""Suffix of the names of prepared transactions."""

_WRITERS: Final = """
select distinct virtualtransaction || case when lock.pid is null then ' prepared' else '' end
from pg_locks as lock
left join pg_class on pg_class.oid = relation
left join pg_stat_activity as session on session.pid = lock.pid
left join pg_prepared_xacts as prepared on lock.pid is null and transaction = transactionid
where granted and lock.pid is distinct from pg_backend_pid() and (
    locktype = 'relation' and mode = 'RowExclusiveLock'
    and relkind in ('r', 'p') and pg_class.oid >= 16384
    and lock.database = (select oid from pg_database where datname = current_database())
    or locktype = 'transactionid' and mode = 'ExclusiveLock'
    and (datname = current_database() or lock.pid is null
        and coalesce(prepared.database, current_database()) = current_database()))
"""
"""The writing transactions. INSERT and COPY take this lock on the table before they compute a
default. A transaction with an id holds a lock on that id until its end; a prepared one has no
process, and perhaps no row yet in the list of prepared ones, which the server may have read before
the locks: then it counts. The ids of the server's own tables are below 16384."""


@dataclass(frozen=True)
class Span:
    """A number of rows after the value `after` (None: the first rows); the last one has `last`."""

    after: str | None
    last: str | None
    rows: int

    def encode(self) -> bytes:
        """Encode as the cut of a batch.

        Examples
        --------
        >>> Span.decode(Span("7", "12", 3).encode())
        Span(after='7', last='12', rows=3)
        """
        packed: bytes = msgpack.packb((self.after, self.last, self.rows))
        return packed

    @classmethod
    def decode(cls, cut: bytes) -> Span:
        """Inverse of :meth:`encode`; anything else raises `SourceError`."""
        try:
            return cls(*msgpack.unpackb(cut))
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise SourceError(
                f"{len(cut)} bytes do not say where in a table they lie: {error}",
                remedy="check that the source of this name was a PostgreSQL source when the job "
                "began",
            ) from error


class Frontier:
    """Finds a value up to which no further row can appear.

    Parameters
    ----------
    settled_s
        Additionally, the value must have been seen at least this long ago.

    Examples
    --------
    >>> frontier = Frontier(0.0)
    >>> frontier.mark("42", {"3/7", "3/8"}, 0.0)
    >>> frontier.settled({"3/8", "4/1"}, 1.0)
    >>> frontier.settled({"4/1"}, 2.0)
    '42'
    """

    def __init__(self, settled_s: float) -> None:
        self._settled_s = settled_s
        self._value: str | None = None
        self._writers: frozenset[str] = frozenset()
        self._since = 0.0

    @property
    def is_marked(self) -> bool:
        """Whether a value waits to become settled."""
        return self._value is not None

    def mark(self, value: str, writers: AbstractSet[str], now_s: float) -> None:
        """Mark the greatest visible value, with the writers observed *after* it."""
        self._value, self._writers, self._since = value, frozenset(writers), now_s

    def settled(self, writers: AbstractSet[str], now_s: float) -> str | None:
        """The marked value, if none of the writers observed then is among these."""
        ended = self._writers - writers
        self._writers -= ended
        if any(not one.endswith(PREPARED) for one in ended):
            # A writer may have been prepared: then it goes on under another name.
            self._writers |= {one for one in writers if one.endswith(PREPARED)}
        if self._writers or now_s - self._since < self._settled_s:
            return None
        return self._value

    def clear(self) -> None:
        """Forget the mark: all settled rows have been read."""
        self._value = None


@dataclass(frozen=True, repr=False)
class Query:
    """The query to read from a server.

    Parameters
    ----------
    text
        ``"select ... from ..."``.
    column
        The growing column.
    schema
        The schema of readers: each column as bytes, either of its text or the value itself.
    is_bytes
        For each column, whether its values are bytes on the server.
    every_s
        Time between two polls for new rows.
    start
        Where a new job begins: "earliest", "latest", or, if `is_value`, after this value.
    is_zoned
        Whether that value is a time with a zone.
    """

    server: Server
    text: str
    column: str
    schema: pa.Schema
    is_bytes: tuple[bool, ...]
    every_s: float
    settled_s: float
    start: str
    is_value: bool = False
    is_zoned: bool = False

    def __repr__(self) -> str:
        return f"<{self.column} of a query of {self.server!r}>"

    @property
    def place(self) -> str:
        """Query and server for messages, without the password."""
        return f"{self.text} of {self.server.place}"

    def newest(self) -> Any:
        """SQL for the greatest value."""
        sql = driver().sql
        return sql.SQL("select q.{0}::text from {1} q where q.{0} is not null").format(
            sql.Identifier(self.column), self._source
        ) + sql.SQL(" order by q.{} desc limit 1").format(sql.Identifier(self.column))

    def rows(self, *, has_after: bool) -> Any:
        """SQL for rows, with their value last; parameters: the two values, if any, and a limit."""
        sql = driver().sql
        names = [sql.Identifier("q", name) for name in self.schema.names]
        column = sql.Identifier("q", self.column)
        wanted = [
            name if is_bytes else sql.SQL("{}::text").format(name)
            for name, is_bytes in zip(names, self.is_bytes, strict=True)
        ]
        behind = sql.SQL("{} > %s and ").format(column) if has_after else sql.SQL("")
        return sql.SQL(
            "select {}, {}::text from {} q where {}{} <= %s order by {} limit %s"
        ).format(sql.SQL(", ").join(wanted), column, self._source, behind, column, column)

    def no_rows(self) -> Any:
        """SQL for nothing but the type of the growing column."""
        sql = driver().sql
        return sql.SQL("select {} from {} q limit 0").format(
            sql.Identifier("q", self.column), self._source
        )

    def equals(self) -> Any:
        """SQL for the number of rows, at most 2, that have a value; parameter: the value."""
        sql = driver().sql
        return sql.SQL(
            "select count(*) from (select 1 from {} q where {} = %s limit 2) as equals"
        ).format(self._source, sql.Identifier("q", self.column))

    @property
    def _source(self) -> Any:
        # A % of the user's query is no parameter, and the query may end with a comment.
        return driver().sql.SQL("(" + self.text.rstrip("; \n").replace("%", "%%") + "\n)")


def query_of(
    server: Server,
    text: str,
    column: str,
    rows: pa.Schema,
    start: object,
    *,
    every_s: float,
    settled_s: float,
) -> Query:
    """The query that gives these columns."""
    is_value = start not in {"earliest", "latest"}
    if is_value and (isinstance(start, bool) or not isinstance(start, (int, str, datetime))):
        raise WrongType(
            f"start={start!r}",
            where="postgres",
            remedy='say "earliest", "latest" or a value of the column',
        )
    schema = pa.schema([pa.field(name, pa.binary()) for name in rows.names])
    is_bytes = tuple(bool(pa.types.is_binary(field.type)) for field in rows)
    return Query(
        server,
        text,
        column,
        schema,
        is_bytes,
        every_s,
        settled_s,
        str(start),
        is_value=is_value,
        is_zoned=isinstance(start, datetime) and start.utcoffset() is not None,
    )


class PostgresReader(CutReader):
    """The one task that reads a query."""

    def __init__(self, query: Query) -> None:
        self.schema = query.schema
        self._query = query
        self._sql: Any = None
        self._after: str | None = None  # the last delivered value
        self._is_told = False  # `after` is the value of start=: many rows may have it
        self._frontier = Frontier(query.settled_s)
        self._settled: str | None = None  # rows up to this may be read
        self._look_at = 0.0
        self._slow = 0  # how many times the query took too long
        self._outage = Outage(query.server.place)

    def open(self, rows_consumed: int, cut: bytes = b"") -> None:
        """See :meth:`CutReader.open`."""
        del rows_consumed
        self.cut = cut
        self._go_behind(Span.decode(cut) if cut else Span(None, None, 0))
        self._settled = None
        self._slow = 0
        self._frontier.clear()

    def read(self, max_rows: int, max_wait_s: float) -> pa.RecordBatch | None:
        """See :meth:`Reader.read`."""
        try:
            if not self.cut:
                return self._begin()
            if self._settled is None and not self._look(max_wait_s):
                return None
            rows = self._next(max_rows)
            self._answered()
            return rows
        except driver().Error as error:
            self._wait(error, has_begun=bool(self.cut))
            return None

    def read_cut(self, cut: bytes) -> pa.RecordBatch:
        """See :meth:`CutReader.read_cut`."""
        span = Span.decode(cut)
        if self.cut and span.after != self._after:
            raise ProtocolError("cuts are read out of order", remedy="report this as a bug")
        rows = self._again(span) if span.rows else []
        if len(rows) != span.rows or (rows and rows[-1][-1] != span.last):
            raise SourceError(
                f"rows that are needed again have changed: of {span.rows} behind "
                f"{self._query.column} = {span.after} and up to {span.last} there are {len(rows)}",
                where=self._query.server.place,
                remedy="delete rows only when no recovery can need them, and see that new ones "
                f"have the greatest {self._query.column}; or start the job afresh, with another "
                "checkpoint_dir",
            )
        return self._batch(rows, span)

    def close(self) -> None:
        """See :meth:`Reader.close`."""
        sql, self._sql = self._sql, None
        self._frontier.clear()  # writers' names are valid only until the server restarts
        self._settled = None
        if sql is not None:
            sql.close()

    def _begin(self) -> pa.RecordBatch:
        """Choose where to begin; the cut of an empty batch logs it before anything is read."""
        start: str | None = self._query.start
        if not self._query.is_value:
            start = self._newest() if start == "latest" else None
        self._connected()
        if self._query.is_zoned:
            self._require_zone()
        return self._batch([], Span(start, start, 0))

    def _require_zone(self) -> None:
        """Raise if the server would cut off the zone of start=, and begin hours away."""
        (column,) = self._connected().execute(self._query.no_rows(), ()).description
        if column.type_code in _ZONELESS:
            raise SourceError(
                f"start={self._query.start} has a zone, but {self._query.column} has none",
                where=self._query.server.place,
                remedy="give start= without a zone, as the values of the column are",
            )

    def _look(self, max_wait_s: float) -> bool:
        """Whether there are unread settled rows."""
        wait_s = self._look_at - time.monotonic()
        time.sleep(max(0.0, min(wait_s, max_wait_s)))
        if wait_s > max_wait_s:
            return False
        self._look_at = time.monotonic() + self._query.every_s
        if not self._frontier.is_marked:
            newest = self._newest()
            if newest is None or newest == self._after:
                self._require_no_other()
                self._answered()
                return False
            # In this order: a transaction with a smaller value had locked its table before.
            self._frontier.mark(newest, self._writers(), time.monotonic())
        settled = self._frontier.settled(self._writers(), time.monotonic())
        if settled is None:
            self._look_at = min(self._look_at, time.monotonic() + LOOK_S)
            return False
        self._require_no_other()
        self._settled = settled
        return True

    def _go_behind(self, span: Span) -> None:
        self._after = span.last
        self._is_told = self._query.is_value and not span.rows

    def _require_no_other(self) -> None:
        """Raise if a row has appeared with the value of the last one: nobody would read it."""
        if self._after is None or self._is_told:
            return
        found = self._connected().execute(self._query.equals(), [self._after]).fetchone()
        if found[0] > 1:
            raise self._twice(self._after)

    def _next(self, max_rows: int) -> pa.RecordBatch | None:
        assert self._settled is not None
        rows = self._rows(self._after, self._settled, max_rows + 1)
        twice = next((a[-1] for a, b in pairwise(rows) if a[-1] == b[-1]), None)
        if twice is not None:
            raise self._twice(twice)
        if len(rows) <= max_rows:
            self._frontier.clear()
            self._settled = None
        taken = rows[:max_rows]
        if not taken:
            return None
        return self._batch(taken, Span(self._after, taken[-1][-1], len(taken)))

    def _again(self, span: Span) -> Sequence[Any]:
        while True:
            try:
                rows = self._rows(span.after, span.last, span.rows + 1)
            except driver().Error as error:
                self._wait(error)
            else:
                self._answered()
                return rows

    def _wait(self, error: Exception, *, has_begun: bool = True) -> None:
        """Wait a little, if it may help to ask again."""
        self.close()
        self._slow += isinstance(error, driver().errors.QueryCanceled)
        is_hopeless = is_refusal(error) or self._slow >= SLOW_MAX
        if is_hopeless or not has_begun or not is_away(error):
            raise self._failed(error) from None
        self._outage.wait(self._query.server.told(error))

    def _answered(self) -> None:
        self._slow = 0
        self._outage.over()

    # --- SQL ---

    def _connected(self) -> Any:
        if self._sql is None:
            found = self._query.server.connect("clonos source", autocommit=True)
            self._sql = found
            # Values as text must look the same in all lives.
            found.execute(
                "set timezone = 'UTC'; set datestyle = 'ISO'; set intervalstyle = 'postgres';"
                "set bytea_output = 'hex'; set extra_float_digits = 1;"
                "set default_transaction_read_only = on"
            )
            if found.execute("select pg_is_in_recovery()").fetchone()[0]:
                raise SourceError(
                    "this is a replica: it does not show what is being written",
                    where=self._query.server.place,
                    remedy="name the primary server, with target_session_attrs=read-write",
                )
        return self._sql

    def _newest(self) -> str | None:
        found = self._connected().execute(self._query.newest(), ()).fetchone()
        return None if found is None else found[0]

    def _writers(self) -> set[str]:
        return {name for (name,) in self._connected().execute(_WRITERS).fetchall()}

    def _rows(self, after: str | None, last: str | None, limit: int) -> Sequence[Any]:
        given = [*([] if after is None else [after]), last, limit]
        with self._connected().cursor(binary=True) as cursor:
            cursor.execute(self._query.rows(has_after=after is not None), given)
            found: Sequence[Any] = cursor.fetchall()
            return found

    def _batch(self, rows: Sequence[Any], span: Span) -> pa.RecordBatch:
        self._go_behind(span)
        self.cut = span.encode()
        columns = list(zip(*rows, strict=True)) or [()] * len(self.schema)
        arrays = [
            pa.array(values, pa.binary() if is_bytes else pa.string()).cast(pa.binary())
            for values, is_bytes in zip(columns, self._query.is_bytes, strict=False)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _twice(self, value: str) -> SourceError:
        return SourceError(
            f"two rows have {self._query.column} = {value}",
            where=self._query.server.place,
            remedy="name a column whose values are unique",
        )

    def _failed(self, error: BaseException) -> SourceError:
        server = self._query.server
        remedy = "check that every executor reaches the server and may read these tables"
        if is_refusal(error):
            remedy = "check the user and password of the dsn, and that this user may connect"
        elif isinstance(error, driver().errors.QueryCanceled):
            remedy = (
                f"an answer may take {STATEMENT_MS // 1000} s: give the column "
                f"{self._query.column} an index, and lock its table for a shorter time"
            )
        return SourceError(
            f"the query cannot be read: {server.told(error)}", where=server.place, remedy=remedy
        )
