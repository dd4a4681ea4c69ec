"""What the adapters of a slot's ports tell its node, besides what comes on connections.

Everything that is done in the background names the *life* (or the ticket) it was for: a slot may
have become another task meanwhile, and then nobody wants to know.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from clonos.core.messages import Layer, LayerRef
from clonos.transport.events import ChannelClosed, ChannelOpened, ControlLost


@dataclass(frozen=True, slots=True)
class Fetched:
    """The layers that :meth:`~clonos.nodes.ports.Store.fetch` was asked for, in order."""

    ticket: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """... cannot be had."""

    ticket: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Stored:
    """A sealed layer is in the store."""

    life: int
    ref: LayerRef


@dataclass(frozen=True, slots=True)
class Wrote:
    """An output has its effect in the world."""

    life: int
    channel: int
    seq: int


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """A layer could not be stored, or an output not be written."""

    life: int
    error: Exception


@dataclass(frozen=True, slots=True)
class RowsReady:
    """A source has rows (or its end, or an error) for the task that reads it."""


Event = (
    ChannelOpened
    | ChannelClosed
    | ControlLost
    | Fetched
    | FetchFailed
    | Stored
    | Wrote
    | WorkFailed
    | RowsReady
)
"""What a slot's node hears, besides messages."""

Heard = Event | tuple[int, Any]
"""An event, or ``(conn_id, message)``: what a peer has said on a connection."""
