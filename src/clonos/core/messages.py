"""All messages between processes, as plain data.

There are three sections: along a data channel, from the coordinator to a slot, and from a slot to
the coordinator. :mod:`clonos.core.codec` turns them into bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import NamedTuple

from clonos.core.levels import (
    Held,
    Lacks,
    LayerCommand,
    LayerRef,
    LayersMerged,
    LevelInUse,
)
from clonos.core.mandate import MandateAsked, MandateGiven
from clonos.core.plan import Incarnation
from clonos.core.program import Batch
from clonos.core.suspects import Rows, Suspect


class Kind(IntEnum):
    """What an item of a channel is."""

    BATCH = 0
    MARKER = 1
    WATERMARK = 2
    END = 3
    PROBE = 4


class Dependency(NamedTuple):
    """How much of one task's log something depends on: the first `position` entries as written
    up to `incarnation`."""

    incarnation: Incarnation
    position: int


Dependencies = dict[int, Dependency]


@dataclass(frozen=True, slots=True)
class Item:
    """One numbered element of a channel.

    ``value`` is the epoch of a marker, the time of a watermark in ms, or what a probe says
    (:mod:`clonos.core.loops`); ``chain`` the running digest of the channel up to and including this
    item; ``dep`` what this item depends on, the sender's own log included. ``born_ms``: when its
    oldest row was read from the source; for display only, no part of the digest. ``watermark``: of
    a batch, the watermark that follows it; an item of its own only if there is no batch.
    """

    seq: int
    kind: Kind
    epoch: int
    value: int
    batch: Batch | None
    dep: Dependencies
    chain: int
    born_ms: int = 0
    watermark: int | None = None

    def of(self, maker: int) -> Item:
        """The same item for a process that holds all logs: it depends only on its maker's step."""
        return replace(self, dep={maker: self.dep[maker]})


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive log entries of one task: positions `start`, `start + 1`, ... .

    All of them were first written by `incarnation`. If the receiver lacks entries before `start`,
    these are not above `stable`: the house-keeper holds them.
    """

    task: int
    incarnation: Incarnation
    start: int
    records: tuple[bytes, ...]
    stable: int = 0

    @property
    def end(self) -> int:
        return self.start + len(self.records) - 1


# --- along a data channel -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Data:
    """Sender to receiver: an item with its causal delta, or (``item=None``) the delta alone."""

    channel: int
    incarnation: Incarnation
    item: Item | None
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Hello:
    """Receiver to sender on (re)connection: what it has, and so what it needs.

    The channel continues from ``next_seq`` on, checked by digest; or (availability) with what the
    sender makes after its step ``reset_at``, where its log was cut, whatever the receiver had
    before.
    """

    channel: int
    incarnation: Incarnation
    next_seq: int
    chain: int
    lengths: dict[int, int]
    reset_at: int | None = None


@dataclass(frozen=True, slots=True)
class Welcome:
    """Sender to a receiver that starts over: number and digest with which the channel continues."""

    channel: int
    incarnation: Incarnation
    next_seq: int
    chain: int


@dataclass(frozen=True, slots=True)
class Credit:
    """Receiver to sender: items up to `processed` have been processed.

    ``relaxed``: unsent items are no backlog (the receiver replays or aligns). The house-keeper adds
    how much of each log it holds durably (``stable``).
    """

    channel: int
    processed: int
    relaxed: bool = False
    stable: dict[int, int] = field(default_factory=dict)


# --- coordinator to slot --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Peer:
    """Where a channel's receiver is now."""

    channel: int
    incarnation: Incarnation
    address: str


@dataclass(frozen=True, slots=True)
class Fence:
    """Refuse every incarnation of `task` below `incarnation` from now on, and answer."""

    task: int
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Resolve:
    """The fenced task's log survives up to `length`; `incarnation` writes on from there.

    ``reset``: availability was chosen; forgive dependencies beyond `length`.
    """

    task: int
    incarnation: Incarnation
    length: int
    generation: int = 0
    reset: bool = False


