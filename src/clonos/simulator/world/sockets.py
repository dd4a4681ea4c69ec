"""Simulated sockets: TCP between simulated machines, as far as a process can tell.

Bytes arrive late, in pieces of any size, and in order. Buffers fill up. A process that closes a
socket before it has read everything resets the connection. When a process is killed, bytes that its
kernel had accepted are still delivered. Bytes lost in an outage are sent again when it ends. The
kernel reports for how long nothing was acknowledged (:mod:`clonos.transport.silence` reads this as
it does on Linux).
"""

from __future__ import annotations

import errno
import itertools
import math
import selectors
import struct
from collections import deque
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, Final, Protocol, cast

from clonos.simulator.world.virtual import Scheduler

SCALE: Final = 25.0
"""Time runs faster for planes by this factor: their timeouts are seconds, while everything else
here takes milliseconds."""
CAPACITIES: Final = (700, 8 << 10, 1 << 20)
"""Buffer sizes: bytes that a connection accepts before they are read."""
RTO_S: Final = 0.2
"""Time until the first retransmission; each further one takes twice as long."""
IDLE_S: Final = 4.0
"""A kernel gives an idle connection up when its probes have gone unanswered for this long."""
SYN_S: Final = 1.0
"""Time until an unanswered connection request is repeated."""

_INFO: Final = struct.Struct("=8B13I")


class Machine(Protocol):
    """An owner of sockets: a process, or rather the kernel below it."""

    alive: bool
    address: str


class Paths(Protocol):
    """The network between two machines."""

    def delay_between(self, one: Machine, other: Machine) -> float:
        """The present delay of a packet, in ms."""

    def opens_at(self, one: Machine, other: Machine) -> float:
        """From when packets of the first reach the second again; in the past if they do now."""

    def is_refused(self, one: Machine, other: Machine) -> bool:
        """Whether a connection attempt is refused at once."""

    def rouse(self, machine: Machine) -> None:
        """The machine's loop has something to handle."""


class Pipe:
    """One direction of a connection: bytes that one end has sent and the other has not read.

    Attributes
    ----------
    came
        Bytes in the receiver's kernel.
    not_before
        Nothing arrives before this time.
    is_mute
        Bytes sent from now on never arrive: the receiver's machine is gone.
    """

    def __init__(self, sender: SimSocket, receiver: SimSocket, capacity: int) -> None:
        self.sender, self.receiver, self.capacity = sender, receiver, capacity
        self.came = bytearray()
        self.under_way = 0
        self.not_before = self.last_at = 0.0
        self.unacked: deque[float] = deque()
        self.heard_at = sender.world.scheduler.now
        self.is_mute = self.is_lost = False
        self._way: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()

    @property
    def room(self) -> int:
        return self.capacity - self.under_way - len(self.came)

    def send(self, content: bytes) -> None:
        self.under_way += len(content)
        self.unacked.append(self.sender.world.scheduler.now)
        self._carry(self._arrive, content)

    def finish(self) -> None:
        """Send the end of the stream, behind all bytes."""
        self._carry(self._ended)

    def reset(self) -> None:
        """Reset the connection; some bytes under way may arrive before the reset."""
        self.is_lost = self.sender.world.random.random() < 0.5
        self._carry(self.receiver.broken, errno.ECONNRESET)

    def _carry(self, arrive: Callable[..., None], *what: Any) -> None:
        world = self.sender.world
        at = world.scheduler.now + world.delay(self.sender, self.receiver)
        self.last_at = max(at, self.last_at, self.not_before)
        self._way.append((arrive, what))
        world.scheduler.at(self.last_at, self._retry)

    def _retry(self) -> None:
        """Deliver the oldest bytes under way, or, if they are lost, try again later. Bytes sent
        during an outage overtake nothing sent before."""
        world = self.sender.world
        opens_at = world.paths.opens_at(self.sender.machine, self.receiver.machine)
        if opens_at > world.scheduler.now:
            self.not_before = max(self.not_before, opens_at)
            self.last_at = max(self.last_at, self.not_before)
            world.scheduler.at(opens_at, self._retry)
            return
        arrive, what = self._way.popleft()
        if not (self.is_mute or self.receiver.is_gone):
            arrive(*what)

    def _arrive(self, content: bytes) -> None:
        self.under_way -= len(content)
        if self.is_lost:
            return
        world = self.sender.world
        back_at = max(
            world.scheduler.now + world.delay(self.receiver, self.sender),
            world.paths.opens_at(self.receiver.machine, self.sender.machine),
        )
        world.scheduler.at(back_at, self._acknowledged)
        if self.receiver.is_closed:  # nobody will read it
            world.scheduler.at(back_at, self.sender.broken, errno.EPIPE)
            return
        self.came += content
        world.paths.rouse(self.receiver.machine)

    def _acknowledged(self) -> None:
        if self.unacked:
            self.unacked.popleft()
        self.heard_at = self.sender.world.scheduler.now
        if self.sender.is_waiting:
            self.sender.world.paths.rouse(self.sender.machine)

    def _ended(self) -> None:
        self.receiver.has_end = True
        self.sender.world.paths.rouse(self.receiver.machine)


