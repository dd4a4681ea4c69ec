"""What a node needs of the world: one small interface per neighbour.

Production and simulation differ only in the *adapters* behind these interfaces. An adapter decides
nothing: it does not retry, and has no time limit and no ``if`` about the protocol. All adapters
keep this contract:

1. A call returns at once. It never raises because of what the world does, and never calls back: its
   outcome is an event (:mod:`clonos.nodes.events`) in one of the next turns.
2. Order holds for each connection and each prefetch; between them anything may happen.
3. A process may end at any call; what the call did stays done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from clonos.core.calls import CallId, Request
from clonos.core.events import (
    DropSpilled,
    ReadSpilled,
    Release,
    SourceEnded,
    SourceRows,
    Spill,
    StoreLayer,
    World,
)
from clonos.core.levels import LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.core.program import Program
from clonos.core.step import Work
from clonos.errors import ClonosError
from clonos.transport.events import Away, Connection

if TYPE_CHECKING:  # the driver's: slots import this module, too
    from clonos.core.history import Chains
    from clonos.core.housekeeper import Deliver
    from clonos.core.notes import Note
    from clonos.nodes.views import News, Sample

# --- of every process -------------------------------------------------------------------------


class Network(Protocol):
    """Connections with other processes."""

    @property
    def address(self) -> str:
        """The address at which others reach this process."""

    @property
    def listened_s(self) -> float:
        """How long this process has been listening: the clock for its timeouts."""

    def connect(
        self,
        peer_address: str,
        channel: int,
        sender_incarnation: Incarnation,
        receiver_incarnation: Incarnation,
    ) -> Connection:
        """Open `channel` to its receiver. Ends with a ``ChannelClosed``."""

    def flush(self) -> None:
        """Hand over what was sent since the last flush; otherwise that happens after the turn."""


class Clock(Protocol):
    """Time as this process sees it."""

    def ticks_s(self) -> float:
        """Monotonic seconds, unaffected by changes of the system clock."""


class WallClock(Clock, Protocol):
    """A clock that also knows the date, for people."""

    def wall_s(self) -> float:
        """Seconds since 1970; may jump."""


# --- of a slot --------------------------------------------------------------------------------


class Store(Protocol):
    """Where sealed layers are: in the checkpoint store, or in this process, or on its disk."""

    @property
    def reads_in_place(self) -> bool:
        """Whether large layers of the checkpoint store are read where they lie. Elsewhere they are
        copied to the local disk first."""

    def fetch(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        """Read layers, each at its level. Answered by ``Fetched`` or ``FetchFailed``."""

    def put(self, life: int, sealed: StoreLayer, level: str) -> None:
        """Store a layer at this level. Answered by ``Stored`` or ``WorkFailed``."""

    def look(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        """Find out which of these layers are here. Answered by ``Looked``."""

    def keep(self, ticket: int, ref: LayerRef, content: bytes) -> None:
        """Keep what another slot has sent, if it is that layer. Answered by ``Kept``."""

    def read(self, ticket: int, ref: LayerRef, start: int) -> None:
        """Read a part of a layer, to be sent. Answered by ``PartRead``."""

    def merge(self, ticket: int, command: MergeLayers) -> None:
        """Merge layers that are here. Answered by ``MergedHere``."""

    def drop(self, refs: Sequence[LayerRef]) -> None:
        """Delete these layers: nobody needs them here any more."""

    def tidy(self, task: int, life: Incarnation, named: Collection[str]) -> None:
        """Delete from this machine's disk what earlier lives of a task have left there, but for
        these layers."""

    def clear(self) -> None:
        """Delete all layers: the job is complete."""


class Track(Protocol):
    """Where user code runs: the work of one step at a time, always in the same thread."""

    @property
    def is_free(self) -> bool:
        """Whether no work is under way. While one is, turns go on and take all events."""

    def run(self, life: int, work: Work) -> bool:
        """Do the work of a step. True: it is done (if it raises, this raises, too). False: ``Ran``
        follows in a later turn."""


class Prefetch(Protocol):
    """Reads one task's source ahead, within limits; that of a standby is positioned at the
    floor."""

    @property
    def is_placed(self) -> bool:
        """Whether the reader has been given a position."""

    @property
    def counters(self) -> Mapping[str, int]:
        """What is known of the source, as of some seconds ago: ``lag``, how many rows were not read
        yet; ``source_away_s``, for how long it could not be read; ``missed_rows``, how many rows
        were gone before they could be read; ``shrunk_parts``, how many parts of it were found to
        end before what was read of them."""

    def advance(self, rows_consumed: int, cut: bytes = b"") -> None:
        """Seek past the first `rows_consumed` rows, which end with `cut`; never goes back."""

    def take(self) -> SourceRows | SourceEnded | None:
        """The next rows, if any are ready. Asking starts reading ahead.

        Raises
        ------
        ClonosError
            Reading has failed.
        """

    def ask(self, cuts: Sequence[tuple[int, bytes]]) -> None:
        """Replay: read exactly these cuts, given as number of rows and the reader's own
        position."""

    def taken(self) -> SourceRows | SourceEnded | None:
        """The next cut of those in :meth:`ask`, if it has been read; raises like :meth:`take`."""

    def close(self) -> None:
        """Stop reading."""


class Sources(Protocol):
    """The sources that this slot can read."""

    @property
    def can_reopen(self) -> bool:
        """False: the rows come from Spark, and come only once."""

    def open(self, task: int) -> Prefetch:
        """Begin to read the source of `task`; ``RowsReady`` says when there are rows."""


class Calls(Protocol):
    """Makes calls that take a while, outside of the tasks' steps."""

    def make(self, life: int, calls: Sequence[tuple[CallId, Request]]) -> None:
        """Make calls. Answered by ``CallsOver``, each call once, in any order; perhaps never."""

    def withdraw(self, life: int) -> None:
        """A life is over: cancel the calls that can be cancelled, and begin no further attempt."""

    def may_begin(self, until_s: float) -> None:
        """Begin no effect after this, by the slot's clock. Until the first call there is no limit.
        Effects that a service recognises when they are repeated are never limited."""

    def away(self, life: int) -> Mapping[str, Away]:
        """By name, the services that have answered no call of a life for some time."""


