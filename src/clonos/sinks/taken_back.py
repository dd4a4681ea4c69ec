"""Deletes output that a job takes back after a rewind: everything delivered since the point."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.spec import SinkSpec
from clonos.storage.files import Durability
from clonos.storage.tables import Table

CAN_TAKE_BACK: Final = ("collect", "table")
"""Sinks whose output is files of Clonos, named by the numbers of their batches."""


def take_back(
    sinks: Mapping[str, SinkSpec],
    delivered: str,
    durability: Durability,
    generation: int,
    kept: Mapping[str, Mapping[str, int]],
) -> None:
    """Delete output, unless it was deleted before.

    Parameters
    ----------
    delivered
        The folder of output delivered to the driver.
    generation
        Only output of earlier generations is deleted.
    kept
        By sink and task index, the last number that stays.
    """
    store = DeliveredStore(delivered, durability)
    for name, sink in ((name, sink) for name, sink in sinks.items() if name in kept):
        until = {int(task): seq for task, seq in kept[name].items()}
        if sink.kind == "collect":
            store.take_back(name, generation, until)
        elif sink.path is not None:
            Table(sink.path, durability).take_back(generation, until)
