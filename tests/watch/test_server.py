"""The page's server: for whoever knows the secret, on this machine, and for no more at a time."""

from __future__ import annotations

import json
import socket
import stat
import threading
from http.client import HTTPConnection
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit

import pytest

from clonos.cli import main
from clonos.errors import NothingToWatch, PortTaken
from clonos.watch import server as served
from clonos.watch.command import address, look
from clonos.watch.server import ADDRESS_FILE, HOST, WatchServer
from tests.watch import jobs

SHOWN = jobs.recovering()


@pytest.fixture
def server(tmp_path):
    made = WatchServer(lambda: SHOWN, 0, tmp_path)
    made.start()
    yield made
    made.close()


def get(url, path="", host=None):
    parts = urlsplit(url)
    connection = HTTPConnection(HOST, parts.port, timeout=10)
    named = {} if host is None else {"Host": host}
    connection.request("GET", f"{parts.path}{path}", headers=named)
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer, content


def test_it_serves_a_page_its_picture_and_json(server):
    answer, page = get(server.url)
    assert answer.status == 200
    assert "<title>fraud</title>" in page
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    (nonce,) = {part for part in page.split('"') if f"'nonce-{part}'" in policy}
    assert page.count(nonce) == 2, "of its style and its script"
    assert get(server.url)[0].headers["Content-Security-Policy"] != policy, "another one each time"
    assert get(server.url, "picture")[1].startswith('<div class="clonos">')
    assert json.loads(get(server.url, "snapshot")[1]) == json.loads(json.dumps(SHOWN))


@pytest.mark.parametrize("path", ["/", "/snapshot", "/wrong/snapshot", "/wrong/", "/%s/other"])
def test_without_the_secret_there_is_nothing(server, path):
    parts = urlsplit(server.url)
    secret = parts.path.strip("/")
    answer, content = get(f"http://{HOST}:{parts.port}{path.replace('%s', secret)}")
    assert (answer.status, content) == (404, "there is nothing here\n")


def test_a_name_that_leads_to_us_is_not_ours(server):
    """A page of a stranger's, whose name suddenly means this machine, asks with that name."""
    assert get(server.url, host="evil.example:80")[0].status == 404
    assert get(server.url, host=f"localhost:{urlsplit(server.url).port}")[0].status == 200


def test_it_listens_on_this_machine_alone(server):
    assert server._server.server_address[0] == "127.0.0.1"


def test_a_port_that_is_taken_is_an_error_with_a_remedy(server, tmp_path):
    with pytest.raises(PortTaken, match="ui_port=0"):
        WatchServer(lambda: SHOWN, urlsplit(server.url).port, tmp_path)
    with pytest.raises(PortTaken):
        WatchServer(lambda: SHOWN, 70_000, tmp_path)


def test_whoever_follows_gets_the_port_of_a_page_that_was_just_looked_at(tmp_path):
    """A browser does so every second, and its closed connections linger for a minute."""
    first = WatchServer(lambda: SHOWN, 0, tmp_path)
    first.start()
    with socket.create_connection((HOST, first.port)) as client:
        client.sendall(
            f"GET {urlsplit(first.url).path} HTTP/1.0\r\nHost: {HOST}:1\r\n\r\n".encode()
        )
        with client.makefile("rb") as answer:
            assert b"200 OK" in answer.readline()
            answer.read()  # to its end: the server has closed the connection first
    first.close()
    second = WatchServer(lambda: SHOWN, first.port, tmp_path)
    second.start()
    assert get(second.url)[0].status == 200
    second.close()


def test_who_comes_beyond_the_limit_is_turned_away(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "REQUESTS_MAX", 2)
    inside, go_on = threading.Semaphore(0), threading.Event()

    def slow():
        inside.release()
        assert go_on.wait(60)
        return SHOWN

    server = WatchServer(slow, 0, tmp_path)
    server.start()
    found: list[int] = []
    waiting = [
        threading.Thread(target=lambda: found.append(get(server.url, "snapshot")[0].status))
        for _ in range(2)
    ]
    for thread in waiting:
        thread.start()
    for _ in waiting:
        assert inside.acquire(timeout=60)
    with socket.create_connection((HOST, urlsplit(server.url).port or 0), timeout=60) as third:
        assert third.recv(1) == b""
    go_on.set()
    for thread in waiting:
        thread.join(60)
    assert found == [200, 200]
    server.close()


