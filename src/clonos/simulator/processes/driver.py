"""The driver's process: the node of production, on simulated ports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from clonos.core import decisions as co
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.history import Chains
from clonos.core.housekeeper import HouseKeeper
from clonos.core.inflight import INFLIGHT_BYTES
from clonos.core.levels import STORE, Lacks
from clonos.core.log import LOG_BYTES
from clonos.core.notes import Note
from clonos.errors import Superseded
from clonos.nodes import events
from clonos.nodes.driver import TICK_S, DriverNode
from clonos.nodes.phases import Phase
from clonos.nodes.places import Pace
from clonos.nodes.ports import DriverPorts
from clonos.nodes.settings import DriverSettings
from clonos.nodes.tenure import TermSeen
from clonos.nodes.views import Sample
from clonos.nodes.waiting import Waiting
from clonos.simulator.checks.closed import ClosedKeeper
from clonos.simulator.checks.invariants import cells_together
from clonos.simulator.checks.violations import check_state
from clonos.simulator.processes.durable import (
    SimulatedJournal,
    SimulatedLookout,
    SimulatedMerger,
    outputs_of,
)
from clonos.simulator.processes.spark import Spark
from clonos.simulator.processes.turns import Turns
from clonos.simulator.world.disk import Died, Disk
from clonos.simulator.world.disks import HOME, LAYERS, TERMS
from clonos.simulator.world.network import Stream
from clonos.simulator.world.virtual import EPOCH_MS
from clonos.storage.checkpoint import Checkpoint
from clonos.storage.folder import Folder
from clonos.storage.terms import Terms
from clonos.transport.events import ChannelClosed, ChannelOpened, Heartbeat, TaskStatistics

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster
    from clonos.simulator.processes.slot import Slot

T = TypeVar("T")

OFTEN: Final = frozenset({msg.Data, Heartbeat, TaskStatistics, TermSeen})
"""Frequent events, which rarely change a machine's state."""
QUIET_PART: Final = 32
LOUD_PART: Final = 4
"""The driver's whole state is checked after one turn in so many: QUIET_PART if it has heard only
frequent events, LOUD_PART otherwise."""


class WatchedKeeper(HouseKeeper):
    """The house-keeper; the recorder sees each event before it does."""

    def __init__(self, driver: Driver) -> None:
        job = driver.cluster.job
        super().__init__(job.plan, job.encode, job.decode, driver.cluster.options.keep)
        self._driver = driver
        self.on_advance: Callable[[Chains], None] = lambda _: None

    def advance(self, epoch: int, positions: Any, layers: Any, needs: Any) -> None:
        self.on_advance(layers)
        super().advance(epoch, positions, layers, needs)
        if self._driver is self._driver.cluster.driver:
            self._driver.cluster.recorder.uses(ClosedKeeper(self))

    def shorten(self, task: int, chain: Any) -> None:
        if any(ref.level != STORE for ref in set(chain).difference(self.layers[task])):
            self.on_advance({task: chain})  # merged by a slot: others must have them, too
        super().shorten(task, chain)

    def fall_back(self) -> None:
        super().fall_back()
        self._driver.cluster.recorder.goes_back(self.positions)

    def handle(self, event: ev.Opened | ev.Received | ev.InputClosed) -> None:
        stream = self._driver.accepted.get(event.conn)
        is_current = self._driver is self._driver.cluster.driver
        if isinstance(event, ev.Received) and stream is not None and is_current:
            self._driver.cluster.recorder.keeper_receives(self, stream, event.data)
        super().handle(event)
        if isinstance(event, ev.Received) and is_current:
            self._driver.cluster.recorder.keeper_took(self, event.data)


