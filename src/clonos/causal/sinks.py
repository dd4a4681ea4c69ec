"""``foreachBatch`` functions whose attempts all see the same rows, and sinks that write a batch
once.

If the driver dies before the commit, Spark runs the function of ``foreachBatch`` again with the
same batch id. Causal services ensure that it gets the same rows. The sink must ensure that they are
written only once: it updates the number of the newest batch (the *high-water mark*) in the
transaction that writes the rows.
"""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, Final

from clonos.causal import process
from clonos.causal.entries import CALL, Entry, digest_of
from clonos.causal.shipped import Shipped
from clonos.core import canonical
from clonos.errors import DefinitionError, StoreAway
from clonos.errors.causal import OtherRows
from clonos.postgres import Server

Write = Callable[[Any, int], Any]

_ROWS: Final = "exactly_once"

MARKS: Final = "clonos_marks"
"""The table with the high-water marks."""


class ExactlyOnce(Shipped):
    """A ``foreachBatch`` function: made by :func:`exactly_once`."""

    def __init__(self, write: Write, *, verify: bool) -> None:
        functools.update_wrapper(self, write)
        self._write = write
        self._verify = verify

    def __call__(self, frame: Any, batch_id: int) -> None:
        frame.persist()  # all sinks must read the same rows
        succeeded = False
        try:
            if self._verify:
                self._check(frame, batch_id)
            self._write(frame, batch_id)
            succeeded = True
        finally:
            process.end_driver_task(succeeded=succeeded)
            frame.unpersist()

    @staticmethod
    def _check(frame: Any, batch_id: int) -> None:
        """Compare the rows with those of an earlier attempt, or log them for a later one."""
        task = process.current()
        log = task.log(_ROWS)
        digest = digest_of("rows")
        rows = canonical.encode(fingerprint(frame))
        logged = log.take(digest)
        if logged is None:
            task.keep(log, Entry(digest, CALL, True, rows))
        elif logged.answer != rows:
            raise OtherRows(
                f"{canonical.decode(rows)[0]} rows; the attempt before had "
                f"{canonical.decode(logged.answer)[0]}, or the same number of other ones",
                where=f"batch {batch_id}",
                remedy="something that is not a causal service is nondeterministic: rand(), "
                "uuid(), a limit without an order, a Python function with global state. Ask "
                "causal services instead, or say exactly_once(..., verify=False)",
            )


def fingerprint(frame: Any) -> tuple[int, int]:
    """The number of rows of a DataFrame, and a digest that does not depend on their order."""
    from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it
    from pyspark.sql.types import ArrayType, MapType, StructType

    def has_map(kind: Any) -> bool:
        if isinstance(kind, StructType):
            return any(has_map(field.dataType) for field in kind.fields)
        return isinstance(kind, MapType) or (
            isinstance(kind, ArrayType) and has_map(kind.elementType)
        )

    columns = [
        F.to_json(F.struct(F.col(f"`{field.name}`")))  # maps have no hash
        if has_map(field.dataType)
        else F.col(f"`{field.name}`")
        for field in frame.schema.fields
    ]
    hashed = frame.select(F.xxhash64(*columns).cast("decimal(38,0)").alias("h"))
    count, total = hashed.agg(F.count("*"), F.sum("h")).first()
    return count, int(total or 0)


def exactly_once(write: Write | None = None, /, *, verify: bool = True) -> Any:
    """Make all attempts of a ``foreachBatch`` function alike.

    All sinks that `write` uses get the same rows, in the first attempt and in each one after a
    failure, even of the driver. Calls that `write` itself makes are logged, too.

    Parameters
    ----------
    verify
        Log a digest of the batch's rows; an attempt with other rows ends with
        :class:`~clonos.errors.causal.OtherRows` before it writes anything.

    Examples
    --------
    >>> @exactly_once
    ... def write(frame, batch_id):
    ...     frame.write.mode("append").parquet("out")
    >>> write.__name__
    'write'
    """
    if write is None:
        return functools.partial(exactly_once, verify=verify)
    if not callable(write):
        raise DefinitionError(f"{write!r} is not a function", remedy="pass fn(frame, batch_id)")
    return ExactlyOnce(write, verify=verify)


