"""A service as the sink of a real job, whose processes are killed while it answers."""

from __future__ import annotations

import json
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

import clonos

pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(900),
]
ROWS = 3000


class Service:
    """Counts what comes; once it has taken the rows of a request, it may say nothing for a while.

    Attributes
    ----------
    sent
        How often each row has come, by its values.
    kept
        The rows of each name, of the first request that has it.
    """

    def __init__(self) -> None:
        self.sent: Counter[tuple[Any, ...]] = Counter()
        self.kept: dict[str, list[dict[str, Any]]] = {}
        self.others: list[str] = []
        self.is_silent, self.has_taken = threading.Event(), threading.Event()
        self.may_answer = threading.Event()
        service, lock = self, threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                rows = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                name = self.headers["Idempotency-Key"]
                with lock:
                    service.sent.update(tuple(row.values()) for row in rows)
                    if service.kept.setdefault(name, rows) != rows:
                        service.others.append(name)
                if service.is_silent.is_set():
                    service.has_taken.set()
                    service.may_answer.wait(60)
                try:
                    self.send_response(200)
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                except ConnectionError:
                    self.close_connection = True

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def close(self) -> None:
        """It hears nothing more."""
        self.server.shutdown()
        self.server.server_close()


def test_a_service_that_keeps_names_has_each_row_once_though_tasks_die(kit, spark):
    service = Service()
    job = clonos.Job("http", checkpoint_interval="300 ms")
    rows = job.source(clonos.sources.rate(300, ROWS), name="events").slot_group("out")
    sink = clonos.sinks.http(service.url, rows_per_request=10)
    rows.start_new_chain().sink(sink, name="out")
    running = job.start(spark)
    for _ in range(2):
        kit.wait_for(lambda: kit.is_quiet(running))
        service.has_taken.clear()
        service.may_answer.clear()
        service.is_silent.set()
        kit.wait_for(service.has_taken.is_set)  # the service has rows, and the task no answer
        kit.kill(running, "out[0]")
        service.is_silent.clear()
        service.may_answer.set()
    running.wait(300)
    service.close()
    assert not service.others, "one name, and other rows"
    assert sorted(row["value"] for rows in service.kept.values() for row in rows) == list(
        range(ROWS)
    )
    assert len(service.sent) == ROWS
    assert max(service.sent.values()) > 1, "no request was repeated: this shows nothing"
    assert running.observer.recoveries
