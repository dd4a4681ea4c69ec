"""A connection to a PostgreSQL server on which each statement is durable when it returns."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

from clonos.errors import UnusableStore
from clonos.extras import imported
from clonos.postgres import understood
from clonos.storage.watchdog import Cord

CONNECT_S: Final = 5
SILENCE_MS: Final = 5_000
"""Either side gives the other up after this long without an answer from its kernel."""
ANSWER_S: Final = 15.0
"""A statement is broken off after this long without an answer: the server is frozen, though its
kernel is not ..."""
MB_PER_S: Final = 1.0
"""... or later, if it is large: a network is expected to be this fast."""
HURRY_S: Final = 3.0
"""The same for both when the job is to end."""
IDLE_MS: Final = 10_000
"""The server ends a transaction whose client says nothing for so long: it is frozen, or gone, and
others may wait for what it has locked."""

_TIMEOUTS: Final = [
    f"{what}_timeout" for what in ("idle_session", "lock", "statement", "transaction")
]
"""Administrators set these to end forgotten sessions; but a journal may be idle for long."""
_OWN_SETTINGS: Final = (
    "select set_config(name, '0', false) from pg_settings where name = any(%s) "
    "union all select set_config('default_transaction_isolation', 'read committed', false)"
)
_GIVE_UP: Final = (
    f"set idle_in_transaction_session_timeout = {IDLE_MS}; "
    f"set tcp_user_timeout = {SILENCE_MS}; set tcp_keepalives_idle = {SILENCE_MS // 1000}"
)
"""Not every version knows all of these timeouts. Read committed: a check of our fence must see the
newest row."""
NAME: Final = "clonos journal"
"""What the server calls our sessions."""
NO_PLACE: Final = "a database whose URI cannot be understood"


class Line:
    """A connection that is made when it is needed, and anew after an error; for one thread at a
    time.

    Parameters
    ----------
    dsn
        Such as ``postgresql://user@host:5432/database``.
    answer_s
        See :data:`ANSWER_S`.

    Attributes
    ----------
    driver
        The module psycopg.
    name
        What the server calls our next sessions.
    is_away
        Whether the server did not answer when it was last asked.
    """

    def __init__(self, dsn: str, answer_s: float = ANSWER_S) -> None:
        self.driver = imported("psycopg", extra="postgres", where="a journal in PostgreSQL")
        self.name = NAME
        self.is_away = False
        self._dsn = dsn
        self._connection: Any = None
        self._connect_s = CONNECT_S
        self._cord = Cord(answer_s)

    @property
    def place(self) -> str:
        """The server, without the password."""
        if (known := understood(self._dsn)) is None:
            return NO_PLACE
        host = known.get("host") or known.get("hostaddr") or "local"
        return f"postgresql://{host}:{known.get('port') or 5432}/{known.get('dbname') or ''}"

    @contextmanager
    def ask(self, nbytes: int | None = 0) -> Iterator[Any]:
        """The connection, for a statement or a transaction.

        Parameters
        ----------
        nbytes
            How much is sent. None: much may be received, which takes as long as it takes.

        Raises
        ------
        OSError
            What the server says, or that it does not answer. The next use connects again.
        UnusableStore
            A table is gone, or there is a connection pool before the server.
        """
        more_s = float("inf") if nbytes is None else nbytes / MB_PER_S / 1e6
        try:
            if self._connection is None or self._connection.closed:
                self._connect(more_s)
            self._cord.watchdog.begin(more_s)
            yield self._connection
            self.is_away = False
        except self.driver.errors.UndefinedTable as error:  # no outage: it never comes back
            raise UnusableStore(
                f"a table of the journal is gone: {self._told(error)}",
                where=self.place,
                remedy="restore clonos_files and clonos_locks from a copy of the database, or "
                "start the job afresh in another checkpoint_dir",
            ) from None
        except self.driver.Error as error:
            self.is_away = isinstance(error, self.driver.OperationalError)
            self.close()  # a session keeps what was set when it began: read-only, for example
            raise OSError(errno.EIO, f"PostgreSQL: {self._told(error)}") from None
        finally:
            self._cord.watchdog.end()

    def _connect(self, more_s: float) -> None:
        self.close()  # what is left of the last one
        self._cord.is_cut = False
        self._connection = self.driver.connect(
            self._dsn,
            autocommit=True,
            application_name=self.name,
            connect_timeout=self._connect_s,
            tcp_user_timeout=SILENCE_MS,
            keepalives_idle=SILENCE_MS // 1000,
        )
        self._cord.tie(self._connection.fileno())
        self._cord.watchdog.begin(more_s)
        try:
            self._require_direct(self._connection)
            self._connection.execute(
                f"set synchronous_commit = on; set client_min_messages = warning; {_GIVE_UP}"
            )
            self._connection.execute(_OWN_SETTINGS, (_TIMEOUTS,))
        except BaseException:
            self.close()
            raise

    def _require_direct(self, connection: Any) -> None:
        """Our settings decide what is durable, so they must apply to each of our statements. A pool
        may give us another session for each transaction, with the settings of others."""
        (pid,) = connection.execute("select pg_backend_pid()").fetchone()
        if pid != connection.info.backend_pid:  # the greeting came from another process
            raise UnusableStore(
                "there is a connection pool, such as PgBouncer, before the database",
                where=self.place,
                remedy="give the address of the server itself: a job needs two connections",
            )

    def _told(self, error: BaseException) -> str:
        if self._cord.is_cut:
            return f"no answer within {self._cord.watchdog.hangs_s:g} s"
        text = " ".join(str(error).split()) or type(error).__name__
        with suppress(self.driver.Error):
            secret = self.driver.conninfo.conninfo_to_dict(self._dsn).get("password")
            return text.replace(secret, "***") if secret else text
        return type(error).__name__

    def hurry(self) -> None:
        """Do not wait long for the server any more."""
        self._cord.watchdog.hangs_s, self._connect_s = HURRY_S, int(HURRY_S)

    def cut(self) -> None:
        """See :meth:`Cord.cut`."""
        self._cord.cut()

    def close(self) -> None:
        """Close the connection."""
        self._cord.untie()
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self.driver.Error):
                connection.close()
