"""What a task needs of whoever keeps its log, and the one that speaks Flight."""

from __future__ import annotations

import contextlib
import secrets
import threading
from queue import Empty, SimpleQueue
from typing import Any, Final, Protocol

import pyarrow as pa
from pyarrow import flight

from clonos.causal import errors
from clonos.causal import messages as m
from clonos.causal.entries import Entry, decode_chunk
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError, MalformedMessage
from clonos.transport.errors import AuthenticationFailed
from clonos.transport.secret import Greeting, JobSecret, Purpose
from clonos.transport.tls import DRIVER_NAME, Identity

REPLY_S: Final = 30.0
"""A reply that takes longer is not waited for."""

_NOBODY: Final = Incarnation(0, 0)
_OPTIONS: Final = [("grpc.enable_http_proxy", 0)]  # peers are named by address
_BROKEN: Final = (pa.ArrowException, OSError, StopIteration)


class Holder(Protocol):
    """Keeps the logs of tasks: the four verbs, as a task uses them.

    Every method may raise :class:`~clonos.causal.errors.LogUnreachable`.
    """

    def open(
        self, place: m.Place, attempt: str, execution: str, *, take_over: bool = False
    ) -> m.Opened: ...

    def append(self, place: m.Place, execution: str, chunk: bytes) -> None: ...

    def read(self, place: m.Place, since: int, wait_s: float = 0.0) -> m.Chunks: ...

    def lookup(self, place: m.Place, execution: str, digest: bytes, rank: int) -> Entry | None: ...

    def close_log(self, place: m.Place) -> None: ...

    def beat(self) -> None: ...

    def truncate(self, scope: str, below: int | None) -> None: ...

    def close(self) -> None: ...


class FlightHolder:
    """The house-keeper beside the driver, seen from a process that asks.

    Usable by several threads. A stream that breaks is opened again for the next request: with it
    goes the ownership of logs, so a task that was cut off finds out at its next append whether
    somebody else has gone on meanwhile.

    Parameters
    ----------
    address, job, secret, identity
        Of the :class:`~clonos.causal.server.LogServer`.
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
        self._job = job
        self._secret = secret
        self._identity = identity
        self._reply_s = reply_s
        self._process = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._stream: _Stream | None = None

    def open(
        self, place: m.Place, attempt: str, execution: str, *, take_over: bool = False
    ) -> m.Opened:
        request = m.Open(place, attempt, self._process, execution, take_over)
        opened: m.Opened = self._ask(request, m.Opened)
        return opened

    def append(self, place: m.Place, execution: str, chunk: bytes) -> None:
        self._ask(m.Append(place, execution, chunk), m.Done)

    def read(self, place: m.Place, since: int, wait_s: float = 0.0) -> m.Chunks:
        chunks: m.Chunks = self._ask(m.Read(place, since, int(wait_s * 1000)), m.Chunks)
        return chunks

    def lookup(self, place: m.Place, execution: str, digest: bytes, rank: int) -> Entry | None:
        found: m.Found = self._ask(m.Lookup(place, execution, digest, rank), m.Found)
        return None if found.chunk is None else decode_chunk(found.chunk)[0]

    def close_log(self, place: m.Place) -> None:
        self._ask(m.Close(place), m.Done)

    def beat(self) -> None:
        self._ask(m.Beat(), m.Done)

    def truncate(self, scope: str, below: int | None) -> None:
        self._ask(m.Truncate(scope, below), m.Done)

    def _ask(self, request: Any, expected: type) -> Any:
        with self._lock:
            if self._stream is None:
                greeting = Greeting(
                    self._job, self.address, Purpose.CONTROL, 0, _NOBODY, _NOBODY, b""
                )
                sealed = self._secret.seal(greeting)
                self._stream = _Stream(self.address, self._secret, sealed, self._identity)
            try:
                reply = self._stream.ask(m.WIRE.encode(request), self._reply_s)
            except errors.LogUnreachable:
                self.close()
                raise
        if isinstance(reply, m.Refused):
            kind = getattr(errors, reply.error, errors.CausalError)
            raise kind(reply.what, remedy=_REMEDIES.get(reply.error, ""))
        if not isinstance(reply, expected):
            raise MalformedMessage(f"{type(reply).__name__} is no reply to {request}")
        return reply

    def close(self) -> None:
        """End the stream; the next request opens another."""
        stream, self._stream = self._stream, None
        if stream is not None:
            stream.close()


_REMEDIES: Final = {
    "BelowFloor": "if it is a leftover of a lost executor, nothing; if you have reset the query's "
    "checkpoint, tell the log: log.forget(query_id)",
    "Fenced": "nothing: this attempt ends, the other one goes on with the same answers",
    "LogBroken": "see to the disk of the log's directory, then start the job again",
    "LogFull": "let batches be smaller, end finished runs (log.done()), give more "
    "(causal.start(bytes_max=...)) or use a PostgreSQL store",
    "UnsupportedQuery": "start the query without the option asyncProgressTrackingEnabled",
    "OperatorUsedTwice": "give one of the two functions that you hand to Spark another name: "
    'causal.operator(fn, name="...")',
}


def _tls_options(identity: Identity) -> dict[str, Any]:
    """Of Flight's client: whom it trusts, whom it expects, and who it is."""
    return {
        "tls_root_certs": identity.authority,
        "override_hostname": DRIVER_NAME,
        "cert_chain": identity.certificate,
        "private_key": identity.key,
    }