@dataclass(frozen=True, slots=True)
class Handed:
    """What a task at rest gives to its next life, which so has nothing to replay.

    ``position``: of its last step; ``layer``: the changes since the floor, encoded, with all items
    that receivers may still ask for; ``runs``: all log entries that the task holds.
    """

    position: int
    layer: bytes
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Activate:
    """Become `task`: restore the layers, replay the log, go live.

    ``log``: the last piece of the log; earlier ones have come as :class:`LogPiece`. ``handed``: the
    life before has handed over; then there is no log to replay.

    ``fences``: every resolved fence still in force, so that this life refuses what all others
    refuse.

    ``watched_steps``: how many live steps to announce; ``suspects``: rows to be tried first.

    ``claimed``: at most once, what earlier lives of a source have taken: the number of rows, and
    the reader's own position after them.
    """

    task: int
    incarnation: Incarnation
    layers: tuple[LayerRef, ...]
    log: tuple[Run, ...]
    fences: tuple[Resolve, ...]
    peers: tuple[Peer, ...]
    generation: int = 0
    watched_steps: int = 0
    suspects: tuple[Suspect, ...] = ()
    claimed: tuple[int, bytes] = (0, b"")
    handed: Handed | None = None


@dataclass(frozen=True, slots=True)
class LogPiece:
    """A part of the log that `task` is to replay, sent before the Activate of this life."""

    task: int
    incarnation: Incarnation
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Connect:
    """A receiver of yours is (again) at this address."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class Inject:
    """Take a marker for `epoch` (tasks without open inputs)."""

    epoch: int


@dataclass(frozen=True, slots=True)
class Floor:
    """Some floors have moved: to these `positions`, by task; ``needs``: by channel, the last item
    that its receiver will never ask for again."""

    positions: dict[int, int]
    needs: dict[int, int]


@dataclass(frozen=True, slots=True)
class SealLayer:
    """Seal a layer before its time, as only floors remove log entries; ``when_cheap``: not at once.
    A task that has nothing to seal may answer with :class:`Resting` and the same `number`."""

    when_cheap: bool = False
    number: int = 0


@dataclass(frozen=True, slots=True)
class Granted:
    """The journal has a :class:`Claim`: output of the steps up to `position` may leave the task."""

    position: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """The task is about to move: seal what has changed, say so (:class:`Prepared`), and seal no
    more until a :class:`Resume`. What changes from then on is handed over."""


@dataclass(frozen=True, slots=True)
class Yield:
    """Take no more input, until a :class:`Resume`: end the step under way, take the outcomes of
    open calls, and let sinks write what they were given. The next life takes the input that waits
    then. The answer has the same `number`."""

    number: int


@dataclass(frozen=True, slots=True)
class Resume:
    """The move was given up: go on."""


@dataclass(frozen=True, slots=True)
class Follow:
    """Hold `task` as a passive standby, with these layers applied in order."""

    task: int
    layers: tuple[LayerRef, ...]


@dataclass(frozen=True, slots=True)
class Drop:
    """Stop holding `task`, as a standby or as its old life after a move."""

    task: int


@dataclass(frozen=True, slots=True)
class ReadLog:
    """Send the entries of `task`'s log from position `start` on."""

    task: int
    start: int


@dataclass(frozen=True, slots=True)
class Throttle:
    """Sources only: take no more rows (or take them again). Markers still flow."""

    closed: bool


TaskCommand = (
    Fence
    | Resolve
    | Connect
    | Inject
    | SealLayer
    | Floor
    | ReadLog
    | Throttle
    | Granted
    | Prepare
    | Yield
    | Resume
)
"""Commands for a task; all others are for the slot."""


@dataclass(frozen=True, slots=True)
class ToTask:
    """A command for one of the tasks in a slot."""

    task: int
    command: TaskCommand


@dataclass(frozen=True, slots=True)
class Stop:
    """Exit: the job has ended (or failed); ``is_complete``: it will never be continued."""

    is_complete: bool = False


# --- slot to coordinator --------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FenceAnswer:
    """Answer of `holder` to a Fence: how much of the log it holds, and how much of it the holder
    (and the log that it still has to replay) depends on."""

    holder: int
    task: int
    incarnation: Incarnation
    length: int
    dep: Dependency | None


@dataclass(frozen=True, slots=True)
class LogPrefix:
    """Answer to ReadLog, or a part of it; more parts follow unless it is the last."""

    holder: int
    task: int
    runs: tuple[Run, ...]
    is_last: bool = True


@dataclass(frozen=True, slots=True)
class Restored:
    """State and log are loaded; channels may connect; replay begins.

    ``state_bytes``: the size of all its layers; ``store_bytes``: of those that were read from where
    they are stored, because no standby in this slot had applied them.
    """

    task: int
    incarnation: Incarnation
    state_bytes: int = 0
    store_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Live:
    """The log is exhausted: the task makes its own choices again."""

    task: int
    incarnation: Incarnation
    position: int


