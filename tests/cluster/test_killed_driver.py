"""A driver that is killed while calls and effects are open: what its next start asks again.

The service is a server of the test's own, so its record does not depend on who is killed. Its
answers depend on the row, or on the key that the row's identity gives, so a run without failures
has the same rows.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle

import clonos
from tests.processes import is_there

cloudpickle.register_pickle_by_value(sys.modules[__name__])
pytestmark = [pytest.mark.spark, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]

ROWS = 80
ASKED, TOLD, PAID, FREE = range(4)
"""Which rows wait at which service while the gate is shut: by their remainder."""
SCHEMA = "n long, answer string"

DRIVER = """
import sys, time
from pathlib import Path
from clonos.spark.session import get_or_create
from tests.cluster.test_killed_driver import build
running = build(sys.argv[1], Path(sys.argv[2])).start(get_or_create("local[6]"))
while True:
    print(running.delivered["out"], flush=True)
    time.sleep(0.05)
"""


class Service:
    """Three services, and what they have been asked: ``ask`` reads, ``tell`` is an effect that
    deduplicates, ``pay`` is one that does not, and ``find`` says what was paid.

    Attributes
    ----------
    asked
        The numbers of rows, by service.
    keys
        Keys of effects by service and row.
    done
        How often each key's effect was made.
    clients
        The processes that have asked.
    """

    def __init__(self, *, is_open: bool) -> None:
        self.asked: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.keys: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
        self.done: Counter[str] = Counter()
        self.clients: set[int] = set()
        self.gate, self.lock = threading.Event(), threading.Lock()
        if is_open:
            self.gate.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                what, n, key, pid = self.path[1:].split("/")
                answer = service.answer(what, int(n), key, int(pid), self.connection)
                if answer is not None:
                    content = json.dumps(answer).encode()
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(content)))
                    self.end_headers()
                    self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, ROWS

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass

        self.server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def answer(self, what: str, n: int, key: str, pid: int, client: socket.socket) -> Any:
        """None: its client is gone, and nothing comes of it."""
        with self.lock:
            self.asked[what][n] += 1
            self.clients.add(pid)
            if what != "ask":
                self.keys[what, n].add(key)
            if what == "find":
                return {"receipt": said(str(n))} if self.done[key] else {}
        is_late = n % 8 >= 4  # half of the effects are made, and the answer does not come
        if what == "pay" and is_late:
            self.make(key)
        if n % 4 == {"ask": ASKED, "tell": TOLD, "pay": PAID}[what] and not self.opened(client):
            return None
        if (what == "pay" and not is_late) or (what == "tell" and not self.done[key]):
            self.make(key)
        return {"receipt": said(key if what == "tell" else str(n))}

    def make(self, key: str) -> None:
        with self.lock:
            self.done[key] += 1

    def opened(self, client: socket.socket) -> bool:
        """Wait for the gate; False: the client has gone away."""
        while not self.gate.wait(0.02):
            if select.select([client], [], [], 0)[0]:
                return False
        return True

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def said(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def get(url: str, what: str, n: int, key: str = "-") -> Any:
    with urllib.request.urlopen(f"{url}/{what}/{n}/{key}/{os.getpid()}", timeout=600) as answer:
        return json.load(answer)


def ask(url: str, row: Any) -> tuple[int, str]:
    return row.n, get(url, "ask", row.n)["receipt"]


def make(url: str, what: str, n: int, *, call: clonos.EffectCall) -> str:
    return str(get(url, what, n, call.key)["receipt"])


def find(url: str, n: int, *, call: clonos.EffectCall) -> Any:
    found = get(url, "find", n, call.key)
    return clonos.Made(found["receipt"]) if found else clonos.NotMade


def build(url: str, folder: Path) -> clonos.Job:
    settings: dict[str, Any] = {"parallelism": 1, "checkpoint_interval": "200 ms"}
    job = clonos.Job("shop", checkpoint_dir=str(folder), lineage="shop", **settings)
    rows = job.source(clonos.sources.from_batches([[(n,) for n in range(ROWS)]], "n long"))
    how: dict[str, Any] = {"in_flight": ROWS, "ordered": False}
    asked = rows.map_async(partial(ask, url), SCHEMA, name="ask", timeout="10 minutes", **how)
    tell = clonos.effect(partial(make, url, "tell"), idempotent=True)
    told = asked.with_column_async(
        "told string", tell, "n", identity="n", name="tell", timeout="10 minutes", **how
    )
    pay = clonos.effect(partial(make, url, "pay"), check=partial(find, url), check_for="10 minutes")
    paid = told.with_column_async(  # a check waits for its time, so this is how long the test takes
        "paid string", pay, "n", name="pay", timeout="45 seconds", **how
    )
    paid.sink(clonos.sinks.collect(), name="out")
    return job


@pytest.fixture
def service() -> Iterator[Callable[..., Service]]:
    started: list[Service] = []

    def start(**how: Any) -> Service:
        started.append(Service(**how))
        return started[-1]

    yield start
    for one in started:
        one.close()


def rows(remainder: int) -> set[int]:
    return set(range(remainder, ROWS, 4))


def content(result: Any) -> bytes:
    return json.dumps(result.table("out").sort_by("n").to_pylist()).encode()


def test_only_what_was_open_is_asked_again_and_with_its_key(kit, spark, tmp_path, service):
    shop = service(is_open=False)
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, shop.url, str(tmp_path / "job")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert driver.stdout is not None
    try:
        for line in driver.stdout:
            seen = [line.strip(), *(len(shop.asked[what]) for what in ("tell", "pay"))]
            if seen == [str(len(rows(FREE))), ROWS * 3 // 4, ROWS // 2]:
                break
    finally:
        os.kill(driver.pid, signal.SIGKILL)
        driver.communicate()
    kit.wait_for(lambda: not any(map(is_there, shop.clients)))
    first = {what: Counter(asked) for what, asked in shop.asked.items()}
    assert first == {
        "ask": dict.fromkeys(range(ROWS), 1),
        "tell": dict.fromkeys(rows(TOLD) | rows(PAID) | rows(FREE), 1),
        "pay": dict.fromkeys(rows(PAID) | rows(FREE), 1),
    }
    unmade = {n for n in rows(PAID) if n % 8 < 4}

    running = build(shop.url, tmp_path / "job").start(spark)
    kit.wait_for(lambda: shop.asked["ask"].total() == ROWS + len(rows(ASKED)))
    kit.wait_for(lambda: shop.asked["tell"].total() == ROWS * 3 // 4 + len(rows(TOLD)))
    shop.gate.set()
    result = running.wait(kit.WAIT_S)
    assert running.term == 2

    asked_twice = {what: {n for n in asked if asked[n] == 2} for what, asked in shop.asked.items()}
    assert asked_twice == {"ask": rows(ASKED), "tell": rows(TOLD), "pay": unmade, "find": set()}
    assert all(max(asked.values()) <= 2 for asked in shop.asked.values())
    assert set(shop.asked["find"]) == rows(PAID), "what is in doubt, and nothing else"
    assert all(len(keys) == 1 for keys in shop.keys.values())
    assert all(shop.keys["find", n] == shop.keys["pay", n] for n in rows(PAID))
    assert len(shop.done) == 2 * ROWS
    assert set(shop.done.values()) == {1}

    other = service(is_open=True)
    undisturbed = build(other.url, tmp_path / "other").start(spark).wait(kit.WAIT_S)
    assert content(result) == content(undisturbed)
    assert {what: asked.total() for what, asked in other.asked.items()} == dict.fromkeys(
        ("ask", "tell", "pay"), ROWS
    )
