"""What a task that moves hands over, so that its next life begins where it stands.

A recovery begins at a floor and replays the log. It cannot begin later, because a layer carries
neither the items that receivers may still ask for nor the log entries that the process held for
others. A task at rest still has all of these, and they are few: before it rests, it has sealed a
layer and waited until that was its floor (:class:`~clonos.core.messages.Prepare`). So it gives
them away with what has changed since, and nothing is replayed. (Rhino and Megaphone move state of
dataflows in a similar way.)

The new life stores what has changed as its first layer, so the chain of layers has no gap. If
there is too much to hand over, or anything fails before the new life begins, the log is replayed as
after any failure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final, SupportsBytes

from clonos.core.content import encoded
from clonos.core.events import StoreLayer
from clonos.core.layer import decode_layer, layer_chunks
from clonos.core.log import LogBook
from clonos.core.messages import Activate, Handed, Run
from clonos.core.plan import Plan
from clonos.core.sealed import Layer
from clonos.errors import ProtocolError

HANDED_BYTES: Final = 4 << 20
"""The tasks of a cell hand over no more than this together: it passes through the driver, and
output stands still meanwhile."""


@dataclass(frozen=True, slots=True)
class AtRest:
    """A task at rest.

    Attributes
    ----------
    layer
        What has changed since the layer below, encoded, with all items that receivers may still ask
        for.
    handed
        What it hands over; None: it is too much.
    """

    layer: StoreLayer
    handed: Handed | None


def at_rest(sealed: StoreLayer, book: LogBook, bytes_max: int) -> AtRest:
    """Encode what has changed. Meanwhile the slot does nothing else, so it has to be little.

    Parameters
    ----------
    sealed
        What has changed since the floor.
    book
        All logs that the task holds.
    bytes_max
        Size of what it may hand over.
    """
    content = encoded(sealed.delta)
    layer = layer_chunks(replace(sealed.layer, delta=content))
    tasks = book.lengths()
    runs = tuple(run for task in tasks for run in book.runs(task, 1, stable=book.base(task)))
    is_little = len(layer) + book.nbytes <= bytes_max
    handed = Handed(sealed.layer.position, bytes(layer), runs) if is_little else None
    return AtRest(StoreLayer(sealed.layer, content), handed)


def taken_over(activate: Activate, floor: Layer | None) -> Layer | None:
    """The layer with which a life begins that takes over; None: it begins with its floor.

    Raises
    ------
    ProtocolError
        What was handed over does not follow on this floor.
    """
    if activate.handed is None:
        return None
    layer = decode_layer(activate.handed.layer)
    below = floor.epoch if floor is not None else 0
    if (layer.task, layer.epoch) != (activate.task, below + 1):
        raise ProtocolError(
            f"task {activate.task}, at layer {below}, takes over layer {layer.epoch} of task "
            f"{layer.task}"
        )
    return replace(layer, incarnation=activate.incarnation)


def to_store(plan: Plan, layer: Layer, delta: bytes | SupportsBytes) -> StoreLayer:
    """Store this layer, which carries no items then except those of feedback."""
    feedback = {c: i for c, i in layer.carried.items() if plan.channels[c].is_feedback}
    return StoreLayer(replace(layer, carried=feedback, delta=b""), delta)


def logs_of(activate: Activate) -> tuple[Run, ...]:
    """The log entries with which a life begins."""
    return activate.handed.runs if activate.handed is not None else activate.log
