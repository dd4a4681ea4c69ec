"""The HTTP sink: what is sent, under which names, and what becomes of each answer."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

import clonos
from clonos.errors import NameConflict, RowRefused, SinkFailed, StoreAway, WrongType
from clonos.sinks import http_writer
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.storage.retry import Retry
from clonos.storage.retry_after import retry_after_s

LANE = Lane("run", "out / ü", 3, 7)


class Service:
    """A service that keeps names: what it has seen under one changes nothing.

    Attributes
    ----------
    requests
        All that came: name, content, headers.
    answers
        What to answer instead, first come first served: status and headers; None: nothing at all.
    hints
        The status codes of informational answers before each answer.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, bytes, Any]] = []
        self.answers: list[tuple[int, dict[str, str]] | None] = []
        self.hints: tuple[int, ...] = ()
        self.refuses: Callable[[Any], bool] = lambda row: False
        self.rows: dict[str, list[Any]] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/rows?secret=x"

    @property
    def names(self) -> list[str]:
        return [name for name, _, _ in self.requests]

    @property
    def taken(self) -> list[Any]:
        return [row for rows in self.rows.values() for row in rows]

    def take(self, name: str, content: bytes) -> int:
        text = content.decode()
        found = json.loads(text) if text[0] == "[" else [json.loads(t) for t in text.splitlines()]
        if any(self.refuses(row) for row in found):
            return 422
        self.rows.setdefault(name, found)
        return 200

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        service = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                content = self.rfile.read(int(self.headers["Content-Length"]))
                name = self.headers["Idempotency-Key"]
                service.requests.append((name, content, self.headers))
                answer = service.answers.pop(0) if service.answers else (0, {})
                if answer is None:
                    self.close_connection = True
                    return
                for hint in service.hints:
                    self.send_response_only(hint)
                    self.send_header("Link", "</style.css>; rel=preload")
                    self.end_headers()
                status, headers = answer
                self.send_response(status or service.take(name, content))
                for key, value in headers.items():
                    self.send_header(key, value)
                self.send_header("Content-Length", "3")
                self.end_headers()
                self.wfile.write(b"why")

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


@pytest.fixture
def service():
    made = Service()
    yield made
    made.close()


def writer(service: Service, lane: Lane = LANE, **options: Any) -> Any:
    store = clonos.sinks.http(service.url, **options).store
    assert store is not None
    return store.writer(lane)


def output(seq: int, *numbers: int) -> Output:
    return Output(OutputKey(0, seq), pa.RecordBatch.from_pydict({"n": list(numbers)}))


def numbers(service: Service) -> list[int]:
    return [row["n"] for row in service.taken]


def test_rows_are_sent_in_order_under_names_that_say_which_they_are(service):
    one = writer(service, rows_per_request=2, headers={"Authorization": "Bearer y"})
    one.write([output(1, 0, 1, 2), output(2, 3)])
    start = "run/out%20/%20%C3%BC/3/0"
    assert service.names == [f"{start}/1/0-2", f"{start}/1/2-3", f"{start}/2/0-1"]
    assert numbers(service) == [0, 1, 2, 3]
    headers = service.requests[0][2]
    assert (headers["Authorization"], headers["Content-Type"]) == ("Bearer y", "application/json")
    one.close()


