"""What the services of the examples share: JSON over HTTP, asked by processes that are killed."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler
from typing import Any


class JsonHandler(BaseHTTPRequestHandler):
    """One connection; who serves says what to :meth:`send` to whom."""

    wbufsize = -1

    def post(self, body: dict[str, Any]) -> None:
        """Somebody asks."""
        raise NotImplementedError

    def get(self) -> None:
        """Somebody wants to know how things are."""
        raise NotImplementedError

    def do_POST(self) -> None:
        if (body := self._heard()) is not None:
            self.post(body)

    def do_GET(self) -> None:
        self.get()

    def _heard(self) -> dict[str, Any] | None:
        """What was asked; None: nothing, because who asks was killed while asking."""
        try:
            length = int(self.headers.get("Content-Length", 0))
            said = self.rfile.read(length)
        except OSError:
            said = b""
        if not said or len(said) < length:
            self.close_connection = True
            return None
        body: dict[str, Any] = json.loads(said)
        return body

    def send(self, answer: dict[str, Any], status: int = 200) -> None:
        """... unless who has asked was killed."""
        said = json.dumps(answer).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(said)))
            self.end_headers()
            self.wfile.write(said)
            self.wfile.flush()
        except OSError:
            self.close_connection = True

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """The journal says it all."""
