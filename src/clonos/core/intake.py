"""What a source task's reader has offered, and how much of that was taken."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from clonos.core import events as ev
from clonos.core import messages as msg
from clonos.core.determinants import (
    Determinant,
    Source,
    SourceCut,
    SourceEnd,
    decode_record,
)
from clonos.core.program import Batch
from clonos.core.sealed import Layer
from clonos.errors import Divergence


class Intake:
    """How rows get into a source task.

    Attributes
    ----------
    taken
        Rows taken, over all lives of the task.
    cut
        The reader's own position after these rows, if it has positions; else empty.
    ended
        The end of the source was taken, too.
    is_closed
        Some process has too little memory left. Logs never block a task in mid-graph, so sources
        wait.
    """

    def __init__(self, floor: Layer | None, claimed: tuple[int, bytes] = (0, b"")) -> None:
        self.taken, self.cut = claimed
        if floor is not None:
            self.taken, self.cut = floor.source_rows, floor.source_cut
        self.ended = floor is not None and floor.source_ended
        self.is_closed = False
        self._offered: deque[ev.SourceRows] = deque()
        self._is_over = False

    @property
    def is_empty(self) -> bool:
        """Whether nothing is offered: rows that nobody takes yet stay with the reader."""
        return not self._offered

    @property
    def wants_rows(self) -> bool:
        """Whether the reader should offer more."""
        return not (self.ended or self._offered or self._is_over or self.is_closed)

    def throttle(self, command: msg.Throttle) -> None:
        """Wait, or go on."""
        self.is_closed = command.closed

    def offer(self, event: ev.SourceRows) -> None:
        """The reader has rows."""
        self._offered.append(event)

    def over(self) -> None:
        """The reader is at its end."""
        self._is_over = True

    def choose(self) -> Determinant | None:
        """The next cut, if there is something to cut."""
        if self.ended or self.is_closed:
            return None
        if self._offered:
            rows = self._offered[0]
            if rows.cut:
                return SourceCut(rows.batch.rows, rows.batch.digest, rows.cut)
            return Source(rows.batch.rows, rows.batch.digest, rows.content)
        return SourceEnd() if self._is_over else None

    @property
    def offered(self) -> Batch:
        """The rows of the cut that was chosen."""
        return self._offered[0].batch

    def take(self) -> ev.SourceRows:
        """Return the rows of the cut that was chosen."""
        rows = self._offered.popleft()
        self.taken += rows.batch.rows
        self.cut = rows.cut
        return rows

    def reread(self, cut: Source | SourceCut, decode: Callable[[bytes], Batch], task: str) -> bool:
        """Fetch the rows of a logged cut, from the log or from the reader."""
        if isinstance(cut, Source) and cut.content is not None:
            self._offered.clear()
            self._offered.append(ev.SourceRows(decode(cut.content), cut.content))
        elif not self._offered:
            return False
        if self._offered[0].batch.digest != cut.digest:
            raise Divergence(
                f"the source gave other rows at {self.taken} when it was read again",
                where=task,
                remedy="the input is recomputed in another order: sort it, or spool it "
                "(job.source(df, materialize=True))",
            )
        return True


def cuts_to_read(records: Iterable[bytes]) -> tuple[tuple[int, bytes], ...]:
    """The logged cuts that the reader has to read again: number of rows, and its own position."""
    causes = (decode_record(record)[0] for record in records)
    return tuple(found for cause in causes if (found := _to_read(cause)) is not None)


def _to_read(cause: Determinant) -> tuple[int, bytes] | None:
    if isinstance(cause, SourceCut):
        return cause.rows, cause.cut
    if isinstance(cause, Source) and cause.content is None:
        return cause.rows, b""
    return None
