"""After all faults: when nothing has happened for a while, nobody keeps more than is due.

Sources go on until then, even if they have no rows left.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from clonos.core import merges as merges_module
from clonos.core import notes
from clonos.core.levels import MEMORY, STORE
from clonos.core.moves import MovePhase
from clonos.nodes.commits import State as Journal
from clonos.simulator.checks import levels

if TYPE_CHECKING:
    from clonos.core.placement import Slot
    from clonos.simulator.processes.cluster import Cluster

_MAKES_READY: Final = (MovePhase.COPYING, MovePhase.SEALING)
"""A cell that is about to move still runs where it was."""

TIDY_FLOORS: Final = 2
"""Floors after the last fault by which slots have heard of all lives."""
TIDY_MS: Final = 50.0
"""... and this long, because the journal may have held up what they are told."""
HEALS_MS: Final = 250.0
"""Some faults last this much longer than the time in which they begin."""
LOOK_MS: Final = 25.0
"""How often to look."""
QUIET_MS: Final = 400.0
"""How long nothing may have happened, if the store needs no time ..."""
STORES: Final = 6
"""... and how many times the mean duration of a store operation is added."""
UNWANTED: Final = 0.6
"""For this part of that time, a layer may stay where nobody wants it any more."""
HARD: Final = 0.8
"""For this part of it, floors may be in use before they are hard."""
MERGE_FLOORS: Final = 4
"""So many floors of a task may come while its layers are being merged."""


class Quiet:
    """Waits for a quiet time, and looks at all layers meanwhile.

    Attributes
    ----------
    is_over
        Whether it has been quiet for long enough.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster, self.is_over = cluster, False
        self._quiet_ms = QUIET_MS + STORES * cluster.options.store_ms
        self._tidy_at = 0.0
        self._begins(None)
        cluster.on_note.append(self._noted)
        cluster.before_end.append(lambda: self.is_over)
        cluster.scheduler.at(cluster.heals_at + HEALS_MS, self._look)

    def _noted(self, note: notes.Note) -> None:
        """When nothing fails any more, slots have tidied their disks by the second floor."""
        cluster = self._cluster
        if not isinstance(note, notes.Floor) or cluster.scheduler.now <= cluster.heals_at:
            return
        kept, slots = cluster.recorder.holders, cluster.driver.coordinator.slots.values()
        if cluster.floors_since < TIDY_FLOORS:
            self._tidy_at = cluster.scheduler.now
            kept.heals()
        elif cluster.scheduler.now - self._tidy_at > TIDY_MS:
            living = {slot.address for slot in cluster.alive()}
            kept.no_litter(cluster.driver.keeper, [s for s in slots if s.address in living])

    # --- what is quiet --------------------------------------------------------------------------

    def _begins(self, state: Any) -> None:
        """From now on nothing happens."""
        self._state, self._since = state, self._cluster.scheduler.now
        self._unwanted: dict[tuple[str, str], float] = {}  # by process and path, since when
        self._in_use: list[tuple[float, int]] = []  # when, and the epoch of the floors
        # By task: the number of its layers in the store, the newest ones since it grew less, when.
        self._stored: dict[int, tuple[set[str], set[str], float]] = {}

    def _look(self) -> None:
        cluster = self._cluster
        if self.is_over or cluster.outcome.state != "running":
            return
        cluster.scheduler.after(LOOK_MS, self._look)
        state = self._who_is_where()
        if state is None or state != self._state:
            self._begins(state)
            return
        now = cluster.scheduler.now
        self._look_for_unwanted(now)
        self._look_at_floors(now)
        self._look_at_store(now)
        self._look_at_copies()
        self.is_over = now - self._since >= self._quiet_ms

    def _who_is_where(self) -> Any:
        """The lives and slots of all tasks and copies; None while anything is wrong."""
        cluster, driver = self._cluster, self._cluster.driver
        now, coordinator = cluster.scheduler.now, driver.coordinator
        disks = [cluster.disks.shared, *(disk for _, disk in cluster.disks.machines.values())]
        is_well = (
            driver.alive
            and driver.node.commits.state is not Journal.BROKEN  # it waits to try it again
            and max(driver.paused_until, cluster.store_back_at) <= now
            and all(disk.is_well for disk in disks)
            and all(s.stalled_until <= now and not s.slowness for s in cluster.alive())
            and len(coordinator.slots) >= cluster.options.slots
            and coordinator.roster.all_run
            and all(map(coordinator.holdings.can_restore, coordinator.tasks))
            and coordinator.moves.machine.state in (MovePhase.IDLE, *_MAKES_READY)
        )
        if not is_well:
            return None
        tasks = [(task.incarnation, task.slot) for task in coordinator.tasks.values()]
        copies = {slot.id: sorted(slot.standbys) for slot in coordinator.slots.values()}
        return driver.term, tasks, copies

    # --- what is looked at ----------------------------------------------------------------------

    def _look_for_unwanted(self, now: float) -> None:
        coordinator = self._cluster.driver.coordinator
        layers, beyond = coordinator.keeper.layers, coordinator.holdings.beyond
        chains = {t: [*layers[t], *(layer.ref for layer in beyond[t])] for t in layers}
        wanted = {ref.path for chain in chains.values() for ref in chain}
        newest = {t: max((ref.epoch for ref in chain), default=0) for t, chain in chains.items()}
        known, self._unwanted = self._unwanted, {}
        for slot in self._living():
            for ref in self._cluster.recorder.holders.made_by(slot):
                task = coordinator.tasks[ref.task]
                if ref.incarnation == task.incarnation and ref.epoch > newest[ref.task]:
                    continue  # it is acknowledged when output before it is written
                has_it = task.slot == slot.id or ref.task in slot.standbys
                if ref.path in wanted and (has_it or ref.level != MEMORY):
                    continue
                name = slot.address, ref.path
                since = self._unwanted[name] = known.get(name, now)
                levels.kept_no_longer(slot, ref, now - since, UNWANTED * self._quiet_ms)

    def _living(self) -> list[Slot]:
        living = {slot.address for slot in self._cluster.alive()}
        slots = self._cluster.driver.coordinator.slots.values()
        return [slot for slot in slots if slot.address in living]

    def _look_at_floors(self, now: float) -> None:
        keeper = self._cluster.driver.keeper
        self._in_use.append((now, keeper.floors.epoch))
        before = now - HARD * self._quiet_ms
        due = max((epoch for at, epoch in self._in_use if at <= before), default=0)
        levels.hard_again(keeper.hard.epoch, due)

    def _look_at_store(self, now: float) -> None:
        """A merge takes a while. Meanwhile further layers come."""
        options = self._cluster.options
        for task, chain in self._cluster.driver.keeper.hard.layers.items():
            stored = [ref for ref in chain if ref.level == STORE]
            paths, most = [ref.path for ref in stored], merges_module.longest(stored)
            before, newest, since = self._stored.get(task, (set(), set(), now))
            if not before <= set(paths) or len(paths) <= most:  # some were merged
                newest, since = set(), now
            newest = {*newest, *paths[-1:]}
            self._stored[task] = set(paths), newest, since
            if now - since > 8 * options.store_ms + 150 and len(newest) > MERGE_FLOORS:
                levels.few_in_store(task, len(paths), most)

    def _look_at_copies(self) -> None:
        coordinator = self._cluster.driver.coordinator
        roster, options = coordinator.roster, self._cluster.options
        if not options.standbys or coordinator.moves.machine.state in _MAKES_READY:
            return  # where a cell is about to move, there is a copy, too
        running = {task.slot for task in roster.tasks.values()}
        spare = [s for s in roster.slots.values() if s.id not in running and not s.leaves]
        for cell, home in roster.homes().items():
            if home is not None:
                levels.copies_apart(cell, roster.slots[home], list(roster.slots.values()), spare)
