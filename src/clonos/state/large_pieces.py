"""Pieces of windows that need not fit into memory.

New pieces are in memory, as in any :class:`~clonos.state.pieces.PieceStore`, and are combined with
each other there. All others are in *tiers* (:mod:`clonos.state.tiers`), by the time at which they
are due. Pieces of one key and window may be in several places. They are combined when the window
fires, and when tiers are merged. So where a piece is makes no difference to the result.

A piece's number is either in memory or in tiers, never in both. If several tiers have it, the
newest counts. Pieces that are over leave the tiers together: nothing below the *floor* exists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from clonos.columns.batches import concat, empty
from clonos.columns.row_codec import RowCodec
from clonos.core.content import Shelf, Writable
from clonos.state.deltas import Frozen
from clonos.state.piece_runs import (
    FAR,
    PLACES_END,
    LargeCombiner,
    Merging,
    PlacedPieces,
    Unreported,
    begin_of,
    end_of,
    newest,
    places_of,
    rows_of,
)
from clonos.state.pieces import ORDER, Int64, PieceStore, addresses, numbers, take
from clonos.state.renumbered import Numbered
from clonos.state.runs import (
    WRITTEN_ROWS,
    Index,
    Rows,
    Run,
    RunWriter,
    UInt64,
    in_memory,
    in_order,
    merge_runs,
    ranges,
    spans,
)
from clonos.state.stores import Facts
from clonos.state.tiers import LOADED_BYTES, Tiers

TOLD_BYTES: Final = 16 * 1024 * 1024
"""Of a merged run, each layer reports the changes within about this many bytes."""
_READ_BLOCKS: Final = 4
"""About how many blocks of each run are read at a time to find the earliest piece."""
_BEFORE_ALL: Final = -(1 << 62)
_NONE: Final = np.empty(0, np.int64)


class _Leaving:
    """Pieces that are being written as a tier."""

    def __init__(self, pieces: pa.RecordBatch, places: UInt64, groups: Int64) -> None:
        order = np.argsort(places)
        self._pieces, self.places = pieces.take(pa.array(order)), places[order]
        self._groups, self._codec = groups[order], RowCodec(pieces.schema)
        self.index: Index | None = None

    def fill(self, file: Writable) -> None:
        writer = RunWriter(len(self.places), file.write)
        for start, end in spans(self.places):
            writer.add(self._rows(start, end))
        self.index = writer.index()

    def parts(self, low: int, high: int) -> Iterator[Rows]:
        """Like those of a run."""
        start = int(np.searchsorted(self.places, np.uint64(low)))
        end = len(self.places)
        if high < PLACES_END:
            end = int(np.searchsorted(self.places, np.uint64(high)))
        if start < end:
            yield self._rows(start, end)

    def _rows(self, start: int, end: int) -> Rows:
        pieces, values = self._pieces.slice(start, end - start), self._codec.encode
        keys = addresses(numbers(pieces, ORDER))
        return Rows(self.places[start:end], self._groups[start:end], keys, values(pieces.columns))


class LargePieceStore(PieceStore):
    """All pieces of a task, in memory and in tiers.

    It has another fact, ``over``: up to which time pieces have been removed.
    """

    def __init__(self, combiner: LargeCombiner, facts: Facts) -> None:
        super().__init__(combiner, facts)
        self.combiner = combiner
        self._below = Tiers[_Leaving](self._merging)
        self._below.when_merged = self._merged
        self._limit = 0
        self._loaded = 0  # bytes restored into memory, about
        self._newer: list[Run] = []  # small runs restored above others, not yet put together
        self._unreported: Unreported | None = None
        self._to_tell: list[Callable[[], Iterable[Rows]]] = []
        self._lowest: tuple[int | None] | None = None  # the earliest time below, if it is known
        self._gone_below: list[Rows] = []

    @property
    def numbered(self) -> Mapping[str, Numbered]:
        """Its pieces, to be renumbered in runs, by the fact that counts them."""
        return {"order": Numbered(range(1 << 63), self._schema)}

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Use about this much memory; the rest goes on the shelf."""
        self._below.shelf, self._limit = shelf, nbytes

    @property
    def has_tiers(self) -> bool:
        """Whether there are pieces that are not in memory."""
        return bool(self._below.all)

    def let_go(self) -> None:
        """Give them up: the store is needed no more."""
        self._below.let_go()

    def take_due(self, until: int, over: int) -> pa.RecordBatch:
        if self._is_restored:
            self._settle()
        if self._far(until):
            later, rewritten, self._rewritten = self._batches[0], self._rewritten, _NONE
            self._batches, self._rows = self._batches[1:], self._rows - later.num_rows
            due = self._take_due(until, over)
            self._batches, self._rows = [later, *self._batches], self._rows + later.num_rows
            self._rewritten = rewritten
            return due
        times = [numbers(batch, self.combiner.time) for batch in self._batches]
        if self._below.all or 2 * sum(int((some <= until).sum()) for some in times) < self._rows:
            return self._take_due(until, over)
        self._facts.set("over", over)
        return super().take_due(until, over)

    def _far(self, until: int) -> bool:
        """Whether none of the pieces that were combined is due, so that they can be left alone.
        They are the first batch then.

        How pieces lie in batches does not decide that, because a restore changes it.
        """
        combined = self._rows - self._appended
        if not (combined and self._appended):
            return False
        if self._batches[0].num_rows != combined:
            here = self.all()
            self._batches = [here.slice(0, combined), here.slice(combined)]
        return int(numbers(self._batches[0], self.combiner.time).min()) > until

    def _take_due(self, until: int, over: int) -> pa.RecordBatch:
        here = self.all()
        times = numbers(here, self.combiner.time)
        due = here.filter(pa.array(times <= until))
        if self._below.all and (self._lowest is None or _at_most(self._lowest[0], until)):
            parts = list(self._with_below(due, until, over))
            pieces = concat(parts or [empty(self._schema)])
            if len(parts) > 1:
                parts.clear()
                pieces = pieces.take(pa.array(np.argsort(numbers(pieces, ORDER))))
        else:
            pieces = self._combined(due)
        self.remove(times <= over)
        self._release(over)
        return pieces

    def _with_below(self, here: pa.RecordBatch, until: int, over: int) -> Iterator[pa.RecordBatch]:
        """Combine pieces in memory with all below that are due, a range of places at a time. Pieces
        that belong together have the same place."""
        begin, end = begin_of(self._over + 1), end_of(until)
        divided = list(ranges(self._below.runs, begin, end))
        pieces, starts = [here], [0, here.num_rows]
        if len(divided) > 1:
            places, _ = places_of(here, self.combiner)
            order = np.argsort(places, kind="stable")
            here = here.take(pa.array(order))
            cuts = np.array([low for low, _ in divided[1:]], np.uint64)
            starts = [0, *np.searchsorted(places[order], cuts).tolist(), here.num_rows]
            pieces = [here.slice(a, b - a) for a, b in pairwise(starts)]
        for (low, high), mine in zip(divided, pieces, strict=True):
            below = self._between(low, high)
            times = numbers(below.pieces, self.combiner.time)
            if (is_over := times <= over).any():
                self._gone_below.append(below.chosen(is_over).gone())
            both = concat([below.chosen(times <= until).pieces, mine])
            if both.num_rows or len(divided) == 1:
                yield self._combined(both.take(pa.array(np.argsort(numbers(both, ORDER)))))

    def _combined(self, pieces: pa.RecordBatch) -> pa.RecordBatch:
        """Combine pieces, given in order."""
        combined = self.combiner.combine(pieces.select(self.combiner.schema.names))
        orders = pa.array(numbers(pieces, ORDER)[combined.firsts])
        columns = [*combined.pieces.columns, orders]
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def earliest(self) -> int | None:
        here = super().earliest()
        if self._below.all and self._lowest is None:
            self._lowest = (self._earliest_below(),)
        below = self._lowest[0] if self._below.all and self._lowest else None
        return min((time for time in (here, below) if time is not None), default=None)

    def changes(self) -> Frozen:
        if self._is_restored:  # nothing has changed yet
            self._settle()
            return list
        self._combine_many()  # no window joins others, so it does not show
        gone, fresh = self._changed()
        if self._unreported is not None:
            self._to_tell.append(self._unreported.next(TOLD_BYTES))
            if self._unreported.is_over:
                self._unreported, self._below.may_merge = None, True
        to_tell, self._to_tell = self._to_tell, []
        below, self._gone_below = self._gone_below, []

        def work_out() -> list[Rows]:
            changed = [take(batch, places) for batch, places in fresh if len(places)]
            parts = [*below, *(rows for some in to_tell for rows in some())]
            if gone:
                parts.append(rows_of(concat(gone), self.combiner, None))
            if changed:
                parts.append(rows_of(concat(changed), self.combiner, self._codec))
            return [in_order(parts)] if parts else []

        self._relieve()
        return work_out

    def restore_run(self, run: Run) -> None:
        """Restore pieces from a delta. A large run is used in place, without being read."""
        shelf, least = self._below.shelf, min(LOADED_BYTES, self._limit // 4)
        self._is_restored, self._lowest = True, None
        is_small = shelf is None or run.nbytes <= least
        if is_small and not self._below.all:
            parts = list(run.parts())
            keys, values = (pa.concat_arrays([p[n] for p in parts]) for n in (2, 3))
            self.restore(keys, values)
            self._loaded += run.nbytes
            if shelf is not None and self._loaded > self._limit:
                self._take_in()
                nbytes = sum(batch.nbytes for batch in self._batches)
                self._loaded = nbytes // 2
                if nbytes > self._limit:
                    self._sink()
            return
        self._sink()
        if is_small:
            self._newer.append(run)
        if not is_small or sum(newer.nbytes for newer in self._newer) > least:
            self._gather()
        if not is_small:
            self._below.restored(run)
        self._below.settle()

    # --- memory -----------------------------------------------------------------------------------

    @property
    def _over(self) -> int:
        over: int = self._facts.get("over", _BEFORE_ALL)
        return over

    def _combine_many(self) -> None:
        # Pieces in tiers come first. If sums of floats are made in another order, it shows.
        if self.combiner.is_exact or not self._below.all:
            super()._combine_many()

    def _note_combined(self) -> None:
        """Pieces in tiers are not combined with those in memory."""
        self._facts.set("combined", 0 if self._below.all else self._facts.get("order"))

    def _settle(self) -> None:
        self._gather()
        super()._settle()

    def _sink(self) -> None:
        """Make a run of the pieces in memory, because newer ones may change them."""
        self._take_in()
        if self._rows:
            rows = rows_of(self._batches[0], self.combiner, self._codec)
            self._below.all.append(in_memory(self._rows, lambda writer: writer.add(rows)))
        self._keep(empty(self._schema))

    def _gather(self) -> None:
        """Make a tier of small runs."""
        runs, self._newer = self._newer, []
        if runs:
            merge = partial(merge_runs, runs, is_base=False)
            self._below.all.append(in_memory(sum(map(len, runs)), merge))

    def _relieve(self) -> None:
        """Make room, if necessary. Only after a seal, when the pieces that leave are in a layer."""
        if self._below.shelf is None:
            return
        self._below.settle()
        if len(self._below.runs) < len(self._below.all):
            self._below.write()
            return
        nbytes = sum(batch.nbytes for batch in self._batches)
        if nbytes <= self._limit or not self._rows:
            return
        pieces = self.all()
        places, groups = places_of(pieces, self.combiner)
        # What is due last goes first.
        kept = self._rows * (self._limit // 2) // nbytes
        leaves = places >= np.partition(places, kept)[kept]
        tier = _Leaving(pieces.filter(pa.array(leaves)), places[leaves], groups[leaves])
        self._appended -= int(leaves[self._rows - self._appended :].sum())
        self._keep(pieces.filter(pa.array(~leaves)))
        self._below.all.append(tier)
        self._below.write()
        self._note_combined()
        if self._lowest is not None:
            times = numbers(pieces, self.combiner.time)[leaves]
            known = [int(times.min()), *(time for time in self._lowest if time is not None)]
            self._lowest = (min(known),)

    # --- tiers -----------------------------------------------------------------------------------

    def _between(self, low: int, high: int) -> PlacedPieces:
        """The pieces below that lie between two places, by number."""
        tiers = self._below.all
        parts = [rows for tier in tiers for rows in tier.parts(low, high)]
        if not parts:
            return PlacedPieces(empty(self._schema), _NONE.astype(np.uint64), _NONE)
        found = newest(parts, self._codec, self._schema)
        return found.chosen(numbers(found.pieces, self.combiner.time) > self._over)

    def _earliest_below(self) -> int | None:
        low = begin_of(self._over + 1)
        firsts = [
            tier.index.firsts if isinstance(tier, Run) else tier.places[::WRITTEN_ROWS]
            for tier in self._below.all
        ]
        while low < PLACES_END:
            at = [int(np.searchsorted(some, np.uint64(low), "right")) for some in firsts]
            ahead = [some[i:][:_READ_BLOCKS][-1:] for some, i in zip(firsts, at, strict=True)]
            high = min(map(int, np.concatenate(ahead)), default=PLACES_END)
            if high > FAR:
                high = PLACES_END
            pieces = self._between(low, high).pieces
            if pieces.num_rows:
                return int(numbers(pieces, self.combiner.time).min())
            low = high
        return None

    def _release(self, over: int) -> None:
        """Pieces below, up to a time, exist no more."""
        self._facts.set("over", over)
        if self._lowest is not None and _at_most(self._lowest[0], over):
            self._lowest = None
        floor = begin_of(over + 1)
        if self._unreported is not None:
            self._to_tell.append(self._unreported.release(floor))
        self._below.drop_below(floor)

    def _merging(self, is_base: bool) -> Merging:
        combines = not self._is_restored and (self.combiner.is_exact or is_base)
        floor = begin_of(self._over + 1)
        return Merging(self.combiner, self._schema, floor, combines=combines)

    def _merged(self, run: Run, merging: Merging) -> None:
        if merging.has_combined:
            self._unreported = Unreported(run, begin_of(self._over + 1))
            self._below.may_merge = False


def _at_most(time: int | None, until: int) -> bool:
    return time is not None and time <= until
