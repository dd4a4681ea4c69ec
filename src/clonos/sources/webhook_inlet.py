"""A webhook: HTTP requests as messages, acknowledged when they are durable."""

from __future__ import annotations

import hashlib
import hmac
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from clonos.errors import SourceError
from clonos.sources.spec import Fail, Offer, Warn
from clonos.web import BoundedServer, KeepAlive

PLACES: Final = 64
"""The largest number of connections; further ones are refused."""
REQUEST_S: Final = 20.0
"""Time for a request to arrive, and for its answer to leave."""
THANKS_S: Final = 5.0
"""How long a request waits until its content is durable."""
RETRY_AFTER_S: Final = 1
KEY_MAX: Final = 1024
"""The longest key of a sender, in characters: keys are kept in the state."""

_DIGITS_MAX: Final = 18

_TURNED_AWAY: Final = (
    b"HTTP/1.0 503 Service Unavailable\r\nRetry-After: %d\r\nContent-Length: 0\r\n\r\n"
    % RETRY_AFTER_S
)


@dataclass(frozen=True, repr=False)
class Webhook:
    """An :class:`~clonos.sources.spec.Inlet`.

    Parameters
    ----------
    path
        Requests to this path and below it are taken.
    token
        The token that ``Authorization: Bearer`` must have.
    secret
        The secret that signs bodies (HMAC-SHA256, in hex) in the header `signature`.
    key
        The header with the sender's key.
    body_bytes
        Longer bodies are refused.
    form
        Converts a body for storage; raises `ValueError` with the reason to refuse it.
    """

    host: str
    port: int
    path: str
    token: str | None
    secret: str | None
    signature: str
    key: str
    body_bytes: int
    form: Callable[[bytes], bytes]

    def __repr__(self) -> str:
        return f"<webhook {self.url}>"

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"

    def open(self, offer: Offer, fail: Fail, warn: Warn) -> _Server:
        """See :class:`~clonos.sources.spec.Inlet`."""
        try:
            server = _Server(self, offer, warn)
        except (OSError, OverflowError) as error:
            raise SourceError(
                f"nobody can listen there: {error}",
                where=self.url,
                remedy="give a port that is free, and an address of the driver's machine",
            ) from error
        server.start()
        return server

    def is_trusted(self, headers: Any, body: bytes) -> bool:
        """Whether the request has the right token and signature."""
        if self.token is not None:
            given = headers.get("Authorization", "")
            if not _same(given, f"Bearer {self.token}"):
                return False
        if self.secret is not None:
            made = hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
            given = headers.get(self.signature, "").removeprefix("sha256=")
            return _same(given, made)
        return True

    def has(self, path: str) -> bool:
        """Whether requests to that path are taken."""
        base = self.path.rstrip("/")
        return path in {self.path, base} or path.startswith(f"{base}/")


class _Server(BoundedServer):
    def __init__(self, hook: Webhook, offer: Offer, warn: Warn) -> None:
        self.hook, self.offer = hook, offer
        super().__init__(
            (hook.host, hook.port),
            _Request,
            places=PLACES,
            request_s=REQUEST_S,
            turned_away=_TURNED_AWAY,
            warn=warn,
        )
        self._thread = threading.Thread(
            target=self.serve_forever, name="clonos-webhook", daemon=True
        )

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()

    def close(self) -> None:
        """Serve no more."""
        if self._thread.is_alive():
            self.shutdown()
        self.server_close()


class _Request(KeepAlive):
    """Answers the requests of a connection."""

    server: _Server
    timeout = REQUEST_S
    server_version, sys_version = "clonos", ""

    def do_POST(self) -> None:  # noqa: N802 - its name there
        hook = self.server.hook
        path = self.path.partition("?")[0]
        lengths = self.headers.get_all("Content-Length", [""])
        length = "" if "Transfer-Encoding" in self.headers else lengths[0]
        may_stay = not self.close_connection and self.request_version == "HTTP/1.1"
        self.close_connection = True  # an unread body would be taken for the next request
        if not hook.has(path):
            self._answer(404, "there is nothing here")
        elif len(lengths) > 1 or not (length.isascii() and length.isdigit()):
            self._answer(411, "say how long the body is, with Content-Length")
        elif len(length) > _DIGITS_MAX or int(length) > hook.body_bytes:
            self._answer(413, f"more than {hook.body_bytes} bytes are not taken")
        else:
            body = self.rfile.read(int(length))
            if len(body) == int(length):  # else the sender has gone
                self.close_connection = not may_stay
                self._take(path, body)

    def _take(self, path: str, body: bytes) -> None:
        if not self.server.hook.is_trusted(self.headers, body):
            self._answer(401, "who are you?")
            return
        key = self.headers.get(self.server.hook.key)
        if key is not None and not 0 < len(key) <= KEY_MAX:
            # All requests with an empty key would be taken for repetitions of the first.
            self._answer(400, f"{self.server.hook.key} has 1 to {KEY_MAX} characters")
            return
        try:
            kept = self.server.hook.form(body)
        except ValueError as error:
            self._answer(422, str(error))
            return
        if self._is_kept(path, kept, key):
            self._answer(200, "")
        else:
            self._answer(503, "not now")

    def _is_kept(self, path: str, body: bytes, key: str | None) -> bool:
        """Whether the message has become durable in time."""
        told = threading.Event()
        outcome: list[bool] = []

        def thank(is_durable: bool) -> None:
            outcome.append(is_durable)
            told.set()

        return self.server.offer(body, key, path, thank) and told.wait(THANKS_S) and outcome[0]

    def _answer(self, code: int, text: str) -> None:
        body = f"{text}\n".encode("utf-8", "replace") if text else b""
        self.send_response(code)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        if code == 503:
            self.send_header("Retry-After", str(RETRY_AFTER_S))
        if self.close_connection or not self.server.is_roomy:
            self.send_header("Connection", "close")
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing: senders get answers, and operators see the job's rows."""


def _same(given: str, wanted: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given.encode("utf-8", "replace"), wanted.encode())
