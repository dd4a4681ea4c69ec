"""What the transport reports to its process's loop.

A report is one of the events below or, for every message of a peer, a pair ``(conn_id, message)``.
A connection's messages come between its opening and its closing event.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, Literal, NamedTuple, Protocol

from clonos.core.codec import CODEC
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError


class Connection(Protocol):
    """One end of a stream between two processes, as the loop that owns it sees it."""

    @property
    def conn_id(self) -> int:
        """Identifies the connection in its messages and events."""

    @property
    def stood(self) -> bool:
        """Whether any sent message has left, so that there was a process at the other end."""

    def send(self, message: Any) -> None:
        """Queue a message; never blocks. Lost if the connection is over."""

    def close(self) -> None:
        """Send what is queued, then close the connection. It produces no more events."""


@dataclass(frozen=True, slots=True)
class Register:
    """A slot to the coordinator, as its first message: which process it is and its versions.

    ``attempt`` is Spark's task attempt id and ``nonce`` random: an attempt that runs twice is two
    slots. ``jvm_pid`` is the executor's process on ``host``, for anti-affinity. ``versions`` must
    be equal everywhere (:mod:`clonos.runtime.versions`). ``disk``: the name of the disk on which it
    keeps layers, the same for all slots with this disk.
    """

    slot: int
    attempt: int
    nonce: str
    host: str
    executor: str
    jvm_pid: int
    pid: int
    address: str
    versions: dict[str, str]
    disk: str = ""


STUCK_MS: Final = 30_000
"""A step that takes longer is worth a warning."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A slot to the coordinator: alive, `progress` steps done.

    ``nonce`` is that of the slot's registration. ``long_ms``: how long a step has been under way,
    if that is long; ``task``: the task of that step (empty: no step, it makes what its tasks run or
    restores their state); ``lines``: where it is in the user's code.
    """

    nonce: str
    progress: int
    long_ms: int = 0
    task: str = ""
    lines: str = ""


class Away(NamedTuple):
    """A service has answered nothing for some time: the user's function, and its last error."""

    seconds: int
    function: str
    error: str


@dataclass(frozen=True, slots=True)
class TaskStatistics:
    """A slot to the coordinator, periodically: statistics of its task (for display only).

    ``away``: by name, the services that answer nothing.
    """

    task: int
    now_ms: int
    counters: dict[str, int]
    away: dict[str, Away] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Refused:
    """The last message on a stream, which tells the peer its mistake."""

    error: str
    message: str


WIRE: Final = CODEC.extended({66: Register, 67: Heartbeat, 68: TaskStatistics, 69: Refused})
"""Everything that travels on a stream. The transport owns the numbers from 64 on."""


@dataclass(frozen=True, slots=True)
class ChannelOpened:
    """A sender has connected; it waits for a Hello by ``incoming.send``."""

    channel: int
    conn_id: int
    sender_incarnation: Incarnation
    receiver_incarnation: Incarnation
    incoming: Connection


@dataclass(frozen=True, slots=True)
class ChannelClosed:
    """A channel's stream has ended on this side; `error` says why, unless it was asked for."""

    channel: int
    conn_id: int
    side: Literal["sender", "receiver"]
    error: ClonosError | None = None


@dataclass(frozen=True, slots=True)
class ControlOpened:
    """A slot has registered with this coordinator; commands go out by ``incoming.send``."""

    conn_id: int
    register: Register
    incoming: Connection


@dataclass(frozen=True, slots=True)
class ControlLost:
    """The control stream of a slot (or its pulse) is over: the process at the other end is gone."""

    slot: int
    conn_id: int
    error: ClonosError | None = None


@dataclass(frozen=True, slots=True)
class ClientOpened:
    """A client has connected; requests are answered by ``incoming.send``."""

    conn_id: int
    incoming: Connection


@dataclass(frozen=True, slots=True)
class ClientClosed:
    """A client's stream is over; `error` says why, at either end, if it did not just leave."""

    conn_id: int
    error: ClonosError | None = None


Event = ChannelOpened | ChannelClosed | ControlOpened | ControlLost | ClientOpened | ClientClosed