class SimSocket:
    """One end of a connection, with as much of a socket's interface as a plane uses.

    Attributes
    ----------
    is_gone
        Its machine is lost: the kernel no longer answers.
    is_waiting
        Its loop waits for room to write.
    first
        The first bytes sent on it.
    is_stranger
        The connection was opened by a process outside the job.
    """

    def __init__(self, world: World, machine: Machine) -> None:
        self.world, self.machine = world, machine
        self.number = next(world.numbers)
        self.out: Pipe | None = None
        self.into: Pipe | None = None
        self.error = 0
        self.first = b""
        self.has_end = self.is_closed = self.is_gone = self.is_waiting = False
        self.is_shut = self.is_stranger = False

    def fileno(self) -> int:
        return self.number

    def setblocking(self, flag: bool) -> None:
        assert not flag, "a plane never blocks"

    def setsockopt(self, *_: Any) -> None:
        """Ignored: the simulation has its own probes and delays."""

    def getsockopt(self, *_: Any) -> bytes:
        """The fields of Linux's ``tcp_info`` that are read."""
        if self.out is None:
            return b""
        info, now = [0] * 21, self.world.scheduler.now
        if self.out.unacked:
            waited_s = (now - self.out.unacked[0]) * SCALE / 1000
            info[2] = int(math.log2(waited_s / RTO_S + 1))
        info[12] = len(self.out.unacked)
        info[20] = int((now - self.out.heard_at) * SCALE)
        return _INFO.pack(*info)

    def getpeername(self) -> tuple[str, int]:
        if self.out is None:
            raise OSError(errno.ENOTCONN, "not connected")
        return self.world.name_of(self.out.receiver.machine)

    # --- connecting -----------------------------------------------------------------------------

    def dial(self, host: str, port: int) -> int:
        self.world.scheduler.after(0.0, self._dial, (host, port))
        return errno.EINPROGRESS

    def _dial(self, name: tuple[str, int]) -> None:
        world = self.world
        if self.is_closed or self.is_gone or not self.machine.alive:
            return
        far = world.machines.get(name)
        if far is not None and world.paths.is_refused(self.machine, far):
            far = None
        elif name in world.lost or (far is not None and world.is_cut(self.machine, far)):
            world.scheduler.after(SYN_S * 1000 / SCALE, self._dial, name)
            return
        delay = world.paths.delay_between(self.machine, far or self.machine)
        world.scheduler.after(delay, self._answered, far)

    def _answered(self, far: Machine | None) -> None:
        world = self.world
        if self.is_closed or self.is_gone or not self.machine.alive:
            return
        listener = world.listeners.get(world.name_of(far)) if far is not None else None
        if far is None or not far.alive or listener is None or world.random.random() < 0.02:
            self.broken(errno.ECONNREFUSED)
            return
        other = SimSocket(world, far)
        other.is_stranger = self.is_stranger
        capacity = world.random.choice(CAPACITIES)
        self.out = other.into = Pipe(self, other, capacity)
        self.into = other.out = Pipe(other, self, capacity)
        world.sockets += (self, other)
        listener.backlog.append(other)
        world.paths.rouse(far)
        world.paths.rouse(self.machine)

    # --- reading and writing --------------------------------------------------------------------

    def sendmsg(self, pieces: list[Any]) -> int:
        if self.error or self.is_closed:
            raise OSError(self.error or errno.EBADF, "broken")
        if self.out is None:
            raise BlockingIOError
        content = b"".join(bytes(piece) for piece in pieces)
        size = min(len(content), self.out.room)
        if size and self.world.random.random() < 0.2:  # the kernel accepts only a part
            size = self.world.random.randint(1, size)
        if not size:
            raise BlockingIOError
        self.first = self.first or content
        self.out.send(content[:size])
        return size

    def recv(self, limit: int) -> bytes:
        into = self.into
        if into is not None and into.came:
            was_full = not into.room
            size = min(limit, len(into.came))
            if self.world.random.random() < 0.3:
                size = self.world.random.randint(1, size)
            came = bytes(into.came[:size])
            del into.came[:size]
            if was_full:
                self.world.paths.rouse(into.sender.machine)
            if into.came:  # the next poll finds the rest
                self.world.scheduler.after(0.0, self.world.paths.rouse, self.machine)
            return came
        if self.error:
            raise OSError(self.error, errno.errorcode[self.error])
        if self.has_end:
            return b""
        raise BlockingIOError

    def recv_into(self, buffer: memoryview) -> int:
        came = self.recv(len(buffer))
        buffer[: len(came)] = came
        return len(came)

    @property
    def is_readable(self) -> bool:
        return bool(self.error or self.has_end or (self.into is not None and self.into.came))

    @property
    def is_writable(self) -> bool:
        return bool(self.error or (self.out is not None and self.out.room > 0))

    # --- the end --------------------------------------------------------------------------------

    def broken(self, code: int) -> None:
        """The kernel learns that the connection is over."""
        if not (self.is_closed or self.error or self.is_gone):
            self.error = code
            self.world.paths.rouse(self.machine)

    def shutdown(self, _: int) -> None:
        if self.error or self.out is None:
            raise OSError(self.error or errno.ENOTCONN, "broken")
        if not self.is_shut:
            self.is_shut = True
            self.out.finish()

    def close(self) -> None:
        """Unread bytes reset the connection, as on Linux."""
        if self.is_closed:
            return
        self.is_closed = True
        if self.out is not None and self.into is not None and not self.error:
            if self.into.came:
                self.out.reset()
            elif not self.is_shut:
                self.is_shut = True
                self.out.finish()
        if self in self.world.sockets:
            self.world.sockets.remove(self)

    def vanish(self) -> None:
        """The machine is gone; no peer is told."""
        self.is_gone = self.is_closed = True
        if self.out is not None:
            self.out.is_mute = True

    def probe(self) -> None:
        """Give the connection up if it is idle and probes go unanswered."""
        if self.out is None or self.error or self.out.unacked:
            return
        now, far = self.world.scheduler.now, self.out.receiver
        if not far.is_gone and not self.world.is_cut(self.machine, far.machine):
            self.out.heard_at = now
        elif (now - self.out.heard_at) * SCALE > IDLE_S * 1000:
            self.broken(errno.ETIMEDOUT)


