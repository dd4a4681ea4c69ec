"""Each row once into a PostgreSQL table: the transactions behind ``sinks.postgres``.

Each task has a row in the table of marks, in the schema of its table. A transaction begins by
moving this mark from its expected value, which locks the row first. So of two lives of a task, the
older one finds a mark that it did not leave.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from clonos.columns.rows import dicts_of
from clonos.errors import ClonosError, Fenced, RowRefused, SinkFailed, StoreAway
from clonos.postgres import driver, is_away
from clonos.sinks import postgres_session as session
from clonos.sinks.lanes import Lane, OutputKey
from clonos.sinks.postgres_rows import as_csv, pieces
from clonos.sinks.postgres_session import MARKS, Target
from clonos.sinks.transactions import mark_lost

LOCKED_MS: Final = 1000
"""How long a new life waits for its predecessor's transaction before the server terminates it."""

_STAGE: Final = "clonos_rows"
_NUMBER: Final = "clonos_row_number"


@dataclass(frozen=True)
class PostgresTransactions:
    """The :class:`~clonos.sinks.transactions.Transactions` of a table.

    Parameters
    ----------
    upsert
        Key columns by which later rows replace earlier ones; if empty, rows are added.
    """

    target: Target
    upsert: tuple[str, ...] = ()

    # --- a life ----------------------------------------------------------------------------------

    def open(self, lane: Lane) -> PostgresConnection:
        name = session.application_name(lane, self.target.place)
        with self._translated(lane):
            db = self.target.connect(name)
            try:
                opened = PostgresConnection(db, self.target, lane)
                opened.take_over()
            except BaseException:
                db.close()
                raise
            return opened

    def last_key(self, db: PostgresConnection, lane: Lane) -> tuple[int, int] | None:
        with self._translated(lane):
            return db.mark()

    def close(self, db: PostgresConnection) -> None:
        db.sql.close()

    def is_away(self, error: Exception) -> bool:
        return False  # errors are translated already

    # --- a group ---------------------------------------------------------------------------------

    def write(
        self,
        db: PostgresConnection,
        lane: Lane,
        outputs: list[pa.RecordBatch],
        before: OutputKey | None,
        last: OutputKey,
    ) -> None:
        rows = pa.Table.from_batches(outputs)
        with self._translated(lane):
            try:
                db.move_mark(before, last)
                self._insert(db.sql, rows)
                db.sql.commit()
            except Exception as error:
                if not session.is_of_a_row(error):
                    raise
                db.sql.rollback()
                self._raise_for_row(db.sql, rows, error)

    def _insert(self, sql: Any, rows: pa.Table) -> None:
        if self.upsert:
            self._upsert(sql, rows)
        else:
            self._copy(sql, self.target.parts(), rows)

    def _copy(self, sql: Any, into: tuple[str | None, str], rows: pa.Table) -> None:
        query = composed("copy {} ({}) from stdin (format csv)", name(into), names(rows))
        with sql.cursor() as cursor, cursor.copy(query) as copy:
            for piece in pieces(as_csv(rows)):
                copy.write(piece)

    def _upsert(self, sql: Any, rows: pa.Table) -> None:
        """The last row of each key wins. Rows are sorted by key, so that tasks do not deadlock."""
        table, columns, keys = name(self.target.parts()), names(rows), names(self.upsert)
        stage, number = name((None, _STAGE)), name((None, _NUMBER))
        sql.execute(
            composed(
                "create temp table if not exists {} on commit delete rows"
                " as select {}, 0::bigint as {} from {} with no data",
                stage,
                columns,
                number,
                table,
            )
        )
        numbered = rows.append_column(_NUMBER, pa.array(np.arange(rows.num_rows)))
        self._copy(sql, (None, _STAGE), numbered)
        others = [column for column in rows.column_names if column not in self.upsert]
        sets = [composed("{0} = excluded.{0}", name((None, column))) for column in others]
        then = composed("do update set {}", listed(sets)) if sets else composed("do nothing")
        sql.execute(
            composed(
                "insert into {0} ({1}) select {1} from"
                " (select distinct on ({2}) * from {3} order by {2}, {4} desc) as newest"
                " on conflict ({2}) {5}",
                table,
                columns,
                keys,
                stage,
                number,
                then,
            )
        )

    # --- errors ----------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _translated(self, lane: Lane) -> Any:
        psycopg = driver()
        try:
            yield
        except psycopg.errors.UndefinedTable as error:
            if MARKS in str(error):
                raise mark_lost(lane, f"there is no table {MARKS}") from None
            raise self._failed(SinkFailed, error) from None
        except psycopg.Error as error:
            kind = StoreAway if is_away(error) else SinkFailed
            raise self._failed(kind, error) from None

    def _failed(self, kind: type[ClonosError], error: BaseException) -> ClonosError:
        remedy = "check that every executor reaches the server and may write to the table"
        text = self.target.told(error)
        return kind(f"cannot write: {text}", where=self.target.place, remedy=remedy)

    def _raise_for_row(self, sql: Any, rows: pa.Table, error: BaseException) -> None:
        """Find the first refused row by bisection, without changing anything."""
        first, last = 0, rows.num_rows  # all rows before `first` pass, not all before `last`
        while last - first > 1:
            middle = (first + last) // 2
            sql.execute("savepoint half")
            try:
                self._insert(sql, rows.slice(first, middle - first))
            except Exception as refused:
                if not session.is_of_a_row(refused):
                    raise
                error, last = refused, middle
                sql.execute("rollback to savepoint half")
            else:
                first = middle
        sql.rollback()
        (row,) = dicts_of(rows.slice(first, 1))
        raise RowRefused(
            f"{self.target.told(error)} The row is {row}"[:2000],
            where=self.target.place,
            remedy="nothing of its transaction was written. Filter such rows before the sink, or "
            "change the table, and start the job again with the same checkpoint_dir",
        ) from None


