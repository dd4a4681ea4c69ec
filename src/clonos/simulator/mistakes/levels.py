"""Deliberate mistakes with layers that slots keep."""

from __future__ import annotations

from typing import Any, Final

from clonos.core.holdings import Holdings
from clonos.core.levels import LOCAL, Held, Hold
from clonos.nodes.keeping import Keeping
from clonos.simulator.mistakes.mutation import LEVELS, Mutation, mutation


def at_once(_: Any) -> Any:
    """Inputs are given up as soon as the task itself has the layer."""
    return lambda *_: True


def before_it_came(original: Any) -> Any:
    """A standby says that it has what it was told to get."""

    def hold(self: Keeping, command: Hold) -> None:
        original(self, command)
        self._send(Held(command.task, tuple(ref.path for ref in command.layers)))

    return hold


def whoever_has_it(original: Any) -> Any:
    """Slots give up what is not theirs to keep, whether others have it or not."""

    def release(self: Any, task: int) -> None:
        self._are_safe = lambda *_: True
        original(self, task)
        del self._are_safe

    return release


def with_its_process(original: Any) -> Any:
    """What a task had counts as lost with it, at once, whoever else has it."""

    def without(self: Any, task: int) -> Any:
        home = self._roster.tasks[task].slot
        if home is None and self._roster.tasks[task].incarnation.n:
            self._lost_ms = -1
            return [r for r in self._roster.keeper.layers[task] if r.level != "store"]
        return original(self, task)

    return without


def where_it_lives(original: Any) -> Any:
    """What a slot has got counts for its copies, not for the task that is restored there."""

    def held(self: Any, slot: int, report: Held) -> None:
        if slot != self._roster.tasks[report.task].slot:
            original(self, slot, report)

    return held


def from_disks_too(original: Any) -> Any:
    """What counts is deleted from disks that other slots may be told to use again."""

    def release(self: Any, task: int) -> None:
        original(self, task)
        roster, wanted = self._roster, {ref.path for ref in self._wanted(task)}
        home = roster.tasks[task].slot
        if not self._are_safe(home, task, self._named(task)):
            return
        stay = [s for s in roster.slots.values() if task in s.standbys or s.id == home]
        disks = {("disk", slot.disk) for slot in stay}
        for path, (ref, places) in self._where[task].items():
            if path in wanted and ref.level == LOCAL:
                for slot in roster.slots.values():
                    if ("disk", slot.disk) in places - disks:
                        places.discard(("disk", slot.disk))
                        self._discard(slot.id, task, [ref])

    return release


def for_good(_: Any) -> Any:
    """What a disk had it has, whatever is read there."""
    return lambda *_: None


def here_or_nowhere(_: Any) -> Any:
    """What cannot be read here is not sought elsewhere."""
    return lambda *_: False


def asleep(original: Any) -> Any:
    """A driver that slept takes that for time in which nobody came."""

    def tick(self: Holdings) -> bool:
        slept_ms = self._roster.now_ms - self._looked_ms
        for task in self._missing if slept_ms > 1000 else ():
            self._missing[task] += slept_ms - 1000
        return bool(original(self))

    return tick


WRONG_LEVELS: Final[dict[str, Mutation]] = {
    "inputs are given up before standbys have the layer": mutation(
        "safe enough", (Holdings, "is_safe", at_once), kind=LEVELS
    ),
    "a standby has what is still to come": mutation(
        "safe enough", (Keeping, "hold", before_it_came), kind=LEVELS
    ),
    "a copy is given up that others do not have": mutation(
        "copies stay", (Holdings, "_release", whoever_has_it), kind=LEVELS
    ),
    "state is lost with its process": mutation(
        "lost for a reason", (Holdings, "_without", with_its_process), kind=LEVELS
    ),
    "a layer that counts is deleted from a disk that others may use": mutation(
        "safe enough", (Holdings, "_release", from_disks_too), kind=LEVELS
    ),
    "a layer that was found damaged counts": mutation(
        "safe enough", (Holdings, "lacks", for_good), kind=LEVELS
    ),
    "a layer that cannot be read here is not sought elsewhere": mutation(
        "durable", (Keeping, "fetch_failed", here_or_nowhere), kind=LEVELS
    ),
    "a driver that slept has waited for a disk": mutation(
        "lost for a reason", (Holdings, "tick", asleep), kind=LEVELS
    ),
    "nobody knows what a restored task has": mutation(
        "sound state", (Holdings, "held", where_it_lives), kind=LEVELS
    ),
}
