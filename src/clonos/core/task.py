r"""A task as a deterministic automaton driven by a log of events. The protocol's heart.

Events go in (:meth:`TaskMachine.handle`, and :meth:`TaskMachine.step` when the runtime has time
for a step), actions come out. All nondeterminism enters in a step: live, the machine chooses
what to do next and writes the choice down; replaying, the log chooses. Nothing else differs
between the two, so a replay gives the same state, the same items and the same digests.

::

    REPLAYING --log exhausted--> LIVE
        \-------------------------+---fenced---> FENCED
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.channels import Inbound
from clonos.core.connections import Connections, Phase
from clonos.core.determinants import (
    Determinant,
    Marker,
    Order,
    Source,
    SourceEnd,
    Timer,
    decode_record,
    encode_record,
)
from clonos.core.fences import Trust, merge
from clonos.core.messages import Dependency, Item, Kind, Layer
from clonos.core.plan import Plan
from clonos.core.program import Batch, Program
from clonos.core.step import RunningStep
from clonos.errors import Divergence, ProtocolError

BACKLOG_BYTES = 8 << 20
"""A task takes no new step while a live receiver is this far behind."""
BACKLOG_ITEMS = 1024
"""The same in items: many tiny batches cost as much as few large ones."""
COALESCE_BATCHES = 64
"""At most so many batches of a channel are handled as one: bounds the latency of a step."""
COALESCE_BYTES = 4 << 20
"""The same in bytes."""
COALESCE_ROWS = 4096
"""The same in rows: what costs Python per row must not hold up fences and markers."""


class TaskMachine(Connections):
    """One incarnation of one task.

    Parameters
    ----------
    plan, activate
        What to become; ``activate`` carries floor, surviving log and fences.
    program
        Fresh, or (a standby) with the layers up to some epoch applied already.
    layers
        The layers still to apply, in order. The last one says where the task stood.
    world
        Clock and calls.
    """

    def __init__(
        self,
        plan: Plan,
        activate: msg.Activate,
        program: Program,
        layers: Iterable[Layer],
        world: ev.World,
        *,
        floor: Layer | None = None,
    ) -> None:
        for layer in layers:
            program.apply(layer.delta)
            floor = layer
        super().__init__(plan, activate, floor)
        self.world = world
        self.program = program
        self.position = floor.position if floor else 0
        self.epoch = floor.epoch if floor else 0
        self.clock_ms = floor.clock_ms if floor else 0
        self.wake_ms = floor.wake_ms if floor else None
        self.source_rows = floor.source_rows if floor else 0
        self.source_ended = floor.source_ended if floor else False
        self.book.truncate(self.id, self.position)
        for run in activate.log:
            self.book.append(run)
        self.replay_to = max(self.book.length(self.id), self.position)
        self._future = self._replay_dependencies(activate.log)
        # For display: rows handled and bytes of their log entries, both in this life, and when
        # the oldest row of the last step was read.
        self.rows = self.entry_bytes = self.born_ms = 0
        self._source: list[ev.SourceRows] = []
        self._source_over = False
        self._throttled = False
        self._inject = 0
        self._turn = 0
        self._sealed: dict[int, tuple[Layer, msg.LayerRef | None]] = {}
        self._finished_told = False
        self._end_is_out = self.ended or (floor is not None and floor.end_is_out)
        self._peers = activate.peers
        self._handlers: dict[type[Any], Callable[[Any], None]] = {
            ev.Opened: self._on_opened,
            ev.Received: self._on_received,
            ev.InputClosed: self._on_input_closed,
            ev.Answered: self._on_answered,
            ev.OutputClosed: self._on_output_closed,
            ev.SourceRows: self._on_source_rows,
            ev.SourceEnded: self._on_source_ended,
            ev.LayerStored: self._on_layer_stored,
            ev.Written: self._on_written,
            ev.Tick: self._on_tick,
            msg.Fence: self._on_fence,
            msg.Resolve: self._on_resolve,
            msg.Connect: self._on_connect,
            msg.Inject: self._on_inject,
            msg.Floor: self._on_floor,
            msg.ReadLog: self._on_read_log,
            msg.Throttle: self._on_throttle,
        }

    # --- state ------------------------------------------------------------------------------

    def _replay_dependencies(self, log: Iterable[msg.Run]) -> msg.Dependencies:
        """What the log still to be replayed depends on, directly."""
        future: msg.Dependencies = {}
        for run in log:
            for record in run.records:
                cause = decode_record(record)[0]
                if isinstance(cause, Order):
                    sender = self.plan.channels[cause.channel].sender
                    merge(future, {sender: Dependency(cause.incarnation, cause.position)})
        return future

    @property
    def ended(self) -> bool:
        """Whether no input of any kind is left."""
        if self.spec.is_source:
            return self.source_ended
        return all(i.ended for i in self.inputs.values())

    @property
    def wants_rows(self) -> bool:
        """Whether the runtime should offer what its reader has."""
        return (
            self.phase is Phase.LIVE
            and self.spec.is_source
            and not self.source_ended
            and not self._source
            and not self._source_over
            and not self._throttled
            and not self._blocked()
        )

    def statistics(self) -> dict[str, int]:
        """Counters for the progress display."""
        return {
            "position": self.position,
            "rows": self.rows,
            "entry_bytes": self.entry_bytes,
            "epoch": self.epoch,
            "replay_to": self.replay_to,
            "blocked": int(self._blocked()),
            "backlog_items": sum(o.log.last - o.log.processed for o in self.outputs.values()),
            "backlog_bytes": sum(o.log.backlog_bytes for o in self.outputs.values()),
            "queued": sum(len(i.queue) for i in self.inputs.values()),
            "inflight_bytes": sum(o.log.nbytes for o in self.outputs.values()),
            "log_bytes": self.book.nbytes,
            "shared_bytes": self.shared_bytes,
            "items_out": sum(o.log.last for o in self.outputs.values()),
        }

    # --- lifecycle --------------------------------------------------------------------------

    def start(self) -> list[ev.Action]:
        """State and log are there: connect, then replay."""
        self._do(ev.Tell(msg.Restored(self.id, self.incarnation)))
        for peer in self._peers:
            self._on_connect(msg.Connect(peer))
        if self.spec.is_source:
            self._ask_for_rows()
        self._if_replayed()
        return self._take_actions()

    def _ask_for_rows(self) -> None:
        """All that the replay will take, at once: the reader works ahead of it."""
        records = (
            self.book.record(self.id, position)
            for position in range(self.position + 1, self.replay_to + 1)
        )
        causes = [decode_record(record)[0] for record in records]
        cuts = [c.rows for c in causes if isinstance(c, Source) and c.content is None]
        if cuts:
            self._do(ev.NeedRows(tuple(cuts)))

    def _if_replayed(self) -> None:
        if self.phase is not Phase.REPLAYING or self.position < self.replay_to:
            return
        self.phase = Phase.LIVE
        self._future = {}
        self._do(ev.Tell(msg.Live(self.id, self.incarnation, self.position)))
        for inbound in self.inputs.values():
            self._credit(inbound, force=True)
        self._if_finished()

    def _if_finished(self) -> None:
        if self._finished_told or self.phase is not Phase.LIVE or not self.ended:
            return
        for outbound in self.outputs.values():
            if (
                outbound.to_world
                and outbound.carries_items
                and outbound.settled < outbound.log.last
            ):
                return
        self._finished_told = True
        self._do(ev.Tell(msg.Finished(self.id, self.incarnation)))

    def handle(self, event: ev.Event | msg.Command) -> list[ev.Action]:
        """Take one event; the only way, besides :meth:`step`, in which the machine changes."""
        fenced = self.phase is Phase.FENCED
        if not fenced or isinstance(event, (msg.ReadLog, msg.Fence, msg.Resolve)):
            self._handlers[type(event)](event)
        return self._take_actions()

    # --- floors -----------------------------------------------------------------------------

    def _on_inject(self, command: msg.Inject) -> None:
        if command.epoch > self.epoch:
            self._inject = max(self._inject, command.epoch)

    def _on_floor(self, command: msg.Floor) -> None:
        """Nothing below can ever be asked for again: truncate logs and in-flight items."""
        sealed = self._sealed.pop(command.epoch, None)
        for epoch in [e for e in self._sealed if e < command.epoch]:
            del self._sealed[epoch]
        for task, position in command.positions.items():
            if task == self.id or task in self.plan.distances[self.id]:
                self.book.truncate(task, position)
            else:
                self.book.pass_by(task, position)
        self.fences.truncate(command.positions)
        if sealed is None:
            return
        for channel, (seq, _) in sealed[0].outs.items():
            self.outputs[channel].log.truncate(seq)

    def _on_layer_stored(self, event: ev.LayerStored) -> None:
        sealed = self._sealed.get(event.ref.epoch)
        if sealed is not None:
            self._sealed[event.ref.epoch] = (sealed[0], event.ref)
            self._if_acknowledged()

    def _on_settled(self) -> None:
        self._if_acknowledged()
        self._if_finished()

    def _if_acknowledged(self) -> None:
        """A layer counts once it is stored and all the task delivered before it is durable."""
        for epoch, (layer, ref) in list(self._sealed.items()):
            if ref is None:
                continue
            if all(
                o.settled >= layer.outs[c][0]
                for c, o in self.outputs.items()
                if o.to_world and o.carries_items
            ):
                self._sealed[epoch] = (layer, None)
                ack = msg.LayerAck(self.id, self.incarnation, epoch, ref, layer.generation)
                self._do(ev.Tell(ack))

    def _on_throttle(self, command: msg.Throttle) -> None:
        """Somebody's memory is full: logs never block a task in mid-graph, so sources wait."""
        self._throttled = command.closed

    def _on_read_log(self, command: msg.ReadLog) -> None:
        runs = tuple(self.book.runs(command.task, command.start))
        self._do(ev.Tell(msg.LogPrefix(self.id, command.task, runs)))

    # --- steps --------------------------------------------------------------------------------

    def _on_source_rows(self, event: ev.SourceRows) -> None:
        self._source.append(event)

    def _on_source_ended(self, event: ev.SourceEnded) -> None:
        self._source_over = True

    def _blocked(self) -> bool:
        """Whether a live receiver is too far behind for us to go on."""
        for outbound in self.outputs.values():
            if outbound.relaxed or not outbound.carries_items:
                continue
            log = outbound.log
            if log.backlog_bytes > BACKLOG_BYTES or log.last - log.processed > BACKLOG_ITEMS:
                return True
        return False

    def step(self, now_ms: int) -> list[ev.Action] | None:
        """Do one step if one can be done. ``None``: nothing to do for now."""
        if self.phase is Phase.REPLAYING:
            return self._replay_step()
        if self.phase is Phase.LIVE:
            cause, items = self._choose(now_ms)
            if cause is None:
                return None
            self._run(cause, items, None)
            return self._take_actions()
        return None

    def _choose(self, now_ms: int) -> tuple[Determinant | None, list[Item]]:
        """The nondeterministic choice: what to do next. It becomes the record's first entry."""
        if self._inject > self.epoch and (self.spec.is_source or self.ended):
            return Marker(self.epoch + 1), []  # one after the other, should some be missing
        if self._blocked():
            return None, []
        if self.wake_ms is not None and self.wake_ms <= now_ms and not self.ended:
            return Timer(max(now_ms, self.clock_ms)), []
        if self.spec.is_source:
            return self._choose_source(), []
        channels = self.spec.inputs
        for i in range(len(channels)):
            channel = channels[(self._turn + i) % len(channels)]
            count = self._available(self.inputs[channel])
            if count:
                self._turn = (self._turn + i + 1) % len(channels)
                items = self.inputs[channel].consume(count)
                made = items[-1].dep[self.inputs[channel].spec.sender]
                return Order(channel, count, made.position, *made.incarnation), items
        return None, []

    def _choose_source(self) -> Determinant | None:
        if self.source_ended or self._throttled:
            return None
        if self._source:
            rows = self._source[0]
            return Source(rows.batch.rows, rows.batch.digest, rows.content)
        return SourceEnd() if self._source_over else None

    def _available(self, inbound: Inbound) -> int:
        """How many items of a channel the next step may take as one."""
        if inbound.aligned:
            return 0
        count = size = rows = 0
        for item in inbound.queue:
            if self.fences.judge(item.dep) is not Trust.VALID:
                break
            if item.kind is not Kind.BATCH:
                return count or 1
            size += item.batch.nbytes if item.batch else 0
            rows += item.batch.rows if item.batch else 0
            full = size > COALESCE_BYTES or rows > COALESCE_ROWS or count >= COALESCE_BATCHES
            if count and full:
                break
            count += 1
        return count

    def _replay_step(self) -> list[ev.Action] | None:
        """The log decides what is next; wait until it is there again."""
        determinants = decode_record(self.book.record(self.id, self.position + 1))
        cause, logged = determinants[0], determinants[1:]
        items: list[Item] = []
        if isinstance(cause, Order):
            inbound = self.inputs[cause.channel]
            if not self._arrived(inbound, cause.taken):
                return None
            items = inbound.consume(cause.taken)
            made = items[-1].dep[inbound.spec.sender].position
            if made != cause.position:
                raise Divergence(
                    f"step {self.position + 1} took an item made at {cause.position} of channel "
                    f"{cause.channel}; now it was made at {made}",
                    where=self.spec.name,
                )
        elif isinstance(cause, Source) and not self._reread(cause):
            return None
        self._run(cause, items, logged)
        self._if_replayed()
        if self.phase is Phase.LIVE:
            for outbound in self.outputs.values():
                self._answer_reset(outbound)
        return self._take_actions()

    def _arrived(self, inbound: Inbound, count: int) -> bool:
        """Whether the next `count` items of a channel are there and can be trusted."""
        if len(inbound.queue) < count:
            return False
        return all(self.fences.judge(inbound.queue[i].dep) is Trust.VALID for i in range(count))

    def _reread(self, cut: Source) -> bool:
        """Have the rows of a logged cut at hand, from the log or from the reader."""
        if cut.content is not None:
            self._source[:] = [ev.SourceRows(self.world.decode_rows(cut.content), cut.content)]
        elif not self._source:
            return False
        if self._source[0].batch.digest != cut.digest:
            raise Divergence(
                f"the source gave other rows at {self.source_rows} when it was read again",
                where=self.spec.name,
                remedy="the input is recomputed in another order: sort it, or spool it "
                "(job.source(df, spool=True))",
            )
        return True

    def _run(self, cause: Determinant, items: list[Item], logged: list[Determinant] | None) -> None:
        """One step, atomic: state, determinants and outputs appear together at its end."""
        now = cause.now_ms if isinstance(cause, Timer) else None
        step = RunningStep(
            self.position + 1,
            cause,
            self.world,
            clock_ms=self.clock_ms,
            wake_ms=None if now is not None else self.wake_ms,
            now_ms=now,
            logged=logged,
        )
        marker, ended = self._call_program(step, cause, items)
        step.finish()
        self.position += 1
        self.clock_ms = step.floor_clock_ms
        self.wake_ms = step.wake_ms
        if logged is None:
            record = encode_record(step.record)
            self.book.append(msg.Run(self.id, self.incarnation, self.position, (record,)))
        else:
            record = self.book.record(self.id, self.position)
        self.entry_bytes += len(record)
        writer = self.incarnation if logged is None else self.book.writer(self.id, self.position)
        self.dep[self.id] = Dependency(writer or self.incarnation, self.position)
        self._put_out(step, marker, ended)
        if marker:
            self._seal(marker)
        for inbound in self.inputs.values():
            self._credit(inbound)
        for outbound in self.outputs.values():
            self._pump(outbound)
            if outbound.to_world and outbound.carries_items:
                self._settle(outbound)
        if ended or (self.ended and not self._finished_told):
            self._if_finished()

    def _call_program(
        self, step: RunningStep, cause: Determinant, items: list[Item]
    ) -> tuple[int, bool]:
        """Returns the epoch to seal after the step (0: none) and whether the task has ended."""
        program = self.program
        match cause:
            case Source(rows=rows):
                offered = self._source.pop(0)
                self.rows += rows
                self.born_ms = offered.born_ms
                program.on_source(step, offered.batch)
                self.source_rows += rows
            case SourceEnd():
                self.source_ended = True
                program.on_end(step, None)
                return 0, True
            case Timer(now_ms=now_ms):
                self.born_ms = now_ms
                program.on_timer(step, now_ms)
            case Marker(epoch=epoch):
                return epoch, False
            case Order(channel=channel):
                return self._take_items(step, channel, items)
            case _:
                raise ProtocolError(f"{cause} cannot begin a step", where=self.spec.name)
        return 0, False

    def _take_items(self, step: RunningStep, channel: int, items: list[Item]) -> tuple[int, bool]:
        inbound = self.inputs[channel]
        for item in items:
            merge(self.dep, self.fences.clamp(item.dep))
        first = items[0]
        self.born_ms = first.born_ms
        if first.kind is Kind.BATCH:
            batches: list[Batch] = [i.batch for i in items if i.batch is not None]
            self.rows += sum(batch.rows for batch in batches)
            self.program.on_batches(step, channel, batches)
        elif first.kind is Kind.WATERMARK:
            self.program.on_watermark(step, channel, first.value)
        elif first.kind is Kind.MARKER:
            if first.value > self.epoch:  # else it was made again, under the availability policy
                inbound.aligned = True
            return self._aligned_epoch(first.value), False
        else:
            inbound.ended = True
            self.program.on_end(step, channel)
            return self._aligned_epoch(self.epoch + 1), self.ended
        return 0, False

    def _aligned_epoch(self, epoch: int) -> int:
        """`epoch` if its marker (or END) has come on every input, else 0."""
        some = any(i.aligned for i in self.inputs.values())
        return epoch if some and all(i.aligned or i.ended for i in self.inputs.values()) else 0

    def _put_out(self, step: RunningStep, marker: int, ended: bool) -> None:
        if self._end_is_out:
            return  # what comes after an END, some input's sender has made again
        self._end_is_out = ended
        dep, born = dict(self.dep), self.born_ms
        for channel, outbound in self.outputs.items():
            if not outbound.carries_items:
                continue
            batch = step.emitted.get(channel)
            if batch is not None:
                outbound.log.append(Kind.BATCH, self.epoch, 0, batch, dep, born)
            if channel in step.watermarks and not outbound.to_world:
                value = step.watermarks[channel]
                outbound.log.append(Kind.WATERMARK, self.epoch, value, None, dep, born)
            if ended:  # stands for every later marker as well
                outbound.log.append(Kind.END, self.epoch, 0, None, dep, born)
            elif marker and not outbound.to_world:
                outbound.log.append(Kind.MARKER, marker, marker, None, dep, born)

    def _seal(self, epoch: int) -> None:
        self.epoch = epoch
        for inbound in self.inputs.values():
            inbound.aligned = False
        layer = Layer(
            task=self.id,
            incarnation=self.incarnation,
            epoch=epoch,
            position=self.position,
            ins={c: (i.consumed, i.consumed_chain) for c, i in self.inputs.items()},
            outs={c: (o.log.last, o.log.chain) for c, o in self.outputs.items()},
            ended=tuple(c for c, i in self.inputs.items() if i.ended),
            dep=dict(self.dep),
            clock_ms=self.clock_ms,
            wake_ms=self.wake_ms,
            source_rows=self.source_rows,
            source_ended=self.source_ended,
            delta=b"",
            end_is_out=self._end_is_out,
            generation=self.generation,
        )
        self._sealed[epoch] = (layer, None)
        self._do(ev.StoreLayer(layer, self.program.delta()))
