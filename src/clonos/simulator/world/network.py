"""Streams between processes: FIFO each way; they can be slow, cut or lost, but never corrupt."""

from __future__ import annotations

from random import Random
from typing import Any, Protocol

from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.simulator.world.virtual import Scheduler

SILENCE_MS = 40.0
"""Time until a process notices that the other end of a connection does not answer."""


class Host(Protocol):
    """A process that can be at the end of a stream."""

    alive: bool
    address: str
    group: str
    slowness: float

    def rouse(self) -> None:
        """There is something to look at."""

    def opened(self, stream: Stream) -> None: ...
    def received(self, stream: Stream, data: msg.Data | msg.Welcome) -> None: ...
    def input_closed(self, stream: Stream) -> None: ...
    def answered(self, stream: Stream, message: Any) -> None: ...
    def output_closed(self, stream: Stream) -> None: ...


class Stream:
    """One attempt to connect one channel. Each end may close it, or lose it."""

    __slots__ = (
        "back_at", "channel", "conn", "forth_at", "incarnation", "is_lost", "is_silent", "one_way",
        "receiver", "receiver_incarnation", "receiver_open", "sender", "sender_open",
    )  # fmt: skip

    def __init__(
        self,
        sender: Host,
        channel: int,
        incarnation: Incarnation,
        receiver_incarnation: Incarnation,
        conn: int,
    ) -> None:
        self.sender = sender
        self.channel = channel
        self.incarnation = incarnation
        self.receiver_incarnation = receiver_incarnation
        self.conn = conn
        self.receiver: Host | None = None
        self.sender_open = True
        self.receiver_open = False
        self.is_lost = False
        self.is_silent = False
        self.one_way: Host | None = None  # only messages from this end are lost
        self.forth_at = 0.0
        self.back_at = 0.0

    @property
    def stood(self) -> bool:
        """Whether the sender has ever reached the other end."""
        return self.receiver is not None


