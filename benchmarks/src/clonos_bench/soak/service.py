"""The service that the soaked job asks: each answer is another one, some are late, some refused.

A ``POST`` of ``{"ids": [...]}`` is answered by ``{"nonce": ..., "rates": [...]}``: one random
number per id. What is answered is written to a file of JSON lines first. A thread of the process
that supervises serves it, so that it outlives the job's driver.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

RATE_MAX: Final = 1000
REFUSED: Final = 0.03
"""Share of requests that are answered by an error."""
LATE: Final = 0.01
"""Share of requests that are answered late, by up to ..."""
LATE_S: Final = 1.0
"""... so much."""
ATTEMPTS: Final = 20
"""How often a caller asks before it takes the refusals for the service's answer."""
TIMEOUT_S: Final = 30.0
_LOOPBACK: Final = "127.0.0.1"


class Refused(Exception):
    """The service did not want to answer."""


def ask(url: str, ids: Sequence[int]) -> dict[str, Any]:
    """The rates of `ids` at this moment.

    Raises
    ------
    Refused
        It may be asked again.
    """
    body = json.dumps({"ids": ids}).encode()
    try:
        with urllib.request.urlopen(url, body, TIMEOUT_S) as response:  # noqa: S310 - ours
            answer: dict[str, Any] = json.load(response)
    except OSError as error:
        raise Refused(str(error)) from error
    return answer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        with suppress(ConnectionError):  # who asks is killed at any moment: that is the point
            length = int(self.headers.get("Content-Length", 0))
            said = self.rfile.read(length)
            if said and len(said) == length:
                self._answer(json.loads(said)["ids"])

    def _answer(self, ids: Sequence[int]) -> None:
        answer = self.server.answer(ids)
        body = b"not now" if answer is None else json.dumps(answer).encode()
        self.send_response(503 if answer is None else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Nothing: the file says what was answered."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, path: Path, seed: int) -> None:
        super().__init__((_LOOPBACK, 0), _Handler)
        self._file = path.open("ab", buffering=0)  # an answer is one write: whole, or not there
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._count = itertools.count(1)

    def answer(self, ids: Sequence[int]) -> dict[str, Any] | None:
        with self._lock:
            draw = self._random.random()
            late_s = self._random.random() * LATE_S if draw < LATE else 0.0
            rates = [self._random.randrange(RATE_MAX) for _ in ids]
            nonce = next(self._count)
        time.sleep(late_s)
        if draw > 1 - REFUSED:
            return None
        answer = {"nonce": nonce, "rates": rates}
        self._file.write(json.dumps({"ids": ids, **answer}).encode() + b"\n")
        return answer

    def server_close(self) -> None:
        super().server_close()
        self._file.close()


@contextmanager
def running(path: Path, seed: int) -> Iterator[str]:
    """The service, as long as this lasts; gives its address."""
    with _Server(path, seed) as server:
        thread = threading.Thread(target=server.serve_forever, name="soak-service", daemon=True)
        thread.start()
        try:
            yield f"http://{_LOOPBACK}:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