def test_who_gets_no_thread_leaves_the_place_to_others(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "REQUESTS_MAX", 1)
    server = WatchServer(lambda: SHOWN, 0, tmp_path)
    server.start()

    def refuse(*_):
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as scarce:
        scarce.setattr(ThreadingMixIn, "process_request", refuse)
        with socket.create_connection((HOST, server.port), timeout=60) as unlucky:
            assert unlucky.recv(1) == b""
    assert get(server.url)[0].status == 200
    server.close()


def test_a_request_that_never_ends_does_not_keep_its_place(tmp_path, monkeypatch):
    monkeypatch.setattr(served, "REQUESTS_MAX", 1)
    monkeypatch.setattr(served, "REQUEST_S", 0.2)
    monkeypatch.setattr(served._Request, "timeout", None)  # as if a byte came now and then
    server = WatchServer(lambda: SHOWN, 0, tmp_path)
    server.start()
    with socket.create_connection((HOST, urlsplit(server.url).port or 0), timeout=10) as slow:
        slow.sendall(b"GET /")
        assert slow.recv(1) == b""
    server.close()


def test_its_address_is_noted_for_this_user_while_it_runs(tmp_path):
    server = WatchServer(lambda: SHOWN, 0, tmp_path)
    note = tmp_path / ADDRESS_FILE
    note.touch()  # of a driver that was killed, from a backup
    note.chmod(0o644)
    server.start()
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert address(str(tmp_path)) == server.url
    server.close()
    assert not note.exists()
    with pytest.raises(NothingToWatch, match="does not answer"):
        look(server.url)
    with pytest.raises(NothingToWatch, match="start the job with ui_port=0"):
        address(str(tmp_path))


def test_the_command_shows_it_once(server, tmp_path, capsys):
    assert main(["watch", str(tmp_path), "--once"]) == 0
    assert "payments[0]" in capsys.readouterr().out
    assert main(["watch", server.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "fraud"


def test_the_command_says_what_is_wrong(server, capsys):
    assert main(["watch", "http://elsewhere:80/x/"]) == 2
    assert "ssh -L" in capsys.readouterr().err
    assert main(["watch", server.url.replace(server._secret, "other")]) == 2
    assert "this is not the URL of a running job" in capsys.readouterr().err


def test_the_command_follows_a_job_to_its_end(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("clonos.watch.command.EVERY_S", 0.0)
    states = iter([True, True, False])
    shown = WatchServer(lambda: {**SHOWN, "is_running": next(states)}, 0, tmp_path)
    shown.start()
    assert main(["watch", str(tmp_path)]) == 0
    assert "the job has ended" in capsys.readouterr().out
    shown.close()


def test_what_is_shown_does_not_command_the_terminal(tmp_path, capsys):
    """A warning may have values of rows."""
    said: Any = {**SHOWN, "warnings": ["for \x1b]0;owned\x07 \x9b31m\nmore", "größer"]}
    server = WatchServer(lambda: said, 0, tmp_path)
    server.start()
    assert main(["watch", str(tmp_path), "--once"]) == 0
    server.close()
    shown = capsys.readouterr().out
    assert "owned" in shown
    assert "größer" in shown
    assert not {"\x1b", "\x07", "\x9b"} & set(shown)


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:1/x", "http://driver:1/x", "http://127.0.0.1:1@driver:1/x"]
)
def test_a_url_that_is_no_page_of_a_job_is_refused(capsys, url):
    assert main(["watch", url]) == 2
    assert f"http://{HOST}:PORT/..., but this URL is not" in capsys.readouterr().err