class _Stream:
    """One Flight exchange, written and read by a thread of its own: asking has a time limit,
    gRPC's reads and writes have none."""

    def __init__(
        self, address: str, secret: JobSecret, sealed: bytes, identity: Identity | None
    ) -> None:
        self._address = address
        self._tls = _tls_options(identity) if identity else {}
        self._requests: SimpleQueue[bytes | None] = SimpleQueue()
        self._replies: SimpleQueue[Any] = SimpleQueue()
        self._reader: Any = None
        threading.Thread(
            target=self._run, args=(secret, sealed), name="clonos-causal-log", daemon=True
        ).start()

    def ask(self, request: bytes, seconds: float) -> Any:
        self._requests.put(request)
        try:
            reply = self._replies.get(timeout=seconds)
        except Empty:
            raise self._unreachable(f"no reply within {seconds:g} s") from None
        if isinstance(reply, BaseException):
            raise reply
        return reply

    def _unreachable(self, why: str) -> errors.LogUnreachable:
        return errors.LogUnreachable(
            f"the log at {self._address} does not answer: {why}",
            remedy="see that the driver lives and that executors reach it at this address "
            "(causal.start(host=...)); the task can be tried again, nothing is lost",
        )

    def _run(self, secret: JobSecret, sealed: bytes) -> None:
        client = writer = None
        try:
            client = flight.FlightClient(self._address, generic_options=_OPTIONS, **self._tls)
            descriptor = flight.FlightDescriptor.for_command(sealed)
            writer, self._reader = client.do_exchange(descriptor)
            proof = self._reader.read_chunk().app_metadata
            if proof is None or not secret.is_answer(sealed, proof.to_pybytes()):
                raise AuthenticationFailed(f"what answers at {self._address} is not this job's log")
            while (request := self._requests.get()) is not None:
                writer.write_metadata(request)
                reply = self._reader.read_chunk().app_metadata
                if reply is None:
                    raise MalformedMessage("the log answered with something else than a reply")
                self._replies.put(m.WIRE.decode(reply))
        except ClonosError as error:
            self._replies.put(self._unreachable(str(error)))
        except _BROKEN as error:
            reason = str(error).partition(". gRPC client debug")[0][:300]
            self._replies.put(self._unreachable(reason or "it ended the stream"))
        finally:
            for part in (writer, client):
                if part is not None:
                    with contextlib.suppress(*_BROKEN):
                        part.close()

    def close(self) -> None:
        self._requests.put(None)
        if self._reader is not None:
            # Also ends a read that nothing answers.
            self._reader.cancel()
