"""Messages of a websocket: the driver connects, and takes the messages that the server sends.

The protocol has neither acknowledgements nor positions. Messages sent while no driver is connected
are lost, unless the server keeps them for later subscribers.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from clonos.blame import in_short
from clonos.errors import SourceError, StoreAway
from clonos.extras import imported
from clonos.sources.outage import Rarely
from clonos.sources.spec import Fail, Offer, Warn
from clonos.storage.retry import FIRST_PAUSE_S, PAUSE_MAX_S, Retry

CONNECT_S: Final = 10.0
SILENCE_S: Final = 10.0
"""After this time without a message the server is pinged; after as long again it counts as gone."""
CLOSE_S: Final = 1.0
"""How long to wait for the server's part of the closing handshake."""
FULL_S: Final = 0.05
"""Time until a message that was refused for lack of room is offered again."""

_TOO_BIG: Final = 1009
"""The close code for a message that is too long."""
_PASSES: Final = (408, 425, 429)


@dataclass(frozen=True, repr=False)
class Websocket:
    """An :class:`~clonos.sources.spec.Inlet`.

    Parameters
    ----------
    subscribe
        Texts sent on each connection before anything is read.
    message_bytes
        A longer message fails the job.
    """

    url: str
    subscribe: tuple[str, ...]
    headers: Mapping[str, str]
    message_bytes: int

    def __repr__(self) -> str:
        return f"<{self.place}>"

    @property
    def place(self) -> str:
        """The server for messages, without possible secrets: user, password and query."""
        parts = urlsplit(self.url)
        return f"websocket {parts.scheme}://{parts.hostname}:{self.port}{parts.path}"

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "wss" else 80)

    @property
    def path(self) -> str:
        """The topic of the messages."""
        return urlsplit(self.url).path or "/"

    def open(self, offer: Offer, fail: Fail, warn: Warn) -> Session:
        """See :class:`~clonos.sources.spec.Inlet`."""
        session = Session(self, offer, fail, warn)
        session.start()
        return session


class Session:
    """A connection and its successors."""

    def __init__(self, websocket: Websocket, offer: Offer, fail: Fail, warn: Warn) -> None:
        self._websocket, self._offer, self._fail, self._warn = websocket, offer, fail, warn
        self._warn_of_end = Rarely(warn)
        self._client = _library("sync.client")
        self._errors = _library("exceptions")
        self._is_over = threading.Event()
        self._connection: Any = None
        self._thread = threading.Thread(target=self._run, name="clonos-websocket", daemon=True)

    def start(self) -> None:
        """Connect, and begin to listen.

        Raises
        ------
        SourceError
            The server cannot be reached, or refuses.
        """
        try:
            self._connection = self._connect()
        except StoreAway as away:
            raise self._failed(away.what) from away
        self._thread.start()

    def close(self) -> None:
        """Disconnect. Unread messages are lost."""
        self._is_over.set()
        self._connection.close()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        retry = Retry(self._websocket.place, self._is_over.wait, self._warn)
        pause_s = 0.0
        try:
            while True:
                has_come = self._listen()
                # Back off from a server that accepts connections and closes them at once.
                longer_s = min(max(2 * pause_s, FIRST_PAUSE_S), PAUSE_MAX_S)
                pause_s = 0.0 if has_come else longer_s
                if self._is_over.wait(pause_s):
                    return
                self._connection = retry(self._connect)
        except StoreAway:
            """The job ended while the server was away."""
        except Exception as error:  # noqa: BLE001 - whatever it is, the job must hear
            self._fail(error)

    def _listen(self) -> bool:
        """Take messages until the connection ends; returns whether there were any."""
        has_come = False
        try:
            with self._connection as connection:
                if self._is_over.is_set():  # the end came during the connect
                    return False
                for text in self._websocket.subscribe:
                    connection.send(text)
                while True:
                    self._give(self._next(connection))
                    has_come = True
        except Exception as error:  # noqa: BLE001 - whatever it is, this connection is over
            if not self._is_over.is_set():
                self._tell(error)
        return has_come

    def _next(self, connection: Any) -> str | bytes:
        """The next message; raises `OSError` if the server is gone.

        The library's own pings are not used: while there is no room, nothing is read, pongs
        included, and the library would take the server for dead.
        """
        pong: threading.Event | None = None
        while True:
            try:
                message: str | bytes = connection.recv(timeout=SILENCE_S)
            except TimeoutError:
                if pong is not None and not pong.is_set():
                    raise OSError("the server does not answer a ping") from None
                pong = connection.ping()
            else:
                return message

    def _give(self, message: str | bytes) -> None:
        value = message.encode() if isinstance(message, str) else message
        # While this waits, nothing is read, so the server waits, too, or closes the connection.
        while not self._offer(value, None, self._websocket.path, _nobody_is_thanked):
            if self._is_over.wait(FULL_S):
                return

    def _tell(self, error: Exception) -> None:
        """Report the end of a connection: as a warning, or as an error that ends the job."""
        ours = getattr(error, "sent", None)
        if ours is not None and ours.code == _TOO_BIG:
            raise SourceError(
                f"a message has more than {self._websocket.message_bytes} bytes",
                where=self._websocket.place,
                remedy="give a larger message_bytes=, and start the job again; messages until "
                "then are lost",
            ) from error
        self._warn_of_end(
            f"{self._websocket.place}: the connection has ended ({in_short(error)}). What is sent "
            "until the next one is lost, unless the server keeps it."
        )

    def _connect(self) -> Any:
        """A connection.

        Raises
        ------
        StoreAway
            The server cannot be reached now.
        SourceError
            The server refuses the connection.
        """
        websocket = self._websocket
        parts = urlsplit(websocket.url)
        try:
            # Given a socket, the library follows no redirection; headers may contain secrets.
            raw = socket.create_connection((parts.hostname or "", websocket.port), CONNECT_S)
            raw.settimeout(None)  # from here on, the library's timeouts apply
            return self._client.connect(
                websocket.url,
                sock=raw,
                proxy=None,
                additional_headers=websocket.headers,
                open_timeout=CONNECT_S,
                close_timeout=CLOSE_S,
                ping_interval=None,
                max_size=websocket.message_bytes,
            )
        except self._errors.InvalidStatus as error:
            status = error.response.status_code
            if status in _PASSES or status >= 500:
                raise StoreAway(f"it answers {status}", where=websocket.place) from error
            raise self._failed(f"it answers {status}") from error
        # Not only OSError and InvalidHandshake: if the server dies during the handshake, the
        # library raises ConnectionClosed. In any case, there is no connection.
        except Exception as error:
            if isinstance(error.__cause__, self._errors.InvalidStatus):
                raise self._failed("it redirects, which is not followed") from error
            what = f"it cannot be reached: {in_short(error)}"
            raise StoreAway(what, where=websocket.place) from error

    def _failed(self, what: str) -> SourceError:
        return SourceError(
            what,
            where=self._websocket.place,
            remedy="check that the driver reaches the server, and that url and headers are right",
        )


def _nobody_is_thanked(is_durable: bool) -> None:
    """Do nothing: the protocol has no acknowledgements."""


def _library(module: str) -> Any:
    return imported(f"websockets.{module}", extra="websocket", where="sources.websocket")