@dataclass
class PostgresConnection:
    """A session of a lane, in one of its lives."""

    sql: Any
    target: Target
    lane: Lane

    def take_over(self) -> None:
        """Take the mark: from now on no older life can commit."""
        psycopg = driver()
        mine = self._mine
        for _ in range(3):
            try:
                self.sql.execute(f"set lock_timeout = {LOCKED_MS}")
                found = self.sql.execute(
                    composed(
                        "update {} set incarnation = %(life)s where target = %(target)s"
                        " and run = %(run)s and operator = %(operator)s"
                        " and lane = %(lane)s and incarnation <= %(life)s",
                        self._marks,
                    ),
                    mine,
                )
                self.sql.commit()
                break
            except psycopg.errors.LockNotAvailable:
                self.sql.rollback()
                self._end_older()
        else:
            raise StoreAway("another session holds the lane's mark", where=self.target.place)
        if found.rowcount == 0:
            self._require_mark()
        self.sql.execute("reset lock_timeout")
        self.sql.commit()

    def mark(self) -> tuple[int, int] | None:
        """The key of the newest output in the table."""
        row = self.sql.execute(
            composed(
                "select generation, seq from {} where target = %(target)s"
                " and run = %(run)s and operator = %(operator)s and lane = %(lane)s",
                self._marks,
            ),
            self._mine,
        ).fetchone()
        self.sql.commit()
        if row is None:
            raise mark_lost(self.lane, "its row is gone")
        return None if row[1] is None else (row[0], row[1])

    def move_mark(self, before: OutputKey | None, last: OutputKey) -> None:
        """Lock and move the mark, if it is where this life left it."""
        was = (None, None) if before is None else tuple(before)
        moved = self.sql.execute(
            composed(
                "update {} set generation = %(generation)s, seq = %(seq)s, moved_at = now()"
                " where target = %(target)s and run = %(run)s and operator = %(operator)s"
                " and lane = %(lane)s and incarnation = %(life)s"
                " and generation is not distinct from %(old_generation)s::int"
                " and seq is not distinct from %(old_seq)s::bigint",
                self._marks,
            ),
            {
                **self._mine,
                "generation": last.generation,
                "seq": last.seq,
                "old_generation": was[0],
                "old_seq": was[1],
            },
        )
        if moved.rowcount == 0:
            self.sql.rollback()
            self._require_mark()

    def _require_mark(self) -> None:
        """Raise the reason why no mark matched."""
        self.mark()
        raise Fenced(
            "a later life of the task writes to the table",
            where=self.lane.task,
            remedy="nothing, if the job goes on elsewhere; otherwise check that no second driver "
            "has the same checkpoint_dir",
        )

    def _end_older(self) -> None:
        """Let the server terminate sessions of older lives, frozen in a transaction."""
        name = session.application_name(self.lane, self.target.place).rpartition(" ")[0]
        self.sql.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like %s and pid <> pg_backend_pid()"
            " and split_part(application_name, ' ', 3)::bigint <= %s",
            [f"{name} %", self.lane.incarnation],
        )
        self.sql.commit()

    @property
    def _mine(self) -> dict[str, Any]:
        lane = self.lane
        return {
            "target": self.target.parts()[1],
            "run": lane.run,
            "operator": lane.operator,
            "lane": lane.number,
            "life": lane.incarnation,
        }

    @property
    def _marks(self) -> Any:
        return marks(self.target)


# --- SQL ---------------------------------------------------------------------------------------


def composed(text: str, *parts: Any) -> Any:
    """SQL with quoted names inserted."""
    from psycopg import sql

    return sql.SQL(text).format(*parts)


def listed(parts: Sequence[Any]) -> Any:
    """The parts, separated by commas."""
    from psycopg import sql

    return sql.SQL(", ").join(parts)


def name(parts: tuple[str | None, str]) -> Any:
    """The quoted name of a table, perhaps with its schema, or of a column."""
    from psycopg import sql

    return sql.Identifier(*[part for part in parts if part is not None])


def names(columns: pa.Table | Sequence[str]) -> Any:
    """The quoted names of columns, separated by commas."""
    found = columns.column_names if isinstance(columns, pa.Table) else columns
    return listed([name((None, column)) for column in found])


def marks(target: Target) -> Any:
    """The table of marks, beside the sink's."""
    return name((target.parts()[0], MARKS))
