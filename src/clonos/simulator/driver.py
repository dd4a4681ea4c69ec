"""The driver: coordinator and house-keeper on one journal, in one process that can die."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from clonos.core import coordinator as co
from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.coordinator import Coordinator
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.layer import encode_layer, merge_layers, open_layer, refer_to
from clonos.core.throttle import INFLIGHT_BYTES_HIGH
from clonos.simulator.network import Stream
from clonos.simulator.world import EPOCH_MS

if TYPE_CHECKING:
    from clonos.simulator.cluster import Cluster
    from clonos.simulator.slot import Slot

Work = Callable[[], list[co.Action] | None]


class Driver:
    """One life of the driver.

    It works through its inbox, commits the journal, and only then carries out what it decided;
    while a commit is under way, nothing is handled.
    """

    def __init__(self, cluster: Cluster, address: str) -> None:
        self.cluster = cluster
        self.address = address
        self.group = address
        self.alive = True
        self.slowness = 0.0
        self.paused_until = 0.0
        self.slots: dict[int, Slot] = {}
        self._inbox: list[Work] = []
        self._is_busy = False
        self._committing: list[bytes] = []
        self._accepted: dict[int, Stream] = {}
        options = cluster.options
        self.keeper = HouseKeeper(cluster.job.plan, cluster.job.encode, cluster.job.decode)
        self.recovered = self.keeper.recover(cluster.journal)
        self.coordinator = Coordinator(
            cluster.job.plan,
            self.keeper,
            address=address,
            standbys=options.standbys,
            availability=options.availability,
            bound=options.bound,
            fence_timeout_ms=options.fence_timeout_ms,
            gather_ms=options.gather_ms,
        )

    def start(self) -> None:
        self.post(self.coordinator.start)
        self.cluster.scheduler.after(self.cluster.options.epoch_ms, self._epoch)
        self.cluster.scheduler.after(20.0, self._tick)

    def now_ms(self) -> int:
        return EPOCH_MS + int(self.cluster.scheduler.now)

    # --- one thing after the other ----------------------------------------------------------------

    def post(self, work: Work) -> None:
        self._inbox.append(work)
        self._work()

    def _work(self) -> None:
        if self._is_busy or not self.alive or not self._inbox:
            return
        self._is_busy = True
        at = max(self.cluster.scheduler.now, self.paused_until)
        self.cluster.scheduler.at(at, self._process)

    def _process(self) -> None:
        if not self.alive:
            return
        inbox, self._inbox = self._inbox, []
        actions: list[co.Action] = []
        for work in inbox:
            actions += work() or []
        self._committing = self.keeper.take_records()
        if self._committing:
            delay = self.cluster.commit_delay()
            self.cluster.scheduler.after(delay, self._committed, actions)
        else:
            self._committed(actions)

    def _committed(self, actions: list[co.Action]) -> None:
        if not self.alive:
            return
        self.cluster.journal.extend(self._committing)
        self._committing = []
        self.cluster.recorder.committed(self.keeper)
        replies, delivered = self.keeper.committed()
        for deliver in delivered:
            self.cluster.recorder.delivered(self.keeper, deliver)
        self._rotate_journal()
        for reply in replies:
            self._answer(reply)
        for action in actions:
            self._perform(action)
        self._is_busy = False
        self._work()

    def _rotate_journal(self) -> None:
        """The contents of deliveries go with the old segment: they must be elsewhere by now."""
        cluster = self.cluster
        if len(cluster.journal) > cluster.options.rotate_records:
            cluster.journal[:] = self.keeper.snapshot()

    def die(self) -> None:
        """A commit under way may have reached the disk, or not."""
        self.alive = False
        if self._committing and self.cluster.random.random() < 0.5:
            self.cluster.journal.extend(self._committing)

    # --- coordinator ------------------------------------------------------------------------------

    def _tick(self) -> None:
        if self.alive:
            self.post(lambda: self.coordinator.tick(self.now_ms()))
            self.cluster.scheduler.after(20.0, self._tick)

    def _epoch(self) -> None:
        if self.alive:
            self.post(self.coordinator.begin_epoch)
            self.cluster.scheduler.after(self.cluster.options.epoch_ms, self._epoch)

    def happened(self, event: co.Event) -> None:
        self.post(lambda: self.coordinator.handle(event, self.now_ms()))

    def _perform(self, action: co.Action) -> None:
        match action:
            case co.Command():
                slot = self.slots.get(action.slot)
                if slot is not None:
                    self.cluster.order(slot, action.command)
            case co.Expel():
                slot = self.slots.pop(action.slot, None)
                if slot is not None:
                    self.cluster.expel(slot)
            case co.Note():
                self.cluster.noted(action)
                if action.what == "floor":
                    self.after_floor()
            case co.Fail():
                self.cluster.fail(action)
            case co.Done():
                self.cluster.finished()

    # --- what goes on beside the protocol ---------------------------------------------------------

    def after_floor(self) -> None:
        """Now and then some layers of a task are merged, or somebody's memory is full."""
        random, options = self.cluster.random, self.cluster.options
        if options.merges and random.random() < options.merges:
            task = random.randrange(len(self.cluster.job.plan.tasks))
            chain = self.keeper.layers[task]
            first = random.randrange(max(1, len(chain) - 1))
            chosen = chain[first : random.randint(first + 2, first + 6)]
            if len(chosen) > 1:
                delay = 3 * self.cluster.store_delay()
                self.cluster.scheduler.after(delay, self._merged, chosen, first == 0)
        if options.pressures and random.random() < options.pressures:
            task = random.randrange(len(self.cluster.job.plan.tasks))
            self.post(lambda: self.coordinator.pressure(task, 2 * INFLIGHT_BYTES_HIGH))
            self.cluster.scheduler.after(60 * random.random(), self._relieved, task)

    def _merged(self, chosen: tuple[msg.LayerRef, ...], is_base: bool) -> None:
        if not self.alive:
            return
        layers = [open_layer(self.cluster.layers[ref.path], ref) for ref in chosen]
        merged = merge_layers(layers, self.cluster.job.merge, is_base=is_base)
        path = f"{chosen[-1].path} from {chosen[0].path}"
        content = self.cluster.layers[path] = encode_layer(merged)
        self.happened(co.Compacted(refer_to(merged, content, path, len(content)), chosen))

    def _relieved(self, task: int) -> None:
        if self.alive:
            self.post(lambda: self.coordinator.pressure(task, 0))

    # --- house-keeper -----------------------------------------------------------------------------

    def _answer(self, action: ev.Action) -> None:
        if isinstance(action, ev.Reply):
            stream = self._accepted.get(action.conn)
            if stream is not None:
                self.cluster.network.reply(stream, action.message)
        elif isinstance(action, ev.Refuse):
            stream = self._accepted.pop(action.conn, None)
            if stream is not None:
                self.cluster.network.refuse(stream)

    def _tell_keeper(self, event: ev.Opened | ev.Received | ev.InputClosed) -> None:
        self.post(lambda: self.keeper.handle(event))

    def opened(self, stream: Stream) -> None:
        self._accepted[stream.conn] = stream
        self._tell_keeper(ev.Opened(stream.channel, stream.conn, stream.incarnation))

    def received(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        self.post(lambda: self._receive(stream, data))

    def _receive(self, stream: Stream, data: msg.Data | msg.Welcome) -> None:
        self.cluster.recorder.keeper_receives(self.keeper, stream, data)
        self.keeper.handle(ev.Received(stream.channel, stream.conn, data))

    def input_closed(self, stream: Stream) -> None:
        self._accepted.pop(stream.conn, None)
        self._tell_keeper(ev.InputClosed(stream.channel, stream.conn))

    def answered(self, stream: Stream, message: object) -> None:
        raise AssertionError("the house-keeper dials nobody")

    def output_closed(self, stream: Stream) -> None:
        raise AssertionError("the house-keeper dials nobody")


__all__ = ["Deliver", "Driver"]
