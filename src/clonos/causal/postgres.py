"""A holder in PostgreSQL: for logs that outgrow the driver, or must survive its machine.

Executors talk to the database themselves, so that neither the driver's memory nor its network is a
bottleneck. The operations are the same. The owner of a log holds a session-level advisory lock on
it; when its process dies, its connection ends, and the lock with it. An attempt that takes over
raises the log's *incarnation*, which every append checks in its own transaction.

Use a direct connection, or a pooler in session mode: advisory locks belong to sessions.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from clonos.causal import errors
from clonos.causal import messages as m
from clonos.causal.book import CHUNK_OVERHEAD, SEED_BYTES
from clonos.causal.entries import Entry, decode_chunk
from clonos.errors.causal import LogBroken, LogUnreachable
from clonos.extras import imported
from clonos.postgres import STATEMENT_MS, Server

POLL_S: Final = 0.05
"""How often an attempt that follows another one polls for news."""

READ_BYTES_MAX: Final = 16 << 20

ANSWER_S: Final = 30.0
"""A request is broken off after this long without an answer: the server is frozen, though its
kernel is not ..."""
MORE_S: Final = STATEMENT_MS / 1000
"""... or this much later, if it deletes or searches logs: the server breaks it off, too."""

_SCHEMA: Final = """
create table if not exists clonos_scopes (
    scope text primary key, seed bytea not null, newest bigint not null);
create table if not exists clonos_logs (
    id bigint generated always as identity primary key,
    scope text not null references clonos_scopes on delete cascade,
    batch bigint not null, operator text not null, partition integer not null,
    incarnation bigint not null default 0, length integer not null default 0,
    nbytes bigint not null default 0,
    attempt text not null default '', process text not null default '',
    unique (scope, batch, operator, partition));
create table if not exists clonos_chunks (
    log bigint not null references clonos_logs on delete cascade,
    number integer not null, execution text not null, chunk bytea not null,
    primary key (log, number));
"""
_LOCKS: Final = 0x436C << 48  # "Cl"
"""Key of our advisory locks: this plus the log's number; log 0 stands for the tables."""

T = TypeVar("T")


