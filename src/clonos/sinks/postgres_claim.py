"""The driver's claim on a PostgreSQL table, made before any slot starts."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any, Literal

import pyarrow as pa

from clonos.errors import BadGraph, OutputExists, SinkFailed, UnknownColumn, WrongType
from clonos.postgres import driver
from clonos.sinks import postgres_session as session
from clonos.sinks.lanes import Lane
from clonos.sinks.postgres_rows import types_for
from clonos.sinks.postgres_session import MARKS, Target
from clonos.sinks.postgres_transactions import (
    PostgresTransactions,
    composed,
    listed,
    marks,
    name,
    names,
)
from clonos.sinks.transactions import TransactionalWriter, mark_lost

Mode = Literal["error", "append"]


@dataclass(frozen=True, repr=False)
class PostgresStore:
    """A :class:`~clonos.sinks.spec.Store`.

    Parameters
    ----------
    mode
        "append": the table may have other rows.
    """

    transactions: PostgresTransactions
    mode: Mode

    def __repr__(self) -> str:
        return f"<PostgreSQL: {self.place}>"

    @property
    def place(self) -> str | None:
        return self.transactions.target.place

    def check(self, schema: pa.Schema) -> None:
        for field in schema:
            types_for(field.type, field.name)
        for key in self.transactions.upsert:
            if key not in schema.names:
                raise UnknownColumn(
                    f"there is no column {key!r} for upsert",
                    where=self.transactions.target.place,
                    remedy=f"the columns are {', '.join(schema.names)}",
                )

    def claim(self, lane: Lane, tasks: int) -> PostgresClaim:
        return PostgresClaim(self, lane, tasks)

    def writer(self, lane: Lane) -> TransactionalWriter:
        return TransactionalWriter(self.transactions, lane)


class PostgresClaim:
    """A :class:`~clonos.sinks.spec.Claim`: a row in the table of marks for each task."""

    def __init__(self, store: PostgresStore, lane: Lane, tasks: int) -> None:
        self._store, self._lane, self._tasks = store, lane, tasks
        self.is_fresh = False

    @property
    def _target(self) -> Target:
        return self._store.transactions.target

    def begin(self, schema: pa.Schema, *, is_new: bool, is_added: bool = False) -> None:
        declared = [(f.name, types_for(f.type, f.name)) for f in schema]

        def work() -> None:
            with self._connected() as sql:
                self._claim(sql, declared, is_new=is_new, is_added=is_added)
                self._check_columns(sql, declared)
                self._check_key(sql, schema)

        session.attempt(self._target, SinkFailed, work)

    def require(self, schema: pa.Schema) -> None:
        declared = [(f.name, types_for(f.type, f.name)) for f in schema]

        def work() -> None:
            with self._connected() as sql:
                if self._exists(sql, self._target.parts()):
                    self._check_columns(sql, declared)
                    self._check_key(sql, schema)

        session.attempt(self._target, SinkFailed, work)

    def widen(self) -> None:
        def work() -> None:
            with self._connected() as sql:
                if self._exists(sql, (self._target.parts()[0], MARKS)):
                    self._insert_marks(sql, range(len(self._rows(sql)) or self._tasks, self._tasks))

        session.attempt(self._target, SinkFailed, work)

    def check(self) -> None:
        """Nothing to do: claims are transactions, so two cannot succeed at the same moment."""

    def withdraw(self) -> None:
        # If this fails, the next job gets an error that names the table's owner.
        with contextlib.suppress(Exception), self._connected() as sql:
            if all(seq is None for (seq,) in self._rows(sql)):
                sql.execute(
                    composed(
                        "delete from {} where target = %s and run = %s and operator = %s",
                        marks(self._target),
                    ),
                    self._mine,
                )

    def end(self) -> None:
        """Nothing to do: the marks stay, because they identify the rows' owner."""

    # --- inside of the transaction ---------------------------------------------------------------

    @contextlib.contextmanager
    def _connected(self) -> Any:
        with self._target.connect("clonos driver") as sql:
            # Serialize drivers: even `create table if not exists` is not atomic.
            sql.execute("select pg_advisory_xact_lock(hashtext(%s))", [MARKS])
            yield sql

    @property
    def _mine(self) -> list[str]:
        return [self._target.parts()[1], self._lane.run, self._lane.operator]

    def _rows(self, sql: Any) -> list[tuple[int | None]]:
        query = "select seq from {} where target = %s and run = %s and operator = %s"
        found: list[tuple[int | None]]
        found = sql.execute(composed(query, marks(self._target)), self._mine).fetchall()
        return found

    def _claim(self, sql: Any, declared: Any, *, is_new: bool, is_added: bool) -> None:
        table = marks(self._target)
        if is_new:
            sql.execute(
                composed(
                    "create table if not exists {} (target text, run text, operator text,"
                    " lane int, incarnation bigint not null, generation int, seq bigint,"
                    " moved_at timestamptz, primary key (target, run, operator, lane))"
                    " with (fillfactor = 50)",  # keeps updates on their page
                    table,
                )
            )
        elif not self._exists(sql, (self._target.parts()[0], MARKS)):
            raise mark_lost(self._lane, f"there is no table {MARKS}")
        rows = self._rows(sql)
        if rows and is_added:  # the sink comes back, with a generation above those of its marks
            if not self._exists(sql, self._target.parts()):
                self._create(sql, declared)
            self._insert_marks(sql, range(len(rows), self._tasks))
            return
        if rows:
            if is_new and any(seq is not None for (seq,) in rows):
                raise self._taken("has output of another run of this job")
            if len(rows) < self._tasks:  # there are more if the sink once had more tasks
                raise mark_lost(self._lane, f"there are {len(rows)} of {self._tasks} marks")
            return
        if not is_new:
            raise mark_lost(self._lane, "there is none")
        if not self._exists(sql, self._target.parts()):
            self._create(sql, declared)
        elif self._store.mode == "error":
            self._require_unused(sql)
        self.is_fresh = True
        self._insert_marks(sql, range(self._tasks))

    def _insert_marks(self, sql: Any, numbers: range) -> None:
        for number in numbers:
            sql.execute(
                composed("insert into {} values (%s, %s, %s, %s, 0)", marks(self._target)),
                [*self._mine, number],
            )

    def _exists(self, sql: Any, table: tuple[str | None, str]) -> bool:
        text = name(table).as_string(sql)
        return sql.execute("select to_regclass(%s)", [text]).fetchone()[0] is not None

    def _create(self, sql: Any, declared: Any) -> None:
        columns = [composed("{} " + types[0], name((None, column))) for column, types in declared]
        upsert = self._store.transactions.upsert
        if upsert:
            columns.append(composed("primary key ({})", names(upsert)))
        sql.execute(composed("create table {} ({})", name(self._target.parts()), listed(columns)))

    def _require_unused(self, sql: Any) -> None:
        table = name(self._target.parts())
        others = sql.execute(
            composed("select 1 from {} where target = %s limit 1", marks(self._target)),
            [self._target.parts()[1]],
        ).fetchone()
        if others is not None:
            raise self._taken("is another job's, or another sink's")
        if sql.execute(composed("select 1 from {} limit 1", table)).fetchone() is not None:
            raise self._taken("has rows that this job has not written")

    def _taken(self, what: str) -> OutputExists:
        return OutputExists(
            f"the table {what}",
            where=self._target.place,
            remedy='name another table, empty it (and delete its rows in "'
            f'{MARKS}" if no job writes to it), or say mode="append"; to continue a job, give its '
            "checkpoint_dir",
        )

    def _check_columns(self, sql: Any, declared: Any) -> None:
        found: dict[str, tuple[str, bool]] = {
            column: (kind, is_needed)
            for column, kind, is_needed in sql.execute(
                "select attname, format_type(atttypid, atttypmod), attnotnull and not atthasdef"
                " and attidentity = '' from pg_attribute where attrelid = to_regclass(%s)"
                " and attnum > 0 and not attisdropped",
                [name(self._target.parts()).as_string(sql)],
            )
        }
        for column, types in declared:
            if column not in found:
                raise UnknownColumn(
                    f"the table has no column {column!r}",
                    where=self._target.place,
                    remedy=f"add it ({types[0]}), or select other columns of the stream; the "
                    f"table has {', '.join(found)}",
                )
            kind = found[column][0]
            if _base(kind) not in {_base(allowed) for allowed in types}:
                raise WrongType(
                    f"column {column!r} is {kind} in the table; the stream needs {types[0]}",
                    where=self._target.place,
                    remedy="change one of them",
                )
        given = [column for column, _ in declared]
        missing = [c for c, (_, is_needed) in found.items() if is_needed and c not in given]
        if missing:
            raise UnknownColumn(
                f"the stream has no column {missing[0]!r}, which the table needs",
                where=self._target.place,
                remedy="give it a default in the table, or add it to the stream",
            )

    def _check_key(self, sql: Any, schema: pa.Schema) -> None:
        """`upsert` needs a unique index on its columns."""
        upsert = self._store.transactions.upsert
        if not upsert:
            return
        try:
            sql.execute(
                composed(
                    "explain insert into {0} ({1}) select {1} from {0} limit 0"
                    " on conflict ({2}) do nothing",
                    name(self._target.parts()),
                    names(schema.names),
                    names(upsert),
                )
            )
        except driver().errors.InvalidColumnReference:
            raise BadGraph(
                f"upsert={upsert!r} needs a unique index on these columns",
                where=self._target.place,
                remedy=f"alter table ... add primary key ({', '.join(upsert)})",
            ) from None


def _base(kind: str) -> str:
    """A type without its size.

    Examples
    --------
    >>> _base("numeric(10,2)"), _base("timestamp(3) with time zone")
    ('numeric', 'timestamp with time zone')
    """
    head, _, rest = kind.partition("(")
    return (head.rstrip() + rest.partition(")")[2]).strip()
