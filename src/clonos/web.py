"""A small web server: what the page about a job and the webhook share."""

from __future__ import annotations

import logging
import math
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from clonos.transport.shortage import PAUSE_S, Shortage

_LOG: Final = logging.getLogger("clonos")

IDLE_S: Final = 5.0
"""How long a connection may wait for its next request."""


class BoundedServer(ThreadingHTTPServer):
    """A few connections at a time, each with a thread of its own, and with limits of time.

    Parameters
    ----------
    address
        Host and port; 0: any that is free.
    places
        How many connections there are at once; further ones are turned away.
    request_s
        Time for a request to arrive, and for its answer to leave.
    turned_away
        What those hear for whom there is no place.
    warn
        Called with a text, from the thread that serves.

    Raises
    ------
    OSError, OverflowError
        Nobody can listen there.
    """

    daemon_threads = True
    # A server that follows another one on its port must get it although old connections linger.
    allow_reuse_address = True

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        places: int,
        request_s: float,
        turned_away: bytes = b"",
        warn: Callable[[str], object] = _LOG.warning,
    ) -> None:
        self._places, self._request_s, self._turned_away = places, request_s, turned_away
        self._lock = threading.Lock()
        self._ends: dict[Any, float] = {}  # until when what a connection is at may take
        self._idle: set[Any] = set()  # those that wait for their next request
        self._is_closed = False
        super().__init__(address, handler)
        self._shortage = Shortage(f"http://{address[0]}:{self.server_port}", warn)

    @property
    def is_roomy(self) -> bool:
        """Whether a connection may wait for another request: not if others might need its place."""
        return not self._is_closed and len(self._ends) <= self._places // 2

    def rest(self, connection: Any) -> None:
        """A connection begins to wait for its next request."""
        with self._lock:
            self._ends[connection] = time.monotonic() + IDLE_S
            self._idle.add(connection)
        if self._is_closed:
            _cut_off(connection)

    def resume(self, connection: Any) -> None:
        """... and has one."""
        with self._lock:
            self._ends[connection] = time.monotonic() + self._request_s
            self._idle.discard(connection)

    def service_actions(self) -> None:
        """Now and then: end what takes too long."""
        # The socket's own timeout is that of a single read: a byte now and then would hold a place.
        now = time.monotonic()
        with self._lock:
            late = [one for one, end in self._ends.items() if end < now]
            self._ends.update(dict.fromkeys(late, math.inf))
        for connection in late:
            _cut_off(connection)

    def server_close(self) -> None:
        super().server_close()
        with self._lock:
            self._is_closed = True
            idle = list(self._idle)
        for connection in idle:
            _cut_off(connection)

    def get_request(self) -> tuple[socket.socket, Any]:
        try:
            return super().get_request()
        except OSError as error:
            if self._shortage.is_one(error):
                time.sleep(PAUSE_S)
            raise  # the base class takes it for a client that has gone

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            has_room = len(self._ends) < self._places
            if has_room:
                self._ends[request] = time.monotonic() + self._request_s
        if has_room:
            try:
                super().process_request(request, client_address)
            except BaseException:  # no thread could be started
                self._leave(request)
                raise
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(self._turned_away)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._leave(request)

    def _leave(self, connection: Any) -> None:
        with self._lock:
            self._ends.pop(connection, None)
            self._idle.discard(connection)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is no error."""


class KeepAlive(BaseHTTPRequestHandler):
    """Answers the requests of a connection, one after the other, while there is room for it.

    An answer says whether it is the last: who makes it sets ``close_connection``, and must have
    read the request's body if it is not.
    """

    server: BoundedServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle(self) -> None:
        self.close_connection = True
        self.handle_one_request()
        while not self.close_connection and self._has_another():
            self.handle_one_request()

    def _has_another(self) -> bool:
        lines: Any = self.rfile
        self.server.rest(self.connection)
        try:
            return bool(lines.peek(1))
        except OSError:
            return False
        finally:
            self.server.resume(self.connection)


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):  # it has been closed meanwhile
        request.shutdown(socket.SHUT_RDWR)