class SimulatedAudience:
    """Tells the recorder and the trace."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def noted(self, note: Note, at_s: float) -> None:
        if self._driver is self._driver.cluster.driver:
            self._driver.cluster.noted(note)

    def sampled(self, sample: Sample) -> None:
        if not sample.counters["inflight_bytes"]:
            self._driver.unheard.discard(sample.task)

    def told(self, what: Any) -> None:
        pass

    def warned(self, text: str) -> None:
        self._driver.cluster.trace(f"   warning: {text}")

    def floor(self, layers: Chains, kept: Chains) -> None:
        self._driver.after_floor(layers)


class DriverClock:
    """Virtual time."""

    def __init__(self, cluster: Cluster) -> None:
        self._scheduler = cluster.scheduler

    def ticks_s(self) -> float:
        return self._scheduler.now / 1000

    def wall_s(self) -> float:
        return (EPOCH_MS + self._scheduler.now) / 1000


class ControlLink:
    """The driver's end of a slot's control stream."""

    stood = True

    def __init__(self, cluster: Cluster, slot: Slot) -> None:
        self._cluster, self._slot = cluster, slot
        self.conn_id = slot.number

    def send(self, message: Any) -> None:
        self._cluster.order(self._slot, message)

    def close(self) -> None:
        self._cluster.expel(self._slot)


class ChannelLink:
    """The house-keeper's end of a channel."""

    stood = True

    def __init__(self, driver: Driver, stream: Stream) -> None:
        self._driver, self._stream = driver, stream
        self.conn_id = stream.conn

    def send(self, message: Any) -> None:
        self._driver.cluster.recorder.keeper_says(message)
        self._driver.cluster.network.reply(self._stream, message)

    def close(self) -> None:
        if self._driver.accepted.pop(self._stream.conn, None) is not None:
            self._driver.cluster.network.refuse(self._stream)


