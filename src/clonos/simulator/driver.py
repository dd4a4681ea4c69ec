"""The driver's process: the node of production, on simulated ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from clonos.core import coordinator as co
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.layer import encode_layer, merge_layers, open_layer, refer_to
from clonos.core.messages import LayerRef
from clonos.core.throttle import INFLIGHT_BYTES_HIGH
from clonos.errors import ClonosError
from clonos.nodes import events
from clonos.nodes.driver import DriverNode, DriverSettings
from clonos.nodes.places import Pace
from clonos.nodes.ports import DriverPorts
from clonos.nodes.views import Sample
from clonos.simulator.network import Stream
from clonos.simulator.spark import Spark
from clonos.simulator.world import EPOCH_MS
from clonos.transport.events import ChannelClosed, ChannelOpened, TaskStatistics

if TYPE_CHECKING:
    from clonos.simulator.cluster import Cluster
    from clonos.simulator.slot import Slot

SURVEY_MS: Final = 1.0
"""Time that it takes to list the store."""


class WatchedKeeper(HouseKeeper):
    """The house-keeper, with the recorder looking at what it is about to hear."""

    def __init__(self, driver: Driver) -> None:
        job = driver.cluster.job
        super().__init__(job.plan, job.encode, job.decode)
        self._driver = driver

    def handle(self, event: ev.Opened | ev.Received | ev.InputClosed) -> None:
        stream = self._driver.accepted.get(event.conn)
        if isinstance(event, ev.Received) and stream is not None:
            self._driver.cluster.recorder.keeper_receives(self, stream, event.data)
        super().handle(event)


class ClosedKeeper:
    """The house-keeper as it was when a group was closed: what is durable once the group is."""

    def __init__(self, keeper: HouseKeeper) -> None:
        self.plan, self.generation, self.epoch = keeper.plan, keeper.generation, keeper.epoch
        self.positions, self.layers = dict(keeper.positions), dict(keeper.layers)
        self.stable, self.resolved = dict(keeper.stable), list(keeper.resolved)
        self.book = self
        self._lengths = {task: keeper.length(task) for task in keeper.positions}
        self._bases = {task: keeper.book.base(task) for task in keeper.positions}

    def length(self, task: int) -> int:
        return self._lengths[task]

    def base(self, task: int) -> int:
        return self._bases[task]


class SimulatedJournal:
    """A list of records that outlives the driver. Each write takes its time, or none."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._cluster = driver.cluster
        self._writing: list[bytes] | None = None
        self._anew = False
        self.fails_until = 0.0

    @property
    def nbytes(self) -> int:
        return len(self._cluster.journal)

    def append(self, records: Sequence[bytes]) -> bool:
        return self._write(records, anew=False)

    def rotate(self, head: Sequence[bytes]) -> bool:
        return self._write(head, anew=True)

    def _write(self, records: Sequence[bytes], *, anew: bool) -> bool:
        assert self._writing is None, "one at a time"
        cluster, closed = self._cluster, ClosedKeeper(self._driver.keeper)
        self._writing, self._anew = list(records), anew
        if cluster.scheduler.now < self.fails_until:
            cluster.scheduler.after(cluster.commit_delay(), self._failed)
            return False
        if cluster.random.random() < 0.2:
            self._written(closed)
            return True
        cluster.scheduler.after(cluster.commit_delay(), self._committed, closed)
        return False

    def _committed(self, closed: ClosedKeeper) -> None:
        if self._driver.alive:
            self._written(closed)
            self._driver.post(events.Committed())

    def _written(self, closed: ClosedKeeper) -> None:
        self._reach_the_disk()
        self._cluster.recorder.committed(closed)  # type: ignore[arg-type]
        self._driver.closed = closed

    def _failed(self) -> None:
        """Nobody knows what is on the disk."""
        if self._driver.alive:
            self.break_off()
            self._driver.post(events.JournalFailed(ClonosError("the disk refuses")))

    def break_off(self) -> None:
        """What is being written has reached the disk, or not."""
        if self._writing is not None and self._cluster.random.random() < 0.5:
            self._reach_the_disk()
        self._writing = None

    def _reach_the_disk(self) -> None:
        records, self._writing = self._writing or [], None
        if self._anew:
            self._cluster.journal[:] = records
        else:
            self._cluster.journal.extend(records)


class SimulatedOutputs:
    """Whoever reads the job's output. What is let out is in files at once."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def take(self, output: Deliver) -> None:
        driver = self._driver
        driver.cluster.recorder.delivered(driver.closed, output)  # type: ignore[arg-type]

    def flush(self) -> ClonosError | None:
        return None


class SimulatedMerger:
    """Merges layers, in a while; beside those it is asked for, others, as the seed will have it."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._cluster = driver.cluster

    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> None:
        cluster = self._cluster
        is_base = chosen[0] == chain[0]
        delay = 3 * cluster.store_delay()
        if cluster.random.random() < 0.1:
            failed = events.MergeFailed(chosen[0].task, ClonosError("the store is away"))
            cluster.scheduler.after(delay, self._driver.post, failed)
        else:
            cluster.scheduler.after(delay, self._merged, tuple(chosen), is_base)

    def _merged(self, chosen: tuple[LayerRef, ...], is_base: bool) -> None:
        cluster = self._cluster
        if not self._driver.alive:
            return
        layers = [open_layer(cluster.layers[ref.path], ref) for ref in chosen]
        merged = merge_layers(layers, cluster.job.merge, is_base=is_base)
        path = f"{chosen[-1].path} from {chosen[0].path}"
        content = cluster.layers[path] = encode_layer(merged)
        ref = refer_to(merged, content, path, len(content))
        self._driver.post(events.Merged(ref, chosen))

    def delete(self, paths: Sequence[str]) -> None:
        for path in paths:
            self._cluster.layers.pop(path, None)

    def survey(self) -> None:
        cluster = self._cluster
        cluster.scheduler.after(
            SURVEY_MS, lambda: self._driver.post(events.Surveyed(tuple(cluster.layers)))
        )

    def after_floor(self) -> None:
        """Now and then some layers of a task are merged."""
        random, options = self._cluster.random, self._cluster.options
        if options.merges and random.random() < options.merges:
            task = random.randrange(len(self._cluster.job.plan.tasks))
            chain = self._driver.keeper.layers[task]
            first = random.randrange(max(1, len(chain) - 1))
            chosen = chain[first : random.randint(first + 2, first + 6)]
            if len(chosen) > 1:
                self.merge(chain, chosen)