class Network:
    """All streams of the cluster.

    Attributes
    ----------
    cuts
        Pairs of addresses that cannot reach each other; attempts to connect fail at once.
    parted
        Pairs of executors, with a time: until then, messages from the first to the second are
        dropped silently.
    """

    def __init__(self, scheduler: Scheduler, random: Random) -> None:
        self.scheduler = scheduler
        self.random = random
        self.hosts: dict[str, Host] = {}
        self.cuts: set[frozenset[str]] = set()
        self.parted: dict[tuple[str, str], float] = {}
        self.streams: set[Stream] = set()
        self.latency_ms = 1.0
        self._conns = 1_000_000  # lower numbers are slots

    def delay(self, *hosts: Host) -> float:
        slowness = max((host.slowness for host in hosts), default=0.0)
        delay = self.latency_ms * (0.1 + self.random.random())
        return delay + (slowness * self.random.random() if slowness else 0.0)

    # --- overridden where messages are bytes (world.wired) ------------------------------------

    def joins(self, host: Host) -> None:
        """A process has started."""

    def poll(self, host: Host) -> None:
        """A process polls its network; here, messages are delivered at once."""

    def flush(self, host: Host) -> None:
        """A process flushes its messages; here, nothing is held back."""

    def listened_s(self, host: Host) -> float:
        """For how long a process has been listening."""
        return self.scheduler.now / 1000

    def carried(self, message: Any) -> Any:
        """A message as it arrives on a control stream."""
        return message

    def reaches(self, one: Host, other: Host) -> bool:
        return frozenset((one.address, other.address)) not in self.cuts

    # --- the sender's end -----------------------------------------------------------------------

    def dial(
        self,
        sender: Host,
        channel: int,
        incarnation: Incarnation,
        receiver_incarnation: Incarnation,
        address: str,
    ) -> Stream:
        self._conns += 1
        stream = Stream(sender, channel, incarnation, receiver_incarnation, self._conns)
        self.streams.add(stream)
        self.scheduler.after(self.delay(sender), self._arrive, stream, address)
        return stream

    def _arrive(self, stream: Stream, address: str) -> None:
        host = self.hosts.get(address)
        if host is not None and self.is_parted(stream.sender, host):
            stream.is_silent = True
            self.scheduler.after(SILENCE_MS, self._end_sender, stream)
            return
        if not stream.sender_open or not stream.sender.alive:
            self.streams.discard(stream)
            return
        if host is None or not host.alive or not self.reaches(stream.sender, host):
            self._fail_dial(stream)
            return
        stream.receiver = host
        if self.random.random() < 0.02:
            self._fail_dial(stream)
            return
        stream.receiver_open = True
        host.opened(stream)

    def _fail_dial(self, stream: Stream) -> None:
        """The failure is reported after a pause, or two processes would dial in circles."""
        wait = self.latency_ms * (2 + 8 * self.random.random())
        self.scheduler.after(wait, self._end_sender, stream)

    def send(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        if not stream.sender_open or stream.receiver is None:
            return
        at = self.scheduler.now + self.delay(stream.sender, stream.receiver)
        stream.forth_at = max(at, stream.forth_at)
        self.scheduler.at(stream.forth_at, self._deliver, stream, data)

    def hang(self, stream: Stream) -> None:
        stream.sender_open = False
        at = max(stream.forth_at, self.scheduler.now + self.delay(stream.sender))
        self.scheduler.at(at, self._end_receiver, stream)

    def _deliver(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        if stream.receiver_open and not stream.is_lost and stream.one_way is not stream.sender:
            assert stream.receiver is not None
            stream.receiver.received(stream, data)

    def _end_sender(self, stream: Stream) -> None:
        if stream.sender_open:
            stream.sender_open = False
            if stream.sender.alive:
                stream.sender.output_closed(stream)
        if not stream.receiver_open:
            self.streams.discard(stream)

    # --- the receiver's end -----------------------------------------------------------------------

    def reply(self, stream: Stream, message: msg.ChannelMessage) -> None:
        if not stream.receiver_open or stream.receiver is None:
            return
        at = self.scheduler.now + self.delay(stream.sender, stream.receiver)
        stream.back_at = max(at, stream.back_at)
        self.scheduler.at(stream.back_at, self._answer, stream, message)

    def refuse(self, stream: Stream) -> None:
        stream.receiver_open = False
        at = max(stream.back_at, self.scheduler.now + self.delay(stream.sender))
        self.scheduler.at(at, self._end_sender, stream)

    def _answer(self, stream: Stream, message: msg.ChannelMessage) -> None:
        is_deaf = stream.is_lost or (stream.one_way is stream.receiver is not None)
        if stream.sender_open and stream.sender.alive and not is_deaf:
            stream.sender.answered(stream, message)

    def _end_receiver(self, stream: Stream) -> None:
        if stream.receiver_open:
            stream.receiver_open = False
            assert stream.receiver is not None
            if stream.receiver.alive:
                stream.receiver.input_closed(stream)
        if not stream.sender_open:
            self.streams.discard(stream)

    # --- faults -----------------------------------------------------------------------------------

    def lose(self, stream: Stream) -> None:
        """Both ends learn that the stream is gone, at different times; messages under way arrive
        or are lost."""
        if self.random.random() < 0.5:
            stream.is_lost = True
        now = self.scheduler.now
        self.scheduler.at(
            max(stream.forth_at, now + 3 * self.delay(stream.sender)), self._end_receiver, stream
        )
        self.scheduler.at(
            max(stream.back_at, now + 3 * self.delay(stream.sender)), self._end_sender, stream
        )

    def give_up(self, stream: Stream) -> None:
        """The sender closes a stream; its receiver does not know."""
        if stream.sender_open:
            stream.sender_open = False
            stream.sender.output_closed(stream)
            self.scheduler.after(30.0, self.hang, stream)

    def delay_stream(self, stream: Stream, ms: float) -> None:
        """From now on, all messages of the sender are delayed by this much, in order."""
        stream.forth_at = max(stream.forth_at, self.scheduler.now + ms)

    def delay_from(self, sender: Host, receiver: Host, ms: float) -> None:
        """The same for all streams between two processes."""
        for stream in self.streams:
            if stream.sender is sender and stream.receiver is receiver:
                self.delay_stream(stream, ms)

    def host_died(self, host: Host, *, is_silent: bool = False) -> None:
        """A process has died; `is_silent`: with its machine, so that no peer is told."""
        for stream in self._of(host):
            if is_silent:
                self._fall_silent(stream)
            else:
                self.lose(stream)
            if stream.sender is host:
                stream.sender_open = False
            else:
                stream.receiver_open = False

    def cut(self, one: Host, other: Host) -> None:
        self.cuts.add(frozenset((one.address, other.address)))
        for stream in self._of(one):
            if other in (stream.sender, stream.receiver):
                self.lose(stream)

    def is_parted(self, one: Host, other: Host) -> bool:
        """Whether messages in either direction are dropped: then the two cannot connect, and each
        will take the other to be silent."""
        return self._is_mute(one, other) or self._is_mute(other, one)

    def _is_mute(self, one: Host, other: Host) -> bool:
        return self.parted.get((one.group, other.group), 0.0) > self.scheduler.now

    def part(self, one: Host, other: Host, lasts: float, *, one_way: bool = False) -> None:
        """Drop all messages between two executors, or (`one_way`) those of the first. If this
        lasts, both notice the silence, because nothing is acknowledged.

        A short outage is only a delay: messages are sent again.
        """
        until = self.scheduler.now + lasts
        self.parted[one.group, other.group] = until
        if not one_way:
            self.parted[other.group, one.group] = until
        for stream in sorted(self.streams, key=lambda s: s.conn):
            sender, receiver = stream.sender, stream.receiver
            if receiver is None or not self.is_parted(sender, receiver):
                continue
            forth, back = self._is_mute(sender, receiver), self._is_mute(receiver, sender)
            if lasts < SILENCE_MS:
                stream.forth_at = max(stream.forth_at, until if forth else 0.0)
                stream.back_at = max(stream.back_at, until if back else 0.0)
                continue
            if forth and back:
                self._fall_silent(stream)
            else:
                self._fall_silent(stream, only=sender if forth else receiver)

    def _fall_silent(self, stream: Stream, only: Host | None = None) -> None:
        """Messages (if given, only those of the end `only`) no longer arrive; no end is told."""
        stream.is_silent = True
        if only is None:
            stream.is_lost = True
        else:
            stream.one_way = only
        for end in (self._end_receiver, self._end_sender):
            after = SILENCE_MS * (0.7 + 0.6 * self.random.random())
            self.scheduler.after(after, end, stream)

    def _of(self, host: Host) -> list[Stream]:
        found = [s for s in self.streams if host is s.sender or host is s.receiver]
        return sorted(found, key=lambda s: s.conn)
