"""A task as a deterministic automaton driven by a log of events: the heart of the protocol.

Events go in (:meth:`TaskMachine.handle`), actions come out. A step has two halves
(:meth:`TaskMachine.begin`, :meth:`TaskMachine.end`), between which user code runs. All
nondeterminism enters in a step: live, the machine chooses what to do next and logs the choice;
replaying, the log chooses. Nothing else differs between the two, so a replay gives the same state,
the same items and the same digests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.calls import OpenCalls
from clonos.core.channels import Inbound
from clonos.core.choice import choose
from clonos.core.cuts import dependencies_of
from clonos.core.determinants import (
    Determinant,
    Marker,
    Order,
    Outcomes,
    Source,
    SourceCut,
    SourceEnd,
    Timer,
    decode_record,
    encode_record,
    in_parts,
)
from clonos.core.fences import merge
from clonos.core.handover import AtRest, logs_of, taken_over
from clonos.core.holder import Holder
from clonos.core.inbounds import Inbounds
from clonos.core.intake import Intake, cuts_to_read
from clonos.core.life import Life, LifeEvent, Phase
from clonos.core.log import in_pieces
from clonos.core.loops import Rounds
from clonos.core.machine import Machine, with_stories
from clonos.core.messages import Dependency, Item, Kind
from clonos.core.outbounds import Outbounds
from clonos.core.plan import Plan
from clonos.core.program import Batch, Program
from clonos.core.sealed import Layer
from clonos.core.seals import Seals
from clonos.core.step import RunningStep, TaskTime, Work, attempt, checked, kind_of_step, work_of
from clonos.core.watch import Calls, Watch
from clonos.errors import ProtocolError

Logged = Sequence[Determinant] | None
"""What a step finds in the log; None: it is live."""


class TaskMachine:
    """One incarnation of one task.

    Parameters
    ----------
    plan, activate
        What to become; ``activate`` carries floor, surviving log and fences.
    program
        A new one, or a standby's, which has applied the layers up to some epoch already.
    layers
        The layers still to apply, in order. The last one tells the task's position.
    world
        Clock and calls.
    floor
        The newest layer that `program` has applied already, if any.
    holder
        The logs and fences that this life holds, and what is stable.
    announce
        Sends a report to the coordinator at once, even in the middle of a step.

    Attributes
    ----------
    inputs, outputs
        The ends of its channels, by channel.
    calls, injected
        The open calls; the newest epoch for which the coordinator wants a marker.
    ended, end_is_out
        Whether no input of any kind is left and no call is open; whether END was put out.
    under_way
        The step between its two halves.
    is_urgent
        :meth:`flush` is wanted at once: answers were logged that nobody else knows, or what effects
        wait for.
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
        holder: Holder | None = None,
        announce: Callable[[msg.Report], None] = lambda _: None,
    ) -> None:
        self.life = Life(plan, activate, floor)
        for layer in layers:
            program.apply(layer.delta)
            floor = layer
        base, handed = floor.position if floor else 0, taken_over(activate, floor)
        if handed is not None:
            program.apply(handed.delta)
            floor = handed
        self.plan = plan
        self.spec = self.life.spec
        self.id = activate.task
        self.incarnation = activate.incarnation
        self.holder = holder or Holder()
        self.book, self.fences = self.holder.book, self.holder.fences
        self.world, self.program = world, program
        self.time, self._kind_of_step = TaskTime(world), kind_of_step(self.spec)
        self._actions: list[ev.Action] = []
        self._do = self._actions.append
        self.inbounds = Inbounds.restored(plan, self.spec, floor, self.holder, self._do)
        self.outbounds = Outbounds.restored(
            self.life, floor, self.holder, self._do, self._on_settled
        )
        self.inputs, self.outputs = self.inbounds.ends, self.outbounds.ends
        self.rounds: Rounds | None = None
        if self.id in plan.loops:
            self.rounds = Rounds(plan, self.spec, floor, self.inbounds, self.outbounds)
        for cut in activate.fences:
            # The house-keeper has cut our own log already. If it had not, the replay must find out.
            self.holder.resolve(cut, logs=cut.task != self.id)
        self.dep = self.fences.clamp(dict(floor.dep) if floor else {})
        self.position = floor.position if floor else 0
        self.epoch = self.inbounds.epoch = floor.epoch if floor else 0
        self.clock_ms = floor.clock_ms if floor else 0
        self.wake_ms = floor.wake_ms if floor else getattr(program, "first_due_ms", None)
        self.intake = Intake(floor, activate.claimed)
        self.book.truncate(self.id, base)
        for run in logs_of(activate):
            self.holder.append(run)
        self.replay_to = max(self.book.length(self.id), self.position)
        self._future = dependencies_of(plan, activate.log)  # of the log to replay
        # For display, of this life: rows, bytes of their log entries, when its last row was read.
        self.rows = self.entry_bytes = self.born_ms = self.injected = 0
        self._asks = program.makes_calls
        self.calls = OpenCalls(program.open_calls() if self._asks else {})
        self.is_urgent = False
        self.under_way: RunningStep | None = None
        self.seals = Seals(self, floor, self._do)
        self._first = handed
        self.ended = self._has_ended()
        self.end_is_out = self.ended or (floor is not None and floor.end_is_out)
        self._peers = activate.peers
        self.watch = Watch.of(self.spec, activate, world, announce)
        self._handlers = self._make_handlers()

    def _make_handlers(self) -> dict[type[Any], Callable[[Any], object]]:
        return {
            ev.Opened: self._on_opened,
            ev.Received: self._on_received,
            ev.InputClosed: self.inbounds.closed,
            ev.Answered: self._on_answered,
            ev.OutputClosed: self.outbounds.closed,
            ev.SourceRows: self.intake.offer,
            ev.SourceEnded: lambda _: self.intake.over(),
            ev.LayerStored: self.seals.stored,
            ev.Written: self.outbounds.written,
            ev.CallsOver: lambda event: self.calls.heard(event.outcomes),
            **self.outbounds.handlers,
            ev.Tick: lambda _: self.outbounds.tick(),
            msg.Fence: self._on_fence,
            msg.Resolve: self._on_resolve,
            msg.Connect: lambda command: self.outbounds.connect(command.peer),
            msg.Inject: self._on_inject,
            msg.SealLayer: self.seals.wanted,
            msg.Prepare: lambda _: self.seals.prepare(),
            msg.Resume: lambda _: self.seals.resume(),
            msg.Floor: self._on_floor,
            msg.ReadLog: self._on_read_log,
            msg.Throttle: self.intake.throttle,
        }

    # --- state ------------------------------------------------------------------------------

    @property
    def phase(self) -> Phase:
        """The state of this life."""
        return self.life.machine.state

    @property
    def is_live(self) -> bool:
        """Whether it makes its own choices instead of replaying; true also when it is finished."""
        return self.life.is_live

    def stories(self) -> list[Machine[Any, Any]]:
        """The machines of this task and of its channels and seals, for their stories."""
        ends = (m for end in self.inputs.values() for m in (end.link, end.items))
        calls = (end.call for end in self.outputs.values())
        return [self.life.machine, *ends, *calls, *self.seals.machines()]

    @property
    def wants_rows(self) -> bool:
        """Whether the runtime should offer what its reader has."""
        return (
            self.phase is Phase.LIVE
            and self.spec.is_source
            and self.intake.wants_rows
            and not (self._asks and self._is_full)
            and not self.outbounds.blocked()
        )

    @property
    def _is_full(self) -> bool:
        """Whether calls must be answered before it takes more input, except markers."""
        return self.program.is_full and self.injected <= self.epoch

    @property
    def wait_ms(self) -> int | None:
        """Time until there is something to do without input; None: never."""
        if self.wake_ms is None or self.phase is not Phase.LIVE or self.ended or self.under_way:
            return None
        return max(self.wake_ms - self.time.now_ms(), 0)

    @property
    def _is_idle(self) -> bool:
        """Whether it does nothing without further input."""
        return not self.calls and self.wake_ms is None

    @property
    def _inputs_are_over(self) -> bool:
        return self.intake.ended if self.spec.is_source else self.inbounds.have_ended

    def _has_ended(self) -> bool:
        return not self.calls and self._inputs_are_over

    def check(self) -> None:
        """Assertions over the whole state."""
        self.holder.check()
        self.inbounds.check()
        self.outbounds.check()
        self.calls.check()
        known, held = self.dep.get(self.id), self.book.length(self.id)
        if self.phase is not Phase.FENCED:  # a step that was under way may have taken the last END
            assert self.position == (known.position if known else 0) <= held
            assert self.under_way or self.ended == self._has_ended()
        assert self.is_live <= (self.position == held and not self._future)
        assert not self._actions

    # --- lifecycle --------------------------------------------------------------------------

    def start(self) -> list[ev.Action]:
        """State and log are there: connect, then replay."""
        self.life.machine.on(LifeEvent.STARTED)
        self._do(ev.Tell(self.life.restored))
        for peer in self._peers:
            self.outbounds.connect(peer)
        again = range(self.position + 1, self.replay_to + 1) if self.spec.is_source else ()
        if cuts := cuts_to_read(self.book.record(self.id, position) for position in again):
            self._do(ev.NeedRows(cuts))  # all at once: the reader works ahead of us, within limits
        first, self._first = self._first, None
        if first is not None:
            self.seals.take_over(first)
        self._if_replayed()
        return self._take_actions()

    def _if_replayed(self) -> None:
        if self.phase is not Phase.REPLAYING or self.position < self.replay_to:
            return
        self.life.machine.on(LifeEvent.REPLAYED)
        self.time.begin(self.clock_ms)
        self._future = {}
        self._do(ev.Tell(msg.Live(self.id, self.incarnation, self.position)))
        self._make(self.calls.begun(self.position))
        self._make_effects()
        for inbound in self.inputs.values():
            self._credit(inbound, force=True)
        self._if_finished()

    def _if_finished(self) -> None:
        is_ended = self.ended and self.end_is_out  # else the last step is under way
        if self.phase is Phase.LIVE and is_ended and self.outbounds.is_settled:
            self.life.machine.on(LifeEvent.FINISHED)
            self._do(ev.Tell(msg.Finished(self.id, self.incarnation)))

    def flush(self) -> list[ev.Action]:
        """End of a turn: send the logs of all its steps that only the house-keeper gets."""
        self.is_urgent = False
        if self.phase is not Phase.FENCED:
            self.outbounds.flush(self.intake)
        return self._take_actions()

    def handle(self, event: ev.Event | msg.TaskCommand) -> list[ev.Action]:
        """Take one event. Only events and steps change the machine."""
        try:
            fenced = self.phase is Phase.FENCED
            if not fenced or isinstance(event, (msg.ReadLog, msg.Fence, msg.Resolve)):
                self._handlers[type(event)](event)
        except ProtocolError as error:
            with_stories(error, self.stories())
            raise
        return self._take_actions()

    def _take_actions(self) -> list[ev.Action]:
        actions = self._actions.copy()
        self._actions.clear()
        return actions

    # --- neighbours -------------------------------------------------------------------------

    def _on_opened(self, event: ev.Opened) -> None:
        if self.inbounds.opened(event):
            self._greet(self.inputs[event.channel])

    def _on_received(self, event: ev.Received) -> None:
        self.inbounds.received(event)
        if isinstance(event.data, msg.Welcome):  # until now its sender took us to be away
            self._credit(self.inputs[event.channel])

    def _greet(self, inbound: Inbound) -> None:
        """Answer as soon as restored; but a sender whose log is being cut has to wait."""
        if self.inbounds.can_greet(inbound):
            self.inbounds.greet(inbound, self.incarnation)
            if self.is_live:
                self._credit(inbound, force=True)

    def _credit(self, inbound: Inbound, *, force: bool = False) -> None:
        relaxed = self.life.machine.state is Phase.REPLAYING or inbound.aligned
        credit = inbound.credit(relaxed=relaxed, force=force)
        if credit is not None and inbound.conn is not None:
            self._do(ev.Reply(inbound.conn, credit))

    def _on_answered(self, event: ev.Answered) -> None:
        self.outbounds.answered(event)
        self._make_effects()

    def _make_effects(self) -> None:
        """Make the effects that every recovery from now on would ask for."""
        if self.calls.holds:
            self._make(self.calls.released(self.holder.stable.get(self.id, 0)))

    def _make(self, due: Calls) -> None:
        if due := due if self.watch is None else self.watch.asked(due, self.calls):
            self._do(ev.MakeCalls(due))

    def _on_fence(self, command: msg.Fence) -> None:
        task, incarnation = command.task, command.incarnation
        dep = None
        if task == self.id:
            if incarnation <= self.incarnation:
                return
            self.life.machine.on(LifeEvent.FENCED)
            self.abandon()
        else:
            mine = [d for d in (self.dep.get(task), self._future.get(task)) if d is not None]
            dep = max(mine, key=lambda d: d.position) if mine else None
            # What we hold may still be cut. If what we depend on is cut, we are fenced ourselves.
            self.holder.fence(task, incarnation, dep.position if dep else 0)
            self.inbounds.refuse_from(task)
            self.outbounds.hang_up(task, incarnation)
        length = self.book.length(task)
        self._do(ev.Tell(msg.FenceAnswer(self.id, task, incarnation, length, dep)))

    def _on_resolve(self, command: msg.Resolve) -> None:
        self.holder.resolve(command)
        if self.phase is Phase.FENCED:
            return  # we may be asked again what we hold
        self.life.generation = max(self.life.generation, command.generation)
        self.outbounds.cut(command.task, command.length)
        if command.reset:
            self.dep = self.fences.clamp(self.dep)
        for inbound in self.inputs.values():
            self.inbounds.judge(inbound, command)
            self._greet(inbound)
        self.ended = self._has_ended()  # an input may have begun again

    # --- floors -----------------------------------------------------------------------------

    def _on_inject(self, command: msg.Inject) -> None:
        self.injected = max(self.injected, command.epoch)

    def _on_floor(self, command: msg.Floor) -> None:
        """Nothing below can ever be asked for again: truncate logs and in-flight items."""
        if self.id in command.positions:
            self.seals.floor(command.positions[self.id])
            if self.watch is not None:
                self.watch.floor_moved()
        self.holder.truncate(command.positions, {self.id, *self.plan.distances[self.id]})
        for channel in command.needs.keys() & self.outputs.keys():
            self.outbounds.truncate(channel, command.needs[channel])

    def rest(self) -> AtRest | None:
        """No step is under way, and none follows: return what to hand over, if that is possible."""
        return self.seals.rest()

    def _on_settled(self) -> None:
        self.seals.acknowledge()
        self._if_finished()

    def _on_read_log(self, command: msg.ReadLog) -> None:
        pieces = in_pieces(self.book.runs(command.task, command.start)) or [()]
        for n, piece in enumerate(pieces, 1):
            self._do(ev.Tell(msg.LogPrefix(self.id, command.task, piece, n == len(pieces))))

    # --- steps --------------------------------------------------------------------------------

    def step(self) -> list[ev.Action] | None:
        """Take both halves of a step at once, if there is one to take."""
        work = self.begin()
        return None if work is None else self.end(attempt(work))

    def begin(self) -> Work | None:
        """The first half of a step: choose, take the items, depend on what they depend on.

        Returns what the program has to do; ``None``: nothing for now. Until :meth:`end` the machine
        may take any event, but begins no other step.
        """
        assert self.under_way is None
        try:
            phase = self.life.machine.state
            if phase is Phase.REPLAYING:
                return self._begin_logged()
            if phase is not Phase.LIVE and phase is not Phase.FINISHED:
                return None
            cause, items = choose(self, is_full=self._asks and self._is_full)
            if cause is None:
                return None
            left_out = () if self.watch is None else self.watch.before(self, cause, items)
            return self._begin(cause, items, None, left_out)
        except ProtocolError as error:
            with_stories(error, self.stories())
            raise

    def end(self, error: Exception | None = None) -> list[ev.Action]:
        """The second half: state, log entry and output of the step appear together.

        ``error``: what the program has raised. If this life has ended meanwhile, everything is
        void.
        """
        step, self.under_way = self.under_way, None
        assert step is not None
        if step.is_abandoned:
            return []
        self.rows += step.rows
        try:
            if error is not None:
                raise error
            self._end(step)
        except ProtocolError as found:
            with_stories(found, self.stories())
            raise
        return self._take_actions()

    def abandon(self) -> None:
        """Nobody waits for the step under way any more: its further calls raise an exception."""
        if self.under_way is not None:
            self.under_way.is_abandoned = True

    def _begin_logged(self) -> Work | None:
        """The log decides what is next; wait until the input for it has come again."""
        record = self.book.record(self.id, self.position + 1)
        cause, left_out, logged = in_parts(decode_record(record))
        name, decode = self.spec.name, self.world.decode_rows
        if isinstance(cause, Order):
            items = self.inbounds.retake(cause, name)
            return self._begin(cause, items, logged, left_out) if items else None
        if isinstance(cause, Source | SourceCut) and not self.intake.reread(cause, decode, name):
            return None
        return self._begin(cause, [], logged, left_out)

    def new_step(self, cause: Determinant, logged: Logged = None) -> RunningStep:
        """A step that begins now."""
        now = cause.now_ms if isinstance(cause, Timer) else None
        return self._kind_of_step(
            self.position + 1,
            cause,
            self.world,
            self.time,
            clock_ms=self.clock_ms,
            wake_ms=None if now is not None else self.wake_ms,
            now_ms=now,
            logged=logged,
        )

    def _begin(
        self, cause: Determinant, items: list[Item], logged: Logged, left_out: Sequence[int]
    ) -> Work:
        """Take what the step takes: an answer to a fence from now on says that we depend on it."""
        step = self.under_way = self.new_step(cause, logged)
        batches: list[Batch] = []
        match cause:
            case Order(channel=channel):
                batches = self._take_items(step, channel, items)
            case Source() | SourceCut():
                offered = self.intake.take()
                batches, self.born_ms = [offered.batch], offered.born_ms
            case SourceEnd():
                step.ends = True
            case Timer(now_ms=now_ms):
                self.born_ms = now_ms
            case Marker(epoch=epoch):
                step.marker = epoch
            case Outcomes(outcomes=outcomes):
                self.born_ms = self.calls.take(outcomes, self.spec.name)
        for batch in batches:
            step.rows += batch.rows
        if left_out:
            batches = step.leave_out(left_out, batches)
        return work_of(self.program, step, cause, items, batches)

    def _take_items(self, step: RunningStep, channel: int, items: list[Item]) -> list[Batch]:
        for item in items:
            merge(self.dep, self.fences.clamp(item.dep))
        first = items[0]
        self.born_ms = first.born_ms
        if first.kind is Kind.MARKER:
            step.marker = first.value
        elif first.kind is Kind.END:
            self.inputs[channel].end()
            step.ended = (channel,)
        if self.rounds is not None:
            self.rounds.take(step, channel, first, is_idle=self._is_idle)
        step.ends = bool(step.ended)
        return [item.batch for item in items if item.batch is not None]

    def _end(self, step: RunningStep) -> None:
        if not step.is_live:
            step.finish()
        self.position += 1
        self.clock_ms = step.floor_clock_ms
        self.wake_ms = step.wake_ms
        writer = self.incarnation
        if step.is_live:
            record = checked(encode_record(step.record), self.position, self.spec.name)
            self.book.append(msg.Run(self.id, self.incarnation, self.position, (record,)))
            if self.watch is not None and self.watch.after(step.record[0]):
                self.watch = None
        else:
            record = self.book.record(self.id, self.position)
            writer = self.book.writer(self.id, self.position) or writer
        self.entry_bytes += len(record)
        self.dep[self.id] = Dependency(writer, self.position)
        cause = step.record[0]
        if step.asked or isinstance(cause, Outcomes):
            self._take_calls(step, cause)
        marker = self._reached(step, cause) if step.marker or step.ends else 0
        if not self.end_is_out:  # after END, an input's sender has made this again
            self.end_is_out = self.ended
            dep, born_ms = dict(self.dep), self.born_ms
            rounds, ended = self.rounds, self.ended
            probes = rounds.stepped(step, not ended and self._is_idle) if rounds else ()
            self.outbounds.put_out(step, self.epoch, marker, dep, born_ms, self.ended, probes)
        if marker:
            self.inbounds.next_epoch()
            self.seals.seal(marker)
            for inbound in self.inputs.values():
                self._credit(inbound)
        elif isinstance(cause, Order):
            for channel in step.ended or (cause.channel,):
                self._credit(self.inputs[channel])
        self.outbounds.stepped()
        if self.seals.is_due:
            self.seals.seal_if_due()
        if self.ended:
            self._if_finished()
        if not step.is_live:
            self._if_replayed()
            for outbound in self.outputs.values() if self.is_live else ():
                self.outbounds.welcome(outbound)

    def _take_calls(self, step: RunningStep, cause: Determinant) -> None:
        if step.asked:
            self.calls.asked(step.asked, self.born_ms)
            if step.is_live:
                self._make(self.calls.to_make(step.asked, self.position))
                self.is_urgent |= self.calls.holds
                self._make_effects()
        if isinstance(cause, Outcomes):
            self.ended = self._has_ended()
            self.outbounds.share_soon()
            self.is_urgent |= step.is_live

    def _reached(self, step: RunningStep, cause: Determinant) -> int:
        """A marker or END was taken: return the epoch to seal (0: none)."""
        if step.ends:
            self.intake.ended = isinstance(cause, SourceEnd)
            self.ended = self._has_ended()
        if not isinstance(cause, Order):
            return step.marker
        if step.marker > self.epoch:  # else it was made again, under the availability policy
            self.inputs[cause.channel].aligned = True
        return self.inbounds.aligned_epoch(step.marker or self.epoch + 1)
