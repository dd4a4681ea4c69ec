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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from clonos.core.events import Release, SourceEnded, SourceRows, StoreLayer, World
from clonos.core.messages import LayerRef
from clonos.core.plan import Incarnation
from clonos.core.program import Program
from clonos.transport.events import Connection

# --- of every process -------------------------------------------------------------------------


class Network(Protocol):
    """Connections with other processes."""

    @property
    def address(self) -> str:
        """Where others reach this process."""

    @property
    def listened_s(self) -> float:
        """For how long this process has been listening: by this clock it is patient."""

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
        """Seconds since some moment; never goes back, whoever sets the clock."""


# --- of a slot --------------------------------------------------------------------------------


class Store(Protocol):
    """Where sealed layers are."""

    def fetch(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        """Read layers. Answered by ``Fetched`` or ``FetchFailed``."""

    def put(self, life: int, sealed: StoreLayer) -> None:
        """Store a layer. Answered by ``Stored`` or ``WorkFailed``."""


class Prefetch(Protocol):
    """Reads one task's source ahead, within limits; a standby's is in place at the floor."""

    @property
    def is_placed(self) -> bool:
        """Whether it has been told where the task stands."""

    def advance(self, rows_consumed: int) -> None:
        """Stand behind the first `rows_consumed` rows; never goes back."""

    def take(self) -> SourceRows | SourceEnded | None:
        """The next rows, if any are ready. Asking starts reading ahead.

        Raises
        ------
        ClonosError
            Reading has failed.
        """

    def ask(self, cuts: Sequence[int]) -> None:
        """Replay: read exactly so many rows, one cut after the other."""

    def taken(self) -> SourceRows | SourceEnded | None:
        """The next of what :meth:`ask` has asked for, if it is there; raises like :meth:`take`."""

    def close(self) -> None:
        """Read no more."""


class Sources(Protocol):
    """The sources that this slot can read."""

    @property
    def can_reopen(self) -> bool:
        """False: the rows come from Spark, and come only once."""

    def open(self, task: int) -> Prefetch:
        """Begin to read the source of `task`; ``RowsReady`` says when there is something."""


class Writer(Protocol):
    """A sink that puts its output into the world itself, where it runs."""

    def write(self, life: int, output: Release) -> None:
        """Let an output take effect. Answered by ``Wrote`` or ``WorkFailed``."""


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
        The writer of a task, or None if its sink does not write itself.
    """

    network: Network
    clock: Clock
    store: Store
    sources: Sources
    programs: Callable[[int], Program]
    worlds: Callable[[int, Incarnation], World]
    writers: Callable[[int], Writer | None]
