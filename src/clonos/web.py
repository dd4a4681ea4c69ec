"""A small web server: what the page about a job and the webhook share."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class BoundedServer(ThreadingHTTPServer):
    """A few requests at a time, each with a thread of its own, and with a limit of time.

    Parameters
    ----------
    address
        Host and port; 0: any that is free.
    places
        How many requests are answered at once; further ones are turned away.
    request_s
        Time for a request to arrive, and for its answer to leave.
    turned_away
        What those hear for whom there is no place.

    Raises
    ------
    OSError, OverflowError
        Nobody can listen there.
    """

    daemon_threads = True
    allow_reuse_address = False

    def __init__(
        self,
        address: tuple[str, int],
        handler: type[BaseHTTPRequestHandler],
        *,
        places: int,
        request_s: float,
        turned_away: bytes = b"",
    ) -> None:
        self._room = threading.BoundedSemaphore(places)
        self._request_s, self._turned_away = request_s, turned_away
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.setblocking(False)
            request.send(self._turned_away)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        # Its own timeout is that of a single read: a byte now and then would hold the place.
        limit = threading.Timer(self._request_s, _cut_off, [request])
        limit.daemon = True
        limit.start()
        try:
            super().process_request_thread(request, client_address)
        finally:
            limit.cancel()
            self._room.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away in the middle of an answer is no error."""


def _cut_off(request: socket.socket) -> None:
    with suppress(OSError):  # it has been closed meanwhile
        request.shutdown(socket.SHUT_RDWR)
