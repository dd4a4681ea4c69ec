"""A websocket as the source of a real job, whose server goes away."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import clonos
from tests.processes import free_port

sync = pytest.importorskip("websockets.sync.server")
pytestmark = [
    pytest.mark.spark,
    pytest.mark.filterwarnings("default"),
    pytest.mark.timeout(600),
]


def served(port: int, text: str) -> Any:
    """A server that sends a text to whoever comes, and then nothing."""

    def send(connection: Any) -> None:
        connection.send(text)
        for _ in connection:
            """Nobody says anything; this ends with the connection."""

    server = sync.serve(send, "127.0.0.1", port)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def test_the_user_hears_that_the_connection_has_ended(kit, spark):
    port = free_port()
    server = served(port, "1")
    job = clonos.Job("away", parallelism=1)
    source = clonos.sources.websocket(f"ws://127.0.0.1:{port}/feed?token=secret", value="text")
    job.source(source, name="events").sink(clonos.sinks.callback(print), name="out")
    running = job.start(spark)
    kit.wait_for(lambda: running.delivered["out"] == 1)
    assert not running.warnings
    server.shutdown()
    kit.wait_for(lambda: len(running.warnings) >= 2)
    server = served(port, "2")
    kit.wait_for(lambda: running.delivered["out"] == 2)
    running.stop()
    server.shutdown()
    ended, away, back = running.warnings
    place = f"websocket ws://127.0.0.1:{port}/feed"
    assert ended.startswith(f"away: events: {place}: the connection has ended")
    assert "It is tried again until it works" in away
    assert back == f"away: events: {place}: it works again"