class Scratch(Protocol):
    """Space on the local disk, for as long as the process lives.

    Errors of the disk are part of the answer; any other error is a bug, and the answer is
    ``WorkFailed``.
    """

    def write(self, life: int, spill: Spill) -> None:
        """Write batches to a file. Answered by ``DiskAnswered`` with ``Spilled``."""

    def read(self, life: int, spilled: ReadSpilled) -> None:
        """Read a file. Answered by ``DiskAnswered`` with ``ReadBack``: batches with the digests of
        what was read, or None."""

    def drop(self, life: int, spilled: DropSpilled) -> None:
        """Nobody will ask for this file again."""

    def withdraw(self, life: int) -> None:
        """A life is over: its files are of no use any more."""


class Writer(Protocol):
    """Lets the output of a sink take effect in the slot where the sink runs."""

    @property
    def away_s(self) -> float:
        """For how long the store has taken nothing of what it was given."""

    def write(self, life: int, output: Release) -> None:
        """Let an output take effect. Answered by ``Wrote``, which also answers for all earlier
        outputs, or by ``WorkFailed``, after which nothing more is written."""


def _unknown() -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True)
class SlotPorts:
    """The world of a slot.

    Attributes
    ----------
    programs
        Makes a new program of a task.
    worlds
        Clock and calls of one life of a task.
    writers
        The writer of one life of a task, or None if its sink does not write itself.
    calls
        Makes the calls of all tasks.
    memory
        How many bytes the process keeps, and how many are left to it; zeros if unknown.
    """

    network: Network
    clock: Clock
    track: Track
    store: Store
    sources: Sources
    programs: Callable[[int], Program]
    worlds: Callable[[int, Incarnation], World]
    writers: Callable[[int, Incarnation], Writer | None]
    calls: Calls
    scratch: Scratch
    memory: Callable[[], tuple[int, int]] = _unknown


