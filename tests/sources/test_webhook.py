"""The webhook: what is taken and thanked for, what is refused, and what a kill leaves."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import http.server
import json
import socket
import threading
import time
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos import web
from clonos.errors import BadSchema, ClonosError, OperatorError, SourceError, WrongType
from clonos.sources import inlet_feed, webhook_inlet
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.offered import OFFERED
from clonos.sources.spool import Spool
from clonos.sources.spool_reader import SpoolReader
from clonos.testing.harness import Source, StepHarness
from tests.processes import free_port, kill, no_more_files, start

DAY_MS = 86_400_000


def post(port: int, body: bytes, path: str = "/orders", /, **headers: str) -> tuple[int, str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    try:
        connection.request("POST", path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(), answer.headers
    finally:
        connection.close()


class Hook:
    """A webhook whose messages go into a spool."""

    def __init__(self, folder: Any, **options: Any) -> None:
        self.port = free_port()
        given = {"schema": "id long", "path": "/orders", **options}
        self.source = clonos.sources.webhook(self.port, **given)
        self.spool = Spool(f"{folder}/spool", 1, backlog_bytes_max=1 << 20)
        self.errors: list[ClonosError] = []
        self.said: list[str] = []
        assert self.source.inlet is not None
        self.feed = InletFeed(
            "hooks", self.source.inlet, self.spool, self.errors.append, self.said.append
        )
        self.feed.start()

    def rows(self) -> list[dict[str, Any]]:
        return spooled(self.spool.uri)


def spooled(uri: str) -> list[dict[str, Any]]:
    reader = SpoolReader(uri, OFFERED, 0, 1)
    reader.open(0)
    found = []
    while (batch := reader.read(1000, 0.0)) is not None:
        found += batch.to_pylist()
    return found


@pytest.fixture
def hook(tmp_path, request):
    made = Hook(tmp_path, **getattr(request, "param", {}))
    yield made
    made.feed.close()


def test_a_request_is_thanked_for_when_it_is_durable(hook, monkeypatch):
    gate, order = threading.Event(), []
    take = Spool.take

    def slowly(self: Spool, *what: Any) -> bool:
        assert gate.wait(60)
        taken = take(self, *what)
        order.append("durable")
        return taken

    monkeypatch.setattr(Spool, "take", slowly)

    def open_gate() -> None:
        order.append("opened")
        gate.set()

    threading.Timer(0.1, open_gate).start()
    status, text, _ = post(hook.port, b'{"id": 7}', Idempotency_Key="a")
    order.append("thanked")
    assert (status, text) == (200, "")
    assert order == ["opened", "durable", "thanked"]
    (row,) = hook.rows()
    assert (row["value"], row["key"], row["topic"]) == (b'{"id": 7}', "a", "/orders")


def test_what_cannot_be_a_row_is_refused_with_the_reason(hook):
    deep = b'{"id": 1,\n"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    broken = b'{"id": 1, "x": "a\nb"}'
    for body in (
        *(b"", b"not json", b"[1]", b'{"id": "x"}', b'{"id": 1}{"id": 2}', b"\xff"),
        *(broken, deep),
    ):
        status, text, _ = post(hook.port, body)
        assert status == 422, body
        assert text.startswith("the body is not json")
    assert post(hook.port, b'{"id": 1}', "/other")[0] == 404
    assert post(hook.port, b'{"id": 1}', "/ordersX")[0] == 404
    assert post(hook.port, b'{"id":\n 1}\r\n', "/orders/new?a=b")[0] == 200
    assert [(row["topic"], row["value"]) for row in hook.rows()] == [
        ("/orders/new", b'{"id":  1}  ')
    ]


@pytest.mark.parametrize("hook", [{"body_bytes": 10}], indirect=True)
def test_bodies_have_a_limit_and_say_their_length(hook):
    assert post(hook.port, b'{"id":100}')[0] == 200
    assert post(hook.port, b'{"id":1000}')[0] == 413
    with socket.create_connection(("127.0.0.1", hook.port), timeout=30) as one:
        one.sendall(b"POST /orders HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert b" 411 " in one.recv(100)
    with socket.create_connection(("127.0.0.1", hook.port), timeout=30) as one:
        one.sendall(b"POST /orders HTTP/1.1\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000))
        assert b" 413 " in one.recv(100)
    assert len(hook.rows()) == 1


def test_a_key_says_something(hook):
    for key in ("", "x" * 1025):
        status, text, _ = post(hook.port, b'{"id": 1}', Idempotency_Key=key)
        assert (status, text) == (400, "Idempotency-Key has 1 to 1024 characters\n")
    assert post(hook.port, b'{"id": 1}', Idempotency_Key="x" * 1024)[0] == 200
    assert len(hook.rows()) == 1


@pytest.mark.parametrize("hook", [{"token": "open", "secret": "sesame"}], indirect=True)
def test_senders_must_know_token_and_secret(hook):
    body = b'{"id": 1}'
    good = "sha256=" + hmac.new(b"sesame", body, hashlib.sha256).hexdigest()
    bearer = {"Authorization": "Bearer open"}
    assert post(hook.port, body, **bearer, X_Hub_Signature_256=good)[0] == 200
    for wrong in (
        {},
        bearer,
        {"X_Hub_Signature_256": good},
        {**bearer, "X_Hub_Signature_256": good[:-1] + "x"},
        {"Authorization": "Bearer opex", "X_Hub_Signature_256": good},
    ):
        assert post(hook.port, body, **wrong)[0] == 401
    assert post(hook.port, b'{"id": 2}', **bearer, X_Hub_Signature_256=good)[0] == 401
    assert len(hook.rows()) == 1
    assert "sesame" not in repr(hook.source)
    assert "Bearer" not in repr(hook.source)


def test_a_sender_is_told_to_wait_while_there_is_no_room(hook, monkeypatch):
    monkeypatch.setattr(inlet_feed, "WAITING_MESSAGES", 1)
    monkeypatch.setattr(webhook_inlet, "THANKS_S", 0.2)
    monkeypatch.setattr(Spool, "backlog_bytes", 1 << 30)  # of rows that the job has not read
    for n in range(3):  # one in hand, one waits, one finds no place
        status, _, headers = post(hook.port, b'{"id": %d}' % n)
        assert (status, headers["Retry-After"]) == (503, "1")
    assert hook.spool.is_waiting
    assert not hook.rows()
    monkeypatch.setattr(Spool, "backlog_bytes", 0)
    hook.spool.truncate([0])  # something was read
    monkeypatch.setattr(webhook_inlet, "THANKS_S", 30)
    monkeypatch.setattr(inlet_feed, "WAITING_MESSAGES", 10)
    assert post(hook.port, b'{"id": 3}')[0] == 200
    # Those that were not thanked for may be there or not: the third had found no place.
    assert [row["value"] for row in hook.rows()] == [b'{"id": %d}' % n for n in (0, 1, 3)]


def test_who_comes_beyond_the_limit_is_told_to_wait(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook_inlet, "PLACES", 1)
    hook = Hook(tmp_path)
    with socket.create_connection(("127.0.0.1", hook.port), timeout=30) as first:
        first.sendall(b"POST /orders HTTP/1.1\r\nContent-Length: 2\r\n")
        with socket.create_connection(("127.0.0.1", hook.port), timeout=30) as second:
            answer = second.recv(1000)
    assert answer.startswith(b"HTTP/1.0 503")
    assert b"Retry-After: 1" in answer
    hook.feed.close()


def test_a_connection_serves_one_request_after_the_other(hook):
    connection = http.client.HTTPConnection("127.0.0.1", hook.port, timeout=30)
    connection.connect()
    first = connection.sock
    statuses = []
    for body in (b'{"id": 1}', b"broken", b'{"id": 2}'):
        connection.request("POST", "/orders", body)
        answer = connection.getresponse()
        answer.read()
        statuses.append(answer.status)
        assert connection.sock is first
    assert statuses == [200, 422, 200]
    connection.request("POST", "/orders", b'{"id": 3}', {"Connection": "close"})
    assert connection.getresponse().status == 200
    assert connection.sock is None
    assert [json.loads(row["value"])["id"] for row in hook.rows()] == [1, 2, 3]


def test_requests_may_follow_before_the_first_is_answered(hook):
    requests = b"".join(
        b'POST /orders HTTP/1.1\r\nContent-Length: 9\r\n%s\r\n{"id": %d}' % (last, n)
        for n, last in enumerate([b"", b"", b"Connection: close\r\n"])
    )
    with socket.create_connection(("127.0.0.1", hook.port), timeout=30) as one:
        one.sendall(requests)
        answers = b"".join(iter(lambda: one.recv(1000), b""))
    assert answers.count(b"HTTP/1.1 200") == 3
    assert len(hook.rows()) == 3


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 9\r\nTransfer-Encoding: chunked\r\n",
        b"Content-Length: 9\r\nContent-Length: 0\r\n",
    ],
)
def test_what_could_hide_a_second_request_ends_the_connection(hook, head):
    hidden = b'POST /orders HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"id": 2}'
    with socket.create_connection(("127.0.0.1", hook.port), timeout=30) as one:
        one.sendall(b"POST /orders HTTP/1.1\r\n" + head + b"\r\n" + hidden)
        try:
            answers = b"".join(iter(lambda: one.recv(1000), b""))
        except ConnectionResetError:
            answers = b""
    assert answers.count(b"HTTP/1.1") <= 1
    assert b" 200 " not in answers
    assert not hook.rows()


def test_a_connection_that_waits_is_ended_and_holds_nobody_up(tmp_path, monkeypatch):
    monkeypatch.setattr(web, "IDLE_S", 0.1)
    monkeypatch.setattr(webhook_inlet, "PLACES", 2)
    hook = Hook(tmp_path)
    request = b'POST /orders HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"id": 1}'
    with (
        socket.create_connection(("127.0.0.1", hook.port), timeout=30) as first,
        socket.create_connection(("127.0.0.1", hook.port), timeout=30) as second,
    ):
        first.sendall(request[:10])
        second.sendall(request)
        answer = b"".join(iter(lambda: second.recv(1000), b""))  # until it is closed
        assert b"Connection: close" in answer, "two places, and both are taken"
        first.sendall(request[10:])
        assert b"Connection: close" not in first.recv(1000)
        assert first.recv(1000) == b"", "it has waited for too long"
    assert len(hook.rows()) == 2
    hook.feed.close()


def test_the_end_of_a_job_ends_its_connections(hook):
    connection = http.client.HTTPConnection("127.0.0.1", hook.port, timeout=30)
    connection.request("POST", "/orders", b'{"id": 1}')
    assert connection.getresponse().read() == b""
    assert connection.sock is not None
    hook.feed.close()
    assert connection.sock.recv(1) == b""
    connection.close()


def test_a_failure_ends_the_job_and_thanks_for_nothing(hook, monkeypatch):
    def broken(*_: Any) -> bool:
        raise OSError("the disk is gone")

    monkeypatch.setattr(Spool, "take", broken)
    assert post(hook.port, b'{"id": 1}')[0] == 503
    assert post(hook.port, b'{"id": 2}')[0] == 503
    (error,) = hook.errors
    assert isinstance(error, SourceError)
    assert "the disk is gone" in str(error)


def test_a_port_that_is_taken_is_named(hook, tmp_path):
    again = InletFeed("again", hook.source.inlet, Spool(str(tmp_path / "x"), 1), print, print)
    with pytest.raises(SourceError, match="nobody can listen there"):
        again.start()
    again.close()


# --- keys ----------------------------------------------------------------------------------------


def offered(*messages: tuple[bytes, str | None, int]) -> pa.RecordBatch:
    values, keys, times = zip(*messages, strict=True)
    columns = [values, keys, ["/"] * len(messages), [1000 * at_ms for at_ms in times]]
    return pa.RecordBatch.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, OFFERED, strict=True)], schema=OFFERED
    )


def harness(value: Any = "text", bad: Any = "fail", **options: Any) -> StepHarness:
    job = clonos.Job(on_bad_record=bad)
    source = clonos.sources.webhook(1, value=value, **options)
    job.source(source).sink(clonos.sinks.collect(), name="out")
    return StepHarness(job.compile().codes[0].program())


def values_of(found: Any) -> list[Any]:
    return [v for b in found.batches.values() for v in b.payload.column("value").to_pylist()]


def test_of_requests_with_one_key_the_first_is_taken():
    task = harness()
    first = offered(
        (b"a", "1", 5), (b"b", None, 5), (b"c", "2", 6), (b"d", "1", 7), (b"b", None, 7)
    )
    assert values_of(task.feed(Source(first))) == ["a", "b", "c", "b"]
    assert values_of(task.feed(Source(offered((b"e", "2", 8), (b"f", "3", 8))))) == ["f"]
    assert values_of(task.feed(Source(offered((b"e", "2", 8))))) == []


def test_a_key_is_forgotten_after_its_time():
    task = harness(within="1 day")
    assert values_of(task.feed(Source(offered((b"a", "1", 1000))))) == ["a"]
    assert values_of(task.feed(Source(offered((b"b", "1", 999 + DAY_MS))))) == []
    assert values_of(task.feed(Source(offered((b"c", "1", 1000 + DAY_MS))))) == ["c"]


def test_what_a_message_has_beside_its_value():
    batch = offered((b'{"id": 5}', "k", 7))
    (out,) = harness("json", schema="id long", metadata=True).feed(Source(batch)).batches.values()
    (row,) = out.payload.to_pylist()
    assert (row["id"], row["key"], row["topic"]) == (5, "k", "/")
    assert row["received_at"].timestamp() == 0.007
    (out,) = harness("bytes").feed(Source(offered((b"\xff", None, 7)))).batches.values()
    assert out.payload.to_pylist() == [{"value": b"\xff"}]
    with pytest.raises(OperatorError, match="a message is not json"):
        harness("json", schema="id long").feed(Source(offered((b"x", None, 7))))


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"schema": "key long"}, BadSchema),
        ({"value": "text"}, BadSchema),
        ({"schema": None}, BadSchema),
        ({"value": "xml"}, WrongType),
        ({"host": "0.0.0.0"}, WrongType),
        ({"host": "0.0.0.0", "token": ""}, WrongType),
        ({"secret": ""}, WrongType),
        ({"path": "orders"}, WrongType),
        ({"port": 0}, WrongType),
    ],
)
def test_wrong_arguments(options, kind):
    with pytest.raises(kind) as caught:
        clonos.sources.webhook(**{"port": 8080, "schema": "id long", **options})
    assert caught.value.remedy


# --- kills ---------------------------------------------------------------------------------------

DRIVER = """
import sys
import clonos
from clonos.sources.inlet_feed import InletFeed
from clonos.sources.spool import Spool
source = clonos.sources.webhook(int(sys.argv[1]), schema="id long")
feed = InletFeed("hooks", source.inlet, Spool(sys.argv[2], 1), print, print)
feed.start()
print("listening", flush=True)
sys.stdin.read()
"""


def test_whatever_was_thanked_for_is_there_though_the_process_is_killed(tmp_path):
    port, uri = free_port(), str(tmp_path / "spool")
    thanked: list[int] = []
    sent = iter(range(10**9))
    is_over = threading.Event()

    def send(lock: threading.Lock) -> None:
        while not is_over.is_set():
            with lock:
                n = next(sent)
            while not is_over.is_set():  # with the same key until there are thanks
                try:
                    status = post(port, b'{"id": %d}' % n, "/", Idempotency_Key=f"k{n}")[0]
                except (OSError, http.client.HTTPException):
                    continue
                if status == 200:
                    thanked.append(n)
                    break

    lock = threading.Lock()
    senders = [threading.Thread(target=send, args=[lock]) for _ in range(4)]
    process = start(DRIVER, port, uri)
    for sender in senders:
        sender.start()
    for life in range(4):
        while len(thanked) < 40 * (life + 1):
            assert process.poll() is None
            time.sleep(0.01)
        kill(process)
        process = start(DRIVER, port, uri)
    is_over.set()
    for sender in senders:
        sender.join()
    process.communicate()
    found = spooled(uri)
    ids = [json.loads(row["value"])["id"] for row in found]
    assert set(thanked) <= set(ids)
    assert len(set(ids)) - len(set(thanked)) <= len(senders), "others were under way at the end"
    batch = pa.RecordBatch.from_pylist(found, schema=OFFERED)
    task = harness("json", schema="id long")
    (out,) = task.feed(Source(batch)).batches.values()
    assert sorted(out.payload.column("id").to_pylist()) == sorted(set(ids))


def test_what_slots_are_sent_has_no_secrets():
    source = clonos.sources.webhook(1, schema="id long", token="open")
    assert replace(source).__getstate__()["inlet"] is None


def test_a_shortage_of_files_names_the_port_that_the_system_has_chosen():
    handler = http.server.BaseHTTPRequestHandler
    said: list[str] = []
    options: Any = {"places": 1, "request_s": 1.0, "warn": said.append}
    with web.BoundedServer(("127.0.0.1", 0), handler, **options) as server:
        with no_more_files(), pytest.raises(OSError, match="Too many open files"):
            server.get_request()
        assert said[0].startswith(f"http://127.0.0.1:{server.server_port}: no connection can be")


def test_without_files_to_open_it_waits_and_does_not_spin(tmp_path):
    hook = Hook(tmp_path)
    with socket.socket() as sender:
        with no_more_files():
            began = time.process_time()
            sender.connect(("127.0.0.1", hook.port))
            body = b'{"id": 7}'
            head = f"POST /orders HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            sender.sendall(head + body)
            time.sleep(1.5)
            assert time.process_time() - began < 0.4
        (said,) = hook.said
        assert said.startswith("hooks: http://127.0.0.1:")
        assert "ulimit -n" in said
        sender.settimeout(30)
        assert sender.recv(100).startswith(b"HTTP/1.1 200")
    hook.feed.close()
