"""Counts which faults have hit which states of the protocol."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from clonos.core.roster import TaskPhase

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster

Coverage = Counter[tuple[str, str]]

STATES = (
    "fencing", "reading", "ready", "waiting", "restoring", "replaying", "checkpoint", "finished",
    "running",
)  # fmt: skip


def state_of(cluster: Cluster) -> str:
    """The most interesting thing that is going on."""
    coordinator = cluster.driver.coordinator
    phases = {task.phase for task in coordinator.tasks.values()}
    for phase, name in (
        (TaskPhase.READING, "reading"),
        (TaskPhase.FENCING, "fencing"),
        (TaskPhase.READY, "ready"),
        (TaskPhase.WAITING, "waiting"),
        (TaskPhase.RESTORING, "restoring"),
        (TaskPhase.REPLAYING, "replaying"),
    ):
        if phase in phases:
            return name
    if coordinator.checkpoints.pending_epoch:
        return "checkpoint"
    return "finished" if TaskPhase.FINISHED in phases else "running"


def table(coverage: Coverage) -> str:
    """A table with a row for each kind of fault and a column for each protocol state."""
    faults = sorted({fault for fault, _ in coverage})
    width = max((len(fault) for fault in faults), default=5) + 2
    head = " " * width + "".join(f"{state:>11}" for state in STATES)
    rows = [
        f"{fault:<{width}}" + "".join(f"{coverage[fault, state]:>11}" for state in STATES)
        for fault in faults
    ]
    return "\n".join([head, *rows])
