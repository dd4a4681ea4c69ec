"""What a driver takes over from one that has run its job in the same process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from clonos.upgrade.prepare import NOTHING, Prepared


@dataclass(frozen=True)
class Former:
    """The driver before, asked when it is over.

    Attributes
    ----------
    prepared
        The state that was shared out before.
    delivered
        How many rows each sink has delivered.
    leaving
        How many of its slots run, which will leave: asked while it runs.
    """

    prepared: Callable[[], Prepared] = lambda: NOTHING
    delivered: Callable[[], Mapping[str, int]] = dict
    leaving: Callable[[], int] = lambda: 0


NOBODY = Former()
