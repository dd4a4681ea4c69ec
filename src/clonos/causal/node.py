"""The decisions of a job's log, sans-I/O: which client gets which reply, and when.

Events come in (requests of clients, outcomes of writes, verdicts); replies and orders go out. No
client learns anything that a crash could undo: a reply waits until all records that it depends on
are durable. One write takes all records that have come meanwhile (group commit); while it is under
way, the next group gathers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Protocol

from clonos.causal import messages as m
from clonos.causal.book import AnswerBook
from clonos.causal.entries import encode_chunk
from clonos.errors import ClonosError
from clonos.errors.causal import LogBroken
from clonos.transport.events import ClientClosed, ClientOpened, Connection

ROTATE_BYTES: Final = 64 << 20
"""A snapshot replaces the journal once it has grown by this, and to twice what is held."""

READ_BYTES_MAX: Final = 16 << 20
"""Soft limit of a reply with chunks; it always holds at least one."""

SILENT_S: Final = 15.0
"""An owner that has been silent for this long is presumed dead if another attempt waits."""

WAIT_MAX_S: Final = 10.0
"""Longest time that a request waits for news."""

MEND_S: Final = 1.0
"""Time before a failed disk is tried again, if some client waits for it."""

TURN_S: Final = 1.0
"""Longest time between turns, because the plane's clock does not count longer sleeps."""


@dataclass(frozen=True, slots=True)
class Written:
    """A write is durable; also the journal's new size in bytes."""

    nbytes: int


@dataclass(frozen=True, slots=True)
class WriteFailed:
    """A write has failed; what the journal holds is unknown."""

    error: ClonosError


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on a query's batch: it may be served, or why not."""

    scope: str
    batch: int
    error: ClonosError | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """A request to close the log."""


Event = ClientOpened | ClientClosed | Written | WriteFailed | Judged | Stop


class JournalPort(Protocol):
    """The journal; its methods return at once, and an event reports the outcome later."""

    def write(self, records: Sequence[bytes]) -> None:
        """Add a group. Answered by ``Written`` or ``WriteFailed``."""

    def rotate(self, head: Sequence[bytes]) -> None:
        """Begin a new journal with records that replace all earlier ones. Answered likewise."""

    def vouch(self) -> None:
        """Nothing will be written for a while: write a record that vouches for the last group, so
        that damage to it cannot be mistaken for a torn write. Answered likewise."""


JudgePort = Callable[[str, int], None]
"""Called with a scope and batch; the answer is the event ``Judged``."""


class Disk(Enum):
    """The state of the journal: ``IDLE -group-> WRITING -written-> IDLE``, ``WRITING -failed->
    BROKEN -group, as a new segment-> WRITING``."""

    IDLE = "idle"
    WRITING = "writing"
    BROKEN = "broken"


class _Client:
    """A connected process, which may own logs."""

    def __init__(self, connection: Connection, now_s: float) -> None:
        self.connection = connection
        self.heard_s = now_s
        self.is_gone = False

    def send(self, reply: Any) -> None:
        self.connection.send(reply)


@dataclass(slots=True)
class _Reader:
    """A client that waits for new chunks of a log."""

    client: _Client
    request: m.Read
    until_s: float


