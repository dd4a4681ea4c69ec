"""The states of a stream, and its transitions."""

from __future__ import annotations

from enum import Enum
from typing import Final

from clonos.core.machine import Table


class State(Enum):
    """The states of one end of a stream."""

    OPENING = "opening"  # the peer is not authenticated yet
    PARTING = "parting"  # the same, but leaves once it is and the queue is written
    OPEN = "open"
    LEAVING = "leaving"  # writes its queue, reads nothing more
    LEFT = "left"  # has written everything, and waits for the peer to close
    ENDED = "ended"


class Change(Enum):
    """What happens to a stream."""

    PROVE = "proved"
    PART = "close, with something to say"
    CLOSE = "close"
    FLUSH = "flushed"
    END = "error, deadline or the other's end"


_ENDS: Final[dict[tuple[State, Change], State]] = {
    (state, Change.END): State.ENDED for state in State if state is not State.ENDED
}

STREAM: Final = Table(
    "one end of a stream",
    State.OPENING,
    {
        (State.OPENING, Change.PROVE): State.OPEN,
        (State.OPENING, Change.PART): State.PARTING,
        (State.PARTING, Change.PROVE): State.LEAVING,
        (State.OPENING, Change.CLOSE): State.LEAVING,
        (State.PARTING, Change.CLOSE): State.LEAVING,
        (State.OPEN, Change.CLOSE): State.LEAVING,
        (State.LEAVING, Change.FLUSH): State.LEFT,
        **_ENDS,
    },
)

LEAVERS: Final = frozenset((State.PARTING, State.LEAVING, State.LEFT))
"""States of a stream that was told to close."""
DEAF: Final = frozenset((State.LEAVING, State.LEFT, State.ENDED))
"""States of a stream that reads nothing more."""
