"""The house-keeper beside the driver: the book of answers, its journal, and its Flight server.

Every process that asks has one stream, on which requests and replies take turns; a stream that
ends is a process that is gone. Of all appends that wait, one writes everything that has come
meanwhile as one frame with one ``fdatasync`` (group commit); only then they are answered.
"""

from __future__ import annotations

import atexit
import contextlib
import ipaddress
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyarrow import flight

from clonos.causal import messages as m
from clonos.causal.entries import encode_chunk
from clonos.causal.errors import LogBroken
from clonos.causal.keeper import SEED_BYTES, Keeper, TaskLog
from clonos.causal.place import Connection
from clonos.causal.sever import sever
from clonos.errors import ClonosError, MalformedMessage
from clonos.storage.files import Durability
from clonos.storage.journal import Journal, JournalBroken
from clonos.transport.certificates import Authority
from clonos.transport.errors import AuthenticationFailed, PlaintextRefused
from clonos.transport.secret import JobSecret, Purpose, refused
from clonos.transport.tls import DRIVER_NAME, Identity

ROTATE_BYTES: Final = 64 << 20
"""A journal is replaced by a snapshot when it has grown by so much, and to twice what is held."""

READ_BYTES_MAX: Final = 16 << 20
"""A reply with chunks holds little more than this (one chunk in any case)."""

SILENT_S: Final = 15.0
"""An owner that says nothing for so long is taken for dead, if somebody waits for its log."""

CLOSE_S: Final = 3.0

ASKER_NAME: Final = "task"
"""What the certificate of those who ask says."""

_BROKEN: Final = (pa.ArrowException, OSError)


class _Session:
    """One process that asks."""

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self.heard_s = time.monotonic()


