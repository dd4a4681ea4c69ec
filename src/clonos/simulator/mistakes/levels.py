"""Deliberate mistakes with layers that slots keep."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from clonos.core import hardening, placement
from clonos.core.hardening import Hardening
from clonos.core.holdings import Holdings
from clonos.core.housekeeper import HouseKeeper
from clonos.core.levels import MEMORY, Held, Hold, LayerRef
from clonos.core.merges import tier_of_merge
from clonos.core.messages import Follow
from clonos.nodes import layers
from clonos.nodes.keeping import Keeping
from clonos.nodes.standby import Copies, Standby
from clonos.simulator.mistakes.mutation import LEVELS, Mutation, mutation
from clonos.simulator.mistakes.protocol import constant


def at_once(_: Any) -> Any:
    """Inputs are given up as soon as the task itself has the layer."""
    return lambda *_: True


def of_small_ones(original: Any) -> Any:
    """Only the lowest tier is merged."""

    def choose(chain: Sequence[LayerRef], *, has_base: bool) -> Sequence[LayerRef]:
        chosen: Sequence[LayerRef] = original(chain, has_base=has_base)
        return () if chosen and tier_of_merge(chosen) else chosen

    return choose


def before_it_came(original: Any) -> Any:
    """A standby reports a layer as soon as it is told to get it."""

    def hold(self: Keeping, command: Hold) -> None:
        original(self, command)
        self._send(Held(command.task, command.layers))

    return hold


def whoever_has_it(original: Any) -> Any:
    """Slots give up layers that they need not keep, whether others have them or not."""

    def release(self: Any, task: int) -> None:
        self._are_safe = lambda *_: True
        original(self, task)
        del self._are_safe

    return release


def with_its_process(original: Any) -> Any:
    """A dead task's layers count as lost at once, although others have them."""

    def without(self: Any, task: int) -> Any:
        home = self._roster.tasks[task].slot
        if home is None and self._roster.tasks[task].incarnation.n:
            self._lost_ms = -1
            return [r for r in self._roster.keeper.layers[task] if r.level != "store"]
        return original(self, task)

    return without


def where_it_lives(original: Any) -> Any:
    """Layers that a slot has received count as copies, but not for a task restored there."""

    def held(self: Any, slot: int, report: Held) -> None:
        if slot != self._roster.tasks[report.task].slot:
            original(self, slot, report)

    return held


def for_good(_: Any) -> Any:
    """A layer that a disk once had counts, even if it was found damaged."""
    return lambda *_: None


def with_the_floor_in_use(original: Any) -> Any:
    """The house-keeper forgets logs below floors that are in use, although not hard."""

    def advance(self: HouseKeeper, epoch: int, positions: Any, layers: Any, needs: Any) -> None:
        original(self, epoch, positions, layers, needs)
        for task, position in positions.items():
            self.book.truncate(task, position)

    return advance


def without_copies(original: Any) -> Any:
    """A merged layer counts as soon as the slot that has merged it has it."""

    def merges(self: Holdings, task: int) -> Any:
        are_safe, self._are_safe = self._are_safe, lambda *_: True  # type: ignore[method-assign]
        try:
            yield from list(original(self, task))
        finally:
            self._are_safe = are_safe  # type: ignore[method-assign]

    return merges


def on_its_own_disk(original: Any) -> Any:
    """A copy on the task's own disk counts, although a standby is on another one."""

    def are_safe(self: Holdings, home: int | None, task: int, chain: Any) -> bool:
        if original(self, home, task, chain):
            return True
        if home is None or any(ref.level == MEMORY for ref in chain):
            return False
        keepers = [slot.id for slot in self._keepers(task)]
        return all(any(self._has(one, task, chain) for one in of) for of in ([home], keepers))

    return are_safe


def in_another_executor(original: Any) -> Any:
    """A copy may be on the disk of its task, if it is in another executor."""
    return lambda slot, others: (original(slot, others)[0], False)


def what_is_newer(_: Any) -> Any:
    """A standby applies a merged layer of which it has a part."""

    def missing(self: Standby, refs: Sequence[LayerRef]) -> tuple[LayerRef, ...]:
        if refs and 0 < self.epoch < refs[0].epoch:
            self.let_go()
            self.floor = None
        return tuple(ref for ref in refs if ref.epoch > self.epoch)

    return missing


def now_and_then(original: Any) -> Any:
    """Copies lag, as slow ones do: this is no mistake."""

    def follow(self: Any, command: Follow) -> None:
        self.heard = getattr(self, "heard", 0) + 1
        if self.heard % 8 == 0:
            original(self, command)

    return follow


WRONG_LEVELS: Final[dict[str, Mutation]] = {
    "inputs are given up before standbys have the layer": mutation(
        "safe enough", (Holdings, "is_safe", at_once), kind=LEVELS
    ),
    "a standby has what is still to come": mutation(
        "safe enough", (Keeping, "hold", before_it_came), kind=LEVELS
    ),
    "a merged layer counts that standbys do not have": mutation(
        "safe enough", (Holdings, "_safe_merges", without_copies), kind=LEVELS
    ),
    "a copy is given up that others do not have": mutation(
        "copies stay", (Holdings, "_release", whoever_has_it), kind=LEVELS
    ),
    "state is lost with its process": mutation(
        "lost for a reason", (Holdings, "_without", with_its_process), kind=LEVELS
    ),
    "a layer that was found damaged counts": mutation(
        "safe enough", (Holdings, "lacks", for_good), kind=LEVELS
    ),
    "input is given up for what is in no store": mutation(
        "stored before it counts", (Hardening, "_is_stored", at_once), kind=LEVELS
    ),
    "logs are forgotten for what is in no store": mutation(
        "no early truncation", (HouseKeeper, "advance", with_the_floor_in_use), kind=LEVELS
    ),
    "nobody knows what a restored task has": mutation(
        "sound state", (Holdings, "held", where_it_lives), kind=LEVELS
    ),
    "no slot deletes what nobody wants": mutation(
        "kept no longer", (Keeping, "_forget", constant(None)), kind=LEVELS
    ),
    "what is kept elsewhere never comes to the store": mutation(
        "hard again", (hardening, "_kept_by_slots", constant(())), kind=LEVELS
    ),
    "layers in the store are never merged": mutation(
        "few layers", (layers, "choose", constant(())), kind=LEVELS
    ),
    "larger layers in the store are never merged": mutation(
        "few layers", (layers, "choose", of_small_ones), kind=LEVELS
    ),
    "slots that end on purpose take the last copies along": mutation(
        "copies stay", (Holdings, "is_safe_without", constant(True)), kind=LEVELS
    ),
    "a copy on the disk of the task counts": mutation(
        "safe enough", (Holdings, "_are_safe", on_its_own_disk), kind=LEVELS
    ),
    "a standby has the disk of its task": mutation(
        "copies apart", (placement, "_near", in_another_executor), kind=LEVELS
    ),
    "a copy that lags applies what it has": mutation(
        "as sealed", (Standby, "missing", what_is_newer), (Copies, "follow", now_and_then)
    ),
    "disks are never tidied": mutation(
        "no litter", (Holdings, "_tidies", constant(False)), kind=LEVELS
    ),
}
