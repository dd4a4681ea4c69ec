"""TLS for one stream: encrypts and decrypts, and does no I/O of its own.

OpenSSL works on two buffers in memory, so only the plane's loop waits, and a stream's queue holds
what travels, encrypted or not; nothing else in a stream differs. Both sides present a certificate
of the job's own authority (see :mod:`clonos.transport.certificates`).
"""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

RECORD_BYTES: Final = 16 << 10
"""Size limit of a TLS record, and of one read from it."""


DRIVER_NAME: Final = "driver"
CLIENT_NAME: Final = "client"


def slot_name(slot: int) -> str:
    """The name in a slot's certificate."""
    return f"slot-{slot}"


@dataclass(frozen=True, slots=True, repr=False)
class Identity:
    """The identity of a process in its job: a certificate and its key, in PEM.

    Parameters
    ----------
    name
        The name in the certificate, which a connecting client expects there.
    authority
        The certificate of the job's own authority. No other is trusted.
    """

    name: str
    authority: bytes
    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return f"Identity({self.name!r}, ...)"


class Keys:
    """An identity that can open and accept streams."""

    def __init__(self, identity: Identity) -> None:
        self.name = identity.name
        self._client = _context(ssl.PROTOCOL_TLS_CLIENT, identity)
        self._server = _context(ssl.PROTOCOL_TLS_SERVER, identity)
        self._server.verify_mode = ssl.CERT_REQUIRED
        self._server.num_tickets = 0  # no stream is ever resumed

    def client(self, peer_name: str) -> Tls:
        """For a stream to the process of this name, and to no other."""
        return Tls(lambda i, o: self._client.wrap_bio(i, o, server_hostname=peer_name))

    def server(self) -> Tls:
        """For a stream that a peer has opened."""
        return Tls(lambda i, o: self._server.wrap_bio(i, o, server_side=True))

    def wrap(self, connection: socket.socket, peer_name: str) -> ssl.SSLSocket:
        """Like :meth:`client`, for a thread that blocks on its own socket."""
        return self._client.wrap_socket(connection, server_hostname=peer_name)


def _context(protocol: Any, identity: Identity) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=identity.authority.decode())
    # OpenSSL reads a key only from a file; this one is in memory and has no name.
    file = os.memfd_create("clonos")
    try:
        os.write(file, identity.key + identity.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
    finally:
        os.close(file)
    return context


class Tls:
    """One end of one encrypted stream; for one thread at a time.

    Has what :class:`~clonos.transport.frames.FrameReader` needs of a socket.
    """

    def __init__(self, wrap: Callable[[ssl.MemoryBIO, ssl.MemoryBIO], ssl.SSLObject]) -> None:
        self._came, self._said = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = wrap(self._came, self._said)
        self.is_open = False

    def arrived(self, came: bytes) -> None:
        """Take bytes from the network; continue the handshake as far as they allow.

        Raises
        ------
        ssl.SSLError
            The peer is not of this job, or does not speak TLS.
        """
        self._came.write(came)
        if not self.is_open:
            self.shake_hands()

    def shake_hands(self) -> None:
        """Continue the handshake; :meth:`said` returns its output."""
        try:
            self._object.do_handshake()
            self.is_open = True
        except ssl.SSLWantReadError:
            pass

    def said(self) -> bytes:
        """Return the bytes to send now."""
        return self._said.read()

    def seal(self, pieces: Iterable[Any]) -> bytes:
        """Encrypt, and return the bytes to send."""
        for piece in pieces:
            left = memoryview(piece)
            while left:
                left = left[self._object.write(left) :]
        return self._said.read()

    def recv(self, size: int) -> bytes:
        """Return decrypted bytes; BlockingIOError if there are none."""
        try:
            return self._object.read(min(size, RECORD_BYTES))
        except ssl.SSLWantReadError:
            raise BlockingIOError from None

    def recv_into(self, place: memoryview) -> int:
        """Like :meth:`recv`, but into `place`; return the number of bytes."""
        try:
            # With a buffer it returns the number; the stubs know only the other form.
            return self._object.read(len(place), place)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            raise BlockingIOError from None

    @property
    def peer_name(self) -> str:
        """The name in the peer's certificate, once the handshake is over."""
        certificate = self._object.getpeercert() or {}
        names: Any = certificate.get("subjectAltName", ())
        return str(names[0][1]) if names else ""
