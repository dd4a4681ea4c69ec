"""What a task's runtime tells its automaton, and what the automaton asks of it in return.

Connections of an output channel are numbered by the automaton (`attempt`), connections of an input
channel by the runtime (`conn`); both numbers only tell a new stream from a stale one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, SupportsBytes

from clonos.core.calls import CallId, Outcome, Request
from clonos.core.levels import LayerRef
from clonos.core.messages import ChannelMessage, Credit, Data, Hello, Item, Report, Welcome
from clonos.core.plan import Incarnation
from clonos.core.program import Batch, Program
from clonos.core.sealed import Layer

# --- events -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Opened:
    """A sender has connected for one of our input channels."""

    channel: int
    conn: int
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Received:
    """Something came in on an input channel."""

    channel: int
    conn: int
    data: Data | Welcome


@dataclass(frozen=True, slots=True)
class InputClosed:
    """The stream of an input channel has ended."""

    channel: int
    conn: int


@dataclass(frozen=True, slots=True)
class Answered:
    """The receiver of one of our output channels says something."""

    channel: int
    attempt: int
    message: Hello | Credit


@dataclass(frozen=True, slots=True)
class OutputClosed:
    """The stream of an output channel has ended, or could not be opened."""

    channel: int
    attempt: int


@dataclass(frozen=True, slots=True)
class SourceRows:
    """The reader has rows. ``content``: their encoding, if the reader cannot read them again;
    ``born_ms``: when it got them; ``cut``: the reader's own position for them, if their number does
    not tell."""

    batch: Batch
    content: bytes | None = None
    born_ms: int = 0
    cut: bytes = b""


@dataclass(frozen=True, slots=True)
class SourceEnded:
    """The reader has no more rows, ever."""


@dataclass(frozen=True, slots=True)
class LayerStored:
    """A sealed layer is in the checkpoint store."""

    ref: LayerRef


@dataclass(frozen=True, slots=True)
class Written:
    """Released outputs up to `seq` have taken effect."""

    channel: int
    seq: int


@dataclass(frozen=True, slots=True)
class CallsOver:
    """Calls that :class:`MakeCalls` has asked for have come to an end."""

    outcomes: tuple[Outcome, ...]


@dataclass(frozen=True, slots=True)
class MakeRoom:
    """The process keeps too many items in memory for its receivers."""


@dataclass(frozen=True, slots=True)
class Spilled:
    """A file of batches was written, or cannot be."""

    channel: int
    number: int
    is_written: bool


@dataclass(frozen=True, slots=True)
class ReadBack:
    """The batches of a file; None: it cannot be read."""

    channel: int
    number: int
    batches: tuple[Batch, ...] | None


@dataclass(frozen=True, slots=True)
class Tick:
    """Some time has passed (log entries that no batch has taken along may be due)."""


# --- actions ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Dial:
    """Open output `channel` to `address`; messages about it carry `attempt`."""

    channel: int
    attempt: int
    incarnation: Incarnation
    address: str


@dataclass(frozen=True, slots=True)
class Hang:
    """Close the output stream of an old attempt."""

    channel: int
    attempt: int


@dataclass(frozen=True, slots=True)
class Send:
    """Put `data` on the output stream."""

    attempt: int
    data: Data | Welcome


@dataclass(frozen=True, slots=True)
class Reply:
    """Say something on the reverse direction of an input stream."""

    conn: int
    message: ChannelMessage


@dataclass(frozen=True, slots=True)
class Refuse:
    """Close an input stream: its sender is fenced or superseded."""

    conn: int


@dataclass(frozen=True, slots=True)
class Tell:
    """Send a report to the coordinator."""

    report: Report


@dataclass(frozen=True, slots=True)
class StoreLayer:
    """Put a sealed layer into the checkpoint store, then say :class:`LayerStored`.

    ``layer`` has no delta yet; its delta is ``bytes(delta)``, which may take a while.
    """

    layer: Layer
    delta: bytes | SupportsBytes


@dataclass(frozen=True, slots=True)
class Release:
    """The house-keeper holds all entries that this output depends on: it may take effect."""

    channel: int
    item: Item
    generation: int


@dataclass(frozen=True, slots=True)
class NeedRows:
    """Replay: read again exactly these cuts, one after the other, and offer each.

    ``cuts``: the number of rows of each, and the reader's own position, if it has one.
    """

    cuts: tuple[tuple[int, bytes], ...]


@dataclass(frozen=True, slots=True)
class MakeCalls:
    """Make these calls; tell their outcomes with :class:`CallsOver`, as long as this life lasts."""

    calls: tuple[tuple[CallId, Request], ...]


@dataclass(frozen=True, slots=True)
class Spill:
    """Write these batches to the local disk, then say :class:`Spilled`."""

    channel: int
    number: int
    batches: tuple[Batch, ...]


@dataclass(frozen=True, slots=True)
class ReadSpilled:
    """Read a file of batches again, then say :class:`ReadBack`."""

    channel: int
    number: int


@dataclass(frozen=True, slots=True)
class DropSpilled:
    """Nobody will ask for this file again."""

    channel: int
    number: int


ChannelEvent = Opened | Received | InputClosed | Answered | OutputClosed
"""What happens at either end of a channel."""

Disk = MakeRoom | Spilled | ReadBack
"""What concerns items that are kept on the local disk."""
Event = ChannelEvent | SourceRows | SourceEnded | LayerStored | Written | CallsOver | Disk | Tick
Action = (
    Dial
    | Hang
    | Send
    | Reply
    | Refuse
    | Tell
    | StoreLayer
    | Release
    | NeedRows
    | MakeCalls
    | Spill
    | ReadSpilled
    | DropSpilled
)


class Trial(Enum):
    """What became of a process that tried something. UNKNOWN: it hung, or had no result."""

    SURVIVED = "survived"
    DIED = "died"
    UNKNOWN = "unknown"


class World(Protocol):
    """The nondeterministic outside, as one object: asked only when live, never on replay."""

    def clock_ms(self) -> int:
        """Wall clock in ms since the epoch. It may be set, even by hours, at any time."""

    def ticks_ms(self) -> int:
        """Milliseconds since some moment of this process; nobody can set them."""

    def call(self, fn: Any, args: Any, kwargs: Any) -> Any:
        """Call a user's function; raises what it raises."""

    def decode_rows(self, content: bytes) -> Batch:
        """Rows from the content that a gated source put into its log (a pure function)."""

    def attempt(self, program: Program, do: Callable[[Program], None]) -> Trial:
        """Do something with a copy of `program`, in a process whose end hurts nobody."""

    def pick(self, batch: Batch, rows: Sequence[int]) -> Batch:
        """These rows of a batch, by number from 0 (a pure function)."""

    def show(self, batch: Batch) -> str:
        """The first row of a batch, for people, not too long."""
