"""Decides when layers are merged (:mod:`clonos.core.merges` says which), and when merged ones are
deleted.

Large merges take minutes, in which newer layers pile up: those are merged meanwhile. Of each tier
one merge of a task is under way. So the next one takes all that has come until then, however slow
merges are.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from clonos.core.levels import STORE, LayerRef
from clonos.core.merges import choose, tier_of_merge
from clonos.nodes.events import Merged, MergeFailed, RoundBegins
from clonos.nodes.ports import Merger

GARBAGE_S: Final = 30.0
"""Grace period before merged layers are removed: a slot may have been told to read them."""
SURVEY_GRACES: Final = 10
"""How many grace periods lie between two surveys of all files in the store."""
AGAIN_S: Final = 30.0
"""Time before a failed merge is tried again: the store may be away."""


@dataclass(frozen=True, slots=True)
class Unused:
    """Unreferenced layers, to be deleted once this group is durable."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Delete:
    """Layers whose grace period is over, to be deleted once this group is durable: the journal may
    yet refer to them."""

    paths: tuple[str, ...]


class LayerCare:
    """Keeps every task's chain of layers short, and the store free of files that nobody reads.

    Parameters
    ----------
    grace_s
        How long an unreferenced file stays.
    """

    def __init__(self, merger: Merger, grace_s: float = GARBAGE_S) -> None:
        self._merger, self._grace_s = merger, grace_s
        self._merging: dict[int, list[tuple[LayerRef, ...]]] = {}  # by task
        self._failed: dict[int, set[LayerRef]] = {}  # by task, what could not be merged yet
        self._resting: dict[int, set[LayerRef]] = {}  # those that merges leave alone ...
        self._again_s: dict[int, float] = {}  # ... until then
        self._garbage: list[tuple[float, str]] = []
        self._survey_s = 0.0  # when
        self._shared_out: dict[int, int] | None = None  # by task, the newest layer, if any are

    def is_due(self, now_s: float) -> bool:
        """Whether :meth:`clean` has something to do. It may have, even if a job is idle and its
        floors do not move. While state is shared out, all files stay: another process reads
        them."""
        if self._shared_out is not None:
            return False
        oldest_s = self._garbage[0][0] if self._garbage else now_s
        return now_s >= self._survey_s or oldest_s < now_s - self._grace_s

    def clean(self, now_s: float, used: Collection[str]) -> list[Delete]:
        """Return what can go, and look for more."""
        old = [path for since, path in self._garbage if since < now_s - self._grace_s]
        self._garbage = [(since, path) for since, path in self._garbage if path not in old]
        # A survey may have seen what a merge had just written, before that counted; and a hard
        # floor may still be behind the floor that needs a layer no more.
        self._garbage += [(now_s, path) for path in old if path in used]
        if now_s >= self._survey_s:
            self._survey_s = now_s + SURVEY_GRACES * self._grace_s
            self._merger.survey()
        going = tuple(path for path in old if path not in used)
        return [Delete(going)] if going else []

    def act(
        self, action: Unused | Delete, now_s: float, used: Collection[str], *, may_delete: bool
    ) -> None:
        """A decision is durable: act on it."""
        if isinstance(action, Unused) or not may_delete:
            self.unused(Unused(action.paths), now_s)
        else:
            self._merger.delete([path for path in action.paths if path not in used])

    def after_floor(self, layers: Mapping[int, tuple[LayerRef, ...]], now_s: float) -> None:
        """A floor is complete with these layers: look for merges."""
        for task, chain in layers.items():
            if now_s >= self._again_s.get(task, now_s):
                self._wake(task)
            if any(ref.level != STORE for ref in chain):
                continue  # then slots merge them
            for free in self._free(task, self.mergeable(task, chain)):
                under_way = self._merging.setdefault(task, [])
                chosen = tuple(choose(free, has_base=free[0] == chain[0]))
                if chosen and tier_of_merge(chosen) not in map(tier_of_merge, under_way):
                    under_way.append(chosen)
                    self._merger.merge(chain, chosen)

    def _free(self, task: int, chain: Sequence[LayerRef]) -> Iterator[list[LayerRef]]:
        """The layers between those that are being merged, or left alone."""
        taken = {ref for merge in self._merging.get(task, ()) for ref in merge}
        taken |= self._resting.get(task, set())
        for is_taken, refs in groupby(chain, lambda ref: ref in taken):
            if not is_taken:
                yield list(refs)

    def mergeable(self, task: int, chain: tuple[LayerRef, ...]) -> tuple[LayerRef, ...]:
        """All layers; while state is shared out, those that were not: a layer with what was and
        what was not would have to be shared out as a whole."""
        upto = (self._shared_out or {}).get(task, 0)
        return tuple(ref for ref in chain if ref.epoch > upto)

    def round(self, event: RoundBegins, layers: Mapping[int, tuple[LayerRef, ...]]) -> None:
        """A round of sharing out state begins with these layers, or no more follow. Merges under
        way do not reach across the newest ones, either: they began with these or older ones."""
        if event.told is None:
            self._shared_out = None
            return
        self._shared_out = {task: chain[-1].epoch for task, chain in layers.items() if chain}
        event.told(dict(layers))

    def merged(self, event: Merged, chain: Sequence[LayerRef]) -> Unused:
        """The coordinator has decided: only `chain` counts now. Return the layers that may go
        later."""
        self._ended(event.replaced)
        failed = self._failed.get(event.merged.task, set())
        failed.difference_update(event.replaced)
        if not failed:  # else newer layers were merged, and those that failed still wait
            self._wake(event.merged.task)
        used = {ref.path for ref in chain}
        refs = (event.merged, *event.replaced)
        return Unused(tuple(ref.path for ref in refs if ref.path not in used))

    def unused(self, found: Unused, now_s: float) -> None:
        """It is durable that these layers are unused, so their grace period begins. Before that, a
        driver that read the journal might still need them."""
        known = {path for _, path in self._garbage}
        self._garbage += [(now_s, path) for path in found.paths if path not in known]

    def failed(self, event: MergeFailed, now_s: float) -> str | None:
        """Retry later; return a warning the first time.

        Until then the older half of these layers are left alone, and newer ones are merged. Perhaps
        one layer is damaged, or the store has no room for a merge of so many.
        """
        self._ended(event.chosen)
        task = event.chosen[0].task
        failed = self._failed.setdefault(task, set())
        is_new = not failed
        failed.update(event.chosen)
        half = event.chosen[: (len(event.chosen) + 1) // 2]
        self._resting.setdefault(task, set()).update(half)
        self._again_s.setdefault(task, now_s + AGAIN_S)
        return f"{event.error}; layers of task {task} are merged later" if is_new else None

    def _wake(self, task: int) -> None:
        """No layer of this task is left alone any more."""
        self._resting.pop(task, None)
        self._again_s.pop(task, None)

    def _ended(self, merge: tuple[LayerRef, ...]) -> None:
        under_way = self._merging.get(merge[0].task, [])
        if merge in under_way:
            under_way.remove(merge)
