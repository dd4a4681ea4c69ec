"""Messages of a websocket: the driver connects, and takes what the server sends.

The protocol has neither acknowledgements nor positions. What a server sends while nobody is
connected is lost, unless the server itself keeps it for whoever subscribes again.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from clonos.blame import in_short
from clonos.errors import SourceError
from clonos.extras import imported
from clonos.sources.spec import Fail, Offer
from clonos.storage.retry import FIRST_PAUSE_S, PAUSE_MAX_S, Retry, StoreAway

LOGGER: Final = logging.getLogger("clonos")

CONNECT_S: Final = 10.0
SILENCE_S: Final = 10.0
"""After that long without a message the server is pinged; after as long again it is gone."""
CLOSE_S: Final = 1.0
"""Time for the server to say goodbye, too."""
FULL_S: Final = 0.05
"""Time until a message is offered again for which there was no room."""

_TOO_BIG: Final = 1009
"""The code with which our end closes a connection because of a message's length."""
_PASSES: Final = (408, 425, 429)


@dataclass(frozen=True, repr=False)
class Websocket:
    """An :class:`~clonos.sources.spec.Inlet`.

    Parameters
    ----------
    subscribe
        What is sent on each connection, before anything is read.
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
        """Which server, without what may be secret: user, password and query."""
        parts = urlsplit(self.url)
        return f"websocket {parts.scheme}://{parts.hostname}:{self.port}{parts.path}"

    @property
    def port(self) -> int:
        parts = urlsplit(self.url)
        return parts.port or (443 if parts.scheme == "wss" else 80)

    @property
    def path(self) -> str:
        """What messages have as their topic."""
        return urlsplit(self.url).path or "/"

    def open(self, offer: Offer, fail: Fail) -> Session:
        """See :class:`~clonos.sources.spec.Inlet`."""
        session = Session(self, offer, fail)
        session.start()
        return session


class Session:
    """A connection, and those that follow it."""

    def __init__(self, websocket: Websocket, offer: Offer, fail: Fail) -> None:
        self._websocket, self._offer, self._fail = websocket, offer, fail
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
        """Disconnect. What was not read by then is lost."""
        self._is_over.set()
        self._connection.close()
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        retry = Retry(self._websocket.place, self._is_over.wait)
        pause_s = 0.0
        try:
            while True:
                has_come = self._listen()
                # A server that takes us and hangs up is not asked again and again.
                longer_s = min(max(2 * pause_s, FIRST_PAUSE_S), PAUSE_MAX_S)
                pause_s = 0.0 if has_come else longer_s
                if self._is_over.wait(pause_s):
                    return
                self._connection = retry(self._connect)
        except StoreAway:
            """The end came while the server was away."""
        except Exception as error:  # noqa: BLE001 - whatever it is, the job must hear
            self._fail(error)

    def _listen(self) -> bool:
        """Take messages until the connection ends; whether there were any."""
        has_come = False
        try:
            with self._connection as connection:
                if self._is_over.is_set():  # it came while this was connecting
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
        """The next message; `OSError`: there is nobody any more.

        Pings are ours and not the library's: while there is no room, nothing is read, no pong
        either, and that is no sign of death.
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
        # While this waits, nothing is read: the server waits, too, or hangs up.
        while not self._offer(value, None, self._websocket.path, _nobody_is_thanked):
            if self._is_over.wait(FULL_S):
                return

    def _tell(self, error: Exception) -> None:
        """What the end of a connection means."""
        ours = getattr(error, "sent", None)
        if ours is not None and ours.code == _TOO_BIG:
            raise SourceError(
                f"a message has more than {self._websocket.message_bytes} bytes",
                where=self._websocket.place,
                remedy="give a larger message_bytes=, and start the job again; messages until "
                "then are lost",
            ) from error
        LOGGER.warning(
            "%s: the connection has ended (%s). What is sent until the next one is lost, unless "
            "the server keeps it.",
            self._websocket.place,
            in_short(error),
        )

    def _connect(self) -> Any:
        """A connection.

        Raises
        ------
        StoreAway
            There is none now.
        SourceError
            The server will not have us.
        """
        websocket = self._websocket
        parts = urlsplit(websocket.url)
        try:
            # With a socket of ours the library does not follow redirections: headers have secrets.
            raw = socket.create_connection((parts.hostname or "", websocket.port), CONNECT_S)
            raw.settimeout(None)  # from here on time is the library's to keep
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
        # Not only OSError and InvalidHandshake: a server that dies while it is asked is a
        # ConnectionClosed of the library's. Whatever it is, there is no connection.
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
    """The protocol has no thanks."""


def _library(module: str) -> Any:
    return imported(f"websockets.{module}", extra="websocket", where="sources.websocket")
