"""What the PostgreSQL source and sink share: a server's address, and what its errors mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from clonos.errors import DefinitionError
from clonos.extras import imported

CONNECT_S: Final = 10
SILENCE_MS: Final = 20_000
"""Either side gives the other up after so long without an answer of its kernel."""
STATEMENT_MS: Final = 300_000
LOOK_S: Final = 15.0
"""After so long without an answer, and then again and again, the server is looked at: it may be
frozen, though its kernel is not."""
ANSWER_S: Final = STATEMENT_MS / 1000 + LOOK_S
"""Nothing is waited for any longer: by then the server has broken off what takes long."""
IDLE_MS: Final = 20_000
"""The server ends a transaction whose client says nothing for so long: it is frozen, or gone."""

_PASS: Final = {"25006", "25P02", "25P03", "25P04"}
"""States of transactions that another one need not meet: of a replica that is none any more, or
yet; and of a client that was frozen, so the server has ended its transaction."""

_REFUSED: Final = re.compile(
    r"authentication failed for user|is not permitted to log in|no pg_hba\.conf entry"
    r'|FATAL: +role ".*" does not exist'
)
"""What servers say in English. In other languages, the source waits, and warns."""


@dataclass(frozen=True, repr=False)
class Server:
    """A database. Only :meth:`connect` shows the password to anybody.

    Parameters
    ----------
    dsn
        As libpq takes it.

    Examples
    --------
    >>> Server("postgresql://me:secret@db.example/shop")
    <PostgreSQL at db.example:5432/shop>
    """

    dsn: str

    def __post_init__(self) -> None:
        if not isinstance(self.dsn, str):  # a variable that is not set, say
            raise _not_understood()

    def __repr__(self) -> str:
        return f"<PostgreSQL at {self.place}>"

    @property
    def place(self) -> str:
        """Which server, without the password."""
        known = self.parameters
        host = known.get("host") or known.get("hostaddr") or "local"
        return f"{host}:{known.get('port') or 5432}/{known.get('dbname') or ''}"

    @property
    def parameters(self) -> dict[str, Any]:
        """What the dsn says.

        Raises
        ------
        DefinitionError
            It cannot be understood. Its text is in no message: the password may be in it.
        """
        if (found := understood(self.dsn)) is None:
            raise _not_understood()
        return found

    def connect(self, name: str, *, autocommit: bool = False, answer_s: float = ANSWER_S) -> Any:
        """A new :class:`~clonos.postgres.watched.Watched`; `name` is shown in
        ``pg_stat_activity``.
        """
        driver()
        from clonos.postgres.watched import Watched

        found = Watched.connect(
            self.dsn,
            application_name=name,
            connect_timeout=CONNECT_S,
            tcp_user_timeout=SILENCE_MS,
            keepalives_idle=SILENCE_MS // 1000,
            client_encoding="utf8",
        )
        try:
            found.look_s, found.answer_s = LOOK_S, answer_s
            found.execute(
                f"set statement_timeout = {STATEMENT_MS};"
                f"set idle_in_transaction_session_timeout = {IDLE_MS};"
                f"set tcp_user_timeout = {SILENCE_MS}; set tcp_keepalives_idle = 20"
            )
            found.commit()
            found.autocommit = autocommit
        except BaseException:
            found.close()
            raise
        return found

    def told(self, error: BaseException) -> str:
        """An error's text, without the password."""
        text = " ".join(str(error).split()) or type(error).__name__
        secret = self.parameters.get("password")
        return text.replace(secret, "***") if secret else text


def understood(dsn: str) -> dict[str, Any] | None:
    """What a dsn says; None: it cannot be understood.

    In a URI, a password ends at a letter such as / or @ that is not escaped. The rest of it is
    taken for a host, a port or a database, which errors show: so such a URI is not understood.
    """
    psycopg = driver()
    try:
        found = dict(psycopg.conninfo.conninfo_to_dict(dsn))
    except psycopg.Error:
        return None
    is_uri = dsn.startswith(("postgresql://", "postgres://"))
    path = dsn.partition("://")[2].partition("?")[0].partition("/")[2] if is_uri else ""
    hosts, ports = (str(found.get(name) or "").split(",") for name in ("host", "port"))
    is_cut = "@" in path or any("@" in host[1:] for host in hosts)  # @name: an abstract socket
    is_cut |= any(port and not (port.isascii() and port.isdigit()) for port in ports)
    return None if is_cut else found


def _not_understood() -> DefinitionError:
    return DefinitionError(
        "the dsn cannot be understood",
        where="PostgreSQL",
        remedy='write "postgresql://user@host:5432/database" or "host=... dbname=..."; letters '
        "such as @, / and : in a password are written as %40, %2F and %3A in the first form",
    )


def driver() -> Any:
    """The module psycopg.

    Raises
    ------
    DefinitionError
        It is not installed.
    """
    return imported("psycopg", extra="postgres", where="postgres")


def is_away(error: BaseException) -> bool:
    """Whether it may help to connect again: servers that are away, deadlocks, timeouts."""
    psycopg = driver()
    if isinstance(error, psycopg.errors.InternalError):
        return error.sqlstate in _PASS
    return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError))


def is_refusal(error: BaseException) -> bool:
    """Whether the server does not let this user in."""
    psycopg = driver()
    if not isinstance(error, psycopg.OperationalError):
        return False
    if error.sqlstate is None:  # libpq keeps the state of a connection that fails to itself
        return _REFUSED.search(str(error)) is not None
    return bool(error.sqlstate.startswith("28"))
