"""State that does not fit into memory: *tiers*, which are runs, oldest first.

A task has been restored from some of them, and has written the others to its local disk since.
Local runs are not part of a checkpoint: a slot writes them to make room, and drops them in the end.

Both are merged, or else too many of them would have to be looked at. The driver merges layers, in a
process of its own. If the slots did it again, each of them would read and write all state, and
would keep one more copy of it. So a slot leaves large runs of layers alone, unless it has written
so much itself that they can only be forgotten together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final, Generic, Protocol, TypeVar

from clonos.core.content import Shelf, Shelved, Writable
from clonos.core.layer import IN_PLACE_BYTES
from clonos.state.runs import Index, Rows, Run, RunWriter, merge_runs

LOADED_BYTES: Final = 4 * 1024 * 1024
"""A smaller run is loaded completely when it is restored."""
TIERS_MAX: Final = 8
"""If there are more runs, the newest ones are merged."""
SHARE: Final = 0.5
"""An older run is merged, too, if the newer ones together reach this share of its size. If it is a
large run of a layer, only what this process has written counts."""


class Unwritten(Protocol):
    """An immutable tier that is in memory until it is written."""

    index: Index | None
    """The index of its run, once it is written."""

    def fill(self, file: Writable) -> None:
        """Write it, in another thread."""


class Tiered(Protocol):
    """A store with state in tiers."""

    @property
    def has_tiers(self) -> bool:
        """Whether there is state that is not in memory."""

    def let_go(self) -> None:
        """Give it up: the store is needed no more."""


_Tier = TypeVar("_Tier", bound=Unwritten)


class _Merge:
    """A merge of runs into one."""

    def __init__(self, runs: Sequence[Run], change: Change | None, *, is_base: bool) -> None:
        self.runs, self.change, self._is_base = runs, change, is_base
        self.index: Index | None = None

    def fill(self, file: Writable) -> None:
        writer = RunWriter(sum(map(len, self.runs)), file.write)
        target = writer if self.change is None else _Changed(writer, self.change)
        merge_runs(self.runs, target, is_base=self._is_base)
        self.index = writer.index()


Change = Callable[[Rows], Rows]
"""Changes rows while they are merged, in another thread. Their order stays."""


class _Changed:
    """Writes rows as they are after a change."""

    def __init__(self, writer: RunWriter, change: Change) -> None:
        self._writer, self._change = writer, change

    def add(self, rows: Rows) -> None:
        self._writer.add(self._change(rows))


class Tiers(Generic[_Tier]):
    """The tiers of one store: runs, and tiers not yet written.

    Parameters
    ----------
    changing
        Called when a merge begins, and told whether it includes the oldest tier. Returns the
        change to make to its rows.

    Attributes
    ----------
    all
        All tiers, oldest first.
    shelf
        Where tiers are written; without a shelf there are none.
    when_merged
        Called with each merged run, and with the change that was made to its rows.
    may_merge
        Whether merges may begin.
    """

    def __init__(self, changing: Callable[[bool], Change] | None = None) -> None:
        self.all: list[Run | _Tier] = []
        self.shelf: Shelf | None = None
        self._changing = changing
        self.when_merged: Callable[[Run, Any], object] | None = None
        self.may_merge = True
        self._flushing: tuple[_Tier, Shelved] | None = None
        self._merging: tuple[_Merge, Shelved] | None = None

    def restored(self, run: Run) -> None:
        """A run of a layer is used where it lies, above all others."""
        run.is_in_layer = True
        self.all.append(run)

    @property
    def runs(self) -> list[Run]:
        """The tiers that are written."""
        return [tier for tier in self.all if isinstance(tier, Run)]

    @property
    def is_writing(self) -> bool:
        """Whether a tier is being written."""
        return self._flushing is not None

    def write(self) -> None:
        """Write the oldest tier in memory, unless one is being written."""
        assert self.shelf is not None
        tier = next((one for one in self.all if not isinstance(one, Run)), None)
        if tier is not None and self._flushing is None:
            self._flushing = tier, self.shelf.write(tier.fill, is_long=False)

    def give_up(self) -> None:
        """Drop the tiers that are not written yet."""
        self.all, self._flushing = list(self.runs), None

    def let_go(self) -> None:
        """Drop all tiers, and what is being written."""
        self.all, self._flushing, self._merging = [], None, None

    def settle(self) -> _Tier | None:
        """Take over what was written meanwhile; return the tier that has become a run, if any."""
        written = None
        if self._flushing is not None:
            tier, shelved = self._flushing
            if shelved.content is not None:
                assert tier.index is not None
                run = self.all[self.all.index(tier)] = Run(tier.index, shelved.content)
                run.written = run.nbytes
                self._flushing, written = None, tier
                self.write()
            elif shelved.failed:  # retry when there is more to write
                self._flushing = None
        if self._merging is not None:
            merge, shelved = self._merging
            if shelved.content is not None:
                assert merge.index is not None
                start = self.all.index(merge.runs[0])
                run = Run(merge.index, shelved.content)
                run.written = min(run.nbytes, sum(one.written for one in merge.runs))
                self.all[start : start + len(merge.runs)] = [run]
                if self.when_merged is not None:
                    self.when_merged(run, merge.change)
            if shelved.content is not None or shelved.failed:
                self._merging = None
        if self._merging is None and self.may_merge:
            self._merge()
        return written

    def drop_below(self, place: int) -> None:
        """Drop runs that have nothing from a place on, unless they are being merged."""
        if self._merging is None:
            self.all = [
                one for one in self.all if not isinstance(one, Run) or one.last_place >= place
            ]

    def _merge(self) -> None:
        """If there are many runs, start merging the newest ones."""
        assert self.shelf is not None
        tiers = takewhile(lambda tier: isinstance(tier, Run), self.all)
        runs = self._free([tier for tier in tiers if isinstance(tier, Run)])
        if len(runs) > TIERS_MAX:
            chosen = runs[_first_to_merge([run.nbytes for run in runs]) :]
            is_base = chosen[0] is self.all[0]
            change = None if self._changing is None else self._changing(is_base)
            merge = _Merge(chosen, change, is_base=is_base)
            self._merging = merge, self.shelf.write(merge.fill, is_long=True)

    def _free(self, runs: Sequence[Run]) -> Sequence[Run]:
        """Those above the newest large run of a layer that has to be left alone."""
        written = 0
        for i, run in reversed(list(enumerate(runs))):
            if run.is_in_layer and run.nbytes >= IN_PLACE_BYTES and written < SHARE * run.nbytes:
                return runs[i + 1 :]
            written += run.written
        return runs


def _first_to_merge(sizes: Sequence[int]) -> int:
    start, above = len(sizes) - 2, sizes[-1]
    for i in range(len(sizes) - 2, -1, -1):
        if above >= SHARE * sizes[i]:
            start = i
        above += sizes[i]
    return start
