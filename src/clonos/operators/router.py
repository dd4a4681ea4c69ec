"""How the rows at the end of a chain are distributed over the channels to the next chain."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from clonos.columns.keys import KEY_GROUPS, key_columns, key_groups, owner_of_group
from clonos.state.stores import Facts

if TYPE_CHECKING:
    from collections.abc import Callable

    from clonos.core.program import Batch, Step


class Routing(Enum):
    """Which task gets a row."""

    FORWARD = "forward"  # the task with the same index
    HASH = "hash"  # the owner of its key
    ROUND_ROBIN = "round robin"  # whole batches, to the tasks in turn
    BROADCAST = "broadcast"  # all tasks


@dataclass(frozen=True)
class Router:
    """The channels from one task to the tasks of one following chain, by receiver index."""

    routing: Routing
    channels: tuple[int, ...]
    keys: tuple[str, ...] = ()

    def emit(
        self,
        step: Step,
        batch: pa.RecordBatch,
        whole: Callable[[], Batch],
        seal: Callable[[pa.RecordBatch], Batch],
        facts: Facts,
    ) -> int:
        """Put `batch` on these channels, at most one batch on each; returns the number of channels.

        ``whole`` returns the sealed batch, ``seal`` seals parts of it.
        """
        if len(self.channels) == 1:
            step.emit(self.channels[0], whole())
        elif self.routing is Routing.HASH:
            return self._emit_by_key(step, batch, whole, seal)
        elif self.routing is Routing.ROUND_ROBIN:
            # One counter per channel group: a task may have several outputs.
            turn = facts.get(f"turn {self.channels[0]}", 0)
            facts.set(f"turn {self.channels[0]}", (turn + 1) % len(self.channels))
            step.emit(self.channels[turn], whole())
        else:
            for channel in self.channels:
                step.emit(channel, whole())
            return len(self.channels)
        return 1

    def _emit_by_key(
        self,
        step: Step,
        batch: pa.RecordBatch,
        whole: Callable[[], Batch],
        seal: Callable[[pa.RecordBatch], Batch],
    ) -> int:
        emitted = 0
        groups = key_groups(key_columns(batch, self.keys))
        owners = owner_of_group(np.arange(KEY_GROUPS), len(self.channels))[groups]
        for index, channel in enumerate(self.channels):
            rows = np.flatnonzero(owners == index)
            if len(rows) == batch.num_rows:
                step.emit(channel, whole())
                return 1
            if len(rows):
                step.emit(channel, seal(batch.take(pa.array(rows))))
                emitted += 1
        return emitted
