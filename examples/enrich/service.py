"""A paid service of many moods.

``POST /`` with an order answers ``{"receipt": ..., "cents": ...}``: another receipt each time it is
asked. It charges for the letters of the text, and only for answers; every tenth request it turns
away (503), free of charge. Every request is in the journal (JSON lines) when it comes, every answer
before it is sent. The journal is its bill.

``GET /hold?at=n`` lets request number `n` and all behind it wait for ``GET /release``: whoever
kills something meanwhile kills it while calls are open. Both answer how many came, and how many
wait.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import secrets
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

from examples.demo.process import LOOPBACK, announce, die_with_parent
from examples.serving import JsonHandler

CENTS_PER_LETTER: Final = 0.01
TURNED_AWAY: Final = 0.1
HANDLED_AT_ONCE: Final = 128


def price(text: str) -> float:
    """What an answer costs, in cents."""
    return round(CENTS_PER_LETTER * len(text), 4)


class Service:
    """What is answered, and the journal."""

    def __init__(self, journal: Path, latency_s: float) -> None:
        self._journal = journal.open("ab", buffering=0)  # a line is one write
        self._latency_s = latency_s
        self._numbers = itertools.count(1)
        self._changed = threading.Condition()
        self._came = self._waiting = 0
        self._hold_at: int | None = None

    def answer(self, order: dict[str, Any], asker: int) -> dict[str, Any] | None:
        """None: not now."""
        with self._changed:
            number = self._came = next(self._numbers)
            self._note("asked", number, id=order["id"], asker=asker)
        time.sleep(self._latency_s * random.uniform(0.5, 1.5))
        with self._changed:
            self._waiting += 1
            self._changed.wait_for(lambda: self._hold_at is None or number < self._hold_at)
            self._waiting -= 1
            if random.random() < TURNED_AWAY:
                self._note("turned away", number)
                return None
            answer = {"receipt": secrets.token_hex(8), "cents": price(order["text"])}
            self._note("answered", number, **answer)
        return answer

    def hold(self, at: int | None) -> dict[str, int]:
        """From which request on; None: none of them."""
        with self._changed:
            self._hold_at = at
            self._changed.notify_all()
            return self.look()

    def look(self) -> dict[str, int]:
        return {"came": self._came, "waiting": self._waiting}

    def _note(self, kind: str, number: int, **what: Any) -> None:
        entry = {"kind": kind, "number": number, "at": time.time(), **what}
        self._journal.write(json.dumps(entry).encode() + b"\n")


class Server(ThreadingHTTPServer):
    """Listens on the loopback interface only."""

    daemon_threads = True
    request_queue_size = HANDLED_AT_ONCE

    def __init__(self, service: Service) -> None:
        super().__init__((LOOPBACK, 0), Handler)
        self.service = service


class Handler(JsonHandler):
    """One connection."""

    server: Server

    def post(self, body: dict[str, Any]) -> None:
        answer = self.server.service.answer(body, int(self.headers["Asker"]))
        self.send(answer or {}, 200 if answer else 503)

    def get(self) -> None:
        asked = urlsplit(self.path)
        if asked.path == "/hold":
            self.send(self.server.service.hold(int(parse_qs(asked.query)["at"][0])))
        elif asked.path == "/release":
            self.send(self.server.service.hold(None))
        else:
            self.send(self.server.service.look())


def main() -> None:
    """Serve until the process that started it is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, required=True, help="on average")
    options = parser.parse_args()
    die_with_parent()
    server = Server(Service(options.journal, options.latency_ms / 1000))
    announce(server.server_address[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
