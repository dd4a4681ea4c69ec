"""A queue from other threads to a loop that sleeps on its sockets."""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from typing import Any


class Inbox:
    """A queue that wakes the plane whose loop empties it (:meth:`Plane.poll`).

    Examples
    --------
    >>> inbox = Inbox()
    >>> inbox.put("done")
    >>> inbox.take()
    ['done']
    >>> inbox.close()
    """

    def __init__(self) -> None:
        self._things: deque[Any] = deque()
        self._asleep = False
        self._ear, self._bell = socket.socketpair()
        self._ear.setblocking(False)
        self._bell.setblocking(False)

    def put(self, thing: Any) -> None:
        """Hand `thing` over; for any thread."""
        self._things.append(thing)
        if self._asleep:  # ringing costs as much as a message
            self.ring()

    def ring(self) -> None:
        """Wake the loop."""
        self._asleep = False
        with contextlib.suppress(OSError):  # full: it rings already; closed: nobody listens
            self._bell.send(b"!")

    def take(self) -> list[Any]:
        """Return everything queued; for the loop's thread."""
        things = []
        while self._things:
            things.append(self._things.popleft())
        return things

    def fileno(self) -> int:
        """The descriptor that becomes readable when the bell rings."""
        return self._ear.fileno()

    def may_sleep(self) -> bool:
        """Announce a sleep, so that :meth:`put` rings from now on. False if there is work."""
        self._asleep = True
        return not self._things

    def awake(self) -> None:
        """End the sleep."""
        self._asleep = False

    def silence(self) -> None:
        """Clear the wake-up."""
        with contextlib.suppress(BlockingIOError):
            self._ear.recv(4096)

    def close(self) -> None:
        """Nobody listens any more; what is put stays for :meth:`take`."""
        self._ear.close()
        self._bell.close()
