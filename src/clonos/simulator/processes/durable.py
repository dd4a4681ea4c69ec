"""What outlives a process in the simulated cluster: production's storage code on disks that fail.

This module adds only the durations, and what a dying process leaves half done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from functools import partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

from clonos.cluster import compaction
from clonos.cluster.durable import DeliveredOutputs, JournalFile
from clonos.cluster.lookout import Lookout
from clonos.core.events import StoreLayer
from clonos.core.history import Chains
from clonos.core.housekeeper import Deliver, HouseKeeper
from clonos.core.levels import STORE, LayerRef, MergeLayers
from clonos.core.plan import Incarnation
from clonos.errors import ClonosError, StoreAway, UnreadableLayer
from clonos.nodes import events
from clonos.simulator.checks.closed import ClosedKeeper
from clonos.simulator.checks.invariants import unused
from clonos.simulator.checks.levels import in_store
from clonos.simulator.world.disk import Died, Disk
from clonos.simulator.world.disks import DELIVERED, JOURNAL, rows_of
from clonos.sinks.delivered import DeliveredStore
from clonos.storage.files import Files
from clonos.storage.layers import OPENED_BYTES, LayerStore, put_layer
from clonos.storage.leveled import LeveledLayers

if TYPE_CHECKING:
    from clonos.simulator.processes.cluster import Cluster
    from clonos.simulator.processes.driver import Driver
    from clonos.simulator.processes.slot import Slot

SURVEY_MS: Final = 1.0
"""Time that it takes to list the store."""
LOOK_MS: Final = 1.0
"""Time that it takes to look for a later term."""
CALLS: Final = 12
"""A process that dies while it stores something dies at one of its first disk operations, or after
the last."""


# --- the driver's ports -------------------------------------------------------------------------


class SimulatedJournal:
    """A :class:`~clonos.nodes.ports.Journal`. A write takes some time, or none."""

    def __init__(self, driver: Driver) -> None:
        self._driver, self._cluster = driver, driver.cluster
        self._file = JournalFile(JOURNAL, "fsync", driver.post, driver.disk)
        self._writing: tuple[Any, Sequence[bytes], ClosedKeeper] | None = None

    def recover(self, keeper: HouseKeeper) -> list[Deliver]:
        return self._file.recover(keeper)

    @property
    def nbytes(self) -> int:
        return self._file.nbytes

    @property
    def next_seq(self) -> int:
        return self._file.next_seq

    def append(self, records: Sequence[bytes]) -> bool:
        return self._write(self._file.append, records)

    def prove(self) -> bool:
        return self._write(lambda _: self._file.prove(), ())

    def rotate(self, head: Sequence[bytes]) -> bool:
        return self._write(self._file.rotate, head)

    def _write(self, write: Any, records: Sequence[bytes]) -> bool:
        assert self._writing is None, "one at a time"
        closed = ClosedKeeper(self._driver.keeper)
        if self._driver is self._cluster.driver:  # else it writes a copy of the journal
            self._cluster.recorder.writes(closed)
        self._writing = (write, records, closed)
        if self._cluster.random.random() < 0.2:
            return self._is_written()
        self._cluster.scheduler.after(self._cluster.commit_delay(), self._end_writing)
        return False

    def _end_writing(self) -> None:
        if self._driver.paused_until > self._cluster.scheduler.now:
            self._cluster.scheduler.at(self._driver.paused_until, self._end_writing)
        elif self._driver.alive and self._driver.survives(self._is_written):
            self._driver.post(events.Committed())

    def _is_written(self) -> bool:
        assert self._writing is not None
        (write, records, closed), self._writing = self._writing, None
        if not write(records):
            return False  # the driver is told
        if self._driver is self._cluster.driver:
            self._cluster.recorder.committed(closed)
        self._driver.closed = closed
        return True

    def break_off(self) -> None:
        """The process dies: its write is complete, partial, or absent."""
        if self._writing is not None and self._cluster.random.random() < 0.5:
            write, records, _ = self._writing
            self._driver.disk.dies_within(2, CALLS)  # a group takes 2
            with suppress(Died):
                write(records)

    def close(self) -> None:
        """The driver has ended; the write under way only vouched for the rest and is not needed."""
        self._writing = None
        self._file.close()


def outputs_of(driver: Driver) -> DeliveredOutputs:
    """The :class:`~clonos.nodes.ports.Outputs` of a driver; the recorder reads them."""
    cluster = driver.cluster

    def consume(output: Deliver) -> None:
        cluster.recorder.lets_out(driver.term, output)
        cluster.recorder.delivered(driver.closed, output)

    store = DeliveredStore(DELIVERED, files=driver.disk)
    rows = partial(rows_of, cluster.job)
    size = attrgetter("nbytes")
    return DeliveredOutputs(cluster.job.plan, store, consume, driver.post, rows, size)


class SimulatedMerger:
    """Merges layers after some time: those it is told to, and others as the seed decides."""

    def __init__(self, driver: Driver, term: int) -> None:
        self._driver, self._term = driver, term
        self._cluster = driver.cluster
        self._store = LayerStore(driver.layers, files=driver.shared)
        self._merging = set[LayerRef]()  # what is to be replaced

    def merge(self, chain: Sequence[LayerRef], chosen: Sequence[LayerRef]) -> None:
        cluster = self._cluster
        if not (cluster.options.merges_overlap or self._merging.isdisjoint(chosen)):
            error = ClonosError("some of them are being merged")
            self._driver.post(events.MergeFailed(tuple(chosen), error))
            return
        self._merging.update(chosen)
        is_base = chosen[0] == chain[0]
        delay = cluster.store_delay(3)
        if cluster.random.random() < 0.1 and not is_healed(cluster):
            error = ClonosError("the store is away")
            cluster.scheduler.after(delay, self._failed, tuple(chosen), error)
        else:
            cluster.scheduler.after(delay, self._merged, tuple(chosen), is_base)

    def _merged(self, chosen: tuple[LayerRef, ...], is_base: bool) -> None:
        merge = partial(
            compaction.merge,
            chosen=chosen,
            is_base=is_base,
            term=self._term,
            deltas=self._cluster.job.merge,
        )
        if not self._driver.alive:  # the merging process has died with it
            half_done(
                self._cluster, lambda files: merge(LayerStore(self._driver.layers, files=files))
            )
            return
        try:
            ref = merge(self._store)
        except Died:
            self._cluster.kill_driver(self._driver)
        except (StoreAway, UnreadableLayer) as error:
            self._failed(chosen, error)
        else:
            self._merging.difference_update(chosen)
            self._driver.post(events.Merged(ref, chosen))

    def _failed(self, chosen: tuple[LayerRef, ...], error: ClonosError) -> None:
        self._merging.difference_update(chosen)
        self._driver.post(events.MergeFailed(chosen, error))

    def delete(self, paths: Sequence[str]) -> None:
        self._cluster.recorder.deletes(paths)
        unused(paths, in_store(self._driver.keeper.layers))  # also where nothing is hard yet
        with suppress(StoreAway):  # they stay
            self._store.delete(paths)

    def survey(self, going: int = 0) -> None:
        self._cluster.scheduler.after(SURVEY_MS, self._survey, going)

    def _survey(self, going: int) -> None:
        if self._driver.alive:
            self._driver.survives(lambda: self._list(going))

    def _list(self, going: int) -> None:
        with suppress(StoreAway):
            self._driver.post(events.Surveyed(self._store.everything(), going))

    def archive(self, number: int, path: str, content: bytes) -> None:
        delay = self._cluster.past_delay()
        self._cluster.scheduler.after(delay, self._archive, number, path, content)

    def _archive(self, number: int, path: str, content: bytes) -> None:
        if not self._driver.alive:
            half_done(
                self._cluster,
                lambda files: LayerStore(self._driver.layers, files=files).put(path, content),
            )
            return
        try:
            nbytes = self._store.put(path, content)
        except Died:
            self._cluster.kill_driver(self._driver)
        except StoreAway as error:
            self._driver.post(events.ArchiveFailed(number, error))
        else:
            self._driver.post(events.Archived(number, path, nbytes))

    def after_floor(self, layers: Chains) -> None:
        """Now and then some layers of a task are merged: others than the driver has chosen, whose
        merges fail meanwhile if they may not overlap."""
        random, options = self._cluster.random, self._cluster.options
        if not options.merges_overlap and is_healed(self._cluster):
            return
        if options.merges and random.random() < options.merges:
            task = random.randrange(len(self._cluster.job.plan.tasks))
            free = self._driver.node.layers.mergeable(task, layers[task])
            if any(ref.level != STORE for ref in free):
                return  # its slots keep and merge them
            first = random.randrange(max(1, len(free) - 1))
            chosen = free[first : random.randint(first + 2, first + 6)]
            if len(chosen) > 1:
                self.merge(layers[task], chosen)


class SimulatedLookout(Lookout):
    """A :class:`~clonos.nodes.ports.Lookout`."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver.checkpoint, driver.post, driver.cluster.trace)
        self._driver = driver

    def look(self) -> None:
        scheduler = self._driver.cluster.scheduler
        scheduler.at(max(scheduler.now + LOOK_MS, self._driver.looks_at), self._look)

    def _look(self) -> None:
        driver = self._driver
        if driver.alive:
            for event in driver.survives(self.see) or ():
                driver.post(event)


