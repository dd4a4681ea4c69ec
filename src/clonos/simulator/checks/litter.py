"""The store of layers must not fill up with what nobody will ever read."""

from __future__ import annotations

from typing import Final

from clonos.core.history import FOLDER
from clonos.core.plan import Plan
from clonos.simulator.checks.violations import require
from clonos.simulator.world.disk import SimulatedFiles
from clonos.simulator.world.disks import LAYERS

FLOORS: Final = 4
"""A layer that is not part of a floor by then never will be. Without markers floors move one by
one: so many of each task."""
PIN: Final = f"{FOLDER}/pin-"
"""What somebody puts there who reads the past; he takes it away himself."""
GRACES: Final = 14.0
"""How many times its grace period a file may stay that nobody refers to."""
LOOKS: Final = 8
"""How often it is looked in this time: to look takes time."""


class Litter:
    """Looks at floors what is in the store, and for how long nobody has referred to it.

    Whenever something fails or is restored it forgets what it has seen: then there may be reasons.
    Where floors do not move for long, the driver is frozen, or a store or the journal is away; then
    nobody deletes, and that time does not count.
    """

    def __init__(self, files: SimulatedFiles, grace_ms: float, plan: Plan) -> None:
        self._files, self._limit_ms = files, GRACES * grace_ms
        self._floors_max = FLOORS if plan.has_markers else FLOORS * len(plan.tasks)
        self._floors = 0
        self._looked_ms = 0.0
        self._seen: dict[str, tuple[float, int]] = {}

    def forget(self) -> None:
        """Something fails."""
        self._seen = {}

    def look(self, now_ms: float, used: set[str]) -> None:
        """A floor is complete; the journal refers to what is `used`."""
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
    """What nobody refers to is deleted some time; `is_new`: floors may yet come to it."""
    require(
        unused_ms < limit_ms or is_new,
        "no litter",
        f"for {unused_ms:.0f} ms and several floors nobody has referred to {path}",
    )