class PostgresHolder:
    """The logs of a job in a database. Usable by several threads; requests take turns.

    Parameters
    ----------
    dsn
        As psycopg takes it. The tables ``clonos_*`` are created if they do not exist.
    bytes_max
        The largest size of a scope's answers that are not truncated yet.
    """

    def __init__(self, dsn: str, bytes_max: int) -> None:
        self._server = Server(dsn)
        self._bytes_max = bytes_max
        self._process = secrets.token_hex(8)
        self._lock = threading.RLock()
        self._connection: Any = None
        self._owned: dict[m.AnswerKey, tuple[int, int]] = {}  # log, incarnation
        self._ids: dict[m.AnswerKey, int] = {}

    # --- operations ---------------------------------------------------------------------------

    def open(
        self, key: m.AnswerKey, attempt: str, execution: str, *, take_over: bool = False
    ) -> m.Opened:
        def run(sql: Any) -> m.Opened:
            seed = self._begin(sql, key)
            log, length, owner, process = self._find(sql, key)
            known = self._owned.get(key)
            owns = known is not None or self._try_lock(sql, log)
            if not owns and owner == attempt and process != self._process and not take_over:
                raise errors.used_twice(key)
            if owns or take_over:
                incarnation = sql.execute(
                    "update clonos_logs set incarnation = incarnation + 1, attempt = %s, "
                    "process = %s where id = %s returning incarnation",
                    (attempt, self._process, log),
                ).fetchone()[0]
                self._owned[key] = log, incarnation
            self._ids[key] = log
            return m.Opened(owns or take_over, length, seed, self._is_shared(sql, key, execution))

        return self._do(run, MORE_S)

    def append(self, key: m.AnswerKey, execution: str, chunk: bytes) -> None:
        def run(sql: Any) -> None:
            log, incarnation = self._owned.get(key, (-1, -1))
            self._check_budget(sql, key, len(chunk))
            number = sql.execute(
                "update clonos_logs set length = length + 1, nbytes = nbytes + %s where id = %s "
                "and incarnation = %s returning length - 1",
                (len(chunk) + CHUNK_OVERHEAD, log, incarnation),
            ).fetchone()
            if number is None:
                self._check_floor(sql, key)
                raise errors.fenced(key)
            sql.execute(
                "insert into clonos_chunks values (%s, %s, %s, %s)",
                (log, number[0], execution, chunk),
            )

        self._do(run)

    def read(self, key: m.AnswerKey, since: int, wait_s: float = 0.0) -> m.Chunks:
        until = time.monotonic() + wait_s
        while True:
            chunks = self._do(lambda sql: self._read(sql, key, since))
            left = until - time.monotonic()
            if chunks.chunks or chunks.is_free or left <= 0:
                return chunks
            time.sleep(min(POLL_S, left))

    def _read(self, sql: Any, key: m.AnswerKey, since: int) -> m.Chunks:
        if (log := self._ids.get(key)) is None:  # it has been closed: it is to be opened again
            return m.Chunks((), is_free=True)
        chunks, size = [], 0
        for (chunk,) in sql.execute(
            "select chunk from clonos_chunks where log = %s and number >= %s order by number",
            (log, since),
        ):
            chunks.append(bytes(chunk))
            size += len(chunk)
            if size > READ_BYTES_MAX:
                break
        if chunks or key in self._owned:
            return m.Chunks(tuple(chunks), is_free=False)
        is_free = self._try_lock(sql, log)
        if is_free:
            sql.execute("select pg_advisory_unlock(%s)", [_LOCKS + log])
        return m.Chunks((), is_free)

    def lookup(self, key: m.AnswerKey, execution: str, digest: bytes, rank: int) -> Entry | None:
        def run(sql: Any) -> Entry | None:
            seen = 0
            for (chunk,) in sql.execute(
                "select chunk from clonos_chunks join clonos_logs on log = id where scope = %s "
                "and batch = %s and operator = %s and partition <> %s and execution <> %s "
                "and position(%s in chunk) > 0 order by log, number",
                (*key, execution, digest),
            ):
                for entry in decode_chunk(bytes(chunk)):
                    if entry.digest == digest:
                        if seen == rank:
                            return entry
                        seen += 1
            return None

        return self._do(run, MORE_S)

    def close_log(self, key: m.AnswerKey) -> None:
        self._ids.pop(key, None)

        def run(sql: Any) -> None:
            log, _ = self._owned.pop(key, (None, None))
            if log is not None:
                sql.execute("select pg_advisory_unlock(%s)", [_LOCKS + log])

        self._do(run)

    def beat(self) -> None:
        """Nothing to do: the end of its connection shows that a process is dead."""

    def forget(self, scope: str) -> None:
        forgotten = "delete from clonos_scopes where scope = %s"
        self._do(lambda sql: sql.execute(forgotten, [scope]), MORE_S)

    def close(self) -> None:
        """End the connection, and with it the ownership of logs."""
        with self._lock:
            connection, self._connection = self._connection, None
            self._owned.clear()
            if connection is not None:
                connection.close()

    # --- inside -------------------------------------------------------------------------------

    def _do(self, run: Callable[[Any], T], more_s: float = 0.0) -> T:
        """Run something in one transaction. A broken connection loses all locks."""
        psycopg = _psycopg()
        with self._lock:
            try:
                if self._connection is None:
                    self._connect()
                self._connection.answer_s = ANSWER_S + more_s
                with self._connection.transaction(), self._connection.cursor() as sql:
                    return run(sql)
            except psycopg.OperationalError as error:
                self.close()
                raise LogUnreachable(
                    f"the database of the log does not answer: {self._server.told(error)[:300]}",
                    remedy="check that it runs and that executors reach it; the task can be tried "
                    "again, nothing is lost",
                ) from None
            except psycopg.Error as error:
                raise LogBroken(
                    f"the database of the log refuses: {self._server.told(error)[:300]}",
                    remedy="check that the role may create and change the tables clonos_*",
                ) from None

    def _connect(self) -> None:
        _ = self._server.parameters  # raises where libpq would tell parts of a password
        try:
            self._connection = self._server.connect(
                "clonos answers", autocommit=True, answer_s=ANSWER_S
            )
            with self._connection.transaction():
                # Serialize: creating the same table twice at the same time would fail.
                self._connection.execute("select pg_advisory_xact_lock(%s)", [_LOCKS])
                (known,) = self._connection.execute(
                    "select to_regclass('clonos_chunks')"
                ).fetchone()
                if known is None:
                    self._connection.execute(_SCHEMA)
        except BaseException:
            self.close()
            raise

    def _try_lock(self, sql: Any, log: int) -> bool:
        locked: bool = sql.execute("select pg_try_advisory_lock(%s)", [_LOCKS + log]).fetchone()[0]
        return locked

    def _begin(self, sql: Any, key: m.AnswerKey) -> bytes:
        """Make the batch of `key` the newest of its scope; return the scope's seed."""
        sql.execute(
            "insert into clonos_scopes values (%s, %s, -1) on conflict do nothing",
            (key.scope, secrets.token_bytes(SEED_BYTES)),
        )
        seed, newest = sql.execute(
            "select seed, newest from clonos_scopes where scope = %s", [key.scope]
        ).fetchone()
        if key.batch > newest:
            sql.execute(
                "update clonos_scopes set newest = %s where scope = %s and newest < %s",
                (key.batch, key.scope, key.batch),
            )
            self._truncate(sql, key.scope, key.batch)
        self._check_floor(sql, key)
        return bytes(seed)

    def _check_floor(self, sql: Any, key: m.AnswerKey) -> None:
        row = sql.execute(
            "select newest from clonos_scopes where scope = %s", [key.scope]
        ).fetchone()
        if row is not None and key.batch < row[0]:
            raise errors.below_floor(key, row[0])

    @staticmethod
    def _truncate(sql: Any, scope: str, below: int) -> None:
        sql.execute("delete from clonos_logs where scope = %s and batch < %s", (scope, below))

    @staticmethod
    def _find(sql: Any, key: m.AnswerKey) -> tuple[int, int, str, str]:
        sql.execute(
            "insert into clonos_logs (scope, batch, operator, partition) values (%s, %s, %s, %s) "
            "on conflict do nothing",
            tuple(key),
        )
        log, length, attempt, process = sql.execute(
            "select id, length, attempt, process from clonos_logs where scope = %s and batch = %s "
            "and operator = %s and partition = %s",
            tuple(key),
        ).fetchone()
        return log, length, attempt, process

    @staticmethod
    def _is_shared(sql: Any, key: m.AnswerKey, execution: str) -> bool:
        found: bool = sql.execute(
            "select exists (select from clonos_logs join clonos_chunks on log = id where "
            "scope = %s and batch = %s and operator = %s and partition <> %s and execution <> %s)",
            (*key, execution),
        ).fetchone()[0]
        return found

    def _check_budget(self, sql: Any, key: m.AnswerKey, more: int) -> None:
        used = sql.execute(
            "select coalesce(sum(nbytes), 0) from clonos_logs where scope = %s", [key.scope]
        ).fetchone()[0]
        if used + more + CHUNK_OVERHEAD > self._bytes_max:
            raise errors.full(key, more, used, self._bytes_max)


def _psycopg() -> Any:
    return imported("psycopg", extra="postgres", where="a store in PostgreSQL")