class SimulatedAudience:
    """The recorder, and whoever watches the simulation."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def noted(self, note: co.Note, at_s: float) -> None:
        self._driver.cluster.noted(note)

    def sampled(self, sample: Sample) -> None:
        if not sample.counters["inflight_bytes"]:
            self._driver.unheard.discard(sample.task)

    def told(self, what: Any) -> None:
        pass

    def warned(self, text: str) -> None:
        self._driver.cluster.trace(f"   warning: {text}")

    def floor(self, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
        self._driver.after_floor()


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
        Those that have registered with it and have not gone, by number.
    accepted
        The house-keeper's streams.
    closed
        The house-keeper as far as it is durable.
    """

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = self.group = address
        self.alive = True
        self.slowness = 0.0
        self.paused_until = 0.0
        self.slots: dict[int, Slot] = {}
        self.accepted: dict[int, Stream] = {}
        self.unheard: set[int] = set()  # tasks that want to say that they keep little
        self.keeper = WatchedKeeper(self)
        self.recovered = self.keeper.recover(cluster.journal)
        self.closed = ClosedKeeper(self.keeper)
        self.journal = SimulatedJournal(self)
        self.merger = SimulatedMerger(self)
        options, plan = cluster.options, cluster.job.plan
        free = options.slots - len(options.bound)
        places = (*([None] * free), *(sorted(options.bound) * (1 + options.standbys)))
        self.spark = Spark(cluster, self, places)
        ports = DriverPorts(
            DriverClock(cluster),
            self.journal,
            SimulatedOutputs(self),
            self.spark,
            self.merger,
            SimulatedAudience(self),
        )
        settings = DriverSettings(
            name="simulation",
            run_id="simulation",
            address=address,
            places=places,
            operators={t.id: (t.name,) for t in plan.tasks},
            checkpoint_interval_s=options.epoch_ms / 1000,
            standbys=options.standbys,
            availability=options.availability,
            silence_s=options.silence_ms / 1000,
            answer_s=options.fence_timeout_ms / 1000,
            gather_s=options.gather_ms / 1000,
            rotate_bytes=options.rotate_records,
            pace=Pace(settle_s=options.relaunch_ms / 2000, relaunch_s=options.relaunch_ms / 2000),
        )
        self.node = DriverNode(self.keeper, self.recovered, ports, settings)
        self._inbox: list[events.DriverEvent | tuple[int, Any]] = []
        self._turn_at: float | None = None

    @property
    def coordinator(self) -> Coordinator:
        return self.node.coordinator

    # --- turns ------------------------------------------------------------------------------------

    def start(self) -> None:
        self.node.start()
        self._turn_by(self.cluster.scheduler.now)

    def post(self, heard: events.DriverEvent | tuple[int, Any]) -> None:
        """Something has come."""
        if self.alive:
            self._inbox.append(heard)
            self._turn_by(self.cluster.scheduler.now)

    def _turn_by(self, time: float) -> None:
        at = max(time, self.paused_until)
        if self._turn_at is None or at < self._turn_at:
            self._turn_at = at
            self.cluster.scheduler.at(at, self._turn, at)

    def _turn(self, at: float) -> None:
        if not self.alive or at != self._turn_at:
            return
        self._turn_at = None
        now = self.cluster.scheduler.now
        if self.paused_until > now:
            self._turn_by(now)
            return
        heard, self._inbox = self._inbox, []
        wait_s = self.node.turn(heard)
        self.node.check()
        if self.node.failed is not None:
            self.cluster.fail(self.node.failed)
        elif self.node.error is not None:
            self.cluster.fail(co.Fail(type(self.node.error).__name__, self.node.error.what))
        elif self.node.is_over:
            self.cluster.finished()
        else:
            self._turn_by(now + 1000 * wait_s)

    def die(self) -> None:
        """A commit under way may have reached the disk, or not."""
        self.alive = False
        self.journal.break_off()

    # --- what goes on beside the protocol ---------------------------------------------------------

    def after_floor(self) -> None:
        """Now and then some layers of a task are merged, or somebody's memory is full."""
        self.merger.after_floor()
        random, options = self.cluster.random, self.cluster.options
        if options.pressures and random.random() < options.pressures:
            task = random.randrange(len(self.cluster.job.plan.tasks))
            self._press(task, 2 * INFLIGHT_BYTES_HIGH)
            self.cluster.scheduler.after(60 * random.random(), self._relieve, task)

    def _press(self, task: int, held: int) -> None:
        """A task says how much it keeps for its receivers."""
        slot = self.coordinator.tasks[task].slot
        if slot is not None:
            self.post((slot, TaskStatistics(task, 0, {"inflight_bytes": held})))

    def _relieve(self, task: int) -> None:
        """... that it is little again; and again, until that is heard."""
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