# --- of the driver ----------------------------------------------------------------------------


class Journal(Protocol):
    """The house-keeper's file. One call at a time: the next one only when the outcome is known."""

    @property
    def nbytes(self) -> int:
        """The journal's size."""

    def append(self, records: Sequence[bytes]) -> bool:
        """Write a group, all or nothing. An empty one vouches for those before it: damage to them
        can then be told from a write that never ended.

        True: it is durable. Else ``Committed`` or ``JournalFailed`` follows, and after the latter
        only :meth:`rotate` may be called.
        """

    def prove(self) -> bool:
        """Write an empty group in any case: it succeeds only if the lock is ours. Answers like
        `append`."""

    def rotate(self, head: Sequence[bytes]) -> bool:
        """Begin anew with `head`, which replaces everything so far. Answers like `append`."""


class Outputs(Protocol):
    """Where delivered output goes. ``OutsideFailed`` tells of a consumer that fails.

    Attributes
    ----------
    nbytes
        Size of the outputs that were taken and are in no file yet.
    """

    nbytes: int

    def take(self, output: Deliver) -> None:
        """Deliver an output that is durable."""

    def begin_flush(self) -> None:
        """Begin to put what was taken there, as far as nobody has to wait for that; :meth:`flush`
        has less to do then."""

    def flush(self) -> ClonosError | None:
        """Put taken outputs where they survive a rotation of the journal. Return the error, if
        any."""


class Launcher(Protocol):
    """Starts the processes of slots. Until ``Ended``, a process of a place registers, perhaps
    several times because Spark retries it."""

    @property
    def retries(self) -> bool:
        """Whether Spark may start another process for an attempt whose process has ended."""

    def launch(self, place: int, attempt: int) -> None:
        """Request a process."""

    def cancel(self, attempt: int) -> None:
        """Have Spark end an attempt, with its processes; no error if it is over."""

    def describe(self, task: str, text: str) -> None:
        """Show in Spark's UI what a task does now, instead of what was shown before."""


class Merger(Protocol):
    """Works on stored layers in the background."""

    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> None:
        """Merge the chosen layers. Answered by ``Merged`` or ``MergeFailed``."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete these files: nobody reads them any more."""

    def survey(self, going: int = 0) -> None:
        """List the store as of now. Answered by ``Surveyed``, with the same number, unless that
        fails."""

    def archive(self, number: int, path: str, content: bytes) -> None:
        """Store a segment of the history. Answered by ``Archived`` or ``ArchiveFailed``."""


class Lookout(Protocol):
    """Sees whether another driver has begun a later term."""

    def look(self) -> None:
        """Look once. Answered by ``TermSeen``, if ever; one look at a time."""


class Audience(Protocol):
    """Observers of the job. Nobody waits for them."""

    def noted(self, note: Note, at_s: float) -> None:
        """The coordinator has noted something, and it is durable."""

    def sampled(self, sample: Sample) -> None:
        """A task has sent its statistics."""

    def told(self, what: News) -> None:
        """An event for listeners."""

    def warned(self, text: str) -> None:
        """Warn of something."""

    def floor(self, layers: Chains, kept: Chains) -> None:
        """A checkpoint is complete with these layers: no recovery reads input below them again.
        ``kept``: the layers of the oldest point of the history, or the same."""


@dataclass(frozen=True)
class DriverPorts:
    """The world of a driver."""

    clock: WallClock
    journal: Journal
    outputs: Outputs
    launcher: Launcher
    merger: Merger
    audience: Audience
    lookout: Lookout
