"""The holder of a task's log, as the task sees it, and how it is reached."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from typing import Any, Protocol

from clonos.causal import errors
from clonos.causal import messages as m
from clonos.causal.entries import Entry, decode_chunk
from clonos.errors import AuthenticationFailed, MalformedMessage, PeerUnreachable
from clonos.errors.causal import LogUnreachable
from clonos.transport.client import REPLY_S, Client
from clonos.transport.secret import JobSecret
from clonos.transport.tls import Identity


class Holder(Protocol):
    """Keeps the logs of tasks: the four operations, as a task uses them.

    Every method may raise :class:`~clonos.errors.causal.LogUnreachable`.
    """

    def open(
        self, key: m.AnswerKey, attempt: str, execution: str, *, take_over: bool = False
    ) -> m.Opened: ...

    def append(self, key: m.AnswerKey, execution: str, chunk: bytes) -> None: ...

    def read(self, key: m.AnswerKey, since: int, wait_s: float = 0.0) -> m.Chunks: ...

    def lookup(
        self, key: m.AnswerKey, execution: str, digest: bytes, rank: int
    ) -> Entry | None: ...

    def close_log(self, key: m.AnswerKey) -> None: ...

    def beat(self) -> None: ...

    def forget(self, scope: str) -> None: ...

    def close(self) -> None: ...


class ServedHolder:
    """The client of the log beside the driver.

    Usable by several threads, and after a fork. A broken stream is opened again for the next
    request. Ownership of logs ends with the stream, so a task that was cut off finds out at its
    next append whether another attempt has taken over.

    Parameters
    ----------
    address, job, secret, identity
        Those of the :class:`~clonos.causal.server.LogServer`.
    """

    def __init__(
        self,
        address: str,
        job: str,
        secret: JobSecret,
        reply_s: float = REPLY_S,
        *,
        identity: Identity | None = None,
    ) -> None:
        self.address = address
        self._client = Client(address, job, secret, m.ANSWERS, identity=identity, reply_s=reply_s)
        self._name = secrets.token_hex(8)

    def open(
        self, key: m.AnswerKey, attempt: str, execution: str, *, take_over: bool = False
    ) -> m.Opened:
        process = f"{self._name}/{os.getpid()}"  # a forked child counts as another process
        opened: m.Opened = self._ask(m.Opened, m.Open, key, attempt, process, execution, take_over)
        return opened

    def append(self, key: m.AnswerKey, execution: str, chunk: bytes) -> None:
        self._ask(m.Done, m.Append, key, execution, chunk)

    def read(self, key: m.AnswerKey, since: int, wait_s: float = 0.0) -> m.Chunks:
        chunks: m.Chunks = self._ask(m.Chunks, m.Read, key, since, int(wait_s * 1000))
        return chunks

    def lookup(self, key: m.AnswerKey, execution: str, digest: bytes, rank: int) -> Entry | None:
        found: m.Found = self._ask(m.Found, m.Lookup, key, execution, digest, rank)
        return None if found.chunk is None else decode_chunk(found.chunk)[0]

    def close_log(self, key: m.AnswerKey) -> None:
        self._ask(m.Done, m.Close, key)

    def beat(self) -> None:
        self._ask(m.Done, m.Beat)

    def forget(self, scope: str) -> None:
        self._ask(m.Done, m.Forget, scope)

    def _ask(self, expected: type, kind: type, *fields: Any) -> Any:
        try:
            reply = self._client.ask(kind, *fields)
        except (PeerUnreachable, AuthenticationFailed, MalformedMessage) as error:
            raise LogUnreachable(
                f"the log at {self.address} does not answer: {error}",
                remedy="check that the driver runs and that executors reach it at this address "
                "(causal.start(host=...)); the task can be tried again, nothing is lost",
            ) from error
        if isinstance(reply, m.Failed):
            raise errors.named(reply.error)(reply.what, remedy=reply.remedy)
        if not isinstance(reply, expected):
            raise MalformedMessage(f"{type(reply).__name__} is no reply to {kind.__name__}")
        return reply

    def close(self) -> None:
        """End the stream; the next request opens another."""
        self._client.close()


@dataclass(frozen=True)
class LogAccess:
    """How a job's log is reached, and under which identity.

    Parameters
    ----------
    address, job, secret, identity
        Those of the server beside the driver; empty if `dsn` is given.
    dsn
        The PostgreSQL database that keeps the log instead.
    run
        The scope of batch jobs.
    term
        Drawn at each start of a driver, to distinguish its executions from earlier ones.
    """

    run: str
    term: str
    patience_s: float
    address: str = ""
    job: str = ""
    secret: JobSecret | None = None
    identity: Identity | None = None
    dsn: str = ""
    bytes_max: int = 0

    def __repr__(self) -> str:
        return f"LogAccess({self.run!r}, ...)"

    def holder(self) -> Holder:
        """A holder for this process."""
        if self.secret is not None:
            return ServedHolder(self.address, self.job, self.secret, identity=self.identity)
        from clonos.causal.postgres import PostgresHolder

        return PostgresHolder(self.dsn, self.bytes_max)
