"""The example: agents whose worker is killed, and a verdict that can say no."""

from __future__ import annotations

import json
import socket
import threading
from typing import Any

import pytest

from clonos.nodes.views import Spent
from examples.agent import server
from examples.agent.__main__ import Options, run
from examples.agent.verdict import judge, unapproved
from examples.judging import Kill

QUESTION = {"who": "customer", "text": "?"}


@pytest.mark.spark
def test_agents_are_killed_and_nothing_is_lost_repeated_or_changed(spark):
    options = Options(talks=12, latency_ms=40.0, patience_ms=300)
    rows, lines = run(spark, options)
    found = {line.what: line.found for line in lines}
    assert not [line for line in lines if not line.ok]
    assert len(rows) == options.talks
    assert found["processes killed"] >= 1
    assert found["asked again, open at a kill"] >= 1


@pytest.mark.parametrize(
    ("who", "said", "cents", "is_wrong"),
    [
        ("model", {"act": "refund"}, 5_000, False),
        ("model", {"act": "refund"}, 5_001, True),
        ("human", {"text": "approved"}, 5_001, False),
        ("human", {"text": "declined"}, 5_001, True),
        ("clock", {"text": "nobody"}, 5_001, True),
    ],
)
def test_the_verdict_sees_a_refund_without_approval(who, said, cents, is_wrong):
    before = {"who": who, **said, **({"cents": cents} if who == "model" else {})}
    assert unapproved([QUESTION, before, {"who": "bank"}]) == is_wrong


@pytest.mark.parametrize(
    "headers", ["", "Content-Length: 9\r\n", "Content-Length: 9\r\nAgent: 1\r\n\r\n{"]
)
def test_a_request_that_was_cut_off_is_none(headers, tmp_path, capfd):
    world = server.World(tmp_path / "journal", 0.0, 0.0)
    http = server.Server(world)
    served = threading.Thread(target=http.handle_request)
    served.start()
    with socket.create_connection(("127.0.0.1", http.server_port)) as client:
        client.sendall(f"POST /model HTTP/1.0\r\n{headers}".encode())
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""
    served.join()
    http.server_close()
    world.close()
    assert not (tmp_path / "journal").read_text()
    assert "Traceback" not in capfd.readouterr().err


class World:
    """One conversation, of one thought, that two processes of an agent might have had."""

    def __init__(self) -> None:
        self.entries: list[dict[str, Any]] = []

    def think(self, number: int, agent: int, at: float, *, tokens: int = 100) -> dict[str, Any]:
        body = {"id": 0, "talk": [QUESTION]}
        answer = {"request": number, "tokens": tokens, "act": "goodbye"}
        asked = {"number": number, "path": "/model", "body": body, "agent": agent, "key": ""}
        self.entries.append({"kind": "asked", "at": at, **asked})
        self.entries.append({"kind": "answered", "at": at, "number": number, "answer": answer})
        return {"who": "model", **answer}

    def faults(self, tmp_path: Any, thought: Any, bill: Spent, kills: Any = ()) -> set[str]:
        path = tmp_path / "journal"
        path.write_text("".join(json.dumps(entry) + "\n" for entry in self.entries))
        rows = [{"id": 0, "talk": json.dumps([QUESTION, thought])}]
        return {line.what for line in judge(path, kills, 1, rows, bill) if not line.ok}


def killed(pid: int, at: float) -> Kill:
    return Kill("worker", frozenset({pid}), at)


def test_a_call_that_was_open_at_a_kill_may_be_made_again(tmp_path):
    world = World()
    world.think(1, 11, at=5.0, tokens=300)
    thought = world.think(2, 12, at=6.0)
    assert world.faults(tmp_path, thought, Spent(1, 0.2), [killed(11, 4.0)]) == set()
    assert world.faults(tmp_path, thought, Spent(1, 0.8), [killed(11, 4.0)]) == {
        "cents on the job's bill"
    }


def test_the_verdict_sees_what_went_wrong(tmp_path):
    world = World()
    thought = world.think(1, 11, at=1.0)
    assert world.faults(tmp_path, thought, Spent(1, 0.2)) == set()
    assert world.faults(tmp_path, {**thought, "tokens": 99}, Spent(1, 0.2)) == {
        "... as the journal has them, word for word"
    }
    world.think(2, 12, at=3.0)
    assert world.faults(tmp_path, thought, Spent(1, 0.2), [killed(11, 2.0)]) == {
        "... as the journal has them, word for word",
        "asked again, though the answer was used",
    }
    assert "asked again, though not killed" in world.faults(tmp_path, thought, Spent(1, 0.2))
    for key in ("one", "another"):
        body = {"id": 0, "request": 1, "cents": 7}
        world.entries.append({"kind": "made", "path": "/refund", "body": body, "key": key})
    faults = world.faults(tmp_path, thought, Spent(1, 0.2))
    assert {"effects made twice", "refunds made"} <= faults
