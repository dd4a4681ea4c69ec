"""What must hold of layers that slots keep: what a level promises."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from clonos.core.decisions import Action, Command
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import LOCAL, MEMORY, STORE, Discard, Hold, LayerRef
from clonos.core.messages import Layer
from clonos.core.placement import Slot
from clonos.core.plan import Incarnation
from clonos.simulator.checks.violations import require

Place = tuple[str, str]
"""The memory of a process, by its address, or a disk, by its name."""


class Kept:
    """Who has which layer, in truth. What a process has that is dead it has: for the driver, which
    does not know yet.

    Attributes
    ----------
    layers
        By path: all that were ever kept by a slot.
    copies
        How many standbys tasks have.
    chosen
        Tasks that choose their levels.
    lost
        Disks that are gone.
    """

    def __init__(self, copies: int = 0) -> None:
        self.copies = copies
        self.layers: dict[str, Layer] = {}
        self.chosen: set[int] = set()
        self.lost: set[str] = set()
        self._rotten: set[tuple[str, Place]] = set()  # by path: nobody can know before it is read
        self._at: dict[str, set[Place]] = defaultdict(set)
        self._refs: dict[str, LayerRef] = {}
        self._lives: dict[tuple[int, int], Incarnation] = {}  # by slot and task: what it was told
        self._going: dict[int, set[LayerRef]] = defaultdict(set)  # by slot: from its disk
        self._due: dict[int, set[LayerRef]] = {}

    def keeps(self, address: str, disk: str, ref: LayerRef, layer: Layer) -> None:
        """A process has a layer now."""
        self.layers[ref.path], self._refs[ref.path] = layer, ref
        where = place(address, disk, ref)
        self._at[ref.path].add(where)
        self._rotten.discard((ref.path, where))

    def drops(self, address: str, disk: str, ref: LayerRef) -> None:
        """... and has it no more."""
        self._at[ref.path].discard(place(address, disk, ref))

    def tidies(self, disk: str, path: str) -> None:
        """... nor does the disk of its machine."""
        self._at[path].discard(("disk", disk))

    def rots(self, disk: str, path: str) -> None:
        """A layer on a disk is another one from now on."""
        self._rotten.add((path, ("disk", disk)))

    def loses_disk(self, disk: str) -> None:
        """A machine is gone for good."""
        self.lost.add(disk)

    def has(self, slot: Slot, refs: Iterable[LayerRef]) -> bool:
        """Whether a slot has all of these."""
        return all(place(slot.address, slot.disk, ref) in self._at[ref.path] for ref in refs)

    def can_read(self, slot: Slot, ref: LayerRef) -> bool:
        """Whether a slot has a layer as it was."""
        where = place(slot.address, slot.disk, ref)
        return where in self._at[ref.path] and (ref.path, where) not in self._rotten

    def disks(self, ref: LayerRef) -> set[str]:
        """On which disks a layer is as it was that are there."""
        places = (p for p in self._at[ref.path] if (ref.path, p) not in self._rotten)
        return {name for kind, name in places if kind == "disk"} - self.lost

    # --- what is held against it ------------------------------------------------------------------

    def advances(self, slots: Mapping[int, Slot], layers: Mapping[int, Sequence[LayerRef]]) -> None:
        """The driver decides that floors move to these layers."""
        for task, chain in layers.items():
            copies = 0 if task in self.chosen else self.copies
            safe_enough(task, self._kept_by_slots(chain), slots.values(), self, copies)

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
        """A slot hears of a new life: what earlier ones have left on its disk for nobody goes."""
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
        """Another driver: nobody knows what the one before has told the slots."""
        self._lives.clear()
        self._going.clear()
        self._due.clear()

    def heals(self) -> None:
        """Nothing fails from now on: what must go from disks is what slots were told until now."""
        self._due = {slot: set(refs) for slot, refs in self._going.items()}

    def no_litter(self, keeper: HouseKeeper, slots: Iterable[Slot]) -> None:
        """Some floors later, it is gone."""
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
    """Whether what one gives up the other has no more."""
    return any(
        place(one.address, one.disk, ref) == place(other.address, other.disk, ref) for ref in chain
    )


def _due(chain: Sequence[LayerRef], copies: int) -> int:
    """How many slots have to have a chain."""
    return 1 + (copies if any(ref.level == MEMORY for ref in chain) else min(copies, 1))


def stored_before_it_counts(task: int, chain: Iterable[LayerRef]) -> None:
    """The journal records only layers in the checkpoint store, for tasks that choose their levels.
    So input is given up for nothing else, and a job survives any deaths."""
    elsewhere = [ref.path for ref in chain if ref.level != STORE]
    require(
        not elsewhere,
        "stored before it counts",
        f"input of task {task} is given up for {elsewhere}, which are in no store",
    )


def safe_enough(
    task: int, chain: Sequence[LayerRef], slots: Iterable[Slot], kept: Kept, copies: int
) -> None:
    """A floor moves, so that inputs are given up, when enough slots have all layers up to it."""
    holders = [slot.address for slot in slots if kept.has(slot, chain)]
    require(
        not chain or len(holders) >= _due(chain, copies),
        "safe enough",
        f"the floor of task {task} moves, and of its {len(chain)} layers only {holders} have all",
    )


def copies_stay(task: int, chain: Sequence[LayerRef], slots: Iterable[Slot], kept: Kept) -> None:
    """Nobody gives up what is not as safe with others."""
    holders = [slot.address for slot in slots if kept.has(slot, chain)]
    require(
        len(holders) >= _due(chain, kept.copies),
        "copies stay",
        f"a slot gives up the floor of task {task}, and only {holders} have it",
    )


def lost_for_a_reason(
    task: int, chain: Sequence[LayerRef], slots: Iterable[Slot], kept: Kept
) -> None:
    """State is lost when all who had some of it are, and never before: all processes, or machines.

    Since enough had it, and nobody gave it up, more have died than the level promises to survive.
    """
    there = list(slots)
    gone = [ref for ref in chain if not any(kept.can_read(slot, ref) for slot in there)]
    lost = [
        ref for ref in gone if ref.level == MEMORY or (ref.level == LOCAL and not kept.disks(ref))
    ]
    require(
        lost,
        "lost for a reason",
        f"the state of task {task} counts as lost, and all of {[r.path for r in chain]} is there",
    )
