"""Connections of the PostgreSQL sink, and the translation of errors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from clonos.errors import ClonosError
from clonos.postgres import Server, driver, is_away
from clonos.sinks.lanes import Lane

MARKS: Final = "clonos_sink_marks"
"""The table of marks, in the schema of the sink's table."""


@dataclass(frozen=True, repr=False)
class Target:
    """A table on a server. Only :meth:`connect` uses the password.

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
    def server(self) -> Server:
        return Server(self.dsn)

    @property
    def place(self) -> str:
        """Table and server for messages, without the password."""
        return f"table {self.table} of {self.server.place}"

    def connect(self, name: str) -> Any:
        """A new connection; `name` is shown in ``pg_stat_activity``."""
        return self.server.connect(name)

    def parts(self) -> tuple[str | None, str]:
        """Schema (if given) and name."""
        schema, _, name = self.table.rpartition(".")
        return schema or None, name

    def told(self, error: BaseException) -> str:
        """An error's text, without the password."""
        return self.server.told(error)


def application_name(lane: Lane, place: str) -> str:
    """The application name of a lane's sessions, by life; at most 63 characters.

    Examples
    --------
    >>> application_name(Lane("a", "out", 0, 7), "table t of h:5432/d")
    'clonos 565057b17943ddf4 7'
    """
    digest = hashlib.blake2b(f"{place} {lane.name}".encode(), digest_size=8).hexdigest()
    return f"clonos {digest} {lane.incarnation}"


def is_of_a_row(error: BaseException) -> bool:
    """Whether a single row may be the cause."""
    psycopg = driver()
    return isinstance(error, (psycopg.DataError, psycopg.IntegrityError))


def attempt(target: Target, kind: type[ClonosError], work: Callable[[], Any]) -> Any:
    """Do some work; translate the server's errors to `kind`, without the password.

    If it may help to wait, the cause is a `ConnectionError`."""
    psycopg = driver()
    try:
        return work()
    except psycopg.Error as error:
        said = target.told(error)
        raise kind(
            said,
            where=target.place,
            remedy="check that the driver and all executors reach the server, and may create "
            "tables in that schema, read and write",
        ) from (ConnectionError(said) if is_away(error) else None)
