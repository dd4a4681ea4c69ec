"""Invariants of layers that slots keep: the promises of each level of persistence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from clonos.core.decisions import Action, Command
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LOCAL, MEMORY, STORE, Discard, Hold, LayerRef
from clonos.core.placement import Slot
from clonos.core.plan import Cell, Incarnation
from clonos.core.sealed import Layer
from clonos.simulator.checks.violations import require

Place = tuple[str, str]
"""The memory of a process, by its address, or a disk, by its name."""


class Kept:
    """Which slot really has which layer. Layers of a dead process still count: the driver does not
    know of its death yet.

    Attributes
    ----------
    layers
        By path: all layers that a slot has ever kept.
    copies
        The number of standbys of each task.
    chosen
        Tasks whose level is chosen by a dial.
    lost
        Disks that are gone.
    """

    def __init__(self, copies: int = 0) -> None:
        self.copies = copies
        self.layers: dict[str, Layer] = {}
        self.chosen: set[int] = set()
        self.lost: set[str] = set()
        self._rotten: set[tuple[str, Place]] = set()  # by path; unnoticed until the file is read
        self._at: dict[str, set[Place]] = defaultdict(set)
        self._refs: dict[str, LayerRef] = {}
        self._made: dict[str, dict[str, LayerRef]] = defaultdict(dict)  # by process and path
        self._lives: dict[tuple[int, int], Incarnation] = {}  # newest known, by slot and task
        self._going: dict[int, set[LayerRef]] = defaultdict(set)  # by slot: to delete from its disk
        self._due: dict[int, set[LayerRef]] = {}

    def keeps(self, address: str, disk: str, ref: LayerRef, layer: Layer) -> None:
        """A process has stored a layer."""
        self.layers[ref.path], self._refs[ref.path] = layer, ref
        where = place(address, disk, ref)
        self._at[ref.path].add(where)
        self._made[address][ref.path] = ref
        self._rotten.discard((ref.path, where))

    def finds(self, address: str, disk: str, ref: LayerRef) -> None:
        """... or has read one. Whoever put it on the disk may have died, or met an error, before it
        knew that the file is whole."""
        where = place(address, disk, ref)
        self._at[ref.path].add(where)
        self._rotten.discard((ref.path, where))

    def drops(self, address: str, disk: str, ref: LayerRef) -> None:
        """... and does not have it any more."""
        self._made[address].pop(ref.path, None)
        self._is_gone(ref.path, place(address, disk, ref))

    def deleted(self, disk: str, path: str) -> None:
        """... and has deleted it from its disk."""
        self._is_gone(path, ("disk", disk))

    def _is_gone(self, path: str, where: Place) -> None:
        if (path, where) not in self._rotten:  # else the driver is yet to hear of it
            self._at[path].discard(where)

    def lacks(self, slot: Slot, paths: Iterable[str]) -> None:
        """The driver hears that a slot has lost layers."""
        for ref in (self._refs[path] for path in paths if path in self._refs):
            if not self.can_read(slot, ref):
                self._at[ref.path].discard(place(slot.address, slot.disk, ref))

    def rots(self, disk: str, path: str) -> None:
        """A layer on a disk is damaged from now on."""
        self._rotten.add((path, ("disk", disk)))

    def loses_disk(self, disk: str) -> None:
        """A machine is gone for good."""
        self.lost.add(disk)

    def has(self, slot: Slot, refs: Iterable[LayerRef]) -> bool:
        """Whether a slot has all of these."""
        return all(place(slot.address, slot.disk, ref) in self._at[ref.path] for ref in refs)

    def made_by(self, slot: Slot) -> list[LayerRef]:
        """What this process itself has put into its memory or on its disk, and is still there."""
        return [ref for ref in self._made[slot.address].values() if self.can_read(slot, ref)]

    def can_read(self, slot: Slot, ref: LayerRef) -> bool:
        """Whether a slot has a layer undamaged."""
        where = place(slot.address, slot.disk, ref)
        return where in self._at[ref.path] and (ref.path, where) not in self._rotten

    def disks(self, ref: LayerRef) -> set[str]:
        """The remaining disks that have this layer undamaged."""
        places = (p for p in self._at[ref.path] if (ref.path, p) not in self._rotten)
        return {name for kind, name in places if kind == "disk"} - self.lost

    # --- the driver's decisions -------------------------------------------------------------------

    def advances(
        self,
        slots: Mapping[int, Slot],
        homes: Mapping[int, int | None],
        layers: Mapping[int, Sequence[LayerRef]],
    ) -> None:
        """The driver decides that floors move to these layers, or stand on merged ones."""
        for task, chain in layers.items():
            copies, kept = 0 if task in self.chosen else self.copies, self._kept_by_slots(chain)
            safe_enough(task, kept, slots.values(), self, copies)
            home = homes[task]
            if home is not None and self.copies and kept:
                on_another_disk(task, kept, slots[home], slots.values(), self)

    def ends(self, keeper: HouseKeeper, slots: Mapping[int, Slot], slot: int, fewer: int) -> None:
        """The driver ends a slot on purpose. `fewer`: as many copies as this may be missing until
        it is back."""
        for task, chain in keeper.layers.items():
            kept = self._kept_by_slots(chain)
            if any(self.has(slots[slot], [ref]) for ref in kept):
                copies = 0 if task in self.chosen else self.copies
                others = [other for other in slots.values() if other.id != slot]
                others_have_it(task, kept, others, self, max(1, _due(kept, copies) - fewer))

    def does(self, keeper: HouseKeeper, slots: Mapping[int, Slot], action: Action) -> None:
        """The driver decides to have layers given up."""
        if isinstance(action, Command) and isinstance(command := action.command, Discard):
            giver = slots[action.slot]
            gone = {ref.path for ref in command.layers}
            chain = self._kept_by_slots(keeper.layers[command.task])
            if command.task not in self.chosen and any(ref.path in gone for ref in chain):
                left = [slot for slot in slots.values() if not _share(slot, giver, chain)]
                copies_stay(command.task, chain, left, self)

        if isinstance(action, Command) and isinstance(command := action.command, Hold):
            self._must_go(slots[action.slot], command)

    def _must_go(self, slot: Slot, hold: Hold) -> None:
        """A slot hears of a new life: it must delete earlier lives' unused layers from its disk."""
        if self._lives.get((slot.id, hold.task)) == hold.life:
            return
        self._lives[slot.id, hold.task] = hold.life
        self._going[slot.id] |= {
            ref
            for path, ref in self._refs.items()
            if ref.task == hold.task
            and ref.incarnation < hold.life
            and ref not in hold.layers
            and ("disk", slot.disk) in self._at[path]
        }

    def begins(self) -> None:
        """A new driver begins: forget what the last one has told the slots."""
        self._lives.clear()
        self._going.clear()
        self._due.clear()

    def heals(self) -> None:
        """No faults come any more: from now on, slots must really have deleted those layers."""
        self._due = {slot: set(refs) for slot, refs in self._going.items()}

    def no_litter(self, keeper: HouseKeeper, slots: Iterable[Slot]) -> None:
        """Some floors later, check that they are gone."""
        used = {ref for chain in keeper.layers.values() for ref in chain}
        for slot in slots:
            refs = self._due.get(slot.id, set()) - used
            left = [ref.path for ref in refs if self.can_read(slot, ref)]
            require(not left, "no litter", f"on the disk of slot {slot.id} nobody refers to {left}")

    @staticmethod
    def _kept_by_slots(chain: Sequence[LayerRef]) -> list[LayerRef]:
        return [ref for ref in chain if ref.level != STORE]


