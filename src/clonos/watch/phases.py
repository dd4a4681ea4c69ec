"""The phases of a task, as shown to people."""

from __future__ import annotations

from typing import Final

from clonos.core.roster import TaskPhase

KINDS: Final = {
    "live": "live",
    "busy": "recovering",
    "away": "waiting for a slot",
    "finished": "finished",
}
"""The label of each kind."""
_KIND_OF: Final = {
    TaskPhase.LIVE.value: "live",
    TaskPhase.FINISHED.value: "finished",
    TaskPhase.RESTORING.value: "busy",
    TaskPhase.REPLAYING.value: "busy",
}


def kind_of(phase: str) -> str:
    """One of "live", "finished", "busy" (it recovers), and "away" (no process runs it)."""
    return _KIND_OF.get(phase, "away")