def write_once(connection: Any, name: str, batch_id: int, write: Callable[[Any], object]) -> bool:
    """Write a batch in the transaction that moves the sink's high-water mark to it.

    Parameters
    ----------
    connection
        A connection of psycopg (or of any PostgreSQL driver with the same interface).
    name
        The stream's name; each has its own mark.
    write
        Called with a cursor, unless the batch is written already.

    Returns
    -------
    bool
        Whether it was written now; False: an earlier attempt had written it.
    """
    with connection.transaction(), connection.cursor() as sql:
        sql.execute("select pg_advisory_xact_lock(hashtext(%s))", [MARKS])
        sql.execute(f"create table if not exists {MARKS} (name text primary key, batch bigint)")
    with connection.transaction(), connection.cursor() as sql:
        sql.execute(
            f"insert into {MARKS} values (%s, -1) on conflict do nothing",  # noqa: S608 - a constant
            [name],
        )
        # Locks the mark, and thereby waits for an attempt that still runs elsewhere.
        mark = sql.execute(
            f"select batch from {MARKS} where name = %s for update",  # noqa: S608 - a constant
            [name],
        ).fetchone()[0]
        if batch_id <= mark:
            return False
        write(sql)
        sql.execute(
            f"update {MARKS} set batch = %s where name = %s",  # noqa: S608 - a constant
            [batch_id, name],
        )
    return True


def postgres_sink(dsn: str, table: str, *, name: str | None = None) -> Write:
    """A ``foreachBatch`` function that writes each batch to a table once.

    The tasks copy their rows into a staging table in parallel. One transaction on the driver moves
    the rows of successful tasks to `table`, together with the high-water mark. A server that is
    frozen is given up after some 25 s (:class:`~clonos.errors.StoreAway`), as one that is away.

    Parameters
    ----------
    dsn
        As psycopg takes it; driver and executors connect to it.
    table
        An existing table with the DataFrame's columns.
    name
        The stream's name; by default the table's.
    """
    stage, server = f"{table}_clonos_staged", Server(dsn)

    def copy(batches: Iterable[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from psycopg import sql

        from clonos.columns.rows import shown_values

        token = secrets.token_hex(8)
        with _connected(server, table) as connection:
            for batch in batches:  # it may take long to come, so no transaction waits for it
                names = [sql.Identifier(column) for column in batch.schema.names]
                columns = sql.SQL(", ").join([*names, sql.Identifier("clonos_token")])
                into = sql.SQL("copy {} ({}) from stdin").format(sql.Identifier(stage), columns)
                with connection.cursor() as cursor, cursor.copy(into) as rows:
                    for row in zip(*map(shown_values, batch.columns), strict=True):
                        rows.write_row((*row, token))
        yield pa.RecordBatch.from_pydict({"token": [token]})

    def write(frame: Any, batch_id: int) -> None:
        from psycopg import sql

        target, staged = sql.Identifier(table), sql.Identifier(stage)
        columns = sql.SQL(", ").join(map(sql.Identifier, frame.columns))
        with _connected(server, table) as connection:
            connection.execute(
                sql.SQL(
                    "create unlogged table if not exists {} (like {}, clonos_token text)"
                ).format(staged, target)
            )
            tokens = [row.token for row in frame.mapInArrow(copy, "token string").collect()]

            def move(cursor: Any) -> None:
                cursor.execute(
                    sql.SQL(
                        "insert into {} ({}) select {} from {} where clonos_token = any(%s)"
                    ).format(target, columns, columns, staged),
                    [tokens],
                )

            write_once(connection, name or table, batch_id, move)
            connection.execute(sql.SQL("truncate {}").format(staged))

    return write


@contextmanager
def _connected(server: Server, table: str) -> Iterator[Any]:
    """A connection that gives a frozen server up, and waits for one that only takes long: a batch
    may be large."""
    import psycopg

    try:
        with server.connect("clonos sink", autocommit=True, answer_s=inf) as connection:
            connection.execute("set statement_timeout = 0")
            yield connection
    except psycopg.OperationalError as error:
        raise StoreAway(
            f"the database does not answer: {server.told(error)[:300]}",
            where=f"postgres_sink of {table}",
            remedy="see that it runs and that the driver and the executors reach it, and start the "
            "query again: the batch is written once",
        ) from error
