"""The pieces of sessions, which need not fit into memory.

Sessions are unlike other windows: a row may join two of them, and it moves their end. So pieces are
found in two ways, by key when rows come, and by end when sessions are over. New pieces are in
memory, as in any :class:`~clonos.state.pieces.PieceStore`. Those that were combined, and have got
no rows for the longest time, *go away* to a :class:`~clonos.state.large_rows.LargeRowStore`, where
both are quick. If new pieces touch one that is away, it comes back. So a piece is in one of two
places, and layers have it from there: those in memory by their numbers, as always; the others in
runs.

Where a piece is must not show, even if its sums are floats:

* Pieces are combined at moments that follow from what came, never from where they are. Each time
  *all* pieces are combined, so those that are away never touch each other. The number of pieces
  that were combined is therefore a fact, and not counted.
* If new pieces join combined ones, these come first, ordered by their start.
* Sessions that are over are released by hash of the key, since numbers are lost on the way.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from clonos.columns.batches import concat, empty
from clonos.columns.keys import hash_columns, key_columns
from clonos.core.content import Shelf
from clonos.state.deltas import Frozen, both
from clonos.state.large_rows import LargeRowStore
from clonos.state.piece_runs import LargeCombiner
from clonos.state.pieces import (
    END,
    ORDER,
    START,
    Combined,
    Int64,
    PieceStore,
    in_one_order,
    numbers,
    take,
)
from clonos.state.renumbered import Numbered
from clonos.state.row_store import DUE
from clonos.state.runs import Run
from clonos.state.stores import Facts

AWAY: Final = "away"
"""The fact that numbers pieces that go away."""
KEPT: Final = "kept"
"""The fact that counts combined pieces. After a change of parallelism it is an estimate."""
_NUMBERS: Final = range(1 << 62)
"""Of pieces that are away; the operator's own rows may have higher ones."""
_APPENDED_MAX: Final = 1 << 17
"""At most about so many pieces wait in memory to be combined."""

_HERE_MAX: Final = 1 << 19
"""If more pieces are here, each time that some are over takes too long: all are combined then."""
_HASHED_ROWS: Final = 4096
"""So many keys are hashed at once: as objects of Python they are several times as large."""