@dataclass(frozen=True, slots=True)
class Announced:
    """A watched task is about to take a step with these rows, or to make a call (``shown``: for
    people). ``is_cleared``: they were suspect, and a trial in a process of its own, or the call
    itself, has survived them."""

    task: int
    incarnation: Incarnation
    rows: Rows
    is_cleared: bool
    shown: str = ""


@dataclass(frozen=True, slots=True)
class Survived:
    """The watched task has taken this step, and will announce `left` more."""

    task: int
    incarnation: Incarnation
    left: int


@dataclass(frozen=True, slots=True)
class LayerAck:
    """A layer is stored, and all output that the task delivered before it is durable.

    ``ins`` and ``outs``: by channel, the last item consumed or produced at the seal (of feedback,
    the last with rows; at most what the receiver's floor has, if there is none beyond). ``dep``:
    what the state depends on. ``generation``: the newest that the task knew of then.
    ``open_calls``: how many calls had no answer.
    """

    task: int
    incarnation: Incarnation
    ref: LayerRef
    ins: dict[int, int]
    outs: dict[int, int]
    dep: Dependencies
    generation: int = 0
    open_calls: int = 0


@dataclass(frozen=True, slots=True)
class Finished:
    """Every input has ended, every output has its END, and all output is delivered."""

    task: int
    incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Resting:
    """All that the task has done is in its layers, with so many `open_calls`, and a source takes no
    rows at present."""

    task: int
    incarnation: Incarnation
    position: int
    open_calls: int
    number: int


@dataclass(frozen=True, slots=True)
class Prepared:
    """The task has sealed its last layer for now, at `position`."""

    task: int
    incarnation: Incarnation
    position: int


@dataclass(frozen=True, slots=True)
class Yielded:
    """The task rests: no step is under way, no call is open, and all output is written.

    ``handed``: what it hands over; None: its next life has to replay its log.
    """

    task: int
    incarnation: Incarnation
    number: int
    handed: Handed | None = None


@dataclass(frozen=True, slots=True)
class TaskError:
    """The task cannot go on (user code raised, divergence, unreadable layer, ...).

    The texts are those of a :class:`~clonos.errors.ClonosError`.
    """

    task: int
    incarnation: Incarnation
    error: str
    message: str
    position: int
    where: str = ""
    remedy: str = ""
    trace: str = ""


@dataclass(frozen=True, slots=True)
class LastWords:
    """From a life that cannot go on, before its :class:`TaskError`. Either log entries that the
    house-keeper may not have, or (without `runs`) the beginning of the failed step's entry: its
    cause, and the answers it was given. A replay of the job needs them."""

    task: int
    incarnation: Incarnation
    position: int
    record: bytes = b""
    runs: tuple[Run, ...] = ()


@dataclass(frozen=True, slots=True)
class Unreachable:
    """The receiver of `channel`, in its life `peer`, cannot be connected to. ``why``: the
    transport's reason; ``is_silent``: connections are accepted there, and nothing comes back."""

    task: int
    incarnation: Incarnation
    channel: int
    peer: Incarnation
    why: str
    is_silent: bool


@dataclass(frozen=True, slots=True)
class Reached:
    """Channels to other processes are connected (again). ``peers``: by channel, the life of the
    receiver that has answered."""

    task: int
    incarnation: Incarnation
    peers: dict[int, Incarnation]


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Items that `task` has spilled to its local disk for the receiver of `channel` cannot be read:
    only a new life of the task can make them again."""

    task: int
    incarnation: Incarnation
    channel: int


@dataclass(frozen=True, slots=True)
class Claim:
    """At most once: a source has taken `rows` rows in all, up to its step `position`. Its next life
    goes on after them, so nothing made from them leaves the task before this is durable."""

    task: int
    incarnation: Incarnation
    position: int
    rows: int
    cut: bytes


@dataclass(frozen=True, slots=True)
class Followed:
    """The standby of `task` holds everything up to `epoch`."""

    task: int
    epoch: int


Command = ToTask | LogPiece | Activate | Follow | Drop | Stop | LayerCommand | MandateGiven
Report = (
    FenceAnswer
    | LogPrefix
    | Restored
    | Live
    | Announced
    | Survived
    | LayerAck
    | Finished
    | TaskError
    | LastWords
    | Followed
    | Unreachable
    | Reached
    | Unreadable
    | Resting
    | Prepared
    | Yielded
    | Claim
    | Held
    | Lacks
    | LayersMerged
    | LevelInUse
    | MandateAsked
)
ChannelMessage = Data | Hello | Welcome | Credit
