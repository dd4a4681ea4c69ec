"""Asking the banned-words service, never twice by accident."""

from __future__ import annotations

import http.client
import json
import os
import select
import socket
import threading
from collections.abc import Sequence
from typing import Any, Final, TypedDict
from urllib.parse import urlsplit

from clonos.errors import ClonosError

TIMEOUT_SECONDS: Final = 10.0


class _Connection(http.client.HTTPConnection):
    """Closes itself when its thread ends."""

    def __del__(self) -> None:
        self.close()


class _Kept(threading.local):
    """The connections that a thread keeps, by process (see :func:`_connection`) and host."""

    def __init__(self) -> None:
        self.connections: dict[tuple[int, str], _Connection] = {}


_kept = _Kept()


class ServiceError(ClonosError):
    """The service did not answer, or answered nonsense."""


class Answer(TypedDict):
    """Which of the words are banned, and the number under which the service wrote that down."""

    nonce: str
    banned: list[str]


def check_words(url: str, words: Sequence[str], key: str) -> Answer:
    """Ask which of `words` are banned at this moment.

    The connection is kept for the next call of the same thread. The request is sent once: it is
    tried again only if the connection was refused, so that the service has seen nothing of it.

    Parameters
    ----------
    url
        Of the service, such as ``"http://127.0.0.1:8080"``.
    key
        Idempotency key of this call.

    Raises
    ------
    ServiceError
        No answer, or not the promised one. The service may have written the call down.

    Examples
    --------
    >>> import tempfile
    >>> from examples.demo.process import ServerProcess
    >>> with ServerProcess("examples.demo.service", ["--journal", tempfile.mktemp()]) as server:
    ...     answer = check_words(server.url, ["so", "it", "goes"], key="job-3-17-0")
    >>> set(answer["banned"]) <= {"so", "it", "goes"}
    True
    """
    host = urlsplit(url).netloc
    body = json.dumps({"words": list(words)}, ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "Idempotency-Key": key}
    connection = _connection(host)
    try:
        connection.request("POST", "/banned", body, headers)
        response = connection.getresponse()
        content = response.read()
    except (OSError, http.client.HTTPException) as error:
        connection.close()
        raise ServiceError(
            f"the service gave no answer to {key}: {str(error) or type(error).__name__}",
            where=url,
            remedy="it may have seen the request: look for the key in its journal before you "
            "ask again",
        ) from error
    if response.status != http.client.OK:
        connection.close()
        raise ServiceError(
            f"the service answered {response.status}: {content[:200].decode(errors='replace')}",
            where=url,
            remedy="see that it is the banned-words service of this version",
        )
    return _answer(url, content)


def _answer(url: str, content: bytes) -> Answer:
    try:
        answer: Any = json.loads(content)
        return Answer(nonce=str(answer["nonce"]), banned=[str(word) for word in answer["banned"]])
    except (ValueError, KeyError, TypeError) as error:
        raise ServiceError(
            f"the service answered nonsense: {content[:200]!r}",
            where=url,
            remedy="see that it is the banned-words service of this version",
        ) from error


def _connection(host: str) -> _Connection:
    """Return an open connection of this thread to `host`."""
    # A child of a fork must not talk on its parent's socket.
    place = (os.getpid(), host)
    connection = _kept.connections.get(place)
    if connection is None:
        connection = _Connection(host, timeout=TIMEOUT_SECONDS)
        _kept.connections[place] = connection
    if connection.sock is not None and _is_stale(connection.sock):
        connection.close()
    if connection.sock is None:
        _connect(connection, host)
    return connection


def _is_stale(sock: socket.socket) -> bool:
    """Has the other end closed? Found out before anything is sent, when it can still be mended."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    return bool(poller.poll(0))


def _connect(connection: _Connection, host: str) -> None:
    try:
        try:
            connection.connect()
        except ConnectionRefusedError:
            connection.connect()
    except OSError as error:
        raise ServiceError(
            f"the service cannot be reached: {error}",
            where=host,
            remedy="see that it runs; it has not seen the request, so asking again is safe",
        ) from error