class Driver:
    """One life of the driver's process.

    Attributes
    ----------
    slots
        The registered slots that have not gone, by number.
    accepted
        The house-keeper's streams.
    closed
        The durable state of the house-keeper.
    """

    def __init__(self, cluster: Cluster, address: str, disk: Disk) -> None:
        self.cluster = cluster
        self.address = self.group = address
        self.alive = True
        self.slowness = 0.0
        self.paused_until = 0.0
        self.looks_at = 0.0  # until then, no look for a later term has an outcome
        self.slots: dict[int, Slot] = {}
        self.slots_started = 0
        self.accepted: dict[int, Stream] = {}
        self.unheard: set[int] = set()  # tasks that have yet to report that they keep little
        self._inbox: list[events.DriverEvent | tuple[int, Any]] = []
        self._next_turn = Turns(
            cluster.scheduler, self._turn, lambda: self.paused_until, lambda: self.alive
        )
        self._turns = 0
        self._busy_until = 0.0
        self._placed: list[int | None] = []
        self.waiting: Waiting | None = None
        self._waits_until = 0.0
        self.disk, self.shared = disk.mount(), cluster.disks.shared.mount()
        try:
            self._begin()
        except BaseException:
            self._leave_disks()
            raise

    def _begin(self) -> None:
        """Open the journal, claim a term, make the node. Disk faults are raised."""
        cluster = self.cluster
        self.journal = SimulatedJournal(self)
        self.keeper = WatchedKeeper(self)
        self.recovered = self.journal.recover(self.keeper)
        self.closed = ClosedKeeper(self.keeper)
        self.checkpoint = Checkpoint(Folder(self.disk, HOME, "fsync"), self.address, self._terms)
        self.layers = f"{LAYERS}/{self.checkpoint.id}"
        self.term = self._begin_term()
        self.merger = SimulatedMerger(self, self.term)
        options, plan = cluster.options, cluster.job.plan
        free = options.slots - len(options.bound)
        places = (*([None] * free), *(sorted(options.bound) * (1 + options.standbys)))
        self.spark = Spark(cluster, self, places)
        self.outputs = outputs_of(self)
        ports = DriverPorts(
            DriverClock(cluster),
            self.journal,
            self.outputs,
            self.spark,
            self.merger,
            SimulatedAudience(self),
            SimulatedLookout(self),
        )
        settings = DriverSettings(
            name="simulation",
            run_id="simulation",
            address=self.address,
            places=places,
            operators={t.id: (t.name,) for t in plan.tasks},
            term=self.term,
            echo_s=options.echo_ms / 1000,
            checkpoint_interval_s=options.epoch_ms / 1000,
            standbys=options.standbys,
            availability=options.availability,
            silence_s=options.silence_ms / 1000,
            answer_s=options.patience_ms / 1000,
            gather_s=options.gather_ms / 1000,
            rotate_bytes=options.rotate_bytes,
            grace_s=options.grace_ms / 1000,
            log_bytes=options.log_bytes or LOG_BYTES,
            lost_s=options.lost_ms / 1000,
            pace=Pace(settle_s=options.relaunch_ms / 2000, relaunch_s=options.relaunch_ms / 2000),
        )
        self._clock = ports.clock
        if options.waits_ms:
            self.waiting = Waiting(plan, self.spark, settings, ports.audience.warned)
        self.node = DriverNode(self.keeper, self.recovered, ports, settings, self.waiting)
        self._watch_what_is_kept()

    def _watch_what_is_kept(self) -> None:
        """Check the coordinator's decisions at the moment when it makes them, against what it can
        know."""
        roster, kept = self.coordinator.roster, self.cluster.recorder.holders
        do, holdings = roster.do, self.coordinator.holdings
        lacks = holdings.lacks

        def watched(action: co.Action) -> None:
            kept.does(self.keeper, roster.slots, action)
            do(action)

        def heard(slot: int, report: Lacks) -> None:
            kept.lacks(roster.slots[slot], report.paths)
            lacks(slot, report)

        def advances(layers: Chains) -> None:
            homes = {task.id: task.slot for task in roster.tasks.values()}
            kept.advances(roster.slots, homes, layers)

        roster.do = watched
        holdings.lacks = heard  # type: ignore[method-assign]
        self.keeper.on_advance = advances
        self._watch_ends()

    def _watch_ends(self) -> None:
        """The same when it ends slots on purpose."""
        roster, moves = self.coordinator.roster, self.coordinator.moves
        kept, emptied, may_renew = self.cluster.recorder.holders, moves.emptied, moves.may_renew

        def ending() -> list[int]:
            slots = emptied()
            for slot in slots:
                kept.ends(self.keeper, roster.slots, slot, 0)
            return slots

        def renewing(slot: int) -> bool:
            if may := may_renew(slot):
                kept.ends(self.keeper, roster.slots, slot, 1)
            return may

        moves.emptied = ending  # type: ignore[method-assign]
        moves.may_renew = renewing  # type: ignore[method-assign]

    def _terms(self) -> Terms:
        return Terms(Folder(self.shared, TERMS, "fsync"))

    def _begin_term(self) -> int:
        before = self.keeper.term
        if self.keeper.complete:
            return before + 1
        return self.checkpoint.begin_term(position=self.journal.next_seq, before=before).number

    @property
    def coordinator(self) -> Coordinator:
        return self.node.coordinator

    # --- turns ------------------------------------------------------------------------------------

    def start(self) -> None:
        now = self.cluster.scheduler.now
        if self.waiting is None:
            self.survives(self.node.start)
        elif not self.keeper.complete:
            self._waits_until = now + self.cluster.options.waits_ms
            self.waiting.start()
        self._next_turn.by(now)

    def _node_turn(self, heard: Sequence[events.DriverEvent | tuple[int, Any]]) -> float:
        """A turn of the node, or, before there is a plan, of the object that collects slots."""
        if self.waiting is None:
            return self.node.turn(heard)
        self.waiting.turn(heard, self._clock.ticks_s())
        self.waiting.follow(self._layers_by_now())
        if self.cluster.scheduler.now >= self._waits_until:
            self.waiting = None
            self.node.start()
        return TICK_S

    def _layers_by_now(self) -> Chains:
        """The first half of them for half of the time."""
        left_ms = self._waits_until - self.cluster.scheduler.now
        is_early = 2 * left_ms > self.cluster.options.waits_ms
        chains = self.keeper.layers.items()
        return {t: chain[: len(chain) // 2] if is_early else chain for t, chain in chains}

    def survives(self, act: Callable[[], T]) -> T | None:
        """Let the process do something. None: it has died at one of its disk operations."""
        try:
            return act()
        except Died:
            self.cluster.kill_driver(self)
            return None

    def post(self, heard: events.DriverEvent | tuple[int, Any]) -> None:
        """Something has come."""
        if self.alive:
            self._inbox.append(heard)
            self._turn_by(self.cluster.scheduler.now)

    def rouse(self) -> None:
        """Something has come for its network."""
        self._turn_by(self.cluster.scheduler.now)

    def _turn_by(self, time: float) -> None:
        self._next_turn.by(max(time, self._busy_until))

    def _turn(self, now: float) -> None:
        self._busy_until = now + self.cluster.options.turn_ms
        self.cluster.network.poll(self)
        heard, self._inbox = self._inbox, []
        wait_s = self.survives(lambda: self._node_turn(heard))
        if wait_s is None:
            return
        self.cluster.network.flush(self)
        self._check_after(heard)
        self._check_cells()
        if isinstance(self.node.error, Superseded):
            self.cluster.superseded(self)
        elif self is not self.cluster.driver and self.node.phase is not Phase.RUNNING:
            self.cluster.kill_driver(self)
        elif self.node.failed is not None:
            self.cluster.fail(self.node.failed)
        elif self.node.error is not None:
            self.cluster.fail(co.Fail(type(self.node.error).__name__, self.node.error.what))
        elif self.node.is_over:
            self.journal.close()
            self.cluster.finished()
        else:
            self._turn_by(now + 1000 * wait_s)

    def _check_after(self, heard: Sequence[events.DriverEvent | tuple[int, Any]]) -> None:
        """Check the whole node now and then, more often after rare events."""
        self._turns += 1
        kinds = (type(thing[1] if isinstance(thing, tuple) else thing) for thing in heard)
        part = QUIET_PART if all(kind in OFTEN for kind in kinds) else LOUD_PART
        if self.cluster.recorder.checks_state and self._turns % part == 0:
            check_state(self.node)

    def _check_cells(self) -> None:
        """Check placement when something has moved."""
        slots = [task.slot for task in self.coordinator.tasks.values()]
        if slots != self._placed:
            self._placed = slots
            cells_together(
                self.cluster.job.plan, dict(zip(self.coordinator.tasks, slots, strict=True))
            )

    def die(self) -> None:
        """The process dies. A commit under way may or may not have reached the disk."""
        self.alive = False
        self.journal.break_off()
        self._leave_disks()

    def _leave_disks(self) -> None:
        self.disk.die()
        self.shared.die()

    # --- activity beside the protocol -------------------------------------------------------------

    def after_floor(self, layers: Chains) -> None:
        """Now and then merge some layers of a task, or report that a process's memory is full."""
        self.merger.after_floor(layers)
        random, options = self.cluster.random, self.cluster.options
        if options.pressures and random.random() < options.pressures:
            task = random.randrange(len(self.cluster.job.plan.tasks))
            self._press(task, 4 * INFLIGHT_BYTES)
            self.cluster.scheduler.after(60 * random.random(), self._relieve, task)

    def _press(self, task: int, held: int) -> None:
        """A task reports how much it retains for its receivers."""
        slot = self.coordinator.tasks[task].slot
        if slot is not None:
            self.post((slot, TaskStatistics(task, 0, {"inflight_bytes": held})))

    def _relieve(self, task: int) -> None:
        """... and then that it is little again, repeatedly, until the driver has heard it."""
        self.unheard.add(task)
        self._say_again(task)

    def _say_again(self, task: int) -> None:
        if self.alive and task in self.unheard:
            self._press(task, 0)
            self.cluster.scheduler.after(20.0, self._say_again, task)

    # --- the house-keeper's streams ---------------------------------------------------------------

    def opened(self, stream: Stream) -> None:
        self.accepted[stream.conn] = stream
        link = ChannelLink(self, stream)
        self.post(
            ChannelOpened(
                stream.channel, stream.conn, stream.incarnation, stream.receiver_incarnation, link
            )
        )

    def received(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        self.post((stream.conn, data))

    def input_closed(self, stream: Stream) -> None:
        self.accepted.pop(stream.conn, None)
        self.post(ChannelClosed(stream.channel, stream.conn, "receiver"))

    def answered(self, stream: Stream, message: object) -> None:
        raise AssertionError("the house-keeper dials nobody")

    def output_closed(self, stream: Stream) -> None:
        raise AssertionError("the house-keeper dials nobody")
