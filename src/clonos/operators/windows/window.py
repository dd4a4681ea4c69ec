"""Windows over rows, in processing time or event time.

A window [start, end) fires when processing time reaches its end or the watermark reaches its last
millisecond; a session, one millisecond later. Later rows are dropped and counted. At the end of the
input all open windows fire. Output is ordered by window, then by first appearance of the key; that
of sessions by start and end, then by hash of the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from clonos.errors import CannotUpgrade
from clonos.operators.base import Operator
from clonos.operators.shares import Share, highest, nothing, shared_out
from clonos.operators.watermark import event_ms
from clonos.operators.windows.content import Content
from clonos.operators.windows.kinds import FOR_EVER, Fixed, Given, Session, Window, is_event_time
from clonos.state.deltas import Frozen
from clonos.state.large_pieces import LargePieceStore
from clonos.state.piece_runs import earliest_of
from clonos.state.pieces import END, START, PieceStore, numbers, take
from clonos.state.sessions import AWAY, KEPT, SessionStore

if TYPE_CHECKING:
    from clonos.core.content import Shelf
    from clonos.state.renumbered import Numbered
    from clonos.state.runs import Run
    from clonos.state.tiers import Tiered

Int64 = npt.NDArray[np.int64]


class _Windowing(Operator):
    """Base of operators that turn rows into pieces."""

    def __init__(self, content: Content, window: Window) -> None:
        super().__init__()
        self._content = content
        self._window = window

    def _pieces(self, batch: pa.RecordBatch, clock_ms: int | None) -> pa.RecordBatch | None:
        """Pieces of rows; in processing time, all rows have the time `clock_ms`."""
        window = self._window
        if isinstance(window, Given):
            batch = self._without_nulls(self._without_nulls(batch, window.start), window.end)
            starts, ends = (_times(batch, name) for name in (window.start, window.end))
        elif window.event_time is None:
            times = np.full(batch.num_rows, clock_ms or 0)
            starts, ends = window.intervals(times)
        else:
            batch = self._without_nulls(batch, window.event_time)
            starts, ends = window.intervals(_times(batch, window.event_time))
        return self._content.start(batch, starts, ends) if batch.num_rows else None

    def _without_nulls(self, batch: pa.RecordBatch, column: str) -> pa.RecordBatch:
        times = batch.column(column)
        if not times.null_count:
            return batch
        without = batch.filter(times.is_null())
        for i in range(without.num_rows):
            self.reject(ValueError(f"no event time in column {column!r}"), without.slice(i, 1))
        return batch.filter(times.is_valid())


class PartialOperator(_Windowing):
    """Folds the rows of each batch before the shuffle: one piece per key and window."""

    @property
    def schema(self) -> pa.Schema:
        """The schema of the pieces."""
        return self._content.schema

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        pieces = self._pieces(batch, None)
        return None if pieces is None else self._content.thinned(pieces)


class WindowOperator(_Windowing):
    """Collects rows, or pieces of them, and releases windows.

    ``is_final``: the input are pieces made by a :class:`PartialOperator`.
    """

    joins: ClassVar = {
        "order": nothing,
        "combined": nothing,
        "done": highest,
        "over": nothing,
        AWAY: nothing,
        KEPT: shared_out,
    }
    has_values = True

    def __init__(self, content: Content, window: Window, *, is_final: bool) -> None:
        super().__init__(content, window)
        self._is_final = is_final
        self._in_event_time = is_event_time(window)
        self._store = self._store_of(content)
        self._next_end: int | None = None
        self._is_restored = False

    def _store_of(self, content: Content) -> PieceStore:
        is_session = isinstance(self._window, Session)
        return (SessionStore if is_session else LargePieceStore)(content, self.facts)

    @property
    def schema(self) -> pa.Schema:
        """The schema of the output."""
        return self._content.output

    def on_batch(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        clock_ms = None if self._in_event_time else self.services.step.clock_ms()
        pieces = batch if self._is_final else self._pieces(batch, clock_ms)
        if pieces is None:
            return None
        if self._is_final and clock_ms is not None:
            pieces = self._now(pieces, clock_ms)
        if self._in_event_time and self.watermark_ms is not None:
            pieces = self._without_late(pieces, self.watermark_ms)
        if pieces.num_rows:
            self._store.append(pieces)
            self._look_ahead(int(numbers(pieces, self._window.time).min()))
        return None

    def on_watermark(self, watermark_ms: int) -> pa.RecordBatch | None:
        return self._fire(watermark_ms) if self._in_event_time else None

    def on_timer(self, now_ms: int) -> pa.RecordBatch | None:
        return self._fire(now_ms - 1)

    def next_due_ms(self) -> int | None:
        if self._in_event_time:
            return None
        self._look_again()
        return self._next_end

    def on_end(self) -> pa.RecordBatch | None:
        return self._fire(FOR_EVER)

    def changes(self) -> Frozen:
        return self._store.changes()

    def restore_columns(self, keys: pa.Array, values: pa.Array) -> None:
        self._store.restore(keys, values)
        self._is_restored = True

    def use(self, shelf: Shelf, nbytes: int) -> None:
        self._large.use(shelf, nbytes)

    def restore_values(self, run: Run) -> None:
        self._large.restore_run(run)
        self._is_restored = True

    @property
    def stores(self) -> Iterable[Tiered]:
        return (self._large,)

    @property
    def numbered(self) -> Mapping[str, Numbered]:
        return self._large.numbered

    @property
    def _large(self) -> LargePieceStore | SessionStore:
        """The store, if its pieces need not fit into memory."""
        assert isinstance(self._store, (LargePieceStore, SessionStore))
        return self._store

    def adopt_state(self, shares: Sequence[Share], where: str) -> None:
        # No piece may belong to a window that was released already.
        done = self.facts.get("done", -FOR_EVER)
        for share in shares:
            before = share.facts.get("done", -FOR_EVER)
            if before < done:
                times = numbers(self._store.decode(share.values), self._window.time).tolist()
                if isinstance(self._store, LargePieceStore):  # else runs have no pieces
                    times += [earliest_of(run) for run in share.runs]
                if times and self._window.next_end(min(times), before) - 1 <= done:
                    raise CannotUpgrade(
                        "some of its tasks have released a window that others have not yet",
                        where=where,
                        remedy="start the job as it was, and stop it again",
                    )
        self._store.adopt([(share.values, share.facts.get("combined", 0)) for share in shares])
        self._is_restored = True

    def _result(self, fired: pa.RecordBatch) -> pa.RecordBatch:
        """The output for windows that are over, given as combined pieces."""
        return self._content.result(fired)

    def _now(self, pieces: pa.RecordBatch, clock_ms: int) -> pa.RecordBatch:
        """Put pieces into the window of the time when they arrive, in processing time."""
        assert not isinstance(self._window, Given)
        starts, ends = self._window.intervals(np.full(pieces.num_rows, clock_ms))
        at = pieces.schema.get_field_index(START)
        columns = pieces.columns
        columns[at : at + 2] = [pa.array(starts), pa.array(ends)]
        return pa.RecordBatch.from_arrays(columns, schema=pieces.schema)

    def _without_late(self, pieces: pa.RecordBatch, watermark_ms: int) -> pa.RecordBatch:
        is_late = self._window.is_over(numbers(pieces, END), watermark_ms)
        if not is_late.any():
            return pieces
        late = self._content.rows(pieces.filter(pa.array(is_late)))
        self.facts.set("late_rows", self.facts.get("late_rows", 0) + late)
        return pieces.filter(pa.array(~is_late))

    def _look_ahead(self, earliest: int | None) -> None:
        """Note when the next window ends, given the earliest time of new pieces; a session may turn
        out to end later."""
        self._look_again()
        if isinstance(self._window, Session) and not self._in_event_time:
            # Timers are logged, so they must not depend on when pieces are combined.
            self._store.combine()
            earliest, self._next_end = self._store.earliest(), None
        if earliest is not None:
            end = self._window.next_end(earliest, self.facts.get("done", -FOR_EVER))
            self._next_end = end if self._next_end is None else min(end, self._next_end)

    def _look_again(self) -> None:
        """Compute the next end after all layers are restored: any layer may change the facts."""
        if self._is_restored:
            self._is_restored = False
            self._next_end = None
            self._look_ahead(self._store.earliest())

    def _are_due(self, mark: int) -> bool:
        """Whether a window may be over at `mark`; only then are pieces combined.

        What was noted for a session may be too early, if rows have joined it since, and a restore
        forgets it. The answer must not depend on that.
        """
        if self._next_end is None or self._next_end - 1 > mark:
            return False
        if isinstance(self._window, Session):
            self._next_end = None
            self._look_ahead(self._store.earliest())
        return self._next_end is not None and self._next_end - 1 <= mark

    def _fire(self, mark: int) -> pa.RecordBatch | None:
        """Release the windows that are over at `mark`."""
        self._look_again()
        done = self.facts.get("done", -FOR_EVER)
        if isinstance(self._window, Fixed) and not self._window.is_tumbling:
            self.facts.set("done", mark)
        if not self._are_due(mark):
            return None
        pieces = self._store.take_due(*self._window.reach(mark))
        starts, ends = numbers(pieces, START), numbers(pieces, END)
        due = self._window.due(starts, ends, mark, done)
        result = None
        if len(due.pieces):
            names = self._content.schema.names
            fired = take(pieces.select(names), due.pieces)
            del pieces  # it may be large
            if not self._window.is_tumbling:
                columns = fired.columns
                at = names.index(START)
                columns[at : at + 2] = [pa.array(due.starts), pa.array(due.ends)]
                fired = pa.RecordBatch.from_arrays(columns, schema=fired.schema)
                fired = self._content.combine(fired).pieces
            result = self._result(fired)
        self._next_end = None
        self._look_ahead(self._store.earliest())
        return result


def _times(batch: pa.RecordBatch, column: str) -> Int64:
    times: Int64 = event_ms(batch.column(column)).to_numpy()
    return times
