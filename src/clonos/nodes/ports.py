"""What a node needs of the world: one small interface per neighbour.

Production and simulation differ only in what stands behind these, the *adapters*. An adapter has no
opinion: it does not retry, has no time limit and no ``if`` about the protocol. The contract of all
of them:

1. A call returns at once. It never raises for what the world does, and never calls back: what
   comes of it is an event (:mod:`clonos.nodes.events`) in one of the next turns.
2. Order holds for each connection and each prefetch; between them anything may happen.
3. A process may end at any call; what the call did stays done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from clonos.core.calls import CallId, Request
from clonos.core.decisions import Note
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
from clonos.core.history import Chains
from clonos.core.housekeeper import Deliver
from clonos.core.levels import LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.core.program import Program
from clonos.core.step import Job
from clonos.errors import ClonosError
from clonos.nodes.views import News, Sample
from clonos.transport.events import Connection

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
        """Hand over what was sent since the last time; else that happens after the turn."""


class Clock(Protocol):
    """Time as this process sees it."""

    def ticks_s(self) -> float:
        """Monotonic seconds, unaffected by changes of the system clock."""


class WallClock(Clock, Protocol):
    """... and what the calendar says, for people."""

    def wall_s(self) -> float:
        """Seconds since 1970; may jump."""


# --- of a slot --------------------------------------------------------------------------------


class Store(Protocol):
    """Where sealed layers are: in the checkpoint store, or in this process, or on its disk."""

    def fetch(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        """Read layers, each at its level. Answered by ``Fetched`` or ``FetchFailed``."""

    def put(self, life: int, sealed: StoreLayer, level: str) -> None:
        """Store a layer at this level. Answered by ``Stored`` or ``WorkFailed``."""

    def look(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        """Look which of these are here. Answered by ``Looked``."""

    def keep(self, ticket: int, ref: LayerRef, content: bytes) -> None:
        """Keep what another slot has sent, if it is that layer. Answered by ``Kept``."""

    def read(self, ticket: int, ref: LayerRef, start: int) -> None:
        """Read a part of a layer, to be sent. Answered by ``PartRead``."""

    def merge(self, ticket: int, command: MergeLayers) -> None:
        """Merge layers that are here. Answered by ``MergedHere``."""

    def drop(self, refs: Sequence[LayerRef]) -> None:
        """Nobody needs these here any more."""

    def tidy(self, task: int, life: Incarnation, named: Collection[str]) -> None:
        """Delete from this machine's disk what earlier lives of a task have left there, but for
        these layers."""

    def clear(self) -> None:
        """Nobody needs anything here any more: the job is complete."""


class Track(Protocol):
    """Where user code runs: one job at a time, always in the same thread."""

    @property
    def is_free(self) -> bool:
        """Whether no job is under way. While one is, turns go on, and hear whatever comes."""

    def run(self, life: int, job: Job) -> bool:
        """Do a job. True: it is done, and raised nothing (what it raises comes from here). Else
        ``Ran`` follows, within a later turn."""


class Prefetch(Protocol):
    """Reads one task's source ahead, within limits; a standby's is in place at the floor."""

    @property
    def is_placed(self) -> bool:
        """Whether the reader has been given a position."""

    @property
    def lag(self) -> int | None:
        """Rows that there are and that were not read yet, as of some seconds ago; None: nobody
        knows."""

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
        """Replay: read exactly these cuts: their rows, and the reader's words for each."""

    def taken(self) -> SourceRows | SourceEnded | None:
        """The next of what :meth:`ask` has asked for, if it is there; raises like :meth:`take`."""

    def close(self) -> None:
        """Stop reading."""


class Sources(Protocol):
    """The sources that this slot can read."""

    @property
    def can_reopen(self) -> bool:
        """False: the rows come from Spark, and come only once."""

    def open(self, task: int) -> Prefetch:
        """Begin to read the source of `task`; ``RowsReady`` says when there is something."""


class Calls(Protocol):
    """Makes calls that take a while, beside the steps of the tasks."""

    def make(self, life: int, calls: Sequence[tuple[CallId, Request]]) -> None:
        """Make calls. Answered by ``CallsOver``, each call once, in any order; perhaps never."""

    def withdraw(self, life: int) -> None:
        """That life is over: cancel what can be cancelled, begin no attempt any more."""


