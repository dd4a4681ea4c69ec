"""Connections of the PostgreSQL sink, and what its errors mean."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from clonos.errors import ClonosError, DefinitionError
from clonos.extras import imported
from clonos.sinks.lanes import Lane

MARKS: Final = "clonos_sink_marks"
"""The table of marks, in the schema of the sink's table."""

CONNECT_S: Final = 10
SILENCE_MS: Final = 20_000
"""Either side gives the other up after so long without an answer of its kernel."""
STATEMENT_MS: Final = 300_000
IDLE_MS: Final = 20_000
"""The server ends a transaction whose client says nothing for so long: it is frozen, or gone."""


@dataclass(frozen=True, repr=False)
class Target:
    """A table of a server. Only :meth:`connect` shows the password to anybody.

    Parameters
    ----------
    dsn
        As libpq takes it.
    table
        ``"orders"``, or ``"shop.orders"`` with its schema.
    """

    dsn: str
    table: str

    def __repr__(self) -> str:
        return f"<{self.place}>"

    @property
    def place(self) -> str:
        """Which table of which server, without the password."""
        known = self.parameters
        host = known.get("host") or known.get("hostaddr") or "local"
        server = f"{host}:{known.get('port') or 5432}/{known.get('dbname') or ''}"
        return f"table {self.table} of {server}"

    @property
    def parameters(self) -> dict[str, Any]:
        """What the dsn says.

        Raises
        ------
        DefinitionError
            It cannot be understood. Its text is in no message: the password may be in it.
        """
        psycopg = driver()
        try:
            return dict(psycopg.conninfo.conninfo_to_dict(self.dsn))
        except psycopg.Error:
            pass
        raise DefinitionError(
            "the dsn cannot be understood",
            where=f"table {self.table}",
            remedy='write "postgresql://user@host:5432/database" or "host=... dbname=..."; letters '
            "such as @, / and : in a password are written as %40, %2F and %3A in the first form",
        )

    def connect(self, name: str) -> Any:
        """A new connection; `name` is shown in ``pg_stat_activity``."""
        psycopg = driver()
        found = psycopg.connect(
            self.dsn,
            application_name=name,
            connect_timeout=CONNECT_S,
            tcp_user_timeout=SILENCE_MS,
            keepalives_idle=SILENCE_MS // 1000,
            client_encoding="utf8",
        )
        try:
            found.execute(
                f"set statement_timeout = {STATEMENT_MS};"
                f"set idle_in_transaction_session_timeout = {IDLE_MS};"
                f"set tcp_user_timeout = {SILENCE_MS}; set tcp_keepalives_idle = 20"
            )
            found.commit()
        except BaseException:
            found.close()
            raise
        return found

    def parts(self) -> tuple[str | None, str]:
        """Schema, if it was given, and name."""
        schema, _, name = self.table.rpartition(".")
        return schema or None, name

    def told(self, error: BaseException) -> str:
        """An error's text, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        secret = self.parameters.get("password")
        return text.replace(secret, "***") if secret else text


def driver() -> Any:
    """The module psycopg."""
    return imported("psycopg", extra="postgres", where="sinks.postgres")


def application_name(lane: Lane, place: str) -> str:
    """What the sessions of a lane are called, by life; at most 63 letters.

    Examples
    --------
    >>> application_name(Lane("a", "out", 0, 7), "table t of h:5432/d")
    'clonos 565057b17943ddf4 7'
    """
    digest = hashlib.blake2b(f"{place} {lane.name}".encode(), digest_size=8).hexdigest()
    return f"clonos {digest} {lane.incarnation}"


def is_away(error: BaseException) -> bool:
    """Whether it may help to connect again: servers that are away, deadlocks, timeouts."""
    psycopg = driver()
    if isinstance(error, psycopg.errors.InternalError):  # a replica that is none any more, or yet
        return error.sqlstate in {"25006", "25P02"}
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def is_of_a_row(error: BaseException) -> bool:
    """Whether a single row may be the reason."""
    psycopg = driver()
    return isinstance(error, (psycopg.DataError, psycopg.IntegrityError))


def attempt(target: Target, kind: type[ClonosError], work: Callable[[], Any]) -> Any:
    """Do some work; an error of the server's becomes one of `kind`, without the password."""
    psycopg = driver()
    try:
        return work()
    except psycopg.Error as error:
        raise kind(
            target.told(error),
            where=target.place,
            remedy="see that the driver and all executors reach the server, and may create tables "
            "in that schema, read and write",
        ) from None
