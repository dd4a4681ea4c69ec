"""The sending side of a task: what it owes to its receivers, and when it may send it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from clonos.core import events as ev
from clonos.core import log as causal_log
from clonos.core import messages as msg
from clonos.core.channels import Call, Outbound
from clonos.core.gaps import MISSED, Claims
from clonos.core.holder import Holder
from clonos.core.intake import Intake
from clonos.core.life import Life
from clonos.core.messages import Item, Kind
from clonos.core.plan import HOUSE_KEEPER
from clonos.core.sealed import Layer
from clonos.core.step import RunningStep

BACKLOG_BYTES = 8 << 20
"""A task takes no new step while a live receiver is this far behind."""
BACKLOG_ITEMS = 1024
"""The same in items: many tiny batches cost as much as few large ones."""


class Outbounds:
    """The sending ends of one task.

    Parameters
    ----------
    life
        The life that sends.
    ends
        The sending ends of its channels.
    holder
        What the process holds: log entries that a receiver lacks travel with items.
    do
        Takes actions.
    settled
        Called when more of the output has taken effect.
    """

    def __init__(
        self,
        life: Life,
        ends: Iterable[Outbound],
        holder: Holder,
        do: Callable[[ev.Action], None],
        settled: Callable[[], None],
    ) -> None:
        self.ends = {end.spec.id: end for end in ends}
        self._shares_soon = False
        self.shared_bytes = 0  # log entries sent; those sent twice count twice
        self._refused_files = 0
        self._life = life
        self._book = holder.book
        self._holder = holder
        self._stable = holder.stable
        self._do = do
        self._settled = settled
        self._is_gated = life.spec.is_gated and life.plan.causal_log
        self._leaves_gaps = life.plan.leaves_gaps
        self._claims = Claims(life) if life.plan.leaves_gaps and life.spec.is_source else None
        tells_all = self._is_gated or life.spec.has_effects
        self._item_ends = [end for end in self.ends.values() if end.carries_items]
        self._log_ends = [
            end
            for end in self.ends.values()
            if end.to_world and (tells_all or not end.carries_items)
        ]
        self._sink_end = next((end for end in self._item_ends if end.to_world), None)

    @classmethod
    def restored(
        cls,
        life: Life,
        floor: Layer | None,
        holder: Holder,
        do: Callable[[ev.Action], None],
        settled: Callable[[], None],
    ) -> Outbounds:
        """The sending ends of a task that begins with the layer `floor`."""
        outs, carried = (floor.outs, floor.carried) if floor is not None else ({}, {})
        ends = (
            Outbound(life.plan, life.plan.channels[c], *outs.get(c, (0, 0)), carried=carried.get(c))
            for c in life.spec.outputs
        )
        return cls(life, ends, holder, do, settled)

    # --- streams ------------------------------------------------------------------------------

    def connect(self, peer: msg.Peer) -> None:
        """A receiver is (again) at this address."""
        end = self.ends[peer.channel]
        receiver = end.spec.receiver
        fences = self._holder.fences
        if receiver != HOUSE_KEEPER and fences.refuses(receiver, peer.incarnation):
            return
        if peer.incarnation < end.peer:
            return
        is_known = end.call.state is not Call.UNKNOWN
        if is_known and (end.peer, end.address) == (peer.incarnation, peer.address):
            return
        end.peer, end.address = peer.incarnation, peer.address
        self._dial(end)

    def _dial(self, end: Outbound) -> None:
        if end.attempt:
            self._do(ev.Hang(end.spec.id, end.attempt))
        end.dial()
        self._do(ev.Dial(end.spec.id, end.attempt, end.peer, end.address))

    def closed(self, event: ev.OutputClosed) -> None:
        """A stream has ended. It is dialled again at the next tick, not at once: it may fail at
        once."""
        end = self.ends[event.channel]
        if event.attempt == end.attempt and end.call.state is not Call.UNKNOWN:
            end.closed()

    def hang_up(self, task: int, incarnation: tuple[int, int]) -> None:
        """`task` is fenced: send nothing more to lower lives of it."""
        for end in self.ends.values():
            if end.spec.receiver == task and end.peer < incarnation:
                if end.call.state is not Call.UNKNOWN:
                    self._do(ev.Hang(end.spec.id, end.attempt))
                end.hang_up()

    def cut(self, task: int, length: int) -> None:
        """`task` rewrites its log after entry `length`.

        An implied task may not yet have recomputed all items that its receivers have from an
        earlier life. If these depend on cut entries, it will make other items, so it asks the
        receivers again which items they have.
        """
        self._stable[task] = min(self._stable.get(task, 0), length)
        is_implied = self._life.spec.is_implied
        for end in self.ends.values():
            end.cut(task, length)
            is_ours = is_implied and not end.to_world and end.maker == task
            if is_ours:
                end.log.expect_nothing()
            is_lost = task in end.logs and end.call.state is not Call.CONNECTED
            if (is_ours or is_lost) and end.call.state is not Call.UNKNOWN:
                self._dial(end)  # a hello under way may still count what is cut

    def answered(self, event: ev.Answered) -> None:
        """A receiver says what it has, or what it has processed."""
        end = self.ends[event.channel]
        if event.attempt != end.attempt:
            return
        message = event.message
        if isinstance(message, msg.Hello):
            if message.reset_at is not None:
                end.ask(message)
                self.welcome(end)
            else:
                end.greet(message)
                self.settle(end)
                self.pump(end)
            return
        self._holder.learn(message.stable)
        if end.carries_items:
            end.log.acknowledge(message.processed)
        end.relaxed = message.relaxed
        self.settle(end)
        if self._leaves_gaps:  # nobody asks for these items again
            end.log.truncate(min(end.settled if end.to_world else end.log.processed, end.log.sent))
        if message.stable:
            for other in self.ends.values():
                self.pump(other)

    def welcome(self, end: Outbound) -> None:
        """Availability: once live, continue the channel after the position where our log was cut.

        The cut may have been in an earlier life: all items that we have made since are still owed.
        """
        hello = end.asked
        if hello is None or hello.reset_at is None or not self._life.is_live:
            return
        last, chain = end.log.made_until(self._life.id, hello.reset_at)
        if hello.reset_at == MISSED:
            last, chain = end.log.sent, end.log.sent_chain
        end.welcome(hello, last)
        welcome = msg.Welcome(end.spec.id, self._life.incarnation, last + 1, chain)
        self._do(ev.Send(end.attempt, welcome))
        self.settle(end)
        self.pump(end)

    # --- items --------------------------------------------------------------------------------

    def blocked(self) -> bool:
        """Whether a live receiver is too far behind for the task to go on."""
        for end in self._item_ends:
            if end.relaxed or end.spec.is_feedback:  # a loop that waits for itself never goes on
                continue
            log = end.log
            if log.backlog_bytes > BACKLOG_BYTES or log.last - log.processed > BACKLOG_ITEMS:
                return True
        return False

    def feedback_is_full(self, waiting: Iterable[Collection[Item]]) -> bool:
        """Whether so much goes round that nothing more should come into the loop: what was sent
        from here, or what is `waiting` here, channel by channel. For what waits the limit is half
        as high, because senders that can be blocked never send more than the whole."""
        logs = [end.log for end in self._item_ends if end.spec.is_feedback]
        sent = [(log.last - log.processed, log.backlog_bytes) for log in logs]
        came = [(2 * len(q), 2 * sum(i.batch.nbytes for i in q if i.batch)) for q in waiting]
        return any(n > BACKLOG_ITEMS or size > BACKLOG_BYTES for n, size in (*sent, *came))

    # --- items on the disk --------------------------------------------------------------------

    @property
    def handlers(self) -> dict[type[Any], Callable[[Any], None]]:
        """What to do with events about the local disk, and with granted claims."""
        return {
            ev.MakeRoom: lambda _: self._make_room(),
            ev.Spilled: self._spilled,
            ev.ReadBack: self._read_back,
            msg.Granted: self._granted,
        }

    def _make_room(self) -> None:
        """Have the oldest items written to the local disk, one file of each channel at a time.

        Items that are about to be sent stay in memory, unless the receiver is away or replays. So
        does feedback, which layers carry."""
        for end in self._item_ends:
            if end.to_world or end.spec.is_feedback:
                continue
            log = end.log
            if work := log.spill(log.last if end.relaxed else min(log.processed, log.cursor - 1)):
                number, batches = work
                self._do(ev.Spill(end.spec.id, number, tuple(batches)))

    def _spilled(self, event: ev.Spilled) -> None:
        """A file was written, or could not be: then its items stay in memory."""
        end = self.ends[event.channel]
        self._refused_files += not event.is_written
        if not end.log.wrote(event.number, is_written=event.is_written) and event.is_written:
            self._do(ev.DropSpilled(event.channel, event.number))
        self.pump(end)

    def _read_back(self, event: ev.ReadBack) -> None:
        """Go on sending with what was read. If it cannot be read, a new life has to make it
        again."""
        end = self.ends[event.channel]
        if event.batches is None or not end.log.read_back(event.number, list(event.batches)):
            if end.log.spilled.find(event.number) is not None:
                life = self._life
                self._do(ev.Tell(msg.Unreadable(life.id, life.incarnation, event.channel)))
            return
        self.pump(end)

    def _complete(self, end: Outbound, item: Item) -> Item | None:
        log = end.log
        whole = log.complete(item)
        if whole is not item and item.seq + 1 not in log.spilled.loaded:
            for number in log.spilled.to_load(item.seq):
                self._do(ev.ReadSpilled(end.spec.id, number))
        return whole

    def truncate(self, channel: int, seq: int) -> None:
        """The receiver's floor has passed item `seq`."""
        for number in self.ends[channel].log.truncate(seq):
            self._do(ev.DropSpilled(channel, number))

    def pump(self, end: Outbound) -> None:
        """Send what may be sent, each item with the log entries that its receiver lacks."""
        log = end.log
        if log.cursor > log.last or end.call.state is not Call.CONNECTED:
            return
        while log.cursor <= log.last:
            item = log.item(log.cursor)
            if self._gate_closed(end, item):
                break
            if log.spilled.files:
                whole = self._complete(end, item)
                if whole is None:
                    break
                item = whole
            log.cursor += 1
            self._send(end, item)

    def flush(self, intake: Intake) -> None:
        """Send logs that only the house-keeper gets, in one message for many steps.

        A source that cannot be read again also sends its log there: its rows are recorded even if
        nothing was made from them yet, and its output to other tasks waits for this.
        """
        if self._shares_soon:
            self._share(self.ends.values())
        else:
            self._share(self._log_ends)
        self._shares_soon = False
        if self._claims is not None and (claim := self._claims.due(self._made, intake)):
            self._do(ev.Tell(claim))

    def _granted(self, command: msg.Granted) -> None:
        """What was taken is in the journal: send what was made from it."""
        if self._claims is not None:
            self._claims.granted(command)
        for end in self._item_ends:
            self.pump(end)

    def share_soon(self) -> None:
        """The newest log entries are worth a message of their own: all get them at the end of the
        turn."""
        self._shares_soon = True

    def _share(self, ends: Iterable[Outbound]) -> None:
        for end in ends:
            if end.call.state is Call.CONNECTED and end.lags(self._book, self._stable):
                self._send(end, None)

    def put_out(
        self,
        step: RunningStep,
        epoch: int,
        marker: int,
        dep: msg.Dependencies,
        born_ms: int,
        ends: bool,
        probes: Sequence[int] = (),
    ) -> None:
        """Make items of what a step has emitted, followed by the probes of a loop, a marker (0:
        none), or END. Feedback has neither watermarks nor markers. The output of an implied task
        depends on what it has taken, not on its own log."""
        if self._life.spec.is_implied:
            dep = {task: entry for task, entry in dep.items() if task != self._life.id}
        for end in self._item_ends:
            batch = step.emitted.get(end.spec.id)
            is_last = end.to_world or end.spec.is_feedback
            watermark = None if is_last else step.watermarks.get(end.spec.id)
            if batch is not None:
                end.log.append(Kind.BATCH, epoch, 0, batch, dep, born_ms, watermark)
            elif watermark is not None:
                end.log.append(Kind.WATERMARK, epoch, watermark, None, dep, born_ms)
            if probes and self._life.plan.is_within_loop(end.spec.id):
                for value in probes:
                    end.log.append(Kind.PROBE, epoch, value, None, dep, born_ms)
            if ends:  # stands for every later marker as well
                end.log.append(Kind.END, epoch, 0, None, dep, born_ms)
            elif marker and not is_last:
                end.log.append(Kind.MARKER, marker, marker, None, dep, born_ms)

    @property
    def _made(self) -> int:
        """The newest step."""
        return self._book.length(self._life.id)

    def stepped(self) -> None:
        """A step has ended: send its output, and release effects that are due."""
        if self._leaves_gaps:  # nothing is logged, but positions still say what was made when
            self._book.truncate(self._life.id, self._made - 1)
        for end in self._item_ends:
            self.pump(end)
        if self._sink_end is not None:
            self.settle(self._sink_end)

    def _gate_closed(self, end: Outbound, item: Item) -> bool:
        if self._claims is not None:
            return not self._claims.allow(item.dep[self._life.id].position)
        # The house-keeper takes an output together with the log entries that led to it.
        if end.to_world or not self._is_gated:
            return False
        task = self._life.id
        return item.dep[task].position > self._stable.get(task, 0)

    def _send(self, end: Outbound, item: Item | None) -> None:
        runs = end.delta(self._book, self._stable)
        nbytes = 0
        for run in runs:
            nbytes += sum(map(len, run.records))
        self.shared_bytes += nbytes
        incarnation = self._life.incarnation
        if nbytes > causal_log.PIECE_BYTES:  # the item travels with the last piece
            *pieces, runs = causal_log.in_pieces(runs)
            for piece in pieces:
                data = msg.Data(end.spec.id, incarnation, None, piece)
                self._do(ev.Send(end.attempt, data))
        self._do(ev.Send(end.attempt, msg.Data(end.spec.id, incarnation, item, runs)))

    def tick(self) -> None:
        """Send log entries by themselves if no batch has carried them within the linger."""
        for end in self.ends.values():
            if end.call.state is Call.BROKEN:
                self._dial(end)
        self._share(self.ends.values())

    @property
    def held_bytes(self) -> int:
        """How many bytes of items are kept in memory."""
        return sum(end.log.held_bytes for end in self._item_ends)

    @property
    def spilled_bytes(self) -> int:
        """How many bytes of items are kept on the local disk."""
        return sum(end.log.spilled.nbytes for end in self._item_ends)

    def statistics(self) -> dict[str, int]:
        """Counters for the progress display."""
        logs = [end.log for end in self.ends.values()]
        return {
            "blocked": int(self.blocked()),
            "backlog_items": sum(log.last - log.processed for log in logs),
            "backlog_bytes": sum(log.backlog_bytes for log in logs),
            "inflight_bytes": self.held_bytes,
            "spilled_bytes": self.spilled_bytes,
            "refused_files": self._refused_files,
            "items_out": sum(log.last for log in logs),
            "shared_bytes": self.shared_bytes,
        }

    # --- effects in the world -----------------------------------------------------------------

    def settle(self, end: Outbound) -> None:
        """The house-keeper has accepted some outputs: let them take effect."""
        if not (end.to_world and end.carries_items):
            return
        done = min(end.log.processed, end.log.last)
        if not self._life.spec.writes_itself:
            end.settled = end.log.processed
        else:
            # Recomputed output may differ from the original, so none is released before it
            # is verified.
            while end.log.is_verified and end.released < done:
                end.released += 1
                item = end.log.item(end.released)
                if item.kind is Kind.BATCH:
                    self._do(ev.Release(end.spec.id, item, self._life.generation))
                elif end.settled == end.released - 1:
                    end.settled = end.released
        self._settled()

    def written(self, event: ev.Written) -> None:
        """Some released outputs have taken effect."""
        end = self.ends[event.channel]
        end.settled = max(end.settled, event.seq)
        while end.settled < min(end.released, end.log.last):
            if end.log.item(end.settled + 1).kind is Kind.BATCH:
                break
            end.settled += 1
        self.settle(end)

    def are_settled(self, upto: Mapping[int, int]) -> bool:
        """Whether the output up to these items, by channel, has taken effect in the world."""
        return all(
            end.settled >= upto[channel]
            for channel, end in self.ends.items()
            if end.to_world and end.carries_items
        )

    @property
    def is_settled(self) -> bool:
        """Whether all output has taken effect in the world."""
        return self.are_settled({channel: end.log.last for channel, end in self.ends.items()})

    def check(self) -> None:
        """Assertions over the whole state."""
        for end in self.ends.values():
            end.check()
