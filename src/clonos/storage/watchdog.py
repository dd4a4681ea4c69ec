"""Says when something takes too long, although the thread that does it is stuck."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

LOOK_S: Final = 1.0
"""Time from one look to the next, at most."""


class Watchdog:
    """Watches what one thread does, act by act.

    Parameters
    ----------
    bark
        Called once for each act that takes too long, in a thread of the watchdog's own.
    hangs_s
        How long an act may take; it may be changed at any time.

    Examples
    --------
    >>> too_long = threading.Event()
    >>> dog = Watchdog(too_long.set, hangs_s=0.01)
    >>> dog.begin()
    >>> too_long.wait(60)
    True
    >>> dog.end()
    >>> dog.close()
    """

    def __init__(self, bark: Callable[[], object], hangs_s: float) -> None:
        self._bark, self.hangs_s = bark, hangs_s
        self._began_s: float | None = None
        self._more_s = 0.0
        self._over: threading.Event | None = None

    def begin(self, more_s: float = 0.0) -> None:
        """An act begins, which may take this much longer than others."""
        self._more_s, self._began_s = more_s, time.monotonic()
        if self._over is None:
            self._over = threading.Event()
            run = threading.Thread(
                target=self._run, args=(self._over,), name="clonos-watchdog", daemon=True
            )
            run.start()

    def end(self) -> None:
        """It has ended."""
        self._began_s = None

    def close(self) -> None:
        """Watch nothing, until something begins again."""
        if self._over is not None:
            self._over.set()
            self._over = None

    def _run(self, over: threading.Event) -> None:
        told_s: float | None = None
        while not over.wait(min(self.hangs_s / 10, LOOK_S)):
            began_s = self._began_s
            if began_s in (None, told_s):
                continue
            if time.monotonic() >= began_s + self.hangs_s + self._more_s:
                told_s = began_s
                self._bark()


class Cord:
    """Watches what one thread asks of a server, and cuts the connection if an answer takes too
    long: the thread then hears that it has ended.

    It has a descriptor of its own for the connection's socket, which therefore cannot mean another
    file when it is cut.

    Parameters
    ----------
    hangs_s
        See :class:`Watchdog`.

    Attributes
    ----------
    is_cut
        Whether a connection was cut; who makes the next one takes it back.
    """

    def __init__(self, hangs_s: float) -> None:
        self.watchdog = Watchdog(self.cut, hangs_s)
        self.is_cut = False
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def tie(self, descriptor: int) -> None:
        """There is a new connection; that before it was untied."""
        with self._lock:
            self._socket = socket.socket(fileno=os.dup(descriptor))

    def cut(self) -> None:
        """End the connection, if there is one: for other threads. What becomes of the request under
        way is unknown, as after a failure of the network."""
        with self._lock:
            if self._socket is not None:
                self.is_cut = True
                with suppress(OSError):  # it has just ended by itself
                    self._socket.shutdown(socket.SHUT_RDWR)

    def untie(self) -> None:
        """The connection is closed."""
        self.watchdog.close()
        with self._lock:
            if self._socket is not None:
                self._socket.close()
            self._socket = None