def in_store(layers: Mapping[int, Sequence[LayerRef]]) -> set[str]:
    """Files of these layers in the store."""
    return {ref.path for chain in layers.values() for ref in chain if ref.level == STORE}


def place(address: str, disk: str, ref: LayerRef) -> Place:
    """Where a process keeps a layer."""
    return ("slot", address) if ref.level == MEMORY else ("disk", disk)


def _share(one: Slot, other: Slot, chain: Sequence[LayerRef]) -> bool:
    """Whether both have a layer of the chain in the same place, so that it is gone for both."""
    return any(
        place(one.address, one.disk, ref) == place(other.address, other.disk, ref) for ref in chain
    )


def _due(chain: Sequence[LayerRef], copies: int) -> int:
    """How many slots must have the whole chain."""
    return 1 + (copies if _is_in_memory(chain) else min(copies, 1))


def _is_in_memory(chain: Sequence[LayerRef]) -> bool:
    return any(ref.level == MEMORY for ref in chain)


def stored_before_it_counts(task: int, chain: Iterable[LayerRef]) -> None:
    """For tasks whose level is chosen by a dial, the journal records only layers in the checkpoint
    store. So input is given up only for these, and the job survives any number of deaths."""
    elsewhere = [ref.path for ref in chain if ref.level != STORE]
    require(
        not elsewhere,
        "stored before it counts",
        f"input of task {task} is given up for {elsewhere}, which are not in the store",
    )


