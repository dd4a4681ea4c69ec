"""A connection of a node that a test plays with."""

from __future__ import annotations

from typing import Any


class Link:
    """The node's end of a stream: what is sent stays here."""

    stood = True

    def __init__(self, conn_id: int) -> None:
        self.conn_id = conn_id
        self.sent: list[Any] = []
        self.is_closed = False

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.is_closed = True