class Listener:
    """A listening socket; the kernel accepts connections before the process does."""

    def __init__(self, world: World, name: tuple[str, int]) -> None:
        self._world, self._name = world, name
        self.number = next(world.numbers)
        self.backlog: deque[SimSocket] = deque()

    def fileno(self) -> int:
        return self.number

    def getsockname(self) -> tuple[str, int]:
        return self._name

    def accept(self) -> tuple[SimSocket, tuple[str, int]]:
        if not self.backlog:
            raise BlockingIOError
        accepted = self.backlog.popleft()
        return accepted, accepted.getpeername()

    @property
    def is_readable(self) -> bool:
        return bool(self.backlog)

    def close(self) -> None:
        self._world.listeners.pop(self._name, None)


class Selector:
    """A selector that never sleeps."""

    def __init__(self) -> None:
        self._keys: dict[Any, selectors.SelectorKey] = {}

    def register(self, what: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[what] = selectors.SelectorKey(what, id(what), events, data)
        self._watch(what, events)
        return key

    def modify(self, what: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        return self.register(what, events, data)

    def unregister(self, what: Any) -> selectors.SelectorKey:
        self._watch(what, 0)
        return self._keys.pop(what)

    @staticmethod
    def _watch(what: Any, events: int) -> None:
        if isinstance(what, SimSocket):
            what.is_waiting = bool(events & selectors.EVENT_WRITE)

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, _: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = []
        for what, key in list(self._keys.items()):
            if isinstance(what, SimSocket):
                what.probe()
                mask = selectors.EVENT_READ * what.is_readable
                mask |= selectors.EVENT_WRITE * (what.is_waiting and what.is_writable)
            else:
                mask = selectors.EVENT_READ * getattr(what, "is_readable", False)
            if mask := mask & key.events:
                ready.append((key, mask))
        return ready

    def close(self) -> None:
        self._keys.clear()


class World:
    """All sockets of a simulation.

    Attributes
    ----------
    machines
        Machines by host and port.
    lost
        Addresses that answer nothing at all, not even a refusal.
    overheard
        First bytes of connections that their receivers have read; strangers repeat them.
    """

    def __init__(self, scheduler: Scheduler, random: Random, paths: Paths) -> None:
        self.scheduler, self.random, self.paths = scheduler, random, paths
        self.numbers = itertools.count(3)
        self.machines: dict[tuple[str, int], Machine] = {}
        self.lost: set[tuple[str, int]] = set()
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.sockets: list[SimSocket] = []
        self.overheard = deque[bytes](maxlen=50)
        self._names: dict[str, tuple[str, int]] = {}

    def delay(self, one: SimSocket, other: SimSocket) -> float:
        """The present delay from one socket to the other."""
        return self.paths.delay_between(one.machine, other.machine)

    def is_cut(self, one: Machine, other: Machine) -> bool:
        """Whether packets in either direction are now lost."""
        now = self.scheduler.now
        return self.paths.opens_at(one, other) > now or self.paths.opens_at(other, one) > now

    def name_of(self, machine: Machine) -> tuple[str, int]:
        return self.name(machine.address)

    def name(self, address: str) -> tuple[str, int]:
        """Host and port of the process with this address in the simulation."""
        return self._names.setdefault(address, ("127.0.0.1", 1024 + len(self._names)))

    def of(self, machine: Machine) -> list[SimSocket]:
        return [one for one in self.sockets if one.machine is machine]

    def ends(self, machine: Machine, *, silently: bool) -> None:
        """A process ends, with its machine if `silently`."""
        name = self.name_of(machine)
        self.machines.pop(name, None)
        if silently:
            self.lost.add(name)
        for one in self.of(machine):
            if silently:
                one.vanish()
            else:
                one.close()
        if (listener := self.listeners.pop(name, None)) is not None:
            for waiting in listener.backlog:
                waiting.close()


class SimSockets:
    """The :class:`~clonos.transport.sockets.Sockets` of one process."""

    def __init__(self, world: World, machine: Machine) -> None:
        self._world, self._machine = world, machine

    def listen(self, _: str) -> Any:
        name = self._world.name_of(self._machine)
        self._world.machines[name] = self._machine
        self._world.lost.discard(name)
        made = self._world.listeners[name] = Listener(self._world, name)
        return made

    def connect(self, host: str, port: int) -> tuple[Any, int]:
        made = SimSocket(self._world, self._machine)
        return made, made.dial(host, port)

    def selector(self) -> Any:
        return cast("Any", Selector())

    def now_s(self) -> float:
        return self._world.scheduler.now / 1000 * SCALE
