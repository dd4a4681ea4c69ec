"""What a plane needs of the operating system: sockets, a selector, a clock.

Everything else in this folder is the same in production and in the simulator, which has its own
sockets (:mod:`clonos.simulator.world.sockets`): these split and delay data, fill up, break, and
fall silent.
"""

from __future__ import annotations

import selectors
import socket
import time
from typing import Final, Protocol

BACKLOG: Final = 1024
"""Connections that the system accepts while the loop is busy with a step."""


class Sockets(Protocol):
    """Makes a plane's sockets, all of them non-blocking."""

    def listen(self, host: str) -> socket.socket:
        """A socket that accepts connections at some free port of this interface."""

    def connect(self, host: str, port: int) -> tuple[socket.socket, int]:
        """A socket that is being connected, and the system's answer (an ``errno``)."""

    def selector(self) -> selectors.BaseSelector:
        """A selector for such sockets."""

    def now_s(self) -> float:
        """Monotonic seconds."""


class SystemSockets:
    """The sockets of the operating system."""

    def listen(self, host: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family, backlog=BACKLOG)
        listener.setblocking(False)
        return listener

    def connect(self, host: str, port: int) -> tuple[socket.socket, int]:
        connection = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
        connection.setblocking(False)
        return connection, connection.connect_ex((host, port))

    def selector(self) -> selectors.BaseSelector:
        return selectors.DefaultSelector()

    def now_s(self) -> float:
        return time.monotonic()


SYSTEM: Final = SystemSockets()
