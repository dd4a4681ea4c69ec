"""What the adapters of a node's ports tell it, besides what comes on connections.

Everything that is done in the background says for whom it was done: in a slot, for which *life* (or
ticket). That life may be over by then, and then nobody wants the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from clonos.core import events as ev
from clonos.core.calls import Outcome
from clonos.core.decisions import Leaving, MoveAsked
from clonos.core.levels import LayerPart, LayerRef
from clonos.core.sealed import Layer
from clonos.errors import ClonosError
from clonos.nodes.tenure import TermSeen
from clonos.transport.events import ChannelClosed, ChannelOpened, ControlLost, ControlOpened

# --- of a slot --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Fetched:
    """The layers that :meth:`~clonos.nodes.ports.Store.fetch` was asked for, in order."""

    ticket: int
    layers: tuple[Layer, ...]


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """The layers of a :meth:`~clonos.nodes.ports.Store.fetch` cannot be read."""

    ticket: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Stored:
    """A sealed layer is in the store; `cpu_s`: what it took to encode and write it."""

    life: int
    ref: LayerRef
    cpu_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Looked:
    """Which of the layers that :meth:`~clonos.nodes.ports.Store.look` was asked for are here."""

    ticket: int
    found: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Kept:
    """A layer was fetched from another slot; ``error``: it was not, or it is another layer."""

    ticket: int
    error: Exception | None = None


@dataclass(frozen=True, slots=True)
class PartRead:
    """What :meth:`~clonos.nodes.ports.Store.read` was asked for."""

    ticket: int
    part: LayerPart


@dataclass(frozen=True, slots=True)
class MergedHere:
    """Layers that this slot has were merged into one, which is here; None: they cannot be."""

    ticket: int
    merged: LayerRef | None


@dataclass(frozen=True, slots=True)
class Wrote:
    """An output, and all earlier ones of its channel, have taken effect."""

    life: int
    channel: int
    seq: int


@dataclass(frozen=True, slots=True)
class CallsOver:
    """Calls of a life have come to an end."""

    life: int
    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class WorkFailed:
    """A layer could not be stored or an output not be written, or the code that does so has a
    bug."""

    life: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Ran:
    """The work of a step took longer, and is done; ``error``: what it has raised."""

    life: int
    error: Exception | None


@dataclass(frozen=True, slots=True)
class DiskAnswered:
    """A life's items were written to the local disk or read back, or could not be."""

    life: int
    outcome: ev.Spilled | ev.ReadBack


@dataclass(frozen=True, slots=True)
class RowsReady:
    """A source has rows (or its end, or an error) for the task that reads it."""


Event = (
    ChannelOpened
    | ChannelClosed
    | ControlLost
    | Fetched
    | FetchFailed
    | Stored
    | Looked
    | Kept
    | PartRead
    | MergedHere
    | Wrote
    | CallsOver
    | WorkFailed
    | Ran
    | DiskAnswered
    | RowsReady
)
"""What a slot's node receives, besides messages."""

Heard = Event | tuple[int, Any]
"""An event, or ``(conn_id, message)``: what a peer sent on a connection."""

# --- of the driver ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Committed:
    """The group that the journal was writing is durable."""


@dataclass(frozen=True, slots=True)
class JournalFailed:
    """The group was not written, or nobody knows."""

    error: ClonosError


@dataclass(frozen=True, slots=True)
class Ended:
    """A slot's Spark job is over; `error` says why if it did not just leave."""

    place: int
    attempt: int
    error: ClonosError | None = None


@dataclass(frozen=True, slots=True)
class Merged:
    """Some of a task's layers were merged into one, which is in the store."""

    merged: LayerRef
    replaced: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class MergeFailed:
    """Some of a task's layers, which were chosen for it, could not be merged."""

    chosen: tuple[LayerRef, ...]
    error: ClonosError


@dataclass(frozen=True, slots=True)
class Surveyed:
    """All files in the store of layers, unfinished ones included.

    ``going``: what the survey was asked with.
    """

    paths: tuple[str, ...]
    going: int = 0


@dataclass(frozen=True, slots=True)
class Archived:
    """The segment of a point of the history is in the store; ``nbytes``: its size."""

    number: int
    path: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class ArchiveFailed:
    """The segment of a point of the history could not be stored."""

    number: int
    error: ClonosError


@dataclass(frozen=True, slots=True)
class OutsideFailed:
    """Something that the job needs has failed for good: a consumer, or a query that feeds it."""

    error: ClonosError


@dataclass(frozen=True, slots=True)
class StopAsked:
    """The user wants the job to end: at once, or when it has settled.

    ``settle_s``: how long it may take to settle. ``otherwise``: called if that was not long enough;
    then the job goes on.
    """

    settle_s: float | None = None
    otherwise: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class EndIsNear:
    """The job will soon be asked to settle for another driver: what can be written before is."""


@dataclass(frozen=True, slots=True)
class RoundBegins:
    """State is shared out for another graph, and a round of that begins.

    ``told``: called with the layers that it is to read. From now on no layer is deleted, and no
    merge reaches across the newest of these. None: there are no more rounds, and the job goes on as
    it was.
    """

    told: Callable[[dict[int, tuple[LayerRef, ...]]], object] | None


@dataclass(frozen=True, slots=True)
class RenewalAsked:
    """End a slot that runs no task, and start another process in its place. ``pid``: that of its
    process.
    """

    pid: int


DriverEvent = (
    ChannelOpened
    | ChannelClosed
    | ControlOpened
    | ControlLost
    | Committed
    | JournalFailed
    | Ended
    | Merged
    | MergeFailed
    | Surveyed
    | Archived
    | ArchiveFailed
    | TermSeen
    | OutsideFailed
    | StopAsked
    | EndIsNear
    | RoundBegins
    | RenewalAsked
    | MoveAsked
    | Leaving
)
"""What the driver's node receives, besides messages."""