class Scratch(Protocol):
    """Space on the local disk, for as long as the process lives.

    What the disk does wrong is part of the answer; anything else that goes wrong is a bug, and the
    answer is ``WorkFailed``.
    """

    def write(self, life: int, spill: Spill) -> None:
        """Write batches to a file. Answered by ``DiskAnswered`` with ``Spilled``."""

    def read(self, life: int, spilled: ReadSpilled) -> None:
        """Read a file. Answered by ``DiskAnswered`` with ``ReadBack``: batches whose digests say
        what was read, or None."""

    def drop(self, life: int, spilled: DropSpilled) -> None:
        """Nobody will ask for this file again."""

    def withdraw(self, life: int) -> None:
        """That life is over: none of its files is of use."""


class Writer(Protocol):
    """A sink that puts its output into the world itself, where it runs."""

    def write(self, life: int, output: Release) -> None:
        """Let an output take effect. Answered by ``Wrote``, which answers for all before it, too,
        or by ``WorkFailed``, after which nothing more is written."""


def _unknown() -> tuple[int, int]:
    return 0, 0


@dataclass(frozen=True)
class SlotPorts:
    """The world of a slot.

    Attributes
    ----------
    programs
        What a task runs, fresh.
    worlds
        Clock and calls of one life of a task.
    writers
        The writer of one life of a task, or None if its sink does not write itself.
    calls
        Makes the calls of all tasks.
    memory
        How many bytes the process keeps, and how many are left to it; zeros if nobody knows.
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
    """The house-keeper's file. One call at a time: not before the last one's outcome is known."""

    @property
    def nbytes(self) -> int:
        """The journal's size."""

    def append(self, records: Sequence[bytes]) -> bool:
        """Write a group, all or nothing. An empty one vouches for those before it: damage to them
        can then be told from a write that never ended.

        True: it is durable. Else ``Committed`` or ``JournalFailed`` follows, and after the latter
        only :meth:`rotate` may be called.
        """

    def rotate(self, head: Sequence[bytes]) -> bool:
        """Begin anew with `head`, which stands for everything so far. Answers like `append`."""


class Outputs(Protocol):
    """Where delivered output goes. A consumer that fails is told by ``OutsideFailed``.

    Attributes
    ----------
    nbytes
        Of what was taken and is in no file yet.
    """

    nbytes: int

    def take(self, output: Deliver) -> None:
        """Deliver an output that is durable."""

    def flush(self) -> ClonosError | None:
        """Put what was taken where it survives a rotation of the journal; what is in the way?"""


class Launcher(Protocol):
    """Starts the processes of slots. One of a place registers, again and again if Spark retries it,
    until ``Ended``."""

    def launch(self, place: int, attempt: int) -> None:
        """Request a process."""

    def cancel(self, attempt: int) -> None:
        """Have Spark end an attempt, with its processes; no error if it is over."""

    def describe(self, task: str, text: str) -> None:
        """Show in Spark's UI what becomes of a task; what was said of it before is over."""


class Merger(Protocol):
    """Works on stored layers in the background."""

    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> None:
        """Merge the chosen layers. Answered by ``Merged`` or ``MergeFailed``."""

    def delete(self, paths: Sequence[str]) -> None:
        """Delete these: nobody reads them any more."""

    def survey(self, going: int = 0) -> None:
        """List the store from now on. Answered by ``Surveyed``, with the same number, unless that
        fails."""

    def archive(self, number: int, path: str, content: bytes) -> None:
        """Store a segment of the history. Answered by ``Archived`` or ``ArchiveFailed``."""


class Lookout(Protocol):
    """Sees whether another driver has begun a later term."""

    def look(self) -> None:
        """Look. Answered by ``TermSeen``, if ever; one look at a time."""


class Audience(Protocol):
    """Observers of the job. Nobody waits for them."""

    def noted(self, note: Note, at_s: float) -> None:
        """Something has happened, and is let out."""

    def sampled(self, sample: Sample) -> None:
        """A task has sent its statistics."""

    def told(self, what: News) -> None:
        """An event for listeners."""

    def warned(self, text: str) -> None:
        """Warn of something."""

    def floor(self, layers: Chains, kept: Chains) -> None:
        """A checkpoint is complete with these layers: no recovery reads again what it has passed.
        ``kept``: one may still look back as far as these layers."""


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
