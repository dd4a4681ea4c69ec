"""The phases of the driver."""

from __future__ import annotations

from enum import Enum
from typing import Final

from clonos.core.machine import Table


class Phase(Enum):
    """The phases of the driver."""

    RUNNING = "running"
    LEAVING = "leaving"
    ENDING = "ending"
    CLOSING = "closing"
    OVER = "over"


class Step(Enum):
    """What leads the driver to its end."""

    LEAVE = "done, failed or asked to stop"
    LEFT = "slots have left"
    ENDED = "Spark runs nothing for it"
    CLOSED = "journal in order"


DRIVER: Final = Table(
    "driver",
    Phase.RUNNING,
    {
        (Phase.RUNNING, Step.LEAVE): Phase.LEAVING,
        (Phase.LEAVING, Step.LEFT): Phase.ENDING,
        (Phase.ENDING, Step.ENDED): Phase.CLOSING,
        (Phase.CLOSING, Step.CLOSED): Phase.OVER,
    },
)
