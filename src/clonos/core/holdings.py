"""Layers that slots keep: which slot has which, when they are safe, and when they are lost.

A layer at the level "memory" or "local" is in no checkpoint store. It may become a floor, so that
inputs are given up, only when enough slots have it *and all layers below it*:

* the slot of the task itself, and
* the slots of all its standbys (memory), or of one standby (local; on the disk of another machine
  if there is a slot on one).

So at the level "memory", with k standbys, k + 1 processes have the state, and any k of them may
die. When a slot is lost, other slots make new copies of what it had; until then, floors stand
still. No slot is ever told to delete a layer that is not kept as safely elsewhere.

A disk outlives the processes of its machine. A layer is *missing* if it is only on disks of
machines on which no slot lives now. After a while a missing layer counts as lost. A layer in memory
is lost with the last process that had it, unless another process soon reports a copy. Nobody can
make a lost layer again, because the input that led to it was given up, so the job ends
(:class:`~clonos.errors.StateLost`). Layers beyond the hard floors can be made again: if only these
are lost, all tasks go back to the hard floors.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from enum import Enum
from typing import Final

from clonos.core.decisions import Command, Compacted
from clonos.core.hardening import Hardening
from clonos.core.layer import merged_here_path
from clonos.core.levels import (
    AUTO,
    MEMORY,
    STORE,
    Discard,
    Held,
    Hold,
    Lacks,
    LayerRef,
    LayersMerged,
    MergeLayers,
)
from clonos.core.messages import LayerAck
from clonos.core.placement import Slot
from clonos.core.roster import RUNNING, Roster

LOST_MS: Final = 60_000
"""How long to wait for a machine that is away and whose disk has the only copy of a layer."""
HEARD_MS: Final = 2000
"""How long to wait for the report of a slot that may have a layer in memory."""
AGAIN_MS: Final = 1000
"""How long a merge that has failed waits for the next attempt."""

TIDY_EACH: Final = 8
"""A slot tidies its disk when it hears of a new life of a task, and of every eighth layer."""

Place = tuple[str, int | str]
"""Where a layer is kept: the memory of a slot, or a disk, which several slots may have."""


class Loss(Enum):
    """Which layers no slot has any more."""

    NOTHING = "nothing"
    BEYOND_HARD = "layers beyond the hard floors"
    STATE = "some of the hard floors"


class Holdings:
    """Which slot has which layers.

    Parameters
    ----------
    copies
        How many standbys a task has.
    lost_ms
        See :data:`LOST_MS`.

    Attributes
    ----------
    beyond
        By task: layers beyond its floor, in order.
    version
        Grows with every change that may make a layer safe.
    hardening
        Decides which floors become hard next.
    """

    def __init__(self, roster: Roster, copies: int, lost_ms: int = LOST_MS) -> None:
        self._roster, self._copies, self._lost_ms = roster, copies, lost_ms
        self.beyond: dict[int, list[LayerAck]] = {task: [] for task in roster.tasks}
        self.version = 0
        self.hardening = Hardening(roster)
        self._is_used = any(
            task.level != STORE or any(ref.level != STORE for ref in roster.keeper.layers[task.id])
            for task in roster.plan.tasks
        )
        self._where: dict[int, dict[str, tuple[LayerRef, set[Place]]]] = defaultdict(dict)
        self._told: dict[tuple[int, int], Hold] = {}  # by slot and task
        # By task, and whether into the store: the path, and the layers to be merged ...
        self._merging: dict[tuple[int, bool], tuple[str, tuple[LayerRef, ...]]] = {}
        # ... and finished merges, whether they are safe yet or not.
        self._merged: dict[tuple[int, bool], tuple[LayerRef, tuple[LayerRef, ...]]] = {}
        self._void: dict[int, set[str]] = defaultdict(set)  # by task: paths of merges that are lost
        self._not_before: dict[int, int] = {}  # by task: the next try of a merge
        self._missing: dict[int, int] = {}  # by task: since when no slot has a layer
        self._unread: set[int] = set()  # tasks of which some slot could not read a layer
        self._changed: set[int] = set(self.tasks)

    @property
    def tasks(self) -> list[int]:
        """The tasks whose layers, or some of them, are kept by slots."""
        if not self._is_used:  # asked in every turn
            return []
        layers, levels = self._roster.keeper.layers, self._roster.plan.tasks
        return [
            task
            for task in layers
            if levels[task].level != STORE or any(ref.level != STORE for ref in layers[task])
        ]

    # --- what is where ------------------------------------------------------------------------

    def sealed(self, slot: int, ref: LayerRef) -> None:
        """A task has sealed a layer in this slot, so the slot has it."""
        if ref.level != STORE:
            self._note(slot, ref)

    def held(self, slot: int, report: Held) -> None:
        """A slot has layers that it was told to keep. It deletes those that count no more."""
        for ref in report.layers:
            self._note(slot, ref)

    def lacks(self, slot: int, report: Lacks) -> None:
        """A slot should have layers that are damaged or gone. A slot with the same disk may have
        put them there meanwhile, so all slots with it are asked again."""
        of_task, here = self._where[report.task], self._roster.slots[slot]
        gone = [path for path in report.paths if path in of_task]
        gone = [path for path in gone if _place(here, of_task[path][0]) in of_task[path][1]]
        for path in gone:
            ref, places = of_task[path]
            places.discard(_place(here, ref))
        if any(of_task[path][0].level != MEMORY for path in gone):
            self._ask_again(here.disk, report.task)
        if gone:
            self._unread.add(report.task)
            self._changed.add(report.task)
            self._call_off_merge(slot, report.task)

    def _ask_again(self, disk: str, task: int) -> None:
        stay = self._stay(task)
        for slot in self._roster.slots.values():
            if slot.disk == disk:
                self._tell(slot.id, task, fetches=slot.id in stay, asks=True)

    def _call_off_merge(self, slot: int, task: int) -> None:
        """A merged layer that does not count yet is lost with its only copy; those that it was to
        replace are merged again."""
        merged, _ = self._merged.get((task, False), (None, ()))
        if merged is not None and not self._where[task][merged.path][1]:
            del self._merged[task, False]
            self._void[task].add(merged.path)
            self._not_before[task] = self._roster.now_ms + AGAIN_MS
            self._discard(slot, task, [merged])  # what is left of it

    def _note(self, slot: int, ref: LayerRef) -> None:
        self._where[ref.task].setdefault(ref.path, (ref, set()))[1].add(
            _place(self._roster.slots[slot], ref)
        )
        self.version += 1
        self._changed.add(ref.task)

    def joined(self, slot: Slot) -> None:
        """A slot has registered: its disk may have what is missing."""
        for task in self.tasks:
            self._changed.add(task)
            if slot.disk and not self.can_restore(task):
                self._tell(slot.id, task, fetches=False)

    def lost(self, slot: int) -> None:
        """A slot is gone, with all layers in its memory."""
        for of_task in self._where.values():
            for _, places in of_task.values():
                places.discard(("slot", slot))
        for key in [key for key in self._told if key[0] == slot]:
            del self._told[key]
        self.version += self._is_used
        self._changed.update(self.tasks)

    def moved(self, task: int) -> None:
        """The task's floor has moved, a standby of it begins or ends, or it is in another slot, or
        lives again."""
        self.version += self._is_used
        self._changed.add(task)

    def forget(self, task: int) -> None:
        """A life is over: its merges may never be finished."""
        for key in (task, False), (task, True):
            self._merging.pop(key, None)
            self._merged.pop(key, None)
        self._void.pop(task, None)  # paths name the life
        self._changed.add(task)

    def fall_back(self) -> None:
        """All tasks go back to the hard floors."""
        self.hardening.forget()
        self._missing.clear()
        self._changed.update(self.tasks)

    # --- what is safe, what is lost -------------------------------------------------------------

    def is_safe(self, ref: LayerRef) -> bool:
        """Whether a live task has enough copies of this layer for input below it to be given up."""
        task = self._roster.tasks[ref.task]
        chain = [one for one in self._named(ref.task) if one.epoch <= ref.epoch]
        return self._are_safe(task.slot, ref.task, chain)

    def _are_safe(self, home: int | None, task: int, chain: Sequence[LayerRef]) -> bool:
        if not chain:
            return True
        if home is None or not self._has(home, task, chain):
            return False
        keepers, due = self._keepers(task), self._due(chain)
        if not _is_in_memory(chain):  # a copy on the same disk is none
            disk = self._roster.slots[home].disk
            keepers = [slot for slot in keepers if slot.disk != disk] or keepers
        if len(staying := [slot for slot in keepers if not slot.leaves]) >= due:
            keepers = staying
        if self._roster.plan.tasks[task].level == AUTO:
            due = min(due, len(keepers))  # a missing standby holds up nothing: the store gets it
        return sum(self._has(slot.id, task, chain) for slot in keepers) >= due

    def _due(self, chain: Sequence[LayerRef]) -> int:
        """How many standbys are to have these layers."""
        return self._copies if _is_in_memory(chain) else min(self._copies, 1)

    def _keepers(self, task: int) -> list[Slot]:
        home = self._roster.tasks[task].slot
        return [s for s in self._roster.slots.values() if task in s.standbys and s.id != home]

    def _stay(self, task: int) -> set[int | None]:
        """The slots that are to have a task's layers."""
        return {self._roster.tasks[task].slot, *(slot.id for slot in self._keepers(task))}

    def _has(self, slot: int, task: int, chain: Sequence[LayerRef]) -> bool:
        of_task, there = self._where[task], self._roster.slots[slot]
        return all(r.path in of_task and _place(there, r) in of_task[r.path][1] for r in chain)

    def is_safe_without(self, slot: int, *, fewer: int = 0) -> bool:
        """Whether a slot that runs nothing can end on purpose: home and all other standbys have
        what it has of the floors, and `fewer` copies than promised may be left for a while."""
        return all(self._is_without(slot, task, fewer) for task in self.tasks)

    def _is_without(self, slot: int, task: int, fewer: int) -> bool:
        chain = [ref for ref in self._roster.keeper.layers[task] if ref.level != STORE]
        if not any(self._has(slot, task, [ref]) for ref in chain):
            return True
        home, slots = self._roster.tasks[task].slot, self._roster.slots.values()
        stay = [s.id for s in slots if s.id == home or (task in s.standbys and not s.leaves)]
        others = [other for other in stay if other != slot]
        due = 0 if self._roster.plan.tasks[task].level == AUTO else self._due(chain)
        return len(others) > due - fewer and all(self._has(s, task, chain) for s in others)

    def is_void(self, task: int) -> bool:
        """Whether some layer beyond the task's floor is in no slot any more."""
        refs = (one.ref for one in self.beyond[task] if one.ref.level != STORE)
        return any(not self._where[task].get(ref.path, (ref, ()))[1] for ref in refs)

    def can_restore(self, task: int) -> bool:
        """Whether for each layer of a task's floor there is a slot that has it."""
        return not self._without(task)

    def _without(self, task: int) -> list[LayerRef]:
        slots = self._roster.slots.values()
        there: set[Place] = {("slot", slot.id) for slot in slots}
        there |= {("disk", slot.disk) for slot in slots}
        of_task = self._where[task]
        return [
            ref
            for ref in self._roster.keeper.layers[task]
            if ref.level != STORE and not (ref.path in of_task and of_task[ref.path][1] & there)
        ]

    def tick(self) -> Loss:
        """Time passes. Return what counts as lost: the job ends then, or all tasks go back."""
        if not self._changed and not self._missing:
            return Loss.NOTHING
        now_ms, hard = self._roster.now_ms, self._roster.keeper.hard.layers
        for task in self.tasks:
            without = self._without(task)
            if not without:
                self._missing.pop(task, None)
                continue
            since_ms = self._missing.setdefault(task, now_ms)
            is_hard = any(ref in hard[task] for ref in without)
            is_short = not is_hard or any(ref.level == MEMORY for ref in without)
            patience_ms = min(HEARD_MS, self._lost_ms) if is_short else self._lost_ms
            if now_ms - since_ms <= patience_ms:
                continue
            if not is_hard:
                return Loss.BEYOND_HARD
            self._give_up(task, without)
            return Loss.STATE
        return Loss.NOTHING

    def _give_up(self, task: int, without: Sequence[LayerRef]) -> None:
        level, chain = without[0].level, self._roster.keeper.layers[task]
        nbytes = sum(ref.nbytes for ref in chain)
        if level == MEMORY:
            where = (
                f"it was in the memories of its own process and of {self._copies} standbys, and no "
                "process that had it is left"
            )
        else:
            where = (
                "it was on the local disks of its machines, and for "
                f"{self._lost_ms / 1000:g} s no process has lived on one of them that could read it"
            )
        self._roster.fail(
            "StateLost",
            f"its state up to step {chain[-1].position} ({nbytes:,} bytes in {len(chain)} layers, "
            f"persistence={level!r}) is lost: {where}. Its input up to there was given up",
            task,
        )

    # --- what slots are told ------------------------------------------------------------------

    def tell(self, slot: int, task: int) -> None:
        """Tell a slot which layers to keep, before it is given the task or a standby of it."""
        if task in self.tasks:
            self._tell(slot, task)

    def _named(self, task: int) -> list[LayerRef]:
        """All layers of a task that count, in order, except those in the store."""
        refs = [*self._roster.keeper.layers[task], *(one.ref for one in self.beyond[task])]
        return [ref for ref in refs if ref.level != STORE]

    def _wanted(self, task: int) -> list[LayerRef]:
        merged = [self._merged[task, False][0]] if (task, False) in self._merged else []
        return [*self._named(task), *merged]

    def _tell(self, slot: int, task: int, *, fetches: bool = True, asks: bool = False) -> None:
        layers, told = tuple(self._wanted(task)), self._told.get((slot, task))
        sources = self._sources(slot, task, layers) if fetches else ()
        hold = Hold(task, self._roster.tasks[task].incarnation, layers, sources)
        is_first = told is None or told.life != hold.life
        if not asks and (told == hold or (not is_first and self._knows(slot, task, hold))):
            return
        self._told[slot, task] = hold
        tidies = self._tidies(slot, layers, is_first)
        self._roster.do(Command(slot, replace(hold, tidies=tidies, asks=asks)))

    def _knows(self, slot: int, task: int, hold: Hold) -> bool:
        """Whether a slot has all these layers and knows that they count: it was told the same
        before, or has sealed them."""
        is_home = slot == self._roster.tasks[task].slot
        is_same = hold.layers == self._told[slot, task].layers
        return (is_home or is_same) and self._has(slot, task, hold.layers)

    def _tidies(self, slot: int, layers: Sequence[LayerRef], is_first: bool) -> bool:
        """Whether a slot is told to tidy its disk, where killed processes may have left layers.

        All layers that count are named to the slot now. Later, a subset of those made by earlier
        lives is named, never others, so it does not matter when the slot hears this.
        """
        is_due = is_first or (bool(layers) and layers[-1].epoch % TIDY_EACH == 0)
        return is_due and bool(self._roster.slots[slot].disk)

    def _sources(self, slot: int, task: int, layers: Sequence[LayerRef]) -> tuple[str, ...]:
        """The addresses of slots that may have these layers, that of the task itself first."""
        home, of_task = self._roster.tasks[task].slot, self._where[task]
        places = set().union(*(of_task[r.path][1] for r in layers if r.path in of_task))
        found = [
            other
            for other in self._roster.slots.values()
            if other.id != slot and {("slot", other.id), ("disk", other.disk)} & places
        ]
        return tuple(other.address for other in sorted(found, key=lambda s: (s.id != home, s.id)))

    def settle(self) -> Iterator[Compacted]:
        """At the end of an event: tell slots what has changed. Yields the merges that count now."""
        now_ms = self._roster.now_ms
        changed, self._changed = self._changed, set()
        for task in [task for task, ms in self._not_before.items() if now_ms >= ms]:
            del self._not_before[task]
            changed.add(task)
        for task in sorted(changed & set(self.tasks)):
            yield from self._safe_merges(task)
            self._merge(task)
            home = self._roster.tasks[task].slot
            for slot in self._keepers(task):
                self._tell(slot.id, task)
            if home is not None and home in self._roster.slots:
                self._tell(home, task)
                if self._has(home, task, self._named(task)):
                    self._unread.discard(task)
            self._call_off(task)
            self._release(task)

    def _call_off(self, task: int) -> None:
        """A slot without the task or a standby keeps the layers that it has, and fetches no
        others."""
        stay = self._stay(task)
        for (slot, of), told in list(self._told.items()):
            if of == task and slot not in stay and told.sources:
                layers = tuple(ref for ref in told.layers if self._has(slot, task, [ref]))
                hold = Hold(task, self._roster.tasks[task].incarnation, layers, ())
                self._told[slot, task] = hold
                self._roster.do(Command(slot, hold))

    def _release(self, task: int) -> None:
        """Have slots delete layers that do not count any more, and those that are as safe
        elsewhere.

        A layer that counts stays on every disk: otherwise a slow slot might delete it after another
        slot with the same disk was told to keep it.
        """
        roster, wanted = self._roster, {ref.path for ref in self._wanted(task)}
        home = roster.tasks[task].slot
        is_safe = self._are_safe(home, task, self._named(task))
        stay = self._stay(task)
        places: set[Place] = {("slot", slot) for slot in stay if slot is not None}
        going: dict[int, list[LayerRef]] = defaultdict(list)
        for path, (ref, kept_at) in list(self._where[task].items()):
            if path in wanted and not (is_safe and ref.level == MEMORY):
                continue
            leave = kept_at - places if path in wanted else set(kept_at)
            for slot in roster.slots.values():  # all with a disk: one of them may be dead
                if (place := _place(slot, ref)) in leave:
                    kept_at.discard(place)
                    going[slot.id].append(ref)
            if path not in wanted and not kept_at:  # else a disk is away, and may come back
                del self._where[task][path]
        for slot_id, refs in going.items():
            self._discard(slot_id, task, refs)

    def _discard(self, slot: int, task: int, refs: Sequence[LayerRef]) -> None:
        life, told = self._roster.tasks[task].incarnation, self._told.get((slot, task))
        if slot not in self._stay(task):
            self._told.pop((slot, task), None)
        elif told is not None:
            layers = tuple(ref for ref in told.layers if ref not in refs)
            self._told[slot, task] = replace(told, layers=layers)
        self._roster.do(Command(slot, Discard(task, life, tuple(refs))))

    # --- merging ------------------------------------------------------------------------------

    def _merge(self, task: int) -> None:
        roster, chain = self._roster, self._roster.keeper.layers[task]
        state = roster.tasks[task]
        if state.phase not in RUNNING or roster.now_ms < self._not_before.get(task, 0):
            return
        for chosen, level in self.hardening.merges(task):
            key, other = (task, level == STORE), (task, level != STORE)
            begun = self._merging.keys() | self._merged.keys()
            if key in begun or (other in begun and self._touches(other, chosen)):
                continue
            assert state.slot is not None
            if not self._has(state.slot, task, [ref for ref in chosen if ref.level != STORE]):
                continue  # until it has fetched what it lacks
            path = merged_here_path(chosen, state.incarnation)
            if level != STORE and path in self._void[task]:
                continue  # a standby may yet have a copy under this path: until the next layer
            self._merging[key] = path, chosen
            merge = MergeLayers(task, chosen, chosen[0] == chain[0], level, path)
            roster.do(Command(state.slot, merge))

    def _touches(self, key: tuple[int, bool], chosen: Sequence[LayerRef]) -> bool:
        """Whether another merge replaces some of these layers."""
        merges = self._merging if key in self._merging else self._merged
        return not set(merges[key][1]).isdisjoint(chosen)

    @property
    def expected(self) -> set[str]:
        """Paths of layers that slots merge into the store and that are in no task's chain yet."""
        merging = (path for (_, is_stored), (path, _) in self._merging.items() if is_stored)
        return {*merging, *(ref.path for ref, _ in self._merged.values() if ref.level == STORE)}

    def merged(self, slot: int, report: LayersMerged) -> None:
        """A slot has merged layers, or has failed to."""
        task, merged = report.task, report.merged
        of_task = [
            key
            for key, (path, refs) in self._merging.items()
            if refs == report.replaced and (merged is None or merged.path == path)
        ]
        if self._roster.tasks[task].slot != slot or not of_task:
            if merged is not None:  # from an earlier life: it will be discarded
                self.sealed(slot, merged)
            return
        del self._merging[of_task[0]]
        if merged is None:
            self._not_before[task] = self._roster.now_ms + AGAIN_MS
        else:
            self._merged[of_task[0]] = merged, report.replaced
            self.sealed(slot, merged)
            self._changed.add(task)

    def _safe_merges(self, task: int) -> Iterator[Compacted]:
        """A merged layer counts as soon as every slot that keeps the task's floor has it. Newer
        layers, of which there are always some on their way, do not matter."""
        home, phase = self._roster.tasks[task].slot, self._roster.tasks[task].phase
        for key in (task, True), (task, False):
            if key not in self._merged or phase not in RUNNING:
                continue
            merged, replaced = self._merged[key]
            floor = [r for r in self._roster.keeper.layers[task] if r.level != STORE]
            if merged.level == STORE or self._are_safe(home, task, [*floor, merged]):
                del self._merged[key]
                yield Compacted(merged, replaced)

    def check(self) -> None:
        """Assertions over the whole state."""
        for task in self.tasks:
            state = self._roster.tasks[task]
            if state.phase in RUNNING and task not in self._unread:
                chain = [r for r in self._roster.keeper.layers[task] if r.level != STORE]
                assert state.slot is not None
                assert self._has(state.slot, task, chain)


def _is_in_memory(chain: Sequence[LayerRef]) -> bool:
    return any(ref.level == MEMORY for ref in chain)


def _place(slot: Slot, ref: LayerRef) -> Place:
    return ("slot", slot.id) if ref.level == MEMORY else ("disk", slot.disk)
