"""A slow, paid, non-deterministic model behind HTTP, for trying out what failures cost.

``POST /score`` with ``{"text": ...}`` answers ``{"label": ..., "score": ..., "request": n}``:
another score each time it is asked. Every request is in a journal (JSON lines) before it is
answered; that is the bill. It prints its address when it is ready, and ends with the process that
started it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

CENTS_PER_CALL = 0.2


class Model:
    """Scores texts by whim, and writes the bill."""

    def __init__(self, journal: Path, latency_s: float) -> None:
        self._journal = journal.open("ab", buffering=0)  # a line is one write
        self._latency_s = latency_s
        self._lock = threading.Lock()
        before = journal.read_bytes().count(b"\n")
        self._requests = itertools.count(before + 1)

    def score(self, text: str) -> dict[str, object]:
        time.sleep(self._latency_s)
        score = round(random.random(), 6)
        label = "good" if score > 0.5 else "bad"
        with self._lock:
            answer = {"label": label, "score": score, "request": next(self._requests)}
            entry = {"text": text, "cents": CENTS_PER_CALL, **answer}
            self._journal.write(json.dumps(entry).encode() + b"\n")
        return answer


class Server(ThreadingHTTPServer):
    """Listens on the loopback interface only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, model: Model) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.model = model


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    server: Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", "0"))
        said = self.rfile.read(length)
        if len(said) < length:
            self.close_connection = True  # who asks was killed while asking: nothing was asked
            return
        answer = json.dumps(self.server.model.score(json.loads(said)["text"])).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's name
        """The journal says it all."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until the process that started it is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, default=20.0)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    options = parser.parse_args(arguments)
    server = Server(options.port, Model(options.journal, options.latency_ms / 1000))
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    server.serve_forever()


def _leave_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(0)


if __name__ == "__main__":
    main()
