"""The banned-words service: an HTTP server whose answers change from one moment to the next.

``POST /banned`` with ``{"words": [...]}`` is answered by ``{"nonce": ..., "banned": [...]}``. Which
words are banned is drawn anew every half second, and a few more for each request, so that asking
again is another answer, and an answer that was used and then asked for again can be told by its
nonce.

The service keeps a journal of its own (JSON lines), written before it answers: what it was asked,
by which idempotency key, and what it said. The verdict is computed from that, not from our logs.

It deduplicates: a request with a known key gets the answer that this key has already, under a
nonce of its own. It does not look whether the request is the same: whoever gives two requests one
key gets the answer to the one for the other, and the verdict shows it.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import secrets
import signal
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from xxhash import xxh3_64_intdigest

from examples.demo.process import LOOPBACK, announce, die_with_parent

BUCKET_SECONDS: Final = 0.5
"""How long the same words are banned."""

BANNED_SHARE: Final = 0.10
"""Share of all words that are banned in a bucket."""

WHIM_SHARE: Final = 0.02
"""Share of the words of a request that are judged the other way, by whim."""

KEYS_MAX: Final = 1_000_000
"""So many keys are remembered; the oldest are forgotten."""

BODY_BYTES_MAX: Final = 16 << 20


class BannedWords:
    """What the service knows: its journal, and which words are banned right now."""

    def __init__(self, journal: Path, seed: int) -> None:
        self._seed = seed
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._file = journal.open("ab", buffering=0)  # an entry is one write: whole, or not there
        self._boot = secrets.token_hex(4)
        self._count = itertools.count(1)
        self._last_time = 0.0
        self._known: dict[str, list[str]] = {}  # key -> the words that are banned

    def answer(self, words: Sequence[str], key: str) -> dict[str, Any]:
        """Judge `words`; the answer is in the journal when this returns."""
        with self._lock:
            # Strictly ascending, so that the verdict can tell which of two answers came first.
            now = max(time.time(), self._last_time + 1e-6)
            self._last_time = now
            bucket = int(now / BUCKET_SECONDS)
            banned = self._known.get(key)
            if banned is None:
                banned = [word for word in words if self._is_banned(word, bucket)]
                self._known[key] = banned
                if len(self._known) > KEYS_MAX:
                    del self._known[next(iter(self._known))]
            answer = {"nonce": f"{self._boot}-{next(self._count)}", "banned": banned}
            entry = {"time": now, "key": key, "words": words, **answer}
            self._file.write(json.dumps(entry).encode() + b"\n")
        return answer

    def _is_banned(self, word: str, bucket: int) -> bool:
        drawn = xxh3_64_intdigest(word.encode(), seed=self._seed + bucket) / 2**64
        return (drawn < BANNED_SHARE) != (self._random.random() < WHIM_SHARE)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self, port: int, service: BannedWords) -> None:
        super().__init__((LOOPBACK, port), _Handler)
        self.service = service


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    disable_nagle_algorithm = True
    wbufsize = -1  # buffered: one packet per answer, sent when the request is done
    server: _Server

    def do_POST(self) -> None:
        try:
            words, key = self._request()
        except ValueError as error:
            self.close_connection = True  # what is left of the body is not a request
            self._send(400, {"error": str(error)})
        else:
            self._send(200, self.server.service.answer(words, key))

    def _request(self) -> tuple[list[str], str]:
        if self.path != "/banned":
            raise ValueError("the only path is /banned")
        nbytes = int(self.headers.get("Content-Length", ""))
        if not 0 <= nbytes <= BODY_BYTES_MAX:
            raise ValueError(f"Content-Length must be at most {BODY_BYTES_MAX}")
        key = self.headers.get("Idempotency-Key", "")
        if not key:
            raise ValueError("the header Idempotency-Key is missing")
        body = json.loads(self.rfile.read(nbytes))
        words = body.get("words") if isinstance(body, dict) else None
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError('the body must be {"words": [strings]}')
        return words, key

    def _send(self, status: int, answer: dict[str, Any]) -> None:
        body = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - http.server's name
        """Nothing: the journal says what was asked."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m examples.demo.service", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="0: any free one")
    parser.add_argument("--journal", type=Path, required=True, help="JSON lines, appended to")
    parser.add_argument("--seed", type=int, default=0, help="of what is banned when")
    options = parser.parse_args(arguments)
    die_with_parent()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides, also at Ctrl-C
    server = _Server(options.port, BannedWords(options.journal, options.seed))
    announce(server.server_address[1])
    server.serve_forever()


if __name__ == "__main__":
    main()
