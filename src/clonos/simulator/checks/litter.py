"""The layer store must not fill up with files that nobody will ever read."""

from __future__ import annotations

from typing import Final

from clonos.core.history import FOLDER
from clonos.core.plan import Plan
from clonos.simulator.checks.violations import require
from clonos.simulator.world.disk import SimulatedFiles
from clonos.simulator.world.disks import LAYERS

FLOORS: Final = 4
"""A layer that is in no floor after this many floors never will be. Without markers floors move
one by one, so the number applies to each task."""
PIN: Final = f"{FOLDER}/pin-"
"""A file that a reader of the past writes, and deletes itself."""
GRACES: Final = 14.0
"""An unreferenced file may stay for this many grace periods."""
LOOKS: Final = 8
"""How often the store is listed in this time: listing takes time."""


class Litter:
    """At completed floors, lists the store and measures how long each file has been unreferenced.

    It starts afresh whenever something fails or is restored, because files may then stay for good
    reasons. If floors do not move for long, the driver is frozen, or a store or the journal is
    away. Then nobody deletes, and that time does not count.
    """

    def __init__(self, files: SimulatedFiles, grace_ms: float, plan: Plan) -> None:
        self._files, self._limit_ms = files, GRACES * grace_ms
        self._floors_max = FLOORS if plan.has_markers else FLOORS * len(plan.tasks)
        self._floors = 0
        self._looked_ms = 0.0
        self._seen: dict[str, tuple[float, int]] = {}

    def forget(self) -> None:
        """Something has failed: start afresh."""
        self._seen = {}

    def look(self, now_ms: float, used: set[str]) -> None:
        """A floor is complete; the journal refers to the files in `used`."""
        self._floors += 1
        passed_ms, most_ms = now_ms - self._looked_ms, 2 * self._limit_ms / LOOKS
        if passed_ms < self._limit_ms / LOOKS:
            return
        self._looked_ms = now_ms
        seen: dict[str, tuple[float, int]] = {}
        for info in self._files.entries(LAYERS, recursive=True):
            path = info.path.removeprefix(f"{LAYERS}/").partition("/")[2]
            if info.is_folder or path in used or path.startswith(PIN):
                continue
            before = self._seen.get(path)
            unused_ms = 0.0 if before is None else before[0] + min(passed_ms, most_ms)
            floors = self._floors if before is None else before[1]
            seen[path] = unused_ms, floors
            is_new = self._floors - floors < self._floors_max
            no_litter(path, unused_ms, self._limit_ms, is_new=is_new)
        self._seen = seen


def no_litter(path: str, unused_ms: float, limit_ms: float, *, is_new: bool) -> None:
    """Unreferenced files are deleted in the end; `is_new`: a floor may yet refer to this one."""
    require(
        unused_ms < limit_ms or is_new,
        "no litter",
        f"for {unused_ms:.0f} ms and several floors nobody has referred to {path}",
    )
