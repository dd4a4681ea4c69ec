"""Channels between two tasks of one process: items are passed by reference.

There is no socket, no encoding and no copy; everything else is as on a network connection:
handshake, numbers, digests, log entries, back-pressure. Messages wait in the queue of the slot's
node, so no task calls another. Both tasks share each item, so nobody may change it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, Literal

from clonos.core.plan import Incarnation
from clonos.nodes.events import Heard
from clonos.transport.events import ChannelClosed, ChannelOpened


class LocalEnd:
    """One end of a local connection (a :class:`~clonos.transport.events.Connection`)."""

    stood = True

    def __init__(
        self,
        conn_id: int,
        channel: int,
        far: Literal["sender", "receiver"],
        put: Callable[[Heard], None],
    ) -> None:
        self.conn_id = conn_id
        self._channel, self._far, self._put = channel, far, put

    def send(self, message: Any) -> None:
        self._put((self.conn_id, message))

    def close(self) -> None:
        self._put(ChannelClosed(self._channel, self.conn_id, self._far))


class Local:
    """The connections within one process.

    Parameters
    ----------
    put
        Takes events and messages, in their order.
    """

    def __init__(self, put: Callable[[Heard], None]) -> None:
        self._put = put
        self._conns = count(-1, -1)  # the network's are positive

    def connect(
        self, channel: int, sender_incarnation: Incarnation, receiver_incarnation: Incarnation
    ) -> LocalEnd:
        """Open `channel`; both ends have the same number."""
        conn = next(self._conns)
        incoming = LocalEnd(conn, channel, "sender", self._put)
        lives = sender_incarnation, receiver_incarnation
        self._put(ChannelOpened(channel, conn, *lives, incoming))
        return LocalEnd(conn, channel, "receiver", self._put)