class LogServer:
    """The log of one job, served from a directory.

    Parameters
    ----------
    directory
        Made if it does not exist; what an earlier server acknowledged there is taken up.
    host
        Address of the interface to listen on; never all of them.
    bytes_max
        Of answers that are not truncated yet; they are in memory, too.
    durability
        ``"fsync"``: survives the machine. ``"process"``: only the death of processes.
    tls
        Encrypt (TLS 1.3), with an authority made for this log alone; those who ask then need
        its :attr:`identity`. Default: if the address is not a loopback one. False asks by name
        for plaintext there.
    judge
        Called with scope and batch of every log that is to be opened; what it raises (an error
        of clonos) the task gets instead.

    Raises
    ------
    JournalInUse
        Another driver serves this directory.
    UnreadableJournal
        It is damaged elsewhere than at its end.

    Examples
    --------
    >>> import tempfile
    >>> with LogServer(tempfile.mkdtemp()) as server:
    ...     server.address.startswith("grpc://127.0.0.1:")
    True
    """

    def __init__(
        self,
        directory: str | Path,
        host: str = "127.0.0.1",
        *,
        bytes_max: int = 1 << 30,
        durability: Durability = "fsync",
        tls: bool | None = None,
        judge: Callable[[str, int], None] | None = None,
    ) -> None:
        is_loopback = _is_loopback(host)
        self._judge = judge
        self.secret = JobSecret.new()
        self.job = secrets.token_hex(8)
        authority = Authority(self.job) if tls or (tls is None and not is_loopback) else None
        self.identity = authority.issue(ASKER_NAME) if authority else None
        self._keeper = Keeper(bytes_max, lambda: secrets.token_bytes(SEED_BYTES))
        self._sessions: set[_Session] = set()
        self._nonces: set[bytes] = set()
        self._changed = threading.Condition()
        self._closing = self._is_committing = False
        self._broken: JournalBroken | None = None
        self._journal = Journal(directory, durability)
        try:
            self._keeper.recover(self._journal.replay())
            self._held_bytes = self._journal.nbytes
            named = f"[{host}]" if ":" in host else host
            scheme = "grpc+tls" if authority else "grpc"
            mine = authority.issue(DRIVER_NAME) if authority else None
            self._server = _Server(f"{scheme}://{named}:0", self._serve, mine)
        except BaseException:
            self._journal.close()
            raise
        self.address = f"{scheme}://{named}:{self._server.port}"
        # Arrow's own clean-up at exit waits for open streams, forever: be there before it.
        atexit.register(self.close)

    @property
    def nbytes(self) -> int:
        """Bytes of answers that are held."""
        return self._keeper.nbytes

    @property
    def journal_bytes(self) -> int:
        """Size of the file they are in."""
        return self._journal.nbytes

    # --- the journal --------------------------------------------------------------------------

    def _commit(self) -> None:
        """Write what has come; called holding the lock, which is free while the disk works."""
        records, staged = self._keeper.take_records()
        head = self._head()
        self._is_committing = True
        self._changed.release()
        broken = None
        try:
            if head is None:
                self._journal.append(records)
                self._journal.commit()
            else:
                self._journal.rotate(head)
                self._held_bytes = self._journal.nbytes
        except JournalBroken as error:
            broken = error
        finally:
            self._changed.acquire()
            self._is_committing = False
        if broken is None:
            self._keeper.committed(staged)
        else:
            self._broken = broken
        self._changed.notify_all()

    def _head(self) -> list[bytes] | None:
        """The snapshot to start a new segment with, if it is time for one."""
        grown = self._journal.nbytes - self._held_bytes
        if grown < max(ROTATE_BYTES, self._keeper.nbytes):
            return None
        return list(self._keeper.snapshot())

    def _wait_durable(self, done: Callable[[], bool]) -> None:
        """Return, holding the lock, when `done`: somebody writes for all that came meanwhile."""
        while not done():
            if self._broken is not None or self._closing:
                raise LogBroken(
                    f"the log cannot be written: {self._broken or 'it is being closed'}",
                    remedy="see to the disk of the log's directory, then start the job again",
                )
            if self._is_committing:
                self._changed.wait()
            else:
                self._commit()

    # --- requests -----------------------------------------------------------------------------

    def _answer(self, session: _Session, request: Any) -> Any:
        session.heard_s = time.monotonic()
        try:
            if self._judge is not None and isinstance(request, m.Open):
                self._judge(request.place.scope, request.place.batch)
            with self._changed:
                return self._handle(session, request)
        except ClonosError as error:
            return m.Refused(type(error).__name__, error.what)

    def _handle(self, session: _Session, request: Any) -> Any:
        keeper = self._keeper
        match request:
            case m.Open(place, attempt, process, execution, take_over):
                owns, length = keeper.open(
                    session, place, attempt, process, take_over=take_over or self._is_free(place)
                )
                self._durable_to(place, length)
                shared = keeper.is_shared(place, execution)
                return m.Opened(owns, length, keeper.seed(place), shared)
            case m.Append(place, execution, chunk):
                keeper.append(session, place, execution, chunk)
                self._durable_to(place, keeper.length(place))
                return m.Done()
            case m.Read(place, since, wait_ms):
                return self._read(place, since, wait_ms)
            case m.Lookup(place, execution, digest, rank):
                entry = keeper.lookup(place, execution, digest, rank)
                return m.Found(None if entry is None else encode_chunk([entry]))
            case m.Close(place):
                keeper.close(session, place)
                self._changed.notify_all()
            case m.Truncate(scope, below):
                keeper.truncate(scope, below)
        return m.Done()

    def _durable_to(self, place: m.Place, length: int) -> None:
        log: TaskLog | None = self._keeper.find(place)
        self._wait_durable(lambda: log is None or log.durable >= length)

    def _read(self, place: m.Place, since: int, wait_ms: int) -> m.Chunks:
        until = time.monotonic() + min(wait_ms, 10_000) / 1000
        keeper = self._keeper
        while True:
            chunks, size = [], 0
            for chunk in keeper.read(place, since):
                chunks.append(chunk)
                size += len(chunk)
                if size > READ_BYTES_MAX:
                    break
            is_free = self._is_free(place)
            left = until - time.monotonic()
            if chunks or is_free or left <= 0 or self._closing:
                return m.Chunks(tuple(chunks), is_free)
            self._changed.wait(left)

    def _is_free(self, place: m.Place) -> bool:
        """Whether nobody owns a log, or one that has not been heard of for long."""
        owner = self._keeper.owner(place)
        return owner is None or (
            isinstance(owner, _Session) and time.monotonic() - owner.heard_s > SILENT_S
        )

    # --- streams ------------------------------------------------------------------------------

    def _serve(self, peer: str, sealed: bytes, reader: Any, writer: Any) -> None:
        """One process, from its greeting to its end."""
        self._authenticate(sealed)
        session = _Session(peer)
        with self._changed:
            self._sessions.add(session)
        try:
            writer.write_metadata(self.secret.answer(sealed))
            while True:
                metadata = reader.read_chunk().app_metadata
                if metadata is None:
                    raise MalformedMessage("something else than a request came")
                reply = self._answer(session, m.WIRE.decode(metadata))
                writer.write_metadata(m.WIRE.encode(reply))
        except StopIteration:
            pass
        finally:
            with self._changed:
                self._sessions.discard(session)
                self._keeper.leave(session)
                self._changed.notify_all()

    def _authenticate(self, sealed: bytes) -> None:
        greeting = self.secret.open(sealed)
        with self._changed:
            ours = (greeting.job, greeting.audience, greeting.purpose) == (
                self.job,
                self.address,
                Purpose.CONTROL,
            )
            if self._closing or not ours or greeting.nonce in self._nonces:
                raise refused()
            self._nonces.add(greeting.nonce)

    def reached_by(self, connection: Connection) -> Connection:
        """Say in `connection` how executors reach this server."""
        address, identity = self.address, self.identity
        return replace(
            connection, address=address, job=self.job, secret=self.secret, identity=identity
        )

    def close(self) -> None:
        """Answer nobody any more, and give the directory back."""
        atexit.unregister(self.close)
        with self._changed:
            if self._closing:
                return
            while self._is_committing:
                self._changed.wait()
            if self._keeper.has_records and self._broken is None:
                self._commit()  # floors, which nobody waits for
            self._closing = True
            self._changed.notify_all()
            peers = [session.peer for session in self._sessions]
        for peer in peers:  # a client that is idle reads nothing: it gets to know when it asks
            with contextlib.suppress(OSError, ValueError):
                sever(peer, local_port=self._server.port)
        closer = threading.Thread(target=self._server.shutdown, name="clonos-close", daemon=True)
        closer.start()
        closer.join(CLOSE_S)
        self._journal.close()

    def __enter__(self) -> LogServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _is_loopback(host: str) -> bool:
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        raise PlaintextRefused(
            f"{host!r} is not an IP address", remedy="name the driver's interface by its address"
        ) from None
    if ip.is_unspecified:
        raise PlaintextRefused(
            f"the log would be served at every address, {host}",
            remedy="give the address of the one interface that executors reach",
        )
    return ip.is_loopback


class _Server(flight.FlightServerBase):  # type: ignore[misc]
    """Hands every exchange over; what else Flight can do is refused by its defaults."""

    def __init__(self, location: str, serve: Any, identity: Identity | None) -> None:
        self._serve = serve
        if identity is None:
            super().__init__(location)
            return
        super().__init__(
            location,
            tls_certificates=[(identity.certificate, identity.key)],
            verify_client=True,
            root_certificates=identity.authority,
        )

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        try:
            self._serve(context.peer(), descriptor.command or b"", reader, writer)
        except AuthenticationFailed as error:
            raise flight.FlightUnauthenticatedError(str(error)) from error
        except ClonosError as error:
            raise flight.FlightServerError(f"{type(error).__name__}: {error}") from error
        except _BROKEN:
            pass  # the process is gone, in mid-sentence
