"""Which connection belongs to which channel of the tasks in this slot.

An automaton knows attempts of output channels and connections of input channels by number; this
module maps them to the network's connections. If a sender connects before its receiver is restored,
it waits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.plan import Incarnation
from clonos.errors import CannotConnect
from clonos.transport.events import ChannelClosed, ChannelOpened

if TYPE_CHECKING:
    from clonos.core.task import TaskMachine
    from clonos.errors import ClonosError
    from clonos.nodes.local import Local
    from clonos.nodes.ports import Network
    from clonos.transport.events import Connection

ANSWERED: Final = 3
"""How many times longer to try a peer that answers, even if only with a refusal."""
SILENT_S: Final = 100.0
"""How long a peer may accept connections and answer nothing. A process that restores much is as
silent as a proxy with nobody behind it; the coordinator knows whether it does."""


@dataclass
class _Trial:
    """A peer that has not answered any dial yet; times are by the network's clock. ``silent_s``:
    how long connections stood, and nothing came back."""

    peer: tuple[Incarnation, str]
    since: float
    dialled: float
    silent_s: float = 0.0


class Links:
    """The data connections of one slot.

    Parameters
    ----------
    local
        Connections between tasks of this slot.
    unreachable_s
        How long a peer may be unreachable before we complain. If the coordinator has not given it
        up by then, it may be alive behind something that drops packets.
    complain
        Called then with the channel, the life of its receiver, the reason, and whether the peer
        accepts connections; called again after the same time if nothing has changed.

    Attributes
    ----------
    reached
        Channels to other processes whose receivers have answered since these were last taken from
        here, and the lives of these receivers.
    """

    def __init__(
        self,
        network: Network,
        unreachable_s: float,
        complain: Callable[[int, Incarnation, str, bool], None],
        local: Local,
    ) -> None:
        self._network, self._local = network, local
        self._unreachable_s = unreachable_s
        self._complain = complain
        self.reached: dict[int, Incarnation] = {}
        self._trials: dict[int, _Trial] = {}
        self._out: dict[int, tuple[int, Connection]] = {}  # attempt is unique per channel
        self._channel_of: dict[int, tuple[int, int]] = {}  # conn -> (channel, attempt)
        self._in: dict[int, tuple[int, Connection]] = {}
        self._early: list[ChannelOpened] = []

    def reset(self, channels: Collection[int]) -> None:
        """A task is over, with these channels: close their connections."""
        for channel in channels:
            self._trials.pop(channel, None)
            self.reached.pop(channel, None)
        for channel in [channel for channel in self._out if channel in channels]:
            _, outgoing = self._out.pop(channel)
            self._channel_of.pop(outgoing.conn_id, None)
            outgoing.close()
        for conn in [conn for conn, (channel, _) in self._in.items() if channel in channels]:
            _, incoming = self._in.pop(conn)
            incoming.close()

    def dial(self, action: ev.Dial, incarnation: Incarnation) -> None:
        what = action.channel, incarnation, action.incarnation
        outgoing: Connection
        if action.address == self._network.address:
            outgoing = self._local.connect(*what)
        else:
            outgoing = self._network.connect(action.address, *what)
        peer = (action.incarnation, action.address)
        now = self._network.listened_s
        trial = self._trials.get(action.channel)
        if trial is None or trial.peer != peer:
            self._trials[action.channel] = _Trial(peer, now, now)
        else:
            trial.dialled = now
        self._out[action.channel] = (action.attempt, outgoing)
        self._channel_of[outgoing.conn_id] = (action.channel, action.attempt)

    def hang(self, action: ev.Hang) -> None:
        known = self._out.get(action.channel)
        if known is not None and known[0] == action.attempt:
            del self._out[action.channel]
            self._channel_of.pop(known[1].conn_id, None)
            known[1].close()

    def send(self, action: ev.Send) -> None:
        known = self._out.get(action.data.channel)
        if known is not None and known[0] == action.attempt:
            known[1].send(action.data)

    def reply(self, action: ev.Reply) -> None:
        known = self._in.get(action.conn)
        if known is not None:
            known[1].send(action.message)

    def refuse(self, action: ev.Refuse) -> None:
        known = self._in.pop(action.conn, None)
        if known is not None:
            known[1].close()

    def opened(self, event: ChannelOpened, machine: TaskMachine | None) -> ev.Opened | None:
        """A sender has connected; early ones wait, late ones are closed."""
        incarnation = machine.incarnation if machine else None
        if machine is None or incarnation is None or event.receiver_incarnation > incarnation:
            self._early.append(event)
            return None
        if event.receiver_incarnation < incarnation or event.channel not in machine.inputs:
            event.incoming.close()
            return None
        self._in[event.conn_id] = (event.channel, event.incoming)
        return ev.Opened(event.channel, event.conn_id, event.sender_incarnation)

    def waiting(self, channels: Collection[int]) -> list[ChannelOpened]:
        """The senders of these channels that came too early; their receiver is here now."""
        early = [e for e in self._early if e.channel in channels]
        self._early = [e for e in self._early if e.channel not in channels]
        return early

    def closed(self, event: ChannelClosed) -> ev.InputClosed | ev.OutputClosed | None:
        """A connection has ended."""
        self._early = [e for e in self._early if e.conn_id != event.conn_id]
        if event.side == "receiver":
            known = self._in.pop(event.conn_id, None)
            return ev.InputClosed(known[0], event.conn_id) if known else None
        closed = self._channel_of.pop(event.conn_id, None)
        if closed is None:
            return None
        channel, attempt = closed
        self._complain_if(channel, self._out[channel][1], event.error)
        return ev.OutputClosed(channel, attempt)

    def _complain_if(self, channel: int, outgoing: Connection, error: ClonosError | None) -> None:
        trial, now = self._trials.get(channel), self._network.listened_s
        if trial is None:
            return
        if outgoing.stood:  # the peer was there that long: it may have restored its state and died
            trial.since += now - trial.dialled
        if error is None:  # something is there and has not answered yet
            trial.silent_s += now - trial.dialled
            if trial.silent_s > SILENT_S:
                what = (
                    f"connections are accepted, and nothing comes back for {trial.silent_s:.0f} s"
                )
                trial.silent_s = 0.0
                self._tell(channel, trial, what, is_silent=True)
            return
        tried_s = now - trial.since
        # If something answers there, the coordinator may just not know yet that the process has
        # ended.
        limit = 1 if isinstance(error, CannotConnect) else ANSWERED
        if tried_s > limit * self._unreachable_s:
            trial.since = now
            self._tell(channel, trial, error.what, is_silent=False)

    def _tell(self, channel: int, trial: _Trial, why: str, *, is_silent: bool) -> None:
        incarnation, address = trial.peer
        near = self._network.address
        if near not in why or address not in why:
            why = f"{near} cannot connect to {address}: {why}"
        self._complain(channel, incarnation, why, is_silent)

    def _answered(self, channel: int) -> None:
        trial = self._trials.pop(channel, None)
        if trial is not None and trial.peer[1] != self._network.address:
            self.reached[channel] = trial.peer[0]

    def heard(self, conn: int, message: object) -> ev.Received | ev.Answered | None:
        """A message of a data stream as an event (None: its stream is over)."""
        if isinstance(message, (msg.Data, msg.Welcome)):
            known = self._in.get(conn)
            return ev.Received(known[0], conn, message) if known else None
        if isinstance(message, (msg.Hello, msg.Credit)):
            outgoing = self._channel_of.get(conn)
            if outgoing is not None and self._trials:
                self._answered(outgoing[0])
            return ev.Answered(*outgoing, message) if outgoing else None
        return None
