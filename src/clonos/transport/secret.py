"""The job's secret, and the greeting that starts every stream.

The secret itself never travels: the client signs a :class:`Greeting` with it and the server answers
with a signature of its own, so that neither a stranger who reaches the port nor a process that took
over the port of a dead slot can take part. A greeting names one server in one of its lives, and
carries a nonce that this server accepts only once: a greeting that was overheard is useless once
the server has received it. (It remembers the last 65,536 greetings, because a server may run for
years.) Only TLS keeps out an attacker who can also hold back messages.
"""

from __future__ import annotations

import contextlib
import hmac
import secrets
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import msgpack

from clonos.core.codec import Codec
from clonos.core.plan import Incarnation
from clonos.errors import AuthenticationFailed, MalformedMessage

SECRET_BYTES: Final = 32
NONCE_BYTES: Final = 16
GREETING_BYTES_MAX: Final = 4096
"""Checked before anything else: the sender is not known yet."""

_CLIENT, _SERVER = b"clonos client 1:", b"clonos server 1:"


class Purpose(IntEnum):
    """What a stream is for."""

    CHANNEL = 0
    CONTROL = 1
    PULSE = 2
    REQUESTS = 3


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who opens a stream to whom. ``id``: the channel or slot, depending on ``purpose``; 0 for
    clients.

    ``sender`` and ``receiver`` are the incarnations of the tasks at both ends of a channel,
    ``schema`` is the fingerprint of the channel's schema.
    """

    job: str
    audience: str
    purpose: Purpose
    id: int
    sender: Incarnation
    receiver: Incarnation
    schema: bytes
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))


_GREETING: Final = Codec({64: Greeting})


@dataclass(frozen=True, slots=True, repr=False)
class JobSecret:
    """256 random bits that every process of one job, and nobody else, holds.

    Ship it inside the function that Spark runs; it belongs in no command line, environment,
    configuration or log (its ``repr`` keeps it out).

    Examples
    --------
    >>> JobSecret.new()
    JobSecret(...)
    """

    key: bytes

    def __post_init__(self) -> None:
        if len(self.key) != SECRET_BYTES:
            raise ValueError(f"a job's secret has {SECRET_BYTES} bytes")

    def __repr__(self) -> str:
        return "JobSecret(...)"

    @classmethod
    def new(cls) -> JobSecret:
        return cls(secrets.token_bytes(SECRET_BYTES))

    def _mac(self, side: bytes, message: bytes) -> bytes:
        return hmac.digest(self.key, side + message, "sha256")

    def seal(self, greeting: Greeting) -> bytes:
        """Return the signed greeting, the first message of a client."""
        body = _GREETING.encode(greeting)
        sealed: bytes = msgpack.packb((body, self._mac(_CLIENT, body)))
        return sealed

    def open(self, sealed: bytes) -> Greeting:
        """Return the greeting in `sealed` if its signature is right.

        Raises
        ------
        AuthenticationFailed
            It is not. The error does not say why, because the other side may be a stranger.
        """
        with contextlib.suppress(ValueError, TypeError, MalformedMessage):
            # Nothing is decoded before the signature is known to be right.
            body, mac = msgpack.unpackb(sealed[:GREETING_BYTES_MAX], use_list=False)
            if hmac.compare_digest(mac, self._mac(_CLIENT, body)):
                greeting: Greeting = _GREETING.decode(body)
                return greeting
        raise refused()

    def answer(self, sealed: bytes) -> bytes:
        """Return the server's proof that it holds the secret too, bound to this greeting."""
        return self._mac(_SERVER, sealed)

    def is_answer(self, sealed: bytes, proof: bytes) -> bool:
        """Tell whether `proof` is the answer to the greeting `sealed`."""
        return hmac.compare_digest(self.answer(sealed), proof)


def refused() -> AuthenticationFailed:
    """Return the only error that a peer without the secret gets."""
    return AuthenticationFailed(
        "the peer does not hold this job's secret",
        remedy="check that no process of an earlier job still uses this address",
    )