@pytest.mark.parametrize(
    "start",
    [
        b"HTTP/1.1 200 OK\r\nX-Slow: ",
        b"HTTP/1.1 103 Early\r\n\r\nHTTP/1.1 102 Wait\r\nX-Slow: ",
        b"HTTP/1.1 503 No\r\nContent-Length: 400\r\n\r\n",
    ],
)
def test_an_answer_that_comes_bit_by_bit_is_none(start):
    """A limit for each read alone would let it hold the task for ever."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            with listener.accept()[0] as connection, suppress(OSError):
                connection.recv(1 << 16)
                connection.sendall(start)
                for _ in range(400):
                    connection.sendall(b"x")
                    time.sleep(0.05)
                connection.sendall(b"\r\n\r\n")

        thread = threading.Thread(target=drip)
        thread.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/"
        store = clonos.sinks.http(url, timeout="300 ms").store
        one: Any = store.writer(LANE)  # type: ignore[union-attr]
        began_s = time.monotonic()
        with suppress(StoreAway):  # what has come of it may have said that the rows were taken
            one.write([output(1, 1)])
        assert time.monotonic() - began_s < 10
        one.close()
        thread.join()


@pytest.mark.parametrize("hints", [(100,), (102,), (103,), (102, 100, 103, 199, 103)])
def test_informational_answers_are_none(service, hints):
    """RFC 9110, 15.2: a client must be able to read any number of them before the final answer."""
    service.hints = hints
    one = writer(service)
    one.write([output(1, 1)])
    service.answers = [(503, {"Retry-After": "7"})]
    with pytest.raises(StoreAway, match="answers 503 why") as caught:
        one.write([output(2, 2)])
    assert caught.value.after_s == 7.0
    one.write([output(2, 2)])
    assert numbers(service) == [1, 2]
    one.close()


def test_a_service_may_not_change_the_protocol(service):
    one = writer(service)
    service.answers = [(101, {})]
    with pytest.raises(SinkFailed, match="answers 101"):
        one.write([output(1, 1)])
    one.close()


@pytest.mark.parametrize(
    ("body", "contents"),
    [
        ("array", [b'[{"n":1},{"n":2}]']),
        ("lines", [b'{"n":1}\n{"n":2}\n']),
        ("object", [b'{"n":1}', b'{"n":2}']),
    ],
)
def test_bodies(service, body, contents):
    one = writer(service, body=body)
    one.write([output(1, 1, 2)])
    assert [content for _, content, _ in service.requests] == contents
    one.close()


def test_a_group_that_is_tried_again_goes_on_where_it_was(service):
    one = writer(service, rows_per_request=1)
    service.answers = [(200, {}), (503, {})]
    group = [output(1, 1, 2, 3)]
    with pytest.raises(StoreAway, match="the service answers 503 why"):
        one.write(group)
    one.write(group)
    one.write(group)  # a group twice changes nothing
    assert [name.rpartition("/")[2] for name in service.names] == ["0-1", "1-2", "1-2", "2-3"]
    one.close()


def test_another_life_sends_the_same_names_and_the_service_has_each_row_once(service):
    first = writer(service, rows_per_request=2)
    first.write([output(1, 1, 2, 3)])
    first.close()
    second = writer(service, rows_per_request=2)
    second.write([output(1, 1, 2, 3), output(2, 4)])
    second.close()
    assert service.names == [*service.names[:2], *service.names[:2], service.names[-1]]
    assert numbers(service) == [1, 2, 3, 4]


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503, 504])
def test_what_passes_is_tried_again(service, status):
    one = writer(service)
    service.answers = [(status, {"Retry-After": "7"}), None, None]
    with pytest.raises(StoreAway) as caught:
        one.write([output(1, 1)])
    assert caught.value.after_s == 7.0
    with pytest.raises(StoreAway, match="no answer") as caught:
        one.write([output(1, 1)])
    assert caught.value.after_s == 0.0
    assert "secret" not in str(caught.value)
    one.write([output(1, 1)])
    assert numbers(service) == [1]
    one.close()


def test_a_name_that_is_under_way_for_too_long_is_a_conflict(service, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(http_writer, "time", SimpleNamespace(monotonic=lambda: now[0]))
    one = writer(service, rows_per_request=1, under_way="60 seconds")

    def answered(status: int, after_s: float) -> None:
        now[0] += after_s
        service.answers = [(status, {})]
        with pytest.raises(StoreAway, match=f"answers {status}"):
            one.write([output(1, 1, 2)])

    answered(409, 0)
    answered(503, 59)
    one.write([output(1, 1)])
    answered(409, 3)  # of another name: its time begins now
    answered(409, 59)
    now[0] += 2
    service.answers = [(409, {})]
    with pytest.raises(NameConflict, match=r"for 61 s .* answers 409 why") as caught:
        one.write([output(1, 1, 2)])
    assert "under_way" in caught.value.remedy
    assert isinstance(caught.value, SinkFailed)
    one.close()


def test_a_conflict_is_no_dead_letter_and_has_no_halves(service, tmp_path):
    one = writer(service, dead_letters=str(tmp_path), under_way="0 seconds")
    service.answers = [(409, {}), (409, {})]
    with pytest.raises(NameConflict):
        one.write([output(1, 1, 2)])
    assert len(service.requests) == 1
    assert not list(tmp_path.iterdir())
    one.close()


def test_a_pause_is_as_long_as_the_service_asks_for():
    waited: list[float] = []
    away = StoreAway("busy")
    away.after_s = 42.0

    def attempt() -> str:
        if len(waited) < 2:
            away.after_s /= len(waited) * 1000 + 1
            raise away
        return "done"

    assert Retry("rows", waited.append, print)(attempt) == "done"
    assert waited == [42.0, 0.2]
    assert 0 < retry_after_s(formatdate(4102444800, usegmt=True)) <= 300


@pytest.mark.parametrize(
    "said",
    [
        "Fri, 31 Dec 99999999999999999999 23:59:59 GMT",
        "Fri, 31 Dec 9999 23:59:59 -9999",
        "Mon, 01 Jan 0001 00:00:00 +2359",
        "9" * 5000,
        "Fri, 31 Dec 1999 23:59:99999999999999999999 GMT",
        "\x00",
    ],
)
def test_whatever_a_service_says_of_a_pause_it_is_none_or_one(service, said):
    assert 0 <= retry_after_s(said) <= 300


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York", "UTC"])
def test_a_date_without_a_zone_is_meant_for_greenwich(monkeypatch, zone):
    """The form of C's asctime, which old servers send; and whoever hears it may be anywhere."""
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        assert 50 < retry_after_s(time.asctime(time.gmtime(time.time() + 60))) <= 60
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_connection_that_the_server_has_closed_is_no_outage(service):
    one = writer(service)
    service.answers = [(200, {}), None]  # in answer to the second, it hangs up
    one.write([output(1, 1)])
    one.write([output(2, 2)])
    assert len(service.requests) == 3
    assert service.names[1] == service.names[2]
    one.close()


