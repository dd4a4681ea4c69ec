"""A slot's pulse: it tells the coordinator that the slot lives, and at once when it does not.

Heartbeats come from a thread with its own connection, so that a long step does not look like a
death. The thread also has its own *table of open files* (``unshare(CLONE_FILES)``), with only this
connection in it. When a process is killed, its threads end one by one. The last one frees the
memory, which takes long if there is much, and its files stay open until then. As there are two
tables and only one last thread, either the control stream or the pulse ends at once, whatever the
size of the state. The pulse also ends if a child of the process has inherited the other files and
lives on.

Python's cycle collector runs in whatever thread allocates, so now and then in this one. There a
finalizer closes a descriptor number that means something else. So the connection has a high number,
which no such file has. It remains that a file that was left to the collector may stay open.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import resource
import socket
import threading
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

from clonos.errors import ClonosError
from clonos.transport.events import WIRE, Heartbeat
from clonos.transport.frames import HEAD, FrameReader
from clonos.transport.secret import GREETING_BYTES_MAX, Greeting, JobSecret
from clonos.transport.tls import Keys

CONNECT_S: Final = 5.0
"""A coordinator that does not answer within this time is asked again."""

_CLONE_FILES: Final = 0x400
_FIRST_FILE: Final = 3  # after standard input, output and error
_FILES_MAX: Final = 1 << 20
_FAR_MAX: Final = 1 << 14  # the system's table of files is as long as the highest number in it

Progress = Callable[[], tuple[int, int, str, str]]


class Pulse:
    """Beats in a thread of its own from :meth:`start` until :meth:`stop`.

    Parameters
    ----------
    nonce
        The nonce of the slot's registration, to which the beats belong.
    progress
        Called (from the thread) for the other fields of every Heartbeat.
    keys
        To encrypt what it says.
    """

    def __init__(
        self,
        secret: JobSecret,
        greet: Callable[[], Greeting],
        nonce: str,
        progress: Progress,
        heartbeat_s: float,
        keys: Keys | None,
    ) -> None:
        self._secret = secret
        self._greet = greet
        self._nonce = nonce
        self._progress = progress
        self._heartbeat_s = heartbeat_s
        self._keys = keys
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start (and end at once, if already stopped)."""
        threading.Thread(target=self._run, name="clonos-pulse", daemon=True).start()

    def stop(self) -> None:
        """Ask the thread to end; does not wait."""
        self._stopped.set()

    def _run(self) -> None:
        self._is_alone = _leave_files()
        while not self._stopped.is_set():
            with contextlib.suppress(OSError, ClonosError):
                self._beat_while_connected()
            self._stopped.wait(self._heartbeat_s)

    def _beat_while_connected(self) -> None:
        greeting = self._greet()
        peer = urlsplit(greeting.audience)
        address = peer.hostname or "", peer.port or 0
        with contextlib.ExitStack() as opened:
            connection = socket.create_connection(address, CONNECT_S)
            if self._is_alone:
                connection = _moved_far(connection)
            opened.enter_context(connection)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._keys is not None:
                encrypted = self._keys.wrap(connection, peer.username or "")
                connection = opened.enter_context(encrypted)
            sealed = self._secret.seal(greeting)
            connection.sendall(_framed(sealed))
            if not self._secret.is_answer(sealed, _first_frame(connection)):
                return
            while True:
                beat = Heartbeat(self._nonce, *self._progress())
                connection.sendall(_framed(WIRE.encode(beat)))
                if self._stopped.wait(self._heartbeat_s):
                    return


def _leave_files() -> bool:
    """Give this thread an empty table of open files. Return whether it has one.

    From here on a descriptor means something else in this thread than in the others: files opened
    there must not be used or closed here, and the other way round.
    """
    with contextlib.suppress(
        AttributeError, OSError
    ):  # not Linux: the pulse works, but is not as quick
        if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_FILES) == 0:
            os.closerange(_FIRST_FILE, _FILES_MAX)
            return True
    return False


def _moved_far(connection: socket.socket) -> socket.socket:
    """Return the same connection at a high descriptor number, which other threads would reach
    last."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    number = min(limit if limit > 0 else _FAR_MAX, _FAR_MAX) - 1
    with connection:
        moved = socket.socket(fileno=fcntl.fcntl(connection, fcntl.F_DUPFD_CLOEXEC, number))
    moved.settimeout(CONNECT_S)
    return moved


def _framed(message: bytes) -> bytes:
    return HEAD.pack(len(message), 0) + message


def _first_frame(connection: socket.socket) -> bytes:
    reader = FrameReader(untrusted=GREETING_BYTES_MAX)
    frames = reader.receive(connection)
    while frames == []:
        frames = reader.receive(connection)
    return frames[0][0] if frames else b""