class SessionStore(PieceStore):
    """All pieces of a task's sessions.

    Attributes
    ----------
    away
        Those that are not in memory.
    """

    def __init__(self, combiner: LargeCombiner, facts: Facts) -> None:
        super().__init__(combiner, facts)
        self._is_exact = combiner.is_exact
        schema = combiner.schema.append(pa.field(DUE, pa.int64()))
        self.away = LargeRowStore(schema, combiner.keys, (DUE,), _NUMBERS)
        self._limit: int | None = None

    @property
    def numbered(self) -> Mapping[str, Numbered]:
        """Pieces that are away, to be renumbered in runs, by the fact that counts them."""
        return {AWAY: self.away.numbered}

    def use(self, shelf: Shelf, nbytes: int) -> None:
        """Use about this much memory; the rest goes on the shelf."""
        if self._combiner.keys:  # else there is one key, and few sessions
            self._limit = nbytes - nbytes // 4
            self.away.use(shelf, nbytes // 4)

    @property
    def has_tiers(self) -> bool:
        """Whether there are pieces that are not in memory."""
        return self.away.has_tiers

    def let_go(self) -> None:
        """Give them up: the store is needed no more."""
        self.away.let_go()

    def combine(self) -> pa.RecordBatch:
        """Combine all pieces; return those in memory, in order."""
        old = self.all()
        if self._appended:
            kept, known = self._kept, self._rows - self._appended
            touched = self._touched(old.slice(known))
            combined = self._with(old, touched)
            if touched.num_rows or len(combined.firsts) < self._rows:
                self._replace(old, combined)
            self._appended = 0
            self._count(kept, self._rows - known - touched.num_rows)
            self._note_combined()
        return self._batches[0]

    def take_due(self, until: int, over: int) -> pa.RecordBatch:
        """Combined pieces with a time of at most `over`, by start, end and hash of the key; they
        are removed."""
        del until
        here, names, kept = self.combine(), self._combiner.schema.names, self._kept
        is_over = numbers(here, END) <= over
        due = take(here, is_over.nonzero()[0]).select(names)
        if due.num_rows:
            self.remove(is_over)
        del here  # it may be large
        if not self.away.is_empty:
            due = concat([due, self.away.take_due(over).select(names)])
        self._count(kept, -due.num_rows)
        return take(due, self._order(due))

    def earliest(self) -> int | None:
        here, there = super().earliest(), None
        if not self.away.is_empty:
            there = self.away.lowest(DUE)
        return min((time for time in (here, there) if time is not None), default=None)

    def changes(self) -> Frozen:
        """See :meth:`PieceStore.changes`; now pieces may go away."""
        if self._is_restored:
            self._settle()
        else:
            self._facts.set(KEPT, self._kept)  # layers of earlier versions do not have it
            self._relieve()
        here = super().changes()
        if self._facts.get(AWAY) is None and self.away.is_empty:  # none has ever gone away
            return here
        return both(here, self.away.changes())

    def restore_run(self, run: Run) -> None:
        """Restore pieces that are away. A large run is used in place, without being read."""
        self._is_restored = True
        self.away.restore_run(run)

    def adopt(self, shares: Sequence[tuple[pa.Array, int]]) -> None:
        combined, others = [], []
        for values, end in shares:
            pieces = self.decode(values) if len(values) else empty(self._schema)
            was_combined = numbers(pieces, ORDER) < end
            combined.append(pieces.filter(pa.array(was_combined)))
            others.append(pieces.filter(pa.array(~was_combined)))
        parts = [in_one_order(some, self._schema) for some in (combined, others)]
        orders = pa.array(np.arange(sum(part.num_rows for part in parts)))
        columns = [*concat(parts).columns, orders]
        self._keep(pa.RecordBatch.from_arrays(columns, schema=self._schema))
        self._appended = parts[1].num_rows
        self._facts.set("order", len(orders))
        self._facts.set("combined", parts[0].num_rows)

    def _order(self, due: pa.RecordBatch) -> Int64:
        """By start, by end, and where these are equal by hash of the key."""
        starts, ends = numbers(due, START), numbers(due, END)
        order: Int64 = np.lexsort((ends, starts))
        is_new = np.ones(len(order) + 1, np.bool_)
        is_new[1:-1] = (np.diff(starts[order]) != 0) | (np.diff(ends[order]) != 0)
        (places,) = (~(is_new[:-1] & is_new[1:])).nonzero()
        if not len(places) or not self._combiner.keys:
            return order
        tied, keys = order[places], due.select(list(self._combiner.keys))
        parts = [
            hash_columns(key_columns(keys.take(pa.array(some)), keys.schema.names))
            for some in np.split(tied, range(_HASHED_ROWS, len(tied), _HASHED_ROWS))
        ]
        windows = np.cumsum(is_new[:-1])[places]
        order[places] = tied[np.lexsort((np.concatenate(parts), windows))]
        return order

    # --- combining --------------------------------------------------------------------------------

    @property
    def _kept(self) -> int:
        """How many pieces were combined, wherever they are."""
        known: int | None = self._facts.get(KEPT)
        return self._rows - self._appended if known is None else known

    def _count(self, kept: int, more: int) -> None:
        """Note that there are more combined pieces than there were, or fewer."""
        if more:
            self._facts.set(KEPT, max(kept + more, 0))

    def _combine_many(self) -> None:
        is_much = self._appended > self._kept
        if not self._is_exact or not self.away.is_empty:
            is_much |= self._appended > _APPENDED_MAX
        if is_much:
            self.combine()

    def _touched(self, fresh: pa.RecordBatch) -> pa.RecordBatch:
        """The pieces that were away, and belong to sessions of new ones; they come back."""
        if self.away.is_empty:
            return empty(self._combiner.schema)
        found = self.away.find(fresh, self._combiner.keys)
        starts, ends = (numbers(fresh, name)[found.probes] for name in (START, END))
        here, there = (numbers(found.rows, name)[found.which] for name in (START, END))
        rows = found.rows.take(pa.array(np.unique(found.which[(here <= ends) & (starts <= there)])))
        if rows.num_rows:
            self.away.discard(rows)
        return rows.select(self._combiner.schema.names)

    def _with(self, old: pa.RecordBatch, touched: pa.RecordBatch) -> Combined:
        """Combine all pieces in memory with those that came back."""
        pieces = old.select(self._combiner.schema.names)
        back = touched.num_rows
        if not back:
            return self._in_order_of_start(pieces, self._rows - self._appended)
        known = back + self._rows - self._appended
        combined = self._in_order_of_start(concat([touched, pieces]), known)
        came_back, codes = combined.codes[:back], combined.codes[back:]
        firsts = np.empty(len(combined.firsts), np.int64)
        firsts[codes[::-1]] = np.arange(len(codes))[::-1]  # where several are, the last one stays
        order = np.argsort(firsts)
        renumbered = np.empty(len(order), np.int64)
        renumbered[order] = np.arange(len(order))
        codes = renumbered[np.concatenate([codes, came_back])]
        return Combined(combined.pieces.take(pa.array(order)), firsts[order], codes)

    def _in_order_of_start(self, pieces: pa.RecordBatch, known: int) -> Combined:
        """Combine pieces, of which the first ones were combined before; the start of those decides
        in which order sums are made."""
        combined = self._combiner.combine(pieces)
        codes = combined.codes[:known]
        if self._is_exact or not known:
            return combined
        (places,) = (np.bincount(codes)[codes] > 1).nonzero()
        starts = numbers(pieces, START)[places]
        by_place = places[np.argsort(codes[places], kind="stable")]
        by_start = places[np.lexsort((starts, codes[places]))]
        if (by_place == by_start).all():
            return combined
        order = np.arange(pieces.num_rows)
        order[by_place] = by_start
        return combined._replace(pieces=self._combiner.combine(pieces.take(pa.array(order))).pieces)

    # --- memory -----------------------------------------------------------------------------------

    @property
    def _most(self) -> int:
        """How many pieces may be here."""
        most = _HERE_MAX if self._combiner.keys else self._rows
        if self._limit is None:
            return most
        nbytes = sum(batch.nbytes for batch in self._batches)
        if nbytes <= self._limit:
            return most
        return int(min(_HERE_MAX, self._rows * self._limit // nbytes))

    def _relieve(self) -> None:
        """If too much is in memory, let combined pieces go away, those that end first."""
        limit = self._most
        if self._rows <= limit:
            return
        pieces = self.combine() if self._is_exact else self.all()
        known = self._rows - self._appended
        if not known:
            return
        ends = numbers(pieces, END)[:known]
        last = min(max(self._rows - limit // 2, 1), known) - 1
        leave = np.zeros(self._rows, np.bool_)
        leave[:known] = ends <= np.partition(ends, last)[last]
        leaving = pieces.filter(pa.array(leave)).select(self._combiner.schema.names)
        columns = [*leaving.columns, leaving.column(END)]
        rows = pa.RecordBatch.from_arrays(columns, schema=self.away.schema.remove(len(columns)))
        first = self._facts.get(AWAY, 0)
        self.away.append(rows, first)
        self._facts.set(AWAY, first + rows.num_rows)
        self.remove(leave)