# --- a slot's ports -----------------------------------------------------------------------------


class _Disk(LayerStore):
    """The layers on a machine's disk. What is deleted is gone, even if more cannot be."""

    def __init__(self, folder: str, files: Files, deleted: Callable[[str], None]) -> None:
        super().__init__(folder, "process", files=files)
        self._deleted = deleted

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            super().delete([path])
            self._deleted(path)


class SlotStore:
    """A :class:`~clonos.nodes.ports.Store`. An operation under way when the process dies may have
    taken effect. A failed operation is retried, as in production.

    Attributes
    ----------
    disk
        The name of the machine's disk.
    """

    def __init__(
        self,
        slot: Slot,
        folder: str,
        opened_bytes: int = OPENED_BYTES,
        machine: tuple[str, Disk] | None = None,
    ) -> None:
        self._slot, self._cluster, self._folder = slot, slot.cluster, folder
        self._opened_bytes = opened_bytes
        self.files = slot.cluster.disks.shared.mount()
        local = None
        self.disk = ""
        if machine is not None:
            self.disk = machine[0]
            holders = slot.cluster.recorder.holders
            local = _Disk(folder, machine[1].mount(), partial(holders.deleted, self.disk))
        self._layers = LeveledLayers(LayerStore(folder, files=self.files), local)

    @property
    def reads_in_place(self) -> bool:
        return self.files.is_local

    def _later(self, work: Callable[[], object]) -> None:
        """Work that does not involve the checkpoint store: done soon, if the process lives."""
        cluster = self._cluster
        delay = cluster.level_random.random() * cluster.options.store_ms / 4
        cluster.scheduler.after(delay, self._if_alive, work)

    def _if_alive(self, work: Callable[[], object]) -> None:
        if not self._slot.alive:
            return
        try:
            work()
        except StoreAway:
            self._later(work)

    def fetch(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        delay = sum(self._cluster.store_delay() for _ in refs)
        self._cluster.scheduler.after(delay, self._fetched, ticket, tuple(refs))

    def _fetched(self, ticket: int, refs: tuple[LayerRef, ...]) -> None:
        if not self._slot.alive:
            return
        try:
            layers = self._layers.get(refs, self._opened_bytes)
        except Died:
            self._cluster.kill(self._slot, "died at a call")
        except StoreAway:
            self.fetch(ticket, refs)
        except UnreadableLayer as error:
            self._slot.post(events.FetchFailed(ticket, error))
        else:
            self._slot.post(events.Fetched(ticket, layers))

    def put(self, life: int, sealed: StoreLayer, level: str) -> None:
        if level == STORE:
            self._cluster.scheduler.after(self._cluster.store_delay(), self._put, life, sealed)
        else:
            self._later(lambda: self._keep_own(life, sealed, level))

    def _put(self, life: int, sealed: StoreLayer) -> None:
        if not self._slot.alive:
            if self._cluster.random.random() < 0.5:
                half_done(
                    self._cluster,
                    lambda files: put_layer(LayerStore(self._folder, files=files), sealed),
                )
            return
        try:
            ref = self._layers.put(sealed, STORE)
        except Died:
            self._cluster.kill(self._slot, "died at a call")
        except StoreAway:
            self.put(life, sealed, STORE)
        else:
            self._slot.post(events.Stored(life, ref))

    # --- layers that slots keep -----------------------------------------------------------------

    def _keep_own(self, life: int, sealed: StoreLayer, level: str) -> None:
        ref = self._layers.put(sealed, level)
        self._noted(ref)
        self._slot.post(events.Stored(life, ref))

    def _noted(self, ref: LayerRef) -> None:
        (layer,) = self._layers.get([ref])
        self._cluster.recorder.holders.keeps(self._slot.address, self.disk, ref, layer)

    def look(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        self._later(lambda: self._look(ticket, refs))

    def _look(self, ticket: int, refs: Sequence[LayerRef]) -> None:
        found, holders = self._layers.look(refs), self._cluster.recorder.holders
        for ref in refs:
            note = holders.finds if ref.path in found else holders.drops
            note(self._slot.address, self.disk, ref)
        self._slot.post(events.Looked(ticket, found))

    def keep(self, ticket: int, ref: LayerRef, content: bytes) -> None:
        self._later(lambda: self._keep(ticket, ref, content))

    def _keep(self, ticket: int, ref: LayerRef, content: bytes) -> None:
        try:
            self._layers.keep(ref, content)
        except UnreadableLayer as error:
            self._slot.post(events.Kept(ticket, error))
        else:
            self._noted(ref)
            self._slot.post(events.Kept(ticket))

    def read(self, ticket: int, ref: LayerRef, start: int) -> None:
        self._later(lambda: self._slot.post(events.PartRead(ticket, self._layers.part(ref, start))))

    def merge(self, ticket: int, command: MergeLayers) -> None:
        if command.level == STORE:
            cluster = self._cluster
            delay = max(0.0, cluster.store_back_at - cluster.scheduler.now)
            delay += 2 * cluster.options.store_ms * cluster.level_random.random()
            cluster.scheduler.after(delay, self._if_alive, lambda: self._merge(ticket, command))
        else:
            self._later(lambda: self._merge(ticket, command))

    def _merge(self, ticket: int, command: MergeLayers) -> None:
        if self._cluster.level_random.random() < 0.1 and not is_healed(self._cluster):
            self._slot.post(events.MergedHere(ticket, None))
            return
        try:
            merged = self._layers.merge(command, self._cluster.job.merge)
        except (UnreadableLayer, StoreAway):
            self._slot.post(events.MergedHere(ticket, None))
            return
        if merged.level != STORE:
            self._noted(merged)
        self._slot.post(events.MergedHere(ticket, merged))

    def tidy(self, task: int, life: Incarnation, named: Collection[str]) -> None:
        self._later(lambda: self._layers.tidy(task, life, named))

    def clear(self) -> None:
        """Drop all layers: all processes do this at the end of a job."""

    def drop(self, refs: Sequence[LayerRef]) -> None:
        try:
            self._layers.drop(refs)
        except StoreAway:
            self._later(lambda: self.drop(refs))
            return
        for ref in refs:
            self._cluster.recorder.holders.drops(self._slot.address, self.disk, ref)


def half_done(cluster: Cluster, act: Any) -> None:
    """A dying process completes its work with the store in part, or wholly."""
    files = cluster.disks.shared.mount()
    files.dies_within(CALLS)
    with suppress(Died, StoreAway, UnreadableLayer):
        act(files)


def is_healed(cluster: Cluster) -> bool:
    """Whether somebody waits until nothing fails any more, and nothing does."""
    return bool(cluster.before_end) and cluster.scheduler.now > cluster.heals_at
