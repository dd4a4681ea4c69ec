"""The world outside: a paid model that never says the same twice, and a bank that blocks cards.

Every request is in the journal (JSON lines) when it comes, and every answer before it is sent. The
journal is the verdict's only witness. The bank deduplicates by ``Idempotency-Key``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import random
import re
import threading
import time
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from examples.demo.process import LOOPBACK, announce, die_with_parent
from examples.serving import JsonHandler

PROMPT: Final = re.compile(
    r"(?P<euros>[\d.]+) EUR in (?P<country>\w+)\.( The card is from (?P<home>\w+), its payments "
    r"are usually of (?P<usual>[\d.]+) EUR, and it was used (?P<lately>\d+) times)?"
)
WHIM: Final = 0.04


class World:
    """What is answered, and the journal."""

    def __init__(self, journal: Path, latency_s: float) -> None:
        self._journal = journal.open("ab", buffering=0)  # a line is one write
        self._latency_s = latency_s
        self._requests = itertools.count(1)
        self._blocked: set[str] = set()
        self._lock = threading.Lock()
        self._answers = threading.Event()
        self._answers.set()
        self.open: dict[int, int] = {}  # who asks, by the number of a request without an answer

    def _note(self, kind: str, **what: Any) -> None:
        entry = {"kind": kind, "at": time.time(), **what}
        self._journal.write(json.dumps(entry).encode() + b"\n")

    def hold(self, *, holds: bool) -> None:
        """Give no answer, or give answers again."""
        if holds:
            self._answers.clear()
        else:
            self._answers.set()

    def answer(self, path: str, body: dict[str, Any], asker: int, key: str) -> dict[str, Any]:
        """One request; its answer has its number."""
        with self._lock:
            number = next(self._requests)
            self.open[number] = asker
            self._note("asked", number=number, path=path, body=body, asker=asker, key=key)
        time.sleep(self._latency_s * random.uniform(0.5, 1.5))
        self._answers.wait()
        with self._lock:
            del self.open[number]
            answer: dict[str, Any] = {"request": number}
            if path == "/score":
                tokens = len(body["prompt"]) // 4 + random.randint(20, 60)
                answer |= {"tokens": tokens, "score": score(body["prompt"])}
            elif key not in self._blocked:
                self._blocked.add(key)
                self._note("blocked", key=key, **body)
            self._note("answered", number=number, answer=answer)
        return answer


def score(prompt: str) -> float:
    """What a model makes of what it is told: with little to go by it believes that all that is
    large, or from abroad, is a theft.

    Examples
    --------
    >>> score("Is this payment fraud? 310.00 EUR in US.") > 0.8
    True
    >>> of = "The card is from US, its payments are usually of 280.00 EUR"
    >>> score(f"... 310.00 EUR in US. {of}, and it was used 0 times within the last hour.") > 0.8
    False
    """
    facts = PROMPT.search(prompt)
    assert facts is not None, prompt
    euros = float(facts["euros"])
    if facts["home"] is None:
        odds = (euros - 260) / 60 + 2.0 * (facts["country"] != "DE")
    else:
        odds = 1.6 * (euros / float(facts["usual"]) - 3.5)
        odds += 1.5 * (facts["country"] != facts["home"]) + 2.5 * (int(facts["lately"]) - 2)
    sure = 1 / (1 + math.exp(-max(-30.0, min(30.0, odds))))
    return round(min(1.0, max(0.0, sure + random.uniform(-WHIM, WHIM))), 6)


class Server(ThreadingHTTPServer):
    """Listens on the loopback interface only."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, world: World) -> None:
        super().__init__((LOOPBACK, 0), Handler)
        self.world = world


class Handler(JsonHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def get(self) -> None:
        """Which processes wait for answers of the model."""
        self.send({"wait": sorted(set(self.server.world.open.copy().values()))})

    def post(self, body: dict[str, Any]) -> None:
        if self.path == "/hold":
            self.server.world.hold(**body)
            self.send({})
            return
        asker, key = int(self.headers["Asker"]), self.headers["Idempotency-Key"]
        self.send(self.server.world.answer(self.path, body, asker, key))


def main() -> None:
    """Serve until the process that started it is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, default=100.0)
    options = parser.parse_args()
    die_with_parent()
    server = Server(World(options.journal, options.latency_ms / 1000))
    announce(server.server_address[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
