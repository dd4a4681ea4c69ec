"""The world outside: a paid model of many minds, two tools, a desk with humans, and a bank.

Every request is in the journal (JSON lines) when it comes, and every answer before it is sent. The
journal is the verdict's only witness. The model's answers are random, come word by word, and cost
when they are complete. The desk and the bank deduplicate by ``Idempotency-Key``; what they do is in
the journal, too.

Decisions of the desk leave by a socket of their own: whoever sends ``RESUME <n>`` gets the lines
from number `n` on, until somebody posts to ``/close``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

from examples.demo.process import LOOPBACK, announce, die_with_parent
from examples.serving import JsonHandler

HANDLED_AT_ONCE = 128
WORDS = ("well", "so", "the", "order", "was", "broken", "let", "us", "see", "what", "to", "pay")


class World:
    """What is answered, and the journal."""

    def __init__(self, journal: Path, latency_s: float, patience_s: float) -> None:
        self._journal = journal.open("ab", buffering=0)  # a line is one write
        self._latency_s, self._patience_s = latency_s, patience_s
        self._requests = itertools.count(1)
        self._made: dict[str, dict[str, Any]] = {}  # by key
        self._changed = threading.Condition()
        self._decisions: list[bytes] = []
        self._is_closed = False

    def note(self, kind: str, **what: Any) -> None:
        entry = {"kind": kind, "at": time.time(), **what}
        self._journal.write(json.dumps(entry).encode() + b"\n")

    def answer(self, path: str, body: dict[str, Any], agent: int, key: str) -> dict[str, Any]:
        """One request; its answer has its number."""
        number = self._asked(path, body, agent, key)
        time.sleep(self._latency_s * random.uniform(0.5, 1.5))
        with self._changed:
            return self._answered(number, self._answer(path, body, key))

    def stream(self, body: dict[str, Any], agent: int) -> Iterator[dict[str, Any]]:
        """The model thinks aloud, a word at a time; with the last piece it is known what to do."""
        number = self._asked("/model", body, agent, "")
        words = random.choices(WORDS, k=random.randint(3, 12))
        for word in words:
            time.sleep(self._latency_s * random.uniform(0.5, 1.5) / len(words))
            yield {"word": word}
        thought = {"text": " ".join(words), "tokens": random.randint(50, 500)}
        yield self._answered(number, {**thought, **think(body["talk"])})

    def _asked(self, path: str, body: dict[str, Any], agent: int, key: str) -> int:
        with self._changed:
            number = next(self._requests)
            self.note("asked", number=number, path=path, body=body, agent=agent, key=key)
        return number

    def _answered(self, number: int, answer: dict[str, Any]) -> dict[str, Any]:
        answer = {"request": number, **answer}
        self.note("answered", number=number, answer=answer)
        return answer

    def _answer(self, path: str, body: dict[str, Any], key: str) -> dict[str, Any]:
        if path == "/order":
            return {"what": "order", "paid": random.randint(2_000, 10_000)}
        if path == "/policy":
            return {"what": "policy", "share": random.choice([50, 80, 100])}
        if key not in self._made:
            self._made[key] = {"receipt": random.getrandbits(40)}
            self.note("made", path=path, body=body, key=key)
            if path == "/desk":
                pause_s = random.uniform(0, 1.5) * self._patience_s  # every third one is too late
                threading.Timer(pause_s, self._decide, [body]).start()
        return self._made[key]

    def _decide(self, body: dict[str, Any]) -> None:
        text = random.choice(["approved", "declined"])
        said = {"id": body["id"], "request": body["request"], "text": text}
        with self._changed:
            self.note("decided", **said)
            self._decisions.append(json.dumps(said).encode() + b"\n")
            self._changed.notify_all()

    def close(self) -> None:
        """No more decisions."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def send_decisions(self, client: socket.socket) -> None:
        """To one client, from where it wants to go on."""
        with client, client.makefile("rb") as said, suppress(OSError):  # it goes, and comes back
            sent = int(said.readline().split()[1])
            while lines := self._decisions_from(sent):
                client.sendall(b"".join(lines))
                sent += len(lines)

    def _decisions_from(self, number: int) -> list[bytes]:
        """Waits for them; none, if no more come."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(self._decisions) > number)
            return self._decisions[number:]


def think(talk: list[dict[str, Any]]) -> dict[str, Any]:
    """What a model would do: another thing each time it is asked."""
    known = {message.get("what"): message for message in talk}
    if any(message["who"] in {"bank", "human", "clock"} for message in talk):
        return {"act": "goodbye"}
    if "order" not in known or random.random() < 0.1:
        return {"act": "order"}
    if "policy" not in known or random.random() < 0.1:
        return {"act": "policy"}
    if random.random() < 0.2:
        return {"act": "goodbye"}
    return {"act": "refund", "cents": known["order"]["paid"] * known["policy"]["share"] // 100}


class Server(ThreadingHTTPServer):
    """Listens on the loopback interface only."""

    daemon_threads = True
    request_queue_size = HANDLED_AT_ONCE

    def __init__(self, world: World) -> None:
        super().__init__((LOOPBACK, 0), Handler)
        self.world = world
        self.desk = socket.create_server((LOOPBACK, 0))
        threading.Thread(target=self._serve_desk, daemon=True).start()

    def _serve_desk(self) -> None:
        while True:
            client, _ = self.desk.accept()
            threading.Thread(target=self.world.send_decisions, args=(client,), daemon=True).start()


class Handler(JsonHandler):
    """One connection."""

    server: Server

    def post(self, body: dict[str, Any]) -> None:
        agent, key = int(self.headers["Agent"]), self.headers["Idempotency-Key"]
        if self.path == "/model":
            self.stream(self.server.world.stream(body, agent))
        else:
            self.send(self.server.world.answer(self.path, body, agent, key))

    def get(self) -> None:
        """Where the decisions are, and that no more are wanted."""
        if self.path == "/close":
            self.server.world.close()
        self.send({"port": self.server.desk.getsockname()[1]})


def main() -> None:
    """Serve until the process that started it is gone."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--journal", type=Path, required=True)
    parser.add_argument("--latency-ms", type=float, required=True, help="on average")
    parser.add_argument(
        "--patience-ms", type=float, required=True, help="of those who wait for a human"
    )
    options = parser.parse_args()
    die_with_parent()
    world = World(options.journal, options.latency_ms / 1000, options.patience_ms / 1000)
    server = Server(world)
    announce(server.server_address[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
