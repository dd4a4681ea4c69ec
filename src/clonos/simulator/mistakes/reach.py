"""Deliberate mistakes with networks that fail and come back."""

from __future__ import annotations

from typing import Final

from clonos.core.reach import Reach
from clonos.simulator.mistakes.mutation import Mutation, mutation
from clonos.simulator.mistakes.protocol import constant

WRONG_REACH: Final[dict[str, Mutation]] = {
    "an outage is taken for a network that never was": mutation(
        "liveness", (Reach, "_is_hopeless", constant(True))
    ),
}