class AnswerNode:
    """The log of a job: :meth:`turn` handles events, and decides.

    Parameters
    ----------
    book
        The book, already recovered.
    journal_bytes
        The present size of the journal.
    judge
        Called once for each batch of a scope before its first log is opened; None: all batches are
        served.
    """

    def __init__(
        self,
        book: AnswerBook,
        journal: JournalPort,
        journal_bytes: int = 0,
        judge: JudgePort | None = None,
    ) -> None:
        self._book = book
        self._journal = journal
        self._judge = judge
        self._disk = Disk.IDLE
        self._mend_at_s = 0.0
        self._is_vouched = True
        self._nbytes = self._head_bytes = journal_bytes
        self._is_rotating = self._is_stopping = False
        self._now_s = 0.0
        self._clients: dict[int, _Client] = {}
        self._unsettled: list[tuple[int, _Client, Any]] = []
        self._readers: list[_Reader] = []
        self._judged: dict[str, int] = {}
        self._unjudged: dict[tuple[str, int], list[tuple[_Client, m.Open]]] = {}
        self._events: dict[type, Callable[[Any], None]] = {
            ClientOpened: self._client_opened,
            ClientClosed: self._client_closed,
            Written: self._written,
            WriteFailed: self._write_failed,
            Judged: self._was_judged,
            Stop: self._stop,
        }
        self._requests: dict[type, Callable[[_Client, Any], None]] = {
            m.Open: self._open,
            m.Append: self._append,
            m.Read: self._read,
            m.Lookup: self._lookup,
            m.Close: self._close,
            m.Beat: self._beat,
            m.Forget: self._forget,
        }

    def turn(self, events: Iterable[Event | tuple[int, Any]], now_s: float) -> float:
        """Handle events; return the time until the next turn if none arrive.

        Parameters
        ----------
        events
            Events of the plane and the ports, and pairs ``(conn_id, request)``.
        now_s
            Of a clock that stops while this process is frozen, so that no client counts as late for
            that.
        """
        self._now_s = now_s
        is_idle = True
        for event in events:
            is_idle = False
            if isinstance(event, tuple):
                self._hear(*event)
            else:
                self._events[type(event)](event)
        self._serve_readers()
        self._write_group(is_idle=is_idle)
        return min([TURN_S, *(reader.until_s - now_s for reader in self._readers)])

    @property
    def is_over(self) -> bool:
        """Whether it was stopped, and everything that can be written is written."""
        if self._disk is Disk.IDLE:
            return self._is_stopping and self._book.made == self._book.durable
        return self._is_stopping and self._disk is Disk.BROKEN

    def check(self) -> None:
        """Assert what always holds between two turns."""
        book = self._book
        assert book.durable <= book.taken <= book.made
        assert self._disk is not Disk.IDLE or book.durable == book.taken
        assert all(number > book.durable for number, _, _ in self._unsettled)
        waiting = [reader.client for reader in self._readers]
        waiting += [client for _, client, _ in self._unsettled]
        waiting += [client for opens in self._unjudged.values() for client, _ in opens]
        assert not any(client.is_gone for client in waiting)

    # --- clients ------------------------------------------------------------------------------

    def _client_opened(self, event: ClientOpened) -> None:
        self._clients[event.conn_id] = _Client(event.incoming, self._now_s)

    def _client_closed(self, event: ClientClosed) -> None:
        client = self._clients.pop(event.conn_id)
        client.is_gone = True
        self._book.leave(client)
        self._readers = [r for r in self._readers if r.client is not client]
        self._unsettled = [u for u in self._unsettled if u[1] is not client]
        for key, opens in self._unjudged.items():
            self._unjudged[key] = [(c, request) for c, request in opens if c is not client]

    def _hear(self, conn_id: int, request: Any) -> None:
        client = self._clients[conn_id]
        client.heard_s = self._now_s
        handle = self._requests.get(type(request))
        if handle is None:  # a message of the engine
            client.connection.close()
            return
        self._try(handle, client, request)

    def _try(self, handle: Callable[[_Client, Any], None], client: _Client, request: Any) -> None:
        try:
            handle(client, request)
        except ClonosError as error:
            client.send(_failed(request.ticket, error))

    def _answer(self, client: _Client, reply: Any, record: int) -> None:
        """Send `reply` as soon as the records up to number `record` are durable."""
        if record <= self._book.durable:
            client.send(reply)
        else:
            self._unsettled.append((record, client, reply))

    # --- requests -----------------------------------------------------------------------------

    def _open(self, client: _Client, request: m.Open) -> None:
        scope, batch = request.key.scope, request.key.batch
        if self._judge is None or self._judged.get(scope) == batch:
            self._let_open(client, request)
            return
        if (scope, batch) not in self._unjudged:
            self._unjudged[scope, batch] = []
            self._judge(scope, batch)
        self._unjudged[scope, batch].append((client, request))

    def _was_judged(self, event: Judged) -> None:
        if event.error is None:
            self._judged[event.scope] = event.batch
        for client, request in self._unjudged.pop((event.scope, event.batch)):
            if event.error is None:
                self._try(self._let_open, client, request)
            else:
                client.send(_failed(request.ticket, event.error))

    def _let_open(self, client: _Client, request: m.Open) -> None:
        book, key = self._book, request.key
        owns, length = book.open(
            client,
            key,
            request.attempt,
            request.process,
            take_over=request.take_over or self._is_free(key),
        )
        shared = book.is_shared(key, request.execution)
        reply = m.Opened(owns, length, book.seed(key), shared, request.ticket)
        self._answer(client, reply, book.depends(key))

    def _append(self, client: _Client, request: m.Append) -> None:
        self._book.append(client, request.key, request.execution, request.chunk)
        self._answer(client, m.Done(request.ticket), self._book.made)

    def _forget(self, client: _Client, request: m.Forget) -> None:
        self._book.truncate(request.scope, None)
        self._judged.pop(request.scope, None)
        self._answer(client, m.Done(request.ticket), self._book.made)

    def _lookup(self, client: _Client, request: m.Lookup) -> None:
        entry = self._book.lookup(request.key, request.execution, request.digest, request.rank)
        chunk = None if entry is None else encode_chunk([entry])
        client.send(m.Found(chunk, request.ticket))

    def _close(self, client: _Client, request: m.Close) -> None:
        self._book.close(client, request.key)
        client.send(m.Done(request.ticket))

    def _beat(self, client: _Client, request: m.Beat) -> None:
        client.send(m.Done(request.ticket))

    def _read(self, client: _Client, request: m.Read) -> None:
        wait_s = min(request.wait_ms / 1000, WAIT_MAX_S)
        self._readers.append(_Reader(client, request, self._now_s + wait_s))

    def _serve_readers(self) -> None:
        """Answer readers for whom there are chunks, or who have waited long enough."""
        waiting, self._readers = self._readers, []
        for reader in waiting:
            request = reader.request
            chunks, size = [], 0
            for chunk in self._book.read(request.key, request.since):
                chunks.append(chunk)
                size += len(chunk)
                if size > READ_BYTES_MAX:
                    break
            is_free = self._is_free(request.key)
            if chunks or is_free or reader.until_s <= self._now_s:
                reader.client.send(m.Chunks(tuple(chunks), is_free, request.ticket))
            else:
                self._readers.append(reader)

    def _is_free(self, key: m.AnswerKey) -> bool:
        """Whether a log has no owner, or one that has been silent for long."""
        owner = self._book.owner(key)
        return owner is None or (
            isinstance(owner, _Client) and self._now_s - owner.heard_s > SILENT_S
        )

    # --- the journal --------------------------------------------------------------------------

    def _write_group(self, *, is_idle: bool) -> None:
        """Write the gathered records, if no write is under way and some client waits."""
        book = self._book
        is_broken = self._disk is Disk.BROKEN
        if self._disk is Disk.WRITING or (is_broken and self._now_s < self._mend_at_s):
            return
        if book.made > book.durable and (self._unsettled or self._is_stopping):
            records = book.take_records()
            grown = self._nbytes - self._head_bytes
            self._is_rotating = is_broken or grown >= max(ROTATE_BYTES, book.nbytes)
            if self._is_rotating:
                self._journal.rotate(list(book.snapshot()))
            else:
                self._journal.write(records)
            self._is_vouched = self._is_rotating
        elif is_idle and not (is_broken or self._is_vouched):
            self._is_rotating, self._is_vouched = False, True
            self._journal.vouch()
        else:
            return
        self._disk = Disk.WRITING

    def _written(self, event: Written) -> None:
        self._disk = Disk.IDLE
        self._nbytes = event.nbytes
        if self._is_rotating:
            self._head_bytes = event.nbytes
        self._book.committed()
        unsettled, self._unsettled = self._unsettled, []
        for record, client, reply in unsettled:
            self._answer(client, reply, record)

    def _write_failed(self, event: WriteFailed) -> None:
        self._disk = Disk.BROKEN
        self._mend_at_s = self._now_s + MEND_S
        error = LogBroken(
            f"the log cannot be written: {event.error.what}",
            remedy="check the disk of the log's directory; what was acknowledged is safe, and the "
            "task can be tried again",
        )
        unsettled, self._unsettled = self._unsettled, []
        for _, client, reply in unsettled:
            client.send(_failed(reply.ticket, error))

    def _stop(self, _: Stop) -> None:
        self._is_stopping = True


def _failed(ticket: int, error: ClonosError) -> m.Failed:
    return m.Failed(type(error).__name__, error.what, error.remedy, ticket)