def safe_enough(
    task: int, chain: Sequence[LayerRef], slots: Iterable[Slot], kept: Kept, copies: int
) -> None:
    """A floor moves, so that inputs are given up, when enough slots have all layers up to it. The
    same holds when merged layers replace others, which are given up."""
    holders = [slot.address for slot in slots if kept.has(slot, chain)]
    require(
        not chain or len(holders) >= _due(chain, copies),
        "safe enough",
        f"the floor of task {task} moves or is merged: only {holders} have its {len(chain)} layers",
    )


def on_another_disk(
    task: int, chain: Sequence[LayerRef], home: Slot, slots: Iterable[Slot], kept: Kept
) -> None:
    """If some standby is on another disk than its task, a copy on the task's own disk does not
    count: a machine may be lost with all its processes."""
    apart = [slot for slot in slots if task in slot.standbys and slot.disk != home.disk]
    require(
        not apart or _is_in_memory(chain) or any(kept.has(slot, chain) for slot in apart),
        "safe enough",
        f"the floor of task {task} moves or is merged: its layers are on {home.disk} only, "
        f"and there are standbys in {[slot.address for slot in apart]}",
    )


def others_have_it(
    task: int, chain: Sequence[LayerRef], others: Iterable[Slot], kept: Kept, due: int
) -> None:
    """No slot ends on purpose before enough others have what it keeps."""
    holders = [slot.address for slot in others if kept.has(slot, chain)]
    require(
        len(holders) >= due,
        "copies stay",
        f"a slot ends that has the floor of task {task}, and only {holders} have it then",
    )


def kept_no_longer(slot: Slot, ref: LayerRef, unwanted_ms: float, limit_ms: float) -> None:
    """No slot keeps a layer for long that nobody wants there."""
    require(
        unwanted_ms < limit_ms,
        "kept no longer",
        f"for {unwanted_ms:.0f} ms nobody has wanted {ref.path} ({ref.level}) in {slot.address}",
    )


def hard_again(hard: int, due: int) -> None:
    """When faults are over, floors in use become hard."""
    require(hard >= due, "hard again", f"floors {due} were in use for long, {hard} are hard")


def few_in_store(task: int, layers: int, most: int) -> None:
    """The layers of a task in the store are merged when there are too many of them."""
    require(layers <= most, "few layers", f"task {task} has {layers} layers, and none are merged")


def copies_apart(cell: Cell, home: Slot, slots: Sequence[Slot], spare: Sequence[Slot]) -> None:
    """Not all copies of a cell share its disk if there is room on another one."""
    copies = [slot for slot in slots if slot.keeps(cell) and slot.id != home.id]
    room = [slot for slot in spare if slot.disk != home.disk and not slot.keeps(cell)]
    require(
        not home.disk or not copies or not room or any(s.disk != home.disk for s in copies),
        "copies apart",
        f"all copies of cell {cell} are on {home.disk}, and {[s.address for s in room]} are free",
    )


def copies_stay(task: int, chain: Sequence[LayerRef], slots: Iterable[Slot], kept: Kept) -> None:
    """No slot gives up a chain unless enough other slots have it."""
    holders = [slot.address for slot in slots if kept.has(slot, chain)]
    require(
        len(holders) >= _due(chain, kept.copies),
        "copies stay",
        f"a slot gives up the floor of task {task}, and only {holders} have it",
    )


def lost_for_a_reason(
    task: int, chain: Sequence[LayerRef], slots: Iterable[Slot], kept: Kept
) -> None:
    """State counts as lost only when all holders of some layer are gone: processes or machines.

    Enough slots had it and none gave it up, so more have died than the level promises to survive.
    """
    there = list(slots)
    gone = [ref for ref in chain if not any(kept.can_read(slot, ref) for slot in there)]
    lost = [
        ref for ref in gone if ref.level == MEMORY or (ref.level == LOCAL and not kept.disks(ref))
    ]
    require(
        lost,
        "lost for a reason",
        f"the state of task {task} counts as lost, but all of {[r.path for r in chain]} is there",
    )
