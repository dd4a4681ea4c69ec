"""The page of a job: HTTP on the driver's loopback interface, protected by a secret in its URL."""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from http.server import BaseHTTPRequestHandler
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any, Final

from clonos.errors import PortTaken
from clonos.watch.picture import picture, style
from clonos.watch.snapshot import Snapshot
from clonos.web import BoundedServer

HOST: Final = "127.0.0.1"
REQUESTS_MAX: Final = 8
"""How many requests are answered at once; further ones are refused."""
REQUEST_S: Final = 5.0
"""Time for a request to arrive, and for its answer to leave."""
ADDRESS_FILE: Final = "watch"
"""The file beside the journal with the URL of the page, while the job runs."""


class WatchServer:
    """Serves a page, its picture and the JSON behind it.

    Parameters
    ----------
    look
        Makes a snapshot; called in the request's thread.
    port
        The port; 0: any free port.
    folder
        Where to write the URL for ``clonos watch``, readable by this user alone; None: nowhere.

    Raises
    ------
    PortTaken
        Another process listens there.
    """

    def __init__(self, look: Callable[[], Snapshot], port: int, folder: Path | None) -> None:
        self._secret = secrets.token_urlsafe(24)
        try:
            self._server = _Server(look, self._secret, port)
        except (OSError, OverflowError) as error:
            raise PortTaken(
                f"the page cannot be served on {HOST}:{port}: {error}",
                remedy="say ui_port=0 for any port that is free",
            ) from error
        self._note = folder / ADDRESS_FILE if folder is not None else None
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="clonos-watch", daemon=True
        )

    @property
    def port(self) -> int:
        """The port on which it listens."""
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """The URL of the page. Anyone who has it can see the job."""
        return f"http://{HOST}:{self.port}/{self._secret}/"

    def start(self) -> None:
        """Begin to serve."""
        self._thread.start()
        if self._note is None:
            return
        with suppress(OSError):  # it is a convenience
            self._note.unlink(missing_ok=True)  # it keeps its permissions, whoever gave them to it
            note = os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(note, "w") as file:
                file.write(self.url)

    def close(self) -> None:
        """Stop serving."""
        if self._thread.is_alive():
            self._server.shutdown()
            if self._note is not None:
                with suppress(OSError):
                    self._note.unlink()
        self._server.server_close()


class _Server(BoundedServer):
    """The page's server, with its snapshot function and its secret."""

    def __init__(self, look: Callable[[], Snapshot], secret: str, port: int) -> None:
        self.look, self.secret = look, secret
        super().__init__((HOST, port), _Request, places=REQUESTS_MAX, request_s=REQUEST_S)


class _Request(BaseHTTPRequestHandler):
    """Answers one request."""

    server: _Server
    timeout = REQUEST_S
    server_version, sys_version = "clonos", ""

    def do_GET(self) -> None:
        server = self.server
        # Reject foreign host names that resolve to this address (DNS rebinding).
        host = self.headers.get("Host", "").rpartition(":")[0]
        path = self.path.partition("?")[0].split("/")
        is_known = len(path) == 3 and hmac.compare_digest(  # "", secret, what
            path[1].encode("utf-8", "replace"), server.secret.encode()
        )
        if host not in {HOST, "localhost"} or not is_known:
            self._answer(404, "text/plain", "there is nothing here\n")
            return
        if path[2] == "":
            nonce = secrets.token_urlsafe(12)
            self._answer(200, "text/html", page(server.look(), nonce), nonce)
        elif path[2] == "picture":
            self._answer(200, "text/html", picture(server.look()))
        elif path[2] == "snapshot":
            self._answer(200, "application/json", json.dumps(server.look()))
        else:
            self._answer(404, "text/plain", "there is nothing here\n")

    def _answer(self, code: int, kind: str, content: str, nonce: str = "") -> None:
        body = content.encode("utf-8", "replace")
        own = f"style-src 'nonce-{nonce}'; script-src 'nonce-{nonce}'; connect-src 'self'; "
        self.send_response(code)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header(
            "Content-Security-Policy",
            f"default-src 'none'; {own if nonce else ''}base-uri 'none'; frame-ancestors 'none'",
        )
        self.end_headers()
        with suppress(ConnectionError, socket.timeout):
            self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Log nothing, because every request contains the secret."""


def page(job: Snapshot, nonce: str) -> str:
    """The page, with its first picture."""
    template = Template(files(__package__).joinpath("page.html").read_text("utf-8"))
    return template.substitute(
        name=escape(job["name"]), nonce=nonce, style=style(), picture=picture(job)
    )
