"""Output that a job has taken back: it went back in time, and what it had delivered since goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from clonos.sinks.delivered import DeliveredStore
from clonos.sinks.spec import SinkSpec
from clonos.storage.files import Durability
from clonos.storage.tables import Table

CAN_TAKE_BACK: Final = ("collect", "table")
"""Kinds of sinks whose output is files of ours, each with the numbers of what is in it."""


def take_back(
    sinks: Mapping[str, SinkSpec],
    delivered: str,
    durability: Durability,
    generation: int,
    kept: Mapping[str, Mapping[str, int]],
) -> None:
    """Delete output, unless that was done before.

    Parameters
    ----------
    delivered
        Where output for the driver is.
    generation
        Only output of earlier generations.
    kept
        By sink, and the index of its task: the last number that stays.
    """
    store = DeliveredStore(delivered, durability)
    for name, sink in ((name, sink) for name, sink in sinks.items() if name in kept):
        until = {int(task): seq for task, seq in kept[name].items()}
        if sink.kind == "collect":
            store.take_back(name, generation, until)
        elif sink.path is not None:
            Table(sink.path, durability).take_back(generation, until)