@pytest.mark.parametrize("status", [301, 401, 403, 404, 405, 501])
def test_what_is_not_due_to_rows_fails_the_job_also_with_dead_letters(service, status, tmp_path):
    one = writer(service, dead_letters=str(tmp_path))
    service.answers = [(status, {})]
    with pytest.raises(SinkFailed, match=f"answers {status} why") as caught:
        one.write([output(1, 1)])
    assert not isinstance(caught.value, RowRefused)
    assert not list(tmp_path.iterdir())
    one.close()


def test_a_row_that_is_refused_is_found_and_fails_the_job(service):
    one = writer(service)
    service.refuses = lambda row: row["n"] == 5
    with pytest.raises(RowRefused, match=r'422 why \(for {"n":5}\)') as caught:
        one.write([output(1, *range(10))])
    assert "dead_letters" in caught.value.remedy
    assert numbers(service) == [0, 1, 2, 3, 4]
    one.close()


@pytest.mark.parametrize("operator", ["out / ü", "注文" * 50])
def test_rows_that_are_refused_are_kept_as_dead_letters_once(service, tmp_path, operator):
    service.refuses = lambda row: row["n"] in (2, 5)
    lane = replace(LANE, operator=operator)
    for _ in range(2):  # two lives
        one = writer(service, lane, dead_letters=str(tmp_path), rows_per_request=4)
        one.write([output(1, *range(10))])
        one.close()
    assert sorted(numbers(service)) == [0, 1, 3, 4, 6, 7, 8, 9]
    letters = [json.loads(path.read_text()) for path in sorted(tmp_path.iterdir())]
    assert [(found["row"], found["status"], found["answer"]) for found in letters] == [
        ({"n": 2}, 422, "why"),
        ({"n": 5}, 422, "why"),
    ]
    assert {found["key"] for found in letters} <= set(service.names)


def test_dead_letters_that_cannot_be_written_are_said(service, tmp_path):
    (tmp_path / "file").write_text("")
    service.refuses = lambda row: True
    one = writer(service, dead_letters=str(tmp_path / "file"))
    with pytest.raises(SinkFailed, match="dead letters cannot be written"):
        one.write([output(1, 1)])
    one.close()


@pytest.mark.parametrize(
    "options",
    [
        {"url": "ftp://a"},
        {"url": "https://"},
        {"url": "https://me:secret@a/b"},
        {"url": "https://a:port/b"},
        {"url": "https://a:99999/b"},
        {"url": "https://[::1/b"},
        {"url": "https://a/b c"},
        {"url": "https://a b/c"},
        {"url": "https://a/ü"},
        {"url": "https://a/b\nc"},
        {"headers": {"a": "語"}},
        {"body": "xml"},
        {"rows_per_request": 0},
        {"headers": {"a\n": "b"}},
        {"headers": {"a": "b\r\nc: d"}},
        {"headers": {"Content-Length": "3"}},
        {"headers": {"n": 1}},
        {"key": "no header"},
    ],
)
def test_wrong_arguments(options):
    with pytest.raises(WrongType) as caught:
        clonos.sinks.http(**{"url": "https://a/b", **options})
    assert caught.value.remedy
