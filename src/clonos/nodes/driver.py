"""The driver of a job: coordinator and house-keeper as one process that takes events and acts.

Every decision of the driver is made here, and nothing here touches the world: events come in, and
all effects go out through the ports. Production and simulator run this class.

Order matters in one place, and is kept there: what the coordinator and the house-keeper have
decided is durable *before* anybody hears of it (:mod:`clonos.nodes.commits`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from clonos import errors
from clonos.core import decisions as co
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core import notes
from clonos.core.coordinator import Coordinator
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.layer import left_behind
from clonos.core.mandate import MandateAsked
from clonos.core.messages import Kind
from clonos.nodes import commits, events
from clonos.nodes.errors import failure_of
from clonos.nodes.history import Archive, Forgotten, HistoryCare, LookForPins
from clonos.nodes.layers import Delete, LayerCare, Unused
from clonos.nodes.phases import DRIVER, Phase, Step
from clonos.nodes.ports import DriverPorts
from clonos.nodes.progress import Chronicle
from clonos.nodes.pulses import Pulses, frozen, stuck
from clonos.nodes.settings import DriverSettings
from clonos.nodes.settling import Settling
from clonos.nodes.tenure import LOOKS, LOOKS_FOR_EFFECTS, Tenure, TermSeen
from clonos.nodes.views import DriverView, JobStarted, JobTerminated, Sample
from clonos.nodes.waiting import PAUSE_MAX_S, Waiting, places_of
from clonos.transport.events import (
    ChannelClosed,
    ChannelOpened,
    Connection,
    ControlLost,
    ControlOpened,
    Heartbeat,
    TaskStatistics,
)

TICK_S: Final = 0.02
"""How often the driver looks at its own clock."""
SLEEP_MIN_S: Final = 0.0005
"""Shorter waits are not worth a sleep."""
LEAVE_S: Final = 5.0
"""Grace period for slots to exit; then Spark has the same time to end them."""
CLOSE_S: Final = 30.0
"""How long a failing disk may hold up the end of a job ..."""
STOP_S: Final = 5.0
"""... and of one that is stopped. Its next start begins with what the disk has."""
VIEW_S: Final = 0.02
"""Interval at which changes are published ..."""
RATES_S: Final = 0.25
"""... and at which rates and delivered output are."""


class DriverNode:
    """One life of a job's driver.

    Parameters
    ----------
    keeper, recovered
        The house-keeper after it has read the journal, and the outputs that the journal still had.
    waiting
        Slots that have registered before this driver began.

    Attributes
    ----------
    view
        All that other threads may read: replaced by one assignment, never changed.
    failed
        Why the coordinator says that the job cannot go on, if it does.
    error
        Why the job has failed.
    """

    def __init__(
        self,
        keeper: HouseKeeper,
        recovered: Sequence[Deliver],
        ports: DriverPorts,
        settings: DriverSettings,
        waiting: Waiting | None = None,
    ) -> None:
        self.plan, self.keeper = keeper.plan, keeper
        self._ports, self._settings, self._recovered = ports, settings, recovered
        self._warn = ports.audience.warned
        self.coordinator = Coordinator(
            self.plan,
            keeper,
            address=settings.address,
            standbys=settings.standbys,
            availability=settings.availability,
            bound=[task for task in settings.places if task is not None],
            patience_ms=int(settings.answer_s * 1000),
            gather_ms=int(settings.gather_s * 1000),
            inflight_bytes=settings.inflight_bytes,
            log_bytes=settings.log_bytes,
            speculation=settings.speculation,
            term=settings.term,
            lost_ms=int(settings.lost_s * 1000),
        )
        self._waiting = waiting
        self.places = waiting.places if waiting else places_of(self.plan, ports.launcher, settings)
        looks = LOOKS_FOR_EFFECTS if self.plan.needs_mandates else LOOKS
        self._tenure = Tenure(settings.name, ports.lookout.look, settings.echo_s, looks)
        self.commits = commits.Commits(
            keeper,
            ports.journal,
            ports.outputs,
            self._let_out,
            self._stuck,
            settings.rotate_bytes,
            clock=lambda: self._tenure.now_s,
        )
        self.layers = LayerCare(ports.merger, settings.grace_s)
        self._history = HistoryCare(keeper, ports.merger, self.coordinator.term, settings.grace_s)
        sinks = [t.sink for t in self.plan.tasks if t.sink is not None]
        self._delivered = {sink: settings.delivered.get(sink, 0) for sink in sinks}
        seat = self.places.seat
        self._chronicle = Chronicle(settings, self.coordinator, seat, self._delivered)
        self._machine = DRIVER.machine(settings.name)
        self._withheld: list[commits.Group] = []  # durable, but another driver may have taken over
        self.error: errors.ClonosError | None = None
        self._disk_error: errors.ClonosError | None = None
        self.failed: co.Fail | None = None
        self._pending: list[commits.Act] = []
        self._channels: dict[int, tuple[int, Connection]] = {}  # of the house-keeper
        self._pulses = Pulses(settings.silence_s)
        self._looked_s = ports.clock.ticks_s()
        self._clock_s = waiting.now_s if waiting else 0.0  # how long the driver has listened
        self._next_epoch_s, self._until_s, self._close_s = 0.0, 0.0, CLOSE_S
        self.settling = Settling(self.coordinator.checkpoints)
        self._is_told_broken = self._has_cancelled = self._is_concluded = False
        self._has_news, self._has_rates, self._viewed_s = False, False, 0.0
        self._hear = self._hearing()
        self._go_on: dict[Phase, Callable[[float], None]] = {
            Phase.RUNNING: self._run,
            Phase.LEAVING: self._say_good_bye,
            Phase.ENDING: self._end_slots,
            Phase.CLOSING: self._close,
            Phase.OVER: lambda _: None,
        }
        self.view: DriverView = self._chronicle.view(is_running=True)

    @property
    def phase(self) -> Phase:
        return self._machine.state

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return self.phase is Phase.OVER

    @property
    def delivered(self) -> dict[str, int]:
        """Rows delivered so far, by sink: for the next driver, when this one is over."""
        return dict(self._delivered)

    @property
    def may_delete(self) -> bool:
        """Whether it is certain that no other driver runs this job."""
        return self._tenure.may_delete

    def _hearing(self) -> dict[type[Any], Callable[[Any], None]]:
        """What to do about each kind of event."""
        return {
            ChannelOpened: self._on_channel_opened,
            ChannelClosed: self._on_channel_closed,
            ControlOpened: self._on_control_opened,
            ControlLost: self._on_control_lost,
            events.Committed: self._on_committed,
            events.JournalFailed: self._on_journal_failed,
            events.Ended: self._on_ended,
            events.Merged: self._on_merged,
            events.MergeFailed: self._on_merge_failed,
            events.Surveyed: self._on_surveyed,
            events.Archived: self._history.archived,
            events.ArchiveFailed: self._on_archive_failed,
            TermSeen: lambda event: self._tenure.seen(event.sight),
            events.OutsideFailed: lambda event: self.fail(event.error),
            events.StopAsked: self._on_stop_asked,
            events.EndIsNear: lambda _: self._ports.outputs.begin_flush(),
            events.RoundBegins: lambda event: self.layers.round(event, self.keeper.layers),
            events.RenewalAsked: self._on_renewal_asked,
            co.MoveAsked: self._decide,
            co.Leaving: self._decide,
        }

    # --- the loop -------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin a term, and ask for the slots."""
        settings, term = self._settings, self.coordinator.term
        self._ports.audience.told(
            JobStarted(
                name=settings.name,
                run_id=settings.run_id,
                term=term,
                tasks=tuple(t.name for t in self.plan.tasks),
                slots=len(settings.places),
                application_id=settings.application_id,
                inputs=settings.datasets.inputs,
                outputs=settings.datasets.outputs,
            )
        )
        recovered, self._recovered = self._recovered, ()
        for output in recovered:  # it may have been delivered or not
            self._deliver(output)
        self._pending += self.coordinator.start()
        for ready in self._waiting.ready.values() if self._waiting else ():
            self._pulses.began(ready.slot)
            self._decide(ready)
        if not self.coordinator.done:
            self._history.begin(self._wall_ms())
        self._commit()
        if not self.coordinator.done:
            self.places.launch_all(self._clock_s)

    def turn(self, heard: Sequence[events.DriverEvent | tuple[int, Any]]) -> float:
        """Handle what has come; make it durable; only then act on it.

        Returns how many seconds from now the next turn is due, whatever comes until then.
        """
        self._look_at_clocks()
        for thing in self._tenure.admit(heard):
            if type(thing) is tuple:
                self._on_message(*thing)
            else:
                self._hear[type(thing)](thing)
        if self._tenure.is_unsure:
            return TICK_S
        withheld, self._withheld = self._withheld, []
        for group in withheld:
            self._let_out(group)
        self._listened()
        phase = self.phase
        self._go_on[phase](self._clock_s)
        self._commit()
        self._tell()
        if self.phase is not phase:
            return SLEEP_MIN_S  # there may be nothing to wait for
        due_s = self._next_epoch_s - self._clock_s
        return min(max(due_s, SLEEP_MIN_S), TICK_S) if due_s > 0 else TICK_S

    def _look_at_clocks(self) -> None:
        self._pulses.look(self._ports.clock.ticks_s())
        self._tenure.tick(self._ports.clock.ticks_s(), self._ports.clock.wall_s())

    def _listened(self) -> None:
        """Count how long the driver has listened: slots are not silent while it sleeps."""
        now_s = self._ports.clock.ticks_s()
        self._clock_s += min(now_s - self._looked_s, PAUSE_MAX_S)
        self._looked_s = now_s

    def _run(self, now_s: float) -> None:
        self._pending += self.coordinator.tick(self._now_ms())
        if now_s >= self._next_epoch_s or self.coordinator.wants_floor:
            self._begin_epoch(now_s)
        silent = self._pulses.silent(self.coordinator.recoveries.asked, self._known_by)
        for slot, names in silent.items():
            if self._pulses.is_silent_again(names):
                self._warn(frozen(names, self.places.seats[slot]))
            self._give_up(slot)
        if self.settling.is_over(now_s):
            self._leave()
        if self.layers.is_due(now_s) and self.may_delete and not self.coordinator.is_restoring:
            self._pending += self.layers.clean(now_s, self._history.used)  # no task reads any
        self._pending += self._history.tick(now_s, self._wall_ms(), may_delete=self.may_delete)
        for warning in self.places.tick(now_s, self.coordinator.waiting):
            self._warn(warning)

    def _begin_epoch(self, now_s: float) -> None:
        if actions := self.coordinator.begin_epoch():
            self._next_epoch_s = now_s + self._settings.checkpoint_interval_s
            if self.plan.has_markers:
                self._chronicle.epoch_began(self._looked_s)
            self._pending += actions

    def _known_by(self, slot: int) -> list[str]:
        """The names of a slot's place and tasks."""
        tasks = [t.id for t in self.coordinator.tasks.values() if t.slot == slot]
        return [self.places.seats[slot].name, *(self.plan.tasks[task].name for task in tasks)]

    def _give_up(self, slot: int) -> None:
        self._expel(slot)
        self._decide(co.SlotLost(slot, is_death=False))

    def _on_renewal_asked(self, event: events.RenewalAsked) -> None:
        """Replace a slot's process, unless it runs tasks, or has what too few others have."""
        for slot in self.places.slots_of(event.pid):
            if self.coordinator.moves.may_renew(slot):
                self._give_up(slot)

    def _expel(self, slot: int) -> None:
        self._pulses.ended(slot)
        self.places.expel(slot, self._clock_s)
        self._has_news = True

    def _now_ms(self) -> int:
        return int(self._clock_s * 1000)

    def _wall_ms(self) -> int:
        return int(self._ports.clock.wall_s() * 1000)

    def _decide(self, event: co.Event) -> None:
        if self.phase is Phase.RUNNING:
            self._pending += self.coordinator.handle(event, self._now_ms())

    # --- what comes in --------------------------------------------------------------------------

    def _on_message(self, conn: int, message: Any) -> None:
        kind = type(message)
        if conn in self._channels:
            if self.phase is Phase.RUNNING and kind in (msg.Data, msg.Welcome):
                self.keeper.handle(ev.Received(self._channels[conn][0], conn, message))
        elif conn not in self._pulses.slots:
            return  # expelled, or gone
        elif kind is Heartbeat:
            if self._pulses.came(conn, message):
                self._warn(stuck(message, self.places.seats[conn]))
        elif kind is TaskStatistics:
            self._on_statistics(conn, message)
        elif kind is MandateAsked:
            if (given := self._tenure.mandate(message, self.commits.proven_s)) is not None:
                self.places.command(conn, given)
            if self._tenure.relies_on_lock:
                self.commits.prove()
        else:
            if kind is msg.Finished:  # in a record before that which makes the job complete
                self._chronicle.keep_counts()
                self._has_news = True
            self._decide(co.Reported(conn, message))

    def _on_statistics(self, slot: int, said: TaskStatistics) -> None:
        is_current = self.coordinator.tasks[said.task].slot == slot  # else it is an earlier life's
        sample = Sample(said.now_ms / 1000, said.task, said.counters, said.away)
        if warning := self._chronicle.heard(sample, is_current=is_current):
            self._warn(warning)
        self._ports.audience.sampled(sample)
        self._has_rates = True
        if self.phase is Phase.RUNNING:
            self._pending += self.coordinator.counted(said.task, said.counters, is_current)

    def _on_channel_opened(self, event: ChannelOpened) -> None:
        if self.phase is not Phase.RUNNING:
            event.incoming.close()
            return
        self._channels[event.conn_id] = (event.channel, event.incoming)
        self.keeper.handle(ev.Opened(event.channel, event.conn_id, event.sender_incarnation))

    def _on_channel_closed(self, event: ChannelClosed) -> None:
        known = self._channels.pop(event.conn_id, None)
        if known is not None and self.phase is Phase.RUNNING:
            self.keeper.handle(ev.InputClosed(event.channel, event.conn_id))

    def _on_control_opened(self, event: ControlOpened) -> None:
        if self.phase is not Phase.RUNNING:
            event.incoming.send(msg.Stop())
            event.incoming.close()
            return
        for slot in self.places.replaced(event):  # has died: its stream ends later, or never
            self._expel(slot)
            self._decide(co.SlotLost(slot, is_heard=False))
        try:
            ready = self.places.registered(event)
        except errors.OtherVersion as error:
            self.fail(error)
            event.incoming.close()
            return
        self._pulses.began(event.conn_id)
        self._pulses.goes_on(self.places.seats[event.conn_id].name)
        self._decide(ready)
        self._has_news = True

    def _on_control_lost(self, event: ControlLost) -> None:
        self._pulses.ended(event.conn_id)
        self._decide(co.SlotLost(event.conn_id))
        self.places.lost(event.conn_id, self._clock_s)
        self._has_news = True

    def _on_ended(self, event: events.Ended) -> None:
        if (error := self.places.ended(event, self._clock_s)) is not None:
            self.fail(error)

    def _on_merged(self, event: events.Merged) -> None:
        self._decide(co.Compacted(event.merged, event.replaced))
        chain = self.keeper.layers[event.merged.task]
        self._pending.append(self._history.unused(self.layers.merged(event, chain)))

    def _on_surveyed(self, event: events.Surveyed) -> None:
        lives = {task.id: task.incarnation for task in self.coordinator.tasks.values()}
        paths = [p for p in event.paths if p not in self.coordinator.holdings.expected]
        found = self._history.unused(Unused(tuple(left_behind(paths, self.keeper.layers, lives))))
        self._pending += [found, self._history.surveyed(event, self._ports.clock.wall_s())]

    def _on_archive_failed(self, event: events.ArchiveFailed) -> None:
        if (warning := self._history.failed(event, self._clock_s)) is not None:
            self._warn(warning)

    def _on_merge_failed(self, event: events.MergeFailed) -> None:
        warning = self.layers.failed(event, self._clock_s)
        if warning is not None and self.phase is Phase.RUNNING:
            self._warn(warning)

    # --- the journal ----------------------------------------------------------------------------

    def _commit(self) -> None:
        # A new segment would not have the outputs that are withheld.
        if not self._withheld and self.commits.end_turn(self._pending, self._clock_s):
            self._pending = []

    def _on_committed(self, event: events.Committed) -> None:
        self._is_told_broken = False
        self.commits.committed()

    def _on_journal_failed(self, event: events.JournalFailed) -> None:
        self.commits.failed(self._clock_s)
        self._stuck(event.error)

    def _stuck(self, error: errors.ClonosError) -> None:
        self._disk_error = error
        if not self._is_told_broken:
            self._is_told_broken = True
            self._warn(f"{error}; until it can be, the job waits")

    def _let_out(self, group: commits.Group) -> None:
        """A group is durable: acknowledge it, deliver its outputs, and act on it. Not if another
        driver has taken over: the machine may have slept while the group was written."""
        self._look_at_clocks()
        if self._tenure.is_unsure or self._tenure.is_lost:
            self._withheld.append(group)
            return
        for output in group.outputs:
            self._deliver(output)
        for reaction in group.reactions:
            if isinstance(reaction, ev.Reply):
                known = self._channels.get(reaction.conn)
                if known is not None:
                    known[1].send(reaction.message)
            elif isinstance(reaction, ev.Refuse):
                known = self._channels.pop(reaction.conn, None)
                if known is not None:
                    known[1].close()
        for action in group.actions:
            self._act(action)

    def _deliver(self, output: Deliver) -> None:
        batch, sink = output.item.batch, self.plan.tasks[output.task].sink
        if output.item.kind is Kind.BATCH and batch is not None and sink is not None:
            self._delivered[sink] += batch.rows
            self._has_rates = True
        self._ports.outputs.take(output)

    def _act(self, action: commits.Act) -> None:
        match action:
            case co.Command():
                self.places.command(action.slot, action.command)
            case co.Expel():
                self._expel(action.slot)
            case notes.Note():
                self._note(action)
            case co.Fail():
                self.failed = action
                self.fail(failure_of(action, self.plan.tasks[action.task].name))
            case co.Done():
                self._leave()
            case Unused() | Delete():
                used, may_delete = self._history.used, self.may_delete
                self.layers.act(action, self._clock_s, used, may_delete=may_delete)
            case Forgotten():
                self._history.act(action)
                self.layers.unused(Unused(action.paths), self._clock_s)
            case Archive() | LookForPins():
                self._history.act(action)

    def _note(self, note: notes.Note) -> None:
        now_s = self._ports.clock.ticks_s()
        self._has_news = True
        news = self._chronicle.noted(note, now_s)
        self._ports.audience.noted(note, now_s)
        if news is not None:
            self._ports.audience.told(news)
        if isinstance(note, notes.Floor | notes.Hard):
            self.commits.after_floor()
            self.layers.after_floor(self.keeper.hard.layers, self._clock_s)
            self._history.look(self._wall_ms())
            layers, kept = self.keeper.hard.layers, self._history.kept
            self._ports.audience.floor(layers, layers if kept is None else kept)
        elif isinstance(note, notes.Live):  # not before: a recovery needs the processors
            name, slot = self.plan.tasks[note.task].name, self.coordinator.tasks[note.task].slot
            self.places.show(name, note.incarnation, slot)
            self._pulses.goes_on(name)
        if (warning := self._chronicle.warning(note)) is not None:
            self._warn(warning)

    # --- what is told ---------------------------------------------------------------------------

    def _tell(self) -> None:
        now_s = self._looked_s
        if self._chronicle.is_due(now_s, self._settings.progress_s):
            self._ports.audience.told(self._chronicle.progress(now_s, self._ports.clock.wall_s()))
            self._has_news = True
        since_s = now_s - self._viewed_s
        if (self._has_news and since_s >= VIEW_S) or (self._has_rates and since_s >= RATES_S):
            self._look(now_s)

    def _look(self, now_s: float) -> None:
        self._has_news, self._has_rates, self._viewed_s = False, False, now_s
        self.view = self._chronicle.view(is_running=self.phase is not Phase.OVER)

    def tell_the_end(self, error: errors.ClonosError | None) -> None:
        """Tell the last progress, and that the job is over."""
        audience, settings = self._ports.audience, self._settings
        now_s = self._ports.clock.ticks_s()
        audience.told(self._chronicle.progress(now_s, self._ports.clock.wall_s()))
        self.view = self._chronicle.view(is_running=False)
        why = str(error) if error else None
        audience.told(JobTerminated(settings.name, settings.run_id, self.keeper.complete, why))

    # --- the end --------------------------------------------------------------------------------

    def fail(self, error: errors.ClonosError) -> None:
        """The job cannot go on. Only the first reason is told."""
        self.error = self.error or error
        self._leave()

    def _on_stop_asked(self, event: events.StopAsked) -> None:
        if event.settle_s is None:
            self._close_s = STOP_S
            self._leave()
        elif self.settling.ask(event, self._clock_s):
            self._next_epoch_s = 0.0

    def _leave(self) -> None:
        """Tell all slots to end."""
        if self.phase is not Phase.RUNNING:
            return
        self._enter(Step.LEAVE)
        self.places.close()
        for slot in self.places.seats:
            self.places.command(slot, msg.Stop(is_complete=self.keeper.complete))

    def _enter(self, step: Step) -> None:
        self._machine.on(step)
        self._until_s = self._clock_s + LEAVE_S
        self._next_epoch_s = 0.0
        self._has_news = True

    def _say_good_bye(self, now_s: float) -> None:
        """Wait for the slots to leave; they send their last counters."""
        if not (self.places.seats or self._channels) or now_s >= self._until_s:
            self._enter(Step.LEFT)

    def _end_slots(self, now_s: float) -> None:
        if now_s >= self._until_s and not self._has_cancelled:
            self._has_cancelled = True
            self.places.cancel_all()
            self._until_s = now_s + LEAVE_S
        # A successor need not wait until Spark has noticed that the slots have left.
        is_awaited = self.settling.is_for_another and not self.places.seats
        if self.places.is_empty or is_awaited or now_s >= self._until_s:
            self._enter(Step.ENDED)
            self._until_s = now_s + self._close_s

    def _close(self, now_s: float) -> None:
        """Put delivered output where it is read from, unless the job itself has failed: then it
        stays in the journal, and the next run delivers it again."""
        excused = self._settings.interruptions
        is_to_blame = self.error is not None and not isinstance(self.error, excused)
        is_to_blame |= self._tenure.is_lost  # then this journal may no longer count
        is_open = self.commits.state is commits.State.OPEN
        if now_s >= self._until_s:
            self.error = self.error or self._disk_error
            self._enter(Step.CLOSED)
        elif is_to_blame or (self._is_concluded and is_open):
            self._enter(Step.CLOSED)
        elif is_open and not (self._pending or self._withheld):
            self._disk_error = self.commits.conclude(now_s)
            self._is_concluded = self._disk_error is None

    def check(self) -> None:
        """Assertions over the whole state."""
        self.places.check()
        self.commits.check()
        self.coordinator.check()
        assert self._pulses.slots <= self.places.seats.keys()
        assert not self._pending or self.commits.must_wait or self._withheld
        if self.phase is Phase.RUNNING and not (self.coordinator.done or self.coordinator.failed):
            assert self.coordinator.slots.keys() <= self._pulses.slots
