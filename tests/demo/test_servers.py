"""The demo's servers are what the demo claims: fickle, honest in their journal, and mortal."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from examples.demo.client import ServiceError, check_words
from examples.demo.lines import LineServer, Wish
from examples.demo.process import ServerFailed, ServerProcess
from examples.demo.text import load_text
from examples.demo.words import words_of

WORDS = [f"word{n}" for n in range(300)]


@pytest.fixture
def journal(tmp_path):
    return tmp_path / "service.jsonl"


@pytest.fixture
def service(journal):
    with ServerProcess(
        "examples.demo.service", ["--port", "0", "--journal", str(journal)]
    ) as server:
        yield server


def entries(journal):
    return [json.loads(line) for line in journal.read_text().splitlines()]


def test_the_same_question_has_another_answer_each_time(service, journal):
    answers = [check_words(service.url, WORDS, f"k{i}") for i in range(5)]
    assert len({answer["nonce"] for answer in answers}) == 5
    assert len({tuple(answer["banned"]) for answer in answers}) == 5
    assert all(10 < len(answer["banned"]) < 75 for answer in answers)
    written = entries(journal)
    assert [entry["nonce"] for entry in written] == [answer["nonce"] for answer in answers]
    assert [entry["banned"] for entry in written] == [answer["banned"] for answer in answers]
    assert [entry["key"] for entry in written] == [f"k{i}" for i in range(5)]
    assert all(entry["words"] == WORDS for entry in written)


def test_a_known_key_has_its_answer_already(service, journal):
    first, other, again = (check_words(service.url, WORDS, key) for key in ("a", "b", "a"))
    assert again["banned"] == first["banned"] != other["banned"]
    assert again["nonce"] != first["nonce"], "the verdict tells requests apart"
    wrong = check_words(service.url, ["of", "another"], "a")
    assert wrong["banned"] == first["banned"], "whoever gives two requests one key has the harm"
    assert [entry["key"] for entry in entries(journal)] == ["a", "b", "a", "a"]


def test_threads_have_connections_of_their_own(service, journal):
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda n: check_words(service.url, WORDS[:5], f"k{n}"), range(200)))
    assert len({answer["nonce"] for answer in answers}) == 200
    times = [entry["time"] for entry in entries(journal)]
    assert times == sorted(set(times))


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/other", b"{}", "k"),
        ("/banned", b"{", "k"),
        ("/banned", b"[]", "k"),
        ("/banned", b'{"words": [1]}', "k"),
        ("/banned", b'{"words": []}', ""),
    ],
)
def test_nonsense_is_refused_and_not_written_down(service, journal, path, body, key):
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=5)
    connection.request("POST", path, body, {"Idempotency-Key": key} if key else {})
    assert connection.getresponse().status == 400
    connection.close()
    assert entries(journal) == []


def test_a_restarted_service_is_reached_without_sending_twice(journal):
    with ServerProcess("examples.demo.service", ["--journal", str(journal)]) as first:
        port = str(first.port)
        check_words(first.url, ["a"], "1")
        os.kill(first.pid, signal.SIGKILL)
    with pytest.raises(ServiceError, match="reached"):
        check_words(first.url, ["a"], "2")
    arguments = ["--port", port, "--journal", str(journal)]
    with ServerProcess("examples.demo.service", arguments) as second:
        check_words(second.url, ["a"], "3")
    assert [entry["key"] for entry in entries(journal)] == ["1", "3"]


class Stub:
    """A server that reads a request and then does what it is told."""

    def __init__(self, answer):
        self.requests = 0
        self._answer = answer
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65536)
                self.requests += 1
                if self._answer is None:
                    time.sleep(0.5)
                else:
                    connection.sendall(self._answer)

    def close(self):
        self._listener.close()


@pytest.mark.parametrize(
    ("answer", "match"),
    [
        (b"", "no answer"),
        (None, "no answer.*timed out"),
        (b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n", "500"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "nonsense"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "no answer"),
    ],
)
def test_a_request_that_may_have_been_seen_is_not_sent_again(answer, match, monkeypatch):
    monkeypatch.setattr("examples.demo.client.TIMEOUT_SECONDS", 0.2)
    stub = Stub(answer)
    with pytest.raises(ServiceError, match=match) as caught:
        check_words(stub.url, ["a"], "k")
    assert caught.value.remedy
    assert stub.requests == 1
    stub.close()


def gone(pid):
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            os.kill(pid, 0)
            with open(f"/proc/{pid}/stat") as file:  # noqa: PTH123 - not a path of ours
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize("module", ["examples.demo.service", "examples.demo.lines"])
def test_servers_die_with_their_parent(module, tmp_path):
    arguments = ["--journal", str(tmp_path / "j")] if module.endswith("service") else []
    code = (
        "import os, signal; from examples.demo.process import ServerProcess\n"
        f"print(ServerProcess({module!r}, {arguments!r}).pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    parent = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert gone(int(parent.stdout))


def test_a_server_that_cannot_start_is_a_typed_error(tmp_path):
    with pytest.raises(ServerFailed, match="before it listened"):
        ServerProcess("examples.demo.service", ["--journal", str(tmp_path / "no" / "folder")])


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("".join(f"line {n}\n" for n in range(10)))
    return str(path)


def receive(port, greeting=b"", lines=None):
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(greeting)
        with connection.makefile("r") as file:
            if lines is None:
                return [line.rstrip("\n") for line in file]
            return [file.readline().rstrip("\n") for _ in range(lines)]


def test_lines_are_sent_until_somebody_says_so(text, tmp_path):
    with ServerProcess("examples.demo.lines", [text, "--until", str(tmp_path / "tap")]) as server:
        assert receive(server.port, lines=25) == [f"line {n % 10}" for n in range(25)]
        (tmp_path / "tap").touch()
        rest = receive(server.port, b"RESUME 25\n")
        assert (25 + len(rest)) % 10 == 0, "the last pass is whole"
        assert rest == [f"line {n % 10}" for n in range(25, 25 + len(rest))]
        assert receive(server.port, b"RESUME 25\n") == rest, "there are as many for everybody"


def test_lines_count_as_sent_although_the_connection_broke(tmp_path):
    """The client may have them all, although the server knows of none."""
    server = LineServer([str(n) for n in range(10)], 1, 0, 1, until=tmp_path / "tap")
    near, far = socket.socketpair()
    far.close()
    with server._listener, near, pytest.raises(BrokenPipeError):
        server._send(near, Wish(0, 0, 1))
    (tmp_path / "tap").touch()
    assert server._take(25, 1) == range(25, 1000)


def test_lines_are_sent_repeated_and_resumed(text):
    with ServerProcess("examples.demo.lines", [text, "--repeat", "2"]) as server:
        everything = [f"line {n % 10}" for n in range(20)]
        assert receive(server.port) == everything
        assert receive(server.port, b"\n") == everything
        assert receive(server.port, b"RESUME 15\n") == everything[15:]
        assert receive(server.port, b"RESUME 20\n") == []
        parts = [receive(server.port, b"RESUME 2 PART %d/3\n" % part) for part in range(3)]
        assert parts == [everything[6 + part :: 3] for part in range(3)]
        assert receive(server.port, b"PART 1/2\n") == everything[1::2]
        for wrong in (b"GET / HTTP/1.1\n", b"RESUME x\n", b"PART 3/3\n", b"x" * 200):
            assert receive(server.port, wrong, lines=1) == ["expected: RESUME <n> PART <i>/<k>"]


def test_parts_are_dealt_out_in_order(text):
    with ServerProcess("examples.demo.lines", [text, "--clients", "2"]) as server:
        assert receive(server.port)[:2] == ["line 0", "line 2"]
        assert receive(server.port)[:2] == ["line 1", "line 3"]


def test_the_rate_goes_on_while_nobody_reads(text):
    with ServerProcess("examples.demo.lines", [text, "--repeat", "0", "--rate", "50"]) as server:
        begin = time.monotonic()
        receive(server.port, lines=40)
        taken = time.monotonic() - begin
        assert 0.6 < taken < 4.0
        time.sleep(1.2)
        begin = time.monotonic()
        receive(server.port, b"RESUME 40\n", lines=40)
        assert time.monotonic() - begin < 0.4


def test_the_text_is_real_and_large():
    lines = load_text()
    assert sum(len(line) + 1 for line in lines) > 1_000_000
    words = [word for line in lines for word in words_of(line)]
    assert len(words) > 280_000
    assert len(set(words)) > 9_000


def test_text_files_plain_or_packed(tmp_path):
    import gzip

    content = b"one\r\ntwo\x0c still\n\nfour"
    plain, packed = tmp_path / "t.txt", tmp_path / "t.gz"
    plain.write_bytes(content)
    packed.write_bytes(gzip.compress(content + b"\n"))
    assert load_text(plain) == load_text(packed) == ["one", "two\x0c still", "", "four"]
