"""What the services of the examples share: JSON over HTTP, asked by processes that are killed."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """One connection, until it breaks; who serves says what to :meth:`send` to whom."""

    wbufsize = -1

    def post(self, body: dict[str, Any]) -> None:
        """Somebody asks."""
        raise NotImplementedError

    def get(self) -> None:
        """Somebody wants to know how things are."""
        raise NotImplementedError

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        said = self.rfile.read(length)
        if said and len(said) == length:
            self.post(json.loads(said))
        else:
            self.close_connection = True  # who asks was killed while asking: nothing was asked

    def do_GET(self) -> None:
        self.get()

    def send(self, answer: dict[str, Any], status: int = 200) -> None:
        """The answer."""
        said = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)
        self.wfile.flush()

    def stream(self, pieces: Iterable[dict[str, Any]]) -> None:
        """Server-sent events: each piece when it comes. They end with the connection."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        for piece in pieces:
            self.wfile.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
            self.wfile.flush()

    def handle(self) -> None:
        with suppress(OSError):  # who asks, or has asked, was killed: that is what we are here for
            super().handle()

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """The journal says it all."""
