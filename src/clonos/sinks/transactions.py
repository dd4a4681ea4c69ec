"""Sinks whose store has transactions: rows and the mark of progress are written in one.

::

    released outputs ──► group ──► one transaction:  mark still `before`, incarnation still ours?
                                                     rows in, mark := `last`      (else: Fenced)
    a new life       ──► open:  raises the incarnation in the store: no older life can commit
                         last_key:  reads the mark; outputs up to it are written already

A commit whose reply was lost is no special case: the connection is closed and opened again, and the
mark shows the outcome.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from clonos.blame import in_short, users_traceback
from clonos.columns.rows import short
from clonos.errors import ClonosError, Fenced, MarkLost, ProtocolError, SinkFailed, StoreAway
from clonos.sinks.lanes import Lane, Output, OutputKey
from clonos.sinks.spec import Claim


class Transactions(Protocol):
    """The store's part of a :class:`TransactionalWriter`; `db` is what `open` has returned."""

    def open(self, lane: Lane) -> Any:
        """Connect, and raise the lane's recorded incarnation to `lane.incarnation`.

        From then on no older life can commit, and none has a transaction open. If a higher
        incarnation is recorded, raise ``Fenced``.
        """

    def last_key(self, db: Any, lane: Lane) -> tuple[int, int] | None:
        """The mark: the key of the lane's newest output in the store, as given to `write`."""

    def write(
        self,
        db: Any,
        lane: Lane,
        outputs: list[pa.RecordBatch],
        before: OutputKey | None,
        last: OutputKey,
    ) -> None:
        """In one transaction, check mark and incarnation, write the rows, and move the mark.

        If mark or incarnation are not as expected, raise ``Fenced``.
        """

    def close(self, db: Any) -> None:
        """Close the connection, whatever its state."""

    def is_away(self, error: Exception) -> bool:
        """Whether to connect again and retry after this error."""


class TransactionalWriter:
    """A :class:`~clonos.sinks.lanes.OutputWriter` for a store with transactions."""

    def __init__(self, transactions: Transactions, lane: Lane) -> None:
        self._transactions, self._lane = transactions, lane
        self._db: Any = None
        self._is_open = False
        self._mark: OutputKey | None = None  # the store's mark
        self._known: OutputKey | None = None  # the mark last confirmed to this life

    def write(self, outputs: Sequence[Output]) -> None:
        with self._translated():
            if not self._is_open:
                self._open(outputs[0].key)
            new = [o for o in outputs if self._mark is None or o.key > self._mark]
            if not new:
                return
            if new[0].key.seq != self._lane.began + 1:
                self._require_no_gap(new[0].key)
            batches, last = [o.batch for o in new], new[-1].key
            self._transactions.write(self._db, self._lane, batches, self._mark, last)
            self._mark = self._known = last

    def close(self) -> None:
        db, is_open = self._db, self._is_open
        self._db, self._is_open = None, False
        if is_open:
            with contextlib.suppress(Exception):
                self._transactions.close(db)

    def _open(self, first: OutputKey) -> None:
        self._db = self._transactions.open(self._lane)
        self._is_open = True
        found = self._transactions.last_key(self._db, self._lane)
        self._mark = None if found is None else self._key_of(found)
        # Outputs before `first` must be written: a checkpoint or this life has confirmed them.
        expected = self._known
        if expected is None and first.seq not in (1, self._lane.began + 1):
            expected = OutputKey(0, first.seq - 1)
        if expected is not None and (self._mark is None or self._mark.seq < expected.seq):
            raise mark_lost(self._lane, f"it has {_shown(self._mark)}, not {_shown(expected)}")
        self._known = self._mark

    def _key_of(self, found: Any) -> OutputKey:
        try:
            generation, seq = map(int, () if isinstance(found, str) else found)
        except (TypeError, ValueError):
            raise SinkFailed(
                f"last_key has returned {short(found)}",
                where=self._lane.task,
                remedy="let it return the two integers that write has been given as last, or None",
            ) from None
        return OutputKey(generation, seq)

    def _require_no_gap(self, first: OutputKey) -> None:
        if first.seq > (self._mark.seq if self._mark is not None else 0) + 1:
            raise ProtocolError(
                f"output {first.seq} follows {_shown(self._mark)}",
                where=self._lane.task,
                remedy="report this as a bug",
            )

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Translate errors. After any error the outcome is unknown, so the connection is closed."""
        try:
            yield
        except BaseException as error:
            self.close()
            if isinstance(error, ClonosError) or not isinstance(error, Exception):
                raise
            kind = StoreAway if self._transactions.is_away(error) else SinkFailed
            raise kind(
                f"cannot write: {in_short(error)}",
                where=self._lane.task,
                remedy="check that every executor reaches the store and may write to it",
                trace=users_traceback(error),
            ) from error


def _shown(key: OutputKey | None) -> str:
    return "no mark" if key is None else f"the mark {key.seq}"


def mark_lost(lane: Lane, what: str) -> MarkLost:
    """The error for a store that has lost a mark."""
    return MarkLost(
        f"the store has lost the mark of what this job has written before ({what})",
        where=lane.task,
        remedy="was it restored from a backup, or did a replica take over that lacked "
        "commits? Put the mark back together with the rows, or start the job afresh, with another "
        "checkpoint_dir",
    )


@dataclass(frozen=True)
class UserTransactions:
    """The functions given to :func:`clonos.sinks.transactional`."""

    open_fn: Callable[[Lane], Any]
    last_key_fn: Callable[[Any, Lane], tuple[int, int] | None]
    write_fn: Callable[..., None]
    close_fn: Callable[[Any], Any] | None
    retry_on: tuple[type[Exception], ...]

    def open(self, lane: Lane) -> Any:
        return self.open_fn(lane)

    def last_key(self, db: Any, lane: Lane) -> tuple[int, int] | None:
        return self.last_key_fn(db, lane)

    def write(self, *what: Any) -> None:
        self.write_fn(*what)

    def close(self, db: Any) -> None:
        if self.close_fn is not None:
            self.close_fn(db)
        elif hasattr(db, "close"):
            db.close()

    def is_away(self, error: Exception) -> bool:
        return isinstance(error, self.retry_on) and not isinstance(error, Fenced)


@dataclass(frozen=True)
class UserStore:
    """A :class:`~clonos.sinks.spec.Store` made of a user's functions."""

    transactions: UserTransactions

    @property
    def place(self) -> str | None:
        return None  # different sinks have differently named lanes

    def check(self, schema: pa.Schema) -> None:
        """What a user's functions can write is theirs to say, when they do."""

    def claim(self, lane: Lane, tasks: int) -> Claim | None:
        return None  # lanes' names are unique to the job

    def writer(self, lane: Lane) -> TransactionalWriter:
        return TransactionalWriter(self.transactions, lane)
