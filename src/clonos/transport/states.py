"""The states of a stream, and what leads from one to the other."""

from __future__ import annotations

from enum import Enum
from typing import Final

from clonos.core.machine import Table


class State(Enum):
    """Of one end of a stream."""

    OPENING = "opening"  # the one side is not sure of the other yet
    PARTING = "parting"  # the same, and leaves once it is and has said what it has to
    OPEN = "open"
    LEAVING = "leaving"  # writes what is queued, hears nothing more
    LEFT = "left"  # has written all, and waits for the other side to close
    ENDED = "ended"


class Change(Enum):
    """What happens to it."""

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
"""States of a stream that hears nothing more."""
